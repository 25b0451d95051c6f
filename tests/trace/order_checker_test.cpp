// The checker as a whole: rejected and applied records, consequences, leaks, memory use, invalid
// records. order_rules_test.cpp tests the rules.

#include "trace/order_checker.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/checked_program.hpp"
#include "support/thorough.hpp"
#include "tern/core/error.hpp"
#include "tools/pool_program.hpp"

namespace tern::test {
namespace {

using tools::Random;

constexpr auto apply = OrderChecker::OnFinding::apply;
constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

TEST(OrderChecker, LeavesNoTraceOfARecordItRefused) {
  CheckedProgram p;
  const ActorId a = p.stream("A"), b = p.stream("B");
  p.host_allocate(device(0, 64));
  p.write(a, device(0, 64));
  EXPECT_EQ(code_of(p.write(b, device(0, 64))), "TERN-S101");
  EXPECT_EQ(p.checker.sequence(b), 0u);
  EXPECT_EQ(code_of(p.write(b, device(0, 64))), "TERN-S101") << "refused again, and again reported";
  EXPECT_EQ(code_of(p.read(a, device(0, 64))), "silent");
  EXPECT_EQ(p.checker.interval_count(), 1u);
}

TEST(OrderChecker, GoesOnFromARecordItApplied) {
  CheckedProgram p(apply);
  const ActorId a = p.stream("A"), b = p.stream("B");
  p.host_allocate(device(0, 64));
  p.write(a, device(0, 64));
  EXPECT_EQ(code_of(p.write(b, device(0, 64))), "TERN-S101");
  EXPECT_EQ(p.checker.sequence(b), 1u);
  EXPECT_EQ(code_of(p.read(b, device(0, 64))), "silent");
  EXPECT_EQ(code_of(p.read(a, device(0, 64))), "TERN-S101");
}

TEST(OrderChecker, ReportsAPairOfSitesOnceWhenItApplies) {
  CheckedProgram p(apply);
  const ActorId a = p.stream("A"), b = p.stream("B");
  p.host_allocate(device(0, 64));
  int found = 0;
  for (int round = 0; round < 10; ++round) {
    found += p.at({"a.cpp", "f", 10}).write(a, device(0, 64)) ? 1 : 0;
    found += p.at({"b.cpp", "g", 20}).read(b, device(0, 64)) ? 1 : 0;
  }
  EXPECT_EQ(found, 2) << "the read against the write, and the next round's write against the read";
  EXPECT_EQ(code_of(p.at({"b.cpp", "g", 21}).write(b, device(0, 64))), "TERN-S101");
  EXPECT_EQ(code_of(p.at({"a.cpp", "f", 10}).read(a, device(0, 64))), "TERN-S101");
}

TEST(OrderChecker, TellsSitesApartByActorAndNameWhereNoneIsKnown) {
  CheckedProgram p(apply);
  const ActorId a = p.stream("A"), b = p.stream("B"), c = p.stream("C");
  p.host_allocate(device(0, 64));
  p.write(a, device(0, 64));
  EXPECT_EQ(code_of(p.read(b, device(0, 8))), "TERN-S101");
  EXPECT_EQ(code_of(p.read(b, device(8, 8))), "silent");
  EXPECT_EQ(code_of(p.kernel(b, {{TouchKind::read, device(16, 8)}}, "other")), "TERN-S101");
  EXPECT_EQ(code_of(p.read(c, device(24, 8))), "TERN-S101");
}

TEST(OrderChecker, DoesNotCountAWrongFreeAsAFree) {
  CheckedProgram p(apply);
  const ActorId a = p.stream("A");
  p.allocate(a, device(0, 64));
  p.write(a, device(0, 64));
  EXPECT_EQ(code_of(p.release(a, device(0, 32))), "TERN-S203");
  EXPECT_EQ(code_of(p.read(a, device(0, 64))), "silent");
  EXPECT_EQ(code_of(p.release(a, device(0, 64))), "silent");
}

TEST(OrderChecker, CountsRecordsFromOne) {
  CheckedProgram p;
  const ActorId a = p.stream("A");
  const Found found = p.write(a, device(0, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 2u);
}

TEST(OrderChecker, SaysWhatItWasToldAboutTheRun) {
  CheckedProgram p;
  p.checker.set_context("sim:0  seed 0x7", "TERN_SIM_SEED=0x7 ctest -R x");
  const Found found = p.write(p.stream("A"), device(0, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->context, "sim:0  seed 0x7");
  EXPECT_EQ(found->replay, "TERN_SIM_SEED=0x7 ctest -R x");
}

TEST(OrderChecker, AnswersWhoKnowsWhat) {
  CheckedProgram p;
  const ActorId a = p.stream("A"), b = p.stream("B");
  p.record(a, 1);
  p.record(a, 1);
  EXPECT_TRUE(p.checker.knows(a, a, 2));
  EXPECT_FALSE(p.checker.knows(b, a, 1));
  p.wait(b, 1);
  EXPECT_TRUE(p.checker.knows(b, a, 2));
  EXPECT_FALSE(p.checker.knows(b, a, 3));
  EXPECT_FALSE(p.checker.knows(999, a, 1));
  EXPECT_EQ(p.checker.sequence(999), 0u);
}

TEST(OrderChecker, ListsLeaksOldestFirst) {
  CheckedProgram p;
  const ActorId a = p.stream("A");
  p.allocate(a, device(4096, 64));
  p.host_allocate(host(0, 16));
  p.allocate(a, device(0, 1024));
  p.give(a, device(512, 32));
  p.allocate(a, {2, 0, 8});
  std::vector<std::uint64_t> sizes;
  for (const Finding& leak : p.checker.leaks()) sizes.push_back(leak.range.bytes);
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{64, 16, 1024, 32, 8}));
  EXPECT_EQ(p.shutdown()->range.bytes, 64u);
}

TEST(OrderChecker, CanBeMoved) {
  CheckedProgram p;
  const ActorId a = p.stream("A"), b = p.stream("B");
  p.host_allocate(device(0, 64));
  p.write(a, device(0, 64));
  OrderChecker moved = std::move(p.checker);
  p.checker = std::move(moved);
  EXPECT_EQ(code_of(p.read(b, device(0, 64))), "TERN-S101");
}

// --- hostile records ----------------------------------------------------------------------------

TEST(OrderChecker, RefusesRecordsThatAreNotWellFormedAndGoesOn) {
  OrderChecker checker;
  const Touch wraps{TouchKind::write, {1, most, 2}};
  EXPECT_THROW((void)checker.check({.actor = max_actors}), InvalidArgument);
  EXPECT_THROW((void)checker.check({.actor = 1, .host = ~ActorId{0}}), InvalidArgument);
  EXPECT_THROW((void)checker.check({.kind = static_cast<RecordKind>(99)}), InvalidArgument);
  try {
    (void)checker.check({.actor = 1, .touches = {&wraps, 1}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "record 1 cannot be checked: it has an unknown kind, an actor from 4096 on, or a "
                 "range past the end of its space. The trace is damaged.");
  }
  EXPECT_FALSE(checker.check({.kind = RecordKind::record_event, .actor = max_actors - 1}));
  EXPECT_EQ(checker.sequence(max_actors - 1), 1u);
}

TEST(OrderChecker, TakesRangesOfNothingForNothing) {
  CheckedProgram p;
  const ActorId a = p.stream("A");
  for (const TouchKind kind :
       {TouchKind::read, TouchKind::write, TouchKind::read_write, TouchKind::allocate,
        TouchKind::release, TouchKind::suballocate, TouchKind::subrelease}) {
    EXPECT_EQ(code_of(p.kernel(a, {{kind, device(5, 0)}})), "silent");
  }
  EXPECT_EQ(code_of(p.copy(a, device(0, 0), host(0, 0))), "silent");
  EXPECT_EQ(p.checker.interval_count(), 0u);
  EXPECT_TRUE(p.checker.leaks().empty());
}

TEST(OrderChecker, TakesTheWholeOfASpace) {
  CheckedProgram p;
  const ActorId a = p.stream("A"), b = p.stream("B");
  EXPECT_EQ(code_of(p.allocate(a, device(0, most))), "silent");
  EXPECT_EQ(code_of(p.write(a, device(most - 1, 1))), "silent");
  EXPECT_EQ(code_of(p.read(b, device(most - 1, 1))), "TERN-S101");
  EXPECT_EQ(code_of(p.give(a, device(most - 8, 8))), "silent");
  EXPECT_EQ(code_of(p.take_back(a, device(most - 8, 8))), "silent");
  EXPECT_EQ(code_of(p.release(a, device(0, most))), "silent");
  EXPECT_EQ(code_of(p.copy(a, host(0, most), host(0, most))), "silent");
}

TEST(OrderChecker, SurvivesAnythingThatIsWellFormed) {
  constexpr std::uint64_t seeds = is_thorough ? 400 : 60;
  constexpr std::uint64_t offsets[] = {0, 1, 64, 100, 4096, most / 2, most - 64, most - 1, most};
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    Random random(seed);
    OrderChecker checker;
    for (int i = 0; i < 400; ++i) {
      Touch touches[3];
      for (Touch& touch : touches) {
        touch.kind = static_cast<TouchKind>(random.below(8));
        touch.range = {static_cast<std::uint32_t>(random.below(3)), offsets[random.below(9)],
                       random.below(8) == 0 ? offsets[random.below(9)] : random.below(200)};
        touch.generation = random.below(3);
        touch.is_assumed = random.below(4) == 0;
      }
      const TraceRecord record{.kind = static_cast<RecordKind>(random.below(13)),
                               .operation = static_cast<OperationKind>(random.below(8)),
                               .actor_kind = static_cast<ActorKind>(random.below(5)),
                               .actor = static_cast<ActorId>(
                                   random.below(50) == 0 ? random.below(5000) : random.below(6)),
                               .host = static_cast<ActorId>(random.below(6)),
                               .device = static_cast<std::uint32_t>(random.below(2)),
                               .event = random.below(4),
                               .sequence = random.below(3) == 0 ? random.next() : random.below(20),
                               .name = "n",
                               .touches = {touches, random.below(4)}};
      if (!is_well_formed(record)) continue;
      const Found found =
          checker.check(record, random.below(2) == 0 ? apply : OrderChecker::OnFinding::leave_out);
      EXPECT_TRUE(!found || found->text().size() < found->json().size() + 200);
    }
    for (const Finding& leak : checker.leaks()) EXPECT_FALSE(leak.text().empty());
  }
}

// --- memory -------------------------------------------------------------------------------------

TEST(OrderChecker, KeepsABoundedHistoryWhereTheHostWaits) {
  constexpr std::uint64_t operations = is_thorough ? 1'000'000 : 100'000;
  CheckedProgram p;
  const ActorId streams[] = {p.stream(), p.stream(), p.stream()};
  constexpr std::uint64_t bytes = 1 << 20;
  p.host_allocate(device(0, bytes));
  p.host_write(device(0, bytes));
  Random random(1);
  std::size_t intervals = 0;
  std::size_t snapshots = 0;
  for (std::uint64_t i = 0; i < operations; ++i) {
    const ActorId stream = streams[random.below(3)];
    const SpaceRange range = device(random.below(bytes - 64), 4 + random.below(60));
    p.kernel(stream, {{random.below(2) == 0 ? TouchKind::read : TouchKind::write, range}});
    if (random.below(10) == 0) p.join(stream, streams[random.below(3)]);
    if (i % 100 == 0) {
      for (const ActorId each : streams) p.host_wait(each);
    }
    intervals = std::max(intervals, p.checker.interval_count());
    snapshots = std::max(snapshots, p.checker.snapshot_count());
  }
  EXPECT_LT(intervals, 5000u);
  EXPECT_LT(snapshots, 5000u);
}

TEST(OrderChecker, KeepsABoundedNumberOfClocksThoughItHasFewIntervals) {
  CheckedProgram p;
  const ActorId a = p.stream(), b = p.stream();
  for (int i = 0; i < 20'000; ++i) {
    p.join(a, b);
    p.join(b, a);
    if (i % 10 == 0) p.host_wait(a);
  }
  EXPECT_LT(p.checker.snapshot_count(), 2500u);
}

TEST(OrderChecker, KeepsABoundedHistoryThoughNoAddressIsUsedTwice) {
  constexpr std::uint64_t blocks = is_thorough ? 500'000 : 200'000;
  CheckedProgram p;
  const ActorId a = p.stream("A");
  std::size_t intervals = 0;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    p.allocate(a, device(i * 64, 64));
    p.release(a, device(i * 64, 64));
    if (i % 16 == 0) p.host_wait(a);
    intervals = std::max(intervals, p.checker.interval_count());
  }
  EXPECT_LT(intervals, 150'000u);
  EXPECT_EQ(code_of(p.read(a, device(0, 1))), "TERN-S201") << "freed bytes stay freed";
}

TEST(OrderChecker, ForgetsPageableMemoryTheHostIsDoneWith) {
  CheckedProgram p;
  const ActorId a = p.stream("A");
  p.host_allocate(device(0, 64));
  p.host_write(device(0, 64));
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    p.copy(a, device(0, 64), host(i * 4096, 64));
    p.host_wait(a);
  }
  EXPECT_LT(p.checker.interval_count(), 2000u);
}

TEST(OrderChecker, GivesTheSameVerdictsWhenItPrunes) {
  // The same program with and without host waits for what all streams have just waited for: they
  // add no order, but the history is pruned at them.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::string verdicts[2];
    for (const bool prunes : {false, true}) {
      Random random(seed);
      CheckedProgram p;
      const ActorId streams[] = {p.stream(), p.stream(), p.stream()};
      p.host_allocate(device(0, 1 << 16));
      p.host_write(device(0, 1 << 16));
      for (int i = 0; i < 4000; ++i) {
        const ActorId stream = streams[random.below(3)];
        const SpaceRange range = device(random.below((1 << 16) - 64), 1 + random.below(8));
        verdicts[prunes] += code_of(
            p.kernel(stream, {{random.below(2) == 0 ? TouchKind::read : TouchKind::write, range}}));
        if (random.below(20) == 0) p.join(stream, streams[random.below(3)]);
        if (i % 50 != 0) continue;
        for (const ActorId each : streams) p.join(each, streams[0]);
        for (const ActorId each : streams) p.join(streams[0], each);
        if (prunes) p.host_wait(streams[0]);
      }
    }
    EXPECT_EQ(verdicts[0], verdicts[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tern::test
