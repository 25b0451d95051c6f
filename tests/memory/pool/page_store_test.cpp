#include "memory/pool/page_store.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "tern/core/bytes.hpp"

namespace tern::pool {
namespace {

using test::Call;
constexpr std::uint64_t page = PageStore::page_granules;

class PageStoreTest : public testing::Test {
 protected:
  [[nodiscard]] std::size_t count(Call call) const { return fake.ledger->count(call); }
  /// Fills the pages, which faults if they are not there.
  static void use(std::uint64_t offset, std::uint64_t pages, int value) {
    std::memset(reinterpret_cast<void*>(offset * granule_bytes), value, pages * page_bytes);
  }

  test::FakeDevice fake;
};

TEST_F(PageStoreTest, MakesNoCallBeforeTheFirstRequest) {
  const PageStore store(fake.device, 64 * mib);
  EXPECT_EQ(store.next_address(), 0u);
  EXPECT_EQ(store.held_pages(), 0u);
  EXPECT_EQ(fake.ledger->total(), 0u);
}

TEST_F(PageStoreTest, GivesAddressesThatFollowEachOther) {
  PageStore store(fake.device, 64 * mib);
  const std::uint64_t first = store.try_new_addresses(3, 1).value();
  EXPECT_EQ(first % page, 0u);
  EXPECT_EQ(store.next_address(), first + 3 * page);
  EXPECT_EQ(store.try_new_addresses(2, 1).value(), first + 3 * page);
  EXPECT_EQ(count(Call::reserve), 1u);
}

TEST_F(PageStoreTest, AlignsAddresses) {
  PageStore store(fake.device, 256 * mib);
  for (const std::uint64_t alignment : {1u, 2u, 4u, 8u, 16u}) {
    ASSERT_TRUE(store.try_new_addresses(1, 1));
    const std::uint64_t offset = store.try_new_addresses(3, alignment).value();
    EXPECT_EQ(offset % (alignment * page), 0u) << alignment;
  }
}

TEST_F(PageStoreTest, TakesBackTheNewestAddresses) {
  PageStore store(fake.device, 64 * mib);
  const std::uint64_t first = store.try_new_addresses(3, 1).value();
  const std::uint64_t second = store.try_new_addresses(2, 1).value();
  store.give_back_addresses(first, 3);  // not the newest: nothing happens
  EXPECT_EQ(store.next_address(), second + 2 * page);
  store.give_back_addresses(second, 2);
  EXPECT_EQ(store.next_address(), second);
}

TEST_F(PageStoreTest, ReservesMoreWhenAddressesRunOut) {
  PageStore store(fake.device, 16 * mib);
  const std::uint64_t first = store.try_new_addresses(6, 1).value();
  const std::uint64_t second = store.try_new_addresses(6, 1).value();
  EXPECT_EQ(count(Call::reserve), 2u);
  ASSERT_TRUE(store.try_have_unmapped(12));
  ASSERT_TRUE(store.try_back(first, 6));
  ASSERT_TRUE(store.try_back(second, 6));
  use(first, 6, 1);
  use(second, 6, 2);
  EXPECT_EQ(store.mapped_in(first, 6), 6u);
  EXPECT_EQ(store.mapped_in(second, 6), 6u);
  // A request that is larger than what is reserved at a time has a region of its own.
  EXPECT_TRUE(store.try_new_addresses(20, 4));
  EXPECT_EQ(count(Call::reserve), 3u);
}

TEST_F(PageStoreTest, ReservesLessIfTheDriverHasNoMore) {
  PageStore store(fake.device, 64 * mib);
  fake.ledger->fail_next(Call::reserve, 3);
  EXPECT_TRUE(store.try_new_addresses(4, 1));
  EXPECT_EQ(count(Call::reserve), 4u);
  PageStore other(fake.device, 64 * mib);
  fake.ledger->fail_next(Call::reserve, 5);  // 32, 16, 8, 4, and no less than what is needed
  EXPECT_FALSE(other.try_new_addresses(4, 1));
  EXPECT_EQ(other.next_address(), 0u);
  fake.ledger->fail_next(Call::reserve, 0);
}

TEST_F(PageStoreTest, MovesPagesFromAddressToAddress) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(4));
  EXPECT_EQ(store.held_pages(), 4u);
  EXPECT_EQ(store.unmapped_pages(), 4u);
  const std::uint64_t from = store.try_new_addresses(4, 1).value();
  ASSERT_TRUE(store.try_back(from, 4));
  EXPECT_EQ(store.unmapped_pages(), 0u);
  use(from, 4, 1);
  const PageStore::Unbacked unbacked = store.unback(from + page, 2);
  EXPECT_TRUE(unbacked.result);
  EXPECT_EQ(unbacked.pages, 2u);
  EXPECT_EQ(store.unmapped_pages(), 2u);
  EXPECT_EQ(store.mapped_in(from, 4), 2u);
  const std::uint64_t to = store.try_new_addresses(2, 1).value();
  ASSERT_TRUE(store.try_back(to, 2));
  use(to, 2, 2);
  EXPECT_EQ(store.created_pages(), 4u);
  EXPECT_EQ(store.held_pages(), 4u);
  // The old addresses can have pages again.
  ASSERT_TRUE(store.try_have_unmapped(2));
  ASSERT_TRUE(store.try_back(from + page, 2));
  use(from, 4, 3);
  EXPECT_EQ(store.held_pages(), 6u);
}

TEST_F(PageStoreTest, SetsAccessOfARunWithOneCall) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(8));
  const std::uint64_t offset = store.try_new_addresses(8, 1).value();
  ASSERT_TRUE(store.try_back(offset, 8));
  EXPECT_EQ(count(Call::map), 8u);
  EXPECT_EQ(count(Call::set_access), 1u);
  EXPECT_EQ(store.driver_calls(), fake.ledger->total());
}

TEST_F(PageStoreTest, CreatesFewLargeHandles) {
  PageStore store(fake.device, 256 * mib);
  ASSERT_TRUE(store.try_have_unmapped(20, 8));
  EXPECT_EQ(count(Call::create_pages), 3u);  // of 8, 8 and 4 pages
  EXPECT_EQ(store.held_pages(), 20u);
  EXPECT_EQ(store.unmapped_pages(), 20u);
  EXPECT_EQ(store.whole_pages(20), 20u);
  const std::uint64_t offset = store.try_new_addresses(20, 1).value();
  ASSERT_TRUE(store.try_back(offset, 20));
  EXPECT_EQ(count(Call::map), 3u);
  use(offset, 20, 1);
  EXPECT_EQ(store.mapped_in(offset, 20), 20u);
  EXPECT_EQ(store.handles().of(offset / page).pages(), 4u);  // the newest handle is mapped first
  EXPECT_EQ(store.handles().of(offset / page + 4).pages(), 8u);
  EXPECT_EQ(store.handles().of(offset / page + 11).first, offset / page + 4);
  const PageStore::Unbacked unbacked = store.unback(offset + 4 * page, 8);
  EXPECT_EQ(unbacked.pages, 8u);
  EXPECT_EQ(store.mapped_in(offset, 20), 12u);
  EXPECT_EQ(store.unmapped_pages(), 8u);
  EXPECT_EQ(count(Call::unmap), 1u);
  EXPECT_EQ(store.release_unmapped(1), 8u);  // a handle is released whole
  EXPECT_EQ(store.held_pages(), 12u);
  EXPECT_EQ(store.released_pages(), 8u);
}

TEST_F(PageStoreTest, MapsWholeHandlesThatAreLargerThanWhatIsWanted) {
  PageStore store(fake.device, 256 * mib);
  ASSERT_TRUE(store.try_have_unmapped(8, 8));
  ASSERT_TRUE(store.try_have_unmapped(10, 8));
  EXPECT_EQ(store.whole_pages(1), 2u);
  EXPECT_EQ(store.whole_pages(3), 10u);
  const std::uint64_t offset = store.try_new_addresses(10, 1).value();
  ASSERT_TRUE(store.try_back(offset, 10));
  use(offset, 10, 1);
  EXPECT_EQ(store.unmapped_pages(), 0u);
}

TEST_F(PageStoreTest, ReleasesTheLargeHandlesOfAGrowthThatFails) {
  PageStore store(fake.device, 256 * mib);
  fake.ledger->fail_at(3);
  EXPECT_FALSE(store.try_have_unmapped(24, 8));
  EXPECT_EQ(store.held_pages(), 0u);
  EXPECT_EQ(store.unmapped_pages(), 0u);
  EXPECT_EQ(count(Call::release_pages), 2u);
}

TEST_F(PageStoreTest, ReleasesThePagesOfAFailedGrowth) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(2));
  fake.ledger->fail_at(4);
  EXPECT_FALSE(store.try_have_unmapped(8));
  EXPECT_EQ(store.unmapped_pages(), 2u);
  EXPECT_EQ(store.held_pages(), 2u);
  EXPECT_EQ(store.created_pages(), 5u);
  EXPECT_EQ(store.released_pages(), 3u);
  EXPECT_TRUE(store.try_have_unmapped(8));
}

TEST_F(PageStoreTest, UnmapsPagesIfMappingFails) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(4));
  const std::uint64_t offset = store.try_new_addresses(4, 1).value();
  for (std::size_t at = 1; at <= 5; ++at) {  // four times map, then set_access
    fake.ledger->fail_at(at);
    EXPECT_FALSE(store.try_back(offset, 4)) << at;
    EXPECT_EQ(store.unmapped_pages(), 4u) << at;
    EXPECT_EQ(store.mapped_in(offset, 4), 0u) << at;
  }
  ASSERT_TRUE(store.try_back(offset, 4));
  use(offset, 4, 1);
}

TEST_F(PageStoreTest, ReportsPagesThatStayMapped) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(4));
  const std::uint64_t offset = store.try_new_addresses(4, 1).value();
  fake.ledger->fail_next(Call::set_access);
  fake.ledger->fail_next(Call::unmap);
  EXPECT_FALSE(store.try_back(offset, 4));
  EXPECT_EQ(store.mapped_in(offset, 4), 4u);
  EXPECT_EQ(store.unmapped_pages(), 0u);
  EXPECT_EQ(store.held_pages(), 4u);
}

TEST_F(PageStoreTest, ReportsTheProgressOfAFailedUnmap) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(4));
  const std::uint64_t offset = store.try_new_addresses(4, 1).value();
  ASSERT_TRUE(store.try_back(offset, 4));
  fake.ledger->fail_at(3);
  const PageStore::Unbacked unbacked = store.unback(offset, 4);
  EXPECT_FALSE(unbacked.result);
  EXPECT_EQ(unbacked.pages, 2u);
  EXPECT_EQ(store.unmapped_pages(), 2u);
  EXPECT_EQ(store.mapped_in(offset, 4), 2u);
  use(offset + 2 * page, 2, 1);
}

TEST_F(PageStoreTest, ReleasesAtMostTheGivenNumber) {
  PageStore store(fake.device, 64 * mib);
  ASSERT_TRUE(store.try_have_unmapped(4));
  EXPECT_EQ(store.release_unmapped(3), 3u);
  EXPECT_EQ(store.held_pages(), 1u);
  fake.ledger->fail_next(Call::release_pages);
  EXPECT_EQ(store.release_unmapped(3), 0u);
  EXPECT_EQ(store.held_pages(), 1u);
  EXPECT_EQ(store.release_unmapped(3), 1u);
  EXPECT_EQ(store.held_pages(), 0u);
  EXPECT_EQ(store.released_pages(), 4u);
}

TEST_F(PageStoreTest, FreesEverythingAtItsEnd) {
  {
    PageStore store(fake.device, 16 * mib);
    ASSERT_TRUE(store.try_have_unmapped(9));
    const std::uint64_t first = store.try_new_addresses(4, 1).value();
    const std::uint64_t second = store.try_new_addresses(8, 1).value();
    ASSERT_TRUE(store.try_back(first, 4));
    ASSERT_TRUE(store.try_back(second + page, 3));
    EXPECT_EQ(store.unmapped_pages(), 2u);
  }
  EXPECT_EQ(count(Call::create_pages), 9u);
  EXPECT_EQ(count(Call::release_pages), 9u);
  EXPECT_EQ(count(Call::map), 7u);
  EXPECT_EQ(count(Call::unmap), 7u);
  EXPECT_EQ(count(Call::reserve), 2u);
  EXPECT_EQ(count(Call::unreserve), 2u);
}

TEST_F(PageStoreTest, MakesNoDriverCallIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  PageStore store(fake.device, 64 * mib);
  ErrorCode loose{}, addresses{};
  {
    const test::HeapExhausted none;
    loose = store.try_have_unmapped(1).failure().code();
    addresses = store.try_new_addresses(1, 1).failure().code();
  }
  EXPECT_EQ(loose, ErrorCode::out_of_memory);
  EXPECT_EQ(addresses, ErrorCode::out_of_memory);
  EXPECT_EQ(fake.ledger->total(), 0u);
  // Pages that come loose always have a place: none of these allocates.
  ASSERT_TRUE(store.try_have_unmapped(8));
  const std::uint64_t offset = store.try_new_addresses(8, 1).value();
  ASSERT_TRUE(store.try_back(offset, 8));
  const test::AllocationCounter counter;
  const std::uint64_t unbacked = store.unback(offset, 8).pages;
  const std::size_t allocations = counter.count();
  EXPECT_EQ(unbacked, 8u);
  EXPECT_LE(allocations, 8u * 4);  // of the host device itself, which is no part of this
}

}  // namespace
}  // namespace tern::pool
