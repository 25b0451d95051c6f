// The conformance tests of backends in tests/conformance/. Each test is written once and runs on
// every device of every backend on this machine.
//
// The tests know nothing about the backend. They access device memory only through copies. If a
// device lacks a capability, they test that the call fails.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {

using Bytes = std::vector<std::byte>;

/// Returns the devices of the available backends, and variants that use other paths of their code.
inline std::vector<std::string> devices_to_climb() {
  std::vector<std::string> specs = {// The CUDA backend, with simulated devices for its driver.
                                    "cuda?driver=sim", "host?pages=normal", "host?threads=1",
                                    "host?threads=3", "sim?schedule=lazy",
                                    "sim?schedule=eager&reuse=friendly",
                                    // Fault plans that a device survives: all tests pass with them.
                                    "sim?faults=query~0.3=not_ready",
                                    "sim?schedule=eager&faults=query%2=not_ready,copy~0.3=slow,"
                                    "fill%2=slow,launch~0.5=slow,record~0.3=slow,wait~0.3=slow"};
  for (const BackendListing& backend : list_backends()) {
    specs.insert(specs.end(), backend.devices.begin(), backend.devices.end());
  }
  return specs;
}

/// Returns a test name with letters, digits and '_' only: "host?threads=1" becomes host_threads_1.
inline std::string spec_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

/// Returns bytes that differ from their neighbours. Each seed gives other bytes.
inline Bytes sample(std::size_t bytes, unsigned seed = 1) {
  Bytes result(bytes);
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : result) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return result;
}

/// Device memory that is freed by the destructor.
class Block {
 public:
  Block(Device device, std::size_t bytes, MemoryKind kind = MemoryKind::device)
      : device_(std::move(device)), address_(device_.allocate(kind, bytes)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { EXPECT_TRUE(device_.try_release(address_)); }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(address_); }

 private:
  Device device_;
  void* address_;
};

class Ladder : public testing::TestWithParam<std::string> {
 protected:
  /// Copies on the stream and waits.
  void write(void* destination, const Bytes& bytes) {
    stream.copy(destination, bytes.data(), bytes.size());
    stream.synchronize();
  }
  Bytes read(const void* source, std::size_t bytes) {
    Bytes result(bytes);
    stream.copy(result.data(), source, bytes);
    stream.synchronize();
    return result;
  }

  bool can(Capability capability) const { return device.can(capability); }

  /// Wait, so that no pending copy writes to memory of the next test.
  void TearDown() override { static_cast<void>(device.try_synchronize()); }

  Device device = open_device(GetParam());
  Stream stream{device};
};

/// Expects the failure of a missing capability, with the names of the capability and of the device.
template <class T>
void expect_unsupported(const Result<T>& result, Capability capability, const Device& device) {
  ASSERT_FALSE(result) << name(capability);
  EXPECT_EQ(result.failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(result.failure().string("what"), name(capability));
  EXPECT_EQ(result.failure().string("device"), device.spec());
}

template <class T>
void expect_refused(const Result<T>& result, ErrorCode code) {
  ASSERT_FALSE(result) << "should be refused with " << name(code);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
}

}  // namespace tern::test

#define TERN_CLIMB(rung)                                                                           \
  INSTANTIATE_TEST_SUITE_P(EveryDevice, rung, testing::ValuesIn(::tern::test::devices_to_climb()), \
                           ::tern::test::spec_name)
