// The counters and their rules are in shared_segment.cpp. Budget::claim_here() (budget.cpp) claims.

#include "tern/memory/shared_budget.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/fork_count.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "memory/eviction_hook.hpp"
#include "memory/pending_frees.hpp"
#include "memory/shared_segment.hpp"

namespace tern {
namespace {

/// Why the last claim of this thread failed. refusal() runs after the claim has returned, when
/// other threads may have changed the counters.
thread_local SharedClaim last_claim = SharedClaim::over_limit;

/// The largest tenants as text, such as "trainer 3.0 GiB (pid 12), server 1.0 GiB (pid 40), ...", in
/// a fixed size.
class TenantList {
 public:
  /// Throws std::bad_alloc.
  explicit TenantList(std::vector<SharedRow> rows) {
    std::ranges::sort(rows, std::ranges::greater(), &SharedRow::charged);
    constexpr std::size_t shown = 3;
    for (std::size_t i = 0; i < std::min(rows.size(), shown); ++i) add(rows[i], i == 0);
    if (rows.size() > shown) put(", ...");
  }
  [[nodiscard]] std::string_view text() const noexcept { return {text_.data(), length_}; }

 private:
  void add(const SharedRow& row, bool is_first) noexcept {
    std::array<char, 32> bytes;
    if (!is_first) put(", ");
    put(std::string_view(row.name).substr(0, utf8_prefix_bytes(row.name, 16)));
    put(" ");
    put({bytes.data(), format_bytes_to(bytes.data(), bytes.size(), row.charged)});
    put(" (pid ");
    put(std::to_string(row.process.pid));
    put(")");
  }
  void put(std::string_view piece) noexcept {
    const std::size_t fits = std::min(piece.size(), text_.size() - length_);
    std::memcpy(text_.data() + length_, piece.data(), fits);
    length_ += fits;
  }

  std::array<char, 128> text_;
  std::size_t length_ = 0;
};

SharedBudgetState state_of(std::string_view name, const SharedSegment& segment) {
  SharedBudgetState now = {.name = std::string(name),
                           .limit_bytes = segment.limit(),
                           .charged_bytes = segment.charged(),
                           .peak_bytes = segment.peak()};
  for (SharedRow& row : segment.rows()) {
    now.tenants.push_back({.name = std::move(row.name),
                           .pid = row.process.pid,
                           .is_alive = is_alive(row.process),
                           .charged_bytes = row.charged,
                           .peak_bytes = row.peak,
                           .limit_bytes = row.limit,
                           .asked_bytes = row.asked,
                           .answers = row.answers,
                           .evicted_bytes = row.evicted,
                           .trimmed_bytes = row.trimmed});
  }
  return now;
}

Failure no_memory(CallSite site) noexcept {
  return no_host_memory(sizeof(SharedSegment), "the records of a shared budget", site);
}

[[noreturn]] void raise_blocked(std::string_view name, const SharedSegment& segment) {
  const std::optional<ProcessIdentity> holder = segment.lock_holder();
  raise(Failure(ErrorCode::timeout,
                "process {pid} blocks shared budget '{shared}': it has been inside a claim for "
                "{timeout}. Continue the process if it is stopped, or end it.")
            .with("shared", name)
            .with("pid", holder ? holder->pid : 0)
            .with("timeout", SharedSegment::usual_patience_ns, Unit::nanoseconds));
}

/// Throws NotFound.
SharedRow find_tenant(std::string_view name, std::string_view tenant,
                      const SharedSegment& segment) {
  for (SharedRow& row : segment.rows()) {
    if (row.name == tenant) return std::move(row);
  }
  raise(Failure(ErrorCode::not_found,
                "shared budget '{shared}' has no tenant '{tenant}'. state() lists the tenants.")
            .with("shared", name)
            .with("tenant", tenant));
}

}  // namespace

SharedBudget::SharedBudget(std::string_view name, std::string_view tenant,
                           std::unique_ptr<SharedSegment> segment)
    : name_(name), tenant_(tenant), process_(process_generation()), segment_(std::move(segment)) {}

SharedBudget::~SharedBudget() = default;

Result<SharedBudgetHandle> SharedBudget::try_join(std::string_view name,
                                                  const SharedBudgetOptions& options,
                                                  CallSite site) noexcept try {
  SharedSegment::JoinOptions join = {.name = name,
                                     .tenant = options.tenant,
                                     .tenant_limit = options.tenant_limit.value_bytes()};
  if (options.limit) join.limit = options.limit->value_bytes();
  Result<std::unique_ptr<SharedSegment>> segment = SharedSegment::try_join(join);
  if (!segment) return Failure(segment.failure()).at(site);
  return SharedBudgetHandle(new SharedBudget(name, options.tenant, std::move(*segment)));
} catch (const std::bad_alloc&) {
  return no_memory(site);
}

SharedBudgetHandle SharedBudget::join(std::string_view name, const SharedBudgetOptions& options,
                                      CallSite site) {
  return try_join(name, options, site).value();
}

Result<SharedBudgetState> SharedBudget::try_inspect(std::string_view name,
                                                    CallSite site) noexcept try {
  const Result<std::unique_ptr<SharedSegment>> segment = SharedSegment::try_inspect(name);
  if (!segment) return Failure(segment.failure()).at(site);
  return state_of(name, **segment);
} catch (const std::bad_alloc&) {
  return no_memory(site);
}

SharedBudgetState SharedBudget::inspect(std::string_view name, CallSite site) {
  return try_inspect(name, site).value();
}

bool SharedBudget::is_forked() const noexcept { return !is_same_process(process_); }

// --- Queries

std::size_t SharedBudget::limit_bytes() const noexcept { return segment_->limit(); }
std::size_t SharedBudget::tenant_limit_bytes() const noexcept { return segment_->own().limit.load(); }
std::size_t SharedBudget::charged_bytes() const noexcept { return segment_->charged(); }
std::size_t SharedBudget::tenant_charged_bytes() const noexcept {
  return segment_->own().charged.load();
}

std::size_t SharedBudget::remaining_bytes() const noexcept {
  const auto minus = [](std::size_t a, std::size_t b) { return a - std::min(a, b); };
  return std::min(minus(limit_bytes(), charged_bytes()),
                  minus(tenant_limit_bytes(), tenant_charged_bytes()));
}

SharedBudgetState SharedBudget::state() const { return state_of(name_, *segment_); }

// --- Limits

void SharedBudget::set_limit(BudgetLimit limit) {
  check_not_forked(process_).value();
  if (!segment_->try_set_limit(limit.value_bytes())) raise_blocked(name_, *segment_);
  bound_pools();
}

void SharedBudget::set_tenant_limit(std::string_view tenant, BudgetLimit limit) {
  check_not_forked(process_).value();
  const SharedRow row = find_tenant(name_, tenant, *segment_);
  if (!segment_->try_set_limit(row, limit.value_bytes())) raise_blocked(name_, *segment_);
  bound_pools();
}

void SharedBudget::bound_pools() {
  for (const BudgetHandle& root : roots()) root->frees_->bound_pools();
}

// --- Claiming

std::size_t SharedBudget::collect() noexcept { return is_forked() ? 0 : segment_->collect(); }

bool SharedBudget::claim(std::size_t bytes) noexcept {
  if (is_forked()) return false;
  last_claim = segment_->claim(bytes);
  if (last_claim == SharedClaim::over_limit) {
    // Claim again even if this call collected nothing: another process may have collected the dead
    // tenant in between.
    segment_->collect();
    last_claim = segment_->claim(bytes);
  }
  return last_claim == SharedClaim::granted;
}

void SharedBudget::release(std::size_t bytes) noexcept {
  if (!is_forked()) segment_->release(bytes);
}

Failure SharedBudget::refusal(std::string_view root, std::size_t requested,
                              std::size_t would_grant) const noexcept {
  if (is_forked()) return check_not_forked(process_).failure();
  if (last_claim == SharedClaim::timed_out) {
    try {
      raise_blocked(name_, *segment_);
    } catch (const TimedOut& error) {
      return error.failure();
    }
  }
  const bool is_own = last_claim == SharedClaim::over_tenant_limit;
  const std::size_t limit = is_own ? tenant_limit_bytes() : limit_bytes();
  const std::size_t current = is_own ? tenant_charged_bytes() : charged_bytes();
  const char* sentence =
      "shared budget '{shared}' cannot hold {would_grant} more for tenant '{tenant}': {current} of "
      "{limit} in use. Largest tenants: {tenants}. Ask one to shrink, free something, or raise the "
      "limit by {missing}.";
  if (would_grant > limit) {
    sentence = is_own ? "tenant '{tenant}' of shared budget '{shared}' cannot hold {would_grant}: "
                        "the request exceeds its limit of {limit} by {missing}. Ask for less, or "
                        "raise the limit of the tenant."
                      : "shared budget '{shared}' cannot hold {would_grant}: the request exceeds "
                        "its limit of {limit} by {missing}, even if all tenants free everything. "
                        "Ask for less, or raise the limit.";
  } else if (is_own) {
    sentence =
        "tenant '{tenant}' of shared budget '{shared}' cannot hold {would_grant} more: {current} of "
        "its limit of {limit} in use. Free something, or raise the limit of the tenant by "
        "{missing}.";
  }
  // Compared without adding, which could wrap.
  const std::size_t remaining = limit - std::min(limit, current);
  const std::size_t missing =
      would_grant > limit ? would_grant - limit : would_grant - std::min(would_grant, remaining);
  Failure failure(ErrorCode::out_of_budget, sentence);
  failure.with("layer", root)
      .with("shared", name_)
      .with("tenant", tenant_)
      .with_bytes("requested", requested)
      .with_bytes("would_grant", would_grant)
      .with_bytes("current", current)
      .with_bytes("limit", limit)
      .with_bytes("remaining", remaining)
      .with_bytes("missing", missing)
      .with_bytes("own", tenant_charged_bytes());
  try {
    return failure.with("tenants", TenantList(segment_->rows()).text());
  } catch (const std::bad_alloc&) {
    return failure.with("tenants", "not listed, because the host has no memory");
  }
}

// --- Requests to shrink

void SharedBudget::attach(const BudgetHandle& root) {
  check_not_forked(process_).value();
  const std::lock_guard lock(mutex_);
  std::erase_if(roots_, [](const std::weak_ptr<Budget>& one) { return one.expired(); });
  roots_.push_back(root);
}

std::vector<BudgetHandle> SharedBudget::roots() {
  std::vector<BudgetHandle> all;
  const std::lock_guard lock(mutex_);
  for (const std::weak_ptr<Budget>& one : roots_) {
    if (BudgetHandle root = one.lock()) all.push_back(std::move(root));
  }
  return all;
}

void SharedBudget::ask(std::string_view tenant, std::size_t bytes) {
  check_not_forked(process_).value();
  segment_->ask(find_tenant(name_, tenant, *segment_), bytes);
}

bool SharedBudget::is_asked() const noexcept {
  return segment_->own().asked.load(std::memory_order_relaxed) != 0 && !is_forked();
}

SharedAnswer SharedBudget::answer_requests() noexcept { return answer(Overflow::spill, true); }

SharedAnswer SharedBudget::answer(Overflow reach, bool may_wait) noexcept try {
  SharedAnswer done;
  if (!is_asked()) return done;
  const std::vector<BudgetHandle> all = roots();
  SharedSlot& slot = segment_->own();
  done.asked_bytes = slot.asked.exchange(0);
  const EvictionHook evict = eviction_hook.load();
  for (const BudgetHandle& root : all) {
    if (evict != nullptr && done.evicted_bytes < done.asked_bytes) {
      done.evicted_bytes += evict(*root, done.asked_bytes - done.evicted_bytes, reach);
    }
    // Evicted copies count, and their pools keep the memory, until their streams have passed the
    // frees.
    if (may_wait && root->overflow() != Overflow::fail) {
      static_cast<void>(root->try_wait_for_pending());
    } else {
      root->drain();
    }
    done.trimmed_bytes += root->trim_pools();
    // Another process may have changed the limits.
    root->frees_->bound_pools();
  }
  slot.evicted.fetch_add(done.evicted_bytes);
  slot.trimmed.fetch_add(done.trimmed_bytes);
  slot.answers.fetch_add(1);
  return done;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace tern
