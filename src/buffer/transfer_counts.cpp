// Lock-free counters of copies, the rules of TransferGates, and the functions that read both.

#include "buffer/transfer_counts.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "buffer/copy_route.hpp"

namespace tern {
namespace {

struct AtomicCount {
  std::atomic<std::uint64_t> calls = 0;
  std::atomic<std::uint64_t> bytes = 0;

  void add(std::size_t size) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
  [[nodiscard]] CopyCount get() const noexcept {
    return {calls.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
  }
};

/// The counters of one tag in one set. A set is shared by some of the threads.
struct alignas(64) Row {
  AtomicCount counts[transfer_directions][transfer_purposes];
};

constexpr std::size_t row_of_others = max_counted_tags;
constexpr std::size_t set_count = 8;

// Each place holds a tag's number plus one. A place is taken once and never released.
constinit std::array<std::atomic<std::uint32_t>, max_counted_tags> places = {};
constinit Row sets[set_count][max_counted_tags + 1] = {};

constinit std::atomic<std::uint32_t> threads_seen = 0;
constinit thread_local Row* own_set = nullptr;
constinit thread_local TransferRule* rule_in_force = nullptr;

struct Violations {
  std::mutex mutex;
  TransferGateStatistics counts;  // guarded by mutex
};
constinit Violations violations;

/// Returns the row of a tag. Tag numbers are consecutive, so the first probe usually succeeds.
std::optional<std::size_t> find_row(Tag tag) noexcept {
  const std::uint32_t name = std::uint32_t{tag.number()} + 1;
  std::size_t place = tag.number() % max_counted_tags;
  for (std::size_t i = 0; i < max_counted_tags; ++i) {
    const std::uint32_t there = places[place].load(std::memory_order_acquire);
    if (there == name) return place;
    if (there == 0) return std::nullopt;
    place = place + 1 == max_counted_tags ? 0 : place + 1;
  }
  return row_of_others;
}

std::size_t take_row(Tag tag) noexcept {
  const std::uint32_t name = std::uint32_t{tag.number()} + 1;
  std::size_t place = tag.number() % max_counted_tags;
  for (std::size_t i = 0; i < max_counted_tags; ++i) {
    std::uint32_t there = places[place].load(std::memory_order_acquire);
    if (there == 0 &&
        places[place].compare_exchange_strong(there, name, std::memory_order_acq_rel)) {
      return place;
    }
    if (there == name) return place;
    place = place + 1 == max_counted_tags ? 0 : place + 1;
  }
  return row_of_others;
}

Row& own_row(Tag tag) noexcept {
  if (own_set == nullptr) {
    own_set = sets[threads_seen.fetch_add(1, std::memory_order_relaxed) % set_count];
  }
  return own_set[take_row(tag)];
}

void add_row(TransferCounts& to, std::size_t row) noexcept {
  for (const auto& set : sets) {
    for (std::size_t i = 0; i < transfer_directions; ++i) {
      for (std::size_t j = 0; j < transfer_purposes; ++j) {
        to.at(static_cast<TransferDirection>(i), static_cast<TransferPurpose>(j)) +=
            set[row].counts[i][j].get();
      }
    }
  }
}

TransferPurpose purpose_of(TransferDirection direction, std::size_t bytes) noexcept {
  if (bytes <= max_scalar_bytes) return TransferPurpose::scalar;
  if (bytes <= max_metadata_bytes) return TransferPurpose::metadata;
  const bool is_result = direction == TransferDirection::device_to_host &&
                         rule_in_force != nullptr &&
                         rule_in_force->mode == TransferRule::Mode::allow;
  return is_result ? TransferPurpose::result : TransferPurpose::data;
}

bool is_on_host(const Storage& storage) noexcept {
  return is_host_memory(storage) || storage.kind() == MemoryKind::file;
}

/// Counts for this rule and the rules around it, up to a rule of Mode::allow.
void note(CopyCount TransferRule::*count, std::size_t bytes) noexcept {
  for (TransferRule* rule = rule_in_force;
       rule != nullptr && rule->mode != TransferRule::Mode::allow; rule = rule->outer) {
    rule->*count += {1, bytes};
  }
}

[[gnu::cold]] Failure refused(Tag tag, std::size_t bytes, CallSite site) noexcept {
  return Failure(ErrorCode::download_refused,
                 "a TransferGate rejected a copy of {bytes} of '{tag}' to the host: the gate "
                 "allows at most {limit}. Keep the bytes on the device, copy them after the gate, "
                 "or open a gate with Mode::allow around an intended copy.",
                 site)
      .with_bytes("bytes", bytes)
      .with_bytes("limit", max_metadata_bytes)
      .with("tag", tag.name())
      .with("gate_line", rule_in_force->site.line)
      .with("gate_file", rule_in_force->site.file);
}

[[gnu::cold]] void note_violation(bool is_refused, std::size_t bytes, CallSite site) noexcept {
  note(&TransferRule::violations, bytes);
  const std::lock_guard lock(violations.mutex);
  (is_refused ? violations.counts.refused : violations.counts.counted) += {1, bytes};
  violations.counts.last = site;
}

}  // namespace

TransferRule* transfer_rule() noexcept { return rule_in_force; }

Result<void> check_download(Tag tag, std::size_t bytes, CallSite site) noexcept {
  if (rule_in_force == nullptr || rule_in_force->mode != TransferRule::Mode::refuse) return {};
  if (bytes <= max_metadata_bytes) return {};
  note_violation(true, bytes, site);
  return refused(tag, bytes, site);
}

Result<void> try_download(Tag tag, std::size_t bytes, CallSite site) noexcept {
  if (rule_in_force == nullptr || bytes == 0) return {};
  if (bytes <= max_metadata_bytes) {
    note(&TransferRule::small, bytes);
    return {};
  }
  if (rule_in_force->mode == TransferRule::Mode::count) note_violation(false, bytes, site);
  return check_download(tag, bytes, site);
}

std::size_t download_bytes(const Storage& to, const Storage& from, std::size_t bytes,
                           DeviceId device) noexcept {
  if (is_on_host(from)) return 0;
  if (is_on_host(to)) return bytes;
  const std::optional<CopyPlan> plan = plan_copy(to, from, device);
  return plan && plan->route == CopyRoute::staged ? bytes : 0;
}

Result<void> try_download(const Storage& to, const Storage& from, std::size_t bytes,
                          DeviceId device, CallSite site) noexcept {
  if (rule_in_force == nullptr) return {};
  return try_download(from.tag(), download_bytes(to, from, bytes, device), site);
}

void count_transfer(TransferDirection direction, Tag tag, std::size_t bytes) noexcept {
  const TransferPurpose purpose = purpose_of(direction, bytes);
  own_row(tag).counts[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)].add(
      bytes);
}

void count_transfer(const Storage& to, const Storage& from, std::size_t bytes,
                    CopyRoute route) noexcept {
  const bool ends_on_host = is_on_host(to);
  if (is_on_host(from)) {
    if (!ends_on_host) count_transfer(TransferDirection::host_to_device, to.tag(), bytes);
    return;
  }
  if (ends_on_host) return count_transfer(TransferDirection::device_to_host, from.tag(), bytes);
  if (route == CopyRoute::staged) {
    // A staged copy moves every byte to the host and back.
    count_transfer(TransferDirection::device_to_host, from.tag(), bytes);
    return count_transfer(TransferDirection::host_to_device, to.tag(), bytes);
  }
  count_transfer(to.device().id() == from.device().id() ? TransferDirection::device_to_device
                                                        : TransferDirection::between_devices,
                 to.tag(), bytes);
}

// --- The audit

TransferCounts transfer_counts() noexcept {
  TransferCounts counts;
  for (std::size_t row = 0; row <= row_of_others; ++row) add_row(counts, row);
  return counts;
}

TransferCounts transfer_counts(Tag tag) noexcept {
  TransferCounts counts;
  const std::optional<std::size_t> row = find_row(tag);
  if (row && *row != row_of_others) add_row(counts, *row);
  return counts;
}

std::vector<std::pair<Tag, TransferCounts>> transfer_counts_by_tag() {
  std::vector<std::pair<Tag, TransferCounts>> all;
  for (std::size_t row = 0; row < max_counted_tags; ++row) {
    const std::uint32_t name = places[row].load(std::memory_order_acquire);
    if (name == 0) continue;
    auto& [tag, counts] = all.emplace_back();
    tag = std::bit_cast<Tag>(static_cast<std::uint16_t>(name - 1));
    add_row(counts, row);
  }
  return all;
}

TransferCounts transfer_counts_of_other_tags() noexcept {
  TransferCounts counts;
  add_row(counts, row_of_others);
  return counts;
}

TransferGateStatistics transfer_gate_statistics() noexcept {
  const std::lock_guard lock(violations.mutex);
  return violations.counts;
}

TransferGate::TransferGate(Mode mode, CallSite site) noexcept {
  rule_.outer = rule_in_force;
  rule_.site = site;
  rule_.mode = mode;
  if (rule_.outer != nullptr && mode != Mode::allow) {
    rule_.mode = std::max(mode, rule_.outer->mode);
  }
  rule_in_force = &rule_;
}

TransferGate::~TransferGate() { rule_in_force = rule_.outer; }

}  // namespace tern
