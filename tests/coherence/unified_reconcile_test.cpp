// Directories with too many intervals: which bytes are copied to reduce them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "support/unified.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

TEST_F(Unified, ReconcilesADirectoryThatHasTooManyPieces) {
  UnifiedBuffer<int> buffer = make(20000, {.coalesce_gap_bytes = 0});
  buffer.copy_from(counting(20000));
  buffer.sync_to_device();
  std::size_t most = 0;
  for (std::size_t i = 0; i < 6000; ++i) {
    std::ranges::fill(buffer.slice(3 * i, 1).discard_host(), -1);
    std::size_t pieces = 0;
    if (i % 500 == 499) buffer.for_each_interval([&](auto...) { ++pieces; });
    most = std::max(most, pieces);
  }
  EXPECT_LE(most, 4097u);
  std::vector<int> expected = counting(20000);
  for (std::size_t i = 0; i < 6000; ++i) expected[3 * i] = -1;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(on_device(buffer, s), expected);
  EXPECT_TRUE(buffer.check());
  // What was written came to the device, once, and nothing else did.
  EXPECT_EQ(buffer.statistics().to_device.bytes, 20000 * sizeof(int) + 6000 * sizeof(int));
  EXPECT_GE(buffer.statistics().of(TransferReason::reconcile).bytes, 4000 * sizeof(int));
  EXPECT_EQ(buffer.statistics().to_host.bytes, 0u);
}

TEST_F(Unified, ReconcilesEveryCopyThatTakesPart) {
  const Stream far(devices[1]);
  UnifiedBuffer<int> buffer = make(20000, {.coalesce_gap_bytes = 0});
  buffer.copy_from(counting(20000));
  buffer.prefetch(s);
  buffer.prefetch(far);
  for (std::size_t i = 0; i < 6000; ++i) write_on_device(buffer.slice(3 * i, 1), s, -1);
  std::vector<int> expected = counting(20000);
  for (std::size_t i = 0; i < 6000; ++i) expected[3 * i] = -1;
  EXPECT_EQ(on_device(buffer, far), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(on_device(buffer, s), expected);
  EXPECT_EQ(buffer.statistics().to_host.bytes, 6000 * sizeof(int));
  EXPECT_TRUE(buffer.check());
}

TEST_F(Unified, GivesOnePlaceEverythingWhereACopyCannotBeReconciled) {
  UnifiedBuffer<int> buffer = make(20000, {.coalesce_gap_bytes = 0});
  buffer.copy_from(counting(20000));
  buffer.sync_to_device();
  sim::set_faults(device, "copy%1=fail");
  std::size_t most = 0;
  for (std::size_t i = 0; i < 3000; ++i) {
    std::ranges::fill(buffer.slice(3 * i, 1).discard_host(), -1);
    std::size_t pieces = 0;
    if (i % 500 == 499) buffer.for_each_interval([&](auto...) { ++pieces; });
    most = std::max(most, pieces);
  }
  sim::set_faults(device, "");
  EXPECT_LE(most, 4097u);
  std::vector<int> expected = counting(20000);
  for (std::size_t i = 0; i < 3000; ++i) expected[3 * i] = -1;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(on_device(buffer, s), expected);
  EXPECT_TRUE(buffer.check());
}

}  // namespace
}  // namespace tern::test
