#include "backends/host/transfer.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "backends/host/machine.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte guard{0xEE};

Bytes counted(std::size_t bytes) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + i / 251);
  return result;
}

class TransferTest : public testing::TestWithParam<std::size_t> {
 protected:
  WorkerTeam team{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, TransferTest, testing::Values(1, 2, 3, 16));

TEST_P(TransferTest, CopiesEveryByteAndNoOther) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100}, mib - 1, mib, mib + 1, 3 * mib + 12345, 8 * mib}) {
    const Bytes in = counted(bytes);
    Bytes out(bytes + 2, guard);
    copy(team, out.data() + 1, in.data(), bytes);
    EXPECT_EQ(out.front(), guard);
    EXPECT_EQ(out.back(), guard);
    EXPECT_EQ(std::memcmp(out.data() + 1, in.data(), bytes), 0) << bytes;
  }
}

TEST_P(TransferTest, CopiesRowsWhole) {
  for (const std::size_t height : {1u, 2u, 5u, 63u, 64u, 65u, 1000u}) {
    const std::size_t width = 2 * mib / height + 3;
    const Bytes in = counted((width + 9) * height);
    Bytes out((width + 2) * height, guard);
    copy_2d(team, {out.data(), width + 2, in.data(), width + 9, width, height});
    for (std::size_t row = 0; row < height; ++row) {
      const std::byte* line = out.data() + row * (width + 2);
      ASSERT_EQ(std::memcmp(line, in.data() + row * (width + 9), width), 0) << row;
      ASSERT_EQ(line[width], guard);
      ASSERT_EQ(line[width + 1], guard);
    }
  }
}

TEST_P(TransferTest, FillsEveryWidth) {
  for (std::size_t width = 1; width <= Pattern::max_bytes; ++width) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{300}, std::size_t{4096}, (mib + 100) / width}) {
      Pattern pattern;
      pattern.width_bytes = width;
      for (std::size_t i = 0; i < width; ++i) pattern.bytes[i] = static_cast<std::byte>(i + 3);
      Bytes out(count * width + 2, guard);
      fill(team, out.data() + 1, count * width, pattern);
      EXPECT_EQ(out.front(), guard);
      EXPECT_EQ(out.back(), guard);
      bool is_right = true;
      for (std::size_t i = 0; i < count * width; ++i) {
        is_right = is_right && out[1 + i] == pattern.bytes[i % width];
      }
      EXPECT_TRUE(is_right) << count << " elements of " << width;
    }
  }
}

TEST_P(TransferTest, TouchesEveryPageOfARangeAndChangesNothing) {
  const std::size_t page = system_page_bytes();
  const std::size_t pages = 2 * mib / page;
  void* map =
      mmap(nullptr, (pages + 2) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  madvise(map, (pages + 2) * page, MADV_NOHUGEPAGE);
  auto* first = static_cast<std::byte*>(map);
  // Begins at the end of the second page and ends at the start of the last but one.
  touch(team, first + 2 * page - 1, (pages - 2) * page + 2, page);
  std::vector<unsigned char> is_present(pages + 2);
  ASSERT_EQ(mincore(map, (pages + 2) * page, is_present.data()), 0);
  for (std::size_t i = 0; i < pages + 2; ++i) {
    EXPECT_EQ(is_present[i] & 1, i >= 1 && i <= pages ? 1 : 0) << i;
  }
  for (std::size_t i = 0; i < (pages + 2) * page; ++i) ASSERT_EQ(first[i], std::byte{0});
  munmap(map, (pages + 2) * page);
}

}  // namespace
}  // namespace tern::host
