#include "backends/sim/page_table.hpp"

#include <gtest/gtest.h>

#include "backends/memory_file.hpp"
#include "support/open_descriptors.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"

namespace tern::sim {
namespace {

constexpr std::size_t page = PageTable::page_bytes;

struct PageTableTest : testing::Test {
  std::byte* reserve(std::size_t bytes) {
    return static_cast<std::byte*>(table.reserve(bytes).value());
  }
  std::unique_ptr<AliasMemory> memory = AliasMemory::try_make(8 * page, 8 * page, 1).value();
  RangeAllocator allocator{8 * page, Reuse::hostile};
  PageTable table{*memory, allocator, Reuse::hostile};
};

TEST_F(PageTableTest, AreReservedCreatedMappedAndGivenBack) {
  std::byte* at = reserve(2 * page);
  ASSERT_TRUE(table.create(2 * page, 7));
  EXPECT_EQ(table.bytes_of(7), 2 * page);
  EXPECT_EQ(allocator.free_bytes(), 6 * page);
  EXPECT_FALSE(table.try_map(at, 7).value());
  const auto mapping = table.mapping_at(*memory->offset_of(at) + page);
  ASSERT_TRUE(mapping);
  EXPECT_EQ(mapping->offset, *memory->offset_of(at));
  EXPECT_EQ(mapping->bytes, 2 * page);
  EXPECT_EQ(mapping->handle, 7u);
  EXPECT_FALSE(table.try_unreserve(at, 2 * page));
  table.release(7);
  EXPECT_FALSE(table.bytes_of(7));
  EXPECT_EQ(allocator.free_bytes(), 6 * page);  // still mapped
  ASSERT_TRUE(table.try_unmap(at, 2 * page));
  EXPECT_EQ(allocator.free_bytes(), 8 * page);
  EXPECT_FALSE(table.mapping_at(*memory->offset_of(at)));
  ASSERT_TRUE(table.try_unreserve(at, 2 * page));
  EXPECT_TRUE(table.is_empty());
  EXPECT_EQ(table.window().free_bytes(), 8 * page);
}

TEST_F(PageTableTest, BringTheirContentsWhenTheyMove) {
  std::byte* at = reserve(2 * page);
  ASSERT_TRUE(table.create(page, 7));
  EXPECT_FALSE(table.try_map(at, 7).value());
  ASSERT_TRUE(table.try_unmap(at, page));
  EXPECT_TRUE(table.try_map(at + page, 7).value());
}

TEST_F(PageTableTest, EndWithTheMemoryAndTheAddressesThereAre) {
  EXPECT_FALSE(table.reserve(9 * page));
  EXPECT_FALSE(table.create(9 * page, 7));
  EXPECT_TRUE(table.is_empty());
}

TEST_F(PageTableTest, RefuseWhatADriverWould) {
  std::byte* at = reserve(4 * page);
  ASSERT_TRUE(table.create(2 * page, 7));
  ASSERT_TRUE(table.create(page, 8));
  EXPECT_FALSE(table.try_map(at + 3 * page, 7));          // ends behind the reservation
  EXPECT_FALSE(table.try_map(memory->address_of(0), 7));  // is no window
  ASSERT_TRUE(table.try_map(at + page, 7));
  EXPECT_FALSE(table.try_map(at + 2 * page, 8));  // taken
  EXPECT_FALSE(table.try_map(at + page, 8));
  ASSERT_TRUE(table.try_map(at, 8));
  EXPECT_FALSE(table.try_unmap(at + page, page));  // a part
  EXPECT_FALSE(table.try_unmap(at, 3 * page));     // two at once
  EXPECT_FALSE(table.try_unmap(at + 2 * page, page));
  EXPECT_FALSE(table.try_unreserve(at, 2 * page));
  EXPECT_FALSE(table.try_unreserve(at + page, 3 * page));
  EXPECT_FALSE(table.check_mapping(&page, page));
}

TEST_F(PageTableTest, AreOpenToNobodyUntilItIsSaid) {
  std::byte* at = reserve(4 * page);
  const std::uint64_t offset = *memory->offset_of(at);
  ASSERT_TRUE(table.create(page, 7));
  ASSERT_TRUE(table.create(2 * page, 8));
  ASSERT_TRUE(table.try_map(at, 7));
  ASSERT_TRUE(table.try_map(at + page, 8));
  EXPECT_EQ(table.access_to(offset, 1), PageAccess::none);
  ASSERT_TRUE(table.try_set_access(at, 3 * page, PageAccess::read_write));
  EXPECT_EQ(table.access_to(offset, 3 * page), PageAccess::read_write);
  ASSERT_TRUE(table.try_set_access(at + page, 2 * page, PageAccess::read));
  EXPECT_EQ(table.access_to(offset, page), PageAccess::read_write);
  EXPECT_EQ(table.access_to(offset, page + 1), PageAccess::read);
  EXPECT_EQ(table.access_to(offset + 3 * page - 1, 1), PageAccess::read);
  EXPECT_FALSE(table.try_set_access(at, 2 * page, PageAccess::read));  // ends inside a mapping
  EXPECT_FALSE(table.try_set_access(at + 3 * page, page, PageAccess::read));
  EXPECT_FALSE(table.try_set_access(at, 4 * page, PageAccess::read));
  // A page that is mapped again is closed again.
  ASSERT_TRUE(table.try_unmap(at, page));
  ASSERT_TRUE(table.try_map(at, 7));
  EXPECT_EQ(table.access_to(offset, page), PageAccess::none);
}

TEST(SimPages, MappedMemoryIsNotUsedBeforeAccessIsGiven) {
  const Device device = sim::open({.policy = Policy::lazy});
  const Stream a(device, {.name = "A"});
  auto* at = static_cast<std::byte*>(device.try_reserve(page).value());
  const NativePages pages = device.try_create_pages(page).value();
  ASSERT_TRUE(device.try_map(at, pages));
  ASSERT_FALSE(a.try_fill(at, 64, std::byte{1}));
  EXPECT_EQ(code_text(sim::findings(device).front().code), "TERN-S302");
  EXPECT_EQ(sim::findings(device).front().what,
            "pages are written, but no access to them was granted after mapping");
  EXPECT_EQ(sim::findings(device).front().fix, "call set_access for the range after mapping it");
  ASSERT_TRUE(device.try_set_access(at, page, PageAccess::read));
  ASSERT_FALSE(a.try_fill(at, 64, std::byte{1}));
  EXPECT_EQ(sim::findings(device).back().what,
            "pages are written, but only read access was granted");
  ASSERT_TRUE(device.try_set_access(at, page, PageAccess::read_write));
  EXPECT_TRUE(a.try_fill(at, 64, std::byte{1}));
  device.synchronize();
}

TEST_F(PageTableTest, CanBeFilesThatOthersWrite) {
  const std::size_t before = test::open_descriptors();
  std::byte* at = reserve(2 * page);
  const int file = try_make_shareable_file("test", page).value();
  const int copy = try_duplicate(file).value();
  ASSERT_TRUE(table.add_file(file, page, 7, false));
  EXPECT_EQ(table.file_of(7), file);
  EXPECT_EQ(allocator.free_bytes(), 7 * page);
  // Imported pages take addresses and no memory.
  ASSERT_TRUE(table.add_file(copy, page, 8, true));
  EXPECT_EQ(allocator.free_bytes(), 7 * page);
  ASSERT_TRUE(table.create(page, 9));
  EXPECT_EQ(table.file_of(9), -1);
  // Their contents are known, even before they are written here.
  EXPECT_TRUE(table.try_map(at, 7).value());
  EXPECT_TRUE(table.try_map(at + page, 8).value());
  const std::uint64_t first = *memory->offset_of(at);
  memory->set_fresh(first, page, 1);
  memory->prepare(first, page);
  EXPECT_EQ(*memory->alias_of(first + 5), std::byte{0});  // no pattern
  *memory->alias_of(first + 5) = std::byte{42};
  EXPECT_EQ(*memory->alias_of(first + page + 5), std::byte{42});
  for (const std::uint64_t handle : {7u, 8u, 9u}) table.release(handle);
  ASSERT_TRUE(table.try_unmap(at, page));
  ASSERT_TRUE(table.try_unmap(at + page, page));
  ASSERT_TRUE(table.try_unreserve(at, 2 * page));
  EXPECT_EQ(allocator.free_bytes(), 8 * page);
  EXPECT_TRUE(table.is_empty());
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(PageTableTest, TakesNoFileThatIsLargerThanTheDevice) {
  const std::size_t before = test::open_descriptors();
  EXPECT_FALSE(table.add_file(try_make_shareable_file("test", page).value(), 9 * page, 7, false));
  EXPECT_TRUE(table.is_empty());
  EXPECT_EQ(test::open_descriptors(), before);
}

}  // namespace
}  // namespace tern::sim
