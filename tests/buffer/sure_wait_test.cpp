#include "buffer/sure_wait.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/copy_places.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

/// Waits that fail: once, several times, always.
const std::vector<std::string> plans = {
    "sync#1=fail",
    "sync#1=fail, sync#2=fail",
    "sync#1+=fail",
    "record#1=fail",
    "record#1+=fail",
    "query#1+=fail",
    "record#1+=fail, sync#1=fail, sync#2=fail",
    "sync#1+=fail, record#1+=fail",
    "query~0.5=fail, sync~0.5=fail",
    "copy#1=fail",
    "sync#1=lost",
    "copy#1=fault",
};

class SureWait : public testing::Test {
 protected:
  /// Everything that is queued runs here, and must not touch what a call has let go.
  void finish(const Device& device) {
    if (!device.try_memory()) return;
    sim::set_faults(device, "");
    device.synchronize();
  }
};

TEST_F(SureWait, ABlockingCopyOutIsCompleteOnReturn) {
  for (const std::string& plan : plans) {
    SCOPED_TRACE(plan);
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Buffer buffer = [&] {
      Buffer made(device, {64}, DType::byte);
      made.try_copy_from(Bytes(64, std::byte{7}).data(), 64).value();
      return made;
    }();
    sim::set_faults(device, plan);
    Bytes memory(64, std::byte{1});
    const Result<void> copied = buffer.try_copy_to(memory.data(), memory.size());
    if (copied) {
      EXPECT_EQ(memory, Bytes(64, std::byte{7}));
    }
    // As if it were somebody else's by now.
    memory.assign(64, std::byte{2});
    finish(device);
    EXPECT_EQ(memory, Bytes(64, std::byte{2}));
  }
}

TEST_F(SureWait, ABlockingCopyInIsCompleteOnReturn) {
  for (const std::string& plan : plans) {
    SCOPED_TRACE(plan);
    const Device device = sim::open({.policy = sim::Policy::lazy});
    Buffer buffer(device, {64}, DType::byte);
    buffer.try_copy_from(Bytes(64, std::byte{7}).data(), 64).value();
    sim::set_faults(device, plan);
    Bytes memory(64, std::byte{1});
    const Result<void> copied = buffer.try_copy_from(memory.data(), memory.size());
    memory.assign(64, std::byte{2});
    finish(device);
    if (!device.try_memory()) continue;
    const Bytes now = bytes_of(buffer);
    EXPECT_TRUE(now == Bytes(64, std::byte{1}) || (!copied && now == Bytes(64, std::byte{7})));
  }
}

TEST_F(SureWait, AnElementOfAUnifiedBufferIsOverOnReturn) {
  for (const std::string& plan : plans) {
    SCOPED_TRACE(plan);
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Stream stream(device);
    UnifiedBuffer<int> buffer(Shape{16}, {.device = device});
    {
      const DeviceLease<int> lease = buffer.discard_device(stream);
      stream.fill(lease.data(), lease.size(), 7);
    }
    stream.synchronize();
    for (const bool is_load : {true, false}) {
      if (!device.try_memory()) break;
      sim::set_faults(device, plan);
      int value = 1;
      const Result<void> done =
          is_load ? buffer.raw().try_load(12, &value, sizeof value, CallSite::here())
                  : buffer.raw().try_store(12, &value, sizeof value, CallSite::here());
      if (done && is_load) {
        EXPECT_EQ(value, 7);
      }
      value = 2;
      finish(device);
      EXPECT_EQ(value, 2);
      if (is_load || !device.try_memory()) continue;
      const int now = buffer.load_host(3);
      EXPECT_TRUE(now == 1 || (!done && now == 7)) << now;
    }
  }
}

TEST_F(SureWait, SaysOnceThatTheDeviceIsLost) {
  const Device device = sim::open({});
  const Stream stream(device);
  sim::set_faults(device, "sync#1=lost");
  const Result<void> waited = try_wait_surely(stream, stream.try_mark().value());
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::device_lost);
}

}  // namespace
}  // namespace tern::test
