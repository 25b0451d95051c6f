#include "memory/pool/alias_store.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"

namespace tern::pool {
namespace {

constexpr std::uint64_t page = PageStore::page_granules;

class AliasStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    first = store.try_new_addresses(200, 1).value();
    // One handle after the other, of 2 pages each.
    for (std::uint64_t at = 0; at < 200; at += 2) {
      ASSERT_TRUE(store.try_have_unmapped(2, 2));
      ASSERT_TRUE(store.try_back(first + at * page, 2));
    }
  }
  /// `count` handles from the n-th on.
  [[nodiscard]] PageStore::Run run(std::uint64_t n, std::uint64_t count = 1) const {
    return {first / page + 2 * n, 2 * count};
  }
  [[nodiscard]] Result<Alias*> try_make(std::vector<PageStore::Run> runs) {
    return aliases.try_make(runs);
  }
  void fill(std::uint64_t offset, int value) const {
    stream.fill(reinterpret_cast<std::byte*>(offset * granule_bytes), 16, std::byte(value));
    stream.synchronize();
  }
  [[nodiscard]] int read(std::uint64_t offset) const {
    std::uint8_t byte = 0;
    stream.copy(&byte, reinterpret_cast<const std::uint8_t*>(offset * granule_bytes), 1);
    stream.synchronize();
    return byte;
  }

  Device device = sim::open({.memory_bytes = 1 * gib, .check = false});
  Stream stream{device};
  PageStore store{device, 512 * mib};
  AliasStore aliases{store};
  std::uint64_t first = 0;
};

TEST_F(AliasStoreTest, MapsTheSamePagesASecondTime) {
  Alias* const alias = *try_make({run(5), run(1, 2)});
  EXPECT_EQ(alias->pages, 6u);
  EXPECT_EQ(aliases.count(), 1u);
  fill(first + 10 * page, 11);
  fill(first + 2 * page, 22);
  EXPECT_EQ(read(alias->offset), 11);
  EXPECT_EQ(read(alias->offset + 2 * page), 22);
  fill(alias->offset + 4 * page, 33);
  EXPECT_EQ(read(first + 4 * page), 33);
}

TEST_F(AliasStoreTest, DropsIdleOnesOnly) {
  Alias* const used = *try_make({run(0), run(2)});
  Descriptor block;
  used->block = &block;
  static_cast<void>(*try_make({run(4), run(6)}));
  EXPECT_EQ(aliases.count(), 2u);
  EXPECT_TRUE(aliases.try_drop_idle());
  EXPECT_EQ(aliases.count(), 1u);
  EXPECT_NE(used->offset, 0u);
  used->block = nullptr;
  EXPECT_TRUE(aliases.try_drop_idle());
  EXPECT_EQ(aliases.count(), 0u);
}

TEST_F(AliasStoreTest, ReplacesTheOneThatWasUsedLeastRecently) {
  std::vector<Alias*> all;
  for (std::uint64_t i = 0; i < AliasStore::max_aliases; ++i) {
    all.push_back(*try_make({run(i), run(i + 2)}));
    aliases.note_reuse(*all.back());
  }
  aliases.note_reuse(*all[0]);
  const std::uint64_t kept = all[0]->offset;
  // Aliases that are used earn the credit for one more.
  for (int i = 0; i < 8; ++i) aliases.note_reuse(*all[9]);
  ASSERT_TRUE(aliases.may_make());
  Alias* const made = *try_make({run(90), run(92)});
  EXPECT_EQ(made, all[1]);
  EXPECT_EQ(all[0]->offset, kept);
  EXPECT_EQ(aliases.count(), AliasStore::max_aliases);
}

TEST_F(AliasStoreTest, AreNoLongerMadeIfTheyAreNotUsed) {
  std::uint64_t made = 0;
  while (aliases.may_make() && made < 1000) {
    static_cast<void>(*try_make({run(made % 90), run(made % 90 + 2)}));
    ++made;
  }
  EXPECT_LE(made, 64u);
  EXPECT_GE(made, 32u);
}

TEST_F(AliasStoreTest, AFailureLeavesNothingMapped) {
  for (int at = 1; at <= 5; ++at) {
    SCOPED_TRACE(at);
    sim::set_faults(device, "map#" + std::to_string(at) + "=fail");
    const bool is_made = static_cast<bool>(try_make({run(0), run(2), run(4)}));
    sim::set_faults(device, "");
    EXPECT_FALSE(is_made);
    EXPECT_EQ(aliases.count(), 0u);
  }
  EXPECT_TRUE(try_make({run(0), run(2), run(4)}));
}

TEST_F(AliasStoreTest, AnUnmapThatFailedGoesOnWhereItStopped) {
  Alias* const alias = *try_make({run(0), run(2), run(4)});
  for (const char* const faults : {"release#2=fail", "release#1=fail", "release#2=fail"}) {
    sim::set_faults(device, faults);
    EXPECT_FALSE(aliases.try_drop_idle()) << faults;
    EXPECT_NE(alias->offset, 0u);
  }
  EXPECT_EQ(alias->unmapped_pages, 4u);
  sim::set_faults(device, "");
  EXPECT_TRUE(aliases.try_drop_idle());
  EXPECT_EQ(aliases.count(), 0u);
}

}  // namespace
}  // namespace tern::pool
