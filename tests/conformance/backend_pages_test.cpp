// Reserved addresses, and pages that are mapped, moved and freed.

#include <limits>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class MapsPages : public Ladder {
 protected:
  void SetUp() override {
    if (can(Capability::virtual_memory)) return;
    const auto refused = [&](const auto& result) {
      expect_unsupported(result, Capability::virtual_memory, device);
    };
    refused(device.try_reserve(2 * mib));
    refused(device.try_unreserve(nullptr, 2 * mib));
    refused(device.try_create_pages(2 * mib));
    refused(device.try_release_pages({}));
    refused(device.try_map(nullptr, {}));
    refused(device.try_unmap(nullptr, 2 * mib));
    refused(device.try_set_access(nullptr, 2 * mib, PageAccess::read_write));
    GTEST_SKIP() << "has no virtual memory";
  }

  std::byte* reserve(std::size_t pages) {
    return static_cast<std::byte*>(*device.try_reserve(pages * page));
  }
  NativePages create(std::size_t pages) { return *device.try_create_pages(pages * page); }
  void map(std::byte* address, NativePages pages, std::size_t count) {
    ASSERT_TRUE(device.try_map(address, pages));
    ASSERT_TRUE(device.try_set_access(address, count * page, PageAccess::read_write));
  }

  const std::size_t page = device.info().page_bytes;
};
TERN_CLIMB(MapsPages);

TEST_P(MapsPages, WhoseBytesSurviveBeingMappedElsewhere) {
  std::byte* range = reserve(4);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range) % page, 0u);
  const NativePages pages = create(2);
  map(range, pages, 2);
  write(range + page - 50, sample(100));
  ASSERT_TRUE(device.try_unmap(range, 2 * page));
  map(range + 2 * page, pages, 2);
  EXPECT_EQ(read(range + 3 * page - 50, 100), sample(100));

  ASSERT_TRUE(device.try_unmap(range + 2 * page, 2 * page));
  EXPECT_TRUE(device.try_release_pages(pages));
  EXPECT_TRUE(device.try_unreserve(range, 4 * page));
}

TEST_P(MapsPages, ThatStayWhileMappedThoughTheirHandleIsGone) {
  std::byte* range = reserve(1);
  const NativePages pages = create(1);
  map(range, pages, 1);
  EXPECT_TRUE(device.try_release_pages(pages));
  write(range, sample(100));
  EXPECT_EQ(read(range, 100), sample(100));
  expect_refused(device.try_release_pages(pages), ErrorCode::use_after_free);
  ASSERT_TRUE(device.try_unmap(range, page));
  expect_refused(device.try_map(range, pages), ErrorCode::use_after_free);
  EXPECT_TRUE(device.try_unreserve(range, page));
}

TEST_P(MapsPages, SideBySideAndGivesAccessToAllAtOnce) {
  std::byte* range = reserve(3);
  const NativePages a = create(1), b = create(2);
  ASSERT_TRUE(device.try_map(range, a));
  ASSERT_TRUE(device.try_map(range + page, b));
  ASSERT_TRUE(device.try_set_access(range, 3 * page, PageAccess::read_write));
  write(range + page - 50, sample(100));
  EXPECT_EQ(read(range + page - 50, 100), sample(100));
  EXPECT_TRUE(device.try_set_access(range, 3 * page, PageAccess::read));
  EXPECT_EQ(read(range + page - 50, 100), sample(100));
  EXPECT_TRUE(device.try_set_access(range, page, PageAccess::none));

  ASSERT_TRUE(device.try_unmap(range + page, 2 * page));
  ASSERT_TRUE(device.try_unmap(range, page));
  EXPECT_TRUE(device.try_release_pages(a));
  EXPECT_TRUE(device.try_release_pages(b));
  EXPECT_TRUE(device.try_unreserve(range, 3 * page));
}

TEST_P(MapsPages, AndKnowsThemAgain) {
  std::byte* range = reserve(2);
  const NativePages pages = create(1);
  map(range + page, pages, 1);
  const PointerInfo info = device.pointer_info(range + page + 100);
  EXPECT_EQ(info.kind, MemoryKind::mapped);
  EXPECT_EQ(info.base, range + page);
  EXPECT_EQ(info.bytes, page);
  EXPECT_EQ(device.pointer_info(range).kind, MemoryKind::host);
  ASSERT_TRUE(device.try_unmap(range + page, page));
  EXPECT_EQ(device.pointer_info(range + page).base, nullptr);
  EXPECT_TRUE(device.try_release_pages(pages));
  EXPECT_TRUE(device.try_unreserve(range, 2 * page));
}

TEST_P(MapsPages, OnlyWhole) {
  for (const std::size_t bytes : {std::size_t{1}, page - 1, page + 1}) {
    expect_refused(device.try_reserve(bytes), ErrorCode::misaligned);
    expect_refused(device.try_create_pages(bytes), ErrorCode::misaligned);
  }
  for (const std::size_t bytes : {max_request_bytes + 1, std::numeric_limits<std::size_t>::max()}) {
    expect_refused(device.try_reserve(bytes), ErrorCode::size_overflow);
    expect_refused(device.try_create_pages(bytes), ErrorCode::size_overflow);
  }
  std::byte* range = reserve(2);
  const NativePages pages = create(1);
  expect_refused(device.try_map(range + 4096, pages), ErrorCode::misaligned);
  expect_refused(device.try_unmap(range, 4096), ErrorCode::misaligned);
  expect_refused(device.try_unmap(range + 1, page), ErrorCode::misaligned);
  expect_refused(device.try_unreserve(range, page + 1), ErrorCode::misaligned);
  expect_refused(device.try_set_access(range, 1, PageAccess::read), ErrorCode::misaligned);
  EXPECT_TRUE(device.try_release_pages(pages));
  EXPECT_TRUE(device.try_unreserve(range, 2 * page));
}

TEST_P(MapsPages, OnlyWhereNothingIs) {
  std::byte* range = reserve(4);
  const NativePages one = create(1), two = create(2);
  map(range + page, two, 2);
  for (const std::size_t at : {0u, 1u, 2u}) {
    expect_refused(device.try_map(range + at * page, two), ErrorCode::invalid_argument);
  }
  expect_refused(device.try_map(range + 3 * page, two), ErrorCode::invalid_argument);  // too long
  EXPECT_TRUE(device.try_map(range, one));
  EXPECT_TRUE(device.try_map(range + 3 * page, one));  // in two places at once

  for (const std::size_t at : {0u, 3u}) EXPECT_TRUE(device.try_unmap(range + at * page, page));
  EXPECT_TRUE(device.try_unmap(range + page, 2 * page));
  EXPECT_TRUE(device.try_release_pages(one));
  EXPECT_TRUE(device.try_release_pages(two));
  EXPECT_TRUE(device.try_unreserve(range, 4 * page));
}

TEST_P(MapsPages, OnlyInsideAReservation) {
  const NativePages pages = create(1);
  std::byte* range = reserve(1);
  EXPECT_TRUE(device.try_unreserve(range, page));
  expect_refused(device.try_map(range, pages), ErrorCode::invalid_argument);
  expect_refused(device.try_map(nullptr, pages), ErrorCode::invalid_argument);
  expect_refused(device.try_unreserve(range, page), ErrorCode::invalid_argument);
  EXPECT_TRUE(device.try_release_pages(pages));
}

TEST_P(MapsPages, AndUnmapsExactlyWhatWasMapped) {
  std::byte* range = reserve(2);
  const NativePages pages = create(2);
  map(range, pages, 2);
  write(range, sample(100));
  expect_refused(device.try_unmap(range, page), ErrorCode::invalid_argument);
  expect_refused(device.try_unmap(range + page, page), ErrorCode::invalid_argument);
  expect_refused(device.try_unreserve(range, 2 * page), ErrorCode::invalid_argument);
  expect_refused(device.try_unreserve(range, page), ErrorCode::invalid_argument);
  expect_refused(device.try_set_access(range + page, page, PageAccess::none),
                 ErrorCode::invalid_argument);
  EXPECT_EQ(read(range, 100), sample(100));
  ASSERT_TRUE(device.try_unmap(range, 2 * page));
  expect_refused(device.try_unmap(range, 2 * page), ErrorCode::invalid_argument);
  expect_refused(device.try_set_access(range, 2 * page, PageAccess::read),
                 ErrorCode::invalid_argument);
  EXPECT_TRUE(device.try_release_pages(pages));
  EXPECT_TRUE(device.try_unreserve(range, 2 * page));
}

TEST_P(MapsPages, NoBytesWithoutAWord) {
  EXPECT_EQ(*device.try_reserve(0), nullptr);
  EXPECT_TRUE(device.try_unreserve(nullptr, 0));
  const Result<NativePages> none = device.try_create_pages(0);
  ASSERT_TRUE(none);
  EXPECT_TRUE(device.try_map(nullptr, *none));
  EXPECT_TRUE(device.try_set_access(nullptr, 0, PageAccess::read));
  EXPECT_TRUE(device.try_unmap(nullptr, 0));
  EXPECT_TRUE(device.try_release_pages(*none));
}

TEST_P(MapsPages, NoneItWasNotGiven) {
  std::byte* range = reserve(1);
  expect_refused(device.try_map(range, NativePages{999'999}), ErrorCode::use_after_free);
  const NativePages pages = create(1);
  EXPECT_TRUE(device.try_release_pages(pages));
  expect_refused(device.try_map(range, pages), ErrorCode::use_after_free);
  expect_refused(device.try_release_pages(pages), ErrorCode::use_after_free);
  EXPECT_TRUE(device.try_unreserve(range, page));
}

TEST_P(MapsPages, NoMoreThanTheMachineHas) {
  const std::size_t total = device.info().total_bytes / page * page;
  const Result<NativePages> refused = device.try_create_pages(total + page);
  expect_refused(refused, ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), total + page);
  expect_refused(device.try_reserve(max_request_bytes / page * page), ErrorCode::out_of_memory);

  const NativePages some = create(1);
  expect_refused(device.try_create_pages(total), ErrorCode::out_of_memory);
  EXPECT_TRUE(device.try_release_pages(some));
}

TEST_P(MapsPages, ManyTimesWithoutUsingMoreAndMore) {
  const std::size_t half = device.info().total_bytes / page / 2 + 1;
  for (int i = 0; i < 5; ++i) {  // each more than half of all there is
    const Result<NativePages> pages = device.try_create_pages(half * page);
    ASSERT_TRUE(pages) << pages.failure().text();
    EXPECT_TRUE(device.try_release_pages(*pages));
  }
}

}  // namespace
}  // namespace tern::test
