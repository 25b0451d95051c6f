// A simulated device with backing=none: its memory costs nothing, and has no contents.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::sim {
namespace {

class WithoutContents : public testing::Test {
 protected:
  [[nodiscard]] static Device open_one(bool prints = false) {
    return open({.print_findings = prints, .keeps_contents = false, .check = false});
  }
  const Device device_ = open_one();
  const Stream stream_{device_};
};

TEST_F(WithoutContents, MemoryOfAnySizeCostsNothing) {
  if (device_.info().total_bytes < 100 * gib) GTEST_SKIP() << "addresses are scarce";
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  auto* const data = static_cast<std::byte*>(device_.allocate(MemoryKind::device, 100 * gib));
  stream_.fill(data, 1 * gib, std::byte{7});
  stream_.copy(data + 60 * gib, data, 1 * gib);
  stream_.synchronize();
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 * 1024) << "KiB";
  device_.release(data);
}

TEST_F(WithoutContents, CopiesToTheHostReadZeros) {
  auto* const data = static_cast<int*>(device_.allocate(MemoryKind::device, 4096));
  std::vector<int> host(16, 7);
  stream_.copy(data, host.data(), 64);
  stream_.fill(data, 16, 9);
  stream_.copy(host.data(), data, 64);
  stream_.synchronize();
  EXPECT_EQ(host, std::vector<int>(16, 0));
  host.assign(16, 7);
  stream_.copy(host.data(), data + 512, 64);
  stream_.synchronize();
  EXPECT_EQ(host, std::vector<int>(16, 0)) << "of bytes that were never written";
  std::vector<std::byte> rows(64, std::byte{5});
  stream_.copy_2d({.destination = rows.data(),
                   .destination_pitch_bytes = 16,
                   .source = data,
                   .source_pitch_bytes = 32,
                   .width_bytes = 8,
                   .height = 4});
  stream_.synchronize();
  EXPECT_EQ(rows[7], std::byte{0});
  EXPECT_EQ(rows[8], std::byte{5}) << "between the rows";
  device_.release(data);
}

TEST_F(WithoutContents, MemoryOfTheHostHasContents) {
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::managed}) {
    auto* const memory = static_cast<int*>(device_.allocate(kind, 4096));
    std::vector<int> host(16, 7);
    stream_.fill(memory, 16, 3);
    stream_.copy(memory + 16, host.data(), 64);
    stream_.copy(host.data(), memory, 64);
    stream_.synchronize();
    EXPECT_EQ(host, std::vector<int>(16, 3));
    EXPECT_EQ(memory[16], 7);
    device_.release(memory);
  }
}

void count_run(std::uintptr_t runs) { ++*reinterpret_cast<int*>(runs); }

TEST_F(WithoutContents, KernelsDoNotRunAndHostFunctionsDo) {
  int runs = 0;
  const Kernel kernel = Kernel::from_function(device_, "count", count_run);
  kernel.launch(stream_, elements(1), reinterpret_cast<std::uintptr_t>(&runs));
  bool is_called = false;
  stream_.call([](void* flag) { *static_cast<bool*>(flag) = true; }, &is_called);
  stream_.synchronize();
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(is_called);
}

TEST_F(WithoutContents, TheFirstReadSaysSo) {
  const Device loud = open_one(true);
  const Stream stream(loud);
  auto* const data = static_cast<int*>(loud.allocate(MemoryKind::device, 4096));
  int host = 7;
  testing::internal::CaptureStderr();
  stream.copy(data, &host, 4);
  stream.synchronize();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) stream.copy(&host, data, 4);
  stream.synchronize();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tern: a simulated device with backing=none keeps no contents; what is read from it is "
            "zeros\n");
  loud.release(data);
}

}  // namespace
}  // namespace tern::sim
