#include "backends/sim/host_space.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"

namespace tern::sim {

namespace {

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // offset, bytes
constexpr std::uint64_t foreign = std::uint64_t{1} << 44;

class HostSpaceTest : public testing::Test {
 protected:
  static Ranges translate(HostSpace& translator, const void* address, std::size_t bytes) {
    std::vector<SpaceRange> found;
    translator.translate(address, bytes, found);
    Ranges ranges;
    for (const SpaceRange& range : found) {
      EXPECT_EQ(range.space, 0u);
      ranges.emplace_back(range.offset, range.bytes);
    }
    return ranges;
  }
  Ranges translate(const void* address, std::size_t bytes) {
    return translate(space, address, bytes);
  }
  std::byte* pin(std::size_t bytes, std::size_t alignment = 64) {
    return static_cast<std::byte*>(
        space.allocate(bytes, alignment, MemoryKind::pinned, ++generation).value());
  }

  HostSpace space{Reuse::hostile};
  std::uint64_t generation = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(100'000);
  std::byte* const user = memory.data();
};

TEST_F(HostSpaceTest, GivesPinnedMemoryStableOffsets) {
  std::byte* a = pin(100);
  std::byte* b = pin(5000);
  std::memset(a, 1, 100);
  std::memset(b, 2, 5000);
  EXPECT_EQ(translate(a, 100), (Ranges{{0, 100}}));
  EXPECT_EQ(translate(b + 10, 20), (Ranges{{522, 20}}));
  static_cast<void>(translate(user, 50));
  EXPECT_EQ(translate(a + 99, 1), (Ranges{{99, 1}}));

  HostSpace other(Reuse::hostile);
  static_cast<void>(other.allocate(100, 64, MemoryKind::pinned, 1).value());
  void* twin = other.allocate(5000, 64, MemoryKind::managed, 2).value();
  EXPECT_EQ(translate(other, twin, 5000), (Ranges{{512, 5000}}));
}

TEST_F(HostSpaceTest, KnowsItsBlocks) {
  std::byte* a = pin(100);
  void* managed = space.allocate(300, 64, MemoryKind::managed, 9).value();
  void* base = nullptr;
  ASSERT_NE(space.find(a + 99, &base), nullptr);
  EXPECT_EQ(base, a);
  EXPECT_EQ(space.find(a + 99, nullptr)->bytes, 100u);
  EXPECT_EQ(space.find(a, nullptr)->generation, 1u);
  EXPECT_EQ(space.find(managed, nullptr)->kind, MemoryKind::managed);
  EXPECT_EQ(space.find(managed, nullptr)->generation, 9u);
  EXPECT_EQ(space.find(a + 100, nullptr), nullptr);
  EXPECT_EQ(space.find(a - 1, nullptr), nullptr);
  EXPECT_EQ(space.find(user, nullptr), nullptr);
}

TEST_F(HostSpaceTest, ForgetsReleasedBlocksAndHandsThemOutAgain) {
  std::byte* a = pin(100);
  std::byte* b = pin(100);
  space.release(a + 1);  // no block begins there
  space.release(user);
  EXPECT_NE(space.find(a, nullptr), nullptr);
  space.release(a);
  EXPECT_EQ(space.find(a, nullptr), nullptr);
  EXPECT_NE(space.find(b, nullptr), nullptr);
  EXPECT_EQ(pin(100), a);
}

TEST_F(HostSpaceTest, AlignsAddressesAndNotOnlyOffsets) {
  static_cast<void>(pin(1));
  for (const std::size_t alignment : {std::size_t{4096}, 2 * mib, 256 * mib}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pin(1, alignment)) % alignment, 0u);
  }
}

TEST_F(HostSpaceTest, RefusesMoreThanThereIsWithNumbers) {
  const Result<void*> refused = space.allocate(std::size_t{1} << 60, 64, MemoryKind::pinned, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), std::size_t{1} << 60);
  EXPECT_EQ(refused.failure().number("free"), refused.failure().number("total"));
  EXPECT_EQ(refused.failure().string("kind"), "pinned");
}

TEST_F(HostSpaceTest, GivesForeignMemoryOffsetsInTheOrderItIsNamed) {
  // The higher address first: offsets do not follow addresses.
  EXPECT_EQ(translate(user + 50'000, 100), (Ranges{{foreign, 100}}));
  EXPECT_EQ(translate(user, 5000), (Ranges{{foreign + 8192, 5000}}));
  EXPECT_EQ(translate(user + 70'000, 1), (Ranges{{foreign + 8192 + 12'288, 1}}));
  // Named again, wherever inside, they keep them.
  EXPECT_EQ(translate(user + 50'010, 20), (Ranges{{foreign + 10, 20}}));
  EXPECT_EQ(translate(user + 4999, 1), (Ranges{{foreign + 8192 + 4999, 1}}));
}

TEST_F(HostSpaceTest, KeepsSeparateForeignRangesApart) {
  // One past the end of a range is not the beginning of the next, whatever their sizes.
  for (std::size_t i = 0; i < 10; ++i) {
    const std::size_t bytes = 4095 + i % 3;
    const Ranges one = translate(user + i * 8192, bytes);
    ASSERT_EQ(one.size(), 1u);
    const Ranges next = translate(user + i * 8192 + 5000, 1);
    EXPECT_GE(next[0].first, one[0].first + bytes + 1);
  }
}

TEST_F(HostSpaceTest, SplitsARangeThatOverlapsKnownOnes) {
  EXPECT_EQ(translate(user + 100, 100), (Ranges{{foreign, 100}}));
  EXPECT_EQ(translate(user + 300, 100), (Ranges{{foreign + 8192, 100}}));
  // Before, known, between, known, behind.
  const Ranges all = translate(user, 500);
  EXPECT_EQ(all, (Ranges{{foreign + 2 * 8192, 100},
                         {foreign, 100},
                         {foreign + 3 * 8192, 100},
                         {foreign + 8192, 100},
                         {foreign + 4 * 8192, 100}}));
  EXPECT_EQ(translate(user, 500), all);
  EXPECT_EQ(translate(user + 150, 100), (Ranges{{foreign + 50, 50}, {foreign + 3 * 8192, 50}}));
}

TEST_F(HostSpaceTest, AppendsToWhatIsThere) {
  std::vector<SpaceRange> ranges{{3, 1, 2}};
  space.translate(user, 10, ranges);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].space, 3u);
  EXPECT_EQ(ranges[1].offset, foreign);
  space.translate(user + 5000, 0, ranges);
  EXPECT_EQ(ranges.size(), 2u);
}

}  // namespace
}  // namespace tern::sim
