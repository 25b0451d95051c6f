#include "coherence/spilled_copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "coherence/host_heap.hpp"
#include "tern/backends/catalog.hpp"

namespace tern::test {
namespace {

constexpr CallSite spill_site{"file.cpp", "f", 1};

class SpilledCopyTest : public testing::Test {
 protected:
  StorageHandle make_storage(int value) const {
    StorageHandle storage =
        Storage::try_make(device, 100, MemoryKind::host, std::make_unique<HostHeap>(100),
                          {.contents = Contents::unspecified, .checked = false, .site = spill_site})
            .value();
    EXPECT_TRUE(storage->try_ensure({}, spill_site));
    std::memset(host_bytes(*storage), value, 100);
    return storage;
  }

  const Device device = open_device("sim");
  const SpillHandle file =
      SpillFile::open({.directory = testing::TempDir(), .limit_bytes = 1024 * 1024});
  const std::vector<ByteRange> ranges{{0, 10}, {50, 60}};
};

TEST_F(SpilledCopyTest, ReadsBackWhatItWrote) {
  const Result<SpilledCopy> copy =
      SpilledCopy::try_write(*file, *make_storage(7), ranges, spill_site);
  ASSERT_TRUE(copy);
  EXPECT_FALSE(copy->empty());
  const StorageHandle to = make_storage(1);
  ASSERT_TRUE(copy->try_read(*to, Tag(), spill_site));
  EXPECT_EQ(host_bytes(*to)[9], std::byte{7});
  EXPECT_EQ(host_bytes(*to)[10], std::byte{1});
  EXPECT_EQ(host_bytes(*to)[50], std::byte{7});
  const Transfer moved =
      copy->transfer(TransferReason::spill, Place::host(), Place::file(), spill_site);
  EXPECT_EQ(moved.bytes, 20u);
  EXPECT_EQ(moved.runs, 2u);
  EXPECT_EQ(moved.end, 60u);
}

TEST_F(SpilledCopyTest, OwnsItsDiskSpace) {
  {
    Result<SpilledCopy> copy = SpilledCopy::try_write(*file, *make_storage(7), ranges, spill_site);
    ASSERT_TRUE(copy);
    SpilledCopy moved = *std::move(copy);
    EXPECT_TRUE(copy->empty());
    EXPECT_EQ(file->statistics().used_bytes, 2 * SpillFile::block_bytes);
    moved.release();
    EXPECT_EQ(file->statistics().used_bytes, 0u);
    EXPECT_TRUE(SpilledCopy::try_write(*file, *make_storage(7), ranges, spill_site));
  }
  EXPECT_EQ(file->statistics().used_bytes, 0u);
}

TEST_F(SpilledCopyTest, AFailedWriteKeepsNoDiskSpace) {
  const SpillHandle small =
      SpillFile::open({.directory = testing::TempDir(), .limit_bytes = SpillFile::block_bytes});
  const Result<SpilledCopy> copy =
      SpilledCopy::try_write(*small, *make_storage(7), ranges, spill_site);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(small->statistics().used_bytes, 0u);
}

}  // namespace
}  // namespace tern::test
