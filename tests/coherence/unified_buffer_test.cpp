#include "tern/coherence/unified_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern::test {
namespace {

template <class T>
Failure refused(const Result<T>& result, ErrorCode code) {
  EXPECT_FALSE(result);
  if (result) return Failure(ErrorCode::violation);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
  return result.failure();
}

std::vector<int> counting(std::size_t count, int first = 1) {
  std::vector<int> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

/// What the device's copy has, read by a copy of the stream's own.
std::vector<int> on_device(const UnifiedView<int>& buffer, StreamRef stream) {
  std::vector<int> made(buffer.size());
  const DeviceLease<const int> lease = buffer.read_device(stream);
  stream.copy(made.data(), lease.data(), buffer.nbytes());
  stream.synchronize();
  return made;
}

void write_on_device(UnifiedView<int> buffer, StreamRef stream, int value) {
  const DeviceLease<int> lease = buffer.discard_device(stream);
  stream.fill(lease.data(), lease.size(), value);
}

void add(View<const int> a, View<const int> b, View<int> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
}
void shift(View<const int> from, View<int> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] + 1;
}
void touch(View<int> values) {
  for (int& value : values) value = -value;
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
    return buffer.stats().moved().bytes;
  }

  std::vector<Device> devices = sim::open_peers({}, 2);
  const Device& device = devices[0];
  Stream s{device}, t{device};
};

// --- U-01, U-04, U-05, U-06: what leases fetch, and what they make of the state

TEST_F(Unified, IsMadeWithoutMemoryAndWritten) {
  sim::set_faults(device, "");
  const UnifiedBuffer<int> buffer = make(100);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_EQ(buffer.nbytes(), 400u);
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
    const std::uint64_t before = buffer.stats().moved().copies;
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
    EXPECT_EQ(buffer.stats().moved().copies - before, step.copies) << label;
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
  std::ranges::fill(buffer.view(0, 50).discard_host(), 1);
  const Failure failure = refused(buffer.try_read_device(s), ErrorCode::never_written);
  EXPECT_EQ(failure.number("begin"), 200u);
  EXPECT_EQ(failure.number("end"), 400u);
  EXPECT_STATE(buffer, mixed);
  EXPECT_TRUE(buffer.view(0, 50).try_read_device(s));
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
  EXPECT_EQ(buffer.stats().of(TransferReason::host_read).bytes, 4000u);
  EXPECT_EQ(buffer.stats().of(TransferReason::device_read), (MoveCount{1, 4000}));
}

TEST_F(Unified, DiscardFetchesNothingAndOnlyItsRangeGoesStale) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  write_on_device(buffer.view(0, 50), s, -1);
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
    const auto part = buffer.view(10, 10).discard_host();
    throw std::runtime_error("half way");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::never_written).number("begin"), 40u);
  EXPECT_EQ(buffer.load_host(9), 10);
  try {
    const auto part = buffer.view(30, 10).rw_host();
    part[0] = 77;
    throw std::runtime_error("half way");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(buffer.load_host(30), 77);
  {
    HostLease<int> lease = buffer.view(10, 10).discard_host();
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
    lease = buffer.view(20, 30).view(5, 10).read_host();
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
  EXPECT_TRUE(some.view(10, 0).read_device(s).empty());
  for (const char* one : {"copy", "allocate", "pin", "record", "wait"}) {
    EXPECT_EQ(sim::calls(device, one), 0u) << one;
  }
}

TEST_F(Unified, RefusesViewsThatAreNotInside) {
  UnifiedBuffer<int> buffer = make(10);
  refused(buffer.try_view(5, 6), ErrorCode::invalid_view);
  refused(buffer.try_view(11, 0), ErrorCode::invalid_view);
  refused(buffer.try_view(~std::size_t{0} / 2, 4), ErrorCode::invalid_view);
  refused(buffer.view(5, 5).try_view(0, 6), ErrorCode::invalid_view);
  UnifiedView<int> tail = buffer.view(5, 5);
  EXPECT_TRUE(tail.overlaps(buffer.view(9, 1)));
  EXPECT_FALSE(tail.overlaps(buffer.view(0, 5)));
  buffer.resize_discard(8);
  const Failure failure = refused(tail.try_rw_host(), ErrorCode::invalid_view);
  EXPECT_EQ(failure.number("offset"), 20u);
  EXPECT_EQ(failure.number("extent"), 32u);
  refused(UnifiedBuffer<int>().try_read_host(), ErrorCode::not_allocated);
}

// --- U-14: order

TEST_F(Unified, AHostWriteWaitsForTheUploadThatStillReadsTheCopy) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  Gate gate;
  gate.hold(s);
  { const DeviceLease<const int> lease = buffer.read_device(s); }
  std::thread opener([&] {
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
  UnifiedView<int> one = buffer.view(0, 50), other = buffer.view(50, 50);
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
  static_cast<void>(poll_storages());
}

// --- U-15: conflicts

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
        std::thread(try_second).join();
      }
    }
  }
  const auto part = buffer.view(0, 10).rw_host();
  EXPECT_TRUE(buffer.view(10, 90).try_rw_device(s));
  const Failure failure = refused(buffer.view(5, 20).try_read_host(), ErrorCode::access_conflict);
  EXPECT_EQ(failure.number("begin"), 20u);
  EXPECT_EQ(failure.number("end"), 40u);
  EXPECT_NE(failure.text().find("unified_buffer_test.cpp"), std::string::npos) << failure.text();
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
  std::thread other([&] {
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
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Stream own(device);
      UnifiedView<int> part = buffer.view(i * 200, 200);
      for (int turn = 0; turn < 20; ++turn) {
        for (int& value : part.rw_host()) ++value;
        const DeviceLease<int> lease = part.rw_device(own);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(buffer.to_vector(), counting(800, 21));
  EXPECT_TRUE(buffer.check());
}

TEST_F(Unified, ThreadsThatMeetAreRefusedOrWaitAndNeverHang) {
  UnifiedBuffer<int> buffer = make(400);
  buffer.fill(0);
  std::atomic<int> written = 0, refusals = 0;
  std::vector<std::thread> threads;
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
        UnifiedView<int> part = buffer.view(first, count);
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
  for (std::thread& one : threads) one.join();
  EXPECT_TRUE(buffer.check());
  const std::vector<int> values = buffer.to_vector();
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), written);
}

// --- Elements, fills, copies

TEST_F(Unified, LoadsAndStoresOneElementWithoutMovingTheRest) {
  UnifiedBuffer<int> buffer = make(1000);
  write_on_device(buffer, s, 7);
  EXPECT_EQ(buffer.load_host(3), 7);
  EXPECT_STATE(buffer, device_only);
  buffer.store_host(3, 8);
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(3), 8);
  EXPECT_EQ(buffer.stats().of(TransferReason::element), (MoveCount{3, 12}));
  buffer.sync_to_host();
  buffer.store_host(4, 9);
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.load_host(4), 9);
  EXPECT_EQ(on_device(buffer, s)[4], 9);
  EXPECT_EQ(on_device(buffer, s)[3], 8);
  EXPECT_EQ(refused(buffer.try_load_host(1000), ErrorCode::out_of_bounds).number("index"), 1000u);
  refused(buffer.try_store_host(1000, 1), ErrorCode::out_of_bounds);
  UnifiedBuffer<int> fresh = make(10);
  fresh.store_host(9, 1);
  EXPECT_EQ(name(fresh.state(9, 1)), "HOST_ONLY");
  EXPECT_EQ(name(fresh.state(0, 9)), "UNINITIALIZED");
}

TEST_F(Unified, LoadsAnElementWhoseBytesAreInTwoPlaces) {
  UnifiedBuffer<int> buffer = make(2);
  buffer.copy_from(std::vector<int>{0x01020304, 0});
  buffer.sync_to_device();
  {
    const DeviceLease<std::byte> lease = buffer.byte_view(0, 2).discard_device(s);
    s.fill(lease.data(), 2, std::byte{0x55});
  }
  buffer.byte_view(2, 1).store_host(0, std::byte{0x66});
  std::ranges::fill(buffer.byte_view(3, 1).discard_host(), std::byte{0x77});
  EXPECT_EQ(buffer.load_host(0), 0x77665555);
  buffer.store_host(0, 5);
  EXPECT_EQ(on_device(buffer, s)[0], 5);
}

TEST_F(Unified, FillsWhereTheBytesAre) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.fill(3);
  EXPECT_STATE(buffer, host_only);
  write_on_device(buffer, s, 1);
  buffer.drop_host();
  EXPECT_STATE(buffer, device_only);
  buffer.fill(4, s);
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(moved(buffer), 0u);
  EXPECT_EQ(on_device(buffer, t), std::vector<int>(100, 4));
  buffer.sync_to_host();
  buffer.view(0, 50).fill(5);
  EXPECT_EQ(name(buffer.state(0, 50)), "DEVICE_DIRTY");
  EXPECT_EQ(buffer.load_host(49), 5);
  EXPECT_EQ(buffer.load_host(50), 4);
}

TEST_F(Unified, CopiesInWhatHasItsShapeAndNothingElse) {
  UnifiedBuffer<int> buffer(Shape{2, 3}, {.device = device});
  const std::vector<int> three = {1, 2, 3}, six = counting(6);
  EXPECT_EQ(refused(buffer.try_copy_from(three), ErrorCode::shape_mismatch).number("actual"), 12u);
  refused(buffer.try_copy_from(six, Shape{6}), ErrorCode::shape_mismatch);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_TRUE(buffer.try_copy_from(six, Shape{2, 3}));
  EXPECT_EQ(buffer.to_vector(), six);
  std::vector<int> small(5);
  refused(buffer.try_copy_to_host(small), ErrorCode::shape_mismatch);
  EXPECT_EQ(buffer.shape(), (Shape{2, 3}));
}

TEST_F(Unified, ShortNamesAreLeases) {
  UnifiedBuffer<int> buffer = make(10);
  std::ranges::fill(buffer.host(), 3);
  EXPECT_STATE(buffer, host_only);
  { const DeviceLease<const int> lease = buffer.device(s); }
  EXPECT_STATE(buffer, synchronized);
  EXPECT_THROW(buffer.metal(), Unsupported);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer), 40u);
}

TEST_F(Unified, PrefetchesWithoutALease) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.view(0, 50).prefetch(s);
  EXPECT_EQ(moved(buffer), 200u);
  buffer.prefetch(s);
  buffer.prefetch(s);
  EXPECT_EQ(moved(buffer), 400u);
  EXPECT_EQ(buffer.stats().of(TransferReason::prefetch).bytes, 400u);
  EXPECT_STATE(buffer, synchronized);
  write_on_device(buffer, s, 1);
  buffer.prefetch_host();
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.read_host()[0], 1);
  EXPECT_EQ(moved(buffer), 800u);
}

// --- U-08: dirty marks

TEST_F(Unified, TakesNoteOfWhatOthersWrote) {
  UnifiedBuffer<int> buffer = make(100);
  refused(buffer.try_mark_host_dirty(), ErrorCode::not_allocated);
  refused(buffer.try_mark_device_dirty(), ErrorCode::not_allocated);
  buffer.copy_from(counting(100));
  int* const pointer = [&] { return buffer.rw_host().data(); }();
  buffer.sync_to_device();
  pointer[5] = -5;
  buffer.mark_host_dirty();
  buffer.mark_host_dirty();
  EXPECT_STATE(buffer, host_dirty);
  EXPECT_EQ(on_device(buffer, s)[5], -5);
  pointer[6] = -6;
  buffer.view(0, 50).mark_host_dirty();
  const Failure failure = refused(buffer.try_mark_device_dirty(), ErrorCode::coherence_conflict);
  EXPECT_EQ(failure.number("begin"), 0u);
  EXPECT_EQ(failure.number("end"), 200u);
  EXPECT_EQ(failure.string("places"), "host");
  // The other half is nobody's but the device's.
  int* const there = [&] { return buffer.view(50, 50).rw_device(s).data(); }();
  s.fill(there, 50, 11);
  buffer.view(50, 50).mark_device_dirty(s);
  EXPECT_EQ(buffer.read_host()[6], -6);
  EXPECT_EQ(buffer.read_host()[50], 11);
}

// --- U-16: copies that go, sizes that change

TEST_F(Unified, DropsWithoutSavingIfTold) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  buffer.drop_device(Drop::discard);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_EQ(moved(buffer), 0u);
  buffer.copy_from(counting(100));
  write_on_device(buffer.view(0, 10), s, 2);
  buffer.drop_device();
  EXPECT_EQ(buffer.stats().of(TransferReason::drop), (MoveCount{1, 40}));
  EXPECT_EQ(buffer.load_host(0), 2);
  EXPECT_EQ(buffer.load_host(10), 11);
  buffer.drop_device();
  EXPECT_STATE(buffer, host_only);
}

TEST_F(Unified, GivesAllMemoryBack) {
  const auto budget = Budget::make("u", BudgetLimit::unlimited());
  const ResourceHandle own = std::make_shared<BudgetResource>(default_resource(device), budget);
  UnifiedBuffer<int> buffer = make(1000, {.resources = {own}});
  write_on_device(buffer, s, 1);
  EXPECT_GE(budget->state().charged_bytes, 4000u);
  buffer.invalidate();
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_TRUE(buffer.has_copy(device.place()));
  buffer.free();
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_FALSE(buffer.has_copy(device.place()));
  s.synchronize();
  static_cast<void>(budget->drain());
  EXPECT_EQ(budget->state().charged_bytes, 0u);
  buffer.copy_from(counting(1000));
  EXPECT_EQ(on_device(buffer, s), counting(1000));
}

TEST_F(Unified, ResizesWithOrWithoutItsBytes) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  write_on_device(buffer.view(0, 10), s, -1);
  buffer.resize_keep(150, s);
  EXPECT_EQ(buffer.size(), 150u);
  EXPECT_EQ(buffer.shape(), Shape{150});
  EXPECT_EQ(name(buffer.state(0, 10)), "DEVICE_DIRTY");
  EXPECT_EQ(name(buffer.state(10, 90)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(100, 50)), "UNINITIALIZED");
  std::vector<int> expected = counting(100);
  std::fill_n(expected.begin(), 10, -1);
  EXPECT_EQ(buffer.view(0, 100).to_vector(), expected);
  EXPECT_EQ(on_device(buffer.view(0, 100), t), expected);
  EXPECT_EQ(buffer.stats().of(TransferReason::resize).bytes, 400u + 360u);
  buffer.resize_keep(5);
  EXPECT_EQ(buffer.to_vector(), std::vector<int>(5, -1));
  buffer.resize_discard(20);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_FALSE(buffer.has_copy(Place::host()));
  refused(buffer.try_resize_keep(max_request_bytes), ErrorCode::size_overflow);
  EXPECT_EQ(buffer.size(), 20u);
}

// --- Pointers that leave

TEST_F(Unified, CopiesAgainWhatAnEscapedPointerMayHaveWritten) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  EscapedPointer<int> escape = buffer.view(0, 50).escape_host();
  escape.data()[3] = 33;
  EXPECT_EQ(on_device(buffer, s)[3], 33);
  escape.data()[3] = 34;
  EXPECT_EQ(on_device(buffer, s)[3], 34);
  EXPECT_EQ(buffer.stats().of(TransferReason::sticky).bytes, 400u + 200u);
  EXPECT_EQ(name(buffer.state(0, 50)), "HOST_DIRTY");
  refused(buffer.try_rw_device(s), ErrorCode::access_conflict);
  refused(buffer.try_drop_host(), ErrorCode::access_conflict);
  EXPECT_EQ(buffer.read_host()[3], 34);

  escape.data()[3] = 35;
  escape.commit(3, 1);
  EXPECT_EQ(on_device(buffer, s)[3], 35);
  const std::size_t before = moved(buffer);
  EXPECT_EQ(on_device(buffer, s)[3], 35);
  EXPECT_EQ(moved(buffer), before);
  EXPECT_STATE(buffer, synchronized);
  refused(escape.try_commit(49, 2), ErrorCode::invalid_view);
  escape.close();
  EXPECT_TRUE(buffer.try_rw_device(s));
}

TEST_F(Unified, AnEscapeForReadingLetsOthersRead) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  const EscapedPointer<const int> escape = buffer.escape_read_device(s);
  EXPECT_EQ(on_device(buffer, t)[0], 1);
  refused(buffer.try_rw_host(), ErrorCode::access_conflict);
  refused(buffer.try_drop_device(device), ErrorCode::access_conflict);
}

TEST_F(Unified, TakesWhatWasWrittenThroughAnEscapedPointerOfADevice) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  EscapedPointer<int> escape = buffer.escape_device(s);
  s.fill(escape.data(), 100, 1);
  EXPECT_EQ(buffer.read_host()[7], 1);
  s.fill(escape.data(), 100, 2);
  EXPECT_EQ(buffer.read_host()[7], 2);
  s.fill(escape.data() + 10, 5, 3);
  escape.commit(10, 5, s);
  EXPECT_EQ(buffer.read_host()[10], 3);
  EXPECT_EQ(buffer.load_host(7), 2);
}

TEST_F(Unified, WritesThroughWhenALeaseCloses) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.write_through(Place::host());
  write_on_device(buffer.view(0, 10), s, 5);
  EXPECT_EQ(name(buffer.state(0, 10)), "SYNCHRONIZED");
  EXPECT_EQ(buffer.stats().of(TransferReason::write_through).bytes, 40u);
  EXPECT_EQ(buffer.read_host()[9], 5);
  EXPECT_EQ(buffer.stats().of(TransferReason::host_read).bytes, 0u);
  buffer.write_through(device.place());
  std::ranges::fill(buffer.view(20, 10).rw_host(), 6);
  EXPECT_EQ(name(buffer.state(20, 10)), "SYNCHRONIZED");
  sim::set_faults(device, "copy%1=fail");
  std::ranges::fill(buffer.view(20, 10).rw_host(), 7);
  sim::set_faults(device, "");
  EXPECT_EQ(buffer.stats().failed_write_throughs, 1u);
  EXPECT_EQ(on_device(buffer.view(20, 10), s), std::vector<int>(10, 7));
  buffer.write_through(std::nullopt);
  std::ranges::fill(buffer.view(20, 10).rw_host(), 8);
  EXPECT_EQ(name(buffer.state(20, 10)), "HOST_DIRTY");
  EXPECT_THROW(buffer.write_through(devices[1].place()), InvalidDevice);
}

TEST_F(Unified, AdoptsFlushesAndReleasesTheHostsCopy) {
  std::vector<int> memory = counting(100);
  int releases = 0;
  {
    UnifiedBuffer<int> buffer =
        UnifiedBuffer<int>::adopt_host(memory, [&] { ++releases; }, {.device = device});
    EXPECT_STATE(buffer, host_only);
    EXPECT_EQ(buffer.read_host().data(), memory.data());
    write_on_device(buffer, s, 4);
    buffer.flush_host();
    EXPECT_EQ(memory, std::vector<int>(100, 4));
    EXPECT_EQ(releases, 0);
  }
  device.synchronize();
  static_cast<void>(poll_storages());
  EXPECT_EQ(releases, 1);
  refused(UnifiedBuffer<int>::try_adopt_host({static_cast<int*>(nullptr), 3}, [&] { ++releases; },
                                             {.device = device}),
          ErrorCode::invalid_argument);
  EXPECT_EQ(releases, 1);

  UnifiedBuffer<int> buffer(Shape{4, 25}, {.device = device});
  write_on_device(buffer.view(0, 50), s, 9);
  std::ranges::fill(buffer.view(50, 50).discard_host(), 8);
  const Buffer released = std::move(buffer).release_host();
  EXPECT_EQ(released.shape(), (Shape{4, 25}));
  EXPECT_EQ(released.to_vector<int>()[49], 9);
  EXPECT_EQ(released.to_vector<int>()[50], 8);
  EXPECT_STATE(buffer, uninitialized);
}

TEST_F(Unified, ClonesWithMemoryOfItsOwn) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  write_on_device(buffer.view(0, 10), s, 3);
  UnifiedBuffer<int> clone = buffer.clone(t);
  write_on_device(buffer, s, 0);
  EXPECT_EQ(clone.load_host(0), 3);
  EXPECT_EQ(clone.load_host(10), 11);
  EXPECT_STATE(clone, device_only);
}

// --- Page-locked copies

TEST_F(Unified, PinsTheHostsCopyFrom64KiBOnWhileThereIsSuchMemory) {
  UnifiedBuffer<std::byte> small(Shape{64 * kib - 1}, {.device = device});
  UnifiedBuffer<std::byte> large(Shape{64 * kib}, {.device = device});
  small.fill(std::byte{1});
  large.fill(std::byte{1});
  EXPECT_FALSE(small.is_pinned());
  EXPECT_TRUE(large.is_pinned());
  UnifiedBuffer<std::byte> required(Shape{10}, {.device = device, .pinned = Pinned::required});
  EXPECT_FALSE(required.is_pinned());
  required.fill(std::byte{1});
  EXPECT_TRUE(required.is_pinned());
  UnifiedBuffer<std::byte> never(Shape{64 * kib}, {.device = device, .pinned = Pinned::never});
  never.fill(std::byte{1});
  EXPECT_FALSE(never.is_pinned());

  const auto budget = Budget::make("pinned", BudgetLimit::bytes(200 * kib));
  const ResourceHandle pinned =
      std::make_shared<BudgetResource>(default_resource(device, MemoryKind::pinned), budget);
  UnifiedBuffer<std::byte> first(Shape{128 * kib}, {.device = device, .resources = {pinned}});
  UnifiedBuffer<std::byte> second(Shape{128 * kib}, {.device = device, .resources = {pinned}});
  UnifiedBuffer<std::byte> third(
      Shape{128 * kib}, {.device = device, .pinned = Pinned::required, .resources = {pinned}});
  first.fill(std::byte{1});
  second.fill(std::byte{1});
  EXPECT_TRUE(first.is_pinned());
  EXPECT_FALSE(second.is_pinned());
  refused(third.try_fill(std::byte{1}), ErrorCode::out_of_budget);
  EXPECT_STATE(third, uninitialized);
}

// --- What was moved, and why

TEST_F(Unified, SaysWhatMovedAndWhoseLineItWas) {
  const UnifiedStatistics before = unified_totals();
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  static_cast<void>(buffer.read_device(s));
  const std::uint32_t line = __LINE__ - 1;
  write_on_device(buffer.view(10, 10), s, 1);
  static_cast<void>(buffer.rw_host());
  const std::vector<Transfer> log = buffer.transfers();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].from, Place::host());
  EXPECT_EQ(log[0].to, device.place());
  EXPECT_EQ(log[0].bytes, 400u);
  EXPECT_EQ(log[0].site.line, line);
  EXPECT_EQ(name(log[0].reason), "device_read");
  EXPECT_EQ(log[1].begin, 40u);
  EXPECT_EQ(log[1].end, 80u);
  EXPECT_EQ(name(log[1].reason), "host_rw");
  EXPECT_EQ(unified_totals().moved().bytes - before.moved().bytes, 440u);
  for (int i = 0; i < 100; ++i) {
    write_on_device(buffer.view(0, 1), s, i);
    static_cast<void>(buffer.read_host());
  }
  EXPECT_EQ(buffer.transfers().size(), 64u);
  EXPECT_EQ(buffer.transfers().back().bytes, 4u);
  EXPECT_EQ(buffer.stats().to_host.copies, 101u);
}

TEST_F(Unified, MergesGapsThatNobodyHolds) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(buffer.view(at, 10), s, -1);
  static_cast<void>(buffer.read_host());
  EXPECT_EQ(buffer.stats().to_host, (MoveCount{1, 840}));
  EXPECT_EQ(buffer.stats().merged_gap_bytes, 720u);
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(buffer.view(at, 10), s, -2);
  {
    const HostLease<const int> lease = buffer.view(50, 10).read_host();
    static_cast<void>(buffer.view(0, 300).read_host());
  }
  EXPECT_EQ(buffer.stats().to_host, (MoveCount{3, 840 + 40 + 440}));
  UnifiedBuffer<int> exact = make(1000, {.merge_below_bytes = 0});
  exact.copy_from(counting(1000));
  exact.sync_to_device();
  for (const std::size_t at : {0u, 100u, 200u, 350u}) write_on_device(exact.view(at, 10), s, -1);
  EXPECT_EQ(exact.read_host()[359], -1);
  EXPECT_EQ(exact.stats().to_host, (MoveCount{4, 160}));
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(exact.view(at, 10), s, -2);
  sim::set_faults(device, "");
  EXPECT_EQ(exact.read_host()[209], -2);
  EXPECT_EQ(exact.read_host()[10], 11);
  EXPECT_EQ(sim::calls(device, "copy"), 1u);
}

TEST_F(Unified, ReconcilesADirectoryThatHasTooManyPieces) {
  UnifiedBuffer<int> buffer = make(20000, {.merge_below_bytes = 0});
  buffer.copy_from(counting(20000));
  buffer.sync_to_device();
  std::size_t most = 0;
  for (std::size_t i = 0; i < 6000; ++i) {
    std::ranges::fill(buffer.view(3 * i, 1).discard_host(), -1);
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
}

// --- U-11: several places

TEST_F(Unified, HasCopiesOnSeveralDevices) {
  const Stream far(devices[1]);
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  static_cast<void>(buffer.read_device(s));
  EXPECT_STATE(buffer, synchronized);
  static_cast<void>(buffer.view(0, 50).read_device(far));
  EXPECT_STATE(buffer, mixed);
  EXPECT_EQ(name(buffer.state(0, 50)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(50, 50)), "MIXED");
  // The peer is nearer than the host.
  EXPECT_EQ(buffer.stats().between_devices, (MoveCount{1, 200}));
  write_on_device(buffer, far, 9);
  EXPECT_STATE(buffer, device_dirty);
  EXPECT_EQ(on_device(buffer, s)[99], 9);
  EXPECT_TRUE(buffer.is_stale_on(Place::host()));
  EXPECT_EQ(buffer.stats().to_host.copies, 0u);
  buffer.drop_device(devices[1]);
  EXPECT_EQ(buffer.stats().moved().copies, 3u);
  buffer.drop_device(devices[0]);
  EXPECT_STATE(buffer, host_only);
  EXPECT_EQ(buffer.load_host(50), 9);
  EXPECT_TRUE(buffer.check());
}

TEST_F(Unified, SharesOneMemoryWithTheHostDeviceAndKeepsTheOrder) {
  const Device host = open_device("host");
  const Stream own(host);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = host});
  buffer.copy_from(counting(100));
  const int* const address = std::as_const(buffer).read_host().data();
  {
    const DeviceLease<int> lease = buffer.rw_device(own);
    EXPECT_EQ(lease.data(), address);
  }
  EXPECT_STATE(buffer, device_dirty);
  EXPECT_EQ(moved(buffer), 0u);
  EXPECT_EQ(buffer.stats().elided, (MoveCount{1, 400}));
  Gate gate;
  gate.hold(own);
  write_on_device(buffer, own, 5);
  std::thread opener([&] { gate.open(); });
  EXPECT_EQ(buffer.read_host()[99], 5);
  opener.join();
  EXPECT_EQ(buffer.stats().elided, (MoveCount{2, 800}));
  EXPECT_STATE(buffer, synchronized);
  Gate second;
  second.hold(own);
  const Kernel negate = Kernel::from_function(host, "touch", touch);
  negate.launch(own, LaunchSize{}, inout(buffer));
  std::thread let_go([&] { second.open(); });
  EXPECT_EQ(buffer.read_host()[99], -5);
  let_go.join();
  negate.launch(own, LaunchSize{}, inout(buffer));
  buffer.drop_host();
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(3), 5);
  buffer.store_host(3, 6);
  EXPECT_EQ(buffer.load_host(3), 6);
  buffer.free();
  EXPECT_FALSE(buffer.has_copy(host.place()));
}

TEST_F(Unified, MovesBetweenDevicesOfDifferentBackendsAndTheHostDevice) {
  const Device host = open_device("host");
  const Stream own(host), far(devices[1]);
  const Device alone = sim::open({});
  const Stream apart(alone);
  UnifiedBuffer<int> buffer = make(50000);
  buffer.copy_from(counting(50000));
  for (int turn = 0; turn < 3; ++turn) {
    for (const StreamRef stream :
         {StreamRef(own), StreamRef(s), StreamRef(apart), StreamRef(far)}) {
      const int value = 10 * turn + static_cast<int>(stream.device_id().value);
      write_on_device(buffer.view(100, 40000), stream, value);
      EXPECT_EQ(buffer.load_host(100), value);
      EXPECT_EQ(on_device(buffer, t)[40099], value);
      EXPECT_EQ(on_device(buffer, apart)[40100], 40101);
      EXPECT_EQ(on_device(buffer, own)[99], 100);
    }
  }
  EXPECT_TRUE(buffer.check());
  buffer.synchronize();
  expect_no_findings(alone);
}

// --- Checked mode

TEST_F(Unified, SpoilsStaleAndUnwrittenBytesInCheckedMode) {
  UnifiedBuffer<int> buffer = make(100, {.checked = true});
  const int spoilt = static_cast<int>(0xCBCBCBCB);
  const int* pointer = nullptr;
  {
    const HostLease<int> lease = buffer.discard_host();
    pointer = lease.data();
    EXPECT_EQ(lease[50], spoilt);
    std::ranges::fill(lease, 1);
  }
  EXPECT_EQ(on_device(buffer, s)[0], 1);
  buffer.synchronize();
  write_on_device(buffer.view(0, 10), s, 2);
  EXPECT_EQ(pointer[9], spoilt);
  EXPECT_EQ(pointer[10], 1);
  EXPECT_EQ(buffer.read_host()[9], 2);
  std::vector<int> there(100);
  std::ranges::fill(buffer.view(90, 10).rw_host(), 3);
  {
    const DeviceLease<int> lease = buffer.view(0, 10).rw_device(s);
    s.copy(there.data(), lease.data(), 400);
    s.synchronize();
  }
  EXPECT_EQ(there[89], 1);
  EXPECT_EQ(there[90], spoilt);
  EXPECT_EQ(on_device(buffer, s)[90], 3);
}

// --- U-12, U-13: failures

TEST_F(Unified, AFullDeviceIsAnErrorAndChangesNothing) {
  const auto faulty = std::make_shared<FaultResource>(default_resource(device));
  UnifiedBuffer<int> buffer = make(100, {.resources = {faulty}});
  buffer.copy_from(counting(100));
  faulty->fail_next();
  refused(buffer.try_rw_device(s), ErrorCode::out_of_memory);
  EXPECT_STATE(buffer, host_only);
  EXPECT_FALSE(buffer.has_copy(device.place()));
  EXPECT_TRUE(buffer.try_rw_host());
  EXPECT_EQ(on_device(buffer, s), counting(100));
}

/// A program of every kind of step, which tells what each should leave.
class FaultyProgram {
 public:
  FaultyProgram(const Device& device, StreamRef s, StreamRef far)
      : device_(device), s_(s), far_(far) {}

  /// Runs until a step fails, and then that step again; gives whether one did.
  bool run() {
    buffer_ =
        UnifiedBuffer<int>(Shape{300}, {.device = device_, .tag = "f", .merge_below_bytes = 0});
    bool has_failed = false;
    const auto step = [&](auto what) {
      const std::string before = picture();
      Result<void> done = what();
      if (!done) {
        has_failed = true;
        EXPECT_EQ(picture(), before) << done.failure().text();
        EXPECT_TRUE(buffer_.check());
        sim::set_faults(device_, "");
        done = what();
      }
      EXPECT_TRUE(done) << done.failure().text();
    };
    const std::vector<int> numbers = counting(300);
    step([&] { return buffer_.try_copy_from(numbers); });
    step([&] { return done(buffer_.try_rw_device(s_)); });
    step([&] { return buffer_.view(0, 100).try_fill(5, s_); });
    step([&] { return done(buffer_.view(0, 10).try_read_host()); });
    step([&] { return done(buffer_.view(50, 10).try_rw_host()); });
    step([&] { return done(buffer_.view(250, 10).try_rw_host()); });
    step([&] { return done(buffer_.try_read_device(s_)); });
    step([&] { return buffer_.try_store_host(7, 77); });
    step([&] {
      const Result<int> value = buffer_.try_load_host(7);
      return value ? Result<void>() : Result<void>(value.failure());
    });
    step([&] { return buffer_.try_resize_keep(400, s_); });
    step([&] { return done(buffer_.view(300, 100).try_discard_device(s_)); });
    step([&] { return buffer_.view(300, 100).try_fill(6, s_); });
    step([&] { return done(buffer_.view(0, 350).try_rw_device(far_)); });
    step([&] { return buffer_.try_store_host(8, 88); });
    step([&] { return done(buffer_.view(5, 10).try_rw_device(s_)); });
    step([&] {
      const Result<UnifiedBuffer<int>> clone = buffer_.try_clone(far_);
      return clone ? Result<void>() : Result<void>(clone.failure());
    });
    step([&] { return done(buffer_.try_read_host_async()); });
    step([&] { return buffer_.try_drop_host(); });
    step([&] { return buffer_.try_drop_device(device_); });
    step([&] { return buffer_.try_flush_host(); });
    step([&] { return buffer_.try_sync_to_device(); });
    std::vector<int> expected = counting(400);
    std::fill_n(expected.begin(), 100, 5);
    std::fill_n(expected.begin() + 300, 100, 6);
    expected[7] = 77;
    expected[8] = 88;
    EXPECT_EQ(buffer_.to_vector(), expected);
    buffer_ = {};
    return has_failed;
  }

 private:
  template <class Lease>
  static Result<void> done(const Result<Lease>& lease) {
    return lease ? Result<void>() : Result<void>(lease.failure());
  }
  [[nodiscard]] std::string picture() const {
    std::string text = std::to_string(buffer_.size());
    buffer_.for_each_interval([&](std::size_t begin, std::size_t end, auto places) {
      text += " " + std::to_string(begin) + "-" + std::to_string(end);
      for (const Place& place : places) text += ":" + place.text();
    });
    return text;
  }

  const Device device_;
  const StreamRef s_, far_;
  UnifiedBuffer<int> buffer_;
};

TEST(UnifiedFaults, AFaultAtEachCallLeavesTheStateAndTheRetryIsRight) {
  unsigned failed = 0;
  for (const std::string what : {"allocate", "copy", "fill", "record", "wait"}) {
    for (unsigned nth = 1;; ++nth) {
      const std::vector<Device> devices = sim::open_peers({}, 2);
      const Device& device = devices[0];
      {
        const Stream s(device), far(devices[1]);
        const std::size_t before = device.memory().free_bytes;
        sim::set_faults(device,
                        what + "#" + std::to_string(nth) + (what == "allocate" ? "=oom" : "=fail"));
        const bool has_failed = FaultyProgram(device, s, far).run();
        sim::set_faults(device, "");
        device.synchronize();
        devices[1].synchronize();
        static_cast<void>(poll_storages());
        default_resource(device)->trim(0);
        default_resource(devices[1])->trim(0);
        EXPECT_EQ(kept_storages().storages, 0u);
        EXPECT_EQ(device.memory().free_bytes, before) << what << nth;
        expect_no_findings(device);
        failed += has_failed ? 1 : 0;
        if (!has_failed || testing::Test::HasFailure()) break;
      }
    }
  }
  EXPECT_GT(failed, 30u);
}

TEST_F(Unified, NamesDirectionAndCauseOfACopyThatFailed) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  sim::set_faults(device, "copy#1=fail");
  const Failure up = refused(buffer.try_read_device(s), ErrorCode::sync_failed);
  EXPECT_EQ(up.string("direction"), "to the device");
  EXPECT_EQ(up.string("a"), "host");
  EXPECT_TRUE(up.string("cause").has_value());
  EXPECT_EQ(up.number("end"), 400u);
  EXPECT_FALSE(buffer.is_stale_on(Place::host()));
  write_on_device(buffer, s, 1);
  sim::set_faults(device, "copy#1=fail");
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::sync_failed).string("direction"),
            "to the host");
  EXPECT_EQ(buffer.read_host()[0], 1);
}

// --- Launches

TEST_F(Unified, IsAnArgumentOfKernels) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = make(100), b = make(100), sum = make(100);
  a.copy_from(counting(100));
  b.copy_from(counting(100, 1000));
  const std::uint64_t before = a.stats().moved().copies;
  kernel.launch(s, LaunchSize{}, in(a), in(b), out(sum));
  EXPECT_EQ(a.stats().moved().copies - before, 1u);
  EXPECT_EQ(sum.stats().moved().copies, 0u);
  EXPECT_STATE(a, synchronized);
  EXPECT_STATE(sum, device_only);
  EXPECT_EQ(sum.read_host()[99], 100 + 1099);
  // Beside arrays and buffers, and again without a copy.
  const Array<int> ones = Array<int>::from(device, std::vector<int>(100, 1));
  kernel.launch(t, LaunchSize{}, in(sum), in(ones), out(b));
  EXPECT_EQ(b.load_host(0), 1002);
  EXPECT_EQ(a.stats().moved().copies, 1u);
  const Kernel negate = Kernel::from_function(device, "touch", touch);
  negate.launch(s, LaunchSize{}, inout(b.view(0, 10)));
  EXPECT_EQ(b.load_host(0), -1002);
  EXPECT_EQ(b.load_host(10), 1002 + 20);
  UnifiedBuffer<int> none = make(0);
  negate.launch(s, LaunchSize{}, inout(none));
}

TEST_F(Unified, MergesArgumentsThatOverlapByteByByte) {
  const Kernel kernel = Kernel::from_function(device, "shift", shift);
  UnifiedBuffer<int> buffer = make(100);
  std::ranges::fill(buffer.view(0, 60).discard_host(), 5);
  // [0, 40) is read, [40, 60) both, [60, 80) written, and the rest is nobody's.
  kernel.launch(s, LaunchSize{}, in(buffer.view(0, 60)), out(buffer.view(40, 40)));
  EXPECT_EQ(buffer.stats().to_device.bytes, 240u);
  EXPECT_EQ(name(buffer.state(0, 40)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(40, 40)), "DEVICE_DIRTY");
  EXPECT_EQ(name(buffer.state(80, 20)), "UNINITIALIZED");
  EXPECT_EQ(buffer.load_host(79), 6);
  EXPECT_EQ(buffer.load_host(39), 5);
}

TEST_F(Unified, ALaunchTakesAllOfItsArgumentsOrNone) {
  const auto faulty = std::make_shared<FaultResource>(default_resource(device));
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = make(100), b = make(100, {.resources = {faulty}}), sum = make(100);
  a.copy_from(counting(100));
  b.copy_from(counting(100));
  const auto launch = [&] { return kernel.try_launch(s, LaunchSize{}, in(a), in(b), out(sum)); };
  const auto expect_untouched = [&] {
    EXPECT_STATE(a, host_only);
    EXPECT_STATE(b, host_only);
    EXPECT_STATE(sum, uninitialized);
    EXPECT_FALSE(a.has_copy(device.place()));
    EXPECT_FALSE(sum.has_copy(device.place()));
    EXPECT_TRUE(a.try_rw_host());
    EXPECT_TRUE(sum.try_view(0, 1));
    EXPECT_EQ(a.stats().moved().copies, 0u);
  };
  faulty->fail_next();
  refused(launch(), ErrorCode::out_of_memory);
  expect_untouched();
  {
    const HostLease<int> held = sum.view(0, 1).discard_host();
    refused(launch(), ErrorCode::access_conflict);
  }
  sum.free();
  expect_untouched();
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(sum), out(b)), ErrorCode::never_written);
  expect_untouched();
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(b)), ErrorCode::shape_mismatch);
  UnifiedBuffer<float> wrong(Shape{100}, {.device = device});
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(b), out(wrong)), ErrorCode::type_mismatch);
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(UnifiedBuffer<int>()), out(sum)),
          ErrorCode::not_allocated);
  expect_untouched();
  sim::set_faults(device, "launch#1=fail");
  EXPECT_FALSE(launch());
  // The copies were made, and are true; nothing was written, and nothing is held.
  EXPECT_STATE(sum, uninitialized);
  EXPECT_TRUE(a.try_rw_host());
  EXPECT_TRUE(launch());
  EXPECT_EQ(sum.read_host()[9], 20);
}

}  // namespace
}  // namespace tern::test
