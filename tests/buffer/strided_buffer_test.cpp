#include "tern/buffer/strided_buffer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using Strides = std::vector<std::int64_t>;

class StridedTest : public test::OnDevice {
 protected:
  /// 0, 1, 2, ...
  Buffer count_up(std::size_t count) {
    std::vector<std::int32_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    Buffer buffer(device, Shape{count}, DType::i32);
    buffer.copy_from(std::span<const std::int32_t>(values));
    return buffer;
  }
  std::vector<std::int32_t> elements(const StridedBuffer& strided) {
    return strided.contiguous(stream).to_vector<std::int32_t>();
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, StridedTest,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "opencl:0", "cuda:0"),
                         test::spec_name);

TEST_P(StridedTest, SupportsAnyRankOffsetAndStride) {
  const Buffer buffer = count_up(60);
  // Every second row of three, every third column, from element 7 on.
  const StridedBuffer strided =
      StridedBuffer::over(buffer, 7 * 4, DType::i32, {2, 3, 2}, Strides{24, 6, 3});
  EXPECT_FALSE(strided.is_contiguous());
  EXPECT_EQ(strided.element_count(), 12u);
  EXPECT_EQ(strided.hull().offset_bytes(), 28u);
  EXPECT_EQ(strided.hull().size_bytes(), (24u + 12 + 3 + 1) * 4);
  EXPECT_EQ(elements(strided),
            (std::vector<std::int32_t>{7, 10, 13, 16, 19, 22, 31, 34, 37, 40, 43, 46}));
}

TEST_P(StridedTest, Transposes) {
  const StridedBuffer strided =
      StridedBuffer::over(count_up(6), 0, DType::i32, {3, 2}, Strides{1, 3});
  EXPECT_EQ(elements(strided), (std::vector<std::int32_t>{0, 3, 1, 4, 2, 5}));
}

TEST_P(StridedTest, SupportsNegativeStrides) {
  const StridedBuffer strided =
      StridedBuffer::over(count_up(6), 5 * 4, DType::i32, {2, 3}, Strides{-3, -1});
  EXPECT_EQ(strided.origin_bytes(), 20u);
  EXPECT_EQ(elements(strided), (std::vector<std::int32_t>{5, 4, 3, 2, 1, 0}));
}

TEST_P(StridedTest, SupportsZeroStrides) {
  const StridedBuffer strided =
      StridedBuffer::over(count_up(3), 0, DType::i32, {2, 3, 2}, Strides{0, 1, 0});
  EXPECT_EQ(strided.hull().size_bytes(), 12u);
  EXPECT_EQ(elements(strided), (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST_P(StridedTest, ContiguousReturnsTheSameMemoryIfItIsContiguous) {
  const Buffer buffer = count_up(24);
  // The stride of a dimension of one element says nothing.
  const StridedBuffer strided =
      StridedBuffer::over(buffer, 4 * 4, DType::i32, {2, 1, 3}, Strides{3, 999, 1});
  EXPECT_TRUE(strided.is_contiguous());
  const Buffer same = strided.contiguous(stream);
  EXPECT_EQ(same.id(), buffer.id());
  EXPECT_EQ(same.offset_bytes(), 16u);
  EXPECT_EQ(same.shape(), (Shape{2, 1, 3}));
  EXPECT_EQ(strided.buffer(), same);
}

TEST_P(StridedTest, ErrorsNameTheCallThatHelps) {
  const StridedBuffer strided =
      StridedBuffer::over(count_up(6), 0, DType::i32, {3, 2}, Strides{1, 3});
  const Result<Buffer> refused = strided.try_buffer();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::unsupported);
  EXPECT_NE(refused.failure().text().find("contiguous(stream)"), std::string::npos);
}

TEST_P(StridedTest, AgreesWithAnOracleForManyShapes) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const Buffer buffer = count_up(400);
  for (int round = 0; round < 60; ++round) {
    const std::size_t rank = below(5);
    std::vector<std::size_t> extents;
    Strides strides;
    for (std::size_t i = 0; i < rank; ++i) {
      extents.push_back(1 + below(4));
      strides.push_back(static_cast<std::int64_t>(below(21)) - 10);
    }
    const Shape shape{std::span<const std::size_t>(extents)};
    std::vector<std::int32_t> expected;
    for (std::size_t flat = 0; flat < shape.element_count(); ++flat) {
      std::int64_t at = 200;
      std::size_t rest = flat;
      for (std::size_t i = rank; i-- > 0; rest /= extents[i]) {
        at += strides[i] * static_cast<std::int64_t>(rest % extents[i]);
      }
      expected.push_back(static_cast<std::int32_t>(at));
    }
    const StridedBuffer strided = StridedBuffer::over(buffer, 200 * 4, DType::i32, shape, strides);
    ASSERT_EQ(elements(strided), expected) << shape.text() << " round " << round;
  }
}

TEST_P(StridedTest, ABufferConvertsWithDenseStrides) {
  const Buffer buffer = count_up(24).reshape({2, 3, 4});
  const StridedBuffer strided(buffer);
  EXPECT_EQ(Strides(strided.strides().begin(), strided.strides().end()), (Strides{12, 4, 1}));
  EXPECT_TRUE(strided.is_contiguous());
  EXPECT_EQ(strided.buffer(), buffer);
  EXPECT_FALSE(StridedBuffer());
  EXPECT_FALSE(StridedBuffer().buffer());
}

TEST_P(StridedTest, ZeroElementsAreLegal) {
  const Buffer buffer(device, Shape{8}, DType::f32);
  const StridedBuffer none =
      StridedBuffer::over(buffer, 4, DType::f32, {3, 0}, Strides{1'000'000, -7});
  EXPECT_EQ(none.element_count(), 0u);
  EXPECT_EQ(none.contiguous(stream).shape(), (Shape{3, 0}));
  EXPECT_FALSE(buffer.is_allocated());
  const StridedBuffer one = StridedBuffer::over(buffer, 28, DType::f32, {}, {});
  EXPECT_EQ(one.element_count(), 1u);
  EXPECT_TRUE(one.is_contiguous());
}

TEST_P(StridedTest, NeedOneStridePerDimension) {
  constexpr std::size_t large = std::size_t{1} << 40;
  const Buffer empty(device, Shape{large, large, large, 0}, DType::f32);
  EXPECT_EQ(StridedBuffer(empty).strides().size(), 4u);
  const Buffer flat(device, Shape{0, 3}, DType::f32);
  EXPECT_EQ(StridedBuffer(flat).strides()[0], 3);
}

TEST_P(StridedTest, TakeOverTheReferenceOfAMovedBuffer) {
  Buffer buffer(device, Shape{8}, DType::f32);
  const StorageHandle storage = buffer.storage();
  EXPECT_FALSE(StridedBuffer::try_over(std::move(buffer), 4, DType::f32, {8}, Strides{1}));
  EXPECT_EQ(buffer.size_bytes(), 32u) << "refused, it is what it was";
  const StridedBuffer made =
      StridedBuffer::try_over(std::move(buffer), 4, DType::f32, {3}, Strides{2}).value();
  EXPECT_EQ(storage->shares(), 2u);
  EXPECT_EQ(made.hull().offset_bytes(), 4u);
  EXPECT_EQ(made.hull().size_bytes(), 20u);
  EXPECT_EQ(made.hull().shape(), (Shape{20}));
}

TEST_P(StridedTest, AMovedFromObjectIsEmpty) {
  StridedBuffer strided = StridedBuffer::over(count_up(8), 0, DType::i32, {4}, Strides{2});
  const StridedBuffer taken = std::move(strided);
  EXPECT_FALSE(strided);
  EXPECT_FALSE(strided.contiguous(stream));
  EXPECT_FALSE(strided.try_buffer().value());
  EXPECT_EQ(elements(taken), (std::vector<std::int32_t>{0, 2, 4, 6}));
}

TEST_P(StridedTest, RejectsElementsOutsideItsBuffer) {
  const Buffer buffer(device, Shape{100}, DType::byte);
  const auto code = [&](std::size_t offset, Shape shape, const Strides& strides,
                        DType dtype = DType::i32) {
    const Result<StridedBuffer> made =
        StridedBuffer::try_over(buffer, offset, dtype, std::move(shape), strides);
    return made ? std::string("made") : std::string(name(made.failure().code()));
  };
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                         least = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(code(0, {25}, {1}), "made");
  EXPECT_EQ(code(0, {26}, {1}), "invalid_view");
  EXPECT_EQ(code(4, {25}, {1}), "invalid_view");
  EXPECT_EQ(code(96, {25}, {-1}), "made");
  EXPECT_EQ(code(92, {25}, {-1}), "invalid_view");
  EXPECT_EQ(code(100, {1}, {1}), "invalid_view");
  EXPECT_EQ(code(std::numeric_limits<std::size_t>::max() - 3, {2}, {1}), "invalid_view");
  EXPECT_EQ(code(0, {3}, {most}), "size_overflow");
  EXPECT_EQ(code(0, {2}, {least}), "size_overflow");
  EXPECT_EQ(code(0, {2, 2}, {most / 4, most / 4}), "invalid_view");
  EXPECT_EQ(code(0, {std::size_t{1} << 40, std::size_t{1} << 40}, {0, 0}), "size_overflow");
  EXPECT_EQ(code(2, {2}, {1}), "misaligned");
  EXPECT_EQ(code(0, {2, 2}, {1}), "shape_mismatch");
  EXPECT_EQ(code(0, {2}, {1}, DType::void_), "invalid_argument");
  EXPECT_FALSE(buffer.is_allocated());
}

TEST(StridedBufferOnSim, LeaksNothingWhicheverCallFails) {
  const Device device = sim::open({});
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
  const Stream stream(device);
  Buffer buffer(device, Shape{64}, DType::i32, {.resource = pool});
  buffer.fill(std::int32_t{3}, stream);
  stream.synchronize();
  const StridedBuffer strided =
      StridedBuffer::over(buffer, 0, DType::i32, {4, 4, 4}, Strides{1, 4, 16});
  const std::size_t before = pool->statistics().live_bytes;
  for (std::uint64_t fault = 1; fault <= 4; ++fault) {
    sim::set_faults(device, "copy#" + std::to_string(fault) + "=fail");
    const Result<Buffer> refused = strided.try_contiguous(stream);
    EXPECT_FALSE(refused) << fault;
    stream.synchronize();
    EXPECT_EQ(pool->statistics().live_bytes, before);
  }
  sim::set_faults(device, "");
  EXPECT_EQ(strided.contiguous(stream).to_vector<std::int32_t>(), std::vector<std::int32_t>(64, 3));
  EXPECT_TRUE(sim::findings(device).empty());
}

}  // namespace
}  // namespace tern
