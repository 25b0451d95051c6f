// After a gap, no finding depends on what the lost records may have contained.

#include <gtest/gtest.h>

#include <set>

#include "support/checked_program.hpp"
#include "support/random_trace.hpp"
#include "support/thorough.hpp"

namespace tern::test {
namespace {

constexpr auto apply = OrderChecker::OnFinding::apply;
constexpr SpaceRange block = device(0, 1024);
constexpr SpaceRange piece = device(0, 64);

class Gap : public testing::Test {
 protected:
  void silent(const Found& found) { EXPECT_EQ(code_of(found), "silent") << found->text(); }
  void finds(const char* code, const Found& found) {
    EXPECT_EQ(code_of(found), code) << (found ? found->text() : "");
  }

  CheckedProgram p{apply};
  const ActorId a = p.stream("A");
  const ActorId b = p.stream("B");
  const ActorId c = p.stream("C");
};

TEST_F(Gap, OrdersAllThatCameBeforeAndNothingThatCameAfter) {
  p.host_allocate(block);
  silent(p.write(a, block));
  p.lose(7);
  silent(p.write(b, block));
  finds("TERN-S101", p.read(a, block));
  EXPECT_EQ(p.checker.gaps(), 1u);
  p.lose();
  silent(p.read(a, block));
  silent(p.write(c, device(4096, 64)));
  EXPECT_EQ(p.checker.gaps(), 2u);
  EXPECT_TRUE(p.checker.knows(c, b, p.checker.sequence(b)));
  EXPECT_FALSE(p.checker.knows(a, c, p.checker.sequence(c)));
}

TEST_F(Gap, ReachesActorsThatBeginLater) {
  silent(p.host_write(host(0, 64)));
  p.host_allocate(block);
  silent(p.write(a, block));
  p.lose();
  const ActorId late = p.stream("late");
  EXPECT_TRUE(p.checker.knows(late, a, 1));
  EXPECT_TRUE(p.checker.knows(999, a, 1)) << "also one that nobody has named";
}

TEST_F(Gap, StillFindsWhatIsWrongBehindIt) {
  p.lose();
  silent(p.write(a, block));
  finds("TERN-S101", p.read(b, block));
  finds("TERN-S105", p.host_read(block));
  silent(p.read(c, device(4096, 64)));
  finds("TERN-S101", p.write(a, device(4096, 64)));
}

TEST_F(Gap, MakesTheLivesOfBlocksUnknown) {
  p.allocate(a, block);
  p.allocate(a, device(2048, 64));
  p.release(a, device(2048, 64));
  p.lose();
  silent(p.read(a, block));                  // written in the gap, perhaps
  silent(p.write(a, device(2048, 64)));      // given out again
  silent(p.write(a, device(8192, 64)));      // never seen
  silent(p.release(a, device(4096, 64)));    // nor this
  silent(p.allocate(a, device(100, 1000)));  // over what was freed
  silent(p.release(a, device(100, 1000)));
  silent(p.shutdown());
}

TEST_F(Gap, KnowsTheLivesOfBlocksThatBeganBehindIt) {
  p.lose();
  silent(p.allocate(a, block));
  finds("TERN-S301", p.read(a, block));
  finds("TERN-S204", p.allocate(a, device(512, 8)));
  p.lose();
  silent(p.allocate(a, block, 5));
  finds("TERN-S203", p.release(a, device(0, 512)));
  finds("TERN-S203", p.release(b, device(512, 512)));
  finds("TERN-S201", p.kernel(a, {{TouchKind::write, block, 4}}));
  silent(p.release(a, block));
  finds("TERN-S202", p.release(a, block));
  finds("TERN-S201", p.read(a, block));
  p.lose();
  silent(p.allocate(a, block));
  silent(p.give(a, device(512, 8)));
  finds("TERN-S302", p.read(a, device(600, 8)));
  finds("TERN-S206", p.shutdown());
}

TEST_F(Gap, TakesAFreeOfALostBlockForAUse) {
  p.lose();
  silent(p.take_back(a, piece));
  finds("TERN-S103", p.give(c, piece));
  p.lose();
  silent(p.take_back(a, piece));
  p.join(a, c);
  silent(p.give(c, piece));
  p.lose();
  silent(p.write(a, piece));
  finds("TERN-S102", p.take_back(b, piece));
  silent(p.take_back(b, device(128, 64)));
  silent(p.read(b, device(128, 64)));
  finds("TERN-S101", p.read(c, device(128, 64)));
}

TEST_F(Gap, DoesNotTakeASlabForItsFirstPiece) {
  p.lose();
  silent(p.give(a, piece));
  silent(p.take_back(a, piece));
  silent(p.release(a, block));
  silent(p.give(a, piece));
  finds("TERN-S102", p.release(a, block));
  silent(p.give(a, piece));
}

TEST_F(Gap, DoesNotTakeAPieceForItsSlab) {
  p.lose();
  silent(p.allocate(a, block));
  silent(p.release(a, block));
  silent(p.take_back(a, piece));
  finds("TERN-S202", p.release(a, device(64, 64)));
}

TEST_F(Gap, CreditsTheDriverForBlocksItHasSeenFreedBehindIt) {
  p.lose();
  silent(p.write(a, device(4096, 64)));
  silent(p.release(a, block));
  silent(p.allocate(c, block));
  silent(p.write(c, block));
}

TEST_F(Gap, ForgetsWhatEventsStoodFor) {
  p.record(a, 1);
  p.lose();
  silent(p.write(a, piece));
  p.wait(b, 1);
  p.wait(b, 2);
  p.host_wait_event(2);
  const Found found = p.read(b, piece);
  finds("TERN-S101", found);
  EXPECT_EQ(found->order.find("never recorded"), std::string::npos) << found->order;
  const Found by_host = p.host_read(piece);
  finds("TERN-S105", by_host);
  EXPECT_EQ(by_host->order.find("never recorded"), std::string::npos) << by_host->order;
}

TEST_F(Gap, ForgetsWaitsForNothingFromBefore) {
  p.wait(b, 77);
  p.lose();
  silent(p.write(a, piece));
  const Found found = p.read(b, piece);
  finds("TERN-S101", found);
  EXPECT_EQ(found->order.find("never recorded"), std::string::npos) << found->order;
}

TEST_F(Gap, LetsUndefinedBytesGoWhereABlockMayBe) {
  p.lose();
  silent(p.allocate(a, block));
  silent(p.copy(a, block, host(0, 1024)));
  CheckedProgram whole(apply);
  const ActorId s = whole.stream("S");
  whole.allocate(s, block);
  finds("TERN-S301", whole.copy(s, block, host(0, 1024)));
}

TEST_F(Gap, OrdersAStreamOfUnknownKindWithEverything) {
  const ActorId blocking = p.stream("blocking", ActorKind::blocking_stream);
  const ActorId other = p.stream("other", ActorKind::blocking_stream);
  p.lose();
  constexpr ActorId unknown = 50;
  silent(p.write(blocking, piece));
  silent(p.write(unknown, piece));
  silent(p.read(other, piece));
  silent(p.write(blocking, device(128, 8)));
  p.record(unknown, 9);
  silent(p.read(other, device(128, 8)));
  silent(p.write(a, device(256, 8)));
  p.wait(unknown, 1234);
  silent(p.write(b, device(256, 8)));
  finds("TERN-S101", p.write(a, device(256, 8)));
  p.check({.kind = RecordKind::actor_begins, .actor = unknown});
  silent(p.write(unknown, device(512, 8)));
  finds("TERN-S101", p.write(a, device(512, 8)));
}

TEST_F(Gap, KeepsStreamsThatNobodyBeganAsTheyWereWithoutOne) {
  silent(p.host_allocate(block));
  silent(p.write(a, block));
  finds("TERN-S101", p.write(60, block));
}

TEST_F(Gap, KeepsMemoryBounded) {
  for (int i = 0; i < 5000; ++i) {
    p.write(a, device(static_cast<std::uint64_t>(i) * 64, 8));
    p.join(a, b);
    if (i % 1000 == 999) p.lose();
  }
  EXPECT_EQ(p.checker.interval_count(), 0u);
  EXPECT_EQ(p.checker.snapshot_count(), 0u);
  EXPECT_LT(p.checker.history_bytes(), 1000u);
}

TEST_F(Gap, PrunesUnownedMemoryBehindIt) {
  p.lose();
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    p.write(a, device(i * 4096, 64));
    p.host_wait(a);
  }
  EXPECT_LT(p.checker.interval_count(), 2000u);
}

/// Whatever is lost, nothing is found behind it that the whole trace does not show to be wrong.
TEST(GapProperty, AddsNoFinding) {
  constexpr std::uint64_t seeds = is_thorough ? 20'000 : 3000;
  std::uint64_t kept = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const RandomTrace trace(seed, 60);
    tools::Random random(seed + 1'000'000);
    std::set<std::uint32_t> wrong;
    OrderChecker whole;
    for (const TraceRecord& record : trace.records()) {
      if (whole.check(record, apply)) wrong.insert(record.site.line);
    }
    const std::size_t from = random.below(trace.records().size());
    const std::size_t until = from + random.below(trace.records().size() - from);
    OrderChecker part;
    for (std::size_t i = 0; i < trace.records().size(); ++i) {
      if (i == from) (void)part.check({.kind = RecordKind::lost_records, .sequence = until - from});
      if (i >= from && i < until) continue;
      const Found found = part.check(trace.records()[i], apply);
      if (!found) continue;
      ASSERT_TRUE(wrong.contains(trace.records()[i].site.line))
          << "seed " << seed << " gap [" << from << ", " << until << ")\n"
          << found->text();
      if (i >= until) ++kept;
    }
  }
  EXPECT_GT(kept, seeds / 4) << "and much is still found";
}

// --- records of what was refused ----------------------------------------------------------------

TEST(Refused, IsJudgedAndNeverApplied) {
  OrderChecker checker;
  const Touch birth{TouchKind::allocate, block}, write{TouchKind::write, piece};
  (void)checker.check({.kind = RecordKind::host_access, .touches = {&birth, 1}});
  const auto use = [&](ActorId actor, bool was_refused) {
    return checker.check({.actor = actor, .touches = {&write, 1}, .was_refused = was_refused},
                         apply);
  };
  EXPECT_FALSE(use(1, false));
  EXPECT_TRUE(use(2, true));
  EXPECT_TRUE(use(2, true)) << "and reported every time, as by a device that refuses";
  EXPECT_EQ(checker.sequence(2), 0u);
  EXPECT_FALSE(use(1, true)) << "refused for another reason";
  EXPECT_EQ(checker.sequence(1), 1u);
  (void)checker.check({.kind = RecordKind::record_event, .actor = 1, .was_refused = true}, apply);
  EXPECT_EQ(checker.sequence(1), 1u);
  (void)checker.check({.kind = RecordKind::lost_records, .was_refused = true}, apply);
  EXPECT_EQ(checker.gaps(), 0u);
}

}  // namespace
}  // namespace tern::test
