#include "backends/sim/scheduler.hpp"

#include <algorithm>

namespace tern::sim {
namespace {

/// Shares of the policies in `mix`, by the number of errors that each policy found on its own.
Policy resolve(Policy policy, Random& random) {
  if (policy != Policy::mix) return policy;
  const std::uint64_t dice = random.below(100);
  if (dice < 30) return Policy::lazy;
  if (dice < 55) return Policy::stall_one;
  if (dice < 80) return Policy::pct;
  return dice < 90 ? Policy::skewed : Policy::random;
}

/// The number of steps over which pct spreads its priority changes: about the length of the test
/// programs.
constexpr std::uint64_t pct_horizon = 1000;
/// The number of streams among which stall-one chooses its victim.
constexpr std::uint64_t stall_candidates = 4;

}  // namespace

Scheduler::Scheduler(Policy policy, unsigned pct_depth, std::uint64_t seed, DecisionLog* decisions)
    : policy_(policy), random_(seed, Purpose::schedule), decisions_(decisions) {
  if (decisions == nullptr) policy_ = resolve(policy, random_);
  for (unsigned i = 1; i < pct_depth; ++i) drop_steps_.push_back(1 + random_.below(pct_horizon));
  std::ranges::sort(drop_steps_);
  stalled_ = random_.below(stall_candidates);
}

std::uint64_t& Scheduler::drawn(std::size_t actor) {
  const std::size_t slot = actor == host ? 0 : actor + 1;
  while (drawn_.size() <= slot) {
    // Initial priorities are far above those of dropped streams. Weights are 8^0 to 8^4.
    drawn_.push_back(policy_ == Policy::pct ? 2'000'000 + random_.next() % (1u << 30)
                                            : std::uint64_t{1} << (3 * random_.below(5)));
  }
  return drawn_[slot];
}

std::size_t Scheduler::pick(std::span<const std::size_t> ready, bool may_pick_host) {
  if (ready.empty()) return host;
  if (decisions_ != nullptr) {
    const std::size_t choice = decisions_->choose(ready.size() + (may_pick_host ? 1 : 0));
    return choice == ready.size() ? host : ready[choice];
  }
  switch (policy_) {
    case Policy::eager:
      return ready.front();
    case Policy::lazy:
      return may_pick_host ? host : ready[random_.below(ready.size())];
    case Policy::skewed:
      return pick_weighted(ready, may_pick_host);
    case Policy::stall_one:
      return pick_unstalled(ready, may_pick_host);
    case Policy::pct:
      return pick_by_priority(ready, may_pick_host);
    case Policy::mix:
    case Policy::random:
      break;
  }
  return pick_random(ready, may_pick_host);
}

std::size_t Scheduler::pick_random(std::span<const std::size_t> ready, bool may_pick_host) {
  const std::uint64_t choice = random_.below(ready.size() + (may_pick_host ? 1 : 0));
  return choice == ready.size() ? host : ready[choice];
}

std::size_t Scheduler::pick_weighted(std::span<const std::size_t> ready, bool may_pick_host) {
  std::uint64_t total = may_pick_host ? drawn(host) : 0;
  for (const std::size_t stream : ready) total += drawn(stream);
  std::uint64_t choice = random_.below(total);
  for (const std::size_t stream : ready) {
    if (choice < drawn(stream)) return stream;
    choice -= drawn(stream);
  }
  return host;
}

std::size_t Scheduler::pick_by_priority(std::span<const std::size_t> ready, bool may_pick_host) {
  // Values and not references, because adding a stream reallocates the vector.
  std::size_t best = may_pick_host ? host : ready.front();
  std::uint64_t highest = drawn(best);
  for (const std::size_t stream : ready) {
    const std::uint64_t priority = drawn(stream);
    if (priority <= highest) continue;
    best = stream;
    highest = priority;
  }
  ++step_;
  if (!drop_steps_.empty() && step_ >= drop_steps_.front()) {
    drop_steps_.erase(drop_steps_.begin());
    drawn(best) = --lowest_;
  }
  return best;
}

std::size_t Scheduler::pick_unstalled(std::span<const std::size_t> ready, bool may_pick_host) {
  for (const std::size_t stream : ready) {
    if (stream != stalled_) return stream;
  }
  return may_pick_host ? host : ready.front();
}

}  // namespace tern::sim
