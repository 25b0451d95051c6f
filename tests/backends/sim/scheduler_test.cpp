#include "backends/sim/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace tern::sim {
namespace {

constexpr std::size_t host_task = Scheduler::host;

using Picks = std::vector<std::size_t>;

/// All streams below `streams` can run all the time.
Picks pick(Scheduler& scheduler, std::size_t streams, bool may_pick_host, int count) {
  Picks ready(streams);
  for (std::size_t i = 0; i < streams; ++i) ready[i] = i;
  Picks picks;
  for (int i = 0; i < count; ++i) picks.push_back(scheduler.pick(ready, may_pick_host));
  return picks;
}

Picks pick(Policy policy, std::uint64_t seed, std::size_t streams = 4, bool may_pick_host = true) {
  Scheduler scheduler(policy, 3, seed);
  return pick(scheduler, streams, may_pick_host, 200);
}

constexpr Policy policies[] = {Policy::mix,    Policy::lazy,      Policy::eager, Policy::random,
                               Policy::skewed, Policy::stall_one, Policy::pct};

TEST(Scheduler, RepeatsFromItsSeed) {
  for (const Policy policy : policies) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      EXPECT_EQ(pick(policy, seed), pick(policy, seed));
      EXPECT_EQ(pick(policy, seed, 4, false), pick(policy, seed, 4, false));
    }
  }
}

TEST(Scheduler, DiffersFromSeedToSeed) {
  for (const Policy policy : {Policy::random, Policy::skewed, Policy::pct}) {
    std::set<Picks> different;
    for (std::uint64_t seed = 0; seed < 20; ++seed) different.insert(pick(policy, seed));
    EXPECT_GE(different.size(), 10u) << static_cast<int>(policy);
  }
}

TEST(Scheduler, PicksOnlyWhoMayBePicked) {
  const Picks ready = {1, 4, 9};
  for (const Policy policy : policies) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Scheduler scheduler(policy, 5, seed);
      for (int i = 0; i < 50; ++i) {
        const bool may_pick_host = i % 2 == 0;
        const std::size_t picked = scheduler.pick(ready, may_pick_host);
        EXPECT_TRUE(std::ranges::count(ready, picked) == 1 ||
                    (may_pick_host && picked == host_task));
      }
    }
  }
}

TEST(Scheduler, PicksTheHostIfNoStreamCanRun) {
  for (const Policy policy : policies) {
    Scheduler scheduler(policy, 3, 7);
    EXPECT_EQ(scheduler.pick({}, true), host_task);
  }
}

TEST(Scheduler, LazyRunsTheHostUntilItWaits) {
  EXPECT_EQ(pick(Policy::lazy, 7), Picks(200, host_task));
  const Picks waiting = pick(Policy::lazy, 7, 4, false);
  for (std::size_t stream = 0; stream < 4; ++stream) {
    EXPECT_GT(std::ranges::count(waiting, stream), 20);
  }
}

TEST(Scheduler, EagerRunsEveryStreamBeforeTheHost) {
  EXPECT_EQ(pick(Policy::eager, 7), Picks(200, 0));
  Scheduler scheduler(Policy::eager, 3, 7);
  EXPECT_EQ(scheduler.pick(Picks{2, 3}, true), 2u);
}

TEST(Scheduler, RandomIsUniform) {
  Scheduler scheduler(Policy::random, 3, 7);
  const Picks picks = pick(scheduler, 4, true, 10'000);
  for (const std::size_t actor :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{3}, host_task}) {
    EXPECT_NEAR(static_cast<double>(std::ranges::count(picks, actor)), 2000, 200);
  }
}

TEST(Scheduler, SkewedWeighsActorsByPowersOfEight) {
  // Two actors: one runs 8^k times as often as the other, for some k from 0 to 4.
  std::set<int> powers;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Scheduler scheduler(Policy::skewed, 3, seed);
    const Picks picks = pick(scheduler, 2, false, 2000);
    const auto rarer = std::min(std::ranges::count(picks, 0), std::ranges::count(picks, 1));
    // 2000 / (1 + 8^k): 1000, 222, 31, 4 or 0.5.
    const int power = rarer > 800 ? 0 : rarer > 100 ? 1 : rarer > 12 ? 2 : 3;
    powers.insert(power);
    EXPECT_TRUE(rarer > 900 || (rarer > 160 && rarer < 290) || rarer < 60) << rarer;
  }
  EXPECT_EQ(powers, (std::set{0, 1, 2, 3}));
}

TEST(Scheduler, StallOneRunsItsVictimOnlyWhenNothingElseCan) {
  std::set<std::size_t> victims;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler scheduler(Policy::stall_one, 3, seed);
    // Alone with the host, only the victim waits.
    Picks stalled;
    for (std::size_t stream = 0; stream < 4; ++stream) {
      if (scheduler.pick(Picks{stream}, true) == host_task) stalled.push_back(stream);
    }
    ASSERT_EQ(stalled.size(), 1u) << "seed " << seed;
    const std::size_t victim = stalled.front();
    victims.insert(victim);
    for (std::size_t other = 0; other < 6; ++other) {
      if (other == victim) continue;
      const Picks both = {std::min(victim, other), std::max(victim, other)};
      // The others run dry, even before the host goes on.
      EXPECT_EQ(scheduler.pick(both, true), other);
      EXPECT_EQ(scheduler.pick(both, false), other);
    }
    EXPECT_EQ(scheduler.pick(Picks{victim}, false), victim);
  }
  EXPECT_EQ(victims, (std::set<std::size_t>{0, 1, 2, 3}));
}

TEST(Scheduler, PctRunsTheHighestAndOvertakesItDepthMinusOneTimes) {
  for (unsigned depth = 2; depth <= 5; ++depth) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Scheduler scheduler(Policy::pct, depth, seed);
      const Picks picks = pick(scheduler, 6, true, 1010);
      std::size_t changes = 0;
      for (std::size_t i = 1; i < picks.size(); ++i) changes += picks[i] != picks[i - 1] ? 1u : 0u;
      // Each fall makes a change, and nobody who fell comes back before all others have.
      EXPECT_EQ(changes, depth - 1) << "seed " << seed;
      EXPECT_EQ(std::set(picks.begin(), picks.end()).size(), depth) << "seed " << seed;
    }
  }
}

TEST(Scheduler, PctLetsWhoFallsFallBehindThoseWhoFellBefore) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler scheduler(Policy::pct, 3, seed);
    Picks fallen = pick(scheduler, 6, false, 1010);
    fallen.erase(std::unique(fallen.begin(), fallen.end()), fallen.end());
    ASSERT_EQ(fallen.size(), 3u) << "seed " << seed;
    const Picks both = {std::min(fallen[0], fallen[1]), std::max(fallen[0], fallen[1])};
    EXPECT_EQ(scheduler.pick(both, false), fallen[0]) << "seed " << seed;
  }
}

TEST(Scheduler, PctDrawsForStreamsThatAppearLater) {
  // One more stream at each step: whoever was ahead stays ahead of those that did not overtake.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scheduler scheduler(Policy::pct, 2, seed);
    std::set<std::size_t> winners;
    for (std::size_t streams = 1; streams < 100; ++streams) {
      const std::size_t winner = pick(scheduler, streams, true, 1).front();
      EXPECT_TRUE(winner == host_task || winner == streams - 1 || winners.contains(winner) ||
                  streams == 1)
          << "seed " << seed;
      winners.insert(winner);
    }
  }
}

TEST(Scheduler, MixResolvesWithinItsShares) {
  std::map<Policy, int> counts;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    ++counts[Scheduler(Policy::mix, 3, seed).policy()];
  }
  EXPECT_EQ(counts.size(), 5u);
  EXPECT_NEAR(counts[Policy::lazy], 3000, 200);
  EXPECT_NEAR(counts[Policy::stall_one], 2500, 200);
  EXPECT_NEAR(counts[Policy::pct], 2500, 200);
  EXPECT_NEAR(counts[Policy::skewed], 1000, 150);
  EXPECT_NEAR(counts[Policy::random], 1000, 150);
}

TEST(Scheduler, KeepsThePolicyItWasGiven) {
  for (const Policy policy : policies) {
    if (policy == Policy::mix) continue;
    EXPECT_EQ(Scheduler(policy, 3, 7).policy(), policy);
  }
}

}  // namespace
}  // namespace tern::sim
