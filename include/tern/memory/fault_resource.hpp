// A FaultResource makes allocations and frees fail on purpose, to test error handling.
//
//   auto faulty = std::make_shared<FaultResource>(upstream, std::vector<FaultRule>{{.nth = 3}});
//   // the third allocation fails with out_of_memory
//
// Rules choose the calls that fail. A rule filters by tag and size, and then picks the n-th
// matching call, every n-th, or a pseudo-random share. The same rules and the same sequence of
// calls give the same failures. With several threads, the same call numbers fail; which thread
// makes the call with that number may vary. A failed allocation has changed nothing. Without rules,
// all calls go to the upstream. Thread-safe. Keeps its upstream alive.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/detail/memory/wrapping_resource.hpp"

namespace tern {

/// One rule. A call fails if it passes all filters and is selected by `nth`, `every` or `rate`. If
/// none of the three is set, every call that passes the filters fails.
struct FaultRule {
  /// The rule is about frees instead of allocations.
  bool for_frees = false;
  /// The upstream allocates, and the block is freed again. By default the upstream is not called.
  /// Not allowed for frees.
  bool after_upstream = false;
  /// Filters. A rule does not count calls that fail its filters. For allocations, sizes are
  /// requested sizes; for frees, granted sizes.
  std::optional<Tag> tag = {};
  std::size_t min_bytes = 0;
  std::size_t max_bytes = SIZE_MAX;
  /// Fails the n-th matching call, counted from 1. 0 turns this selection off.
  std::uint64_t nth = 0;
  /// Fails matching calls n, 2n, 3n and so on. 0 turns this selection off.
  std::uint64_t every = 0;
  /// Fails this share of the matching calls, 0 to 1. `seed` determines which ones.
  double rate = 0;
  std::uint64_t seed = 0;
  /// The error code of the failure. If unset: out_of_memory for allocations, driver for frees.
  std::optional<ErrorCode> code = {};
};

/// Passes calls on to its upstream and makes the selected ones fail.
class TERN_EXPORT FaultResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument if there is no upstream or a rule is invalid: a rate outside 0 to 1,
  /// min_bytes above max_bytes, or a free that fails after it was done.
  explicit FaultResource(ResourceHandle upstream, std::vector<FaultRule> rules = {});

  /// Replaces the rules and restarts their counts at 0. Throws InvalidArgument for an invalid rule;
  /// then the old rules stay in force.
  void set_rules(std::vector<FaultRule> rules);
  /// Makes the next `count` allocations fail with out_of_memory, whatever the rules say.
  void fail_next(std::uint64_t count = 1) noexcept { fail_next_.store(count); }

  /// failed_requests() counts the allocations that were made to fail so far, refused_frees() the
  /// frees.
  [[nodiscard]] std::uint64_t failed_requests() const noexcept { return failed_requests_.load(); }
  [[nodiscard]] std::uint64_t refused_frees() const noexcept { return refused_frees_.load(); }

  /// Fails with the code of the first rule that selects the call. Requests for 0 bytes never fail.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// Frees the block, or fails with the rule's code and leaves the block live. Invalid frees, such
  /// as a double free, are not counted by any rule; the upstream rejects them.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

 private:
  struct Plan;
  struct Hit {
    bool after_upstream = false;
    ErrorCode code = ErrorCode::out_of_memory;
    std::uint64_t rule = 0;    // number of the rule, from 1; 0 for fail_next()
    std::uint64_t number = 0;  // number of the call among those that match the rule, from 1
  };
  [[nodiscard]] static std::shared_ptr<Plan> checked_plan(std::vector<FaultRule> rules);
  [[nodiscard]] std::optional<Hit> hit(bool is_free, std::size_t bytes, Tag tag) noexcept;

  std::mutex mutex_;
  std::shared_ptr<Plan> plan_;  // guarded by mutex_
  std::atomic<std::uint64_t> fail_next_ = 0;
  std::atomic<std::uint64_t> failed_requests_ = 0;
  std::atomic<std::uint64_t> refused_frees_ = 0;
};

}  // namespace tern
