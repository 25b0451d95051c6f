// Copies that fail, and devices that are lost while others have the same bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "support/unified.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

class UnifiedLost : public testing::Test {
 protected:
  [[nodiscard]] UnifiedBuffer<int> make(std::size_t count = 100) const {
    return UnifiedBuffer<int>(Shape{count}, {.device = first, .tag = "rho"});
  }
  /// On both devices, and stale on the host.
  [[nodiscard]] UnifiedBuffer<int> on_both(int value) const {
    UnifiedBuffer<int> made = make();
    write_on_device(made, a, value);
    EXPECT_EQ(on_device(made, b), std::vector<int>(100, value));
    made.synchronize();
    made.drop_host(Drop::discard);
    return made;
  }
  static void lose(const Device& device) {
    sim::set_faults(device, "info#1=lost");
    EXPECT_FALSE(device.try_memory());
  }
  /// What the last copy came from.
  [[nodiscard]] static Place last_source(const UnifiedBuffer<int>& buffer) {
    return buffer.transfers().back().from;
  }

  const std::vector<Device> devices = sim::open_peers({.policy = sim::Policy::lazy}, 3);
  const Device &first = devices[0], &second = devices[1], &third = devices[2];
  const Stream a{first}, b{second}, c{third};
};

TEST_F(UnifiedLost, AnotherCopyIsTheSource) {
  UnifiedBuffer<int> read = on_both(1), later = on_both(2), element = on_both(3),
                     fetched = on_both(4), there = on_both(5);
  lose(first);
  EXPECT_EQ(read.read_host()[99], 1);
  EXPECT_EQ(last_source(read), second.place());
  EXPECT_EQ(later.read_host_async().get()[99], 2);
  EXPECT_EQ(element.load_host(7), 3);
  fetched.prefetch_host();
  EXPECT_EQ(fetched.read_host()[99], 4);
  EXPECT_EQ(on_device(there, c), std::vector<int>(100, 5));
  EXPECT_EQ(last_source(there), second.place());
  const UnifiedBuffer<int> same = there.clone(c);
  EXPECT_EQ(on_device(same, c), std::vector<int>(100, 5));
  for (const UnifiedBuffer<int>* one : {&read, &later, &element, &fetched, &there}) {
    EXPECT_TRUE(one->check());
  }
}

TEST_F(UnifiedLost, WhatOnlyTheLostOneHasIsSaidAndTheRestComes) {
  UnifiedBuffer<int> buffer = on_both(1);
  write_on_device(buffer.view(10, 20), a, 2);
  a.synchronize();
  lose(first);
  EXPECT_EQ(buffer.view(0, 10).read_host()[9], 1);
  EXPECT_EQ(buffer.view(30, 70).read_host()[0], 1);
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.number("begin"), 40u) << failure.text();
  EXPECT_EQ(failure.number("end"), 120u) << failure.text();
  EXPECT_EQ(failure.string("a"), first.spec());
  EXPECT_NE(failure.text().find("which had them alone"), std::string::npos) << failure.text();
  refused(buffer.view(10, 1).try_read_device(c), ErrorCode::sync_failed);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, TheHostIsASourceBeforeALostDevice) {
  UnifiedBuffer<int> buffer = on_both(1);
  EXPECT_EQ(buffer.read_host()[0], 1);
  lose(first);
  lose(second);
  EXPECT_EQ(on_device(buffer, c), std::vector<int>(100, 1));
  EXPECT_EQ(last_source(buffer), Place::host());
}

TEST_F(UnifiedLost, ACopyThatALostDeviceWasReadingCanBeWritten) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  EXPECT_EQ(on_device(buffer, b), counting(100));
  buffer.drop_device(second, Drop::discard);
  Gate gate;
  gate.hold(a);
  static_cast<void>(buffer.read_device(a));  // an upload that does not come to its end
  write_on_device(buffer, b, 5);
  lose(first);
  EXPECT_EQ(buffer.read_host()[99], 5);
  EXPECT_EQ(last_source(buffer), second.place());
}

// --- Where it came from

TEST_F(UnifiedLost, TheFinalWaitNamesTheDeviceThatDidNotDeliver) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  write_on_device(buffer.view(50, 50), b, 3);
  write_on_device(buffer.view(0, 50), a, 2);
  a.synchronize();
  b.synchronize();
  sim::set_faults(first, "copy#1=fault");  // found out when the stream gets there
  PendingRead<int> pending = buffer.view(0, 50).read_host_async();
  const Failure failure = refused(pending.try_get(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.string("a"), first.spec()) << failure.text();
  EXPECT_NE(failure.text().find("('" + std::string(first.spec()) + "' to 'host')"),
            std::string::npos)
      << failure.text();
  EXPECT_EQ(buffer.view(50, 50).read_host()[0], 3);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, OfSeveralSourcesNoneIsNamed) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  write_on_device(buffer.view(50, 50), b, 3);
  write_on_device(buffer.view(0, 50), a, 2);
  a.synchronize();
  b.synchronize();
  sim::set_faults(first, "copy#2=fault");
  PendingRead<int> pending = buffer.read_host_async();
  const Failure failure = refused(pending.try_get(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.string("a"), "device") << failure.text();
}

// --- What is counted

TEST_F(UnifiedLost, WhatWasQueuedBeforeACopyFailedIsCounted) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer.view(0, 60), a, 2);
  write_on_device(buffer.view(60, 40), b, 3);
  a.synchronize();
  b.synchronize();
  const MoveCount before = unified_totals().to_host;
  sim::set_faults(first, "copy#2=fail");
  refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.stats().to_host, (MoveCount{1, 240}));
  EXPECT_EQ(buffer.stats().of(TransferReason::host_read), (MoveCount{1, 240}));
  ASSERT_EQ(buffer.transfers().size(), 1u);
  EXPECT_EQ(last_source(buffer), first.place());
  EXPECT_EQ(unified_totals().to_host.bytes - before.bytes, 240u);
  // It moved, and nobody has it.
  EXPECT_TRUE(buffer.is_stale_on(Place::host()));
  EXPECT_EQ(buffer.valid_places(0, 60), std::vector<Place>{first.place()});
  EXPECT_TRUE(buffer.check());
  EXPECT_EQ(buffer.read_host()[99], 3);
  EXPECT_EQ(buffer.stats().to_host, (MoveCount{3, 640}));
}

}  // namespace
}  // namespace tern::test
