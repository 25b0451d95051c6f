#include "memory/address_map.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "support/thread.hpp"

namespace tern {
namespace {

/// Addresses of nobody: the map does not look at the memory.
const void* at(std::uint64_t address) { return reinterpret_cast<const void*>(address); }
constexpr std::uint64_t base = 0x5100'0000'0000;

TEST(AddressMap, FindsWhatWasPut) {
  const AddressEntry entry(12'345'678, 54'321);
  EXPECT_EQ(entry.slot(), 12'345'678u);
  EXPECT_EQ(entry.owner(), 54'321u);
  EXPECT_FALSE(entry.has_other_uses());
  EXPECT_FALSE(AddressMap::get(at(base)));
  ASSERT_TRUE(AddressMap::try_put(at(base), entry));
  EXPECT_EQ(AddressMap::get(at(base)), entry);
  EXPECT_FALSE(AddressMap::get(at(base + 256)));
  EXPECT_FALSE(AddressMap::get(at(base + 1))) << "inside of the block";
  EXPECT_EQ(AddressMap::take(at(base)), entry);
  EXPECT_FALSE(AddressMap::take(at(base))) << "taken twice";
}

TEST(AddressMap, KeepsTheFirstEntryOfTheFirstOwner) {
  ASSERT_TRUE(AddressMap::try_put(at(base), AddressEntry(0, 0)));
  EXPECT_TRUE(AddressMap::take(at(base)));
}

TEST(AddressMap, RefusesAddressesThatNoBlockHas) {
  EXPECT_FALSE(AddressMap::try_put(at(base + 8), AddressEntry(1, 1)));
  EXPECT_FALSE(AddressMap::try_put(at(std::uint64_t{1} << 48), AddressEntry(1, 1)));
  EXPECT_FALSE(AddressMap::get(at(std::uint64_t{1} << 48)));
  EXPECT_FALSE(AddressMap::take(nullptr));
  EXPECT_FALSE(AddressMap::take(at(UINT64_MAX)));
  const std::uint64_t last = (std::uint64_t{1} << 48) - 256;
  ASSERT_TRUE(AddressMap::try_put(at(last), AddressEntry(7, 1)));
  EXPECT_EQ(AddressMap::take(at(last)).slot(), 7u);
}

TEST(AddressMap, MarksOtherUsesOnlyOfTheEntryThatWasRead) {
  const AddressEntry entry(3, 4);
  ASSERT_TRUE(AddressMap::try_put(at(base), entry));
  EXPECT_FALSE(AddressMap::set_other_uses(at(base), AddressEntry(3, 5)));
  EXPECT_TRUE(AddressMap::set_other_uses(at(base), entry));
  const AddressEntry marked = AddressMap::take(at(base));
  EXPECT_TRUE(marked.has_other_uses());
  EXPECT_EQ(marked.slot(), 3u);
  EXPECT_EQ(marked.owner(), 4u);
}

TEST(AddressMap, AgreesWithAHashTable) {
  std::mt19937_64 random(7);
  std::unordered_map<std::uint64_t, AddressEntry> model;
  for (int i = 0; i < 100'000; ++i) {
    // Some entries share a leaf, some a node, and some neither.
    const std::uint64_t shift = 8 + random() % 3 * 13;
    const std::uint64_t address = base + (random() % 16 << shift);
    if (random() % 2 == 0) {
      const AddressEntry entry(static_cast<std::uint32_t>(random() % (1u << 28)),
                               static_cast<std::uint32_t>(random() % (1u << 16)));
      ASSERT_TRUE(AddressMap::try_put(at(address), entry));
      model[address] = entry;
    } else {
      ASSERT_EQ(AddressMap::take(at(address)), model[address]);
      model[address] = {};
    }
  }
  for (const auto& [address, entry] : model) EXPECT_EQ(AddressMap::take(at(address)), entry);
}

TEST(AddressMap, GivesAnEntryToOneOfManyThreads) {
  constexpr std::uint64_t fresh = base + (std::uint64_t{1} << 40);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> put = 0, taken = 0;
    std::vector<test::Thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (std::uint64_t unit = 0; unit < 64; ++unit) {
          // The threads race for the nodes of new addresses, too.
          const std::uint64_t address =
              fresh + (static_cast<std::uint64_t>(round) << 34) + (unit << 21);
          put += AddressMap::try_put(at(address), AddressEntry(1, 1));
          taken += bool(AddressMap::take(at(address)));
        }
      });
    }
    threads.clear();
    EXPECT_EQ(put, 256);
    EXPECT_LE(taken, put);
    EXPECT_GE(taken, 64);
  }
}

}  // namespace
}  // namespace tern
