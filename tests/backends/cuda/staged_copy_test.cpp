#include "backends/cuda/staged_copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/fake_driver_bench.hpp"

namespace tern::cuda {
namespace {

struct Shape {
  std::size_t width, height, host_pitch, device_pitch;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {1, 1, 1, 1},    {63, 1, 63, 63}, {64, 1, 64, 64},    {65, 1, 65, 65},    {1000, 1, 0, 0},
      {10, 7, 10, 10}, {10, 7, 13, 10}, {10, 7, 10, 16},    {10, 40, 12, 16},   {1, 100, 3, 2},
      {64, 3, 64, 80}, {65, 3, 70, 80}, {200, 3, 201, 256}, {100, 10, 100, 100}};
  return all;
}

std::string text(const Shape& shape) {
  return std::to_string(shape.width) + " x " + std::to_string(shape.height) + ", pitches " +
         std::to_string(shape.host_pitch) + " and " + std::to_string(shape.device_pitch);
}

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
  return made;
}

constexpr std::size_t chunk_bytes = 64;

struct Staged : sim::FakeDriverBench {
  Staged() {
    void* memory = nullptr;
    EXPECT_EQ(cu.cuMemHostAlloc(&memory, chunk_bytes + 1, 0), CUDA_SUCCESS);
    slot = static_cast<std::byte*>(memory);
    EXPECT_EQ(cu.cuMemHostAlloc(&memory, image_bytes, 0), CUDA_SUCCESS);
    image = static_cast<std::byte*>(memory);
    slot[chunk_bytes] = guard;
  }
  ~Staged() {
    EXPECT_EQ(cu.cuMemFreeHost(slot), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeHost(image), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(device), CUDA_SUCCESS);
    EXPECT_EQ(found(), "");
  }
  /// Between all of the device's memory and the image.
  void load() { copy(device, reinterpret_cast<std::uintptr_t>(image)); }
  void store() { copy(reinterpret_cast<std::uintptr_t>(image), device); }
  void copy(CUdeviceptr to, CUdeviceptr from) {
    EXPECT_EQ(cu.cuMemcpyAsync(to, from, image_bytes, user), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(user), CUDA_SUCCESS);
  }

  static constexpr std::size_t image_bytes = 4096;
  static constexpr std::byte guard{0x5a};
  CUstream user = stream();
  CUdeviceptr device = memory(image_bytes);
  std::byte* slot = nullptr;
  std::byte* image = nullptr;
};

TEST(StagedCopy, MovesExactlyTheBytesOfItsRowsWhicheverWay) {
  Staged staged;
  for (const Shape& shape : shapes()) {
    for (const std::size_t parts : {1u, 3u}) {
      SCOPED_TRACE(text(shape));
      const std::vector<std::byte> source = numbered(shape.host_pitch * shape.height + shape.width);
      std::memset(staged.image, 0xee, Staged::image_bytes);
      staged.load();

      StagedCopy copy = StagedCopy::to_device(staged.device + 3, source.data(), shape.width);
      copy.height = shape.height;
      copy.host_pitch_bytes = shape.host_pitch;
      copy.device_pitch_bytes = shape.device_pitch;
      const StagedChunks in(copy, chunk_bytes);
      for (std::size_t i = 0; i < in.count(); ++i) {
        for (std::size_t part = 0; part < parts; ++part) in.move(i, staged.slot, part, parts);
        ASSERT_FALSE(in.transfer(i, staged.slot, staged.cu, staged.user));
        ASSERT_EQ(staged.cu.cuStreamSynchronize(staged.user), CUDA_SUCCESS);
      }
      staged.store();
      std::vector<std::byte> expected(Staged::image_bytes, std::byte{0xee});
      for (std::size_t row = 0; row < shape.height; ++row) {
        std::memcpy(expected.data() + 3 + row * shape.device_pitch,
                    source.data() + row * shape.host_pitch, shape.width);
      }
      EXPECT_EQ(std::memcmp(staged.image, expected.data(), expected.size()), 0);

      std::vector<std::byte> destination(source.size(), std::byte{0x11});
      copy.direction = StagedDirection::to_host;
      copy.host = destination.data();
      const StagedChunks out(copy, chunk_bytes);
      for (std::size_t i = 0; i < out.count(); ++i) {
        ASSERT_FALSE(out.transfer(i, staged.slot, staged.cu, staged.user));
        ASSERT_EQ(staged.cu.cuStreamSynchronize(staged.user), CUDA_SUCCESS);
        for (std::size_t part = 0; part < parts; ++part) out.move(i, staged.slot, part, parts);
      }
      std::vector<std::byte> arrived(source.size(), std::byte{0x11});
      for (std::size_t row = 0; row < shape.height; ++row) {
        std::memcpy(arrived.data() + row * shape.host_pitch, source.data() + row * shape.host_pitch,
                    shape.width);
      }
      EXPECT_EQ(destination, arrived);
      EXPECT_EQ(staged.slot[chunk_bytes], Staged::guard) << "wrote behind its slot";
    }
  }
}

TEST(StagedCopy, CutsIntoAsFewChunksAsItsSlotAllows) {
  const auto count = [](const Shape& shape) {
    StagedCopy copy;
    copy.width_bytes = shape.width;
    copy.height = shape.height;
    copy.host_pitch_bytes = shape.host_pitch;
    copy.device_pitch_bytes = shape.device_pitch;
    return StagedChunks(copy, chunk_bytes).count();
  };
  EXPECT_EQ(count({0, 1, 0, 0}), 0u);
  EXPECT_EQ(count({10, 0, 10, 10}), 0u);
  EXPECT_EQ(count({64, 1, 0, 0}), 1u);
  EXPECT_EQ(count({65, 1, 0, 0}), 2u);
  EXPECT_EQ(count({10, 64, 10, 10}), 10u) << "no gaps: one row";
  EXPECT_EQ(count({10, 64, 11, 10}), 11u) << "six rows fit";
  EXPECT_EQ(count({65, 3, 70, 70}), 6u);
  const std::size_t far = std::size_t{1} << 31;
  EXPECT_EQ(count({10, 6, 10, far - 1}), 1u);
  EXPECT_EQ(count({10, 6, 10, far}), 6u) << "further apart than the driver takes";
}

TEST(StagedCopy, IsSharedOnlyWhereItPays) {
  const auto parts = [](std::size_t bytes) {
    return StagedChunks(StagedCopy::to_device(8, nullptr, bytes), 4 * mib).parts(0);
  };
  EXPECT_EQ(parts(1), 1u);
  EXPECT_EQ(parts(511 * kib), 1u);
  EXPECT_EQ(parts(512 * kib), 2u);
  EXPECT_EQ(parts(4 * mib), 16u);
}

TEST(StagedCopy, SaysWhichCallFailed) {
  Staged staged;
  const std::vector<std::byte> source = numbered(100);
  const StagedChunks plain(StagedCopy::to_device(staged.device, source.data(), 10), chunk_bytes);
  StagedCopy rows = StagedCopy::to_device(staged.device, source.data(), 10);
  rows.height = 2;
  rows.host_pitch_bytes = rows.device_pitch_bytes = 20;
  staged.driver.fail_call("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  staged.driver.fail_call("cuMemcpy2DAsync", 1, CUDA_ERROR_UNKNOWN);
  const StagingFailure failure = plain.transfer(0, staged.slot, staged.cu, staged.user);
  EXPECT_STREQ(failure.call, "cuMemcpyAsync");
  EXPECT_EQ(failure.result, CUDA_ERROR_INVALID_VALUE);
  const StagingFailure of_rows =
      StagedChunks(rows, chunk_bytes).transfer(0, staged.slot, staged.cu, staged.user);
  EXPECT_STREQ(of_rows.call, "cuMemcpy2DAsync");
  EXPECT_EQ(of_rows.result, CUDA_ERROR_UNKNOWN);
}

}  // namespace
}  // namespace tern::cuda
