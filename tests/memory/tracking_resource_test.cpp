#include "tern/memory/tracking_resource.hpp"

#include <gtest/gtest.h>

#include "memory/block_table.hpp"
#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern {
namespace {

class TrackingResourceTest : public testing::Test {
 protected:
  [[nodiscard]] Block take(std::size_t bytes, Tag tag = {}, CallSite site = CallSite::here()) {
    return resource.allocate({.bytes = bytes, .tag = tag, .site = site});
  }
  void give(const Block& block) { ASSERT_TRUE(resource.try_deallocate(block, {})); }
  [[nodiscard]] TagTotal total_of(Tag tag) const {
    for (const TagTotal& one : resource.tag_totals()) {
      if (one.tag == tag) return one;
    }
    return {};
  }

  Device device = sim::open({});
  std::shared_ptr<FaultResource> upstream =
      std::make_shared<FaultResource>(std::make_shared<DirectResource>(device));
  TrackingResource resource{upstream, {.check_overlap = true}};
};

/// Grants what it is told to, without asking anybody or using the heap.
class FaultyUpstream final : public Resource {
 public:
  explicit FaultyUpstream(Device device) : device_(std::move(device)) {}
  const char* name() const noexcept override { return "faulty"; }
  const Device& device() const noexcept override { return device_; }
  ResourceTraits traits() const noexcept override { return {}; }
  Statistics statistics() const noexcept override { return {}; }
  std::size_t good_size(const Request& request) const noexcept override { return request.bytes; }
  Result<Block> try_allocate(const Request& request) noexcept override {
    return Block{reinterpret_cast<void*>(next_address), request.bytes, device_.id(),
                 Generation(++grants, 1)};
  }
  Result<void> try_deallocate(const Block&, StreamRef, const CallSite&) noexcept override {
    ++frees;
    if (fails) return Failure(ErrorCode::driver);
    return {};
  }

  std::uintptr_t next_address = 0;
  std::uint32_t grants = 0;
  int frees = 0;
  bool fails = false;

 private:
  Device device_;
};

TEST_F(TrackingResourceTest, ListsLiveBlocksWithTheirAge) {
  const Stream stream(device);
  const CallSite here = CallSite::here();
  const Block a =
      resource.allocate({.bytes = 100, .stream = stream, .tag = "weights", .site = here});
  const Block b = take(200, "sort.tmp");
  const std::vector<LiveBlock> live = resource.live_blocks();
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].block, a);
  EXPECT_EQ(live[0].requested_bytes, 100u);
  EXPECT_EQ(live[0].tag, Tag("weights"));
  EXPECT_EQ(live[0].site.line, here.line);
  EXPECT_EQ(live[0].stream, stream.id());
  EXPECT_EQ(live[1].block, b);
  EXPECT_LT(live[0].order, live[1].order);
  give(a);
  give(b);
  EXPECT_TRUE(resource.live_blocks().empty());
}

TEST_F(TrackingResourceTest, LeaksNothingAfterTenThousandCycles) {
  for (int i = 0; i < 10'000; ++i) give(take(64));
  EXPECT_TRUE(resource.live_blocks().empty());
  EXPECT_EQ(resource.statistics().requests, 10'000u);
  EXPECT_EQ(resource.statistics().frees, 10'000u);
  EXPECT_EQ(resource.statistics().peak_live_bytes, 64u);
  EXPECT_EQ(resource.leak_report(), "no live blocks");
}

TEST_F(TrackingResourceTest, KeepsManyBlocksApart) {
  std::vector<Block> blocks;
  for (std::size_t i = 1; i <= 5000; ++i) blocks.push_back(take(i));
  EXPECT_EQ(resource.live_blocks().size(), 5000u);
  for (std::size_t i = 0; i < 5000; i += 2) give(blocks[i]);
  std::vector<LiveBlock> live = resource.live_blocks();
  ASSERT_EQ(live.size(), 2500u);
  for (std::size_t i = 0; i < live.size(); ++i) EXPECT_EQ(live[i].block, blocks[2 * i + 1]);
  for (std::size_t i = 1; i < 5000; i += 2) give(blocks[i]);
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
}

TEST_F(TrackingResourceTest, CountsByTag) {
  const Block a = take(100, "weights");
  const Block b = take(300, "weights");
  const Block c = take(50);
  EXPECT_EQ(total_of("weights").live_bytes, 400u);
  EXPECT_EQ(total_of("weights").live_blocks, 2u);
  EXPECT_EQ(total_of({}).live_bytes, 50u);
  EXPECT_EQ(resource.tag_totals().front().tag, Tag("weights"));
  give(b);
  EXPECT_EQ(total_of("weights").live_bytes, 100u);
  EXPECT_EQ(total_of("weights").peak_live_bytes, 400u);
  EXPECT_EQ(total_of("weights").allocations, 2u);
  EXPECT_EQ(resource.statistics().peak_live_bytes, 450u);
  give(a);
  give(c);
  EXPECT_EQ(total_of("weights").live_bytes, 0u);
}

TEST_F(TrackingResourceTest, NamesALeakByItsLine) {
  const CallSite leak{"model/load.cpp", "load", 42};
  const Block a = take(1024, "weights", leak);
  const Block b = take(512, "weights", leak);
  const Block c = take(64, "sort.tmp", {"sort.cpp", "sort", 7});
  EXPECT_EQ(resource.leak_report(),
            "1.6 KiB live in 3 blocks of 'tracking(fault(direct))':\n"
            "  1.5 KiB in 2 blocks, tag 'weights', model/load.cpp:42 (load)\n"
            "  64 B in 1 block, tag 'sort.tmp', sort.cpp:7 (sort)");
  const std::vector<Holder> top = resource.top_holders(1);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].bytes, 1536u);
  EXPECT_EQ(top[0].blocks, 2u);
  EXPECT_EQ(top[0].site.line, 42u);
  EXPECT_EQ(top[0].oldest, resource.live_blocks().front().order);
  EXPECT_EQ(resource.text(),
            "1.6 KiB live in 3 blocks of 'tracking(fault(direct))', 1.6 KiB at most; 3 requests, "
            "0 refused, 0 freed\n  half of the sizes up to 512 B, 99 of 100 up to 1.0 KiB\n"
            "  tag 'weights': 1.5 KiB in 2 blocks, 1.5 KiB at most\n"
            "  tag 'sort.tmp': 64 B in 1 block, 64 B at most");
  for (const Block& block : {a, b, c}) give(block);
}

TEST_F(TrackingResourceTest, ShowsThatNothingWasRequested) {
  const Block before = take(64);
  const RequestWindow quiet(resource);
  give(before);
  EXPECT_EQ(quiet.requests(), 0u);
  const RequestWindow busy(resource);
  give(take(64));
  EXPECT_EQ(busy.requests(), 1u);
  upstream->fail_next();
  EXPECT_FALSE(resource.try_allocate({.bytes = 64}));
  EXPECT_EQ(busy.requests(), 2u);  // refused ones too
}

TEST_F(TrackingResourceTest, RejectsBadFreesBeforeTheUpstreamCall) {
  const Block block = take(1000);
  const std::uint64_t frees_below = upstream->statistics().frees;
  upstream->set_rules({{.for_frees = true, .code = ErrorCode::device_lost}});
  Block wrong = block;
  wrong.address = static_cast<std::byte*>(block.address) + 10;
  EXPECT_EQ(resource.try_deallocate(wrong, {}).failure().code(), ErrorCode::out_of_bounds);
  wrong = block;
  wrong.bytes = 999;
  EXPECT_EQ(resource.try_deallocate(wrong, {}).failure().code(), ErrorCode::use_after_free);
  wrong = block;
  wrong.device = DeviceId{99};
  EXPECT_EQ(resource.try_deallocate(wrong, {}).failure().code(), ErrorCode::device_mismatch);
  // Live below, and not from here.
  const Block foreign = upstream->allocate({.bytes = 64});
  EXPECT_EQ(resource.try_deallocate(foreign, {}).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(upstream->refused_frees(), 0u);
  EXPECT_EQ(upstream->statistics().frees, frees_below);
  EXPECT_EQ(resource.live_blocks().size(), 1u);
  upstream->set_rules({});
  give(block);
  EXPECT_TRUE(upstream->try_deallocate(foreign, {}));
}

TEST_F(TrackingResourceTest, KeepsABlockWhoseFreeFailed) {
  const Block block = take(4096, "weights");
  upstream->set_rules({{.for_frees = true, .nth = 1}});
  EXPECT_FALSE(resource.try_deallocate(block, {}));
  EXPECT_EQ(resource.live_blocks().size(), 1u);
  EXPECT_EQ(total_of("weights").live_bytes, 4096u);
  give(block);
  EXPECT_EQ(total_of("weights").live_bytes, 0u);
}

TEST_F(TrackingResourceTest, FailsCleanlyWithoutMemoryForItsLedger) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "the heap is somebody else's here";
  // The entry, a page of tags and the range: each fails once, before the upstream is asked.
  auto heapless = std::make_shared<FaultyUpstream>(device);
  for (std::size_t left = 0; left < 3; ++left) {
    TrackingResource fresh(heapless, {.check_overlap = true});
    std::optional<Result<Block>> block;
    {
      const test::HeapExhausted exhausted(left);
      block.emplace(fresh.try_allocate({.bytes = 64}));
    }
    ASSERT_FALSE(*block) << left;
    EXPECT_EQ(block->failure().code(), ErrorCode::out_of_memory);
    EXPECT_EQ(fresh.statistics().refusals, 1u);
    EXPECT_EQ(fresh.statistics().live_bytes, 0u);
    EXPECT_TRUE(fresh.live_blocks().empty());
    EXPECT_EQ(heapless->grants, 0u);
    EXPECT_TRUE(fresh.try_allocate({.bytes = 64}));  // and works again
    heapless->grants = 0;
  }
}

TEST_F(TrackingResourceTest, FreesWithoutHostMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "the heap is somebody else's here";
  auto heapless = std::make_shared<FaultyUpstream>(device);
  TrackingResource tracked(heapless, {.check_overlap = true});
  std::vector<Block> blocks;
  for (int i = 0; i < 200; ++i) {
    heapless->next_address += 64;
    blocks.push_back(tracked.allocate({.bytes = 64}));
  }
  {
    const test::HeapExhausted exhausted;
    for (const Block& block : blocks) tracked.deallocate(block, {});
  }
  EXPECT_EQ(tracked.failed_frees(), 0u);
  EXPECT_TRUE(tracked.live_blocks().empty());
}

TEST_F(TrackingResourceTest, LeaksNothingWhicheverUpstreamCallFails) {
  for (const bool after_upstream : {false, true}) {
    for (std::uint64_t n = 1; n <= 8; ++n) {
      for (const FaultRule& rule :
           {FaultRule{.after_upstream = after_upstream, .nth = n},
            FaultRule{.after_upstream = after_upstream, .every = n},
            FaultRule{.for_frees = true, .nth = n}, FaultRule{.for_frees = true, .every = n + 1}}) {
        upstream->set_rules({rule});
        std::vector<Block> held;
        for (int i = 0; i < 8; ++i) {
          if (const Result<Block> block = resource.try_allocate({.bytes = 64})) {
            held.push_back(*block);
          }
        }
        EXPECT_EQ(resource.live_blocks().size(), held.size());
        for (const Block& block : held) {
          if (!resource.try_deallocate(block, {})) give(block);
        }
        EXPECT_EQ(resource.statistics().live_bytes, 0u);
        EXPECT_EQ(upstream->statistics().live_bytes, 0u);
      }
    }
  }
}

TEST_F(TrackingResourceTest, ReportsBothRangesOfAnOverlap) {
  auto faulty = std::make_shared<FaultyUpstream>(device);
  TrackingResource guarded(faulty, {.check_overlap = true});
  faulty->next_address = 0x1000;
  const Block first = guarded.allocate({.bytes = 0x100, .tag = "first"});
  // Before, after, inside, around, the same: each shares a byte with the first.
  const std::pair<std::uintptr_t, std::size_t> overlaps[] = {
      {0xF01, 0x100}, {0x10FF, 0x100}, {0x1010, 1}, {0xF00, 0x1000}, {0x1000, 0x100}};
  int given_back = 0;
  for (const auto& [address, bytes] : overlaps) {
    faulty->next_address = address;
    const CallSite here = CallSite::here();
    const Result<Block> refused =
        guarded.try_allocate({.bytes = bytes, .tag = "second", .site = here});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::violation);
    EXPECT_EQ(refused.failure().number("address"), address);
    EXPECT_EQ(refused.failure().number("bytes"), bytes);
    EXPECT_EQ(refused.failure().number("other_address"), 0x1000u);
    EXPECT_EQ(refused.failure().number("other_bytes"), 0x100u);
    EXPECT_EQ(refused.failure().string("other_tag"), "first");
    EXPECT_EQ(refused.failure().site().line, here.line);
    EXPECT_EQ(faulty->frees, ++given_back);
  }
  // Ends that only touch are fine.
  faulty->next_address = 0x1100;
  const Block after = guarded.allocate({.bytes = 0x100});
  faulty->next_address = 0xF00;
  const Block before = guarded.allocate({.bytes = 0x100});
  EXPECT_EQ(guarded.statistics().refusals, 5u);
  EXPECT_EQ(guarded.live_blocks().size(), 3u);
  // What is freed may be granted again, what could not be freed may not.
  faulty->fails = true;
  EXPECT_FALSE(guarded.try_deallocate(first, {}));
  faulty->next_address = 0x1000;
  EXPECT_FALSE(guarded.try_allocate({.bytes = 8}));
  faulty->fails = false;
  EXPECT_TRUE(guarded.try_deallocate(first, {}));
  EXPECT_TRUE(guarded.try_allocate({.bytes = 8}));
  static_cast<void>(after);
  static_cast<void>(before);
}

TEST_F(TrackingResourceTest, TellsTheCallbackOfBothRangesOfAnOverlap) {
  std::vector<Failure> heard;
  FailureCallback old =
      set_failure_callback([&](const Failure& failure) { heard.push_back(failure); });
  auto faulty = std::make_shared<FaultyUpstream>(device);
  TrackingResource guarded(faulty, {.check_overlap = true});
  faulty->next_address = 0x1000;
  const Block first = guarded.allocate({.bytes = 0x100, .tag = "first"});
  faulty->next_address = 0x1080;
  EXPECT_FALSE(guarded.try_allocate({.bytes = 0x100, .tag = "second"}));
  set_failure_callback(std::move(old));
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].number("address"), 0x1080u);
  EXPECT_EQ(heard[0].number("end"), 0x1180u);
  EXPECT_EQ(heard[0].number("other_address"), 0x1000u);
  EXPECT_EQ(heard[0].number("other_end"), 0x1100u);
  EXPECT_NE(heard[0].text().find("[0x1080, 0x1180)"), std::string::npos) << heard[0].text();
  EXPECT_NE(heard[0].text().find("[0x1000, 0x1100)"), std::string::npos) << heard[0].text();
  guarded.deallocate(first, {});
}

TEST(TrackingResourceDeathTest, AbortsOnAnOverlapIfConfigured) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Device device = sim::open({});
        auto faulty = std::make_shared<FaultyUpstream>(device);
        TrackingResource guarded(faulty, {.abort_on_overlap = true});
        faulty->next_address = 0x1000;
        static_cast<void>(guarded.allocate({.bytes = 0x100}));
        faulty->next_address = 0x1080;
        static_cast<void>(guarded.try_allocate({.bytes = 0x100}));
      },
      "0x1080, 0x1180.*0x1000, 0x1100");
}

TEST_F(TrackingResourceTest, AddsUpToTheTotalOnEightThreads) {
  std::atomic<int> working = 8;
  std::vector<test::Thread> workers;
  for (int t = 0; t < 8; ++t) {
    workers.emplace_back([&, t] {
      const Tag tag = "tag " + std::to_string(t % 3);
      std::vector<Block> held;
      for (std::size_t i = 0; i < 300; ++i) {
        held.push_back(take(1 + i % 100, tag));
        if (i % 3 != 0) {
          resource.deallocate(held.back(), {});
          held.pop_back();
        }
      }
      for (const Block& block : held) resource.deallocate(block, {});
      --working;
    });
  }
  // In every report the tags' bytes are those of the live blocks: the sum of one moment.
  while (working != 0) {
    std::size_t bytes = 0, blocks = 0;
    for (const TagTotal& one : resource.tag_totals()) {
      bytes += one.live_bytes;
      blocks += one.live_blocks;
      EXPECT_LE(one.live_bytes, one.peak_live_bytes);
    }
    EXPECT_LE(blocks, bytes);
  }
  for (test::Thread& worker : workers) worker.join();
  EXPECT_EQ(resource.failed_frees(), 0u);
  std::size_t bytes = 0, allocations = 0;
  for (const TagTotal& one : resource.tag_totals()) {
    bytes += one.live_bytes;
    allocations += one.allocations;
  }
  EXPECT_EQ(bytes, resource.statistics().live_bytes);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(allocations, 2400u);
}

TEST_F(TrackingResourceTest, FreesABlockOnceForManyThreads) {
  for (int round = 0; round < 50; ++round) {
    const Block block = take(64);
    std::atomic<int> freed = 0;
    std::vector<test::Thread> workers;
    for (int t = 0; t < 4; ++t) {
      workers.emplace_back([&] { freed += resource.try_deallocate(block, {}) ? 1 : 0; });
    }
    for (test::Thread& worker : workers) worker.join();
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
}

TEST(SizeHistogram, HasThirtyTwoBucketsFromSixteenBytes) {
  static_assert(SizeHistogram::bucket_count == 32);
  EXPECT_EQ(SizeHistogram::bucket_of(1), 0u);
  EXPECT_EQ(SizeHistogram::bucket_of(16), 0u);
  EXPECT_EQ(SizeHistogram::bucket_of(17), 1u);
  EXPECT_EQ(SizeHistogram::bucket_of(32), 1u);
  EXPECT_EQ(SizeHistogram::bucket_of(33), 2u);
  EXPECT_EQ(SizeHistogram::bucket_of(std::size_t{16} << 30), 30u);
  EXPECT_EQ(SizeHistogram::bucket_of((std::size_t{16} << 30) + 1), 31u);
  EXPECT_EQ(SizeHistogram::bucket_of(SIZE_MAX), 31u);
  for (std::size_t i = 0; i < 31; ++i) {
    EXPECT_EQ(SizeHistogram::bucket_of(SizeHistogram::bound_bytes(i)), i);
    EXPECT_EQ(SizeHistogram::bucket_of(SizeHistogram::bound_bytes(i) + 1), i + 1);
  }
}

TEST(SizeHistogram, GivesPercentilesByRank) {
  SizeHistogram sizes;
  EXPECT_EQ(sizes.percentile_bytes(50), 0u);
  sizes.counts[0] = 50;
  sizes.counts[3] = 49;
  sizes.counts[10] = 1;
  EXPECT_EQ(sizes.total(), 100u);
  EXPECT_EQ(sizes.percentile_bytes(0), 16u);
  EXPECT_EQ(sizes.percentile_bytes(50), 16u);
  EXPECT_EQ(sizes.percentile_bytes(51), 128u);
  EXPECT_EQ(sizes.percentile_bytes(99), 128u);
  EXPECT_EQ(sizes.percentile_bytes(100), 16u * kib);
}

TEST_F(TrackingResourceTest, CountsSizesAsTheyWereAskedFor) {
  for (const std::size_t bytes : {1u, 16u, 17u, 1000u}) give(take(bytes));
  const SizeHistogram sizes = resource.histogram();
  EXPECT_EQ(sizes.counts[0], 2u);
  EXPECT_EQ(sizes.counts[1], 1u);
  EXPECT_EQ(sizes.counts[6], 1u);
  EXPECT_EQ(sizes.total(), 4u);
}

}  // namespace
}  // namespace tern
