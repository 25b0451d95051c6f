#include "backends/cuda/cuda_managed.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

constexpr DeviceId first_id{9001}, second_id{9002};

struct ManagedBench : CudaBench {
  explicit ManagedBench(int version = 13000) : CudaBench(with_version(version)) {
    device(0).opened_as(first_id);
    device(1).opened_as(second_id);
  }
  static sim::FakeDriverOptions with_version(int version) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.driver_version = version;
    return options;
  }
  ManagedInfo info() { return device().managed_info(block, 1 * mib).value(); }
  Result<void> advise(Advice advice, Place place = {}) {
    return device().advise(block, 1 * mib, advice, place);
  }

  void* block = memory(1 * mib, MemoryKind::managed);
  NativeStream own = stream();
};

// With locations, and with the devices that older drivers have in their place.
class CudaManagedOfDriver : public testing::TestWithParam<int> {};

TEST_P(CudaManagedOfDriver, TakesEveryAdviceAndTellsItAgain) {
  ManagedBench bench(GetParam());
  EXPECT_FALSE(bench.info().is_read_mostly);
  EXPECT_EQ(bench.info().preferred, std::nullopt);
  EXPECT_EQ(bench.info().last_prefetch, std::nullopt);
  // Where a place means nothing any will do.
  EXPECT_EQ(why(bench.advise(Advice::set_read_mostly, Place::device(DeviceId{1}))), "");
  EXPECT_TRUE(bench.info().is_read_mostly);
  EXPECT_EQ(why(bench.advise(Advice::unset_read_mostly)), "");
  EXPECT_FALSE(bench.info().is_read_mostly);
  for (const Place place : {Place::device(first_id), Place::device(second_id), Place::host()}) {
    EXPECT_EQ(why(bench.advise(Advice::set_preferred_location, place)), "");
    EXPECT_EQ(bench.info().preferred, place);
  }
  EXPECT_EQ(why(bench.advise(Advice::unset_preferred_location)), "");
  EXPECT_EQ(bench.info().preferred, std::nullopt);
  EXPECT_EQ(why(bench.advise(Advice::set_accessed_by, Place::device(first_id))), "");
  EXPECT_TRUE(bench.info().is_accessed_by(Place::device(first_id)));
  EXPECT_FALSE(bench.info().is_accessed_by(Place::host()));
  EXPECT_EQ(why(bench.advise(Advice::set_accessed_by, Place::host())), "");
  EXPECT_TRUE(bench.info().is_accessed_by(Place::host()));
  EXPECT_EQ(why(bench.advise(Advice::unset_accessed_by, Place::device(first_id))), "");
  EXPECT_FALSE(bench.info().is_accessed_by(Place::device(first_id)));
  EXPECT_TRUE(bench.info().is_accessed_by(Place::host()));
}

TEST_P(CudaManagedOfDriver, BringsPagesToAPlaceAndTellsWhere) {
  ManagedBench bench(GetParam());
  bench.fill(bench.block, 1 * mib, 0x3c, bench.own);
  for (const Place place : {Place::host(), Place::device(second_id), Place::device(first_id)}) {
    EXPECT_EQ(why(bench.device().prefetch({bench.own}, bench.block, 1 * mib, place)), "");
    EXPECT_EQ(why(bench.device().synchronize(bench.own)), "");
    EXPECT_EQ(bench.info().last_prefetch, place);
  }
  EXPECT_EQ(bench.read(bench.block, 1)[0], std::byte{0x3c});
}

TEST_P(CudaManagedOfDriver, KnowsNumaNodesOnlySince12_2) {
  ManagedBench bench(GetParam());
  const Result<void> sent =
      bench.device().prefetch({bench.own}, bench.block, 1 * mib, Place::host_numa(0));
  const Result<void> advised = bench.advise(Advice::set_preferred_location, Place::host_numa(0));
  const Result<void> current =
      bench.advise(Advice::set_preferred_location, Place::host_numa_current());
  if (GetParam() >= 12020) {
    EXPECT_EQ(why(current), "");
    EXPECT_EQ(bench.info().preferred, Place::host_numa_current());
    EXPECT_EQ(why(bench.advise(Advice::set_preferred_location, Place::host_numa(0))), "");
    EXPECT_EQ(why(sent), "");
    EXPECT_EQ(why(advised), "");
    EXPECT_EQ(why(bench.device().synchronize(bench.own)), "");
    EXPECT_EQ(bench.info().preferred, Place::host_numa(0));
    EXPECT_EQ(bench.info().last_prefetch, Place::host_numa(0));
    return;
  }
  for (const Result<void>& refused : {sent, advised, current}) {
    ASSERT_EQ(code(refused), "unsupported");
    EXPECT_EQ(refused.failure().string("what"), "NUMA nodes of the host");
    EXPECT_EQ(refused.failure().number("version"), 12010u);
  }
}

TEST_P(CudaManagedOfDriver, TakesManyPrefetchesInOneCallIfTheDriverHasOne) {
  ManagedBench bench(GetParam());
  const bool has_batches = GetParam() >= 13000;
  const std::string single = has_batches ? "cuMemPrefetchAsync" : "cuMemPrefetchAsync_8000";
  const auto part = [&](std::size_t at, Place place) {
    return PrefetchRange{static_cast<std::byte*>(bench.block) + at * 4096, 4096, place};
  };
  const auto at = [&](std::size_t page) {
    return bench.device().managed_info(part(page, {}).address, 4096).value().last_prefetch;
  };
  std::vector<PrefetchRange> ranges;
  // More than one piece of what is sent at once, with places that change in the middle of one.
  for (std::size_t i = 0; i < 256; ++i) {
    ranges.push_back(part(i, i % 3 == 0 ? Place::device(second_id) : Place::host()));
  }
  ranges.push_back(part(0, Place::host()));
  std::size_t submitted = 0;
  EXPECT_EQ(why(bench.device().prefetch_batch({bench.own}, ranges, submitted)), "");
  EXPECT_EQ(submitted, 257u);
  EXPECT_EQ(bench.fake.calls("cuMemPrefetchBatchAsync"), has_batches ? 2u : 0u);
  EXPECT_EQ(bench.fake.calls(single), has_batches ? 0u : 257u);
  bench.synchronize();
  EXPECT_EQ(at(0), Place::host());
  EXPECT_EQ(at(1), Place::host());
  EXPECT_EQ(at(3), Place::device(second_id));
  EXPECT_EQ(at(255), Place::device(second_id));

  // One by one on the default stream, where there is only one, and to find out which was refused.
  bench.fake.clear_failures();
  const std::span<const PrefetchRange> few(ranges.data(), 5);
  const Submission on_default{bench.device().default_stream()};
  EXPECT_EQ(why(bench.device().prefetch_batch(on_default, few, submitted)), "");
  EXPECT_EQ(why(bench.device().prefetch_batch({bench.own}, few.first(1), submitted)), "");
  EXPECT_EQ(bench.fake.calls("cuMemPrefetchBatchAsync"), 0u);
  EXPECT_EQ(bench.fake.calls(single), 6u);
  bench.fake.clear_failures();
  bench.fake.fail_call("cuStreamIsCapturing", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(why(bench.device().prefetch_batch({bench.own}, few, submitted)), "");
  EXPECT_EQ(bench.fake.calls("cuMemPrefetchBatchAsync"), 0u);
  bench.fake.clear_failures();
  bench.fake.fail_calls_from("cuMemPrefetchBatchAsync", 1, CUDA_ERROR_UNKNOWN);
  bench.fake.fail_call(single, 3, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().prefetch_batch({bench.own}, few, submitted)), "driver");
  EXPECT_EQ(submitted, 2u);
  // A place that is none, and memory that is not managed, are named too.
  bench.fake.clear_failures();
  ranges[1].destination = Place::device(DeviceId{7});
  EXPECT_EQ(code(bench.device().prefetch_batch({bench.own}, few, submitted)), "invalid_device");
  EXPECT_EQ(submitted, 1u);
  int ordinary = 0;
  ranges[3] = {&ordinary, sizeof ordinary, Place::host()};
  ranges[1].destination = Place::host();
  EXPECT_EQ(code(bench.device().prefetch_batch({bench.own}, few, submitted)), "invalid_argument");
  EXPECT_EQ(submitted, 3u);
  bench.synchronize();
}

TEST_P(CudaManagedOfDriver, DiscardsOnStreamsOfItsOwn) {
  ManagedBench bench(GetParam());
  const auto discard = [&](std::optional<Place> place) {
    return bench.device().discard({bench.own}, bench.block, 1 * mib, place);
  };
  if (GetParam() < 13000) {
    EXPECT_FALSE(bench.device().info().capabilities.has(Capability::discard));
    return;
  }
  EXPECT_EQ(why(discard(std::nullopt)), "");
  EXPECT_EQ(bench.fake.calls("cuMemDiscardBatchAsync"), 1u);
  EXPECT_EQ(why(discard(Place::device(second_id))), "");
  EXPECT_EQ(bench.fake.calls("cuMemDiscardAndPrefetchBatchAsync"), 1u);
  bench.synchronize();
  EXPECT_EQ(bench.info().last_prefetch, Place::device(second_id));
  const Submission on_default{bench.device().default_stream()};
  EXPECT_EQ(code(bench.device().discard(on_default, bench.block, 4096, {})), "unsupported");
  EXPECT_EQ(code(discard(Place::device(DeviceId{7}))), "invalid_device");
  int ordinary = 0;
  EXPECT_EQ(code(bench.device().discard({bench.own}, &ordinary, 4, {})), "invalid_argument");
  for (const char* call : {"cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"}) {
    bench.fake.fail_call(call, 1, CUDA_ERROR_UNKNOWN);
    const bool is_plain = std::string_view(call) == "cuMemDiscardBatchAsync";
    const Result<void> refused = discard(is_plain ? std::nullopt : std::optional(Place::host()));
    ASSERT_EQ(code(refused), "driver");
    EXPECT_EQ(refused.failure().string("call"), call);
  }
}

TEST_P(CudaManagedOfDriver, NamesTheCallThatFailed) {
  ManagedBench bench(GetParam());
  const std::string suffix = GetParam() >= 12020 ? "" : "_8000";
  bench.fake.fail_call("cuMemAdvise" + suffix, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(bench.advise(Advice::set_read_mostly).failure().string("call"), "cuMemAdvise");
  bench.fake.fail_call("cuMemPrefetchAsync" + suffix, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(
      bench.device().prefetch({bench.own}, bench.block, 1, Place::host()).failure().string("call"),
      "cuMemPrefetchAsync");
  bench.fake.fail_call("cuMemRangeGetAttributes", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().managed_info(bench.block, 1)), "driver");
}

INSTANTIATE_TEST_SUITE_P(Both, CudaManagedOfDriver, testing::Values(13000, 12010));

TEST(CudaManaged, IsNotAtPlacesThatAreNoDeviceOfTheDriver) {
  ManagedBench bench;
  for (const Place place : {Place::device(DeviceId{7}), Place::file()}) {
    EXPECT_EQ(code(bench.device().prefetch({bench.own}, bench.block, 1, place)), "invalid_device");
    EXPECT_EQ(code(bench.advise(Advice::set_accessed_by, place)), "invalid_device");
  }
  // One that was closed is not known any more, neither as a place to go to nor as an answer.
  EXPECT_EQ(why(bench.advise(Advice::set_preferred_location, Place::device(second_id))), "");
  bench.backends[1] = nullptr;
  EXPECT_EQ(bench.info().preferred, std::nullopt);
  EXPECT_EQ(code(bench.advise(Advice::set_preferred_location, Place::device(second_id))),
            "invalid_device");
}

TEST(CudaManaged, NeedsBothShapesOfANewDriverForNumaNodes) {
  for (const char* hidden : {"cuMemAdvise", "cuMemPrefetchAsync"}) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.hidden = {hidden};
    CudaBench bench(options);
    void* const block = bench.memory(4096, MemoryKind::managed);
    const Place node = Place::host_numa(0);
    EXPECT_EQ(code(bench.device().advise(block, 4096, Advice::set_preferred_location, node)),
              "unsupported");
    EXPECT_EQ(code(bench.device().prefetch({bench.stream()}, block, 4096, node)), "unsupported");
  }
}

TEST(CudaManaged, HasBatchesOnlyIfTheDriverHasAllOfThemForAllDevices) {
  for (const char* hidden :
       {"cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"}) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.hidden = {hidden};
    const CudaBench bench(options);
    EXPECT_FALSE(has_batches(bench.driver)) << hidden;
    EXPECT_FALSE(bench.device().info().capabilities.has(Capability::discard)) << hidden;
  }
  CudaBench bench;
  EXPECT_TRUE(has_batches(bench.driver));
  for (const char* call : {"cuDeviceGet", "cuDeviceGetAttribute"}) {
    bench.fake.fail_call(call, 2, CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(has_batches(bench.driver)) << call;
  }
}

TEST(CudaManaged, IsAdvisedInsideOfItsBlockOnly) {
  ManagedBench bench;
  void* const plain = bench.memory(1000);
  int ordinary = 0;
  const auto refused = [&](const void* address, std::size_t bytes) {
    void* const at = const_cast<void*>(address);
    EXPECT_EQ(code(bench.device().advise(at, bytes, Advice::set_read_mostly, {})),
              "invalid_argument");
    EXPECT_EQ(code(bench.device().prefetch({bench.own}, at, bytes, Place::host())),
              "invalid_argument");
    EXPECT_EQ(code(bench.device().managed_info(at, bytes)), "invalid_argument");
  };
  refused(plain, 10);
  refused(&ordinary, 1);
  refused(bench.block, 1 * mib + 1);
  refused(static_cast<std::byte*>(bench.block) + 1, 1 * mib);
  bench.fake.fail_calls_from("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().managed_info(&ordinary, 1)), "driver");
  EXPECT_EQ(code(bench.device().advise(&ordinary, 1, Advice::set_read_mostly, {})), "driver");
  EXPECT_EQ(code(bench.device().prefetch({bench.own}, &ordinary, 1, Place::host())), "driver");
}

TEST(CudaManaged, CannotBeUsedByTwoDevicesUnderOneNumber) {
  // Two drivers, one after the other, may number their devices alike: only one's own count.
  sim::FakeDriver fake(sim::bench_options());
  const Driver one = load_driver(fake_library()), other = load_driver(fake_library());
  const auto a = open_backend(one, {.spec = "cuda:0", .staging = no_staging()}).value();
  const auto b = open_backend(other, {.spec = "cuda:0", .staging = no_staging()}).value();
  b->opened_as(first_id);
  void* const block = a->allocate(MemoryKind::managed, 4096, 256, {}, {}).value();
  EXPECT_EQ(code(a->advise(block, 4096, Advice::set_accessed_by, Place::device(first_id))),
            "invalid_device");
}

}  // namespace
}  // namespace tern::cuda
