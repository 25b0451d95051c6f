#include "language/access_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace tern::language {
namespace {

class AccessTableTest : public testing::Test {
 protected:
  static constexpr AccessTable::Range range(const std::byte* address, std::uint64_t elements,
                                            std::uint32_t element_bytes) {
    return {.address = address,
            .elements = elements,
            .element_bytes = element_bytes,
            .is_read = true,
            .is_written = true,
            .is_atomic = true};
  }
  /// Whether the access conflicts with an earlier one at this place; 0: with none.
  static std::uint32_t place(AccessStamp found) { return AccessTable::place_of(found); }

  std::array<std::byte, 64> memory{};
  const std::array<AccessTable::Range, 1> whole{range(memory.data(), 16, 4)};
  AccessTable table{whole};
  const AccessTable::Stamps stamps = table.stamps(0);
};

TEST_F(AccessTableTest, OrdersThePhasesOfABlockAndNotItsThreads) {
  table.begin_block();
  table.begin_thread(1);
  EXPECT_EQ(table.write(stamps, 3, 10), 0u);
  EXPECT_EQ(table.read(stamps, 3, 11), 0u);
  table.begin_thread(2);
  EXPECT_EQ(place(table.read(stamps, 3, 12)), 10u);
  EXPECT_EQ(table.read(stamps, 4, 12), 0u);
  table.begin_phase();
  table.begin_thread(3);
  EXPECT_EQ(table.read(stamps, 3, 13), 0u);
  EXPECT_EQ(table.write(stamps, 3, 14), 0u);
}

TEST_F(AccessTableTest, KeepsTheFirstReaderOfAPhase) {
  table.begin_block();
  table.begin_thread(1);
  EXPECT_EQ(table.read(stamps, 0, 10), 0u);
  table.begin_thread(2);
  EXPECT_EQ(table.read(stamps, 0, 11), 0u);
  EXPECT_EQ(place(table.write(stamps, 0, 12)), 10u);
}

TEST_F(AccessTableTest, KeepsTheReaderOfAnOlderBlock) {
  table.begin_block();
  table.begin_thread(1);
  EXPECT_EQ(table.read(stamps, 0, 10), 0u);
  EXPECT_EQ(table.atomic(stamps, 1, 11), 0u);
  table.begin_block();
  table.begin_thread(1);
  EXPECT_EQ(table.read(stamps, 0, 12), 0u);
  EXPECT_EQ(table.atomic(stamps, 1, 13), 0u);
  const AccessStamp read = table.write(stamps, 0, 14);
  EXPECT_EQ(place(read), 10u);
  EXPECT_FALSE(table.is_of_this_block(read));
  EXPECT_EQ(place(table.read(stamps, 1, 15)), 11u);
}

TEST_F(AccessTableTest, LetsAtomicAccessesMeet) {
  table.begin_block();
  table.begin_thread(1);
  EXPECT_EQ(table.atomic(stamps, 0, 10), 0u);
  table.begin_thread(2);
  EXPECT_EQ(table.atomic(stamps, 0, 11), 0u);
  EXPECT_EQ(place(table.read(stamps, 0, 12)), 10u);
  EXPECT_EQ(place(table.write(stamps, 0, 13)), 10u);
  table.begin_thread(3);
  EXPECT_EQ(place(table.atomic(stamps, 0, 14)), 13u);
}

TEST_F(AccessTableTest, CodeOfTheWholeBlockConflictsWithEveryThreadOfItsPhase) {
  table.begin_block();
  table.begin_thread(AccessTable::whole_block);
  EXPECT_EQ(table.read(stamps, 0, 10), 0u);
  table.begin_thread(0);
  const AccessStamp found = table.write(stamps, 0, 11);
  EXPECT_EQ(AccessTable::thread_of(found), AccessTable::whole_block);
}

TEST_F(AccessTableTest, ForgetsSharedElementsOfOlderBlocks) {
  const AccessTable::Stamps shared = table.shared_stamps(4);
  table.begin_block();
  table.begin_thread(1);
  EXPECT_FALSE(table.is_written(shared, 2));
  EXPECT_EQ(table.write(shared, 2, 10), 0u);
  EXPECT_EQ(table.atomic(shared, 3, 10), 0u);
  table.begin_phase();
  EXPECT_TRUE(table.is_written(shared, 2));
  EXPECT_TRUE(table.is_written(shared, 3));
  table.begin_block();
  table.begin_thread(2);
  EXPECT_FALSE(table.is_written(shared, 2));
  EXPECT_FALSE(table.is_written(shared, 3));
  EXPECT_EQ(table.read(shared, 2, 11), 0u);
}

TEST_F(AccessTableTest, RemembersGlobalElementsOfAllBlocks) {
  table.begin_block();
  EXPECT_EQ(table.write(stamps, 2, 10), 0u);
  table.begin_block();
  EXPECT_TRUE(table.is_written(stamps, 2));
  EXPECT_FALSE(table.is_written(stamps, 3));
}

TEST_F(AccessTableTest, FindsOverlapsOfElementsOfDifferentSizes) {
  // Bytes 6..9, and an element of 8 bytes at byte 8: a cell has 2 bytes.
  const std::array ranges{range(memory.data() + 8, 4, 8), range(memory.data() + 6, 2, 2)};
  AccessTable mixed(ranges);
  EXPECT_EQ(mixed.stamps(0).per_element, 4u);
  EXPECT_EQ(mixed.stamps(1).per_element, 1u);
  mixed.begin_block();
  mixed.begin_thread(1);
  EXPECT_EQ(mixed.write(mixed.stamps(1), 0, 10), 0u);
  EXPECT_EQ(mixed.write(mixed.stamps(1), 1, 11), 0u);
  EXPECT_FALSE(mixed.is_written(mixed.stamps(0), 0));
  mixed.begin_thread(2);
  EXPECT_EQ(place(mixed.read(mixed.stamps(0), 0, 12)), 11u);
  EXPECT_EQ(mixed.read(mixed.stamps(0), 1, 12), 0u);
}

TEST_F(AccessTableTest, KeepsNoStampsForMemoryThatIsOnlyRead) {
  AccessTable::Range input = range(memory.data(), 4, 4);
  input.is_written = input.is_atomic = false;
  const AccessTable::Range output = range(memory.data() + 16, 4, 4);
  const std::array apart{input, output};
  const AccessTable separate(apart);
  EXPECT_EQ(separate.stamps(0).write, nullptr);
  EXPECT_NE(separate.stamps(1).write, nullptr);

  const AccessTable::Range before = range(memory.data() + 12, 4, 4);
  const std::array touching{input, before};
  const AccessTable common(touching);
  EXPECT_EQ(common.stamps(0).write + 3, common.stamps(1).write);
}

}  // namespace
}  // namespace tern::language
