#include "coherence/copy_allocator.hpp"

#include <gtest/gtest.h>

#include "tern/backends/catalog.hpp"

namespace tern::test {
namespace {

constexpr CallSite site{"file.cpp", "f", 1};

TEST(CopyAllocator, TheHostDeviceSharesTheHostCopyAndASimulatedDeviceDoesNot) {
  const UnifiedOptions options{.device = open_device("sim")};
  const CopyAllocator allocator(options);
  EXPECT_FALSE(allocator.shares_host_copy(options.device));
  EXPECT_TRUE(allocator.shares_host_copy(open_device("host")));
}

TEST(CopyAllocator, AllocatesCopiesOnTheHostAndOnADevice) {
  const UnifiedOptions options{.device = open_device("sim"), .pinned = Pinned::never};
  const CopyAllocator allocator(options);
  ResourceHandle asked;
  const Result<StorageHandle> on_host = allocator.try_host_copy(100, {}, asked, site);
  ASSERT_TRUE(on_host);
  EXPECT_EQ((*on_host)->kind(), MemoryKind::host);
  EXPECT_FALSE(asked);  // from the heap
  const Result<StorageHandle> on_device =
      allocator.try_device_copy(options.device, 100, {}, asked, site);
  ASSERT_TRUE(on_device);
  EXPECT_EQ((*on_device)->kind(), MemoryKind::device);
  EXPECT_EQ(asked, *allocator.try_device_resource(options.device));
}

TEST(CopyAllocator, PageLocksLargeHostCopiesIfPreferred) {
  const UnifiedOptions options{.device = open_device("sim"), .pinned = Pinned::prefer};
  const CopyAllocator allocator(options);
  ResourceHandle asked;
  EXPECT_EQ((*allocator.try_host_copy(CopyAllocator::min_pinned_bytes, {}, asked, site))->kind(),
            MemoryKind::pinned);
  EXPECT_EQ(
      (*allocator.try_host_copy(CopyAllocator::min_pinned_bytes - 1, {}, asked, site))->kind(),
      MemoryKind::host);
}

}  // namespace
}  // namespace tern::test
