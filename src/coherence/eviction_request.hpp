// An EvictionRequest frees memory in a place so that a copy of a unified buffer can be allocated
// there. It chooses which copies are evicted, and in which order.
//
// A caller whose allocation failed creates an EvictionRequest and calls free() until the allocation
// succeeds or free() returns false. An EvictionRequest evicts only copies that help. If a budget
// refused the allocation, these are the copies whose memory counts against a budget that the
// request counts against too. If the device itself has no more memory, all copies on the device
// help.
//
// An EvictionRequest holds the turn of its place (Residents::turn) while it lives, so that no other
// request takes the memory it frees. An EvictionRequest belongs to one thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "coherence/residents.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// A copy that can be evicted.
struct Candidate {
  Eviction kind = Eviction::stale;
  std::uint64_t last_use = 0;
  std::size_t bytes = 0;
  UnifiedCore* owner = nullptr;
  unsigned memory = 0;
};

/// Sorts the candidates in eviction order: stale, clean, dirty, and within each kind the least
/// recently used first.
void sort_by_eviction_order(std::vector<Candidate>& candidates) noexcept;

/// Copies that can be evicted, with a reference to each of their buffers.
class RetainedCandidates {
 public:
  RetainedCandidates() noexcept = default;
  RetainedCandidates(const RetainedCandidates&) = delete;
  RetainedCandidates& operator=(const RetainedCandidates&) = delete;
  ~RetainedCandidates();
  /// Throws std::bad_alloc.
  void add(const Candidate& candidate);

  std::vector<Candidate> all;
};

/// Returns whether memory of the resource counts against the budget.
[[nodiscard]] bool is_charged_to(const Resource* resource, const Budget& budget);

/// What an eviction request is for.
struct EvictionWanted {
  std::size_t bytes = 0;
  /// The resource that refused the allocation, or null for the heap.
  const Resource* resource = nullptr;
  /// The stream in whose order copies are freed. Empty for a copy on the host.
  StreamRef stream = {};
  /// The highest kind of copies that may be evicted.
  Eviction most = Eviction::dirty;
  Tag tag = {};
  std::string_view place = {};
  CallSite site = {};
};

class EvictionRequest {
 public:
  /// Waits for the turn of the place. If the thread already has an EvictionRequest in another
  /// place, it continues without the turn instead of waiting, because two threads could otherwise
  /// deadlock.
  EvictionRequest(Residents& where, const EvictionWanted& wanted) noexcept;
  EvictionRequest(const EvictionRequest&) = delete;
  EvictionRequest& operator=(const EvictionRequest&) = delete;
  ~EvictionRequest();

  /// Call before free(). Resolves the deferred uses of all copies in the place and marks the
  /// stream. A write-back to the host then waits only for the last use of its copy, and runs
  /// concurrently with copies that are queued on the stream from now on.
  void part_uses() noexcept;
  /// Returns whether another EvictionRequest had the turn first, and may have freed enough.
  [[nodiscard]] bool has_waited() const noexcept { return has_waited_; }
  /// Returns whether the request is above a limit even after evicting everything evictable. In that
  /// case, evict nothing.
  [[nodiscard]] bool is_hopeless(const Failure& why) noexcept;
  /// Returns how many bytes the budgets of the resource lack for the request, or 0 if it fits.
  [[nodiscard]] std::size_t missing_bytes() const noexcept;
  /// Evicts copies until `bytes` bytes are freed. Returns false if nothing was evicted.
  [[nodiscard]] bool free(std::size_t bytes, const Failure& why) noexcept;
  /// Returns whether the request could fit after other threads have closed their leases and all
  /// pending frees are done.
  [[nodiscard]] bool fits_later(const Failure& why) const noexcept;
  /// Returns how many requests of this thread have failed so far. A caller that retries needs this
  /// number, because one failed lease may count two requests: an EvictionRequest on a device may
  /// create another on the host.
  [[nodiscard]] static std::uint64_t refused_by_thread() noexcept;
  /// Returns the failure of the request, with a list of who has memory in the place.
  [[nodiscard]] Failure refusal(const Failure& why) const noexcept;

 private:
  struct Sums {
    std::size_t evictable_bytes = 0, leased_bytes = 0, kept_bytes = 0;
  };
  /// Returns whether a copy of this kind may be evicted. If a budget refused the request, the
  /// budget's Overflow option limits the kinds.
  [[nodiscard]] bool may_go(Eviction kind, bool is_for_device) const noexcept;
  [[nodiscard]] bool would_fit_later(const Failure& why) const noexcept;
  /// Collects the copies that help. Throws std::bad_alloc.
  void find(bool is_for_device, RetainedCandidates& found) const;

  Residents& where_;
  const EvictionWanted wanted_;
  /// Which kinds of copies the budgets of the resource allow to evict.
  const Overflow reach_;
  std::unique_lock<std::mutex> turn_;
  bool has_waited_ = false;
  bool is_hopeless_ = false;
  std::size_t limit_bytes_ = 0;
  std::size_t freed_bytes_ = 0;
  std::uint64_t freed_copies_ = 0;
  std::optional<Failure> last_failure_;  // why the last copy could not be written back
};

/// Returns whether a request failed because memory is short. Eviction does not help against
/// failures to allocate Tern's own data structures.
[[nodiscard]] bool is_shortage(const Failure& failure) noexcept;
/// Returns whether a request that failed may succeed later.
[[nodiscard]] bool may_fit_later(const Failure& failure) noexcept;

}  // namespace tern
