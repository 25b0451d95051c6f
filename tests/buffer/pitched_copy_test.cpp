#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "support/copy_places.hpp"
#include "support/ladder.hpp"
#include "tern/buffer/copy.hpp"

namespace tern::test {
namespace {

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

/// 5 bytes, 3 rows, 2 slices; rows are 8 apart there and 7 here, slices 30 and 25.
struct Cube {
  Pitch to = {2, 8, 30};
  Pitch from = {1, 7, 25};
  Extent extent = {5, 3, 2};
  static constexpr std::size_t to_bytes = 2 + 30 + 2 * 8 + 5, from_bytes = 1 + 25 + 2 * 7 + 5;
};

class Pitched : public Ladder {
 protected:
  void TearDown() override {
    Ladder::TearDown();
    expect_no_findings(device);
  }
};
TERN_CLIMB(Pitched);

TEST_P(Pitched, CopiesRowsAndLeavesTheGapsUnchanged) {
  const Cube cube;
  const Bytes in = counted(Cube::from_bytes);
  for (const CopyPlace& place : places_of(device, "")) {
    const Buffer from = place.holding(in);
    const Buffer to = place.holding(Bytes(Cube::to_bytes, std::byte{0xA5}));
    Bytes expected(Cube::to_bytes, std::byte{0xA5});
    for (std::size_t z = 0; z < 2; ++z) {
      for (std::size_t y = 0; y < 3; ++y) {
        for (std::size_t x = 0; x < 5; ++x) {
          expected[2 + z * 30 + y * 8 + x] = in[1 + z * 25 + y * 7 + x];
        }
      }
    }
    copy_pitched(to, cube.to, from, cube.from, cube.extent, stream);
    EXPECT_TRUE(bytes_of(to) == expected) << place.name;
  }
}

class PitchedRules : public testing::Test {
 protected:
  Device device = sim::open({});
  Stream stream{device};
  Buffer to{device, {Cube::to_bytes}, DType::byte};
  Buffer from = CopyPlace{"", device, MemoryKind::device}.holding(counted(Cube::from_bytes));
};

TEST_F(PitchedRules, NameEachBadParameter) {
  struct Row {
    std::function<void(Cube&)> spoil;
    ErrorCode code;
    const char* field;
    const char* name;
  };
  const Row rows[] = {
      {[](Cube& c) { c.to.row_bytes = 4; }, ErrorCode::invalid_argument, "name",
       "destination_pitch.row_bytes"},
      {[](Cube& c) { c.from.row_bytes = 4; }, ErrorCode::invalid_argument, "name",
       "source_pitch.row_bytes"},
      {[](Cube& c) { c.to.slice_bytes = 20; }, ErrorCode::invalid_argument, "name",
       "destination_pitch.slice_bytes"},
      {[](Cube& c) { c.from.slice_bytes = 18; }, ErrorCode::invalid_argument, "name",
       "source_pitch.slice_bytes"},
      {[](Cube& c) { c.to.offset_bytes = 3; }, ErrorCode::invalid_view, "name", "destination"},
      {[](Cube& c) { c.from.offset_bytes = 2; }, ErrorCode::invalid_view, "name", "source"},
      {[](Cube& c) { c.to.offset_bytes = most; }, ErrorCode::invalid_view, "name", "destination"},
      {[](Cube& c) { c.extent.width_bytes = 6; }, ErrorCode::invalid_view, "name", "destination"},
      {[](Cube& c) { c.to.row_bytes = most; }, ErrorCode::size_overflow, "what", "destination"},
      {[](Cube& c) { c.from.slice_bytes = most; }, ErrorCode::size_overflow, "what", "source"},
  };
  for (const Row& row : rows) {
    Cube cube;
    row.spoil(cube);
    const Result<Mark> result = try_copy_pitched(to, cube.to, from, cube.from, cube.extent, stream);
    ASSERT_FALSE(result);
    EXPECT_EQ(name(result.failure().code()), name(row.code)) << result.failure().text();
    EXPECT_EQ(result.failure().string(row.field), row.name);
  }
  EXPECT_FALSE(to.is_allocated());
}

TEST_F(PitchedRules, IgnoreThePitchOfASingleRowOrSlice) {
  EXPECT_TRUE(try_copy_pitched(to, {}, from, {}, {5}, stream));
  EXPECT_TRUE(try_copy_pitched(to, {0, 5}, from, {0, 5}, {5, 2}, stream));
}

TEST_F(PitchedRules, RejectOverlappingRowsOfOneBuffer) {
  const Result<Mark> refused = try_copy_pitched(from, {0, 10}, from, {5, 10}, {5, 2}, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(try_copy_pitched(from, {0, 10}, from, {15, 10}, {5, 2}, stream));
}

TEST_F(PitchedRules, NeedOnlyTheRowsWrittenAndWriteOnlyRows) {
  const Cube cube;
  copy_pitched(to, cube.to, from, cube.from, cube.extent, stream);
  const Result<void> gap = to.storage()->check_written(0, Cube::to_bytes, {});
  ASSERT_FALSE(gap);
  EXPECT_EQ(gap.failure().number("end"), 2u);
  EXPECT_FALSE(to.storage()->check_written(2 + 5, 3, {}));
  EXPECT_FALSE(to.storage()->check_written(2 + 2 * 8 + 5, 30 - 2 * 8 - 5, {}));
  const Buffer packed(device, {30}, DType::byte);
  const Pitch tight = {0, 5, 15};
  EXPECT_TRUE(try_copy_pitched(packed, tight, to, cube.to, cube.extent, stream));
  EXPECT_TRUE(packed.storage()->check_written(0, 30, {}));
  EXPECT_EQ(try_copy_pitched(packed, tight, to, {1, 8, 30}, cube.extent, stream).failure().code(),
            ErrorCode::never_written);
  device.synchronize();
  expect_no_findings(device);
}

TEST_F(PitchedRules, MakeNoCallForZeroBytes) {
  sim::set_faults(device, "");
  for (const Extent& extent : {Extent{0, 3, 2}, Extent{5, 0, 2}, Extent{5, 3, 0}}) {
    EXPECT_TRUE(try_copy_pitched(to, {}, from, {}, extent, stream));
  }
  EXPECT_EQ(sim::calls(device, "copy"), 0u);
  EXPECT_FALSE(to.is_allocated());
}

}  // namespace
}  // namespace tern::test
