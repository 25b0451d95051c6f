#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

TEST(Timeline, OnlyRises) {
  Timeline timeline;
  EXPECT_EQ(timeline.value(), 0u);
  timeline.set(5);
  timeline.set(3);
  EXPECT_EQ(timeline.value(), 5u);
  EXPECT_EQ(Timeline(7).value(), 7u);
}

TEST(Timeline, ALateWaiterReturnsImmediately) {
  Timeline timeline(5);
  EXPECT_TRUE(timeline.try_wait(5));
  EXPECT_TRUE(timeline.try_wait(0));
  EXPECT_TRUE(timeline.try_wait(4, 1));
}

TEST(Timeline, TimesOutWithTargetAndCurrent) {
  const Timeline timeline(2);
  const Result<void> waited = timeline.try_wait(3, 1000);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::timeout);
  EXPECT_EQ(waited.failure().number("target"), 3u);
  EXPECT_EQ(waited.failure().number("current"), 2u);
  EXPECT_THROW(timeline.wait(3, 1), TimedOut);
}

TEST(Timeline, IsSharedByItsCopies) {
  Timeline timeline;
  const Timeline copy = timeline;
  timeline.set(1);
  EXPECT_EQ(copy.value(), 1u);
}

TEST(Timeline, WaitsTheLongestTimeoutsAsForEver) {
  Timeline timeline;
  test::Thread setter([&] { timeline.set(1); });
  EXPECT_TRUE(timeline.try_wait(1, std::numeric_limits<std::uint64_t>::max()));
  setter.join();
  Timeline second;
  setter = test::Thread([&] { second.set(1); });
  EXPECT_TRUE(second.try_wait(1, std::numeric_limits<std::int64_t>::max() / 2));
  setter.join();
}

TEST(Timeline, IsReachedWhenTheStreamReachesTheSignal) {
  const FakeDevice fake;
  const Stream stream(fake.device);
  Timeline timeline;
  Gate gate;
  gate.hold(stream);
  timeline.set(stream, 1);
  gate.wait_until_reached();
  EXPECT_EQ(timeline.value(), 0u);
  EXPECT_FALSE(timeline.try_wait(1, 1));
  gate.open();
  timeline.wait(1);
  EXPECT_EQ(timeline.value(), 1u);
}

TEST(Timeline, LivesUntilTheStreamHasSetIt) {
  const FakeDevice fake;
  const Stream stream(fake.device);
  Gate gate;
  gate.hold(stream);
  Timeline copy;
  {
    const Timeline timeline;
    timeline.set(stream, 9);
    copy = timeline;
  }
  {
    const Timeline brief;
    brief.set(stream, 1);
  }
  gate.open();
  copy.wait(9);
  stream.synchronize();
}

TEST(Timeline, StaysAsItWasWhenTheStreamRefuses) {
  const FakeDevice fake;
  const Stream stream(fake.device);
  const Timeline timeline;
  fake.ledger->fail_next(Call::call_host);
  const CallSite here = CallSite::here();
  const Result<void> refused = timeline.try_set(stream, 1, here);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::driver);
  EXPECT_EQ(refused.failure().site().line, here.line);
  EXPECT_EQ(timeline.try_set(StreamRef(), 1).failure().code(), ErrorCode::stream_misuse);
  EXPECT_TRUE(timeline.try_set(stream, 1));
  timeline.wait(1);
}

TEST(Timeline, NeedsHostFunctions) {
  const FakeDevice fake({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::host_functions);
  }});
  const Timeline timeline;
  const Result<void> refused = timeline.try_set(fake.device.default_stream(), 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::unsupported);
}

TEST(Timeline, OrdersWhatTheHostSubmitsAfterItsWait) {
  for (const std::uint64_t signals : {1u, 100u}) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      const Device device = sim::open({.seed = seed});
      const Stream first(device), second(device);
      auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
      const Timeline timeline;
      first.fill(block, 64, std::byte{1});
      for (std::uint64_t value = 1; value <= signals; ++value) timeline.set(first, value);
      timeline.wait(1 + seed % signals);
      const Result<void> filled = second.try_fill(block, 64, std::byte{2});
      ASSERT_TRUE(filled) << "seed " << seed << ", " << signals << " signals";
    }
  }
}

TEST(Timeline, DoesNotWaitForAStreamWhoseValueTheHostHasSet) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream held(device);
  const std::uint64_t hold = sim::hold(held);
  Timeline timeline;
  timeline.set(held, 5);
  timeline.set(5);
  timeline.wait(5);
  ASSERT_TRUE(timeline.try_wait(5, 1'000'000));
  sim::resume(device, hold);
}

TEST(Timeline, LosesNoWakeUp) {
  constexpr std::uint64_t rounds = 100'000;
  Timeline there, back;
  test::Thread other([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      there.wait(i);
      back.set(i);
    }
  });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    there.set(i);
    back.wait(i);
  }
  other.join();
  EXPECT_EQ(there.value(), rounds);
  EXPECT_EQ(back.value(), rounds);
}

TEST(Timeline, WakesAllWhoWaitForOneValue) {
  constexpr std::uint64_t rounds = 2000;
  Timeline timeline;
  std::atomic<std::uint64_t> arrived = 0;
  std::vector<test::Thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        ++arrived;
        timeline.wait(round);
      }
    });
  }
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    while (arrived < 3 * round) std::this_thread::yield();
    timeline.set(round);
  }
  for (test::Thread& waiter : waiters) waiter.join();
}

TEST(Timeline, WakesEachAtItsOwnValue) {
  Timeline timeline;
  std::vector<test::Thread> waiters;
  for (std::uint64_t i = 1; i <= 8; ++i) waiters.emplace_back([&, i] { timeline.wait(i); });
  for (std::uint64_t i = 1; i <= 8; ++i) timeline.set(i);
  for (test::Thread& waiter : waiters) waiter.join();
}

TEST(Timeline, IsTheSameOneInEveryCopyAlsoOfAMovedOne) {
  Timeline first;
  Timeline second = std::move(first);
  first.set(5);  // NOLINT: moving copies
  EXPECT_EQ(second.value(), 5u);
}

TEST(Timeline, IsReachedOnADeviceThatRunsOnlyWhileItIsCalled) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(device);
  const Timeline timeline;
  timeline.set(stream, 1);
  timeline.wait(1);
  timeline.set(stream, 2);
  EXPECT_TRUE(timeline.try_wait(2, 1'000'000'000));
  EXPECT_EQ(timeline.value(), 2u);
}

TEST(Timeline, TellsTheCheckerThatTheHostWaited) {
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random}) {
    const Device device = sim::open({.policy = policy});
    const Stream stream(device);
    auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, 4096));
    const Timeline timeline;
    stream.fill(pinned, 4096, std::byte{1});
    timeline.set(stream, 5);
    stream.fill(pinned + 2048, 2048, std::byte{2});  // behind the signal: not waited for
    timeline.wait(3);
    sim::host_read(device, pinned, 2048);
    EXPECT_THROW(sim::host_read(device, pinned + 2048, 1), Violation);
    device.synchronize();
    device.release(pinned);
  }
}

TEST(Timeline, SaysThatItsDeviceIsLost) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(device);
  const Timeline timeline;
  stream.call([](void*) {}, nullptr);
  timeline.set(stream, 1);
  sim::set_faults(device, "fill#1=lost");
  std::byte byte{};
  EXPECT_FALSE(stream.try_fill(&byte, 1, byte));
  const Result<void> waited = timeline.try_wait(1);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::device_lost);
}

TEST(Timeline, OutlivesItsDeviceAndManySignals) {
  Timeline timeline;
  {
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Stream stream(device);
    for (std::uint64_t i = 1; i <= 200; ++i) timeline.set(stream, i);
    timeline.wait(10);
    timeline.wait(200);
  }
  timeline.wait(150);
  EXPECT_EQ(timeline.value(), 200u);
}

}  // namespace
}  // namespace tern
