#include "backends/host/host_pages.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/open_descriptors.hpp"
#include "support/thread.hpp"

namespace tern::host {
namespace {

constexpr std::size_t page = HostPages::page_bytes;

class HostPagesTest : public testing::Test {
 protected:
  std::byte* reserve(std::size_t count) {
    return static_cast<std::byte*>(*pages.reserve(count * page));
  }
  HostPages pages{16 * page};
};

TEST_F(HostPagesTest, CreatesUpToItsTotalAndAgainWhatWasReleased) {
  std::vector<NativePages> all;
  for (int i = 0; i < 16; ++i) all.push_back(*pages.create(page));
  const Result<NativePages> refused = pages.create(page);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("created"), 16 * page);
  EXPECT_EQ(refused.failure().number("total"), 16 * page);
  for (const NativePages handle : all) EXPECT_TRUE(pages.release(handle));
  const NativePages whole = *pages.create(16 * page);
  EXPECT_TRUE(pages.release(whole));
}

TEST_F(HostPagesTest, NeverGivesTwoHandlesTheSameBytes) {
  // Releases make holes of one to three pages, which later handles share and join.
  std::byte* range = reserve(16);
  std::vector<NativePages> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(*pages.create(page));
  for (const int i : {1, 2, 5}) EXPECT_TRUE(pages.release(handles[static_cast<std::size_t>(i)]));
  std::vector<std::pair<NativePages, std::size_t>> live;
  for (const std::size_t i : {0u, 3u, 4u, 6u, 7u}) live.emplace_back(handles[i], 1);
  for (const std::size_t count : {2u, 1u, 3u, 1u}) {
    live.emplace_back(*pages.create(count * page), count);
  }
  std::size_t at = 0;
  for (const auto& [handle, count] : live) {
    ASSERT_TRUE(pages.map(range + at * page, handle));
    ASSERT_TRUE(pages.set_access(range + at * page, count * page, PageAccess::read_write));
    std::memset(range + at * page, static_cast<int>(at + 1), count * page);
    at += count;
  }
  at = 0;
  for (const auto& [handle, count] : live) {
    EXPECT_EQ(range[at * page], static_cast<std::byte>(at + 1));
    EXPECT_EQ(range[(at + count) * page - 1], static_cast<std::byte>(at + 1));
    EXPECT_TRUE(pages.unmap(range + at * page, count * page));
    EXPECT_TRUE(pages.release(handle));
    at += count;
  }
  EXPECT_TRUE(pages.unreserve(range, 16 * page));
}

/// How long the files are that the pages of this process live in.
std::size_t file_bytes() {
  std::size_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    struct stat facts = {};
    if (target.find("tern-host-pages") == target.npos) continue;
    if (stat(entry.path().c_str(), &facts) == 0) total += static_cast<std::size_t>(facts.st_size);
  }
  return total;
}

TEST_F(HostPagesTest, UsesTheHolesOfItsFileAgain) {
  std::vector<NativePages> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(*pages.create(page));
  const std::size_t before = file_bytes();
  // Joined with the hole behind, the hole before, and both.
  for (const std::size_t i : {2u, 1u, 5u, 6u, 4u, 3u}) EXPECT_TRUE(pages.release(handles[i]));
  const NativePages six = *pages.create(6 * page);
  EXPECT_EQ(file_bytes(), before);
  EXPECT_TRUE(pages.release(six));
  for (const std::size_t count : {1u, 2u, 3u}) handles.push_back(*pages.create(count * page));
  EXPECT_EQ(file_bytes(), before);
}

TEST_F(HostPagesTest, CountsMappedPagesUntilTheLastMappingGoes) {
  std::byte* range = reserve(2);
  const NativePages one = *pages.create(page);
  ASSERT_TRUE(pages.map(range, one));
  ASSERT_TRUE(pages.map(range + page, one));
  EXPECT_TRUE(pages.release(one));
  EXPECT_TRUE(pages.unmap(range, page));
  EXPECT_FALSE(pages.create(16 * page));
  EXPECT_TRUE(pages.unmap(range + page, page));
  const Result<NativePages> whole = pages.create(16 * page);
  ASSERT_TRUE(whole);
  EXPECT_TRUE(pages.release(*whole));
  EXPECT_TRUE(pages.unreserve(range, 2 * page));
}

TEST_F(HostPagesTest, ShowsOneMemoryThroughTwoMappings) {
  std::byte* range = reserve(2);
  const NativePages one = *pages.create(page);
  ASSERT_TRUE(pages.map(range, one));
  ASSERT_TRUE(pages.map(range + page, one));
  ASSERT_TRUE(pages.set_access(range, 2 * page, PageAccess::read_write));
  range[10] = std::byte{42};
  EXPECT_EQ(range[page + 10], std::byte{42});
  EXPECT_TRUE(pages.unmap(range, page));
  EXPECT_EQ(range[page + 10], std::byte{42});
  EXPECT_TRUE(pages.unmap(range + page, page));
  EXPECT_TRUE(pages.release(one));
  EXPECT_TRUE(pages.unreserve(range, 2 * page));
}

TEST_F(HostPagesTest, KnowsNeighbouringReservationsApart) {
  std::byte* a = reserve(1);
  std::byte* b = reserve(1);
  const NativePages two = *pages.create(2 * page);
  EXPECT_FALSE(pages.map(std::min(a, b), two));  // even where they touch
  EXPECT_FALSE(pages.unreserve(a + page, page) && b != a + page);
  EXPECT_TRUE(pages.release(two));
}

TEST_F(HostPagesTest, LosesNothingWhenItsBooksCannotGrow) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  std::byte* range = reserve(1);
  const NativePages one = *pages.create(page);
  bool is_refused = true;
  {
    const test::HeapExhausted exhausted;
    is_refused = !pages.reserve(page) && !pages.create(page) && !pages.map(range, one);
  }
  EXPECT_TRUE(is_refused);
  EXPECT_TRUE(pages.map(range, one));
  EXPECT_TRUE(pages.unmap(range, page));
  EXPECT_TRUE(pages.release(one));
  const NativePages whole = *pages.create(16 * page);
  EXPECT_TRUE(pages.release(whole));
}

TEST_F(HostPagesTest, IsUsedBySeveralThreads) {
  HostPages shared(64 * page);
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 50; ++k) {
        auto* range = static_cast<std::byte*>(*shared.reserve(2 * page));
        const NativePages handle = *shared.create(page);
        ASSERT_TRUE(shared.map(range + page, handle));
        ASSERT_TRUE(shared.set_access(range + page, page, PageAccess::read_write));
        range[page] = static_cast<std::byte>(i);
        PointerInfo info;
        ASSERT_TRUE(shared.find(range + page, info));
        ASSERT_EQ(range[page], static_cast<std::byte>(i));
        ASSERT_TRUE(shared.unmap(range + page, page));
        ASSERT_TRUE(shared.release(handle));
        ASSERT_TRUE(shared.unreserve(range, 2 * page));
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
}

TEST_F(HostPagesTest, SharesPagesThatAreFilesOfTheirOwn) {
  const std::size_t before = test::open_descriptors();
  std::byte* at = reserve(2);
  const NativePages mine = *pages.create_shareable(page);
  const int file = *pages.export_file(mine);
  const NativePages theirs = *pages.import_file(file, page);
  close(file);
  ASSERT_TRUE(pages.map(at, mine));
  ASSERT_TRUE(pages.map(at + page, theirs));
  ASSERT_TRUE(pages.set_access(at, 2 * page, PageAccess::read_write));
  at[100] = std::byte{42};
  EXPECT_EQ(at[page + 100], std::byte{42});
  // The first handle may go first.
  EXPECT_TRUE(pages.release(mine));
  EXPECT_TRUE(pages.unmap(at, page));
  EXPECT_EQ(at[page + 100], std::byte{42});
  EXPECT_TRUE(pages.unmap(at + page, page));
  EXPECT_TRUE(pages.release(theirs));
  EXPECT_TRUE(pages.unreserve(at, 2 * page));
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(HostPagesTest, CountsSharedPagesWhereTheyWereCreated) {
  const NativePages mine = *pages.create_shareable(10 * page);
  const int file = *pages.export_file(mine);
  const NativePages theirs = *pages.import_file(file, 10 * page);
  EXPECT_EQ(pages.create_shareable(7 * page).failure().code(), ErrorCode::out_of_memory);
  const NativePages rest = *pages.create(6 * page);
  EXPECT_TRUE(pages.release(rest));
  EXPECT_TRUE(pages.release(mine));
  const NativePages all = *pages.create(16 * page);
  EXPECT_TRUE(pages.release(all));
  EXPECT_TRUE(pages.release(theirs));
  const NativePages again = *pages.create(16 * page);
  EXPECT_EQ(pages.create(page).failure().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(pages.release(again));
  close(file);
}

TEST_F(HostPagesTest, ExportsOnlyShareablePages) {
  const NativePages plain = *pages.create(page);
  EXPECT_EQ(pages.export_file(plain).failure().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(pages.release(plain));
  EXPECT_EQ(pages.export_file(plain).failure().code(), ErrorCode::use_after_free);
  const NativePages shared = *pages.create_shareable(page);
  const int file = *pages.export_file(shared);
  EXPECT_EQ(pages.import_file(file, 2 * page).failure().code(), ErrorCode::bad_format);
  EXPECT_TRUE(pages.release(shared));
  EXPECT_EQ(pages.export_file(shared).failure().code(), ErrorCode::use_after_free);
  close(file);
}

TEST(HostPagesEnd, ClosesSharedPagesThatWereNotReleased) {
  const std::size_t before = test::open_descriptors();
  {
    HostPages pages(16 * page);
    ASSERT_TRUE(pages.create_shareable(page));
  }
  EXPECT_EQ(test::open_descriptors(), before);
}

}  // namespace
}  // namespace tern::host
