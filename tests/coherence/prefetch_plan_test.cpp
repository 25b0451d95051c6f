#include "tern/coherence/prefetch_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/copy_places.hpp"
#include "support/managed_calls.hpp"
#include "support/managed_places.hpp"
#include "support/simulated.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/managed_buffer.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

using cuda::ManagedCalls;
using cuda::ManagedDevices;
using Calls = std::vector<std::string>;

constexpr std::size_t page = 4096;

/// By the batch call of a driver as of today, and one by one.
class PrefetchPlanOfDriver : public testing::TestWithParam<int> {
 protected:
  PrefetchPlanOfDriver() {
    buffer.buffer().ensure_allocated();
    ManagedCalls::base = buffer.buffer().address();
    static_cast<void>(ManagedCalls::take());
  }
  [[nodiscard]] static bool has_batches() { return GetParam() >= 13000; }
  [[nodiscard]] ManagedBuffer<std::uint8_t> part(std::size_t at, std::size_t pages = 1) const {
    return buffer.slice(at * page, pages * page);
  }

  ManagedDevices bench{GetParam()};
  const Device& first = bench.devices[0];
  const Device& second = bench.devices[1];
  ManagedBuffer<std::uint8_t> buffer{first, {16 * page}};
  Stream stream{first};
};
INSTANTIATE_TEST_SUITE_P(EveryShape, PrefetchPlanOfDriver, testing::Values(13000, 12020, 12010));

// --- Running a plan

TEST_P(PrefetchPlanOfDriver, SendsItsEntriesInOrder) {
  PrefetchPlan plan;
  plan.add(part(4), first.place()).add(part(0, 2), second.place()).add(part(8), Place::host());
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 3u);
  EXPECT_EQ(report.skipped, 0u);
  EXPECT_EQ(report.bytes, 4 * page);
  const std::string device = GetParam() == 12010 ? "ordinal " : "device ";
  const std::string host = GetParam() == 12010 ? "cpu" : "host";
  if (has_batches()) {
    EXPECT_EQ(ManagedCalls::take(),
              (Calls{"prefetch batch [16384, 20480) device 0 [0, 8192) device 1 [32768, 36864) "
                     "host"}));
  } else {
    EXPECT_EQ(ManagedCalls::take(),
              (Calls{"prefetch [16384, 20480) " + device + "0",
                     "prefetch [0, 8192) " + device + "1", "prefetch [32768, 36864) " + host}));
  }
  stream.synchronize();
}

TEST_P(PrefetchPlanOfDriver, JoinsRangesThatContinueEachOther) {
  PrefetchPlan plan;
  plan.add(part(0), first.place()).add(part(1), first.place());
  EXPECT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan.execute(stream).sent, 2u);
  EXPECT_EQ(ManagedCalls::take(), (Calls{GetParam() == 12010 ? "prefetch [0, 8192) ordinal 0"
                                                             : "prefetch [0, 8192) device 0"}));
  stream.synchronize();
}

TEST_P(PrefetchPlanOfDriver, StopsAtTheFirstThatIsRefusedAndSaysWhich) {
  PrefetchPlan plan;
  for (std::size_t i = 0; i < 5; ++i) plan.add(part(2 * i), first.place());
  const char* const slot = GetParam() == 12010 ? "cuMemPrefetchAsync_8000" : "cuMemPrefetchAsync";
  ManagedCalls::fail("cuMemPrefetchBatchAsync", 1, true);
  ManagedCalls::fail(slot, 3);
  const auto refused = plan.try_execute(stream);
  ASSERT_EQ(cuda::code(refused), "driver");
  EXPECT_EQ(refused.failure().number("index"), 2u);
  EXPECT_EQ(refused.failure().number("enqueued"), 2u);
  EXPECT_NE(refused.failure().string("cause")->find("cuMemPrefetchAsync"), std::string::npos);
  EXPECT_NE(refused.failure().text().find("entry 2 of a prefetch plan"), std::string::npos);
  stream.synchronize();
  const Hints hints = buffer.hints();
  EXPECT_EQ(hints.query(HintRange{2 * page, page}).last_prefetch, first.place());
  EXPECT_FALSE(hints.query(HintRange{4 * page, page}).last_prefetch);
  // Entries that were joined count as they were added.
  PrefetchPlan joined;
  joined.add(part(0), first.place()).add(part(1), first.place()).add(part(4), first.place());
  ManagedCalls::fail("cuMemPrefetchBatchAsync", 1, true);
  ManagedCalls::fail(slot, 2);
  const auto again = joined.try_execute(stream);
  ASSERT_EQ(cuda::code(again), "driver");
  EXPECT_EQ(again.failure().number("index"), 2u);
  EXPECT_EQ(again.failure().number("enqueued"), 2u);
  stream.synchronize();
}

TEST_P(PrefetchPlanOfDriver, SendsLargeRangesOnTwoStreamsInTurn) {
  std::vector<ManagedBuffer<std::uint8_t>> all;
  PrefetchPlan plan;
  for (int i = 0; i < 5; ++i) {
    all.emplace_back(first, Shape{1 * mib});
    { std::ranges::fill(all.back().discard_host(), std::uint8_t{1}); }
    plan.add(all.back(), first.place());
  }
  const char* const slot = GetParam() == 12010 ? "cuMemPrefetchAsync_8000" : "cuMemPrefetchAsync";
  static_cast<void>(ManagedCalls::take());
  EXPECT_EQ(plan.execute(stream).sent, 5u);
  EXPECT_EQ(ManagedCalls::take().size(), 5u) << "none of them was one for many";
  stream.synchronize();
  for (const ManagedBuffer<std::uint8_t>& one : all) {
    EXPECT_EQ(one.hints().query().last_prefetch, first.place());
  }
  // One that is refused is told by its place in the plan, as ever.
  ManagedCalls::fail(slot, 4);
  const auto refused = plan.try_execute(stream);
  ASSERT_EQ(cuda::code(refused), "driver");
  EXPECT_EQ(refused.failure().number("index"), 3u);
  EXPECT_EQ(refused.failure().number("enqueued"), 3u);
  stream.synchronize();
}

TEST(PrefetchPlan, HasAllOfItBehindItsStreamWhicheverWayItWent) {
  // Nothing runs there until somebody waits for it.
  const Device device = open_device("sim?schedule=lazy");
  const Stream stream(device);
  std::vector<ManagedBuffer<std::uint8_t>> all;
  PrefetchPlan plan;
  for (int i = 0; i < 4; ++i) {
    all.emplace_back(device, Shape{1 * mib});
    { std::ranges::fill(all.back().discard_host(), std::uint8_t{1}); }
    plan.add(all.back(), device.place());
  }
  sim::set_faults(device, "");
  EXPECT_EQ(plan.execute(stream).sent, 4u);
  const std::uint64_t waits = sim::calls(device, "wait");
  EXPECT_EQ(waits, 2u) << "there and back";
  stream.synchronize();
  for (const ManagedBuffer<std::uint8_t>& one : all) {
    EXPECT_EQ(one.hints().query().last_prefetch, device.place());
  }
}

TEST_P(PrefetchPlanOfDriver, UsesOneStreamForEachDevice) {
  const Stream elsewhere(second);
  PrefetchPlan plan;
  plan.add(part(0), first.place())
      .add(part(2), second.place())
      .add(part(4), Place::host())
      .add(part(6), second.place());
  const std::array<StreamRef, 2> streams = {stream, elsewhere};
  EXPECT_EQ(plan.execute(streams).sent, 4u);
  stream.synchronize();
  elsewhere.synchronize();
  EXPECT_EQ(buffer.hints().query(HintRange{4 * page, page}).last_prefetch, Place::host());
  EXPECT_EQ(buffer.hints().query(HintRange{6 * page, page}).last_prefetch, second.place());
  // One that nobody can carry out stops it; those before it are on their way.
  const auto refused = plan.try_execute(std::span(streams).first(1));
  ASSERT_EQ(cuda::code(refused), "stream_misuse");
  EXPECT_EQ(refused.failure().number("index"), 1u);
  EXPECT_EQ(refused.failure().number("enqueued"), 1u);
  stream.synchronize();
}

TEST_P(PrefetchPlanOfDriver, IsCarriedOutOnTheDefaultStreamToo) {
  PrefetchPlan plan;
  plan.add(part(0), first.place()).add(part(2), first.place());
  EXPECT_EQ(plan.execute(first.default_stream()).sent, 2u);
  EXPECT_EQ(ManagedCalls::take().size(), 2u);
  first.synchronize();
}

// --- The list of entries

TEST(PrefetchPlan, IsEmptyAtFirst) {
  const PrefetchPlan plan;
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.size(), 0u);
  EXPECT_TRUE(plan.entries().empty());
  EXPECT_TRUE(plan.merged().empty());
  EXPECT_TRUE(plan.peaks().empty());
  EXPECT_EQ(plan.text(), "prefetch plan, 0 entries");
  ManagedDevices bench;
  const Stream stream(bench.devices[0]);
  const std::uint64_t before = ManagedCalls::total;
  EXPECT_EQ(plan.execute(stream).sent, 0u);
  EXPECT_EQ(ManagedCalls::total, before);
}

TEST(PrefetchPlan, LooksAtEachEntryWhenItIsAdded) {
  const Device device = sim::open({}), other = open_device("host");
  const ManagedBuffer<std::uint8_t> buffer(device, {4096});
  PrefetchPlan plan;
  plan.add(buffer, device.place());
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const HintRange range : {HintRange{4000, 200}, HintRange{most, 1}, HintRange{1, most}}) {
    const auto refused = plan.try_add(buffer.buffer(), device.place(), range);
    ASSERT_EQ(cuda::code(refused), "invalid_view");
    EXPECT_EQ(refused.failure().number("extent"), 4096u);
  }
  // Not past the view, although the memory goes on.
  EXPECT_EQ(
      cuda::code(plan.try_add(buffer.slice(0, 100).buffer(), device.place(), HintRange{50, 51})),
      "invalid_view");
  EXPECT_EQ(cuda::code(plan.try_add(buffer.buffer(), Place::device(DeviceId{99999}))),
            "invalid_device");
  EXPECT_EQ(cuda::code(plan.try_add(buffer.buffer(), Place::file())), "invalid_device");
  EXPECT_EQ(cuda::code(plan.try_add(buffer.buffer(), other.place())), "device_mismatch");
  EXPECT_EQ(cuda::code(plan.try_add(Buffer(device, {64}, DType::u8), device.place())),
            "invalid_argument");
  EXPECT_EQ(cuda::code(plan.try_add(Buffer(), device.place())), "invalid_argument");
  EXPECT_EQ(cuda::code(plan.try_add(std::shared_ptr<const PrefetchTarget>(), device.place())),
            "invalid_argument");
  EXPECT_THROW(plan.add(buffer, Place::file()), InvalidDevice);
  EXPECT_EQ(plan.size(), 1u);
  EXPECT_FALSE(buffer.is_allocated());
}

TEST(PrefetchPlan, KeepsItsEntriesAndTheirOrder) {
  const Device device = sim::open({});
  const ManagedBuffer<std::uint8_t> a(device, {8 * page}), b(device, {8 * page});
  const Place there = device.place();
  PrefetchPlan plan;
  plan.add(a, there, HintRange{0, page})
      .add(a, there, HintRange{page, page})              // continues
      .add(b, there, HintRange{2 * page, page})          // other memory
      .add(a, there, HintRange{2 * page, page})          // would continue, but not at once
      .add(a, Place::host(), HintRange{3 * page, page})  // another place
      .add(a.slice(4 * page, page), Place::host())       // continues, as a view
      .add(a, Place::host(), HintRange{4 * page, page})  // the same again
      .add(a, Place::host(), HintRange{0, 0});
  ASSERT_EQ(plan.size(), 8u);
  EXPECT_EQ(plan.entries()[5].range.offset_bytes, 4 * page);
  const PrefetchPlan merged = plan.merged();
  std::vector<std::size_t> indices, counts;
  for (const PrefetchEntry& entry : merged.entries()) {
    indices.push_back(entry.index);
    counts.push_back(entry.count);
  }
  EXPECT_EQ(indices, (std::vector<std::size_t>{0, 2, 3, 4, 6, 7}));
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 1, 1, 2, 1, 1}));
  EXPECT_EQ(merged.entries()[0].range.bytes, 2 * page);
  EXPECT_EQ(merged.entries()[3].range.bytes, 2 * page);
  const std::string id = std::to_string(a.buffer().id().value);
  EXPECT_EQ(plan.entries()[1].text(), "bytes [4096, 8192) of buffer " + id + " to " + there.text());
  EXPECT_TRUE(plan.text().starts_with("prefetch plan, 8 entries\n  0: bytes [0, 4096) of buffer " +
                                      id + " to " + there.text() + "\n  1: "));
  const Stream stream(device);
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 7u);
  EXPECT_EQ(report.skipped, 1u);
  stream.synchronize();
}

TEST(PrefetchPlan, CountsWhatHasNoBytesAsSkipped) {
  const Device device = sim::open({});
  const Stream stream(device);
  const ManagedBuffer<std::uint8_t> a(device, {8 * page});
  PrefetchPlan plan;
  plan.add(a, device.place(), HintRange{0, 0})
      .add(a, device.place(), HintRange{0, page})
      .add(a, device.place(), HintRange{page, 0});
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 1u);
  EXPECT_EQ(report.skipped, 2u);
  sim::set_faults(device, "copy#1=fail");
  const Result<PrefetchPlan::Report> refused = plan.try_execute(stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().number("index"), 1u);
  EXPECT_EQ(refused.failure().number("enqueued"), 0u);
}

TEST(PrefetchPlan, TellsHowMuchIsAtAPlaceAtOneTime) {
  const Device device = sim::open({});
  const ManagedBuffer<std::uint8_t> a(device, {8 * page}), b(device, {8 * page});
  PrefetchPlan plan;
  plan.add(a, device.place(), HintRange{0, 4 * page})
      .add(a, device.place(), HintRange{2 * page, 4 * page})  // two of them are there already
      .add(a, Place::host(), HintRange{0, 5 * page})          // one stays
      .add(b, device.place(), HintRange{0, 3 * page});
  using Peaks = std::vector<std::pair<Place, std::size_t>>;
  EXPECT_EQ(plan.peaks(), (Peaks{{Place::host(), 5 * page}, {device.place(), 6 * page}}));
  const BudgetHandle budget = Budget::make("plan", BudgetLimit::bytes(6 * page));
  EXPECT_EQ(plan.check(device.place(), *budget), 6 * page);
  EXPECT_EQ(plan.check(Place::host_numa(0), *budget), 0u);
  const BudgetHandle small = Budget::make("small", BudgetLimit::bytes(6 * page - 1));
  const auto refused = plan.try_check(device.place(), *small);
  ASSERT_EQ(cuda::code(refused), "out_of_budget");
  EXPECT_EQ(refused.failure().number("requested"), 6 * page);
  EXPECT_EQ(refused.failure().number("available"), 6 * page - 1);
  EXPECT_EQ(plan.check(Place::host(), *small), 5 * page);
}

TEST(PrefetchPlan, IsSkippedWhereItWouldDoNothing) {
  sim::Options options;
  options.concurrent_managed = false;
  const Device device = sim::open(options);
  const Stream stream(device);
  const ManagedBuffer<std::uint8_t> buffer(device, {page});
  PrefetchPlan plan;
  plan.add(buffer, device.place());
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 0u);
  EXPECT_EQ(report.skipped, 1u);
  EXPECT_FALSE(buffer.is_allocated());
  const auto refused = plan.try_execute(stream, {.strict = true});
  ASSERT_EQ(cuda::code(refused), "unsupported");
  EXPECT_EQ(refused.failure().number("index"), 0u);
}

/// Memory with copies of its own: what it was asked, and whether it goes.
class Mirrors final : public PrefetchTarget {
 public:
  Mirrors(Device device, std::vector<std::string>& log) : device_(std::move(device)), log_(log) {}
  const void* identity() const noexcept override { return this; }
  std::size_t bytes() const noexcept override { return 100; }
  const Device& device() const noexcept override { return device_; }
  std::string text() const override { return "mirrors"; }
  Result<void> check(Place, CallSite) const noexcept override { return {}; }
  Result<HintReport> try_prefetch(HintRange range, Place place, StreamRef, HintOptions options,
                                  CallSite) const noexcept override {
    log_.push_back(std::to_string(range.offset_bytes) + "+" + std::to_string(range.bytes) + " " +
                   (place.is_host() ? "host" : "device"));
    if (options.strict) return Failure(ErrorCode::sync_failed);
    return HintReport{place.is_host() ? HintSkip::not_supported : HintSkip::none, {}};
  }

 private:
  const Device device_;
  std::vector<std::string>& log_;
};

TEST(PrefetchPlan, TakesOtherMemoryThatKnowsHowToGo) {
  const Device device = sim::open({});
  const Stream stream(device);
  const ManagedBuffer<std::uint8_t> buffer(device, {page});
  std::vector<std::string> log;
  const auto mirrors = std::make_shared<Mirrors>(device, log);
  PrefetchPlan plan;
  plan.add(buffer, device.place())
      .add(mirrors, device.place(), HintRange{0, 50})
      .add(mirrors, device.place(), HintRange{50, 50})
      .add(mirrors, Place::host());
  EXPECT_EQ(cuda::code(plan.try_add(mirrors, Place::host(), HintRange{50, 51})), "invalid_view");
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(log, (std::vector<std::string>{"0+100 device", "0+100 host"}));
  EXPECT_EQ(report.sent, 3u);
  EXPECT_EQ(report.skipped, 1u);
  const auto refused = plan.try_execute(stream, {.strict = true});
  ASSERT_EQ(cuda::code(refused), "sync_failed");
  EXPECT_EQ(refused.failure().number("index"), 1u);
  EXPECT_EQ(refused.failure().number("enqueued"), 1u);
  stream.synchronize();
}

TEST(PrefetchPlan, HoldsItsMemoryAndOrdersItsUses) {
  sim::Options options;
  options.policy = sim::Policy::lazy;
  const Device device = sim::open(options);
  const Stream stream(device), writer(device);
  PrefetchPlan plan;
  {
    ManagedBuffer<std::uint8_t> buffer(device, {4 * page});
    plan.add(buffer, device.place());
    const auto lease = buffer.discard_device(writer);
    writer.fill(lease.data(), lease.size(), std::uint8_t{1});
  }
  const std::uint64_t waits = sim::calls(device, "wait");
  EXPECT_EQ(plan.execute(stream).sent, 1u);
  // Behind those who wrote it, and on record for those who use it next.
  EXPECT_EQ(sim::calls(device, "wait"), waits + 1);
  std::array<UseRecord::Entry, 4> uses;
  ASSERT_EQ(plan.entries()[0].target->managed()->storage()->uses().list(uses), 2u);
  EXPECT_TRUE(uses[0].stream == stream || uses[1].stream == stream);
  plan = PrefetchPlan();
  device.synchronize();
  EXPECT_TRUE(sim::findings(device).empty());
}

class PrefetchPlanOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryDevice, PrefetchPlanOn, testing::ValuesIn(test::managed_specs()),
                         test::managed_spec_name);

TEST_P(PrefetchPlanOn, BringsMemoryWhereItIsUsedNext) {
  const Device device = open_device(GetParam());
  if (!device.can(Capability::managed_memory)) GTEST_SKIP() << "has no managed memory";
  const Stream stream(device);
  // Fresh memory: of that of a pool the driver would still tell where an earlier owner sent it.
  const StorageOptions fresh{.resource =
                                 std::make_shared<DirectResource>(device, MemoryKind::managed)};
  ManagedBuffer<std::uint32_t> a(device, {2 * mib}, fresh), b(device, {1 * mib}, fresh);
  { std::ranges::fill(a.discard_host(), 1u); }
  { std::ranges::fill(b.discard_host(), 2u); }
  PrefetchPlan plan;
  plan.add(a, device.place()).add(b, device.place(), HintRange{0, 2 * mib});
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent + report.skipped, 2u);
  EXPECT_EQ(report.sent, device.can(Capability::prefetch) ? 2u : 0u);
  stream.synchronize();
  if (device.can(Capability::advice)) {
    EXPECT_EQ(a.hints().query().last_prefetch, device.place());
    EXPECT_EQ(b.hints().query(HintRange{0, 2 * mib}).last_prefetch, device.place());
    EXPECT_TRUE(b.hints().query().is_last_prefetch_mixed);
  }
  if (test::is_simulated(device) && device.info().backend == "sim") {
    EXPECT_EQ(sim::residence(device, reinterpret_cast<void*>(a.buffer().address())),
              device.place());
  }
  EXPECT_EQ(a.read_host()[2 * mib - 1], 1u);
  EXPECT_EQ(b.read_host()[0], 2u);
  device.synchronize();
}

// --- Unified buffers, whose bytes go by copies

TEST(PrefetchPlanUnified, BringsWhatIsStaleInTheOrderOfTheStream) {
  const Device device = sim::open({});
  const Stream stream(device);
  UnifiedBuffer<int> weights(Shape{1000}, {.device = device, .tag = "weights"});
  UnifiedBuffer<int> input(Shape{1000}, {.device = device, .tag = "input"});
  std::ranges::fill(weights.discard_host(), 1);
  std::ranges::fill(input.discard_host(), 2);
  PrefetchPlan plan;
  plan.add(weights, device.place()).add(input.slice(100, 200), device.place());
  plan.add(input.slice(300, 100), device.place(), HintRange{0, 40});
  plan.add(input.slice(0, 0), device.place());
  EXPECT_EQ(plan.entries()[1].text(),
            "bytes [400, 1200) of unified buffer 'input' to " + device.place().text());
  EXPECT_EQ(plan.merged().size(), 3u);
  EXPECT_EQ(plan.peaks(), (std::vector<std::pair<Place, std::size_t>>{{device.place(), 4840}}));

  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 3u);
  EXPECT_EQ(report.skipped, 1u);
  EXPECT_EQ(report.bytes, 4840u);
  EXPECT_EQ(weights.statistics().of(TransferReason::prefetch).bytes, 4000u);
  EXPECT_EQ(input.statistics().of(TransferReason::prefetch).bytes, 840u);
  static_cast<void>(weights.read_device(stream));
  static_cast<void>(input.slice(100, 210).read_device(stream));
  EXPECT_EQ(weights.statistics().moved().bytes, 4000u);
  EXPECT_EQ(input.statistics().moved().bytes, 840u);
  // What is there already does not go again, and is not counted as if it did.
  const PrefetchPlan::Report again = plan.execute(stream);
  EXPECT_EQ(again.sent, 0u);
  EXPECT_EQ(again.skipped, 4u);
  EXPECT_EQ(again.bytes, 0u);
  EXPECT_EQ(weights.statistics().moved().bytes, 4000u);
  std::ranges::fill(weights.slice(10, 5).discard_host(), 1);
  const PrefetchPlan::Report part = plan.execute(stream);
  EXPECT_EQ(part.sent, 1u);
  EXPECT_EQ(part.skipped, 3u);
  EXPECT_EQ(part.bytes, 20u);
  EXPECT_EQ(weights.statistics().moved().bytes, 4020u);

  // Home, where the plan says so.
  { const DeviceLease<int> lease = weights.rw_device(stream); }
  PrefetchPlan home;
  home.add(weights, Place::host());
  home.execute(stream);
  EXPECT_EQ(weights.statistics().to_host.bytes, 4000u);
  EXPECT_EQ(weights.read_host()[999], 1);
  EXPECT_EQ(weights.statistics().to_host.bytes, 4000u);
  test::expect_no_findings(device);
}

TEST(PrefetchPlanUnified, MovesNothingWhereMemoryIsShared) {
  const Device host = open_device("host");
  const Stream stream(host);
  UnifiedBuffer<int> buffer(Shape{1000}, {.device = host});
  std::ranges::fill(buffer.discard_host(), 1);
  PrefetchPlan plan;
  plan.add(buffer, host.place());
  const PrefetchPlan::Report report = plan.execute(stream);
  EXPECT_EQ(report.sent, 0u);
  EXPECT_EQ(report.skipped, 1u);
  EXPECT_EQ(report.bytes, 0u);
  EXPECT_EQ(buffer.statistics().elided.bytes, 4000u);
}

TEST(PrefetchPlanUnified, GoesToSeveralDevicesFromOneStream) {
  const std::vector<Device> devices = sim::open_peers({}, 2);
  const Stream stream(devices[0]), second(devices[1]);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = devices[0], .tag = "u"});
  std::ranges::fill(buffer.discard_host(), 1);
  PrefetchPlan plan;
  plan.add(buffer, devices[0].place()).add(buffer, devices[1].place());
  EXPECT_EQ(plan.execute(stream).sent, 2u);
  EXPECT_EQ(buffer.valid_places().size(), 3u);
  buffer.invalidate();
  std::ranges::fill(buffer.discard_host(), 2);
  const StreamRef streams[] = {stream, second};
  EXPECT_EQ(plan.execute(streams).sent, 2u);
  EXPECT_EQ(buffer.valid_places().size(), 3u);
}

TEST(PrefetchPlanUnified, RefusesWhatCannotBeAndSaysWhichEntry) {
  const Device device = sim::open({});
  const Stream stream(device);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = device, .tag = "u"});
  PrefetchPlan plan;
  EXPECT_EQ(plan.try_add(buffer.raw(), device.place(), HintRange{300, 200}).failure().code(),
            ErrorCode::invalid_view);
  EXPECT_EQ(plan.try_add(RawUnified(), device.place()).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(plan.try_add(buffer.raw(), Place::device(DeviceId{9999})).failure().code(),
            ErrorCode::invalid_device);
  EXPECT_TRUE(plan.empty());

  std::ranges::fill(buffer.slice(0, 50).discard_host(), 1);
  plan.add(buffer.slice(0, 50), device.place()).add(buffer.slice(60, 10), device.place());
  const Failure failure = plan.try_execute(stream).failure();
  EXPECT_EQ(failure.code(), ErrorCode::never_written);
  EXPECT_EQ(failure.number("index"), 1u);
  EXPECT_EQ(failure.number("enqueued"), 1u);
  buffer.resize_discard(10);
  EXPECT_EQ(plan.try_execute(stream).failure().code(), ErrorCode::invalid_view);
}

TEST(PrefetchPlanUnified, KeepsItsBuffers) {
  const Device device = sim::open({});
  const Stream stream(device);
  PrefetchPlan plan;
  {
    UnifiedBuffer<int> buffer(Shape{100}, {.device = device});
    std::ranges::fill(buffer.discard_host(), 1);
    plan.add(buffer, device.place());
  }
  EXPECT_EQ(plan.execute(stream).bytes, 400u);
}

}  // namespace
}  // namespace tern
