#include "memory/pool/stream_cache.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "tern/core/bytes.hpp"

namespace tern::pool {
namespace {

class StreamCacheTest : public testing::Test {
 protected:
  Descriptor& block(std::size_t bytes) {
    blocks_.emplace_back();
    blocks_.back().offset = next_;
    blocks_.back().size = bytes / granule_bytes;
    next_ += bytes / granule_bytes;
    return blocks_.back();
  }
  /// How many are in the list.
  static std::size_t length(const Descriptor* list) {
    std::size_t count = 0;
    for (; list != nullptr; list = list->next) ++count;
    return count;
  }
  std::size_t keep(Descriptor& one) { return length(cache->put(one, CacheBounds{})); }

  static constexpr CacheBounds contended_bounds{.middle_bytes = 64 * mib};

  std::unique_ptr<StreamCache> cache = std::make_unique<StreamCache>();

 private:
  std::deque<Descriptor> blocks_;
  std::uint64_t next_ = 1;
};

TEST_F(StreamCacheTest, ReturnsTheMostRecentBlockFirst) {
  Descriptor& one = block(256);
  Descriptor& two = block(256);
  EXPECT_EQ(keep(one), 0u);
  EXPECT_EQ(keep(two), 0u);
  EXPECT_EQ(cache->bytes(), 512u);
  EXPECT_EQ(cache->take_aligned(256, 1), &two);
  EXPECT_EQ(cache->take_aligned(256, 1), &one);
  EXPECT_EQ(cache->take_aligned(256, 1), nullptr);
  EXPECT_EQ(cache->bytes(), 0u);
}

TEST_F(StreamCacheTest, ReturnsTheMostRecentLargeBlockOnTheFastPath) {
  const CacheBounds bounds;
  Descriptor& older = block(2 * mib);
  Descriptor& newer = block(4 * mib);
  EXPECT_EQ(cache->take_newest(4 * mib), nullptr);
  ASSERT_TRUE(cache->try_put_newest(older, bounds));
  ASSERT_TRUE(cache->try_put_newest(newer, bounds));
  EXPECT_EQ(cache->bytes(), 6 * mib);
  EXPECT_EQ(cache->take_newest(2 * mib), nullptr);  // not the newest
  EXPECT_EQ(cache->take_newest(4 * mib), &newer);
  EXPECT_EQ(cache->take_newest(2 * mib), &older);
  EXPECT_EQ(cache->bytes(), 0u);
}

TEST_F(StreamCacheTest, KeepsALargeBlockOnTheFastPathOnlyIfNoneMustLeave) {
  Descriptor& small = block(256);
  EXPECT_FALSE(cache->try_put_newest(small, {}));
  Descriptor& with_slack = block(4 * mib);
  with_slack.slack = 1;
  EXPECT_FALSE(cache->try_put_newest(with_slack, {}));
  Descriptor& middle = block(2 * mib);
  EXPECT_FALSE(cache->try_put_newest(middle, contended_bounds));  // has a stack of its own there
  Descriptor& large = block(2 * mib);
  EXPECT_FALSE(cache->try_put_newest(large, {.recent_bytes = 2 * mib - granule_bytes}));
  std::size_t kept = 0;
  while (cache->try_put_newest(block(2 * mib), {.recent_bytes = gib})) ++kept;
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(cache->bytes(), kept * 2 * mib);  // and not one more than there are places
  EXPECT_EQ(length(cache->take_all()), kept);
}

TEST_F(StreamCacheTest, KeepsClassesApart) {
  for (std::size_t i = 0; i < class_count; ++i) keep(block(class_bytes(i)));
  for (std::size_t i = 0; i < class_count; ++i) {
    Descriptor* taken = cache->take_aligned(class_bytes(i), 1);
    if (taken == nullptr) continue;  // it left when the bytes were too many
    EXPECT_EQ(taken->size * granule_bytes, class_bytes(i));
  }
  EXPECT_EQ(cache->bytes(), 0u);
}

TEST_F(StreamCacheTest, ShedsTheOlderHalfOfAFullStack) {
  std::vector<Descriptor*> all;
  for (std::size_t i = 0; i < StreamCache::max_per_class; ++i) {
    all.push_back(&block(256));
    ASSERT_EQ(keep(*all.back()), 0u);
  }
  Descriptor* left = cache->put(block(256), CacheBounds{});
  EXPECT_EQ(length(left), StreamCache::max_per_class / 2);
  std::set<const Descriptor*> gone;
  for (; left != nullptr; left = left->next) gone.insert(left);
  for (std::size_t i = 0; i < StreamCache::max_per_class; ++i) {
    EXPECT_EQ(gone.contains(all[i]), i < StreamCache::max_per_class / 2) << i;
  }
  EXPECT_EQ(cache->bytes(), 17 * 256u);
}

TEST_F(StreamCacheTest, HoldsItsBoundToTheByte) {
  // Eight of 1 MiB are the bound; the ninth makes room.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(keep(block(1 * mib)), 0u);
  EXPECT_EQ(cache->bytes(), 8 * mib);
  EXPECT_GT(keep(block(256)), 0u);
  EXPECT_LE(cache->bytes(), 8 * mib);
}

TEST_F(StreamCacheTest, NeverKeepsMoreThanItsBound) {
  std::mt19937_64 random(3);
  const CacheBounds bounds{
      .class_bytes = 64 * kib, .recent_bytes = 4 * mib, .middle_bytes = 3 * mib};
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t bytes = granted_bytes(1 + random() % (std::size_t{1} << (random() % 23)));
    static_cast<void>(cache->put(block(bytes), bounds));
    ASSERT_LE(cache->bytes(), 64 * kib + 7 * mib);
  }
}

TEST_F(StreamCacheTest, ReturnsExcessBlocksIfMemoryIsShort) {
  keep(block(2 * mib));
  keep(block(3 * mib));
  for (int i = 0; i < 4; ++i) keep(block(1 * mib));
  Descriptor* left = cache->put(block(256), tight_bounds);
  EXPECT_GE(length(left), 5u);
  EXPECT_LE(cache->bytes(), 1 * mib);
  EXPECT_EQ(cache->take_aligned(2 * mib, 1), nullptr);
  EXPECT_EQ(cache->take_aligned(3 * mib, 1), nullptr);
}

TEST_F(StreamCacheTest, KeepsSmallBlocksInsteadOfALargerOneWhereMemoryIsShort) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cache->put(block(32 * kib), tight_bounds), nullptr);
  Descriptor& large = block(512 * kib);
  EXPECT_EQ(cache->put(large, tight_bounds), &large);
  EXPECT_EQ(large.next, nullptr);
  EXPECT_EQ(cache->bytes(), 20 * 32 * kib);
}

TEST_F(StreamCacheTest, RemembersTwoLargeBlocksByTheirExactSize) {
  Descriptor& one = block(2 * mib);
  Descriptor& two = block(2 * mib + 512);
  Descriptor& three = block(4 * mib);
  EXPECT_EQ(keep(one), 0u);
  EXPECT_EQ(keep(two), 0u);
  EXPECT_EQ(cache->take_aligned(2 * mib + 256, 1), nullptr);
  EXPECT_EQ(cache->put(three, CacheBounds{}), &one);
  EXPECT_EQ(one.next, nullptr);
  EXPECT_EQ(cache->take_aligned(2 * mib + 512, 1), &two);
  EXPECT_EQ(cache->take_aligned(4 * mib, 1), &three);
  EXPECT_EQ(cache->bytes(), 0u);
}

TEST_F(StreamCacheTest, ReturnsMiddleBlocksIfContentionEnds) {
  Descriptor& one = block(2 * mib);
  Descriptor& two = block(9 * mib);
  for (Descriptor* each : {&one, &two}) EXPECT_EQ(cache->put(*each, contended_bounds), nullptr);
  EXPECT_EQ(keep(block(16 * mib)), 2u);
  EXPECT_EQ(cache->bytes(), 16 * mib);
}

TEST_F(StreamCacheTest, ReturnsTheTightestBlockWithinAnEighth) {
  Descriptor& exact = block(4 * mib);
  Descriptor& tight = block(4 * mib + 256);
  Descriptor& loose = block(4 * mib + 512 * kib);
  Descriptor& behind = block(4 * mib + 512 * kib + 256);
  for (Descriptor* one : {&tight, &behind, &exact, &loose}) {
    EXPECT_EQ(cache->put(*one, contended_bounds), nullptr);
  }
  EXPECT_EQ(cache->take(4 * mib), &exact);
  EXPECT_EQ(cache->take(4 * mib), &tight);
  EXPECT_EQ(cache->take(4 * mib), &loose);
  EXPECT_EQ(cache->take(4 * mib), nullptr) << "a granule more than an eighth";
  EXPECT_EQ(cache->take(4 * mib + 256), &behind);
  EXPECT_EQ(cache->bytes(), 0u);
}

TEST_F(StreamCacheTest, CountsSlack) {
  Descriptor& one = block(3 * mib);
  cache->begin_slack(one, one.size - 100);
  EXPECT_EQ(cache->counts.slack_bytes, 100 * granule_bytes);
  EXPECT_EQ(cache->bytes(), 0u);
  keep(one);
  EXPECT_EQ(cache->counts.slack_bytes, 0u);
  EXPECT_EQ(one.slack, 0u);
  EXPECT_EQ(cache->bytes(), 3 * mib);
}

TEST_F(StreamCacheTest, RejectsBlocksAboveItsBound) {
  Descriptor& huge = block(129 * mib);
  EXPECT_EQ(cache->put(huge, CacheBounds{}), &huge);
  EXPECT_EQ(keep(block(128 * mib)), 0u);
  EXPECT_EQ(cache->bytes(), 128 * mib);
  EXPECT_EQ(keep(block(2 * mib)), 1u);
  EXPECT_EQ(cache->bytes(), 2 * mib);
}

TEST_F(StreamCacheTest, RespectsAlignment) {
  block(256);
  Descriptor& crooked = block(512);  // at granule 2
  keep(crooked);
  EXPECT_EQ(cache->take_aligned(512, 4), nullptr);
  EXPECT_EQ(cache->take_aligned(512, 2), &crooked);
  Descriptor& large = block(2 * mib);  // at granule 4
  keep(large);
  EXPECT_EQ(cache->take_aligned(2 * mib, 8), nullptr);
  EXPECT_EQ(cache->take_aligned(2 * mib, 4), &large);
}

TEST_F(StreamCacheTest, CountsWhatIsLive) {
  cache->note_allocation(512);
  cache->note_allocation(256);
  cache->note_free(512);
  cache->note_allocation(256);
  EXPECT_EQ(cache->counts.allocations, 3u);
  EXPECT_EQ(cache->counts.frees, 1u);
  EXPECT_EQ(cache->counts.live_bytes, 512u);
  EXPECT_EQ(cache->counts.peak_live_bytes, 768u);
}

TEST_F(StreamCacheTest, LosesNothing) {
  std::mt19937_64 random(5);
  std::set<Descriptor*> inside, outside;
  for (int i = 0; i < 600; ++i) {
    outside.insert(&block(granted_bytes(1 + random() % (std::size_t{1} << (random() % 24)))));
  }
  const auto leave = [&](Descriptor* list) {
    for (; list != nullptr; list = list->next) {
      ASSERT_EQ(inside.erase(list), 1u);
      ASSERT_TRUE(outside.insert(list).second);
    }
  };
  for (int step = 0; step < 50'000; ++step) {
    const std::uint64_t dice = random() % 1000;
    if (dice < 550 && !outside.empty()) {
      Descriptor* one =
          *std::next(outside.begin(), static_cast<std::ptrdiff_t>(random() % 8) %
                                          static_cast<std::ptrdiff_t>(outside.size()));
      outside.erase(one);
      inside.insert(one);
      const CacheBounds usual = step % 10'000 < 5'000 ? CacheBounds{} : contended_bounds;
      leave(cache->put(*one, dice < 500 ? usual : tight_bounds));
    } else if (dice < 998) {
      const std::size_t bytes = granted_bytes(1 + random() % (std::size_t{1} << (random() % 24)));
      if (Descriptor* one = cache->take(bytes)) {
        const std::size_t given = one->size * granule_bytes;
        ASSERT_GE(given, bytes);
        const bool may_be_more = bytes > largest_class_bytes && bytes < min_large_bytes;
        ASSERT_LE(given, may_be_more ? bytes + bytes / StreamCache::slack_share : bytes);
        one->next = nullptr;
        leave(one);
      }
    } else {
      leave(cache->take_all());
      ASSERT_EQ(cache->bytes(), 0u);
      ASSERT_TRUE(inside.empty());
    }
    std::size_t bytes = 0;
    for (const Descriptor* one : inside) bytes += one->size * granule_bytes;
    ASSERT_EQ(cache->bytes(), bytes);
  }
}

}  // namespace
}  // namespace tern::pool
