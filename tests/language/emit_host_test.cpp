// The forms of kernels, translated to C++ and run on the host. EmittedRandomKernels, in
// emit_random_test.cpp, run many more of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "language/emit.hpp"
#include "language/host_kernel.hpp"

namespace tern::language {
namespace {

using test::HostKernel;

std::vector<float> ramp(std::size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(EmittedElements, AreComputedUpToTheSizeOfTheFirstArray) {
  const HostKernel saxpy("element saxpy(in<float> x, inout<float> y, float a) { y += a * x; }");
  std::vector<float> x = ramp(1000), y(1100, 1);
  const float a = 2;
  saxpy.run({4, 1, 1}, {256, 1, 1}, x, y, a);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(y[i], 1 + 2 * x[i]) << i;
  EXPECT_EQ(std::count(y.begin() + 1000, y.end(), 1.0f), 100);
}

TEST(EmittedElements, AreOnlyThoseOfTheBlocksOfACall) {
  const HostKernel mark("element mark(inout<int> x) { x += 1; }");
  std::vector<int> x(1000, 0);
  mark.run_blocks(1, 2, {4, 1, 1}, {256, 1, 1}, x);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], i >= 256 && i < 768 ? 1 : 0) << i;
}

TEST(EmittedElements, KeepTheOrderOfAThreadIfArraysAreTheSame) {
  const HostKernel both("element both(in<int> x, inout<int> y, out<int> z) { y = y + 1; z = x; }");
  std::vector<int> same(1000, 5), z(1000, 0);
  both.run({4, 1, 1}, {256, 1, 1}, same, same, z);
  EXPECT_EQ(std::count(same.begin(), same.end(), 6), 1000);
  EXPECT_EQ(std::count(z.begin(), z.end(), 6), 1000);
}

TEST(EmittedElements, HaveTheirOwnCopyOfAValue) {
  const HostKernel halves("element halves(inout<float> x, float a) { a = a * x; x = a; }");
  std::vector<float> x = ramp(64);
  const float a = 0.5f;
  halves.run({1, 1, 1}, {64, 1, 1}, x, a);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], 0.5f * static_cast<float>(i));
}

TEST(EmittedThreads, CountTheirOccurrences) {
  const HostKernel histogram(R"(
    kernel histogram(in<uint32_t> keys, inout<uint32_t> counts) {
      const size_t i = index.x;
      if (i < size(keys)) atomic_add(counts, keys[i], 1);
    })");
  std::vector<std::uint32_t> keys(10'000), counts(16, 0), expected(16, 0);
  for (std::size_t i = 0; i < keys.size(); ++i) ++expected[keys[i] = (i * i + i / 7) % 16];
  histogram.run({40, 1, 1}, {256, 1, 1}, keys, counts);
  EXPECT_EQ(counts, expected);
}

TEST(EmittedThreads, KnowTheirPlaceInEveryDimension) {
  const HostKernel places(R"(
    kernel places(out<uint64_t> to) {
      const size_t nx = grid_size.x * block_size.x, ny = grid_size.y * block_size.y;
      const size_t at = index.x + nx * (index.y + ny * index.z);
      to[at] = thread.x + 10 * thread.y + 100 * thread.z + 1000 * block.x + 10000 * block.y +
               100000 * block.z + 1000000 * grid_size.z + 10000000 * block_size.z;
    })");
  constexpr std::uint64_t gx = 2, gy = 3, gz = 4, bx = 5, by = 3, bz = 2;
  std::vector<std::uint64_t> to(gx * gy * gz * bx * by * bz, 0);
  places.run({gx, gy, gz}, {bx, by, bz}, to);
  for (std::uint64_t i = 0; i < to.size(); ++i) {
    const std::uint64_t x = i % (gx * bx), y = i / (gx * bx) % (gy * by),
                        z = i / (gx * bx * gy * by);
    ASSERT_EQ(to[i], x % bx + 10 * (y % by) + 100 * (z % bz) + 1000 * (x / bx) + 10000 * (y / by) +
                         100000 * (z / bz) + 1000000 * gz + 10000000 * bz)
        << i;
  }
}

TEST(EmittedBlocks, ShareATile) {
  const HostKernel stencil(R"(
    block stencil(in<float> x, out<float> y) {
      shared<float, 66> tile;
      for (auto thread : threads) {
        const size_t i = block.x * block_size.x + thread.x;
        tile[thread.x + 1] = i < size(x) ? x[i] : 0.0f;
        if (thread.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
        if (thread.x + 1 < block_size.x) continue;
        tile[thread.x + 2] = i + 1 < size(x) ? x[i + 1] : 0.0f;
      }
      for (auto thread : threads) {
        const size_t i = block.x * block_size.x + thread.x;
        if (i < size(y)) y[i] = 0.5f * (tile[thread.x] + tile[thread.x + 2]);
      }
    })");
  std::vector<float> x = ramp(1000, 3), y(1000, -1);
  stencil.run({16, 1, 1}, {64, 1, 1}, x, y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float before = i > 0 ? x[i - 1] : 0, after = i + 1 < x.size() ? x[i + 1] : 0;
    ASSERT_EQ(y[i], 0.5f * (before + after)) << i;
  }
}

TEST(EmittedBlocks, RunTheirOwnCodeBetweenLoopsOverThreads) {
  const HostKernel sums(R"(
    block sums(in<int> x, out<int> y) {
      shared<int, 128> sums_;
      size_t width = block_size.x;
      for (auto thread : threads) sums_[thread.x] = x[block.x * block_size.x + thread.x];
      while (width > 1) {
        width = width / 2;
        for (auto thread : threads) {
          if (thread.x < width) sums_[thread.x] += sums_[thread.x + width];
        }
      }
      const int sum = sums_[0];
      for (auto thread : threads) y[block.x * block_size.x + thread.x] = sum;
    })");
  std::vector<int> x(512), y(512, 0);
  for (int i = 0; i < 512; ++i) x[static_cast<std::size_t>(i)] = i * i % 101;
  sums.run({4, 1, 1}, {128, 1, 1}, x, y);
  for (std::size_t i = 0; i < 512; ++i) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i / 128 * 128);
    ASSERT_EQ(y[i], std::accumulate(begin, begin + 128, 0)) << i;
  }
}

TEST(EmittedBlocks, KeepVariablesOfOneNameApart) {
  const HostKernel kernel(R"(
    block kernel_(inout<int> x) {
      {
        shared<int, 32> tile;
        for (auto thread : threads) {
          int y = tile[thread.x] = 5;
          x[thread.x] += y;
        }
      }
      {
        shared<float, 32> tile;
        for (auto thread : threads) {
          float y = tile[thread.x] = 0.5f;
          x[thread.x] += int(4 * y);
        }
      }
    })");
  std::vector<int> x(32, 1);
  kernel.run({1, 1, 1}, {32, 1, 1}, x);
  EXPECT_EQ(x, std::vector<int>(32, 8));
}

/// The order of additions that every device has.
double reduced(const std::vector<double>& values, std::size_t block) {
  std::vector<double> lanes(reduction_lanes, 0);
  const std::size_t begin = block * reduction_block_elements;
  for (std::size_t k = 0; k < reduction_block_elements; ++k) {
    if (begin + k < values.size()) lanes[k % reduction_lanes] += values[begin + k];
  }
  for (std::size_t s = reduction_lanes / 2; s > 0; s /= 2) {
    for (std::size_t t = 0; t < s; ++t) lanes[t] += lanes[t + s];
  }
  return lanes[0];
}

TEST(EmittedReductions, CombineInTheOrderOfAllDevices) {
  const HostKernel dot(
      "reduction<double> dot(in<float> x, in<double> y) { identity = 0; map = x * y; combine = a + "
      "b; }");
  // Sizes around one and several blocks, whose last block is not full.
  for (const std::size_t n : {0u, 1u, 255u, 4096u, 4097u, 20'001u}) {
    std::vector<float> x(n);
    std::vector<double> y(n), products(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i % 17) + 0.1f;
      y[i] = 1.0 / static_cast<double>(i + 1);
      products[i] = static_cast<double>(x[i]) * y[i];
    }
    const std::size_t blocks = (n + reduction_block_elements - 1) / reduction_block_elements;
    std::vector<double> results(std::max<std::size_t>(blocks, 1), -1);
    double* const to = results.data();
    dot.run({results.size(), 1, 1}, {reduction_lanes, 1, 1}, x, y, to);
    for (std::size_t b = 0; b < results.size(); ++b) ASSERT_EQ(results[b], reduced(products, b));
    double total = -1;
    double* const total_at = &total;
    dot.combine(1, results, total_at);
    ASSERT_EQ(total, reduced(results, 0)) << n;
  }
}

TEST(EmittedReductions, MapWithValuesAndCombineWithFunctions) {
  const HostKernel largest(
      "reduction<int> largest(in<int> x, int limit) { identity = -2147483647 - 1; map = min(x, "
      "limit); combine = max(a, b); }");
  std::vector<int> x(5000);
  for (int i = 0; i < 5000; ++i) x[static_cast<std::size_t>(i)] = (i * 37) % 4999 - 2500;
  const int limit = 2000;
  std::vector<int> results(2, 0);
  int* const to = results.data();
  largest.run({2, 1, 1}, {256, 1, 1}, x, limit, to);
  EXPECT_EQ(results,
            (std::vector<int>{2000, std::min(2000, *std::max_element(x.begin() + 4096, x.end()))}));
}

}  // namespace
}  // namespace tern::language
