#include "memory/arena_layout.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "support/thorough.hpp"

namespace tern {
namespace {

TEST(ArenaLayout, PlacesBlocksOneAfterTheOther) {
  ArenaLayout layout(4096);
  EXPECT_EQ(layout.take(1024, 256, 1), 0u);
  EXPECT_EQ(layout.take(1024, 256, 2), 1024u);
  EXPECT_EQ(layout.extent_bytes(), 2048u);
  EXPECT_EQ(layout.take(4096, 256, 1), std::nullopt);
  EXPECT_EQ(layout.take(2048, 256, 1), 2048u);
  EXPECT_EQ(layout.take(256, 256, 1), std::nullopt);
}

TEST(ArenaLayout, ReusesWhatTheSameLaneHasFreed) {
  ArenaLayout layout(8192);
  static_cast<void>(layout.take(1024, 256, 1));
  static_cast<void>(layout.take(256, 256, 1));
  layout.put(0, 1);
  EXPECT_EQ(layout.take(512, 256, 2), 1280u) << "another stream may not have passed the free";
  EXPECT_EQ(layout.take(512, 256, 1), 0u);
  EXPECT_EQ(layout.take(512, 256, 1), 512u) << "the rest of the piece";
}

TEST(ArenaLayout, GivesWhatTheHostHasFreedToEveryLane) {
  ArenaLayout layout(8192);
  static_cast<void>(layout.take(1024, 256, 1));
  static_cast<void>(layout.take(256, 256, 1));
  layout.put(0, 0);
  EXPECT_EQ(layout.take(1024, 256, 5), 0u);
}

TEST(ArenaLayout, GrowsFromAFreeEnd) {
  ArenaLayout layout(8192);
  static_cast<void>(layout.take(1024, 256, 1));
  layout.put(0, 1);
  EXPECT_EQ(layout.take(2048, 256, 1), 0u);
  EXPECT_EQ(layout.extent_bytes(), 2048u);
}

TEST(ArenaLayout, JoinsNeighboursOfOneLane) {
  ArenaLayout layout(4096);
  for (int i = 0; i < 4; ++i) static_cast<void>(layout.take(1024, 256, 1));
  layout.put(0, 1);
  layout.put(2048, 1);
  layout.put(1024, 1);
  EXPECT_EQ(layout.take(3072, 256, 1), 0u);
}

TEST(ArenaLayout, AlignsOffsets) {
  ArenaLayout layout(1 << 20);
  static_cast<void>(layout.take(256, 256, 1));
  EXPECT_EQ(layout.take(256, 4096, 1), 4096u);
  EXPECT_EQ(layout.take(256, 256, 1), 256u) << "the gap before an aligned block is free";
}

/// Blocks never overlap, a lane never gets what another lane has freed, and a chunk of the extent
/// serves the same calls with the same offsets.
TEST(ArenaLayout, AgreesWithAPictureAndRepeatsItself) {
  const int programs = test::is_thorough ? 400 : 60;
  for (int seed = 0; seed < programs; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    struct Call {
      bool takes;
      std::size_t bytes, alignment, offset;
      ArenaLayout::Lane lane;
    };
    std::vector<Call> calls;
    ArenaLayout layout(SIZE_MAX / 2);
    std::map<std::size_t, std::size_t> live;            // offset to bytes
    std::map<std::size_t, ArenaLayout::Lane> freed_by;  // units of 256 bytes
    for (int i = 0; i < 300; ++i) {
      const ArenaLayout::Lane lane = random() % 4;
      if (live.empty() || random() % 5 < 3) {
        const std::size_t bytes = (1 + random() % 40) * 256;
        const std::size_t alignment = std::size_t{256} << random() % 4;
        const std::size_t offset = layout.take(bytes, alignment, lane).value();
        EXPECT_EQ(offset % alignment, 0u);
        const auto after = live.lower_bound(offset);
        if (after != live.end()) {
          ASSERT_LE(offset + bytes, after->first);
        }
        if (after != live.begin()) {
          ASSERT_LE(std::prev(after)->first + std::prev(after)->second, offset);
        }
        for (std::size_t unit = offset; unit < offset + bytes; unit += 256) {
          const auto before = freed_by.find(unit);
          if (before == freed_by.end()) continue;
          ASSERT_TRUE(before->second == lane || before->second == 0) << "seed " << seed;
          freed_by.erase(before);
        }
        live[offset] = bytes;
        calls.push_back({true, bytes, alignment, offset, lane});
      } else {
        auto chosen = live.begin();
        std::advance(chosen, static_cast<std::ptrdiff_t>(random() % live.size()));
        layout.put(chosen->first, lane);
        for (std::size_t unit = 0; unit < chosen->second; unit += 256) {
          freed_by[chosen->first + unit] = lane;
        }
        calls.push_back({false, 0, 0, chosen->first, lane});
        live.erase(chosen);
      }
    }
    ArenaLayout again(layout.extent_bytes());
    for (const Call& call : calls) {
      if (call.takes) {
        ASSERT_EQ(again.take(call.bytes, call.alignment, call.lane), call.offset);
      } else {
        again.put(call.offset, call.lane);
      }
    }
    EXPECT_EQ(again.extent_bytes(), layout.extent_bytes());
  }
}

}  // namespace
}  // namespace tern
