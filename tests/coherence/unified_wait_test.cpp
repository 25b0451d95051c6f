// Leases with a LeaseWait wait for memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/thread.hpp"
#include "support/watchdog.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern::test {
namespace {

/// A device with room for one buffer.
class UnifiedWait : public Pressed {
 protected:
  UnifiedWait() : Pressed(1) {}

  /// A lease that another thread opened, for this one to close.
  template <class Open>
  [[nodiscard]] static auto by_another_thread(Open open) {
    decltype(open()) lease;
    test::Thread([&] { lease = open(); }).join();
    return lease;
  }
  /// Returns when as many requests wait for room.
  void wait_until_waiting(std::uint64_t requests = 1) const {
    while (since().waited_requests < requests) std::this_thread::yield();
  }

  const Watchdog watchdog;
};

TEST_F(UnifiedWait, ForLeasesOfOtherThreadsOnADevice) {
  const UnifiedBuffer<int> held = clean();
  DeviceLease<const int> lease = by_another_thread([&] { return held.read_device(t); });
  UnifiedBuffer<int> more = pressed("more");
  const Failure refusal = refused(more.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("fits_later"), 1u) << refusal.text();
  EXPECT_EQ(since().waited_requests, 0u);
  test::Thread waiter([&] {
    const DeviceLease<int> got = more.discard_device(s, LeaseWait::forever());
    s.fill(got.data(), got.size(), 5);
  });
  wait_until_waiting();
  EXPECT_TRUE(is_there(held));
  lease.close();
  waiter.join();
  EXPECT_FALSE(is_there(held));
  EXPECT_EQ(more.to_vector(), std::vector<int>(pressed_ints, 5));
  EXPECT_EQ(since().waited_requests, 1u);
  EXPECT_EQ(since().refused_requests, 1u);  // the one without time
}

TEST_F(UnifiedWait, ForLeasesOfOtherThreadsOnTheHost) {
  const ResourceHandle host = std::make_shared<BudgetResource>(
      std::make_shared<DirectResource>(open_device("host")), limited(pressed_bytes, "host"));
  const auto make_small = [&] {
    return UnifiedBuffer<int>(Shape{pressed_ints},
                              {.device = device, .pinned = Pinned::never, .resources = {host}});
  };
  UnifiedBuffer<int> a = make_small(), b = make_small();
  for (UnifiedBuffer<int>* const one : {&a, &b}) write_on_device(*one, s, 3);
  HostLease<const int> lease = by_another_thread([&] { return std::as_const(a).read_host(); });
  EXPECT_EQ(refused(b.try_read_host(), ErrorCode::out_of_budget).number("fits_later"), 1u);
  test::Thread waiter(
      [&] { EXPECT_EQ(b.read_host(LeaseWait::up_to(std::chrono::minutes(1)))[7], 3); });
  wait_until_waiting();
  lease.close();
  waiter.join();
  EXPECT_FALSE(a.has_copy(Place::host()));
}

TEST_F(UnifiedWait, ForAWriterWhoseBytesHaveToGoHomeFirst) {
  UnifiedBuffer<int> held = pressed("held");
  DeviceLease<int> lease = by_another_thread([&] { return held.discard_device(t); });
  t.fill(lease.data(), lease.size(), 9);
  UnifiedBuffer<int> more = pressed("more");
  more.copy_from(counting(pressed_ints));
  test::Thread waiter([&] {
    const DeviceLease<const int> got = more.read_device(s, LeaseWait::forever());
    EXPECT_EQ(got.size(), pressed_ints);
  });
  wait_until_waiting();
  lease.close();
  waiter.join();
  EXPECT_EQ(held.to_vector(), std::vector<int>(pressed_ints, 9));
}

TEST_F(UnifiedWait, ForFreesThatAreUnderWay) {
  // One that does not wait by itself.
  const ResourceHandle strict =
      std::make_shared<BudgetResource>(pool, limited(pressed_bytes, "strict", {}, Overflow::fail));
  const auto make_small = [&] {
    return UnifiedBuffer<int>(Shape{pressed_ints}, {.device = device, .resources = {strict}});
  };
  UnifiedBuffer<int> gone = make_small();
  Gate gate;
  gate.hold(t);
  write_on_device(gone, t, 1);
  gone.free();
  UnifiedBuffer<int> more = make_small();
  const Failure refusal = refused(more.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("pending"), pressed_bytes) << refusal.text();
  test::Thread waiter([&] {
    const DeviceLease<int> got = more.discard_device(s, LeaseWait::forever());
    s.fill(got.data(), got.size(), 2);
  });
  wait_until_waiting();
  gate.open();
  waiter.join();
  EXPECT_EQ(more.to_vector(), std::vector<int>(pressed_ints, 2));
}

TEST_F(UnifiedWait, NotLongerThanItsTime) {
  const UnifiedBuffer<int> held = clean();
  const DeviceLease<const int> lease = by_another_thread([&] { return held.read_device(t); });
  UnifiedBuffer<int> more = pressed("more");
  const auto begin = std::chrono::steady_clock::now();
  const Failure refusal =
      refused(more.try_discard_device(s, LeaseWait::up_to(std::chrono::milliseconds(5))),
              ErrorCode::out_of_budget);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(5));
  EXPECT_EQ(refusal.number("leased"), pressed_bytes);
  EXPECT_EQ(refusal.number("fits_later"), 1u);
  EXPECT_EQ(since().waited_requests, 1u);
  EXPECT_EQ(since().refused_requests, 1u);
  // It is nobody's meanwhile, and can be had.
  EXPECT_TRUE(more.try_discard_host());
}

TEST_F(UnifiedWait, NotForWhatTheThreadItselfHas) {
  const UnifiedBuffer<int> held = clean();
  const DeviceLease<const int> lease = held.read_device(t);
  UnifiedBuffer<int> more = pressed("more");
  const Failure refusal =
      refused(more.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("fits_later"), 0u) << refusal.text();
  // Nor behind somebody else's lease of the same copy.
  const DeviceLease<const int> theirs = by_another_thread([&] { return held.read_device(s); });
  refused(more.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
  EXPECT_EQ(since().waited_requests, 0u);
}

TEST_F(UnifiedWait, NotForWhatCannotFitOrStays) {
  UnifiedBuffer<int> large = pressed("large", 2);
  refused(large.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
  UnifiedBuffer<int> kept = clean("kept");
  kept.pin_residency(device.place());
  UnifiedBuffer<int> more = pressed("more");
  refused(more.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
  EXPECT_EQ(since().waited_requests, 0u);
}

TEST_F(UnifiedWait, NotForWhatCannotFitWhileOthersMove) {
  const test::Thread other([&](const std::stop_token& stop) {
    UnifiedBuffer<int> far(Shape{pressed_ints}, {.device = devices[1]});
    far.copy_from(counting(pressed_ints));
    const Stream own(devices[1]);
    while (!stop.stop_requested()) {
      far.prefetch(own);
      far.drop_device();
    }
  });
  UnifiedBuffer<int> large = pressed("large", 2);
  for (int i = 0; i < 100; ++i) {
    const Failure refusal =
        refused(large.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
    ASSERT_EQ(refusal.number("fits_later"), 0u) << refusal.text();
  }
  EXPECT_EQ(since().waited_requests, 0u);
}

TEST_F(UnifiedWait, NotForWhatCannotFitWhileAnotherMovesForLong) {
  // Its calls wait for the bytes they move, which stand at the gate.
  UnifiedBuffer<int> far(Shape{pressed_ints}, {.device = devices[1], .guard = true});
  const Stream own(devices[1]);
  Gate gate;
  gate.hold(own);
  write_on_device(far, own, 1);
  const test::Thread other([&] { far.prefetch_host(); });
  while (far.statistics().to_host.copies == 0) std::this_thread::yield();
  UnifiedBuffer<int> kept = clean("kept");
  kept.pin_residency(device.place());
  UnifiedBuffer<int> more = pressed("more");
  const Failure refusal =
      refused(more.try_discard_device(s, LeaseWait::forever()), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("fits_later"), 0u) << refusal.text();
  EXPECT_EQ(since().waited_requests, 0u);
  gate.open();
}

TEST_F(UnifiedWait, ARefusalCountsOnceHoweverOftenItWasTried) {
  const ResourceHandle host = std::make_shared<BudgetResource>(
      std::make_shared<DirectResource>(open_device("host")), limited(pressed_bytes, "host"));
  const auto make_small = [&] {
    return UnifiedBuffer<int>(
        Shape{pressed_ints},
        {.device = device, .pinned = Pinned::never, .resources = {resource, host}});
  };
  UnifiedBuffer<int> at_home = make_small(), there = make_small(), more = make_small();
  at_home.copy_from(counting(pressed_ints));
  const Stream far(devices[1]);
  at_home.prefetch(far);  // so that the host's copy may go
  const HostLease<const int> lease =
      by_another_thread([&] { return std::as_const(at_home).read_host(); });
  write_on_device(there, s, 3);
  // It would have to go home, where there is no room either.
  refused(more.try_discard_device(s), ErrorCode::out_of_budget);
  const std::uint64_t once = since().refused_requests;
  refused(more.try_discard_device(s, LeaseWait::up_to(std::chrono::milliseconds(5))),
          ErrorCode::out_of_budget);
  EXPECT_EQ(since().waited_requests, 1u);
  EXPECT_EQ(since().refused_requests, 2 * once);
}

TEST_F(UnifiedWait, ManyTakeTurnsAndNobodyIsRefused) {
  constexpr std::size_t threads = 4;
  constexpr int turns = 200;
  std::vector<UnifiedBuffer<int>> all;
  for (std::size_t i = 0; i < threads; ++i) {
    all.push_back(pressed());
    all.back().copy_from(std::vector<int>(pressed_ints, 0));
  }
  std::latch start(threads);
  std::vector<test::Thread> workers;
  for (std::size_t i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      const Stream own(device);
      start.arrive_and_wait();
      for (int turn = 0; turn < turns; ++turn) {
        UnifiedBuffer<int>& buffer = all[(i + static_cast<std::size_t>(turn)) % threads];
        const Result<DeviceLease<int>> lease = buffer.try_rw_device(own, LeaseWait::forever());
        if (!lease) {
          ADD_FAILURE() << lease.failure().text();
          return;
        }
        own.fill(lease->data(), lease->size(), turn);
        for (int k = 0; k < 10; ++k) std::this_thread::yield();  // others want it meanwhile
      }
    });
  }
  for (test::Thread& one : workers) one.join();
  EXPECT_EQ(since().refused_requests, 0u);
  for (const UnifiedBuffer<int>& one : all) {
    const std::vector<int> values = one.to_vector();
    EXPECT_TRUE(std::ranges::all_of(values, [&](int value) { return value == values[0]; }));
    EXPECT_TRUE(one.check());
  }
}

}  // namespace
}  // namespace tern::test
