#include "trace/actors.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

class ActorsTest : public testing::Test {
 protected:
  ActorsTest() {
    actors.begin(0, ActorKind::host, 0, "H0", 0);
    actors.begin(1, ActorKind::stream, 0, "A", 0);
    actors.begin(2, ActorKind::stream, 0, "B", 0);
  }
  void submit(ActorId id, int times = 1) {
    while (times-- > 0) actors.submit(id, 0);
  }

  Actors actors;
};

TEST_F(ActorsTest, CountsTheOperationsOfEachActor) {
  submit(1, 3);
  submit(2);
  EXPECT_EQ(actors.sequence(1), 3u);
  EXPECT_EQ(actors.sequence(2), 1u);
  EXPECT_EQ(actors.sequence(77), 0u);
  EXPECT_EQ(actors.known(1, 2), 0u);
}

TEST_F(ActorsTest, SubmitsWhatTheHostKnows) {
  submit(1, 3);
  actors.learn(0, actors.clock_at(1, 2));
  EXPECT_EQ(actors.known(2, 1), 0u);
  EXPECT_EQ(actors.known_if_submitted(2, 0, 1), 2u);
  submit(2);
  EXPECT_EQ(actors.known(2, 1), 2u);
}

TEST_F(ActorsTest, GivesTheClockOfAnEarlierOperation) {
  submit(1, 2);                            // A@2
  submit(2, 2);                            // B@2
  actors.learn(2, actors.clock_at(1, 1));  // B@2 knows A@1
  submit(2, 2);                            // B@4
  actors.learn(2, actors.clock_at(1, 2));  // B@4 knows A@2
  EXPECT_EQ(actors.clock_at(2, 1).at(1), 0u);
  EXPECT_EQ(actors.clock_at(2, 2).at(1), 1u);
  EXPECT_EQ(actors.clock_at(2, 3).at(1), 1u);
  EXPECT_EQ(actors.clock_at(2, 3).at(2), 3u);
  EXPECT_EQ(actors.clock_at(2, 4).at(1), 2u);
  EXPECT_EQ(actors.learned_at(2, 1, 1), 2u);
  EXPECT_EQ(actors.learned_at(2, 1, 2), 4u);
  EXPECT_FALSE(actors.learned_at(2, 1, 3));
}

TEST_F(ActorsTest, GivesNoClockOfWhatIsYetToCome) {
  submit(1, 2);
  EXPECT_EQ(actors.clock_at(1, 1'000'000).at(1), 2u);
  EXPECT_EQ(actors.clock_at(99, 5).at(99), 0u);
}

TEST_F(ActorsTest, LetsAHostThreadLearnBetweenItsOperations) {
  submit(1);
  actors.step(0);                          // H0@1 knows nothing of A
  actors.learn(0, actors.clock_at(1, 1));  // and then it does
  EXPECT_EQ(actors.clock_at(0, 1).at(1), 0u);
  actors.step(0);
  EXPECT_EQ(actors.clock_at(0, 2).at(1), 1u);
}

TEST_F(ActorsTest, OrdersTheDefaultStreamWithTheBlockingStreamsOfItsDevice) {
  actors.begin(3, ActorKind::default_stream, 0, "L", 0);
  actors.begin(4, ActorKind::blocking_stream, 0, "X", 0);
  actors.begin(5, ActorKind::blocking_stream, 0, "Y", 0);
  actors.begin(6, ActorKind::blocking_stream, 1, "Z", 0);
  submit(4);
  submit(6);
  submit(1);
  EXPECT_EQ(actors.known_if_submitted(3, 0, 4), 1u);
  submit(3);
  EXPECT_EQ(actors.known(3, 4), 1u);
  EXPECT_EQ(actors.known(3, 6), 0u) << "another device";
  EXPECT_EQ(actors.known(3, 1), 0u) << "not a blocking stream";
  EXPECT_EQ(actors.known(5, 3), 0u);
  EXPECT_EQ(actors.known_if_submitted(5, 0, 4), 1u) << "through the default stream";
  submit(5);
  EXPECT_EQ(actors.known(5, 3), 1u);
  EXPECT_EQ(actors.known(5, 4), 1u);
  EXPECT_EQ(actors.known(4, 5), 0u);
}

TEST_F(ActorsTest, SettlesWhatEveryLivingHostThreadKnows) {
  submit(1, 2);
  actors.begin(3, ActorKind::host, 0, "H1", 0);
  actors.learn(0, actors.clock_at(1, 1));
  EXPECT_FALSE(actors.is_settled(1, 1));
  actors.learn(3, actors.clock_at(1, 2));
  EXPECT_TRUE(actors.is_settled(1, 1));
  EXPECT_FALSE(actors.is_settled(1, 2));
  actors.at(0).is_alive = false;
  EXPECT_TRUE(actors.is_settled(1, 2));
}

TEST_F(ActorsTest, NeedsAnEdgeToSettleTheAccessesOfAnotherHostThread) {
  actors.begin(3, ActorKind::host, 0, "H1", 0);
  actors.step(3);
  EXPECT_FALSE(actors.is_settled(3, 1));
  actors.learn(0, actors.clock_at(3, 1));
  EXPECT_TRUE(actors.is_settled(3, 1));
}

TEST_F(ActorsTest, PrunesSnapshotsThatAreSettledAndNoOthers) {
  for (std::uint64_t n = 1; n <= 10; ++n) {
    submit(1);
    submit(2);
    actors.learn(2, actors.clock_at(1, n));
  }
  const std::size_t before = actors.snapshot_count();
  actors.prune();
  EXPECT_EQ(actors.snapshot_count(), before) << "the host has waited for nothing";
  actors.learn(0, actors.clock_at(2, 7));
  actors.prune();
  EXPECT_LT(actors.snapshot_count(), before);
  for (std::uint64_t n = 7; n <= 10; ++n) EXPECT_EQ(actors.clock_at(2, n).at(1), n);
  EXPECT_EQ(actors.learned_at(2, 1, 9), 9u);
}

TEST_F(ActorsTest, CountsOnWhenANumberIsUsedAgain) {
  submit(1, 3);
  actors.at(1).is_alive = false;
  actors.learn(0, actors.clock_at(1, 3));
  actors.begin(1, ActorKind::stream, 0, "C", 0);
  EXPECT_EQ(actors.sequence(1), 3u);
  submit(1);
  EXPECT_EQ(actors.sequence(1), 4u);
}

TEST_F(ActorsTest, TheNextOwnerOfANumberKnowsOnlyWhatItsCreatorKnows) {
  submit(2, 5);
  submit(1, 3);
  actors.learn(1, actors.clock_at(2, 5));
  actors.begin(1, ActorKind::stream, 0, "C", 0);
  EXPECT_EQ(actors.known(1, 2), 0u);
  submit(1);
  EXPECT_EQ(actors.known(1, 2), 0u);
  EXPECT_EQ(actors.clock_at(1, 4).at(2), 0u);
  EXPECT_EQ(actors.clock_at(1, 4).at(1), 4u);
}

TEST_F(ActorsTest, GrowsForActorsItHasNeverSeen) {
  actors.submit(50, 60);
  EXPECT_EQ(actors.sequence(50), 1u);
  EXPECT_EQ(actors.count(), 61u);
  actors.learn(70, actors.clock_at(50, 1));
  EXPECT_EQ(actors.known(70, 50), 1u);
}

}  // namespace
}  // namespace tern
