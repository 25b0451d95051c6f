// What a report says about a run agrees with the counters of the library, to the byte.

#include "tools/report/trace_summary.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/gate.hpp"
#include "support/made_recording.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::tools {
namespace {

class SummaryOf : public testing::Test {
 protected:
  SummaryOf() {
    path_ = (std::filesystem::temp_directory_path() / ("tern_summary_" + std::to_string(getpid())))
                .string();
    trace::start(path_);
  }
  ~SummaryOf() override {
    trace::stop();
    std::filesystem::remove(path_);
  }
  [[nodiscard]] TraceSummary summary() const {
    trace::stop();
    return TraceSummary(trace::MemoryTrace::try_read(path_).value(), "run.trace");
  }
  [[nodiscard]] static const TraceSummary::Peak& peak_on(const TraceSummary& summary,
                                                         std::string_view device) {
    for (const TraceSummary::Peak& one : summary.peaks) {
      if (summary.devices[one.device] == device) return one;
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

class SummaryOfDevice : public SummaryOf, public testing::WithParamInterface<const char*> {};

TEST_F(SummaryOf, BudgetsAgreeWithTheirPeaks) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  const BudgetHandle process = Budget::make("process", BudgetLimit::unlimited());
  std::size_t peak = 0;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const Stream stream(device);
    const BudgetHandle task =
        Budget::make("task", BudgetLimit::bytes(32 * mib), {.parent = process});
    BudgetResource resource(std::make_shared<DirectResource>(device), task);
    for (const Block& block : run_random(resource, stream, seed, 100)) {
      resource.deallocate(block, stream);
    }
    EXPECT_FALSE(resource.try_allocate({.bytes = 33 * mib}));
    peak = std::max(peak, task->peak_bytes());
  }
  const TraceSummary seen = summary();
  ASSERT_EQ(seen.budgets.size(), 2u);
  EXPECT_EQ(seen.budgets[0].path, "process");
  EXPECT_EQ(seen.budgets[0].highest, process->peak_bytes());
  EXPECT_EQ(seen.budgets[0].limit, trace::no_limit);
  EXPECT_EQ(seen.budgets[0].refused, 0u);
  EXPECT_EQ(seen.budgets[1].path, "process/task");
  EXPECT_EQ(seen.budgets[1].count, 3u);
  EXPECT_EQ(seen.budgets[1].highest, peak);
  EXPECT_EQ(seen.budgets[1].limit, 32 * mib);
  EXPECT_EQ(seen.budgets[1].refused, 3u);
  const std::string text = text_report(seen);
  EXPECT_NE(text.find("3  process/task (3 budgets)\n"), std::string::npos) << text;
}

TEST(SummaryOfBudgets, HasTheHighestUseWithItsTimeAndItsWaits) {
  test::MadeRecording made;
  made.trace.define(trace::DefinitionKind::text, 4, {"process"});
  const auto use = [&](std::uint64_t bytes, std::uint64_t limit) {
    trace::MemoryEvent& event = made.add(trace::EventKind::budget_use);
    event.block = 7;
    event.bytes = bytes;
    event.address = limit;
    event.extra = 4;
  };
  made.trace.header.start_ns = made.time_ns;
  use(0, 100);
  use(90, 100);
  use(90, 200);
  use(10, 50);
  for (const std::uint64_t number : {7u, 7u, 8u, 0u}) {
    trace::MemoryEvent& wait = made.add(trace::EventKind::budget_wait);
    wait.block = number;
    wait.extra = 5;
  }
  const TraceSummary seen(made.trace, "made");
  ASSERT_EQ(seen.budgets.size(), 1u) << "a budget needs a use";
  EXPECT_EQ(seen.budgets[0].highest, 90u);
  EXPECT_EQ(seen.budgets[0].limit, 100u) << "at that time";
  EXPECT_EQ(seen.budgets[0].time, 1u);
  EXPECT_EQ(seen.budgets[0].waits, 2u);
  EXPECT_EQ(seen.budgets[0].waited, 10u);
  EXPECT_EQ(seen.budget_waits.calls, 4u);
  EXPECT_NE(text_report(seen).find(
                "Budgets at their highest use:\n"
                "        used      limit  share         at    waits  refused  budget\n"
                "        90 B      100 B   90 %       1 ns        2        0  process\n"),
            std::string::npos)
      << text_report(seen);
}

TEST_P(SummaryOfDevice, ARandomProgramAgreesWithTheCounters) {
  const Device device = open_device(GetParam());
  PoolResource pool(device);
  const Stream stream(device);
  const std::vector<Block> live = run_random(pool, stream, 5, 2000);
  const Statistics counted = pool.statistics();
  const TraceSummary seen = summary();
  const TraceSummary::Peak& peak = peak_on(seen, device.spec());
  EXPECT_EQ(peak.live, counted.peak_live_bytes);
  std::uint64_t leaked = 0, blocks = 0, at_peak = 0, held = 0;
  for (const TraceSummary::Leak& one : seen.leaks) {
    leaked += one.bytes;
    blocks += one.blocks;
  }
  for (const TraceSummary::Share& one : peak.tags) at_peak += one.bytes;
  for (const TraceSummary::Hold& one : seen.holds) held = one.bytes;
  EXPECT_EQ(leaked, counted.live_bytes);
  EXPECT_EQ(blocks, counted.live_blocks);
  EXPECT_EQ(at_peak, peak.live);
  EXPECT_EQ(held, counted.reserved_bytes);
  EXPECT_EQ(seen.blocks.size(), counted.requests);
  EXPECT_TRUE(seen.notes.empty());
  for (const Block& block : live) pool.deallocate(block, stream);
}
INSTANTIATE_TEST_SUITE_P(Devices, SummaryOfDevice,
                         testing::Values("host", "sim", "cuda:0?driver=sim"));

TEST_F(SummaryOf, ThreadsAgreeWithTheCounters) {
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
  const TraceSummary seen = summary();
  EXPECT_EQ(seen.blocks.size(), counted.requests);
  EXPECT_TRUE(seen.leaks.empty());
  // No two live blocks overlap in the summary: frees come before the next use of their memory.
  std::map<std::uint64_t, const TraceSummary::Block*> live;
  std::vector<const TraceSummary::Block*> by_end;
  for (const TraceSummary::Block& one : seen.blocks) by_end.push_back(&one);
  std::ranges::stable_sort(by_end, {}, &TraceSummary::Block::end);
  std::size_t ended = 0;
  for (const TraceSummary::Block& one : seen.blocks) {
    for (; ended < by_end.size() && by_end[ended]->end <= one.begin; ++ended) {
      const auto at = live.find(by_end[ended]->address);
      if (at != live.end() && at->second == by_end[ended]) live.erase(at);
    }
    const auto after = live.lower_bound(one.address);
    if (after != live.end()) {
      ASSERT_LE(one.address + one.bytes, after->first);
    }
    if (after != live.begin()) {
      const TraceSummary::Block& before = *std::prev(after)->second;
      ASSERT_LE(before.address + before.bytes, one.address);
    }
    live[one.address] = &one;
  }
}

TEST_F(SummaryOf, CopiesAgreeWithTheTransferCounts) {
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
  const TraceSummary seen = summary();
  using enum TraceSummary::Direction;
  const auto& in = seen.transfers[static_cast<std::size_t>(to_device)];
  const auto& out = seen.transfers[static_cast<std::size_t>(to_host)];
  EXPECT_EQ(in.bytes, moved.host_to_device().bytes);
  EXPECT_EQ(in.calls, moved.host_to_device().copies);
  EXPECT_EQ(out.bytes, moved.device_to_host().bytes);
  EXPECT_EQ(out.calls, moved.device_to_host().copies);
}

TEST_F(SummaryOf, MemoryOfTheHostIsNoMemoryOfADevice) {
  const Device host = open_device("host"), device = open_device("sim");
  const TransferCounts before = transfer_counts();
  {
    Buffer here(host, Shape::flat(1000), DType::f32), there(device, Shape::flat(1000), DType::f32);
    const std::vector<float> values(1000, 1.0F);
    here.copy_from(std::span<const float>(values));
    const Stream stream(device), host_stream(host);
    copy(there, here, stream);
    copy(there, here, stream);
    copy(here, there, stream);
    stream.synchronize();
    Buffer other(host, Shape::flat(1000), DType::f32);
    copy(other, here, host_stream);
    host_stream.synchronize();
  }
  const TransferCounts moved = transfer_counts() - before;
  const TraceSummary seen = summary();
  using enum TraceSummary::Direction;
  EXPECT_EQ(moved.host_to_device().copies, 2u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(to_device)].calls, 2u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(to_device)].bytes,
            moved.host_to_device().bytes);
  EXPECT_EQ(moved.device_to_host().copies, 1u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(to_host)].calls, 1u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(to_host)].bytes, moved.device_to_host().bytes);
  EXPECT_EQ(moved.between_devices().copies, 0u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(between_devices)].calls, 0u);
  EXPECT_GE(seen.transfers[static_cast<std::size_t>(within_host)].calls, 1u);
  EXPECT_EQ(seen.transfers[static_cast<std::size_t>(within_device)].calls, 0u);
}

TEST_F(SummaryOf, EachPoolHasItsOwnPeaks) {
  const Device device = open_device("sim?seed=71");
  PoolResource early(device), late(device);
  const Stream stream(device);
  const Block first = early.allocate({.bytes = 6 * mib, .stream = stream});
  const Block second = early.allocate({.bytes = 4 * mib, .stream = stream});
  early.deallocate(first, stream);
  stream.synchronize();
  EXPECT_GT(early.trim(0), 0u);
  const Block third = late.allocate({.bytes = 8 * mib, .stream = stream});
  const PoolStatistics counted_early = early.pool_statistics();
  const PoolStatistics counted_late = late.pool_statistics();
  const TraceSummary seen = summary();
  early.deallocate(second, stream);
  late.deallocate(third, stream);
  // Pools of other tests may have returned memory meanwhile.
  std::vector<TraceSummary::Resource> used = seen.resources;
  std::erase_if(used, [](const TraceSummary::Resource& pool) { return pool.peak_live == 0; });
  ASSERT_EQ(used.size(), 2u);
  const TraceSummary::Resource &one = used[0], &other = used[1];
  EXPECT_EQ(one.peak_live, 10 * mib);
  EXPECT_EQ(one.live_at_end, 4 * mib);
  EXPECT_EQ(one.peak_held, counted_early.peak_held_bytes);
  EXPECT_EQ(one.held_at_end, counted_early.held_bytes);
  EXPECT_LT(one.held_at_end, one.peak_held);
  EXPECT_EQ(other.peak_live, 8 * mib);
  EXPECT_EQ(other.live_at_end, 8 * mib);
  EXPECT_EQ(other.peak_held, counted_late.peak_held_bytes);
  EXPECT_GT(other.peak_time, one.peak_time);
  const TraceSummary::Peak& peak = peak_on(seen, device.spec());
  EXPECT_EQ(peak.live, 12 * mib);
  EXPECT_EQ(peak.live_at_end, 12 * mib);
  EXPECT_EQ(peak.peak_held, std::max(counted_early.peak_held_bytes,
                                     counted_early.held_bytes + counted_late.held_bytes));
}

TEST_F(SummaryOf, ARefusalNamesWhatWasLive) {
  const Device device = open_device("sim");
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Stream stream(device);
  const Block weights = pool.allocate({.bytes = 6 * mib, .stream = stream, .tag = "weights"});
  EXPECT_FALSE(pool.try_allocate({.bytes = 4 * mib, .stream = stream, .tag = "batch"}));
  const auto budget = Budget::make("small", BudgetLimit::bytes(1 * mib));
  BudgetResource budgeted(std::make_shared<DirectResource>(device), budget);
  EXPECT_FALSE(budgeted.try_allocate({.bytes = 2 * mib, .tag = "batch"}));
  const TraceSummary seen = summary();
  ASSERT_EQ(seen.refusals.size(), 2u);
  const TraceSummary::Refusal& first = seen.refusals[0];
  EXPECT_EQ(first.bytes, 4 * mib);
  EXPECT_EQ(first.live, 6 * mib);
  EXPECT_EQ(first.held, 6 * mib);
  EXPECT_EQ(first.error, "out_of_memory");
  EXPECT_EQ(seen.tags[first.tag], "batch");
  ASSERT_EQ(first.tags.size(), 1u);
  EXPECT_EQ(seen.tags[first.tags[0].tag], "weights");
  EXPECT_NE(seen.sites[first.site].find("trace_summary_test.cpp"), std::string::npos);
  EXPECT_EQ(seen.refusals[1].error, "out_of_budget 'small'");
  EXPECT_NE(text_report(seen).find("4.0 MiB (tag 'batch')"), std::string::npos);
  pool.deallocate(weights, stream);
}

TEST_F(SummaryOf, ARefusalOfAPoolKnowsItsLimitAndItsBacking) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  for (const PoolBacking backing : {PoolBacking::pages, PoolBacking::segments}) {
    PoolResource pool(device, {.limit_bytes = 8 * mib, .backing = backing});
    EXPECT_FALSE(pool.try_allocate({.bytes = 9 * mib}));
    pool.set_limit(0);
    EXPECT_FALSE(pool.try_allocate({.bytes = 1 * gib}));
  }
  DirectResource direct(device);
  EXPECT_FALSE(direct.try_allocate({.bytes = 1 * gib}));
  const TraceSummary seen = summary();
  ASSERT_EQ(seen.refusals.size(), 5u);
  for (const std::size_t i : {0u, 2u}) {
    EXPECT_EQ(seen.refusals[i].limit, 8 * mib);
    EXPECT_EQ(seen.refusals[i + 1].limit, trace::no_limit);
    EXPECT_EQ(name(seen.refusals[i].backing), i == 0 ? "pages" : "segments");
  }
  EXPECT_EQ(seen.refusals[4].limit, 0u);
  EXPECT_EQ(name(seen.refusals[4].backing), "");
  EXPECT_NE(text_report(seen).find("0 B were live, limit 8.0 MiB"), std::string::npos)
      << text_report(seen);
  EXPECT_NE(json_report(seen).find("\"limit_bytes\": 8388608"), std::string::npos);
  EXPECT_NE(json_report(seen).find("\"limit_bytes\": null"), std::string::npos);
}

TEST_F(SummaryOf, ARefusalKnowsTheLargestFreeRange) {
  const Device device = open_device("sim");
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Stream stream(device);
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(pool.allocate({.bytes = 1 * mib, .stream = stream}));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) pool.deallocate(blocks[i], stream);
  EXPECT_FALSE(pool.try_allocate({.bytes = 3 * mib, .stream = stream}));
  for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(blocks[i], stream);
  const TraceSummary seen = summary();
  ASSERT_EQ(seen.refusals.size(), 1u);
  EXPECT_EQ(seen.refusals[0].largest_free, 1 * mib);
  EXPECT_EQ(seen.refusals[0].resource_live, 4 * mib);
  EXPECT_EQ(seen.refusals[0].pending, 0u);
}

TEST_F(SummaryOf, APoolThatGrowsSaysWhatIsPending) {
  const Device device = open_device("host");
  PoolResource pool(device);
  const Stream ahead(device), behind(device);
  test::Gate gate;
  gate.hold(behind);
  std::uint64_t most = 0;
  for (int i = 0; i < 8; ++i) {
    pool.deallocate(pool.allocate({.bytes = 3 * mib, .stream = ahead, .tag = "result"}), behind);
    most = std::max<std::uint64_t>(most, pool.statistics().pending_bytes);
  }
  EXPECT_FALSE(
      pool.try_allocate({.bytes = std::size_t{1} << 50, .stream = ahead, .wait = Wait::never}));
  gate.open();
  device.synchronize();
  const TraceSummary seen = summary();
  EXPECT_GT(most, 0u);
  const TraceSummary::Hold& last = seen.holds.back();
  EXPECT_GT(last.pending, 0u);
  EXPECT_LE(last.pending, most);
  EXPECT_EQ(last.requested, 3 * mib);
  EXPECT_EQ(seen.tags[last.tag], "result");
  EXPECT_NE(seen.sites[last.site].find("trace_summary_test.cpp"), std::string::npos);
  EXPECT_GE(seen.refusals.at(0).pending, most) << "and what the stream had in its cache";
}

TEST_F(SummaryOf, APoolThatIsDestroyedHoldsNothing) {
  const Device device = open_device("host");
  {
    PoolResource pool(device);
    pool.deallocate(pool.allocate({.bytes = 4 * mib}), {});
  }
  const TraceSummary seen = summary();
  ASSERT_GE(seen.holds.size(), 2u);
  EXPECT_GE(std::ranges::max(seen.holds, {}, &TraceSummary::Hold::bytes).bytes, 4 * mib);
  EXPECT_EQ(seen.holds.back().bytes, 0u);
}

TEST_F(SummaryOf, BlocksFromBeforeTheRecordingAreShownOnceTheyAreFreed) {
  trace::stop();
  const Device device = open_device("host");
  PoolResource pool(device);
  const Block freed = pool.allocate({.bytes = 1 * mib, .tag = "early"});
  const Block kept = pool.allocate({.bytes = 2 * mib, .tag = "early"});
  const std::string path = (std::filesystem::temp_directory_path() / "tern_summary_early").string();
  trace::start(path);
  const Block later = pool.allocate({.bytes = 4 * mib, .tag = "later"});
  pool.deallocate(freed, {});
  pool.deallocate(later, {});
  trace::stop();
  const TraceSummary seen(trace::MemoryTrace::try_read(path).value(), "run.trace");
  std::filesystem::remove(path);
  ASSERT_EQ(seen.blocks.size(), 2u);
  EXPECT_EQ(seen.blocks[0].begin, 0u);
  EXPECT_EQ(seen.tags[seen.blocks[0].tag], "early");
  EXPECT_EQ(peak_on(seen, device.spec()).live, 5 * mib);
  EXPECT_EQ(seen.resources.at(0).peak_live, 5 * mib);
  EXPECT_EQ(seen.resources.at(0).live_at_end, 0u);
  ASSERT_EQ(seen.notes.size(), 1u);
  EXPECT_NE(seen.notes[0].find("2.0 MiB"), std::string::npos);
  pool.deallocate(kept, {});
}

/// Returns a summary of events that no library would record.
TraceSummary summary_of(const std::vector<trace::MemoryEvent>& events) {
  trace::MemoryTrace made;
  made.header.is_closed = 1;
  made.events = events;
  made.threads.resize(events.size(), 1);
  return TraceSummary(made, "made");
}

trace::MemoryEvent event(trace::EventKind kind, std::uint64_t time, std::uint64_t block,
                         std::uint64_t address, std::uint64_t bytes) {
  trace::MemoryEvent made;
  made.kind = kind;
  made.time_ns = time;
  made.block = block;
  made.address = address;
  made.bytes = bytes;
  made.device = made.resource = 1;
  return made;
}

TEST(MadeUpTraces, ABlockEndsWhereAnotherBeginsIfItsFreeIsMissing) {
  using enum trace::EventKind;
  const TraceSummary seen =
      summary_of({event(allocate, 1, 1, 0x1000, gib), event(allocate, 2, 2, 0x1000, gib),
                  event(free, 3, 2, 0x1000, gib), event(free, 4, 1, 0x1000, gib)});
  EXPECT_EQ(seen.peaks.at(0).live, gib);
  EXPECT_TRUE(seen.leaks.empty());
}

TEST(MadeUpTraces, ALineHasOneRowHoweverManyNumbersItHas) {
  trace::MemoryTrace made;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    made.define(trace::DefinitionKind::site, i, {"model.cpp", 12, 0, 0});
    trace::MemoryEvent one = event(trace::EventKind::allocate, i, i, i * 0x1000, 256);
    one.site = i;
    made.events.push_back(one);
    made.threads.push_back(i);
  }
  const TraceSummary seen(made, "made");
  ASSERT_EQ(seen.leaks.size(), 1u);
  EXPECT_EQ(seen.leaks[0].blocks, 3u);
}

TEST(MadeUpTraces, CopiesHaveTheTimesOfTheDevice) {
  using enum trace::EventKind;
  std::vector<trace::MemoryEvent> events = {event(copy, 10, 1, 0x1000, 600),
                                            event(copy, 20, 2, 0x2000, 300),
                                            event(copy, 30, 0, 0x3000, 7)};
  trace::MemoryEvent first = event(copy_time, 100, 1, 0, 0), second = event(copy_time, 40, 2, 0, 0);
  first.extra = 60;
  second.extra = 30;
  events.insert(events.end(), {second, first, event(copy_time, 200, 9, 0, 0)});
  const TraceSummary seen = summary_of(events);
  ASSERT_EQ(seen.copies.size(), 3u);
  // The second copy ran first.
  EXPECT_EQ(seen.copies[0].bytes, 7u);
  EXPECT_EQ(seen.copies[0].took, 0u);
  EXPECT_EQ(seen.copies[1].time, 40u);
  EXPECT_EQ(seen.copies[1].took, 30u);
  EXPECT_EQ(seen.copies[2].time, 100u);
  EXPECT_EQ(seen.copies[2].took, 60u);
  const auto& sum = seen.transfers[static_cast<std::size_t>(TraceSummary::Direction::unknown)];
  EXPECT_EQ(sum.bytes, 907u);
  EXPECT_EQ(sum.timed_bytes, 900u);
  EXPECT_EQ(sum.busy, 90u);
}

TEST(MadeUpTraces, ManyDevicesAndTagsTakeLittleTime) {
  std::vector<trace::MemoryEvent> events;
  for (std::uint32_t i = 1; i <= 20'000; ++i) {
    trace::MemoryEvent one = event(trace::EventKind::allocate, i, i, i * 0x1000, 256);
    one.device = one.resource = i;
    one.tag = static_cast<std::uint16_t>(i);
    events.push_back(one);
    one.kind = trace::EventKind::refuse;
    one.device = one.resource = 1;
    events.push_back(one);
  }
  const TraceSummary seen = summary_of(events);
  EXPECT_EQ(seen.devices.size(), 20'000u);
  EXPECT_LT(page_report(seen).size(), 60 * mib);
}

TEST(MadeUpTraces, PageLockedMemoryIsNotMemoryOfItsDevice) {
  trace::MemoryTrace made;
  made.define(trace::DefinitionKind::device, 1, {"cuda:0", 0, 0, 0});
  made.define(trace::DefinitionKind::resource, 1,
              {"pool", 0, 1, static_cast<std::uint8_t>(MemoryKind::pinned)});
  made.events = {event(trace::EventKind::allocate, 1, 1, 0x1000, 256)};
  made.threads = {1};
  const TraceSummary seen(made, "made");
  EXPECT_EQ(seen.devices.at(seen.peaks.at(0).device), "page-locked memory of cuda:0");
}

TEST_F(SummaryOf, HostileTextsDoNotEndTheScriptOfThePage) {
  {
    const trace::Range range("</script><script>alert(1)</script>\x1b[31m\xff");
    const trace::Range control("\u009b31m\u202e");
    const Device device = open_device("host");
    DirectResource resource(device);
    resource.deallocate(
        resource.allocate({.bytes = 10, .tag = "</script><b>@COLUMNS@\u009b1m\u202e\xff"}), {});
  }
  const TraceSummary seen = summary();
  const std::string page = page_report(seen);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  const std::string text = text_report(seen);
  for (const char* const bad : {"\x1b", "\u009b", "\u202e", "\xff"}) {
    EXPECT_EQ(text.find(bad), std::string::npos);
  }
}

}  // namespace
}  // namespace tern::tools
