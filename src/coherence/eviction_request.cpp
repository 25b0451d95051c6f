// Chooses the copies to evict: find() collects the copies that may be evicted
// (UnifiedCore::evictability_of, unified_eviction.cpp) and would help, sort_by_eviction_order()
// orders them, and free() evicts from the front.

#include "coherence/eviction_request.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <tuple>

#include "coherence/totals.hpp"
#include "coherence/unified_core.hpp"
#include "core/text.hpp"
#include "memory/budget_state.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/shared_budget.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

/// Calls visit(Budget&) for all budgets that count memory of the resource, until visit() returns
/// true. Returns whether it did.
template <class Visit>
bool visit_budgets(const Resource* resource, Visit visit) {
  while (resource != nullptr) {
    if (const auto* limited = dynamic_cast<const BudgetResource*>(resource)) {
      for (Budget* one = limited->budget().get(); one != nullptr; one = one->parent().get()) {
        if (visit(*one)) return true;
      }
    }
    const auto* wrapper = dynamic_cast<const WrappingResource*>(resource);
    resource = wrapper != nullptr ? wrapper->upstream().get() : nullptr;
  }
  return false;
}

/// Returns whether memory of both resources counts against the same budget.
bool share_a_budget(const Resource* a, const Resource* b) {
  return a == b || visit_budgets(a, [&](const Budget& one) { return is_charged_to(b, one); });
}

/// The number of EvictionRequests of this thread. A write-back to the host may need a second one.
thread_local int turns = 0;

/// The number of requests of this thread that have failed.
thread_local std::uint64_t refusals = 0;

std::size_t minus(std::size_t a, std::size_t b) noexcept { return a - std::min(a, b); }

/// Returns whether the level has a limit, or a shared budget above it.
bool can_refuse(const Budget& level) noexcept {
  return level.has_limit() || (!level.parent() && level.shared());
}

/// Returns the largest request that fits at this level after `freed_bytes` of its charge are freed.
std::size_t room_after(const Budget& level, std::size_t freed_bytes) {
  const BudgetState now = state_of(level);
  const std::size_t room = minus(now.limit_bytes, minus(now.charged_bytes, freed_bytes));
  if (level.parent() || !level.shared()) return room;
  return std::min(room, level.shared()->remaining_bytes() + std::min(now.charged_bytes, freed_bytes));
}

/// Builds a text such as "rho 4.0 MiB (2.0 MiB leased), grid 1.0 MiB, ..." in a fixed size.
class ShortList {
 public:
  void add(const TagResidency& one) noexcept {
    std::array<char, 96> text = {};
    std::size_t length = 0;
    const auto put = [&](std::string_view piece) {
      const std::size_t bytes = utf8_prefix_bytes(piece, text.size() - length);
      std::memcpy(text.data() + length, piece.data(), bytes);
      length += bytes;
    };
    const auto put_bytes = [&](std::size_t bytes) {
      std::array<char, 32> number;
      put({number.data(), format_bytes_to(number.data(), number.size(), bytes)});
    };
    if (length_ != 0) put(", ");
    put(std::string_view(one.tag.name()).substr(0, utf8_prefix_bytes(one.tag.name(), 24)));
    put(" ");
    put_bytes(one.bytes);
    if (one.leased_bytes != 0) {
      put(" (");
      put_bytes(one.leased_bytes);
      put(" leased)");
    }
    if (length_ + length + 8 > text_.size()) {
      is_full_ = true;
      return;
    }
    std::memcpy(text_.data() + length_, text.data(), length);
    length_ += length;
  }
  [[nodiscard]] std::string_view text() noexcept {
    if (is_full_ && length_ + 5 <= text_.size()) {
      std::memcpy(text_.data() + length_, ", ...", 5);
      return {text_.data(), length_ + 5};
    }
    return length_ == 0 ? std::string_view("no copies") : std::string_view(text_.data(), length_);
  }
  [[nodiscard]] bool is_full() const noexcept { return is_full_; }

 private:
  std::array<char, 120> text_;
  std::size_t length_ = 0;
  bool is_full_ = false;
};

/// Returns the copies in a place by tag, the largest tag first.
std::vector<TagResidency> by_tag(Residents& where) {
  std::vector<TagResidency> all;
  where.visit([&](const Resident& one) {
    const UnifiedCore::Evictability evictability = one.owner()->evictability(one.memory());
    if (evictability.bytes == 0) return;
    const Tag tag = one.owner()->options().tag;
    auto found = std::ranges::find(all, tag, &TagResidency::tag);
    if (found == all.end()) found = all.insert(found, TagResidency{.tag = tag});
    ++found->copies;
    found->bytes += evictability.bytes;
    if (evictability.is_leased) found->leased_bytes += evictability.bytes;
    if (evictability.is_kept) found->kept_bytes += evictability.bytes;
  });
  std::ranges::sort(all, [](const TagResidency& a, const TagResidency& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tag.name() < b.tag.name();
  });
  return all;
}

}  // namespace

bool is_charged_to(const Resource* resource, const Budget& budget) {
  return visit_budgets(resource, [&](const Budget& one) { return &one == &budget; });
}

RetainedCandidates::~RetainedCandidates() {
  for (const Candidate& one : all) one.owner->release();
}

void RetainedCandidates::add(const Candidate& candidate) {
  all.push_back(candidate);
  if (!candidate.owner->try_share()) all.pop_back();
}

bool is_shortage(const Failure& failure) noexcept {
  // If Tern's own data structures could not be allocated ("what" is set), evicting copies does not
  // help.
  return (failure.code() == ErrorCode::out_of_memory && !failure.string("what")) ||
         failure.code() == ErrorCode::out_of_budget;
}

bool may_fit_later(const Failure& failure) noexcept {
  // If no unified buffer has memory in the place, the failure is the budget's own and has another
  // field.
  return is_shortage(failure) && (failure.number("fits_later").value_or(0) != 0 ||
                                  failure.number("fits_after_pending").value_or(0) != 0);
}

std::vector<TagResidency> residency_by_tag(Place place) { return by_tag(*Residents::of(place)); }

EvictionRequest::EvictionRequest(Residents& where, const EvictionWanted& wanted) noexcept
    : where_(where),
      wanted_(wanted),
      reach_(overflow_of(wanted.resource)),
      turn_(where.turn(), std::try_to_lock) {
  if (!turn_) {
    has_waited_ = true;
    // Without the turn, other requests may take the freed memory. But waiting for a turn while
    // holding another one could deadlock.
    if (turns == 0) turn_.lock();
  }
  ++turns;
}

EvictionRequest::~EvictionRequest() { --turns; }

bool EvictionRequest::may_go(Eviction kind, bool is_for_device) const noexcept {
  if (kind > wanted_.most) return false;
  if (is_for_device || reach_ == Overflow::spill) return true;
  return reach_ == Overflow::evict && kind < Eviction::dirty;
}

std::uint64_t EvictionRequest::refused_by_thread() noexcept { return refusals; }

void EvictionRequest::part_uses() noexcept {
  if (!wanted_.stream.is_usable()) return;
  where_.visit([](const Resident& one) { one.owner()->settle_uses(); });
  // If recording the mark fails, a write-back waits for more work than necessary.
  static_cast<void>(wanted_.stream.device().try_record_mark(wanted_.stream.id()));
}

void EvictionRequest::find(bool is_for_device, RetainedCandidates& found) const {
  where_.visit([&](const Resident& one) {
    const UnifiedCore::Evictability evictability = one.owner()->evictability(one.memory());
    if (!may_go(evictability.kind, is_for_device) || evictability.bytes == 0) return;
    if (!is_for_device && !share_a_budget(wanted_.resource, evictability.resource)) return;
    if (!evictability.can_go) {
      const bool is_kept_by_lease = !evictability.is_kept && evictability.leased_at.is_known();
      if (is_kept_by_lease && trace::is_recording()) {
        trace::record(trace::EventKind::evict_blocked, {.bytes = evictability.bytes,
                                                        .site = evictability.leased_at,
                                                        .tag = one.owner()->options().tag});
      }
      return;
    }
    found.add({evictability.kind, one.last_use(), evictability.bytes, one.owner(), one.memory()});
  });
}

bool EvictionRequest::is_hopeless(const Failure& why) noexcept {
  if (why.code() != ErrorCode::out_of_budget) return false;
  visit_budgets(wanted_.resource, [&](const Budget& level) {
    if (!can_refuse(level)) return false;
    std::size_t evictable = 0;
    where_.visit([&](const Resident& one) {
      const UnifiedCore::Evictability evictability = one.owner()->evictability(one.memory());
      if (!evictability.can_go || !may_go(evictability.kind, false)) return;
      if (is_charged_to(evictability.resource, level)) evictable += evictability.bytes;
    });
    limit_bytes_ = level.limit_bytes();
    is_hopeless_ = wanted_.bytes > room_after(level, level.pending_bytes() + evictable);
    return is_hopeless_;
  });
  return is_hopeless_;
}

std::size_t EvictionRequest::missing_bytes() const noexcept {
  std::size_t missing = 0;
  const StreamId stream = wanted_.stream.id();
  visit_budgets(wanted_.resource, [&](Budget& level) {
    if (!can_refuse(level)) return false;
    if (level.remaining_bytes() < wanted_.bytes) level.drain();
    // The stream can reuse memory that it has freed itself.
    const std::size_t own = stream ? level.pending_bytes(stream) : 0;
    missing = std::max(missing, minus(wanted_.bytes, level.remaining_bytes() + own));
    return false;
  });
  return missing;
}

void sort_by_eviction_order(std::vector<Candidate>& candidates) noexcept {
  std::ranges::sort(candidates, {},
                    [](const Candidate& one) { return std::tuple(one.kind, one.last_use); });
}

bool EvictionRequest::free(std::size_t bytes, const Failure& why) noexcept try {
  const bool is_for_device = why.code() == ErrorCode::out_of_memory;
  std::size_t freed = 0;
  RetainedCandidates found;
  find(is_for_device, found);
  sort_by_eviction_order(found.all);
  // A copy that is in use by now, or that cannot be written back, is skipped.
  const Eviction most = may_go(Eviction::dirty, is_for_device)
                            ? wanted_.most
                            : std::min(wanted_.most, Eviction::clean);
  for (const Candidate& one : found.all) {
    if (freed >= bytes) break;
    const Result<std::size_t> gone =
        one.owner->try_evict(one.memory, most, wanted_.stream, wanted_.site);
    if (!gone) {
      last_failure_ = gone.failure();
      continue;
    }
    freed += *gone;
    if (*gone != 0) ++freed_copies_;
  }
  freed_bytes_ += freed;
  return freed != 0;
} catch (const std::bad_alloc&) {
  return false;
}

bool EvictionRequest::fits_later(const Failure& why) const noexcept {
  // A request above the limit itself can never fit.
  const bool is_too_large = visit_budgets(wanted_.resource, [&](const Budget& level) {
    return level.has_limit() && wanted_.bytes > state_of(level).limit_bytes;
  });
  if (is_too_large) return false;
  const std::uint64_t begun = where_.transits_begun();
  // Memory in transit is in no sum, and may make room for the next attempt.
  return would_fit_later(why) || where_.had_transits_since(begun);
}

bool EvictionRequest::would_fit_later(const Failure& why) const noexcept {
  // If a write-back has failed, copies that can be evicted now do not help.
  const bool can_evict = !last_failure_ || may_fit_later(*last_failure_);
  const auto bytes_of = [&](const Budget* level) {
    std::size_t later = 0;
    where_.visit([&](const Resident& one) {
      const UnifiedCore::Evictability evictability = one.owner()->evictability(one.memory());
      if (!evictability.could_go || !may_go(evictability.kind, level == nullptr)) return;
      if (evictability.can_go && (!can_evict || level == nullptr)) return;
      if (level == nullptr || is_charged_to(evictability.resource, *level)) later += evictability.bytes;
    });
    return later;
  };
  if (why.code() == ErrorCode::out_of_memory) {
    // Nobody knows how much memory a device lacks, so any amount may be enough.
    const std::size_t pending =
        wanted_.resource != nullptr ? wanted_.resource->statistics().pending_bytes : 0;
    return freed_bytes_ + pending + bytes_of(nullptr) != 0;
  }
  return !visit_budgets(wanted_.resource, [&](const Budget& level) {
    if (!can_refuse(level)) return false;
    return wanted_.bytes > room_after(level, level.pending_bytes() + bytes_of(&level));
  });
}

Failure EvictionRequest::refusal(const Failure& why) const noexcept {
  {
    PressureTotals& totals = PressureTotals::instance();
    const std::lock_guard lock(totals.mutex);
    ++totals.statistics.refused_requests;
    ++refusals;
  }
  Sums sums;
  ShortList list;
  try {
    where_.visit([&](const Resident& one) {
      const UnifiedCore::Evictability evictability = one.owner()->evictability(one.memory());
      if (evictability.is_leased) sums.leased_bytes += evictability.bytes;
      if (evictability.is_kept) sums.kept_bytes += evictability.bytes;
      if (evictability.can_go) sums.evictable_bytes += evictability.bytes;
    });
    for (const TagResidency& one : by_tag(where_)) {
      if (!list.is_full()) list.add(one);
    }
  } catch (const std::bad_alloc&) {
    // The failure then lists fewer details.
  }
  // If no unified buffer has memory in the place, the original failure is more useful.
  const std::size_t there = sums.leased_bytes + sums.kept_bytes + sums.evictable_bytes;
  if (there + freed_bytes_ == 0 && !is_hopeless_ && !last_failure_) {
    return Failure(why).at(wanted_.site);
  }
  const char* sentence =
      "buffer '{tag}' needs {requested} on '{device}', but eviction freed only {freed}: {leased} "
      "are leased, {kept} are pinned or adopted. Copies: {by_tag}. Close leases, use less, or "
      "raise the limit. ({cause})";
  if (is_hopeless_) {
    sentence =
        "buffer '{tag}' needs {requested} on '{device}', which does not fit into the limit of "
        "{limit} even after eviction: {evictable} can be evicted, {leased} are leased, {kept} are "
        "pinned or adopted. Copies: {by_tag}. Close leases, use less at a time, or raise the "
        "limit. ({cause})";
  } else if (last_failure_) {
    sentence =
        "buffer '{tag}' needs {requested} on '{device}', but eviction freed only {freed}: {leased} "
        "are leased, {kept} are pinned or adopted. Copies: {by_tag}. The next copy could not be "
        "written back: {eviction_error}. ({cause})";
  }
  Failure refusal(why.code(), sentence, wanted_.site);
  refusal.with_bytes("requested", wanted_.bytes)
      .with_bytes("freed", freed_bytes_)
      .with("evictions", freed_copies_)
      .with_bytes("leased", sums.leased_bytes)
      .with_bytes("kept", sums.kept_bytes)
      .with_bytes("evictable", sums.evictable_bytes)
      .with_bytes("limit", is_hopeless_ ? limit_bytes_ : why.number("limit").value_or(0))
      .with_bytes("pending", why.number("pending").value_or(0))
      .with("hopeless", std::uint64_t{is_hopeless_})
      .with("fits_later", std::uint64_t{fits_later(why)})
      .with("tag", wanted_.tag.name())
      .with("device", wanted_.place)
      .with("cause", name(why.code()));
  if (last_failure_) {
    refusal.with("eviction_code", static_cast<std::uint64_t>(last_failure_->code()));
    // If the failed write-back found no room on the host in turn, report what failed there.
    std::optional<std::string_view> text = last_failure_->string("eviction_error");
    if (!text) text = last_failure_->string("cause");
    refusal.with("eviction_error", text.value_or(name(last_failure_->code())));
  }
  return refusal.with("by_tag", list.text());
}

}  // namespace tern
