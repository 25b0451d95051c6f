#include "tern/buffer/scalar.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/on_device.hpp"
#include "support/refused.hpp"
#include "support/sharing_devices.hpp"
#include "tern/backends/sim.hpp"
#include "tern/launch/graph.hpp"
#include "tern/launch/kernel.hpp"

namespace tern {
namespace {

using test::refused;

std::vector<std::string> scalar_devices() {
  std::vector<std::string> specs = test::sharing_devices();
  specs.push_back("opencl:0");
  return specs;
}

using ScalarOn = test::OnDevice;
INSTANTIATE_TEST_SUITE_P(Devices, ScalarOn, testing::ValuesIn(scalar_devices()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(ScalarOn, HasTheValueThatWasSetLast) {
  auto scalar = Scalar<double>::make(device, 1.5, stream);
  EXPECT_EQ(scalar.get(stream), 1.5);
  for (int i = 0; i < 10; ++i) {
    double value = i;
    scalar.set(value, stream);
    value = -1;  // the value was passed with the call
    EXPECT_EQ(scalar.get(stream), i);
  }
  double later = 0;
  scalar.copy_to(later, stream);
  stream.synchronize();
  EXPECT_EQ(later, 9);
  EXPECT_EQ(scalar.array().to_vector(), std::vector<double>{9});
}

TEST_P(ScalarOn, SharesItsValueWithCopies) {
  auto scalar = Scalar<std::uint8_t>::make(device, 7, stream);
  const Scalar<std::uint8_t> copy = scalar;
  scalar.set(8, stream);
  EXPECT_EQ(copy.get(stream), 8);
}

TEST_P(ScalarOn, HasNoValueAtFirst) {
  auto scalar = Scalar<float>::make(device);
  refused(scalar.try_get(stream), ErrorCode::never_written);
  scalar.set(2.0f, stream);
  EXPECT_EQ(scalar.get(stream), 2.0f);
}

TEST_P(ScalarOn, HasAValueOfAnySize) {
  using Wide = std::array<std::uint64_t, 9>;
  const Wide value = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  auto scalar = Scalar<Wide>::make(device, value, stream);
  EXPECT_EQ(scalar.get(stream), value);
}

TEST_P(ScalarOn, IsOrderedBetweenStreams) {
  const Stream other(device);
  auto scalar = Scalar<int>::make(device, 1, stream);
  EXPECT_EQ(scalar.get(other), 1);
  scalar.set(2, other);
  scalar.set(3, stream);
  EXPECT_EQ(scalar.get(other), 3);
}

TEST_P(ScalarOn, RefusesWhatItCannotDo) {
  Scalar<int> scalar;
  refused(scalar.try_get(stream), ErrorCode::size_mismatch);
  refused(scalar.try_set(1, stream), ErrorCode::size_mismatch);
  scalar = Scalar<int>::make(device, 1, stream);
  const Device sim = sim::open({});
  const Stream foreign(sim);
  refused(scalar.try_set(1, foreign), ErrorCode::device_mismatch);
  refused(scalar.try_get(foreign), ErrorCode::device_mismatch);
  EXPECT_FALSE(scalar.try_get(StreamRef()));
  if (device.can(Capability::graphs)) {
    const GraphCapture capture(stream);
    refused(scalar.try_get(stream), ErrorCode::stream_misuse);
  }
  const Scalar<int> moved = std::move(scalar);
  refused(scalar.try_get(stream), ErrorCode::size_mismatch);  // NOLINT: moved from
  EXPECT_EQ(moved.get(stream), 1);
}

}  // namespace
}  // namespace tern
