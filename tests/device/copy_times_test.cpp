// The times of copies on the device, as recordings have them.

#include "device/copy_times.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/on_device.hpp"
#include "support/temporary_folder.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

using trace::EventKind;
using trace::MemoryEvent;

class TimesOfCopies : public test::OnDevice {
 protected:
  ~TimesOfCopies() override { trace::stop(); }

  void SetUp() override {
    OnDevice::SetUp();
    if (!device.is_open()) return;
    pool.emplace(device);
    block = pool->allocate({.bytes = 4 * mib, .stream = stream});
    join_clocks();
    trace::start(path);
  }
  /// Copies until a copy has times. On a busy machine, the clocks of device and host are compared
  /// only after a few attempts.
  void join_clocks() {
    for (int i = 0; i < 100; ++i) {
      trace::start(path);
      copy(CopyTimes::min_bytes);
      stream.synchronize();
      if (!recorded().times.empty()) return;
    }
    FAIL() << "no copy was measured";
  }
  void TearDown() override {
    if (pool) pool->deallocate(block, stream);
  }
  void copy(std::size_t bytes) { stream.copy(block.address, host.data(), bytes); }
  /// Stops the recording and returns its copies and the times that belong to them, by number.
  struct Recorded {
    std::vector<MemoryEvent> copies;
    std::map<std::uint64_t, MemoryEvent> times;
  };
  [[nodiscard]] Recorded recorded() const {
    trace::stop();
    Recorded found;
    for (const MemoryEvent& one : trace::MemoryTrace::try_read(path).value().events) {
      if (one.kind == EventKind::copy) found.copies.push_back(one);
      if (one.kind == EventKind::copy_time) found.times.emplace(one.block, one);
    }
    return found;
  }

  test::TemporaryFolder folder;
  const std::string path = folder / "run.trace";
  std::vector<std::byte> host = std::vector<std::byte>(4 * mib);
  std::optional<PoolResource> pool;
  Block block;
};

TEST_P(TimesOfCopies, AreThoseOfTheDevice) {
  const std::uint64_t before = trace::now_ns();
  copy(4 * mib);
  copy(1 * mib);
  stream.synchronize();
  const std::uint64_t after = trace::now_ns();
  const Recorded found = recorded();
  ASSERT_EQ(found.copies.size(), 2u);
  ASSERT_EQ(found.times.size(), 2u);
  constexpr std::uint64_t slack_ns = 10'000'000;  // of the two clocks, on a busy machine
  for (const MemoryEvent& one : found.copies) {
    const MemoryEvent& time = found.times.at(one.block);
    EXPECT_GE(time.time_ns + slack_ns, before);
    EXPECT_LE(time.time_ns + time.extra, after + slack_ns);
    EXPECT_EQ(time.device, one.device);
  }
  EXPECT_NE(found.copies[0].block, found.copies[1].block);
}

TEST_P(TimesOfCopies, AreNotMeasuredForSmallCopies) {
  copy(CopyTimes::min_bytes - 1);
  copy(CopyTimes::min_bytes);
  stream.synchronize();
  const Recorded found = recorded();
  ASSERT_EQ(found.copies.size(), 2u);
  EXPECT_EQ(found.copies[0].block, 0u);
  EXPECT_NE(found.copies[1].block, 0u);
  EXPECT_EQ(found.times.size(), 1u);
}

TEST_P(TimesOfCopies, OfManyCopiesAreFoundByLaterWaits) {
  for (int i = 0; i < 600; ++i) copy(CopyTimes::min_bytes);
  device.synchronize();
  for (int i = 0; i < 3; ++i) copy(CopyTimes::min_bytes);
  device.synchronize();
  const Recorded found = recorded();
  ASSERT_EQ(found.copies.size(), 603u);
  std::size_t measured = 0;
  for (const MemoryEvent& one : found.copies) measured += one.block != 0 ? 1 : 0;
  EXPECT_EQ(found.times.size(), measured);
  EXPECT_GE(measured, 256u + 3u);
  EXPECT_NE(found.copies.back().block, 0u) << "a full list does not end the measurements";
}

TEST_P(TimesOfCopies, EndWithTheRecording) {
  copy(1 * mib);
  trace::stop();
  copy(1 * mib);
  stream.synchronize();
  const Recorded found = recorded();
  EXPECT_EQ(found.copies.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Devices, TimesOfCopies,
                         testing::Values("host", "opencl", "cuda:0?driver=sim", "cuda:0"));

TEST(TimesOfSimulatedCopies, DoNotExist) {
  const test::TemporaryFolder folder;
  const Device device = open_device("sim");
  const Stream stream(device);
  PoolResource pool(device);
  const Block block = pool.allocate({.bytes = 1 * mib, .stream = stream});
  const std::vector<std::byte> host(1 * mib);
  trace::start(folder / "run.trace");
  stream.copy(block.address, host.data(), host.size());
  stream.synchronize();
  trace::stop();
  for (const MemoryEvent& one : trace::MemoryTrace::try_read(folder / "run.trace").value().events) {
    if (one.kind == EventKind::copy) {
      EXPECT_EQ(one.block, 0u);
    }
    EXPECT_NE(one.kind, EventKind::copy_time);
  }
  pool.deallocate(block, stream);
}

}  // namespace
}  // namespace tern
