#include "backends/sim/alias_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <set>
#include <span>
#include <vector>

#include "support/few_addresses.hpp"
#include "support/forked_child.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

constexpr std::size_t page = 2 * mib;

std::unique_ptr<AliasMemory> make(std::uint64_t seed = 7, std::size_t bytes = 4 * page) {
  return AliasMemory::try_make(bytes, bytes, seed).value();
}

std::vector<std::byte> look(AliasMemory& memory, std::uint64_t offset, std::size_t bytes) {
  memory.prepare(offset, bytes);
  return {memory.alias_of(offset), memory.alias_of(offset) + bytes};
}

std::uint64_t word_at(AliasMemory& memory, std::uint64_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, look(memory, offset, 8).data(), 8);
  return word;
}

TEST(AliasMemory, TranslatesItsAddressesAndNoOthers) {
  const auto memory = make();
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{5}, 4 * page, 8 * page - 1}) {
    EXPECT_EQ(memory->offset_of(memory->address_of(offset)), offset);
  }
  EXPECT_FALSE(memory->offset_of(memory->address_of(8 * page)));
  EXPECT_FALSE(memory->offset_of(static_cast<std::byte*>(memory->address_of(0)) - 1));
  EXPECT_FALSE(memory->offset_of(memory->alias_of(0)));
  EXPECT_FALSE(memory->offset_of(&memory));
  EXPECT_FALSE(memory->offset_of(nullptr));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->address_of(0)) % (256 * mib), 0u);
}

TEST(AliasMemory, CannotBeTouchedThroughTheAddressesUsersHold) {
  const auto memory = make();
  memory->alias_of(0)[0] = std::byte{1};
  for (const std::uint64_t offset : {std::uint64_t{0}, 4 * page}) {
    auto* address = static_cast<volatile char*>(memory->address_of(offset));
    // -1: the child did not end by itself. A sanitizer ends it with a code of its own.
    EXPECT_NE(test::in_a_forked_child([&] { return *address == *address; }), 0);
    EXPECT_NE(test::in_a_forked_child([&] {
                *address = 1;
                return true;
              }),
              0);
  }
}

TEST(AliasMemory, KeepsWhatIsWrittenThroughTheAlias) {
  const auto memory = make();
  std::memset(memory->alias_of(100), 42, 1000);
  EXPECT_EQ(look(*memory, 100, 1000), std::vector(1000, std::byte{42}));
}

TEST(AliasMemory, OpensWithMoreThanTheMachineHas) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const auto memory = make(7, 141 * gib);
  memory->set_fresh(0, 141 * gib, 1);
  EXPECT_TRUE(std::isnan(std::bit_cast<double>(word_at(*memory, 140 * gib))));
}

TEST(AliasMemory, SaysWhatItCouldNotGet) {
  const auto refused = AliasMemory::try_make(std::size_t{1} << 60, page, 7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().string("call"), "mmap");
}

TEST(AliasMemory, FreshAndFreedWordsAreNotNumbers) {
  const auto memory = make();
  memory->set_fresh(0, page, 1);
  memory->set_freed(page, page, 1);
  std::set<std::uint64_t> different;
  for (std::uint64_t offset = 0; offset < 8000; offset += 8) {
    const std::uint64_t fresh = word_at(*memory, offset);
    EXPECT_TRUE(std::isnan(std::bit_cast<double>(fresh)));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(fresh))));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(fresh >> 32))));
    EXPECT_EQ(fresh & 0x8000'0000'8000'0000u, 0u);
    // Freed bytes are the same pattern with both signs set.
    EXPECT_EQ(word_at(*memory, page + offset), fresh | 0x8000'0000'8000'0000u);
    different.insert(fresh);
  }
  EXPECT_GT(different.size(), 990u);
}

TEST(AliasMemory, DrawsPatternsFromSeedAndGenerationOnly) {
  const auto bytes = [](std::uint64_t seed, std::uint64_t generation, std::uint64_t offset) {
    const auto memory = make(seed);
    memory->set_fresh(offset, 4096, generation);
    return look(*memory, offset, 4096);
  };
  EXPECT_EQ(bytes(7, 1, 0), bytes(7, 1, 0));
  EXPECT_EQ(bytes(7, 1, 0), bytes(7, 1, page));
  EXPECT_NE(bytes(7, 1, 0), bytes(7, 2, 0));
  EXPECT_NE(bytes(7, 1, 0), bytes(8, 1, 0));
  // The next seed is not the next generation.
  EXPECT_NE(bytes(7, 2, 0), bytes(8, 1, 0));
  EXPECT_NE(bytes(0, 1, 0), bytes(1, 0, 0));
}

TEST(AliasMemory, WritesAPatternOnlyWhenSomebodyLooks) {
  const auto memory = make();
  std::memset(memory->alias_of(0), 42, 4096);
  memory->set_fresh(0, 4096, 1);
  EXPECT_EQ(memory->alias_of(8)[0], std::byte{42});
  memory->prepare(0, 16);
  EXPECT_NE(memory->alias_of(8)[0], std::byte{42});
  EXPECT_EQ(memory->alias_of(16)[0], std::byte{42});
}

TEST(AliasMemory, LeavesAloneWhatWasPreparedOrOverwritten) {
  const auto memory = make();
  memory->set_fresh(0, 4096, 1);
  memory->prepare(0, 64);
  std::memset(memory->alias_of(0), 1, 64);
  memory->forget(64, 64);
  std::memset(memory->alias_of(64), 1, 64);
  EXPECT_EQ(look(*memory, 0, 128), std::vector(128, std::byte{1}));
  EXPECT_TRUE(std::isnan(std::bit_cast<double>(word_at(*memory, 128))));
}

TEST(AliasMemory, GivesEveryByteTheSameValueHoweverItIsLookedAt) {
  const auto whole = make();
  whole->set_fresh(512, 256, 3);
  const std::vector<std::byte> expected = look(*whole, 512, 256);
  for (const std::size_t step : {1u, 3u, 7u, 8u, 9u, 64u}) {
    const auto memory = make();
    memory->set_fresh(512, 256, 3);
    // From the back, so that pieces begin inside words.
    for (std::size_t end = 256; end > 0; end -= std::min(end, step)) {
      memory->prepare(512 + end - std::min(end, step), std::min(end, step));
    }
    EXPECT_TRUE(std::ranges::equal(expected, look(*memory, 512, 256))) << step;
    EXPECT_EQ(memory->alias_of(511)[0], std::byte{0});
    EXPECT_EQ(memory->alias_of(768)[0], std::byte{0});
  }
}

TEST(AliasMemory, IsNotSlowOverLargeRanges) {
  const auto memory = make(7, 128 * mib);
  memory->set_fresh(0, 128 * mib, 1);
  // Processor time, so that a busy machine does not matter; ten times what it should be at most.
  const std::clock_t start = std::clock();
  memory->forget(64 * mib, 64 * mib);
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 100);
  memory->prepare(0, 64 * mib);
  EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC);
  EXPECT_TRUE(std::isnan(std::bit_cast<double>(word_at(*memory, 64 * mib - 8))));
  EXPECT_EQ(word_at(*memory, 64 * mib), 0u);
}

TEST(AliasMemory, MapsPagesInTheWindow) {
  const auto memory = make();
  memory->set_fresh(page, page, 1);
  ASSERT_TRUE(memory->map(6 * page, page, page));
  EXPECT_EQ(look(*memory, 6 * page + 24, 1000), look(*memory, page + 24, 1000));
  memory->alias_of(6 * page)[5] = std::byte{42};
  EXPECT_EQ(memory->alias_of(page)[5], std::byte{42});
}

TEST(AliasMemory, KeepsTheBytesWhenPagesAreMappedElsewhere) {
  const auto memory = make();
  ASSERT_TRUE(memory->map(4 * page, 0, page));
  std::memset(memory->alias_of(4 * page), 42, 100);
  ASSERT_TRUE(memory->unmap(4 * page, page));
  ASSERT_TRUE(memory->map(7 * page, 0, page));
  memory->set_fresh(4 * page, page, 1);  // nothing is there any more
  EXPECT_EQ(look(*memory, 7 * page, 100), std::vector(100, std::byte{42}));
  EXPECT_NE(test::in_a_forked_child([&] { return *memory->alias_of(4 * page) != std::byte{200}; }),
            0);
}

TEST(AliasMemory, PreparesAcrossNeighbouringMappings) {
  const auto memory = make();
  memory->set_fresh(0, 4 * page, 1);
  ASSERT_TRUE(memory->map(4 * page, 3 * page, page));
  ASSERT_TRUE(memory->map(5 * page, page, page));
  const std::vector<std::byte> across = look(*memory, 5 * page - 64, 128);
  const auto plain = make();
  plain->set_fresh(0, 4 * page, 1);
  EXPECT_TRUE(std::ranges::equal(look(*plain, 4 * page - 64, 64), std::span(across).first(64)));
  EXPECT_TRUE(std::ranges::equal(look(*plain, page, 64), std::span(across).last(64)));
  memory->forget(5 * page, page);
  EXPECT_EQ(word_at(*memory, page + 64), 0u);
}

}  // namespace
}  // namespace tern::sim
