#include "backends/sim/managed_pages.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tern::sim {
namespace {

constexpr std::uint64_t page = ManagedPages::page_bytes;
const Place host = Place::host();
const Place first = Place::device(DeviceId{1});
const Place second = Place::device(DeviceId{2});

/// Eight pages of one block, at 16 pages.
struct ManagedPagesTest : testing::Test {
  ManagedPagesTest() { pages.begin(begin, 8 * page); }
  static constexpr std::uint64_t begin = 16 * page;
  ManagedPages pages;
};

TEST_F(ManagedPagesTest, AreNowhereUntilTheyAreTouchedAndThenWhereTheyWere) {
  EXPECT_FALSE(pages.home(begin));
  EXPECT_EQ(pages.touch(begin + page + 5, 1, first, true), 0u);
  EXPECT_FALSE(pages.home(begin));
  EXPECT_EQ(pages.home(begin + page), first);
  EXPECT_EQ(pages.home(begin + 2 * page - 1), first);
  EXPECT_FALSE(pages.home(begin + 2 * page));
}

TEST_F(ManagedPagesTest, MoveToWhoeverTouchesThemWholePagesAtATime) {
  pages.touch(begin, 8 * page, host, true);
  EXPECT_EQ(pages.touch(begin + page - 1, 2, first, false), 2 * page);
  EXPECT_EQ(pages.home(begin), first);
  EXPECT_EQ(pages.home(begin + page), first);
  EXPECT_EQ(pages.home(begin + 2 * page), host);
  EXPECT_EQ(pages.touch(begin, 2 * page, first, true), 0u);
  EXPECT_EQ(pages.touch(begin, 8 * page, host, false), 2 * page);
}

TEST_F(ManagedPagesTest, ThatAreMostlyReadAreCopiedUntilSomebodyWrites) {
  pages.touch(begin, page, host, true);
  pages.advise(begin, page, Advice::set_read_mostly, host);
  EXPECT_EQ(pages.touch(begin, page, first, false), page);
  EXPECT_EQ(pages.touch(begin, page, first, false), 0u);
  EXPECT_EQ(pages.touch(begin, page, host, false), 0u);
  EXPECT_EQ(pages.touch(begin, page, second, false), page);
  EXPECT_TRUE(pages.is_at(begin, host));
  EXPECT_TRUE(pages.is_at(begin, first));
  EXPECT_TRUE(pages.is_at(begin, second));
  // A copy that is written becomes the one.
  EXPECT_EQ(pages.touch(begin, page, first, true), 0u);
  EXPECT_EQ(pages.home(begin), first);
  EXPECT_FALSE(pages.is_at(begin, host));
  EXPECT_FALSE(pages.is_at(begin, second));
}

TEST_F(ManagedPagesTest, LoseTheirCopiesWithTheAdvice) {
  pages.touch(begin, page, host, true);
  pages.advise(begin, page, Advice::set_read_mostly, host);
  pages.touch(begin, page, first, false);
  pages.advise(begin, page, Advice::unset_read_mostly, host);
  EXPECT_FALSE(pages.is_at(begin, first));
  EXPECT_EQ(pages.home(begin), host);
  EXPECT_EQ(pages.touch(begin, page, first, false), page);
  EXPECT_EQ(pages.home(begin), first);
}

TEST_F(ManagedPagesTest, StayWhereTheyPreferToBeIfTheyCanBeReached) {
  pages.advise(begin, page, Advice::set_preferred_location, host);
  pages.touch(begin, page, first, true);
  EXPECT_EQ(pages.home(begin), host);  // it appears where it is wanted
  EXPECT_EQ(pages.touch(begin, page, first, true), 0u);
  EXPECT_EQ(pages.home(begin), host);

  pages.advise(begin + page, page, Advice::set_preferred_location, first);
  pages.touch(begin + page, page, first, true);
  EXPECT_EQ(pages.touch(begin + page, page, second, true), 0u);
  EXPECT_EQ(pages.home(begin + page), first);
  // The host reaches no memory of a device, so the page comes.
  EXPECT_EQ(pages.touch(begin + page, page, host, false), page);
  EXPECT_EQ(pages.home(begin + page), host);

  pages.advise(begin, page, Advice::unset_preferred_location, host);
  EXPECT_EQ(pages.touch(begin, page, first, true), page);
}

TEST_F(ManagedPagesTest, StayForThoseWhoSaidTheyWouldUseThemFromAfar) {
  pages.touch(begin, page, host, true);
  pages.advise(begin, page, Advice::set_accessed_by, first);
  EXPECT_EQ(pages.touch(begin, page, first, true), 0u);
  EXPECT_EQ(pages.home(begin), host);
  EXPECT_EQ(pages.touch(begin, page, second, true), page);
  pages.advise(begin, page, Advice::unset_accessed_by, first);
  EXPECT_EQ(pages.touch(begin, page, first, true), page);
}

TEST_F(ManagedPagesTest, GoWhereTheyArePrefetched) {
  EXPECT_EQ(pages.prefetch(begin, 2 * page, first), 0u);
  EXPECT_EQ(pages.home(begin + page), first);
  EXPECT_EQ(pages.prefetch(begin, page, host), page);
  EXPECT_EQ(pages.prefetch(begin, page, host), 0u);
  EXPECT_EQ(pages.home(begin), host);
  EXPECT_EQ(pages.home(begin + page), first);
  pages.advise(begin, page, Advice::set_read_mostly, host);
  EXPECT_EQ(pages.prefetch(begin, page, second), page);
  EXPECT_EQ(pages.prefetch(begin, page, second), 0u);
  EXPECT_EQ(pages.home(begin), host);
  EXPECT_TRUE(pages.is_at(begin, second));
}

TEST_F(ManagedPagesTest, TellWhatIsInForceForAllOfARange) {
  pages.advise(begin, 8 * page, Advice::set_read_mostly, host);
  pages.advise(begin, 8 * page, Advice::set_preferred_location, first);
  pages.advise(begin, 8 * page, Advice::set_accessed_by, first);
  pages.advise(begin, 8 * page, Advice::set_accessed_by, first);
  pages.advise(begin, 8 * page, Advice::set_accessed_by, host);
  pages.prefetch(begin, 8 * page, second);
  ManagedInfo info = pages.info(begin, 8 * page);
  EXPECT_TRUE(info.is_read_mostly);
  EXPECT_EQ(info.accessed_by, (std::vector<Place>{first, host}));
  EXPECT_EQ(info.preferred, first);
  EXPECT_EQ(info.last_prefetch, second);
  EXPECT_TRUE(info.is_accessed_by(host));
  EXPECT_FALSE(info.is_accessed_by(second));

  pages.advise(begin + 3 * page, page, Advice::unset_read_mostly, host);
  pages.advise(begin + 3 * page, page, Advice::set_preferred_location, host);
  pages.advise(begin + 3 * page, page, Advice::unset_accessed_by, first);
  pages.advise(begin + 3 * page, page, Advice::unset_accessed_by, host);
  pages.prefetch(begin + 3 * page, page, host);
  info = pages.info(begin, 8 * page);
  EXPECT_FALSE(info.is_read_mostly);
  EXPECT_TRUE(info.accessed_by.empty());
  EXPECT_FALSE(info.preferred);
  EXPECT_FALSE(info.last_prefetch);
  info = pages.info(begin + 3 * page, page);
  EXPECT_EQ(info.preferred, host);
  EXPECT_EQ(info.last_prefetch, host);
  EXPECT_TRUE(pages.info(begin, 3 * page).is_read_mostly);
}

TEST_F(ManagedPagesTest, ComeWithoutMovingWhenTheirBytesAreOfNoUse) {
  pages.touch(begin, 8 * page, first, true);
  pages.advise(begin, page, Advice::set_read_mostly, host);
  pages.touch(begin, page, second, false);
  // A page that others share a part of stays where it is.
  pages.discard(begin, 3 * page + 1);
  EXPECT_FALSE(pages.home(begin));
  EXPECT_FALSE(pages.is_at(begin, second));
  EXPECT_EQ(pages.home(begin + 3 * page), first);
  pages.discard(begin + 4 * page + 1, 2 * page - 2);
  EXPECT_EQ(pages.home(begin + 4 * page), first);
  EXPECT_EQ(pages.home(begin + 5 * page), first);
  pages.discard(begin + 6 * page + 1, page - 1);
  EXPECT_EQ(pages.home(begin + 6 * page), first);
  EXPECT_EQ(pages.prefetch(begin, page, second), 0u);
  EXPECT_EQ(pages.touch(begin + page, 2 * page, host, true), 0u);
  EXPECT_TRUE(pages.info(begin, page).is_read_mostly);
}

TEST_F(ManagedPagesTest, ForgetEverythingWithTheirBlock) {
  pages.advise(begin, 8 * page, Advice::set_read_mostly, host);
  pages.touch(begin, 8 * page, first, true);
  pages.end(begin, 8 * page - 7);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pages.touch(begin, page, host, true), 0u);
  EXPECT_FALSE(pages.home(begin));
  pages.begin(begin, 8 * page);
  EXPECT_FALSE(pages.info(begin, page).is_read_mostly);
}

}  // namespace
}  // namespace tern::sim
