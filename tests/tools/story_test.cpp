// What a report says about a run agrees with the counters of the library, to the byte.

#include "tools/report/story.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::tools {
namespace {

class StoryOf : public testing::Test {
 protected:
  StoryOf() {
    path_ = (std::filesystem::temp_directory_path() / ("tern_story_" + std::to_string(getpid())))
                .string();
    trace::start(path_);
  }
  ~StoryOf() override {
    trace::stop();
    std::filesystem::remove(path_);
  }
  [[nodiscard]] Story story() const {
    trace::stop();
    return Story(trace::MemoryTrace::try_read(path_).value(), "run.trace");
  }
  [[nodiscard]] static const Story::Peak& peak_on(const Story& story, std::string_view device) {
    for (const Story::Peak& one : story.peaks) {
      if (story.devices[one.device] == device) return one;
    }
    throw std::runtime_error("the device has no peak");
  }

 private:
  std::string path_;
};

/// Allocates and frees at random. Blocks that are live at the end are returned.
std::vector<Block> run_random(Resource& resource, StreamRef stream, unsigned seed, int steps) {
  std::minstd_rand random(seed);
  std::vector<Block> live;
  for (int i = 0; i < steps; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const Tag tag = random() % 2 == 0 ? "even" : "odd";
      live.push_back(
          resource.allocate({.bytes = 1 + random() % (256 * kib), .stream = stream, .tag = tag}));
    } else {
      const std::size_t at = random() % live.size();
      resource.deallocate(live[at], stream);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return live;
}

class StoryOfDevice : public StoryOf, public testing::WithParamInterface<const char*> {};

TEST_P(StoryOfDevice, ARandomProgramAgreesWithTheCounters) {
  const Device device = open_device(GetParam());
  PoolResource pool(device);
  const Stream stream(device);
  const std::vector<Block> live = run_random(pool, stream, 5, 2000);
  const Statistics counted = pool.statistics();
  const Story seen = story();
  const Story::Peak& peak = peak_on(seen, device.spec());
  EXPECT_EQ(peak.live, counted.peak_live_bytes);
  std::uint64_t leaked = 0, blocks = 0, at_peak = 0, held = 0;
  for (const Story::Leak& one : seen.leaks) {
    leaked += one.bytes;
    blocks += one.blocks;
  }
  for (const Story::Share& one : peak.tags) at_peak += one.bytes;
  for (const Story::Hold& one : seen.holds) held = one.bytes;
  EXPECT_EQ(leaked, counted.live_bytes);
  EXPECT_EQ(blocks, counted.live_blocks);
  EXPECT_EQ(at_peak, peak.live);
  EXPECT_EQ(held, counted.reserved_bytes);
  EXPECT_EQ(seen.blocks.size(), counted.requests);
  EXPECT_TRUE(seen.notes.empty());
  for (const Block& block : live) pool.deallocate(block, stream);
}
INSTANTIATE_TEST_SUITE_P(Devices, StoryOfDevice,
                         testing::Values("host", "sim", "cuda:0?driver=sim"));

TEST_F(StoryOf, ThreadsAgreeWithTheCounters) {
  const Device device = open_device("host");
  PoolResource pool(device);
  {
    std::vector<test::Thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const Stream stream(device);
        for (const Block& block : run_random(pool, stream, i, 3000)) pool.deallocate(block, stream);
      });
    }
  }
  const Statistics counted = pool.statistics();
  const Story seen = story();
  EXPECT_EQ(seen.blocks.size(), counted.requests);
  EXPECT_TRUE(seen.leaks.empty());
  // No two live blocks overlap in the story: frees come before the next use of their memory.
  std::map<std::uint64_t, const Story::Block*> live;
  std::vector<const Story::Block*> by_end;
  for (const Story::Block& one : seen.blocks) by_end.push_back(&one);
  std::ranges::stable_sort(by_end, {}, &Story::Block::end);
  std::size_t ended = 0;
  for (const Story::Block& one : seen.blocks) {
    for (; ended < by_end.size() && by_end[ended]->end <= one.begin; ++ended) {
      const auto at = live.find(by_end[ended]->address);
      if (at != live.end() && at->second == by_end[ended]) live.erase(at);
    }
    const auto after = live.lower_bound(one.address);
    if (after != live.end()) {
      ASSERT_LE(one.address + one.bytes, after->first);
    }
    if (after != live.begin()) {
      const Story::Block& before = *std::prev(after)->second;
      ASSERT_LE(before.address + before.bytes, one.address);
    }
    live[one.address] = &one;
  }
}

TEST_F(StoryOf, CopiesAgreeWithTheTransferCounts) {
  const Device device = open_device("sim");
  const TransferCounts before = transfer_counts();
  {
    Buffer here(device, Shape::flat(1000), DType::f32);
    const std::vector<float> values(1000, 1.0F);
    std::vector<float> back(1000);
    for (int i = 0; i < 3; ++i) {
      here.copy_from(std::span<const float>(values));
      here.copy_to(std::span<float>(back));
    }
  }
  const TransferCounts moved = transfer_counts() - before;
  const Story seen = story();
  using enum Story::Direction;
  const auto& in = seen.transfers[static_cast<std::size_t>(to_device)];
  const auto& out = seen.transfers[static_cast<std::size_t>(to_host)];
  EXPECT_EQ(in.bytes, moved.host_to_device().bytes);
  EXPECT_EQ(in.calls, moved.host_to_device().copies);
  EXPECT_EQ(out.bytes, moved.device_to_host().bytes);
  EXPECT_EQ(out.calls, moved.device_to_host().copies);
}

TEST_F(StoryOf, ARefusalNamesWhatWasLive) {
  const Device device = open_device("sim");
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Stream stream(device);
  const Block weights = pool.allocate({.bytes = 6 * mib, .stream = stream, .tag = "weights"});
  EXPECT_FALSE(pool.try_allocate({.bytes = 4 * mib, .stream = stream, .tag = "batch"}));
  const auto budget = Budget::make("small", BudgetLimit::bytes(1 * mib));
  BudgetResource budgeted(std::make_shared<DirectResource>(device), budget);
  EXPECT_FALSE(budgeted.try_allocate({.bytes = 2 * mib, .tag = "batch"}));
  const Story seen = story();
  ASSERT_EQ(seen.refusals.size(), 2u);
  const Story::Refusal& first = seen.refusals[0];
  EXPECT_EQ(first.bytes, 4 * mib);
  EXPECT_EQ(first.live, 6 * mib);
  EXPECT_EQ(first.held, 6 * mib);
  EXPECT_EQ(first.error, "out_of_memory");
  EXPECT_EQ(seen.tags[first.tag], "batch");
  ASSERT_EQ(first.tags.size(), 1u);
  EXPECT_EQ(seen.tags[first.tags[0].tag], "weights");
  EXPECT_NE(seen.sites[first.site].find("story_test.cpp"), std::string::npos);
  EXPECT_EQ(seen.refusals[1].error, "out_of_budget 'small'");
  EXPECT_NE(text_report(seen).find("4.0 MiB for batch"), std::string::npos);
  pool.deallocate(weights, stream);
}

TEST_F(StoryOf, BlocksFromBeforeTheRecordingAreShownOnceTheyAreFreed) {
  trace::stop();
  const Device device = open_device("host");
  PoolResource pool(device);
  const Block freed = pool.allocate({.bytes = 1 * mib, .tag = "early"});
  const Block kept = pool.allocate({.bytes = 2 * mib, .tag = "early"});
  const std::string path = (std::filesystem::temp_directory_path() / "tern_story_early").string();
  trace::start(path);
  const Block later = pool.allocate({.bytes = 4 * mib, .tag = "later"});
  pool.deallocate(freed, {});
  pool.deallocate(later, {});
  trace::stop();
  const Story seen(trace::MemoryTrace::try_read(path).value(), "run.trace");
  std::filesystem::remove(path);
  ASSERT_EQ(seen.blocks.size(), 2u);
  EXPECT_EQ(seen.blocks[0].begin, 0u);
  EXPECT_EQ(seen.tags[seen.blocks[0].tag], "early");
  EXPECT_EQ(peak_on(seen, device.spec()).live, 5 * mib);
  ASSERT_EQ(seen.notes.size(), 1u);
  EXPECT_NE(seen.notes[0].find("2.0 MiB"), std::string::npos);
  pool.deallocate(kept, {});
}

TEST_F(StoryOf, HostileTextsDoNotEndTheScriptOfThePage) {
  {
    const trace::Range range("</script><script>alert(1)</script>\x1b[31m\xff");
    const Device device = open_device("host");
    DirectResource resource(device);
    resource.deallocate(resource.allocate({.bytes = 10, .tag = "</script><b>@COLUMNS@"}), {});
  }
  const Story seen = story();
  const std::string page = page_report(seen);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(text_report(seen).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tern::tools
