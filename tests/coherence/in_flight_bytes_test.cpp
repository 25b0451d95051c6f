#include "coherence/in_flight_bytes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tern::test {
namespace {

constexpr unsigned host_place = 0, a = 1, b = 2;

/// A directory of 100 bytes that are up to date on the host and in the place `a`.
Validity synchronized() {
  Validity directory(100);
  EXPECT_TRUE(directory.make_room(2));
  directory.apply(Access::discard, 0, 100, a);
  directory.apply(Access::read, 0, 100, host_place);
  return directory;
}

TEST(InFlightBytes, ArriveWhenTheHostHasWaitedForTheirUse) {
  const Validity directory = synchronized();
  InFlightBytes bytes;
  bytes.reserve(1);
  bytes.add({{0, 10}, a, 5});
  bytes.add_sole_copy({{20, 30}, a, 6});
  EXPECT_TRUE(bytes.touches({0, 1}));
  EXPECT_FALSE(bytes.touches({10, 20}));
  bytes.note_arrived(5, directory);
  EXPECT_FALSE(bytes.touches({0, 10}));
  EXPECT_TRUE(bytes.touches({20, 30}));
  bytes.note_arrived(6, directory);
  EXPECT_FALSE(bytes.touches({0, 100}));
}

TEST(InFlightBytes, NameTheirSourceIfThereIsOnlyOne) {
  InFlightBytes bytes;
  bytes.reserve(2);
  bytes.add({{0, 10}, a, 1});
  bytes.add({{10, 20}, b, 1});
  EXPECT_EQ(bytes.source_of({0, 10}), a);
  EXPECT_EQ(bytes.source_of({15, 16}), b);
  EXPECT_EQ(bytes.source_of({5, 15}), InFlightBytes::several_sources);
  EXPECT_EQ(bytes.source_of({50, 60}), InFlightBytes::several_sources);
}

TEST(InFlightBytes, ManyRangesBecomeOneThatWaitsForTheLastUse) {
  const Validity directory = synchronized();
  InFlightBytes bytes;
  bytes.reserve(InFlightBytes::max_ranges + 1);
  for (std::size_t i = 0; i <= InFlightBytes::max_ranges; ++i) bytes.add({{i, i + 1}, a, i});
  bytes.limit();
  bytes.note_arrived(InFlightBytes::max_ranges - 1, directory);
  EXPECT_TRUE(bytes.touches({0, 1}));
  EXPECT_EQ(bytes.source_of({0, 1}), a);
  bytes.note_arrived(InFlightBytes::max_ranges, directory);
  EXPECT_FALSE(bytes.touches({0, 100}));
}

TEST(InFlightBytes, BecomeSoleCopiesWhenTheirSourceGoes) {
  const Validity directory = synchronized();
  InFlightBytes bytes;
  bytes.reserve(1);
  bytes.add({{0, 10}, a, 1});
  bytes.add_sole_copies_without(PlaceSet::of(b), PlaceSet::of(host_place), directory);
  std::vector<unsigned> lost_with;
  const auto note = [&](const InFlightBytes::Entry& one) { lost_with.push_back(one.source); };
  bytes.mark_lost({.is_device_lost = true}, note);
  EXPECT_TRUE(lost_with.empty());  // the place b has none of the bytes
  bytes.add_sole_copies_without(PlaceSet::of(a), PlaceSet::of(host_place), directory);
  bytes.mark_lost({.is_device_lost = true}, note);
  EXPECT_EQ(lost_with, std::vector<unsigned>{a});
}

TEST(InFlightBytes, FromADeviceThatIsAliveMayStillArrive) {
  InFlightBytes bytes;
  bytes.reserve(2);
  bytes.add({{0, 10}, a, 1});
  bytes.add({{10, 20}, b, 1});
  std::vector<std::size_t> dropped;
  const auto note = [&](ByteRange range) { dropped.push_back(range.begin); };
  bytes.drop_failed({.is_device_lost = true, .alive = PlaceSet::of(b)}, note);
  EXPECT_EQ(dropped, std::vector<std::size_t>{0});
  EXPECT_TRUE(bytes.touches({10, 20}));
  bytes.drop_failed({.is_device_lost = false, .alive = PlaceSet::of(b)}, note);
  EXPECT_EQ(dropped, (std::vector<std::size_t>{0, 10}));
  EXPECT_FALSE(bytes.touches({0, 100}));
}

TEST(InFlightBytes, AreLostUntilTheyAreWritten) {
  Validity directory(100);
  ASSERT_TRUE(directory.make_room(1));
  InFlightBytes bytes;
  bytes.add_sole_copy({{0, 10}, a, 1});
  EXPECT_EQ(bytes.first_lost({0, 100}, directory).end, 0u);
  bytes.mark_lost({.is_device_lost = true}, [](const InFlightBytes::Entry&) {});
  EXPECT_EQ(bytes.first_lost({5, 100}, directory).begin, 5u);
  EXPECT_EQ(bytes.first_lost({5, 100}, directory).end, 10u);
  bytes.note_all_arrived();
  EXPECT_EQ(bytes.first_lost({5, 100}, directory).end, 10u);
  EXPECT_EQ(bytes.only_lost(8).first_lost({0, 100}, directory).end, 8u);
  EXPECT_FALSE(bytes.touches({0, 100}));  // lost bytes are not in flight
  directory.apply(Access::discard, 0, 10, host_place);
  EXPECT_EQ(bytes.first_lost({0, 100}, directory).end, 0u);
}

TEST(InFlightBytes, SettledBytesAreThoseThatNoStreamWrites) {
  const Validity directory = synchronized();
  InFlightBytes bytes;
  bytes.reserve(1);
  bytes.add({{10, 20}, a, 1});
  bytes.add_sole_copy({{30, 40}, a, 1});
  const std::vector<ByteRange> settled = bytes.settled({{0, 50}});
  ASSERT_EQ(settled.size(), 3u);
  EXPECT_EQ(settled[1].begin, 20u);
  EXPECT_EQ(settled[1].end, 30u);
  bytes.add_shared_use(2);
  EXPECT_TRUE(bytes.settled({{0, 50}}).empty());
  bytes.note_arrived(2, directory);
  EXPECT_EQ(bytes.settled({{0, 50}}).size(), 1u);
}

}  // namespace
}  // namespace tern::test
