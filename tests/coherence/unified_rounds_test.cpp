// A long-running program holds no more memory of the default pool than one round needs.

#include <gtest/gtest.h>

#include <string>

#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

class UnifiedRounds : public testing::TestWithParam<const char*> {};

TEST_P(UnifiedRounds, HoldNoMoreThanOneRoundNeeds) {
  const Result<Device> opened = try_open_device(GetParam());
  if (!opened) GTEST_SKIP() << opened.failure().text();
  const Device device = *opened;
  const Stream steady(device);
  const auto round = [&](std::size_t number) {
    const Stream brief(device);
    UnifiedBuffer<int> large(Shape{100 + number % 300}, {.device = device});
    large.fill(1);
    static_cast<void>(large.rw_device(steady));
    UnifiedBuffer<int> small(Shape{10}, {.device = device});
    small.fill(2);
    static_cast<void>(small.rw_device(brief));
    device.synchronize();
  };
  const std::size_t rounds = test::in_full() ? 100'000 : 5'000;
  for (std::size_t i = 0; i < 1'000; ++i) round(i);
  const std::size_t held = default_resource(device)->statistics().reserved_bytes;
  for (std::size_t i = 0; i < rounds; ++i) round(i);
  EXPECT_LE(default_resource(device)->statistics().reserved_bytes, held + 2 * mib);
}

INSTANTIATE_TEST_SUITE_P(Devices, UnifiedRounds, testing::Values("host", "opencl:0"),
                         [](const auto& one) {
                           const std::string spec = one.param;
                           return spec.substr(0, spec.find(':'));
                         });

}  // namespace
}  // namespace tern
