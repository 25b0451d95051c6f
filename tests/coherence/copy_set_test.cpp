#include "coherence/copy_set.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tern/backends/catalog.hpp"

namespace tern::test {
namespace {

class CopySetTest : public testing::Test {
 protected:
  CopySetTest() {
    auto own = std::make_unique<Resident>(std::make_shared<Residents>(), nullptr, 1);
    EXPECT_TRUE(copies.try_add(device, own));
    copies.memory(CopySet::host).parts = PlaceSet::of(CopySet::host);
    copies.memory(1).parts = PlaceSet::of(1);
  }
  void write(ByteRange range, unsigned place) {
    ASSERT_TRUE(copies.make_room());
    copies.directory().apply(Access::discard, range.begin, range.end, place);
  }
  void copy(ByteRange range, unsigned place) {
    ASSERT_TRUE(copies.make_room());
    copies.directory().apply(Access::read, range.begin, range.end, place);
  }

  const Device device = open_device("sim");
  CopySet copies{100};
};

TEST_F(CopySetTest, ADeviceHasAMemoryOfItsOwnUnlessItSharesThatOfTheHost) {
  EXPECT_EQ(copies.find(device.id()), 1u);
  EXPECT_EQ(copies.find(Place::host()), CopySet::host);
  EXPECT_EQ(copies.name_of(CopySet::host), "host");
  EXPECT_EQ(copies[1].memory, 1u);
  const Device shared = open_device("host");
  EXPECT_EQ(copies.find(shared.id()), CopySet::no_place);
  std::unique_ptr<Resident> none;
  ASSERT_TRUE(copies.try_add(shared, none));
  EXPECT_EQ(copies.count(), 3u);
  EXPECT_EQ(copies[2].memory, CopySet::host);
  EXPECT_EQ(&copies.memory_of(2), &copies.memory(CopySet::host));
  EXPECT_FALSE(copies.has_copy(2));
  EXPECT_EQ(copies.sharing(CopySet::host), PlaceSet::of(CopySet::host).with(2));
}

TEST_F(CopySetTest, StateFollowsTheDirectory) {
  EXPECT_EQ(copies.state({0, 100}), BufferState::uninitialized);
  write({0, 100}, CopySet::host);
  EXPECT_EQ(copies.state({0, 100}), BufferState::host_dirty);
  EXPECT_TRUE(copies.is_stale_on({0, 100}, device.place()));
  copy({0, 50}, 1);
  EXPECT_EQ(copies.state({0, 50}), BufferState::synchronized);
  EXPECT_EQ(copies.state({0, 100}), BufferState::mixed);
  EXPECT_EQ(copies.valid_places({0, 100}), std::vector<Place>{Place::host()});
  ASSERT_EQ(copies.intervals({0, 100}).size(), 2u);
  EXPECT_EQ(copies.intervals({0, 100})[0].places.size(), 2u);
  EXPECT_EQ(copies.only_in(PlaceSet::of(CopySet::host), {0, 100}), (ByteRange{50, 100}));
  EXPECT_TRUE(static_cast<bool>(copies.directory().check(PlaceSet::of(0).with(1))));
}

TEST_F(CopySetTest, BytesThatDoNotArriveBecomeStaleIfTheirSourceHasThem) {
  write({0, 100}, 1);
  copy({0, 10}, CopySet::host);
  copies.in_flight().reserve(1);
  copies.in_flight().add({{0, 10}, 1, 1});
  std::vector<ByteRange> told;
  const CopySet::Loss loss = copies.drop_not_arrived(
      {.is_device_lost = false}, [&](ByteRange range) { told.push_back(range); });
  EXPECT_EQ(loss.bytes, 0u);
  EXPECT_EQ(told, std::vector<ByteRange>({ByteRange{0, 10}}));
  EXPECT_EQ(copies.state({0, 10}), BufferState::device_dirty);
}

TEST_F(CopySetTest, BytesThatDoNotArriveAreLostIfTheirSourceIsGone) {
  write({0, 100}, 1);
  copy({0, 30}, CopySet::host);
  copies.in_flight().reserve(2);
  copies.in_flight().add({{0, 10}, 1, 1});
  copies.in_flight().add({{20, 30}, 1, 1});
  copies.keep_sole_copies(PlaceSet::of(1));
  ASSERT_TRUE(copies.make_room());
  copies.directory().remove(0, 100, 1);
  const CopySet::Loss loss = copies.drop_not_arrived({.is_device_lost = true}, [](ByteRange) {});
  EXPECT_EQ(loss.bytes, 20u);
  EXPECT_EQ(loss.range, (ByteRange{0, 30}));
  EXPECT_EQ(loss.source, 1u);
  EXPECT_EQ(copies.state({0, 10}), BufferState::uninitialized);
  EXPECT_EQ(copies.valid_places({10, 20}), std::vector<Place>{Place::host()});
}

TEST_F(CopySetTest, AStreamUseMakesTheHostWaitAgain) {
  CopySet::Memory& memory = copies.memory(CopySet::host);
  memory.note_stream_use(Access::read);
  EXPECT_TRUE(memory.is_read_clear);
  EXPECT_FALSE(memory.is_write_clear);
  memory.note_stream_use(Access::discard);
  EXPECT_FALSE(memory.is_read_clear);
  EXPECT_EQ(memory.stream_uses, 2u);
}

TEST_F(CopySetTest, PromisedChangesKeepTheirRoom) {
  ASSERT_TRUE(copies.make_room(20));
  copies.promise(20);
  ASSERT_TRUE(copies.make_room());  // for one change more
  for (std::size_t i = 0; i < 20; ++i) {
    copies.directory().apply(Access::discard, 4 * i + 1, 4 * i + 3, CopySet::host);
    copies.end_promise();
  }
  EXPECT_EQ(copies.directory().size(), 41u);
}

}  // namespace
}  // namespace tern::test
