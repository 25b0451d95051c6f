// The Shadow alone, with an order that the test defines. order_rules_test.cpp tests the rules.

#include "trace/shadow.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tern {
namespace {

class ShadowTest : public testing::Test {
 protected:
  auto view() {
    const auto is_ordered = [this](ActorId actor, std::uint64_t clock) {
      return known.contains({actor, clock});
    };
    return Shadow::View<decltype(is_ordered)>{false, false, is_ordered};
  }
  /// Applies a touch as the next operation of the actor, which everybody knows of if said so.
  Epoch apply(TouchKind kind, std::uint64_t offset, std::uint64_t bytes, ActorId actor = 1,
              bool is_known = true) {
    const Touch touch{kind, {1, offset, bytes}};
    Note note;
    note.step = ++step;
    note.actor = actor;
    note.sequence = step;
    note.touch = kind;
    note.range = touch.range;
    note.reuse = is_birth(kind) ? shadow.reuse_of(touch.range) + 1 : 0;
    const Epoch epoch{actor, step, notes.make(note)};
    if (is_known) known.insert({actor, step});
    if (kind == TouchKind::read) {
      shadow.apply_read(touch, epoch, view());
    } else if (is_birth(kind)) {
      shadow.apply_birth(touch, epoch);
    } else if (is_death(kind)) {
      shadow.apply_death(touch, epoch);
    } else {
      shadow.apply_write(touch, epoch);
    }
    return epoch;
  }
  std::optional<Problem> judge(TouchKind kind, std::uint64_t offset, std::uint64_t bytes) {
    return shadow.judge(Touch{kind, {1, offset, bytes}}, view());
  }
  void prune(bool forgets_releases = false) {
    shadow.prune(
        [this](ActorId actor, std::uint64_t clock) {
          return clock == 0 || known.contains({actor, clock});
        },
        forgets_releases);
  }

  NotePool notes;
  std::uint64_t work = 0;
  Shadow shadow{false, false, work};
  std::set<std::pair<ActorId, std::uint64_t>> known;
  std::uint64_t step = 0;
};

TEST_F(ShadowTest, CountsHowOftenBytesWereGivenOut) {
  apply(TouchKind::allocate, 0, 100);
  EXPECT_EQ(shadow.block_at(0)->note->reuse, 1u);
  apply(TouchKind::suballocate, 0, 10);
  EXPECT_EQ(shadow.block_at(0)->note->reuse, 1u) << "pieces are counted for themselves";
  apply(TouchKind::subrelease, 0, 10);
  apply(TouchKind::suballocate, 5, 10);
  EXPECT_EQ(shadow.block_at(5)->note->reuse, 2u);
  apply(TouchKind::subrelease, 5, 10);
  apply(TouchKind::release, 0, 100);
  apply(TouchKind::allocate, 50, 10);
  EXPECT_EQ(shadow.block_at(50)->note->reuse, 2u);
}

TEST_F(ShadowTest, FindsThePieceBeforeTheBlockItWasCutFrom) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::suballocate, 10, 10);
  std::uint64_t begin = 99;
  EXPECT_EQ(shadow.block_at(10, &begin)->bytes, 10u);
  EXPECT_EQ(begin, 10u);
  EXPECT_EQ(shadow.block_at(20, &begin)->bytes, 100u);
  EXPECT_EQ(begin, 0u);
  EXPECT_EQ(shadow.block_at(100), nullptr);
}

TEST_F(ShadowTest, CutsEveryBlockThatAPieceLiesAcross) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::allocate, 100, 100);
  apply(TouchKind::allocate, 200, 100);
  apply(TouchKind::suballocate, 50, 170);
  // The next piece of a block that is cut already leaves the first one whole.
  apply(TouchKind::suballocate, 220, 10);
  apply(TouchKind::suballocate, 0, 10);
  EXPECT_FALSE(judge(TouchKind::write, 50, 170));
  EXPECT_TRUE(judge(TouchKind::write, 230, 10)) << "given out to nobody";
}

TEST_F(ShadowTest, RemembersTheLatestUseOfAFreedBlock) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 50, 50);
  const Epoch latest = apply(TouchKind::read, 0, 10);
  apply(TouchKind::write, 20, 10);
  const Epoch last = apply(TouchKind::write, 5, 5);
  const Epoch death = apply(TouchKind::release, 0, 100);
  const auto problem = judge(TouchKind::read, 60, 1);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->code, FindingCode::use_after_free);
  EXPECT_EQ(problem->against.note.get(), death.note.get());
  EXPECT_EQ(problem->earlier.get(), last.note.get());
  EXPECT_NE(problem->earlier.get(), latest.note.get());
  EXPECT_EQ(problem->birth->sequence, 1u);
}

TEST_F(ShadowTest, NamesTheAllocationOfAFreedBlockThatNobodyUsed) {
  const Epoch birth = apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::release, 0, 100);
  EXPECT_EQ(judge(TouchKind::read, 0, 1)->earlier.get(), birth.note.get());
}

TEST_F(ShadowTest, FindsTheLatestWriteInABlock) {
  apply(TouchKind::allocate, 0, 100);
  const Epoch before = apply(TouchKind::write, 90, 5);
  EXPECT_EQ(shadow.latest_write_in_block(0).get(), before.note.get());
  const Epoch latest = apply(TouchKind::write, 0, 5);
  EXPECT_EQ(shadow.latest_write_in_block(50).get(), latest.note.get());
  apply(TouchKind::write, 10, 5);
  apply(TouchKind::write, 80, 5);
  const Epoch last = apply(TouchKind::write, 40, 5);
  EXPECT_EQ(shadow.latest_write_in_block(50).get(), last.note.get());
  EXPECT_FALSE(shadow.latest_write_in_block(100));
}

TEST_F(ShadowTest, LeavesMemoryAloneWhenTheWrongRangeIsFreed) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 0, 100);
  apply(TouchKind::release, 0, 50);
  apply(TouchKind::release, 10, 90);
  EXPECT_FALSE(judge(TouchKind::read, 0, 100));
  EXPECT_FALSE(judge(TouchKind::release, 0, 100));
}

TEST_F(ShadowTest, ReplacesLiveBlocksThatAreGivenOutAgain) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::suballocate, 0, 10);
  apply(TouchKind::suballocate, 10, 10);
  apply(TouchKind::suballocate, 5, 10);
  EXPECT_EQ(shadow.pieces().size(), 1u);
  apply(TouchKind::allocate, 0, 50);
  EXPECT_EQ(shadow.pieces().size(), 0u);
  EXPECT_EQ(shadow.blocks().size(), 1u);
}

TEST_F(ShadowTest, BuriesPiecesWithTheirSlab) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::suballocate, 0, 10);
  apply(TouchKind::release, 0, 100);
  EXPECT_EQ(shadow.pieces().size(), 0u);
  EXPECT_EQ(judge(TouchKind::read, 0, 1)->code, FindingCode::use_after_free);
}

TEST_F(ShadowTest, JoinsSettledNeighboursOfABlockAndKeepsTheLaterOperation) {
  apply(TouchKind::allocate, 0, 100);
  for (std::uint64_t offset = 0; offset < 50; offset += 10) {
    apply(TouchKind::write, offset + 50, 10);
    apply(TouchKind::write, offset, 10);
  }
  const Epoch last = apply(TouchKind::write, 70, 10);
  EXPECT_GE(shadow.interval_count(), 10u);
  prune();
  EXPECT_EQ(shadow.interval_count(), 1u);
  EXPECT_EQ(shadow.latest_write_in_block(0).get(), last.note.get());
}

TEST_F(ShadowTest, DropsReadsOnlyWhenAllAreSettled) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 0, 100);
  apply(TouchKind::read, 0, 50, 1);
  const Epoch unknown = apply(TouchKind::read, 0, 50, 2, false);
  prune();
  EXPECT_EQ(shadow.interval_count(), 2u);
  EXPECT_EQ(judge(TouchKind::write, 0, 50)->against.clock, unknown.clock);
  known.insert({2, unknown.clock});
  prune();
  EXPECT_EQ(shadow.interval_count(), 1u);
}

TEST_F(ShadowTest, KeepsApartWhatIsNotSettled) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 0, 50);
  apply(TouchKind::write, 50, 50, 2, false);
  prune();
  EXPECT_EQ(shadow.interval_count(), 2u);
  EXPECT_FALSE(judge(TouchKind::read, 0, 50));
  EXPECT_TRUE(judge(TouchKind::read, 50, 50));
}

TEST_F(ShadowTest, KeepsBlocksAndContentsApart) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 0, 100);
  apply(TouchKind::allocate, 100, 100);
  apply(TouchKind::write, 100, 50);
  prune();
  EXPECT_EQ(shadow.interval_count(), 3u);
  EXPECT_TRUE(judge(TouchKind::read, 100, 100));
  EXPECT_FALSE(judge(TouchKind::read, 0, 150));
}

TEST_F(ShadowTest, KeepsCopiesOfUndefinedBytesApart) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 0, 50);
  apply(TouchKind::write, 50, 50);
  shadow.make_undefined({1, 50, 50});
  prune();
  EXPECT_FALSE(judge(TouchKind::read, 0, 50));
  EXPECT_EQ(judge(TouchKind::read, 50, 1)->code, FindingCode::uninitialised_read);
}

TEST_F(ShadowTest, KnowsTheBlocksThatWereFreedUntilItIsToldToForgetThem) {
  for (const std::uint64_t offset : {0u, 10u, 20u}) {
    apply(TouchKind::allocate, offset, 10);
    apply(TouchKind::release, offset, 10);
  }
  const Epoch late = [&] {
    apply(TouchKind::allocate, 30, 10);
    return apply(TouchKind::release, 30, 10, 2, false);
  }();
  prune();
  EXPECT_EQ(shadow.interval_count(), 4u);
  EXPECT_TRUE(judge(TouchKind::read, 15, 1)->birth);

  prune(true);
  EXPECT_EQ(shadow.interval_count(), 2u);
  const auto problem = judge(TouchKind::read, 15, 1);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->code, FindingCode::use_after_free);
  EXPECT_FALSE(problem->against.note);
  EXPECT_EQ(judge(TouchKind::read, 35, 1)->against.note.get(), late.note.get());
  EXPECT_EQ(shadow.reuse_of({1, 0, 30}), 1u);
}

TEST_F(ShadowTest, ForgetsHostMemoryOfNobodyWhenItIsSettled) {
  shadow.~Shadow();
  new (&shadow) Shadow(true, false, work);
  apply(TouchKind::write, 1000, 10);
  const Epoch unknown = apply(TouchKind::write, 2000, 10, 2, false);
  apply(TouchKind::allocate, 3000, 10);
  apply(TouchKind::write, 3000, 10);
  apply(TouchKind::read, 4000, 10);
  EXPECT_EQ(shadow.interval_count(), 4u);
  prune();
  EXPECT_EQ(shadow.interval_count(), 2u);
  EXPECT_EQ(judge(TouchKind::read, 2000, 1)->against.clock, unknown.clock);
  EXPECT_FALSE(judge(TouchKind::read, 1000, 10));
}

TEST_F(ShadowTest, FindsTheFirstByteOfNobody) {
  apply(TouchKind::allocate, 0, 10);
  apply(TouchKind::allocate, 10, 10);
  EXPECT_EQ(shadow.first_unowned({1, 5, 10}), std::nullopt);
  EXPECT_EQ(shadow.first_unowned({1, 5, 16}), 20u);
  EXPECT_EQ(shadow.first_unowned({1, 30, 1}), 30u);
}

TEST_F(ShadowTest, ListsWhatIsUndefined) {
  apply(TouchKind::allocate, 0, 100);
  apply(TouchKind::write, 10, 10);
  const auto undefined = shadow.undefined_in({1, 5, 20});
  ASSERT_EQ(undefined.size(), 2u);
  EXPECT_EQ(undefined[0].offset, 5u);
  EXPECT_EQ(undefined[0].bytes, 5u);
  EXPECT_EQ(undefined[1].offset, 20u);
  EXPECT_EQ(undefined[1].bytes, 5u);
}

TEST(ReadSet, KeepsConcurrentReadersAndDropsThoseThatAreFollowed) {
  ReadSet reads;
  const auto count = [&] {
    int n = 0;
    reads.visit([&](const Epoch&) { ++n; });
    return n;
  };
  const auto nobody = [](const Epoch&) { return false; };
  EXPECT_TRUE(reads.empty());
  for (ActorId actor = 1; actor <= 3; ++actor) reads.add({actor, 1, {}}, nobody);
  EXPECT_EQ(count(), 3);
  reads.add({2, 2, {}}, [](const Epoch& read) { return read.actor == 2; });
  EXPECT_EQ(count(), 3);
  reads.add({1, 2, {}}, [](const Epoch& read) { return read.actor == 1; });
  EXPECT_EQ(count(), 3);
  ReadSet copy = reads;
  reads.add({4, 1, {}}, [](const Epoch&) { return true; });
  EXPECT_EQ(count(), 1);
  reads = copy;
  EXPECT_EQ(count(), 3);
  reads.clear();
  EXPECT_EQ(count(), 0);
}

}  // namespace
}  // namespace tern
