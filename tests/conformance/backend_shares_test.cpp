// Pages that are exported and imported through a descriptor.

#include <fcntl.h>
#include <unistd.h>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class SharesPages : public Ladder {
 protected:
  void SetUp() override {
    if (can(Capability::shareable_memory)) return;
    const auto refused = [&](const auto& result) {
      expect_unsupported(result, Capability::shareable_memory, device);
    };
    refused(device.try_create_shareable_pages(2 * mib));
    refused(device.try_export_pages({1}));
    refused(device.try_import_pages(0, 2 * mib));
    GTEST_SKIP() << "cannot share memory";
  }

  /// Maps the pages at new addresses.
  std::byte* map(NativePages pages, std::size_t count) {
    auto* at = static_cast<std::byte*>(device.try_reserve(count * page).value());
    device.try_map(at, pages).value();
    device.try_set_access(at, count * page, PageAccess::read_write).value();
    return at;
  }
  void unmap(std::byte* at, std::size_t count) {
    EXPECT_TRUE(device.try_unmap(at, count * page));
    EXPECT_TRUE(device.try_unreserve(at, count * page));
  }

  const std::size_t page = device.info().page_bytes;
};
TERN_CLIMB(SharesPages);

TEST_P(SharesPages, WhoseBytesAreThoseOfEveryImport) {
  const NativePages mine = device.try_create_shareable_pages(2 * page).value();
  const int descriptor = device.try_export_pages(mine).value();
  const NativePages theirs = device.try_import_pages(descriptor, 2 * page).value();
  std::byte* a = map(mine, 2);
  std::byte* b = map(theirs, 2);
  write(a + page - 50, sample(100));
  EXPECT_EQ(read(b + page - 50, 100), sample(100));
  write(b + page - 50, sample(100, 2));
  EXPECT_EQ(read(a + page - 50, 100), sample(100, 2));
  EXPECT_EQ(device.pointer_info(b + page).kind, MemoryKind::mapped);
  EXPECT_EQ(device.pointer_info(b + page).base, b);

  unmap(a, 2);
  EXPECT_TRUE(device.try_release_pages(mine));
  EXPECT_EQ(read(b + page - 50, 100), sample(100, 2));
  unmap(b, 2);
  EXPECT_TRUE(device.try_release_pages(theirs));
  close(descriptor);
}

TEST_P(SharesPages, ThatADescriptorKeepsAlive) {
  const NativePages mine = device.try_create_shareable_pages(page).value();
  const int descriptor = device.try_export_pages(mine).value();
  std::byte* at = map(mine, 1);
  write(at, sample(100));
  unmap(at, 1);
  EXPECT_TRUE(device.try_release_pages(mine));
  const NativePages again = device.try_import_pages(descriptor, page).value();
  close(descriptor);
  at = map(again, 1);
  EXPECT_EQ(read(at, 100), sample(100));
  unmap(at, 1);
  EXPECT_TRUE(device.try_release_pages(again));
}

TEST_P(SharesPages, ThroughDescriptorsThatAreClosedOnExec) {
  const NativePages mine = device.try_create_shareable_pages(page).value();
  const int a = device.try_export_pages(mine).value();
  const int b = device.try_export_pages(mine).value();
  EXPECT_NE(a, b);
  EXPECT_NE(fcntl(a, F_GETFD) & FD_CLOEXEC, 0);
  close(a);
  close(b);
  EXPECT_TRUE(device.try_release_pages(mine));
  expect_refused(device.try_export_pages(mine), ErrorCode::use_after_free);
}

TEST_P(SharesPages, ButNoOthers) {
  const NativePages plain = device.try_create_pages(page).value();
  expect_refused(device.try_export_pages(plain), ErrorCode::invalid_argument);
  EXPECT_TRUE(device.try_release_pages(plain));
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(device.try_import_pages(ends[0], page));
  close(ends[0]);
  close(ends[1]);
  EXPECT_FALSE(device.try_import_pages(1 << 20, page));
}

TEST_P(SharesPages, OfTheSizeWithWhichTheyWereMade) {
  const NativePages mine = device.try_create_shareable_pages(page).value();
  const int descriptor = device.try_export_pages(mine).value();
  // CUDA learns of the wrong size when the pages are mapped.
  if (const Result<NativePages> wrong = device.try_import_pages(descriptor, 2 * page)) {
    void* at = device.try_reserve(2 * page).value();
    EXPECT_FALSE(device.try_map(at, *wrong));
    EXPECT_TRUE(device.try_unreserve(at, 2 * page));
    EXPECT_TRUE(device.try_release_pages(*wrong));
  }
  close(descriptor);
  EXPECT_TRUE(device.try_release_pages(mine));
}

}  // namespace
}  // namespace tern::test
