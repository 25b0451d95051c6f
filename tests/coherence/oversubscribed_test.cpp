// A working set of four times the device budget, on every device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/copy_places.hpp"
#include "support/pressed.hpp"
#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

constexpr std::size_t chunk_ints = 64 * 1024, chunk_bytes = chunk_ints * sizeof(int);
constexpr std::size_t device_chunks = 4, chunks = 4 * device_chunks;

class Oversubscribed : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Result<Device> opened = try_open_device(GetParam());
    if (!opened) GTEST_SKIP() << opened.failure().text();
    device = *opened;
    budget = limited(device_chunks * chunk_bytes, "device");
    options = {.device = device,
               .tag = "chunk",
               .resources = {std::make_shared<BudgetResource>(
                   std::make_shared<PoolResource>(device), budget)}};
  }
  void TearDown() override {
    if (!device.is_open()) return;
    device.synchronize();
    expect_no_findings(device);
  }
  /// Three passes over all chunks; each element counts them.
  void stream_through() {
    const Stream stream(device);
    std::vector<UnifiedBuffer<int>> all;
    for (std::size_t i = 0; i < chunks; ++i) {
      all.emplace_back(Shape{chunk_ints}, options);
      std::ranges::fill(all.back().discard_host(), static_cast<int>(i));
    }
    for (int pass = 1; pass <= 3; ++pass) {
      for (std::size_t i = 0; i < chunks; ++i) {
        const auto value = static_cast<int>(i) + 100 * pass;
        {
          const DeviceLease<int> lease = all[i].rw_device(stream);
          // The first element stays: it has to come along every time.
          stream.fill(lease.data() + 1, chunk_ints - 1, value);
        }
        EXPECT_LE(budget->charged_bytes(), device_chunks * chunk_bytes);
      }
    }
    for (std::size_t i = 0; i < chunks; ++i) {
      std::vector<int> expected(chunk_ints, static_cast<int>(i) + 300);
      expected[0] = static_cast<int>(i);
      EXPECT_EQ(all[i].to_vector(), expected) << i;
      EXPECT_TRUE(all[i].check());
    }
  }

  TemporaryFolder folder;
  Device device;
  BudgetHandle budget;
  UnifiedOptions options;
  const PressureStatistics before = pressure_totals();
};

TEST_P(Oversubscribed, StreamsFourTimesItsBudgetThrough) {
  // A device that shares the host's memory has copies of its own in buffers that are the host's.
  if (device.can(Capability::host_access)) options.device = open_device("host");
  stream_through();
  const PressureStatistics since = pressure_totals() - before;
  EXPECT_GE(since.evicted().copies, 3 * chunks - device_chunks);
  EXPECT_GE(since.written_back_bytes, (3 * chunks - device_chunks) * chunk_bytes);
  EXPECT_EQ(since.spilled_bytes, 0u);
  EXPECT_EQ(since.refused_requests, 0u);
  device.synchronize();
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_P(Oversubscribed, MemoryThatIsSharedWithTheHostIsTheDevices) {
  if (!device.can(Capability::host_access)) GTEST_SKIP() << "it has memory of its own";
  UnifiedBuffer<int> shared(Shape{chunk_ints}, options);
  std::ranges::fill(shared.discard_host(), 1);
  // A copy of its own, in the same budget, for which the shared one has to go.
  options.spill = SpillFile::open({.directory = folder / "", .limit_bytes = 16 * chunk_bytes});
  UnifiedBuffer<int> spilling(Shape{chunk_ints}, options);
  std::ranges::fill(spilling.discard_host(), 2);
  ASSERT_EQ(residency_by_tag(device.place()).size(), 1u);
  EXPECT_EQ(residency_by_tag(device.place())[0].bytes, 2 * chunk_bytes);
  options.device = open_device("host");
  UnifiedBuffer<int> large(Shape{3 * chunk_ints}, options);
  const Stream stream(device);
  write_on_device(large, stream, 3);
  EXPECT_EQ(spilling.statistics().evicted.copies, 1u);
  EXPECT_EQ(spilling.load_host(5), 2);
  EXPECT_EQ(shared.load_host(5), 1);
}

TEST_P(Oversubscribed, StreamsThroughTheSpillFileWhereTheHostIsSmallToo) {
  const BudgetHandle host_budget = limited(6 * chunk_bytes, "host");
  options.pinned = Pinned::never;
  options.resources.push_back(std::make_shared<BudgetResource>(
      std::make_shared<DirectResource>(open_device("host")), host_budget));
  options.spill =
      SpillFile::open({.directory = folder / "", .limit_bytes = 2 * chunks * chunk_bytes});
  stream_through();
  const PressureStatistics since = pressure_totals() - before;
  EXPECT_GE(since.spilled_bytes, chunks * chunk_bytes);
  EXPECT_GE(since.unspilled_bytes, chunks * chunk_bytes);
  EXPECT_EQ(since.refused_requests, 0u);
  EXPECT_EQ(options.spill->statistics().used_bytes, 0u);
  EXPECT_TRUE(host_budget->try_wait_for_pending());
  EXPECT_EQ(host_budget->used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, Oversubscribed,
                         testing::Values("sim", "sim?schedule=lazy", "cuda?driver=sim", "opencl:0",
                                         "cuda:0"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace tern::test
