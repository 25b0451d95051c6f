// The scheduler decides who runs next: the host, or one of the streams whose head can run.
//
// Every choice comes from the seed, so a run repeats. The checker does not care about any of this;
// schedules matter where wrong bytes or control flow that depends on timing should show. Confined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/sim/decision_log.hpp"
#include "backends/sim/random.hpp"
#include "tern/backends/sim.hpp"

namespace tern::sim {

class Scheduler {
 public:
  static constexpr std::size_t host = static_cast<std::size_t>(-1);

  /// With a log, every choice is its. Of the policies only lazy then means anything: the host goes
  /// first without a choice.
  Scheduler(Policy policy, unsigned pct_depth, std::uint64_t seed,
            DecisionLog* decisions = nullptr);

  /// The policy in force: never `mix`, which the seed has resolved by now.
  [[nodiscard]] Policy policy() const noexcept { return policy_; }
  /// Does the host always go first, so that nobody needs to ask?
  [[nodiscard]] bool prefers_host() const noexcept { return policy_ == Policy::lazy; }

  /// One of `ready`, sorted stream indices, or `host` if that may be chosen. There is always
  /// somebody to choose.
  [[nodiscard]] std::size_t pick(std::span<const std::size_t> ready, bool may_pick_host);

 private:
  [[nodiscard]] std::size_t pick_random(std::span<const std::size_t> ready, bool may_pick_host);
  [[nodiscard]] std::size_t pick_weighted(std::span<const std::size_t> ready, bool may_pick_host);
  [[nodiscard]] std::size_t pick_by_priority(std::span<const std::size_t> ready,
                                             bool may_pick_host);
  [[nodiscard]] std::size_t pick_unstalled(std::span<const std::size_t> ready, bool may_pick_host);
  /// Slot 0 is the host's, slot i + 1 that of stream i. New ones are drawn as they appear.
  std::uint64_t& drawn(std::size_t actor);

  Policy policy_;
  Random random_;
  DecisionLog* const decisions_;
  std::vector<std::uint64_t> drawn_;       // weights or priorities
  std::vector<std::uint64_t> drop_steps_;  // pct: when the running actor falls behind all others
  std::uint64_t step_ = 0;
  std::uint64_t lowest_ = 1'000'000;
  std::size_t stalled_;
};

}  // namespace tern::sim
