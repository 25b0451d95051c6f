// A FaultResource makes requests and frees fail on purpose, to test whoever has to cope with it.
//
// Rules say which calls fail: those with a tag or of a size, and of these the n-th, every n-th, or
// a share of them that a seed chooses. The same rules and the same calls give the same failures; of
// several threads, the same numbers of the count fail, whoever draws them. A refused request has
// changed nothing. Without rules it only hands on. Thread-safe; keeps its upstream alive.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/memory/wrapping_resource.hpp"

namespace tern {

enum class FaultCall : std::uint8_t { allocate, free };

enum class FaultMoment : std::uint8_t {
  before,  // the upstream is not asked
  after,   // the upstream allocates, and the block is given back to it; not for frees
};

/// A call is hit if it fits all of the filters and is chosen by one of nth, every and rate; with
/// none of these, every one that fits is hit.
struct FaultRule {
  FaultCall call = FaultCall::allocate;
  FaultMoment moment = FaultMoment::before;
  /// Filters. Calls that do not fit are not counted by this rule. Sizes are those asked for, and of
  /// frees those granted.
  std::optional<Tag> tag = {};
  std::size_t min_bytes = 0;
  std::size_t max_bytes = SIZE_MAX;
  /// The n-th that fits, from 1; 0: not chosen by number.
  std::uint64_t nth = 0;
  /// Every n-th that fits: n, 2n, 3n; 0: not chosen so.
  std::uint64_t every = 0;
  /// This share of them, 0 to 1, as the seed decides.
  double rate = 0;
  std::uint64_t seed = 0;
  /// What they fail with; unset: out_of_memory for requests, driver for frees.
  std::optional<ErrorCode> code = {};
};

class TERN_EXPORT FaultResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument for rules that cannot be.
  explicit FaultResource(ResourceHandle upstream, std::vector<FaultRule> rules = {});

  /// Counts from the beginning again. Throws InvalidArgument; then the old rules stay.
  void set_rules(std::vector<FaultRule> rules);
  /// The next requests fail with out_of_memory, whatever the rules say.
  void fail_next(std::uint64_t count = 1) noexcept { fail_next_.store(count); }

  /// How many were made to fail so far.
  [[nodiscard]] std::uint64_t failed_requests() const noexcept { return failed_requests_.load(); }
  [[nodiscard]] std::uint64_t refused_frees() const noexcept { return refused_frees_.load(); }

  /// A request that is hit is refused with the rule's code. Requests for nothing are never hit.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// One that is hit keeps the block live. Mistakes are refused as such by the upstream.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

 private:
  struct Plan;
  struct Hit {
    FaultMoment moment = FaultMoment::before;
    ErrorCode code = ErrorCode::out_of_memory;
    std::uint64_t rule = 0;    // from 1; 0: fail_next
    std::uint64_t number = 0;  // of the calls that fit the rule, from 1
  };
  [[nodiscard]] static std::shared_ptr<Plan> checked_plan(std::vector<FaultRule> rules);
  [[nodiscard]] std::optional<Hit> hit(FaultCall call, std::size_t bytes, Tag tag) noexcept;

  std::mutex mutex_;
  std::shared_ptr<Plan> plan_;  // guarded by mutex_
  std::atomic<std::uint64_t> fail_next_ = 0;
  std::atomic<std::uint64_t> failed_requests_ = 0;
  std::atomic<std::uint64_t> refused_frees_ = 0;
};

}  // namespace tern
