// Copies that fail, and lost devices while other places have the same bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/budgets.hpp"
#include "support/gate.hpp"
#include "support/unified.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

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
  /// Who reads first is told why; from then on there is nothing to read.
  static void expect_lost(const UnifiedBuffer<int>& buffer) {
    refused(buffer.try_read_host(), ErrorCode::sync_failed);
    refused(buffer.try_read_host(), ErrorCode::never_written);
    EXPECT_TRUE(buffer.check());
  }
  [[nodiscard]] UnifiedBuffer<int> with_unheard_loss(std::size_t count = 100);
  /// What the last copy came from.
  [[nodiscard]] static Place last_source(const UnifiedBuffer<int>& buffer) {
    return buffer.transfers().back().from;
  }

  const std::vector<Device> devices = sim::open_peers({.policy = sim::Policy::lazy}, 3);
  const Device &first = devices[0], &second = devices[1], &third = devices[2];
  const Stream a{first}, b{second}, c{third};
};

TEST_F(UnifiedLost, WhatTheHostHasIsReadBesideWhatDidNotArrive) {
  UnifiedBuffer<int> buffer = make();
  buffer.fill(1);
  {
    UnifiedView<int> part = buffer.slice(0, 50);
    const DeviceLease<int> lease = part.discard_device(a);
    a.fill(lease.data(), lease.size(), 2);
  }
  EXPECT_EQ(buffer.slice(50, 50).read_host()[0], 1);
  buffer.slice(0, 50).prefetch_host();
  lose(first);
  const auto kept = buffer.slice(60, 20).try_read_host();
  ASSERT_TRUE(kept) << kept.failure().text();
  EXPECT_EQ((*kept)[0], 1);
  EXPECT_FALSE(buffer.slice(0, 50).try_read_host());
  EXPECT_FALSE(buffer.slice(0, 50).try_read_host());
  EXPECT_EQ(buffer.slice(50, 50).read_host()[49], 1);
  EXPECT_TRUE(buffer.check());
}

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
  write_on_device(buffer.slice(10, 20), a, 2);
  a.synchronize();
  lose(first);
  EXPECT_EQ(buffer.slice(0, 10).read_host()[9], 1);
  EXPECT_EQ(buffer.slice(30, 70).read_host()[0], 1);
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.number("begin"), 40u) << failure.text();
  EXPECT_EQ(failure.number("end"), 120u) << failure.text();
  EXPECT_EQ(failure.string("a"), first.spec());
  EXPECT_NE(failure.text().find("which had the only copy"), std::string::npos) << failure.text();
  refused(buffer.slice(10, 1).try_read_device(c), ErrorCode::sync_failed);
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

// --- What did not arrive

TEST_F(UnifiedLost, AReadThatDidNotArriveIsNeverGiven) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  PendingRead<int> one = buffer.read_host_async(), other = buffer.read_host_async();
  lose(first);
  refused(one.try_get(), ErrorCode::sync_failed);
  // Somebody was told, and the lost device does nothing any more: there is nothing to wait for.
  refused(one.try_get(), ErrorCode::sync_failed);
  refused(other.try_get(), ErrorCode::sync_failed);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, WhatDidNotArriveIsNotThereInALargerBuffer) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  buffer.drop_device();
  buffer.resize_keep(200);
  lose(first);
  refused(buffer.slice(0, 100).try_read_host(), ErrorCode::sync_failed);
  refused(buffer.slice(0, 100).try_read_host(), ErrorCode::never_written);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, WhatDidNotArriveIsNotThereInASmallerBuffer) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  buffer.drop_device();
  buffer.resize_keep(50);
  lose(first);
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.number("end"), 200u) << failure.text();
  refused(buffer.try_read_host(), ErrorCode::never_written);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, WhatDidNotArriveIsNotThereThoughItsSourceWasDroppedAsClean) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  buffer.prefetch_host();
  buffer.drop_device();  // with nothing that only it has
  lose(first);
  expect_lost(buffer);
}

TEST_F(UnifiedLost, WhatDidNotArriveIsNotThereThoughItsSourceHadToGo) {
  const ResourceHandle small =
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(first), limited(512));
  const auto make_small = [&] {
    return UnifiedBuffer<int>(Shape{100}, {.device = first, .resources = {small}});
  };
  UnifiedBuffer<int> buffer = make_small(), more = make_small();
  write_on_device(buffer, a, 7);
  buffer.prefetch_host();
  static_cast<void>(more.discard_device(a));
  ASSERT_FALSE(buffer.has_copy(first.place()));
  lose(first);
  expect_lost(buffer);
}

TEST_F(UnifiedLost, WhatDidNotArriveIsNotInACloneOnTheHost) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  const Stream own(open_device("host"));
  const UnifiedBuffer<int> same = buffer.clone(own);
  lose(first);
  expect_lost(same);
}

TEST_F(UnifiedLost, WhatDidNotArriveForTheHostDeviceIsNotThereForTheHostEither) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  const Stream own(open_device("host"));
  buffer.prefetch(own);
  lose(first);
  refused(buffer.try_read_host(), ErrorCode::sync_failed);
  refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.valid_places(), std::vector<Place>{first.place()});
  EXPECT_TRUE(buffer.check());
}

/// Of `count` elements the first fifty are lost, and only a write of others has met that.
UnifiedBuffer<int> UnifiedLost::with_unheard_loss(std::size_t count) {
  UnifiedBuffer<int> buffer = make(count);
  buffer.fill(1);
  write_on_device(buffer.slice(0, 50), a, 7);
  buffer.drop_device();
  lose(first);
  UnifiedView<int> others = buffer.slice(60, 20);
  const Result<HostLease<int>> lease = others.try_discard_host();
  EXPECT_TRUE(lease) << lease.failure().text();
  std::ranges::fill(*lease, 3);
  return buffer;
}

TEST_F(UnifiedLost, WhatIsLostIsNotChangedInPlaceThoughNobodyWasTold) {
  UnifiedBuffer<int> buffer = with_unheard_loss();
  UnifiedView<int> part = buffer.slice(40, 20);
  for (int again = 0; again < 2; ++again) {
    const Failure failure = refused(part.try_rw_host(), ErrorCode::never_written);
    EXPECT_EQ(failure.number("begin"), 160u) << failure.text();
    EXPECT_EQ(failure.number("end"), 200u) << failure.text();
    refused(part.try_rw_device(b), ErrorCode::never_written);
    refused(buffer.try_read_host(), ErrorCode::never_written);
  }
  const auto add = [](View<int> to) { to[0] += 1; };
  const Kernel kernel = Kernel::from_function(second, "add", +add);
  refused(kernel.try_launch(b, elements(1), inout(part)), ErrorCode::never_written);
  EXPECT_EQ(buffer.slice(50, 50).rw_host()[0], 1);
  EXPECT_TRUE(buffer.check());
  refused(std::move(buffer).try_release_host(), ErrorCode::never_written);
}

TEST_F(UnifiedLost, WhatIsLostIsThereAgainOnceItWasWritten) {
  UnifiedBuffer<int> buffer = with_unheard_loss();
  buffer.slice(0, 30).fill(4);
  EXPECT_EQ(buffer.slice(0, 30).rw_host()[29], 4);
  refused(buffer.slice(20, 20).try_rw_host(), ErrorCode::never_written);
  write_on_device(buffer.slice(30, 20), b, 5);
  EXPECT_EQ(buffer.rw_host()[49], 5);
  buffer.invalidate();
  EXPECT_TRUE(buffer.try_rw_host()) << "what was written and invalidated is not lost";
}

TEST_F(UnifiedLost, WhatIsLostIsLostInALargerBufferAndInAClone) {
  UnifiedBuffer<int> buffer = with_unheard_loss();
  buffer.resize_keep(200);
  refused(buffer.slice(0, 10).try_rw_host(), ErrorCode::never_written);
  EXPECT_TRUE(buffer.slice(100, 100).try_rw_host()) << "nobody wrote them, and nothing is lost";
  UnifiedBuffer<int> same = buffer.clone(b);
  refused(same.slice(0, 10).try_rw_host(), ErrorCode::never_written);
  EXPECT_EQ(same.slice(50, 10).rw_host()[0], 1);
  buffer.resize_keep(40);
  refused(buffer.slice(0, 10).try_rw_host(), ErrorCode::never_written);
}

TEST_F(UnifiedLost, WhatHasArrivedStaysWhateverIsLostLater) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  buffer.drop_device();
  EXPECT_EQ(buffer.slice(0, 50).read_host()[0], 7);
  write_on_device(buffer.slice(0, 10), a, 8);
  PendingRead<int> pending = buffer.slice(0, 10).read_host_async();
  lose(first);
  refused(pending.try_get(), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.slice(10, 90).read_host()[0], 7);
}

TEST_F(UnifiedLost, NobodyTouchesTheBytesOfAnElementAfterwards) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  a.synchronize();
  // The copy is queued, and the wait for it fails.
  for (const char* const plan : {"sync#1=fail", "record#1=fail", "query#1=fail"}) {
    sim::set_faults(first, plan);
    int value = 0;
    const Result<void> loaded =
        buffer.raw().try_load(3 * sizeof(int), &value, sizeof value, CallSite::here());
    const int on_return = value;
    sim::set_faults(first, "");
    first.synchronize();
    EXPECT_EQ(value, on_return) << plan;
    EXPECT_TRUE(!loaded || value == 7) << plan;
  }
}

// --- Stores that fail

/// Valid on the host, on a stream's device, and for the device that is the host, which shares the
/// host's memory.
UnifiedBuffer<int> on_host_and_device(const Device& device, StreamRef stream, StreamRef on_host) {
  UnifiedBuffer<int> made(Shape{16}, {.device = device});
  made.fill(7);
  static_cast<void>(on_device(made, stream));
  static_cast<void>(made.read_device(on_host));
  made.synchronize();
  return made;
}

TEST_F(UnifiedLost, AStoreThatFailsLeavesNoTwoValues) {
  const Stream own(open_device("host"));
  for (const char* const plan : {"copy#1=fail", "copy#1+=fail", "copy#1=lost", "sync#1=lost",
                                 "sync#1=fail", "sync#1+=fail", "stream#1+=fail"}) {
    SCOPED_TRACE(plan);
    for (const bool host_first : {true, false}) {
      const std::vector<Device> one = sim::open_peers({.policy = sim::Policy::lazy}, 1);
      const Stream stream(one[0]);
      UnifiedBuffer<int> buffer = [&] {
        if (host_first) return on_host_and_device(one[0], stream, own);
        UnifiedBuffer<int> made(Shape{16}, {.device = one[0]});
        made.fill(7);
        static_cast<void>(made.read_device(own));
        static_cast<void>(on_device(made, stream));
        made.synchronize();
        return made;
      }();
      sim::set_faults(one[0], plan);
      const Result<void> stored = buffer.try_store_host(3, 42);
      const bool is_lost = !one[0].try_memory();
      if (!is_lost) sim::set_faults(one[0], "");
      const int seen = buffer.read_host()[3];
      EXPECT_EQ(seen, stored ? 42 : seen == 42 ? 42 : 7);
      {
        const DeviceLease<const int> lease = buffer.read_device(own);
        own.synchronize();
        EXPECT_EQ(lease.data()[3], seen);
      }
      if (!is_lost) {
        EXPECT_EQ(on_device(buffer, stream)[3], seen);
      }
      EXPECT_TRUE(buffer.check());
    }
  }
}

TEST_F(UnifiedLost, AStoreThatFailsBeforeTheHostWasWrittenChangesNothing) {
  const Stream own(open_device("host"));
  UnifiedBuffer<int> buffer = on_host_and_device(first, a, own);
  sim::set_faults(first, "copy#1=fail");
  refused(buffer.try_store_host(3, 42), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.read_host()[3], 7);
  EXPECT_EQ(on_device(buffer, a)[3], 7);
}

TEST_F(UnifiedLost, AStoreGoesToTheCopiesThatAreLeft) {
  UnifiedBuffer<int> buffer = on_both(7);
  EXPECT_EQ(buffer.read_host()[3], 7);
  lose(second);
  buffer.store_host(3, 42);
  EXPECT_EQ(buffer.read_host()[3], 42);
  EXPECT_EQ(on_device(buffer, a)[3], 42);
  EXPECT_TRUE(buffer.check());
}

// --- Transfers that are refused

TEST_F(UnifiedLost, ARefusedFirstTransferLeavesStateAndCharge) {
  const BudgetHandle budget = limited(1 * mib);
  const ResourceHandle resource =
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(first), budget);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = first, .resources = {resource}});
  buffer.copy_from(counting(100));
  const auto expect_unchanged = [&] {
    sim::set_faults(first, "");
    first.synchronize();
    reclaim_deferred();
    EXPECT_TRUE(budget->try_wait_for_pending());
    EXPECT_EQ(budget->charged_bytes(), 0u);
    EXPECT_STATE(buffer, host_only);
    EXPECT_FALSE(buffer.has_copy(first.place()));
    EXPECT_TRUE(buffer.check());
  };
  sim::set_faults(first, "copy#1=fail");
  refused(buffer.try_read_device(a), ErrorCode::sync_failed);
  expect_unchanged();
  sim::set_faults(first, "copy#1=fail");
  refused(buffer.try_rw_device(a), ErrorCode::sync_failed);
  expect_unchanged();
  sim::set_faults(first, "copy#1=fail");
  refused(buffer.try_prefetch(a), ErrorCode::sync_failed);
  expect_unchanged();
  sim::set_faults(first, "copy#1=fail");
  refused(buffer.try_drop_host(), ErrorCode::sync_failed);
  expect_unchanged();
  EXPECT_EQ(on_device(buffer, a), counting(100));
}

TEST_F(UnifiedLost, ARefusedFirstTransferToTheHostLeavesNoCopyThere) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  a.synchronize();
  for (const char* const plan : {"copy#1=fail", "sync#1=fail"}) {
    sim::set_faults(first, plan);
    refused(buffer.try_read_host(), ErrorCode::sync_failed);
    sim::set_faults(first, "");
    EXPECT_STATE(buffer, device_only);
    EXPECT_TRUE(buffer.check());
  }
  EXPECT_EQ(buffer.read_host()[99], 7);
}

TEST_F(UnifiedLost, ALaunchReadsNoBytesThatNobodyWrote) {
  const Device device = sim::open({});
  const Stream stream(device);
  const Kernel kernel = Kernel::from_function(
      device, "touches", +[](View<const int>, View<int>) {});
  UnifiedBuffer<int> buffer(Shape{16}, {.device = device});
  buffer.slice(0, 8).fill(1);
  refused(kernel.try_launch(stream, elements(1), in(buffer), out(buffer)),
          ErrorCode::never_written);
  refused(kernel.try_launch(stream, elements(1), in(buffer.slice(4, 8)), out(buffer.slice(8, 8))),
          ErrorCode::never_written);
  EXPECT_TRUE(
      kernel.try_launch(stream, elements(1), in(buffer.slice(0, 8)), inout(buffer.slice(4, 4))));
}

TEST_F(UnifiedLost, ACallbackThatThrowsIsNotHeard) {
  std::vector<int> memory(16, 3);
  bool was_called = false;
  {
    const UnifiedBuffer<int> adopted =
        UnifiedBuffer<int>::adopt_host(memory,
                                       [&] {
                                         was_called = true;
                                         throw std::runtime_error("it was told not to");
                                       },
                                       {.device = first});
    EXPECT_EQ(adopted.read_host()[0], 3);
  }
  EXPECT_TRUE(was_called);
}

// --- What only the host has

TEST_F(UnifiedLost, WhatOnlyTheHostHadIsNotLostByAResizeOnAStream) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  buffer.resize_keep(2000, a);
  lose(first);
  const HostLease<const int> lease = buffer.slice(0, 1000).read_host();
  EXPECT_EQ(std::vector<int>(lease.begin(), lease.end()), counting(1000));
}

TEST_F(UnifiedLost, ResizeKeepsHostBytesWhileAStreamWritesOtherHostBytes) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  write_on_device(buffer.slice(600, 100), a, 7);
  buffer.slice(600, 100).prefetch_host();
  buffer.resize_keep(2000, a);
  lose(first);
  refused(buffer.slice(600, 100).try_read_host(), ErrorCode::sync_failed);
  const std::vector<int> before = buffer.slice(0, 600).to_vector();
  EXPECT_EQ(before, counting(600));
  EXPECT_EQ(buffer.slice(700, 300).to_vector().back(), counting(1000).back());
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, ResizeKeepsBytesThatAnotherDeviceCopied) {
  // The host copy is memory of the OpenCL device, which copies it to the larger memory.
  const Result<Device> shared = try_open_device("opencl:0");
  if (!shared) GTEST_SKIP() << shared.failure().text();
  const Stream stream(*shared);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = *shared});
  buffer.fill(3);
  buffer.resize_keep(200, stream);
  write_on_device(buffer.slice(50, 10), a, 7);
  buffer.slice(50, 10).prefetch_host();
  lose(first);
  refused(buffer.slice(50, 10).try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.slice(0, 50).to_vector(), std::vector<int>(50, 3));
  EXPECT_TRUE(buffer.check());
}

TEST(UnifiedResize, CopiesBytesThatAStreamOfTheHostDeviceIsStillWriting) {
  const Device host = open_device("host");
  const Stream stream(host);
  UnifiedBuffer<int> buffer(Shape{1000}, {.device = host});
  buffer.fill(1);
  Gate gate;
  gate.hold(stream);
  write_on_device(buffer, stream, 7);
  buffer.prefetch_host();
  buffer.resize_keep(2000, stream);
  gate.open();
  EXPECT_EQ(buffer.slice(0, 1000).to_vector(), std::vector<int>(1000, 7));
}

TEST_F(UnifiedLost, AResizeOnAStreamThatIsLostNeverReadsAsSomethingElse) {
  for (const bool is_elsewhere : {false, true}) {
    const std::vector<Device> two = sim::open_peers({.policy = sim::Policy::lazy}, 2);
    const Stream one(two[0]), other(two[1]);
    UnifiedBuffer<int> buffer(Shape{1000}, {.device = two[0]});
    buffer.copy_from(std::vector<int>(1000, 3));
    if (is_elsewhere) static_cast<void>(on_device(buffer, other));
    // What comes to the host is not there yet, so the stream has to do it.
    write_on_device(buffer.slice(900, 50), one, 5);
    PendingRead<int> pending = buffer.slice(900, 50).read_host_async();
    { PendingRead<int> gone = std::move(pending); }
    buffer.resize_keep(2000, one);
    lose(two[0]);
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(i);
      for (const std::size_t at : {std::size_t{0}, std::size_t{900}, std::size_t{990}}) {
        const Result<HostLease<const int>> lease = buffer.slice(at, 10).try_read_host();
        if (lease) {
          EXPECT_EQ((*lease)[0], at == 900 ? 5 : 3) << at;
        }
      }
    }
    if (is_elsewhere) {
      EXPECT_EQ(buffer.slice(0, 900).read_host()[899], 3);
    }
    EXPECT_TRUE(buffer.check());
  }
}

TEST_F(UnifiedLost, WhatOnlyTheHostHadIsNotLostThoughALostDeviceWasReadingIt) {
  const Stream own(open_device("host"));
  UnifiedBuffer<int> buffer = make();
  {
    const DeviceLease<int> lease = buffer.discard_device(own);
    own.fill(lease.data(), lease.size(), 9);
  }
  buffer.drop_device(own.device());
  Gate gate;
  gate.hold(a);
  static_cast<void>(buffer.read_device(a));  // an upload that does not come to its end
  lose(first);
  EXPECT_EQ(buffer.rw_host()[99], 9);
}

TEST_F(UnifiedLost, AnElementIsStoredThoughALostDeviceWasReadingIt) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  Gate gate;
  gate.hold(a);
  static_cast<void>(buffer.read_device(a));  // an upload that does not complete
  lose(first);
  buffer.store_host(3, 42);
  EXPECT_EQ(buffer.read_host()[3], 42);
  EXPECT_EQ(buffer.read_host()[99], counting(100)[99]);
}

TEST_F(UnifiedLost, WhatTheHostStoredOverWhatHadArrivedIsNotLost) {
  UnifiedBuffer<int> buffer = make();
  write_on_device(buffer, a, 7);
  buffer.prefetch_host();
  buffer.store_host(3, 8);  // waits for what was on its way
  buffer.drop_device();
  lose(first);
  EXPECT_EQ(buffer.read_host()[3], 8);
  EXPECT_EQ(buffer.read_host()[4], 7);
}

// --- Where it came from

TEST_F(UnifiedLost, TheFinalWaitNamesTheDeviceThatDidNotDeliver) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  write_on_device(buffer.slice(50, 50), b, 3);
  write_on_device(buffer.slice(0, 50), a, 2);
  a.synchronize();
  b.synchronize();
  sim::set_faults(first, "copy#1=fault");  // found out when the stream gets there
  PendingRead<int> pending = buffer.slice(0, 50).read_host_async();
  const Failure failure = refused(pending.try_get(), ErrorCode::sync_failed);
  EXPECT_EQ(failure.string("a"), first.spec()) << failure.text();
  EXPECT_NE(failure.text().find("('" + std::string(first.spec()) + "' to 'host')"),
            std::string::npos)
      << failure.text();
  EXPECT_EQ(buffer.slice(50, 50).read_host()[0], 3);
  EXPECT_TRUE(buffer.check());
}

TEST_F(UnifiedLost, OfSeveralSourcesNoneIsNamed) {
  UnifiedBuffer<int> buffer = make();
  buffer.copy_from(counting(100));
  write_on_device(buffer.slice(50, 50), b, 3);
  write_on_device(buffer.slice(0, 50), a, 2);
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
  write_on_device(buffer.slice(0, 60), a, 2);
  write_on_device(buffer.slice(60, 40), b, 3);
  a.synchronize();
  b.synchronize();
  const CopyCount before = unified_totals().to_host;
  sim::set_faults(first, "copy#2=fail");
  refused(buffer.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(buffer.statistics().to_host, (CopyCount{1, 240}));
  EXPECT_EQ(buffer.statistics().of(TransferReason::host_read), (CopyCount{1, 240}));
  ASSERT_EQ(buffer.transfers().size(), 1u);
  EXPECT_EQ(last_source(buffer), first.place());
  EXPECT_EQ(unified_totals().to_host.bytes - before.bytes, 240u);
  // It moved, and nobody has it.
  EXPECT_TRUE(buffer.is_stale_on(Place::host()));
  EXPECT_EQ(buffer.valid_places(0, 60), std::vector<Place>{first.place()});
  EXPECT_TRUE(buffer.check());
  EXPECT_EQ(buffer.read_host()[99], 3);
  EXPECT_EQ(buffer.statistics().to_host, (CopyCount{3, 640}));
}

}  // namespace
}  // namespace tern::test
