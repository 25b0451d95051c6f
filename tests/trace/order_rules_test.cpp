// Every rule of the order checker as a small program, with a corrected version.

#include <gtest/gtest.h>

#include "support/checked_program.hpp"

namespace tern::test {
namespace {

constexpr SpaceRange block = device(0, 1024);

class OrderRules : public testing::Test {
 protected:
  /// A block that everybody may use, written as a whole.
  void make_block() {
    EXPECT_EQ(code_of(p.host_allocate(block)), "silent");
    EXPECT_EQ(code_of(p.host_write(block)), "silent");
  }
  void silent(const Found& found) { EXPECT_EQ(code_of(found), "silent") << found->text(); }
  void finds(const char* code, const Found& found) {
    EXPECT_EQ(code_of(found), code) << (found ? found->text() : "");
  }

  CheckedProgram p;
  const ActorId a = p.stream("A");
  const ActorId b = p.stream("B");
  const ActorId c = p.stream("C");
};

// --- S101 ---------------------------------------------------------------------------------------

TEST_F(OrderRules, AReadOnAnotherStreamNeedsAnEdge) {
  make_block();
  silent(p.write(a, block));
  finds("TERN-S101", p.read(b, block));
  p.join(a, b);
  silent(p.read(b, block));
}

TEST_F(OrderRules, AWriteNeedsAnEdgeFromTheLastWrite) {
  make_block();
  silent(p.write(a, block));
  finds("TERN-S101", p.write(b, block));
  p.join(a, b);
  silent(p.write(b, block));
}

TEST_F(OrderRules, AWriteNeedsAnEdgeFromEveryReader) {
  make_block();
  silent(p.read(a, block));
  silent(p.read(b, block));
  finds("TERN-S101", p.write(c, block));
  p.join(a, c);
  finds("TERN-S101", p.write(c, block));
  p.join(b, c);
  silent(p.write(c, block));
}

TEST_F(OrderRules, ReadsDoNotCollideWithReads) {
  make_block();
  silent(p.write(a, block));
  p.join(a, b);
  p.join(a, c);
  silent(p.read(a, block));
  silent(p.read(b, block));
  silent(p.read(c, block));
}

TEST_F(OrderRules, AReaderThatCameAfterAnotherStandsForBoth) {
  make_block();
  silent(p.read(a, block));
  p.join(a, b);
  silent(p.read(b, block));
  p.join(b, c);
  silent(p.write(c, block));
}

TEST_F(OrderRules, AReaderDoesNotStandForOneItDidNotFollow) {
  make_block();
  silent(p.read(a, block));
  silent(p.read(b, block));
  silent(p.read(b, block));
  p.join(b, c);
  finds("TERN-S101", p.write(c, block));
}

TEST_F(OrderRules, AReadAndWriteIsJudgedAsBoth) {
  make_block();
  silent(p.read(a, block));
  finds("TERN-S101", p.kernel(b, {{TouchKind::read_write, block}}));
  p.join(a, b);
  silent(p.kernel(b, {{TouchKind::read_write, block}}));
  finds("TERN-S101", p.read(a, block));

  silent(p.host_allocate(device(4096, 64)));
  finds("TERN-S301", p.kernel(a, {{TouchKind::read_write, device(4096, 64)}}));
}

TEST_F(OrderRules, KnowledgeIsHandedOn) {
  make_block();
  silent(p.write(a, block));
  p.join(a, b);
  p.join(b, c);
  silent(p.write(c, block));
}

TEST_F(OrderRules, EveryTouchOfAnOperationIsJudged) {
  make_block();
  silent(p.write(a, device(512, 8)));
  finds("TERN-S101",
        p.kernel(b, {{TouchKind::read, device(0, 8)}, {TouchKind::read, device(512, 8)}}));
}

// --- precision ----------------------------------------------------------------------------------

TEST_F(OrderRules, NeighbouringBytesAreDifferentBytes) {
  make_block();
  silent(p.write(a, device(100, 10)));
  silent(p.write(b, device(99, 1)));
  silent(p.write(b, device(110, 1)));
  finds("TERN-S101", p.write(b, device(109, 1)));
  finds("TERN-S101", p.write(c, device(90, 11)));
}

TEST_F(OrderRules, AFindingNamesExactlyTheBytesInConflict) {
  make_block();
  silent(p.write(a, device(100, 10)));
  const Found found = p.write(b, device(90, 100));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->range.space, 1u);
  EXPECT_EQ(found->range.offset, 100u);
  EXPECT_EQ(found->range.bytes, 10u);
}

TEST_F(OrderRules, TheFirstWrongByteIsReported) {
  make_block();
  silent(p.write(a, device(200, 10)));
  silent(p.write(c, device(100, 10)));
  const Found found = p.write(b, block);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->range.offset, 100u);
}

TEST_F(OrderRules, SpacesAreApart) {
  make_block();
  silent(p.host_allocate({2, 0, 1024}));
  silent(p.write(a, device(0, 8)));
  silent(p.write(b, {2, 0, 8}));
  silent(p.write(c, host(0, 8)));
}

// --- events -------------------------------------------------------------------------------------

TEST_F(OrderRules, AWaitCoversWhatCameBeforeTheRecordAndNoMore) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  silent(p.write(a, device(8, 8)));
  p.wait(b, 7);
  silent(p.read(b, device(0, 8)));
  finds("TERN-S101", p.read(b, device(8, 8)));
}

TEST_F(OrderRules, AWaitUsesTheLatestRecordAtTheCall) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  silent(p.write(a, device(8, 8)));
  p.record(a, 7);
  p.wait(b, 7);
  silent(p.read(b, device(0, 16)));
}

TEST_F(OrderRules, ALaterRecordMovesNoEarlierWait) {
  make_block();
  p.record(a, 7);
  p.wait(b, 7);
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  finds("TERN-S101", p.read(b, device(0, 8)));
}

TEST_F(OrderRules, ARecordElsewhereReplacesTheEarlierOne) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  p.record(c, 7);
  p.wait(b, 7);
  finds("TERN-S101", p.read(b, device(0, 8)));
}

TEST_F(OrderRules, WaitingForAnEventNeverRecordedIsNoEdgeAndIsNamed) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.wait(b, 7);
  const Found found = p.read(b, device(0, 8));
  finds("TERN-S101", found);
  EXPECT_NE(found->order.find("B@1 waited for an event that was never recorded"), std::string::npos)
      << found->order;
}

TEST_F(OrderRules, AHostWaitForAnEventNeverRecordedIsNoEdgeAndIsNamed) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.host_wait_event(7);
  const Found found = p.host_read(device(0, 8));
  finds("TERN-S105", found);
  EXPECT_NE(found->order.find("H0 waited for an event that was never recorded"), std::string::npos)
      << found->order;
}

TEST_F(OrderRules, ADestroyedEventLeavesWhatWasLearnedAndIsNoEdgeAfterwards) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  p.wait(b, 7);
  p.end_event(7);
  silent(p.read(b, device(0, 8)));
  p.wait(c, 7);
  finds("TERN-S101", p.read(c, device(0, 8)));
}

TEST_F(OrderRules, ARecordCarriesWhatItsStreamHadLearned) {
  make_block();
  silent(p.write(a, block));
  p.join(a, b);
  p.record(b, 8);
  p.wait(c, 8);
  silent(p.write(c, block));
}

TEST_F(OrderRules, AnEdgeIsOneWay) {
  make_block();
  p.join(a, b);
  silent(p.write(b, block));
  finds("TERN-S101", p.read(a, block));
}

// --- streams and threads ------------------------------------------------------------------------

TEST_F(OrderRules, ANewStreamKnowsWhatItsCreatorKnows) {
  make_block();
  silent(p.write(a, block));
  const ActorId early = p.stream("early");
  finds("TERN-S101", p.read(early, block));
  p.host_wait(a);
  const ActorId late = p.stream("late");
  silent(p.read(late, block));
}

TEST_F(OrderRules, ANewThreadKnowsWhatItsCreatorKnows) {
  make_block();
  silent(p.write(a, block));
  p.host_wait(a);
  const ActorId h1 = p.thread("H1");
  silent(p.by(h1).host_read(block));
}

TEST_F(OrderRules, TheDefaultStreamFollowsTheBlockingStreams) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream);
  const ActorId x = p.stream("X", ActorKind::blocking_stream);
  const ActorId y = p.stream("Y", ActorKind::blocking_stream);
  make_block();
  silent(p.write(x, block));
  finds("TERN-S101", p.read(y, block));
  silent(p.write(legacy, block));
  silent(p.read(y, block));
}

TEST_F(OrderRules, BlockingStreamsFollowTheDefaultStream) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream);
  const ActorId x = p.stream("X", ActorKind::blocking_stream);
  make_block();
  silent(p.write(legacy, block));
  silent(p.write(x, block));
}

TEST_F(OrderRules, ANonBlockingStreamIsNotOrderedWithTheDefaultStream) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream);
  make_block();
  silent(p.write(legacy, device(0, 8)));
  finds("TERN-S101", p.read(a, device(0, 8)));
  silent(p.write(a, device(8, 8)));
  finds("TERN-S101", p.read(legacy, device(8, 8)));
}

TEST_F(OrderRules, TheDefaultStreamOfAnotherDeviceOrdersNothing) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream, 1);
  const ActorId x = p.stream("X", ActorKind::blocking_stream, 0);
  make_block();
  silent(p.write(x, device(0, 8)));
  finds("TERN-S101", p.read(legacy, device(0, 8)));
  silent(p.write(legacy, device(8, 8)));
  finds("TERN-S101", p.read(x, device(8, 8)));
}

TEST_F(OrderRules, RecordsAndWaitsOnTheDefaultStreamFollowTheBlockingStreamsToo) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream);
  const ActorId x = p.stream("X", ActorKind::blocking_stream);
  make_block();
  silent(p.write(x, block));
  p.record(legacy, 7);
  p.wait(a, 7);
  silent(p.read(a, block));
}

TEST_F(OrderRules, TheDefaultStreamFollowsAStreamThatWasDestroyed) {
  const ActorId legacy = p.stream("L", ActorKind::default_stream);
  const ActorId x = p.stream("X", ActorKind::blocking_stream);
  make_block();
  silent(p.write(x, block));
  p.end(x);
  silent(p.read(legacy, block));
}

TEST_F(OrderRules, HostThreadsNeedAnEdgeBetweenThem) {
  const ActorId h1 = p.thread("H1");
  make_block();
  silent(p.host_write(host(0, 8)));
  finds("TERN-S105", p.by(h1).host_read(host(0, 8)));
  p.by(0).release_edge(5);
  finds("TERN-S105", p.by(h1).host_read(host(0, 8)));
  p.by(h1).acquire_edge(5);
  silent(p.by(h1).host_read(host(0, 8)));
  finds("TERN-S106", p.by(0).host_write(host(0, 8)));
}

TEST_F(OrderRules, AReleaseCoversWhatCameBeforeItOnly) {
  const ActorId h1 = p.thread("H1");
  p.release_edge(5);
  silent(p.host_write(host(0, 8)));
  p.by(h1).acquire_edge(5);
  finds("TERN-S106", p.by(h1).host_write(host(0, 8)));
}

TEST_F(OrderRules, AReleaseForAStreamCoversWhatTheThreadKnowsOfThatStreamOnly) {
  const ActorId h1 = p.thread("H1");
  make_block();
  silent(p.write(b, device(0, 8)));
  p.join(b, a);
  silent(p.write(a, device(8, 8)));
  p.host_wait(a);
  silent(p.write(a, device(16, 8)));
  silent(p.write(b, device(24, 8)));
  p.host_wait(b);
  silent(p.host_write(host(0, 8)));
  p.release_edge(5, a);
  p.by(h1).acquire_edge(5);
  silent(p.by(h1).write(c, device(0, 16)));
  finds("TERN-S101", p.by(h1).write(c, device(16, 8)));
  finds("TERN-S101", p.by(h1).write(c, device(24, 8)));
  finds("TERN-S105", p.by(h1).host_read(host(0, 8)));
}

TEST_F(OrderRules, ReleasesOfATagAddUp) {
  const ActorId h1 = p.thread("H1");
  const ActorId h2 = p.thread("H2");
  silent(p.by(0).host_write(host(0, 8)));
  p.by(0).release_edge(5);
  silent(p.by(h1).host_write(host(8, 8)));
  p.by(h1).release_edge(5);
  p.by(h2).acquire_edge(5);
  silent(p.by(h2).host_read(host(0, 16)));
}

TEST_F(OrderRules, AStreamKnowsWhatTheThreadThatSubmitsKnows) {
  const ActorId h1 = p.thread("H1");
  make_block();
  silent(p.write(a, block));
  p.host_wait(a);
  finds("TERN-S101", p.by(h1).write(b, block));
  silent(p.by(0).write(b, block));
}

TEST_F(OrderRules, AStreamThatMeetsAHostAccessIsReportedAsTheHosts) {
  const ActorId h1 = p.thread("H1");
  silent(p.host_read(host(0, 8)));
  finds("TERN-S105", p.by(h1).copy(a, host(8, 8), host(0, 8)));
  silent(p.by(0).host_write(host(16, 8)));
  finds("TERN-S106", p.by(h1).copy(a, host(16, 8), host(24, 8)));
}

// --- S105, S106, host waits ---------------------------------------------------------------------

TEST_F(OrderRules, TheHostReadsWhatIsCopiedOnlyAfterAWait) {
  make_block();
  silent(p.host_allocate(host(0, 64)));
  silent(p.copy(a, device(0, 64), host(0, 64)));
  finds("TERN-S105", p.host_read(host(60, 4)));
  p.host_wait(a);
  silent(p.host_read(host(60, 4)));
}

TEST_F(OrderRules, TheHostWritesWhatIsReadOnlyAfterAWait) {
  make_block();
  silent(p.host_allocate(host(0, 64)));
  silent(p.host_write(host(0, 64)));
  silent(p.copy(a, host(0, 64), device(0, 64)));
  silent(p.host_read(host(0, 64)));
  finds("TERN-S106", p.host_write(host(0, 64)));
  p.host_wait(a);
  silent(p.host_write(host(0, 64)));
}

TEST_F(OrderRules, AHostWaitForAMarkCoversThatMarkAndNoMore) {
  make_block();
  silent(p.write(a, device(0, 8)));  // A@1
  silent(p.write(a, device(8, 8)));  // A@2
  p.host_wait(a, 1);
  silent(p.host_read(device(0, 8)));
  finds("TERN-S105", p.host_read(device(8, 8)));
  p.host_wait(a, 2);
  silent(p.host_read(device(8, 8)));
}

TEST_F(OrderRules, AHostWaitForAnEarlierMarkBringsWhatWasKnownThereOnly) {
  make_block();
  silent(p.write(a, device(0, 8)));   // A@1
  silent(p.write(b, device(16, 8)));  // B@1
  p.record(a, 7);
  p.wait(b, 7);  // B@2 knows A@1
  silent(p.write(a, device(8, 8)));
  p.record(a, 7);
  p.wait(b, 7);  // B@3 knows that, too
  p.host_wait(b, 1);
  finds("TERN-S105", p.host_read(device(0, 8)));
  p.host_wait(b, 2);
  silent(p.host_read(device(0, 8)));
  finds("TERN-S105", p.host_read(device(8, 8)));
}

TEST_F(OrderRules, AHostWaitForAnEventCoversItsRecord) {
  make_block();
  silent(p.write(a, device(0, 8)));
  p.record(a, 7);
  silent(p.write(a, device(8, 8)));
  p.host_wait_event(7);
  silent(p.host_write(device(0, 8)));
  finds("TERN-S106", p.host_write(device(8, 8)));
}

TEST_F(OrderRules, WaitingForAMarkThatIsYetToComeCoversNothingToCome) {
  make_block();
  p.host_wait(a, 1'000'000);
  silent(p.write(a, device(0, 8)));
  finds("TERN-S105", p.host_read(device(0, 8)));
  EXPECT_EQ(p.checker.sequence(a), 1u);
}

TEST_F(OrderRules, UnannouncedHostMemoryIsDefinedAndWatchedFromItsFirstUse) {
  make_block();
  silent(p.copy(a, host(0, 8), device(0, 8)));
  silent(p.copy(a, device(0, 8), host(100, 8)));
  finds("TERN-S106", p.host_write(host(0, 8)));
  finds("TERN-S105", p.host_read(host(100, 8)));
  silent(p.host_read(host(200, 8)));
}

// --- life and death -----------------------------------------------------------------------------

TEST_F(OrderRules, AFreeNeedsAnEdgeFromEveryUse) {
  silent(p.allocate(a, block));
  silent(p.write(a, block));
  p.join(a, b);
  silent(p.read(b, device(512, 8)));
  finds("TERN-S102", p.release(a, block));
  p.join(b, a);
  silent(p.release(a, block));
}

TEST_F(OrderRules, AFreeByTheHostNeedsAHostWait) {
  make_block();
  silent(p.read(a, block));
  finds("TERN-S102", p.host_release(block));
  p.host_wait(a);
  silent(p.host_release(block));
}

TEST_F(OrderRules, AFreeNeedsAnEdgeFromTheAllocation) {
  silent(p.allocate(a, block));
  finds("TERN-S102", p.release(b, block));
  p.join(a, b);
  silent(p.release(b, block));
}

TEST_F(OrderRules, APoolsReuseNeedsAnEdgeFromTheRelease) {
  make_block();
  silent(p.give(a, device(0, 64)));
  silent(p.write(a, device(0, 64)));
  silent(p.take_back(a, device(0, 64)));
  finds("TERN-S103", p.give(b, device(32, 64)));
  p.join(a, b);
  silent(p.give(b, device(32, 64)));
}

TEST_F(OrderRules, ADriversReuseOrdersTheBlock) {
  silent(p.allocate(a, block));
  silent(p.write(a, block));
  silent(p.release(a, block));
  silent(p.allocate(b, block));
  silent(p.write(b, block));
  finds("TERN-S101", p.read(a, block));
  silent(p.release(b, block));
}

TEST_F(OrderRules, ADriversReuseOrdersNothingButTheBlock) {
  silent(p.host_allocate(device(4096, 64)));
  silent(p.host_write(device(4096, 64)));
  silent(p.write(a, device(4096, 8)));
  silent(p.allocate(a, block));
  silent(p.release(a, block));
  silent(p.allocate(b, block));
  // Neither what the releasing stream did before, nor what it had waited for.
  finds("TERN-S101", p.read(b, device(4096, 8)));
  EXPECT_FALSE(p.checker.knows(b, a, 1));
  p.join(a, b);
  silent(p.read(b, device(4096, 8)));
}

TEST_F(OrderRules, AReuseByThePlainAllocatorOrdersNothingButTheBlock) {
  silent(p.host_allocate(device(4096, 64)));
  silent(p.host_write(device(4096, 64)));
  silent(p.allocate(a, block));
  silent(p.write(a, device(4096, 8)));
  silent(p.release(a, block));
  silent(p.host_allocate(block));
  finds("TERN-S105", p.host_read(device(4096, 8)));
}

TEST_F(OrderRules, APoolsFirstUseOfAnAsynchronousSlabNeedsAnEdgeFromItsAllocation) {
  silent(p.allocate(a, block));
  finds("TERN-S103", p.give(b, device(0, 64)));
  p.join(a, b);
  silent(p.give(b, device(0, 64)));
}

TEST_F(OrderRules, AUseNeedsAnEdgeFromTheAllocation) {
  silent(p.allocate(a, block));
  finds("TERN-S104", p.write(b, block));
  p.join(a, b);
  silent(p.write(b, block));
}

TEST_F(OrderRules, AFreedBlockMayNotBeUsedWhateverTheOrder) {
  silent(p.allocate(a, block));
  silent(p.write(a, block));
  silent(p.release(a, block));
  finds("TERN-S201", p.read(a, device(10, 1)));
  finds("TERN-S201", p.write(b, device(1023, 1)));
  p.host_wait(a);
  finds("TERN-S201", p.host_read(device(0, 1)));
}

TEST_F(OrderRules, AStaleHandleIsAUseAfterFreeThoughTheBytesAreSomebodysAgain) {
  silent(p.allocate(a, block, 1));
  silent(p.release(a, block, 1));
  silent(p.allocate(a, block, 2));
  finds("TERN-S201", p.kernel(a, {{TouchKind::write, device(0, 8), 1}}));
  silent(p.kernel(a, {{TouchKind::write, device(0, 8), 2}}));
  silent(p.kernel(a, {{TouchKind::write, device(0, 8), 0}}));
}

TEST_F(OrderRules, AFreeThroughAStaleHandleIsADoubleFree) {
  silent(p.allocate(a, block, 1));
  silent(p.release(a, block, 1));
  silent(p.allocate(a, block, 2));
  finds("TERN-S202", p.release(a, block, 1));
  silent(p.release(a, block, 2));
}

TEST_F(OrderRules, ABlockIsFreedOnce) {
  silent(p.allocate(a, block));
  silent(p.release(a, block));
  finds("TERN-S202", p.release(a, block));
  make_block();
  silent(p.give(a, device(0, 64)));
  silent(p.take_back(a, device(0, 64)));
  finds("TERN-S202", p.take_back(a, device(0, 64)));
}

TEST_F(OrderRules, OnlyExactlyOneBlockIsFreed) {
  silent(p.allocate(a, block));
  finds("TERN-S203", p.release(a, device(0, 512)));
  finds("TERN-S203", p.release(a, device(8, 1016)));
  finds("TERN-S203", p.release(a, device(0, 2048)));
  finds("TERN-S203", p.release(a, device(4096, 64)));
  finds("TERN-S203", p.release(a, host(0, 64)));
  finds("TERN-S203", p.take_back(a, block));
  silent(p.release(a, block));
}

TEST_F(OrderRules, ALiveBlockIsNotGivenOutAgain) {
  make_block();
  silent(p.give(a, device(64, 64)));
  finds("TERN-S204", p.give(a, device(64, 64)));
  finds("TERN-S204", p.give(a, device(0, 65)));
  finds("TERN-S204", p.give(a, device(127, 64)));
  finds("TERN-S204", p.give(a, device(96, 8)));
  finds("TERN-S204", p.give(a, device(0, 1024)));
  silent(p.give(a, device(0, 64)));
  silent(p.give(a, device(128, 64)));
  finds("TERN-S204", p.host_allocate(device(1023, 8)));
  silent(p.host_allocate(device(1024, 8)));
}

TEST_F(OrderRules, TheFirstLiveBlockInTheRangeIsNamed) {
  make_block();
  silent(p.give(a, device(0, 64)));
  silent(p.give(b, device(64, 64)));
  const Found found = p.give(c, device(32, 64));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->range.offset, 32u);
  EXPECT_EQ(found->range.bytes, 32u);
}

TEST_F(OrderRules, WhatIsLiveAtShutdownLeaks) {
  silent(p.allocate(a, block));
  silent(p.host_allocate(host(0, 64)));
  finds("TERN-S206", p.shutdown());
  silent(p.release(a, block));
  silent(p.host_release(host(0, 64)));
  silent(p.shutdown());
}

// --- contents and bounds ------------------------------------------------------------------------

TEST_F(OrderRules, AReadOfWhatNothingWroteIsUninitialised) {
  silent(p.allocate(a, block));
  silent(p.write(a, device(0, 512)));
  silent(p.read(a, device(0, 512)));
  const Found found = p.read(a, block);
  finds("TERN-S301", found);
  EXPECT_EQ(found->range.offset, 512u);
  EXPECT_EQ(found->range.bytes, 512u);
  silent(p.fill(a, device(512, 512)));
  silent(p.read(a, block));
}

TEST_F(OrderRules, AHostReadOfWhatNothingWroteIsUninitialised) {
  // Undefined bytes of a device, copied to a block of host memory, are still that.
  silent(p.host_allocate(block));
  silent(p.host_allocate(host(0, 64)));
  silent(p.copy(a, device(0, 64), host(0, 64)));
  p.host_wait(a);
  finds("TERN-S301", p.host_read(host(0, 64)));
  silent(p.host_write(host(0, 64)));
  silent(p.host_read(host(0, 64)));
}

TEST_F(OrderRules, HostMemoryMayBeWrittenByWhoTellsNobody) {
  silent(p.host_allocate(host(0, 64)));
  silent(p.host_read(host(0, 64)));
  silent(p.read(a, host(0, 64)));
}

TEST_F(OrderRules, BytesAreUndefinedAgainWhenTheyAreGivenOutAgain) {
  make_block();
  silent(p.give(a, device(0, 64)));
  silent(p.write(a, device(0, 64)));
  silent(p.take_back(a, device(0, 64)));
  silent(p.give(a, device(0, 64)));
  finds("TERN-S301", p.read(a, device(0, 64)));
}

TEST_F(OrderRules, AnAssumedAccessIsNeverUninitialised) {
  silent(p.allocate(a, block));
  silent(p.kernel(a, {{TouchKind::read, block, 0, true}}));
  silent(p.kernel(a, {{TouchKind::read_write, block, 0, true}}));
  silent(p.read(a, block));
}

TEST_F(OrderRules, ACopyCarriesUndefinedBytesToWhereTheyAreRead) {
  silent(p.allocate(a, block));
  silent(p.write(a, device(0, 100)));
  silent(p.host_allocate(host(0, 1024)));
  silent(p.copy(a, block, host(0, 1024)));
  p.host_wait(a);
  silent(p.host_read(host(0, 100)));
  const Found found = p.host_read(host(50, 100));
  finds("TERN-S301", found);
  EXPECT_EQ(found->range.offset, 100u);
  EXPECT_EQ(found->range.bytes, 50u);
  silent(p.host_write(host(0, 1024)));
  silent(p.copy(a, host(0, 1024), block));
  silent(p.read(a, block));
}

TEST_F(OrderRules, ACopyOverItselfCarriesWhatWasUndefinedBefore) {
  silent(p.allocate(a, block));
  silent(p.write(a, device(0, 8)));
  silent(p.copy(a, device(0, 16), device(4, 16)));
  silent(p.read(a, device(0, 12)));
  finds("TERN-S301", p.read(a, device(12, 1)));
}

TEST_F(OrderRules, ACopyOfUndefinedBytesToUnwatchedMemoryIsReported) {
  silent(p.allocate(a, block));
  silent(p.write(a, device(0, 8)));
  silent(p.copy(a, device(0, 8), host(0, 8)));
  const Found found = p.copy(a, device(0, 16), host(0, 16));
  finds("TERN-S301", found);
  EXPECT_EQ(found->range.space, 1u);
  EXPECT_EQ(found->range.offset, 8u);
  EXPECT_EQ(found->range.bytes, 8u);
}

TEST_F(OrderRules, ACopyThatRunsOutOfAPinnedBlockIsReportedFromThereOn) {
  silent(p.allocate(a, block));
  silent(p.host_allocate(host(0, 12)));
  const Found found = p.copy(a, device(0, 16), host(0, 16));
  finds("TERN-S301", found);
  EXPECT_EQ(found->range.offset, 12u);
  EXPECT_EQ(found->range.bytes, 4u);
}

TEST_F(OrderRules, APrefetchLooksAtNothing) {
  silent(p.allocate(a, block));
  silent(p.operation(OperationKind::prefetch, a, {{TouchKind::read, block}}));
}

TEST_F(OrderRules, BytesOfNobodyAreOutOfBounds) {
  make_block();
  finds("TERN-S302", p.write(a, device(1024, 1)));
  const Found found = p.read(a, device(1020, 8));
  finds("TERN-S302", found);
  EXPECT_EQ(found->range.offset, 1024u);
  EXPECT_EQ(found->range.bytes, 4u);
  finds("TERN-S302", p.write(a, {9, 0, 1}));
}

TEST_F(OrderRules, WhatAPoolHasNotGivenOutIsOutOfBounds) {
  make_block();
  silent(p.write(a, device(512, 8)));
  silent(p.give(a, device(0, 100)));
  silent(p.write(a, device(0, 100)));
  const Found found = p.write(a, device(96, 8));
  finds("TERN-S302", found);
  EXPECT_EQ(found->range.offset, 100u);
  EXPECT_EQ(found->range.bytes, 4u);
  finds("TERN-S302", p.read(a, device(512, 8)));
}

TEST_F(OrderRules, APoolThatAnnouncesNothingLeavesItsSlabPlainMemory) {
  make_block();
  silent(p.write(a, device(0, 8)));
  silent(p.read(a, device(512, 8)));
}

TEST_F(OrderRules, UsesOfASlabBeforeItIsCutStillCount) {
  make_block();
  silent(p.write(a, device(512, 8)));
  silent(p.give(b, device(0, 64)));
  finds("TERN-S103", p.give(b, device(512, 64)));
  p.join(a, b);
  silent(p.give(b, device(512, 64)));
}

TEST_F(OrderRules, ASlabIsNotFreedWhileAPieceIsOut) {
  make_block();
  silent(p.give(a, device(0, 64)));
  silent(p.give(a, device(64, 64)));
  silent(p.take_back(a, device(0, 64)));
  p.host_wait(a);
  const Found found = p.host_release(block);
  finds("TERN-S102", found);
  EXPECT_EQ(found->range.offset, 64u);
  silent(p.take_back(a, device(64, 64)));
  finds("TERN-S102", p.host_release(block));
  p.host_wait(a);
  silent(p.host_release(block));
}

}  // namespace
}  // namespace tern::test
