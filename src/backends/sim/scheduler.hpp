// The scheduler decides what runs next: the host, or a stream whose first operation can run.
//
// All choices come from the seed, so a run can be repeated. The checker's findings do not depend on
// the schedule; schedules matter for wrong bytes and for control flow that depends on timing. Not
// thread-safe.

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

  /// With a log, the log makes every choice. Of the policies, only lazy has an effect then: the
  /// host always goes first.
  Scheduler(Policy policy, unsigned pct_depth, std::uint64_t seed,
            DecisionLog* decisions = nullptr);

  /// Returns the policy in force, never `mix`: the seed has selected one.
  [[nodiscard]] Policy policy() const noexcept { return policy_; }
  /// Returns whether the host always goes first.
  [[nodiscard]] bool prefers_host() const noexcept { return policy_ == Policy::lazy; }

  /// Returns one of `ready`, which are sorted stream indices, or `host` if it may be chosen.
  [[nodiscard]] std::size_t pick(std::span<const std::size_t> ready, bool may_pick_host);

 private:
  [[nodiscard]] std::size_t pick_random(std::span<const std::size_t> ready, bool may_pick_host);
  [[nodiscard]] std::size_t pick_weighted(std::span<const std::size_t> ready, bool may_pick_host);
  [[nodiscard]] std::size_t pick_by_priority(std::span<const std::size_t> ready,
                                             bool may_pick_host);
  [[nodiscard]] std::size_t pick_unstalled(std::span<const std::size_t> ready, bool may_pick_host);
  /// Slot 0 is the host, slot i + 1 is stream i. New slots are drawn on demand.
  std::uint64_t& drawn(std::size_t actor);

  Policy policy_;
  Random random_;
  DecisionLog* const decisions_;
  std::vector<std::uint64_t> drawn_;       // weights or priorities
  std::vector<std::uint64_t> drop_steps_;  // pct: when the running actor drops below all others
  std::uint64_t step_ = 0;
  std::uint64_t lowest_ = 1'000'000;
  std::size_t stalled_;
};

}  // namespace tern::sim
