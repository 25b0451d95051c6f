#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "support/unified.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::test {
namespace {

// --- Transfers and states of leases

TEST_F(Unified, IsMadeWithoutMemoryAndWritten) {
  sim::set_faults(device, "");
  const UnifiedBuffer<int> buffer = make(100);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_EQ(buffer.size_bytes(), 400u);
  EXPECT_EQ(buffer.shape(), Shape{100});
  EXPECT_EQ(buffer.dtype(), DType::i32);
  EXPECT_FALSE(buffer.is_pinned());
  EXPECT_FALSE(buffer.has_copy(Place::host()));
  EXPECT_EQ(sim::calls(device, "allocate"), 0u);
}

TEST_F(Unified, RefusesToBeMadeOfNoDeviceOrTooLarge) {
  refused(UnifiedBuffer<int>::try_make(Shape{4}, {}), ErrorCode::invalid_device);
  refused(UnifiedBuffer<int>::try_make(Shape{max_request_bytes}, {.device = device}),
          ErrorCode::size_overflow);
}

TEST_F(Unified, GoesThroughTheStatesOfTheTable) {
  struct Step {
    BufferState from;
    std::string what;
    BufferState to;
    std::size_t copies;
  };
  using enum BufferState;
  // 'h' host, 'd' device; r, w, x: read, rw, discard; dh, dd: drop.
  const std::vector<Step> steps = {
      {uninitialized, "hw", host_only, 0},     {uninitialized, "hx", host_only, 0},
      {uninitialized, "dw", device_only, 0},   {uninitialized, "dx", device_only, 0},
      {uninitialized, "dh", uninitialized, 0}, {uninitialized, "dd", uninitialized, 0},
      {host_only, "hr", host_only, 0},         {host_only, "hw", host_only, 0},
      {host_only, "hx", host_only, 0},         {host_only, "dr", synchronized, 1},
      {host_only, "dw", device_dirty, 1},      {host_only, "dx", device_dirty, 0},
      {host_only, "dh", device_only, 1},       {host_only, "dd", host_only, 0},
      {device_only, "hr", synchronized, 1},    {device_only, "hw", host_dirty, 1},
      {device_only, "hx", host_dirty, 0},      {device_only, "dr", device_only, 0},
      {device_only, "dw", device_only, 0},     {device_only, "dx", device_only, 0},
      {device_only, "dh", device_only, 0},     {device_only, "dd", host_only, 1},
      {synchronized, "hr", synchronized, 0},   {synchronized, "hw", host_dirty, 0},
      {synchronized, "hx", host_dirty, 0},     {synchronized, "dr", synchronized, 0},
      {synchronized, "dw", device_dirty, 0},   {synchronized, "dx", device_dirty, 0},
      {synchronized, "dh", device_only, 0},    {synchronized, "dd", host_only, 0},
      {host_dirty, "hr", host_dirty, 0},       {host_dirty, "hw", host_dirty, 0},
      {host_dirty, "hx", host_dirty, 0},       {host_dirty, "dr", synchronized, 1},
      {host_dirty, "dw", device_dirty, 1},     {host_dirty, "dx", device_dirty, 0},
      {host_dirty, "dh", device_only, 1},      {host_dirty, "dd", host_only, 0},
      {device_dirty, "hr", synchronized, 1},   {device_dirty, "hw", host_dirty, 1},
      {device_dirty, "hx", host_dirty, 0},     {device_dirty, "dr", device_dirty, 0},
      {device_dirty, "dw", device_dirty, 0},   {device_dirty, "dx", device_dirty, 0},
      {device_dirty, "dh", device_only, 0},    {device_dirty, "dd", host_only, 1},
  };
  const auto write = [&](UnifiedBuffer<int>& buffer, int value) {
    std::ranges::fill(buffer.discard_host(), value);
  };
  for (const Step& step : steps) {
    UnifiedBuffer<int> buffer = make(50);
    switch (step.from) {
      case host_only:
        write(buffer, 7);
        break;
      case device_only:
        write_on_device(buffer, s, 7);
        break;
      case synchronized:
        write(buffer, 7);
        buffer.sync_to_device();
        break;
      case host_dirty:
        write_on_device(buffer, s, 3);
        write(buffer, 7);
        break;
      case device_dirty:
        write(buffer, 3);
        write_on_device(buffer, s, 7);
        break;
      default:
        break;
    }
    ASSERT_EQ(buffer.state(), step.from) << step.what;
    const std::uint64_t before = buffer.statistics().moved().copies;
    int value = step.from == uninitialized ? 0 : 7;
    if (step.what == "hr") {
      EXPECT_EQ(buffer.read_host()[49], value);
    }
    if (step.what == "hw") {
      const HostLease<int> lease = buffer.rw_host();
      EXPECT_TRUE(value == 0 || lease[49] == value);
      std::ranges::fill(lease, value = 9);
    }
    if (step.what == "hx") std::ranges::fill(buffer.discard_host(), value = 9);
    if (step.what == "dr") {
      EXPECT_EQ(on_device(buffer, s), std::vector<int>(50, value));
    }
    if (step.what == "dw") {
      const DeviceLease<int> lease = buffer.rw_device(s);
      if (value != 0) {
        std::vector<int> seen(50);
        s.copy(seen.data(), lease.data(), 200);
        s.synchronize();
        EXPECT_EQ(seen, std::vector<int>(50, value));
      }
      s.fill(lease.data(), 50, value = 9);
    }
    if (step.what == "dx") write_on_device(buffer, s, value = 9);
    if (step.what == "dh") buffer.drop_host();
    if (step.what == "dd") buffer.drop_device();
    const std::string label = std::string(name(step.from)) + " " + step.what;
    EXPECT_EQ(name(buffer.state()), name(step.to)) << label;
    EXPECT_EQ(buffer.statistics().moved().copies - before, step.copies) << label;
    EXPECT_TRUE(buffer.check());
    if (value != 0) {
      EXPECT_EQ(buffer.to_vector(), std::vector<int>(50, value)) << label;
    }
  }
}

TEST_F(Unified, RefusesToReadWhatNobodyWrote) {
  UnifiedBuffer<int> buffer = make(100);
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::never_written).number("end"), 400u);
  refused(buffer.try_read_device(s), ErrorCode::never_written);
  refused(buffer.try_sync_to_device(), ErrorCode::never_written);
  refused(buffer.try_sync_to_host(), ErrorCode::never_written);
  refused(buffer.try_prefetch(s), ErrorCode::never_written);
  refused(buffer.try_load_host(3), ErrorCode::never_written);
  EXPECT_FALSE(buffer.has_copy(Place::host()));
  EXPECT_FALSE(buffer.has_copy(device.place()));
  std::ranges::fill(buffer.slice(0, 50).discard_host(), 1);
  const Failure failure = refused(buffer.try_read_device(s), ErrorCode::never_written);
  EXPECT_EQ(failure.number("begin"), 200u);
  EXPECT_EQ(failure.number("end"), 400u);
  EXPECT_STATE(buffer, mixed);
  EXPECT_TRUE(buffer.slice(0, 50).try_read_device(s));
}

TEST_F(Unified, MovesOncePerChangeOfDirection) {
  UnifiedBuffer<int> buffer = make(1000);
  write_on_device(buffer, s, 5);
  static_cast<void>(buffer.read_host());
  EXPECT_EQ(moved(buffer), 4000u);
  EXPECT_STATE(buffer, synchronized);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(buffer.read_host()[999], 5);
    static_cast<void>(buffer.read_device(s));
  }
  EXPECT_EQ(moved(buffer), 4000u);
  { const HostLease<int> lease = buffer.rw_host(); }
  static_cast<void>(buffer.read_device(t));
  EXPECT_EQ(moved(buffer), 8000u);
  EXPECT_EQ(buffer.statistics().of(TransferReason::host_read).bytes, 4000u);
  EXPECT_EQ(buffer.statistics().of(TransferReason::device_read), (CopyCount{1, 4000}));
}

TEST_F(Unified, DiscardFetchesNothingAndOnlyItsRangeGoesStale) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  write_on_device(buffer.slice(0, 50), s, -1);
  EXPECT_EQ(moved(buffer), 400u);
  EXPECT_STATE(buffer, mixed);
  EXPECT_EQ(name(buffer.state(0, 50)), "DEVICE_DIRTY");
  EXPECT_EQ(name(buffer.state(50, 50)), "SYNCHRONIZED");
  EXPECT_EQ(buffer.valid_places(0, 50), std::vector{device.place()});
  EXPECT_EQ(buffer.valid_places(50, 50), (std::vector{Place::host(), device.place()}));
  EXPECT_TRUE(buffer.is_stale_on(Place::host()));
  EXPECT_FALSE(buffer.is_stale_on(device.place()));
  std::string seen;
  buffer.for_each_interval([&](std::size_t begin, std::size_t end, std::span<const Place> places) {
    seen += std::to_string(begin) + "-" + std::to_string(end) + ":" +
            std::to_string(places.size()) + " ";
  });
  EXPECT_EQ(seen, "0-200:1 200-400:2 ");
  EXPECT_EQ(buffer.read_host()[49], -1);
  EXPECT_EQ(moved(buffer), 600u);
  EXPECT_EQ(buffer.read_host()[50], 51);
}

TEST_F(Unified, ForgetsADiscardThatAnExceptionLeft) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  try {
    const auto part = buffer.slice(10, 10).discard_host();
    throw std::runtime_error("half way");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::never_written).number("begin"), 40u);
  EXPECT_EQ(buffer.load_host(9), 10);
  try {
    const auto part = buffer.slice(30, 10).rw_host();
    part[0] = 77;
    throw std::runtime_error("half way");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(buffer.load_host(30), 77);
  {
    HostLease<int> lease = buffer.slice(10, 10).discard_host();
    lease[0] = lease[1] = 5;
    lease.commit(2);
  }
  EXPECT_EQ(buffer.load_host(11), 5);
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::never_written).number("begin"), 48u);
  DeviceLease<int> lease = buffer.discard_device(s);
  lease.abandon();
  EXPECT_STATE(buffer, uninitialized);
}

TEST_F(Unified, LeasesGiveMemoryOfTheRangeAndKeepTheBuffer) {
  HostLease<const int> lease;
  {
    UnifiedBuffer<int> buffer = make(100);
    buffer.copy_from(counting(100));
    lease = buffer.slice(20, 30).slice(5, 10).read_host();
  }
  EXPECT_EQ(lease.size(), 10u);
  EXPECT_EQ(std::vector(lease.begin(), lease.end()), counting(10, 26));
  EXPECT_EQ(lease.span()[3], 29);
  lease.close();
  EXPECT_EQ(lease.data(), nullptr);
  static_assert(!std::is_copy_constructible_v<HostLease<int>>);
  static_assert(!std::is_copy_constructible_v<UnifiedBuffer<int>>);
  static_assert(!std::is_convertible_v<UnifiedBuffer<int>, int*>);
}

TEST_F(Unified, ReachesNoDeviceForNoElements) {
  sim::set_faults(device, "");
  UnifiedBuffer<int> buffer = make(0);
  EXPECT_TRUE(buffer.read_host().empty());
  EXPECT_TRUE(buffer.rw_device(s).empty());
  buffer.fill(3);
  buffer.sync_to_device();
  buffer.prefetch(s);
  buffer.drop_host();
  buffer.free();
  EXPECT_EQ(buffer.to_vector(), std::vector<int>());
  UnifiedBuffer<int> some = make(10);
  some.copy_from(counting(10));
  EXPECT_TRUE(some.slice(10, 0).read_device(s).empty());
  UnifiedBuffer<int> unwritten = make(10);
  for (const UnifiedBuffer<int>* one : {&some, &unwritten}) {
    const UnifiedView<int> none = one->slice(5, 0);
    none.prefetch(s);
    none.prefetch_host();
    none.sync_to_device();
    none.sync_to_host();
    EXPECT_FALSE(one->has_copy(device.place()));
    EXPECT_TRUE(one->transfers().empty());
  }
  EXPECT_FALSE(unwritten.has_copy(Place::host()));
  for (const char* one : {"copy", "allocate", "pin", "record", "wait"}) {
    EXPECT_EQ(sim::calls(device, one), 0u) << one;
  }
}

TEST_F(Unified, RefusesViewsThatAreNotInside) {
  UnifiedBuffer<int> buffer = make(10);
  refused(buffer.try_slice(5, 6), ErrorCode::invalid_view);
  refused(buffer.try_slice(11, 0), ErrorCode::invalid_view);
  refused(buffer.try_slice(~std::size_t{0} / 2, 4), ErrorCode::invalid_view);
  refused(buffer.slice(5, 5).try_slice(0, 6), ErrorCode::invalid_view);
  UnifiedView<int> tail = buffer.slice(5, 5);
  EXPECT_TRUE(tail.overlaps(buffer.slice(9, 1)));
  EXPECT_FALSE(tail.overlaps(buffer.slice(0, 5)));
  buffer.resize_discard(8);
  const Failure failure = refused(tail.try_rw_host(), ErrorCode::invalid_view);
  EXPECT_EQ(failure.number("offset"), 20u);
  EXPECT_EQ(failure.number("extent"), 32u);
  refused(UnifiedBuffer<int>().try_read_host(), ErrorCode::not_allocated);
}

// --- Order

TEST_F(Unified, AHostWriteWaitsForTheUploadThatStillReadsTheCopy) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  Gate gate;
  gate.hold(s);
  { const DeviceLease<const int> lease = buffer.read_device(s); }
  test::Thread opener([&] {
    std::this_thread::yield();
    gate.open();
  });
  std::ranges::fill(buffer.rw_host(), -1);
  opener.join();
  EXPECT_STATE(buffer, host_dirty);
  std::vector<int> uploaded(1000);
  {
    // What was uploaded is old, and stale.
    const DeviceLease<int> lease = buffer.discard_device(s);
    s.copy(uploaded.data(), lease.data(), 4000);
    s.synchronize();
  }
  EXPECT_EQ(uploaded, counting(1000));
}

TEST_F(Unified, DeviceLeasesNeverBlockAndWaitForWhatTheyNeed) {
  UnifiedBuffer<int> buffer = make(1000);
  Gate gate;
  gate.hold(s);
  write_on_device(buffer, s, 1);
  write_on_device(buffer, t, 2);
  const PendingRead<int> pending = buffer.read_host_async();
  const Mark mark = t.mark();
  EXPECT_FALSE(Device::is_done(mark));
  EXPECT_FALSE(buffer.try_rw_device(s));
  gate.open();
  EXPECT_EQ(std::as_const(buffer).read_host()[0], 2);
}

TEST_F(Unified, AnAsyncReadOverlapsAndIsALeaseFromTheBeginning) {
  UnifiedBuffer<int> buffer = make(100);
  Gate gate;
  gate.hold(s);
  write_on_device(buffer, s, 4);
  PendingRead<int> pending = buffer.read_host_async();
  refused(buffer.try_discard_device(t), ErrorCode::access_conflict);
  gate.open();
  const HostLease<const int> lease = pending.get();
  EXPECT_EQ(std::vector(lease.begin(), lease.end()), std::vector<int>(100, 4));
  EXPECT_STATE(buffer, synchronized);
}

TEST_F(Unified, AnAsyncReadIsGotOnce) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 4);
  PendingRead<int> pending = buffer.read_host_async();
  PendingRead<int> other = std::move(pending);
  refused(pending.try_get(), ErrorCode::not_allocated);
  EXPECT_FALSE(pending.is_pending());
  EXPECT_TRUE(other.is_pending());
  const HostLease<const int> lease = other.get();
  EXPECT_EQ(lease[99], 4);
  EXPECT_FALSE(other.is_pending());
  const Failure failure = refused(other.try_get(), ErrorCode::not_allocated);
  EXPECT_NE(failure.text().find("called before"), std::string::npos) << failure.text();
  EXPECT_THROW(static_cast<void>(other.get()), NotAllocated);
  EXPECT_EQ(lease[99], 4);
  refused(PendingRead<int>().try_get(), ErrorCode::not_allocated);
  other = buffer.read_host_async();
  EXPECT_EQ(other.get()[99], 4);
  // One of no elements has a lease too, and has it once.
  UnifiedBuffer<int> none = make(0);
  PendingRead<int> nothing = none.read_host_async();
  EXPECT_TRUE(nothing.try_get());
  refused(nothing.try_get(), ErrorCode::not_allocated);
}

TEST_F(Unified, AHostReadNeedsNoStreamOfItsOwn) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  EXPECT_EQ(buffer.read_host()[0], 1);
  sim::set_faults(device, "");
  write_on_device(buffer, s, 2);
  EXPECT_EQ(buffer.read_host()[0], 2);
  EXPECT_EQ(sim::calls(device, "stream"), 0u);
  Gate gate;
  gate.hold(s);
  write_on_device(buffer, s, 3);
  PendingRead<int> pending = buffer.read_host_async();
  EXPECT_GT(sim::calls(device, "stream"), 0u);
  gate.open();
  EXPECT_EQ(pending.get()[0], 3);
}

TEST_F(Unified, WaitsForNobodyElsesWork) {
  // The stream of the library is used by both, and held by neither.
  UnifiedBuffer<int> slow = make(100), quick = make(100);
  write_on_device(quick, t, 3);
  Gate gate;
  gate.hold(s);
  write_on_device(slow, s, 4);
  const PendingRead<int> pending = slow.read_host_async();
  EXPECT_EQ(quick.read_host()[5], 3);
  EXPECT_EQ(quick.load_host(5), 3);
  gate.open();
}

TEST_F(Unified, KeepsTheOrderOfALeaseThatWasOpenWhenOthersLooked) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  UnifiedView<int> one = buffer.slice(0, 50), other = buffer.slice(50, 50);
  static_cast<void>(buffer.read_device(t));
  write_on_device(one, s, 1);
  write_on_device(one, s, 2);
  {
    const DeviceLease<int> lease = one.rw_device(s);
    EXPECT_EQ(on_device(other, t)[0], 51);
    s.fill(lease.data(), 50, 3);
  }
  EXPECT_EQ(one.read_host()[49], 3);
  write_on_device(one, s, 4);
  {
    const DeviceLease<int> lease = one.rw_device(s);
    const DeviceLease<const int> beside = other.read_device(t);
    s.fill(lease.data(), 50, 5);
  }
  write_on_device(one, t, 6);
  EXPECT_EQ(on_device(one, s)[0], 6);
  EXPECT_EQ(one.read_host()[0], 6);

  // One that closes last has not waited for what came after its beginning.
  {
    const DeviceLease<const int> beside = other.read_device(t);
    write_on_device(one, s, 7);
  }
  EXPECT_EQ(on_device(one, t)[0], 7);
  // And what it read is not to be overwritten yet.
  std::vector<int> seen(50);
  {
    const DeviceLease<const int> beside = other.read_device(t);
    write_on_device(one, s, 8);
    t.copy(seen.data(), beside.data(), 200);
  }
  write_on_device(other, s, 9);
  t.synchronize();
  EXPECT_EQ(seen, counting(50, 51));
  write_on_device(one, s, 10);
  {
    const DeviceLease<const int> beside = other.read_device(t);
    write_on_device(one, s, 11);
    t.copy(seen.data(), beside.data(), 200);
  }
  write_on_device(other, s, 12);
  t.synchronize();
  EXPECT_EQ(seen, std::vector<int>(50, 9));
}

TEST_F(Unified, KeepsTheOrderOfAWriteWhoseStreamHasReadMeanwhile) {
  UnifiedBuffer<int> buffer = make(100);
  UnifiedView<int> one = buffer.slice(0, 50), other = buffer.slice(50, 50);
  write_on_device(buffer, s, 1);
  DeviceLease<int> lease = one.rw_device(s);
  s.fill(lease.data(), 50, 2);
  EXPECT_EQ(on_device(other, t)[0], 1);
  EXPECT_EQ(on_device(other, s)[0], 1);
  s.fill(lease.data(), 50, 3);
  lease.close();
  EXPECT_EQ(on_device(one, t)[0], 3);
}

TEST_F(Unified, WhoDowngradesHasNotWaitedForOthers) {
  UnifiedBuffer<int> buffer = make(100);
  UnifiedView<int> one = buffer.slice(0, 50), other = buffer.slice(50, 50);
  write_on_device(buffer, s, 1);
  for (int i = 0; i < 2; ++i) {
    DeviceLease<int> lease = one.rw_device(t);
    write_on_device(other, s, 2);
    static_cast<void>(std::move(lease).downgrade());
    EXPECT_EQ(on_device(other, t)[0], 2);
    write_on_device(one, t, 3);  // the next lease of t is the same use
  }
}

TEST_F(Unified, EndsBehindItsWorkWithoutWaiting) {
  Gate gate;
  gate.hold(s);
  {
    UnifiedBuffer<int> buffer = make(100000);
    buffer.copy_from(counting(100000));
    const DeviceLease<int> lease = buffer.rw_device(s);
    s.fill(lease.data(), lease.size(), 1);
  }
  gate.open();
  s.synchronize();
  static_cast<void>(reclaim_deferred());
}

// --- Conflicts

TEST_F(Unified, RefusesWhatCollidesAndNamesBothLines) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  const auto open = [&](int kind, bool on_host) -> Result<RawLease> {
    const Access access = kind == 0   ? Access::read
                          : kind == 1 ? Access::read_write
                                      : Access::discard;
    const CallSite site{"here.cpp", "f", static_cast<std::uint32_t>(10 + kind)};
    return on_host ? buffer.raw().try_host(access, LeaseWait::never(), site)
                   : buffer.raw().try_device(access, s, LeaseWait::never(), site);
  };
  for (int first = 0; first < 3; ++first) {
    for (int second = 0; second < 3; ++second) {
      for (int places = 0; places < 4; ++places) {
        const Result<RawLease> held = open(first, (places & 1) != 0);
        ASSERT_TRUE(held);
        const auto try_second = [&] {
          const Result<RawLease> other = open(second, (places & 2) != 0);
          if (first == 0 && second == 0) {
            EXPECT_TRUE(other);
            return;
          }
          const Failure failure = refused(other, ErrorCode::access_conflict);
          EXPECT_EQ(failure.number("a_line"), 10u + static_cast<unsigned>(first));
          EXPECT_EQ(failure.number("b_line"), 10u + static_cast<unsigned>(second));
          EXPECT_EQ(failure.string("a_file"), "here.cpp");
          EXPECT_EQ(failure.string("tag"), "u");
        };
        try_second();
        test::Thread(try_second).join();
      }
    }
  }
  const auto part = buffer.slice(0, 10).rw_host();
  EXPECT_TRUE(buffer.slice(10, 90).try_rw_device(s));
  const Failure failure = refused(buffer.slice(5, 20).try_read_host(), ErrorCode::access_conflict);
  EXPECT_EQ(failure.number("begin"), 20u);
  EXPECT_EQ(failure.number("end"), 40u);
  EXPECT_NE(failure.text().find("unified_core_test.cpp"), std::string::npos) << failure.text();
  refused(buffer.try_drop_host(), ErrorCode::access_conflict);
  refused(buffer.try_drop_device(device), ErrorCode::access_conflict);
  refused(buffer.try_resize_discard(3), ErrorCode::access_conflict);
  refused(buffer.try_free(), ErrorCode::access_conflict);
  refused(buffer.try_fill(1), ErrorCode::access_conflict);
  refused(buffer.try_store_host(1, 1), ErrorCode::access_conflict);
  refused(buffer.try_mark_host_dirty(), ErrorCode::access_conflict);
}

TEST_F(Unified, AReadLeaseKeepsItsOwnCopyAndNoOther) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  const auto lease = buffer.read_host();
  refused(buffer.try_drop_host(), ErrorCode::access_conflict);
  EXPECT_TRUE(buffer.try_drop_device(device));
  EXPECT_STATE(buffer, host_only);
}

TEST_F(Unified, WaitsForALeaseOfAnotherThreadIfAsked) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  HostLease<int> held = buffer.rw_host();
  // One's own is never waited for.
  refused(buffer.try_read_host(LeaseWait::forever()), ErrorCode::access_conflict);
  std::atomic<bool> has_begun = false;
  test::Thread other([&] {
    refused(buffer.try_read_host(LeaseWait::up_to(std::chrono::milliseconds(1))),
            ErrorCode::access_conflict);
    has_begun = true;
    EXPECT_EQ(buffer.read_host(LeaseWait::forever())[0], 42);
  });
  while (!has_begun) std::this_thread::yield();
  held[0] = 42;
  held.close();
  other.join();
}

TEST_F(Unified, DoesNotWaitForItsOwnLeaseBehindThatOfAnotherThread) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  HostLease<const int> theirs;
  test::Thread([&] { theirs = buffer.read_host(); }).join();
  const HostLease<const int> own = buffer.read_host();
  refused(buffer.try_rw_host(LeaseWait::forever()), ErrorCode::access_conflict);
}

TEST_F(Unified, WaitsAsLongAsAnyClockGoes) {
  UnifiedBuffer<int> buffer = make(100, {.compare = true});
  buffer.copy_from(counting(100));
  HostLease<int> held;
  test::Thread([&] { held = buffer.rw_host(); }).join();
  test::Thread other([&] { EXPECT_EQ(buffer.read_host(LeaseWait::forever())[0], 42); });
  test::Thread third([&] {
    EXPECT_EQ(buffer.read_host(LeaseWait::up_to(std::chrono::nanoseconds::max()))[0], 42);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  held[0] = 42;
  held.close();
  other.join();
  third.join();
}

TEST_F(Unified, EndsWithTheLastOfThoseWhoWaited) {
  for (int i = 0; i < 100; ++i) {
    auto buffer = std::make_unique<UnifiedBuffer<int>>(make(100));
    HostLease<int> held = buffer->discard_host();
    test::Thread other([view = UnifiedView<int>(*buffer)]() mutable {
      static_cast<void>(view.try_rw_host(LeaseWait::up_to(std::chrono::microseconds(50))));
    });
    buffer.reset();
    std::this_thread::sleep_for(std::chrono::microseconds(40 + i % 30));
    held.close();
    other.join();
  }
}

/// Both again and again, at the same time.
template <class A, class B>
void race(A a, B b) {
  test::Thread other([&] {
    for (int i = 0; i < 1000; ++i) b();
  });
  for (int i = 0; i < 1000; ++i) a();
  other.join();
}

TEST_F(Unified, DropsNothingThatAnotherThreadLooksAt) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  const auto drop = [&] {
    static_cast<void>(buffer.try_drop_device(device));
    static_cast<void>(buffer.try_prefetch(t));
    static_cast<void>(buffer.try_drop_host());
  };
  race([&] { EXPECT_EQ(buffer.load_host(5), 1); }, drop);
  race([&] { buffer.compare(); }, drop);
  const Kernel kernel = Kernel::from_function(device, "look", [](View<const int>) {});
  race([&] { kernel.launch(s, LaunchSize{}, in(buffer)); }, drop);
  EXPECT_EQ(buffer.load_host(5), 1);
}

TEST_F(Unified, DowngradesWithoutAGap) {
  UnifiedBuffer<int> buffer = make(100);
  {
    HostLease<int> lease = buffer.discard_host();
    std::ranges::fill(lease, 6);
    const HostLease<const int> read = std::move(lease).downgrade();
    EXPECT_EQ(on_device(buffer, s)[7], 6);
    refused(buffer.try_rw_host(), ErrorCode::access_conflict);
  }
  DeviceLease<int> lease = buffer.rw_device(s);
  s.fill(lease.data(), lease.size(), 8);
  const DeviceLease<const int> read = std::move(lease).downgrade();
  EXPECT_EQ(on_device(buffer, t)[7], 8);
  EXPECT_EQ(buffer.read_host()[7], 8);
}

TEST_F(Unified, ManyThreadsReadAndWriteTheirParts) {
  UnifiedBuffer<int> buffer = make(800);
  buffer.copy_from(counting(800));
  std::vector<test::Thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Stream own(device);
      UnifiedView<int> part = buffer.slice(i * 200, 200);
      for (int turn = 0; turn < 20; ++turn) {
        for (int& value : part.rw_host()) ++value;
        const DeviceLease<int> lease = part.rw_device(own);
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  EXPECT_EQ(buffer.to_vector(), counting(800, 21));
  EXPECT_TRUE(buffer.check());
}

TEST_F(Unified, ThreadsThatMeetAreRefusedOrWaitAndNeverHang) {
  UnifiedBuffer<int> buffer = make(400);
  buffer.fill(0);
  std::atomic<int> written = 0, refusals = 0;
  std::vector<test::Thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Stream own(devices[i % 2]);
      std::uint32_t state = i + 1;
      const auto number = [&](std::uint32_t below) {
        state = state * 1664525u + 1013904223u;
        return (state >> 16) % below;
      };
      for (int turn = 0; turn < 150; ++turn) {
        const std::size_t first = number(300), count = 1 + number(100);
        UnifiedView<int> part = buffer.slice(first, count);
        const LeaseWait wait =
            number(2) == 0 ? LeaseWait::never() : LeaseWait::up_to(std::chrono::microseconds(200));
        const auto count_refusal = [&](const auto& result) {
          if (result) return false;
          EXPECT_EQ(name(result.failure().code()), "access_conflict") << result.failure().text();
          ++refusals;
          return true;
        };
        switch (number(5)) {
          case 0:
            if (auto lease = part.try_rw_host(wait); !count_refusal(lease)) {
              for (int& value : *lease) ++value;
              written += static_cast<int>(count);
            }
            break;
          case 1:
            count_refusal(part.try_read_host(wait));
            break;
          case 2:
            count_refusal(part.try_rw_device(own, wait));
            break;
          case 3:
            count_refusal(part.try_read_device(own, wait));
            break;
          default:
            count_refusal(number(2) == 0 ? buffer.try_drop_device(devices[i % 2])
                                         : part.try_prefetch(own));
            break;
        }
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  EXPECT_TRUE(buffer.check());
  const std::vector<int> values = buffer.to_vector();
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), written);
}

// --- Types that a place does not support

TEST(UnifiedTypes, ThatADeviceLacksAreRefusedThereAndNeverConverted) {
  const Device device = sim::open({.float64 = false});
  const Stream s(device);
  UnifiedBuffer<double> buffer(Shape{4}, {.device = device, .tag = "u"});
  std::ranges::fill(buffer.discard_host(), 1.5);
  const Failure failure = refused(buffer.try_read_device(s), ErrorCode::unsupported);
  EXPECT_EQ(failure.string("what"), "f64");
  EXPECT_EQ(failure.string("device"), "sim:0");
  refused(buffer.try_sync_to_device(), ErrorCode::unsupported);
  refused(buffer.try_prefetch(s), ErrorCode::unsupported);
  refused(buffer.try_discard_device(s), ErrorCode::unsupported);
  EXPECT_STATE(buffer, host_only);
  EXPECT_EQ(buffer.read_host()[3], 1.5);
  EXPECT_EQ(buffer.statistics().moved().bytes, 0u);

  UnifiedBuffer<std::complex<double>> pairs(Shape{4}, {.device = device});
  refused(pairs.try_discard_device(s), ErrorCode::unsupported);
  UnifiedBuffer<float> floats(Shape{4}, {.device = device});
  EXPECT_TRUE(floats.try_discard_device(s));
  UnifiedBuffer<double> elsewhere(Shape{4}, {.device = sim::open({})});
  EXPECT_TRUE(elsewhere.try_discard_device(Stream(elsewhere.default_device())));
}

}  // namespace
}  // namespace tern::test
