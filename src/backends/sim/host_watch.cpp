#include "backends/sim/host_watch.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/memory_tool.hpp"

namespace tern::sim {
namespace {

/// Returns whether all of the addresses are mapped, without accessing them. A freed block often
/// keeps its pages, so the answer is exact only with AddressSanitizer.
bool is_usable(std::byte* first, std::size_t bytes) noexcept {
  if (const MemoryTool* const tool = memory_tool();
      tool != nullptr && !tool->is_accessible(first, bytes)) {
    return false;
  }
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 1024> pages;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(first) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(first) + bytes;
  while (at < end) {
    const std::uintptr_t now = std::min<std::uintptr_t>(end - at, pages.size() * page);
    if (mincore(reinterpret_cast<void*>(at), now, pages.data()) != 0) return false;
    at += now;
  }
  return true;
}

std::uint64_t hash_bytes(const std::byte* first, std::size_t bytes) noexcept {
  // Four independent sums, for speed: ranges of megabytes are common.
  std::array<std::uint64_t, 4> sums = {1, 2, 3, 4};
  const auto add = [](std::uint64_t& sum, std::uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  };
  std::size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), first + i, 32);
    for (std::size_t k = 0; k < 4; ++k) add(sums[k], words[k]);
  }
  for (; i < bytes; ++i) add(sums[0], std::to_integer<std::uint64_t>(first[i]));
  for (std::size_t k = 1; k < 4; ++k) add(sums[0], sums[k]);
  return sums[0];
}

bool is_filled(const std::byte* first, std::size_t bytes) noexcept {
  // The first byte is right, and each byte equals the one before it.
  return bytes == 0 ||
         (first[0] == in_flight_byte && std::memcmp(first, first + 1, bytes - 1) == 0);
}

}  // namespace

bool HostWatch::overlap(const Part& a, const Part& b) noexcept {
  const auto first = [](const Part& part) { return reinterpret_cast<std::uintptr_t>(part.first); };
  return first(a) < first(b) + b.bytes && first(b) < first(a) + a.bytes;
}

HostWatch::~HostWatch() {
  for (Entry& entry : entries_) {
    for (Part& part : entry.parts) unpoison(part);
    spans_ended(entry.spans);
  }
}

HostWatch::Entry* HostWatch::find(std::uint64_t number) noexcept {
  const auto found = std::ranges::find(entries_, number, &Entry::number);
  return found == entries_.end() ? nullptr : &*found;
}

void HostWatch::poison(Part& part) {
  if (memory_tool() == nullptr) return;
  part.poisoned_bytes = part.old.size();
  poison_in_flight(part.first, part.poisoned_bytes);
}

void HostWatch::unpoison(Part& part) {
  const std::size_t bytes = std::exchange(part.poisoned_bytes, 0);
  if (bytes != 0) unpoison_in_flight(part.first, bytes);
}

SpansNumber HostWatch::submit_spans(const Operation& operation,
                                    std::span<const Range> ranges) const {
  if (memory_tool() == nullptr) return 0;
  std::vector<HostSpan> spans;
  for (const Range& range : ranges) {
    spans.push_back({range.address, range.bytes,
                     range.is_written ? HostSpan::Use::written : HostSpan::Use::read});
  }
  return spans_submitted({this, operation.site}, spans);
}

bool HostWatch::compare(Entry& entry, Part& part, std::vector<Finding>& found) {
  unpoison(part);
  const Check check = std::exchange(part.check, Check::none);
  const std::size_t bytes = std::min(part.bytes, max_watched_bytes);
  if (check == Check::none) return true;
  const bool is_there = is_usable(part.first, bytes);
  const bool is_same =
      is_there && (check == Check::filled ? is_filled(part.first, bytes)
                                          : hash_bytes(part.first, bytes) == part.fingerprint);
  if (is_same) return true;
  found.push_back({entry.operation, part.is_written, is_there ? Change::changed : Change::freed,
                   entry.has_run});
  return false;
}

bool HostWatch::resolve_overlaps(const Part& part, std::vector<Finding>& found) {
  bool is_shared = false;
  for (Entry& entry : entries_) {
    for (Part& other : entry.parts) {
      if (!overlap(part, other) || !(part.is_written || other.is_written)) continue;
      if (entry.has_run) {
        if (part.is_written) static_cast<void>(compare(entry, other, found));
        continue;
      }
      is_shared = true;
      // The checker judges the order of the two operations.
      unpoison(other);
      if (part.is_written) other.ends_with_run = true;
    }
  }
  return is_shared;
}

void HostWatch::watch(Part& part) {
  const std::size_t bytes = std::min(part.bytes, max_watched_bytes);
  if (!is_usable(part.first, bytes)) return;
  if (!part.is_written) {
    part.fingerprint = hash_bytes(part.first, bytes);
    part.check = Check::same;
    return;
  }
  part.old.assign(part.first, part.first + bytes);
  std::memset(part.first, std::to_integer<int>(in_flight_byte), bytes);
  part.check = Check::filled;
  poison(part);
}

std::uint64_t HostWatch::submitted(Operation operation, std::span<const Range> ranges, Kind kind,
                                   Queued queued, std::vector<Finding>& found) {
  drop_idle();
  const bool is_too_much = entries_.size() >= max_operations;
  if (is_too_much) forget_contents();
  Entry entry{++last_number_, std::move(operation), kind, false, {}, 0};
  for (const Range& range : ranges) {
    Part part;
    part.first = static_cast<std::byte*>(const_cast<void*>(range.address));
    part.bytes = range.bytes;
    part.is_written = range.is_written;
    const bool is_shared =
        resolve_overlaps(part, found) ||
        std::ranges::any_of(entry.parts, [&](auto& other) { return overlap(part, other); });
    const bool may_fill = queued == Queued::known_ranges || !part.is_written;
    if (kind == Kind::copy && !is_shared && !is_too_much && may_fill) watch(part);
    part.ends_with_run = is_too_much;
    entry.parts.push_back(std::move(part));
  }
  entry.spans = submit_spans(entry.operation, ranges);
  entries_.push_back(std::move(entry));
  return last_number_;
}

bool HostWatch::runs(std::uint64_t number, std::vector<Finding>& found) {
  Entry* const entry = find(number);
  if (entry == nullptr) return true;
  bool may_run = true;
  for (Part& part : entry->parts) {
    const bool is_source = !part.is_written;
    const bool was_checked = part.check != Check::none;
    const std::uint64_t fingerprint = part.fingerprint;
    if (compare(*entry, part, found)) {
      if (is_source && was_checked && !part.ends_with_run) {
        part.check = Check::same;
        part.fingerprint = fingerprint;
      }
      continue;
    }
    // The destination may be freed and reused by now, so the copy must not run. A changed source
    // can still be read unless it was freed.
    if (part.is_written || found.back().change == Change::freed) may_run = false;
    part.ends_with_run = true;
  }
  return may_run;
}

void HostWatch::has_run(std::uint64_t number) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  entry->has_run = true;
  spans_ended(std::exchange(entry->spans, 0));
  for (Part& part : entry->parts) {
    part.old = {};
    if (part.ends_with_run) part.check = Check::none;
    if (!part.is_written || part.ends_with_run || entry->kind != Kind::copy) continue;
    const std::size_t bytes = std::min(part.bytes, max_watched_bytes);
    part.fingerprint = hash_bytes(part.first, bytes);
    part.check = Check::same;
  }
}

void HostWatch::forget_contents() {
  for (Entry& entry : entries_) {
    for (Part& part : entry.parts) {
      unpoison(part);
      part.check = Check::none;
      part.ends_with_run = true;
    }
  }
  drop_idle();
}

void HostWatch::drop_idle() {
  std::erase_if(entries_, [](const Entry& entry) {
    return entry.has_run && std::ranges::all_of(entry.parts, [](const Part& part) {
             return part.check == Check::none;
           });
  });
}

void HostWatch::lost(std::uint32_t device) {
  std::erase_if(entries_, [&](Entry& entry) {
    if (entry.operation.device != device) return false;
    spans_ended(entry.spans);
    for (Part& part : entry.parts) {
      unpoison(part);
      if (part.old.empty() || !is_usable(part.first, part.old.size())) continue;
      // If the program wrote to the memory meanwhile, its bytes stay.
      if (!is_filled(part.first, part.old.size())) continue;
      std::memcpy(part.first, part.old.data(), part.old.size());
    }
    return true;
  });
}

void HostWatch::host_learned(const Knows& knows, std::vector<Finding>& found) {
  std::erase_if(entries_, [&](Entry& entry) {
    if (!entry.has_run || !knows(entry.operation.actor, entry.operation.sequence)) return false;
    for (Part& part : entry.parts) static_cast<void>(compare(entry, part, found));
    return true;
  });
}

void HostWatch::inspect(std::vector<Finding>& found) {
  for (Entry& entry : entries_) {
    for (Part& part : entry.parts) static_cast<void>(compare(entry, part, found));
  }
}

}  // namespace tern::sim
