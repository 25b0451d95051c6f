// What tests of unified buffers share: two simulated devices with a stream each, and functions that
// read the copy of a device.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "support/copy_places.hpp"
#include "support/refused.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {

inline std::vector<int> counting(std::size_t count, int first = 1) {
  std::vector<int> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

/// Returns the contents of the device's copy.
inline std::vector<int> on_device(const UnifiedView<int>& buffer, StreamRef stream) {
  std::vector<int> made(buffer.size());
  const DeviceLease<const int> lease = buffer.read_device(stream);
  stream.copy(made.data(), lease.data(), buffer.size_bytes());
  stream.synchronize();
  return made;
}

inline void write_on_device(UnifiedView<int> buffer, StreamRef stream, int value) {
  const DeviceLease<int> lease = buffer.discard_device(stream);
  stream.fill(lease.data(), lease.size(), value);
}

#define EXPECT_STATE(buffer, expected) \
  EXPECT_EQ(name((buffer).state()), name(BufferState::expected))

class Unified : public testing::Test {
 protected:
  void TearDown() override {
    for (const Device& one : devices) {
      one.synchronize();
      expect_no_findings(one);
    }
  }
  [[nodiscard]] UnifiedBuffer<int> make(std::size_t count, UnifiedOptions options = {}) const {
    if (!options.device.is_open()) options.device = devices[0];
    options.tag = "u";
    return UnifiedBuffer<int>(Shape{count}, options);
  }
  [[nodiscard]] static std::size_t moved(const UnifiedBuffer<int>& buffer) {
    return buffer.statistics().moved().bytes;
  }

  std::vector<Device> devices = sim::open_peers({}, 2);
  const Device& device = devices[0];
  Stream s{device}, t{device};
};

}  // namespace tern::test
