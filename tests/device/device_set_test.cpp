#include <gtest/gtest.h>

#include <array>

#include "support/fake_backend.hpp"
#include "support/thread.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;

TEST(DeviceSet, TakesItsDevicesInTurn) {
  const FakeDevice a, b;
  DeviceSet set({a.device, b.device});
  EXPECT_EQ(set.devices().size(), 2u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(set.next(), a.device);
    EXPECT_EQ(set.next(), b.device);
  }
}

TEST(DeviceSet, TakesTurnsFairlyAmongThreads) {
  const std::array<FakeDevice, 3> fakes;
  DeviceSet set({fakes[0].device, fakes[1].device, fakes[2].device});
  std::array<std::atomic<int>, 3> turns = {};
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 300; ++k) {
        const Device& device = set.next();
        for (std::size_t n = 0; n < 3; ++n) turns[n] += device == fakes[n].device;
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  for (const auto& count : turns) EXPECT_EQ(count, 400);
}

TEST(DeviceSet, ChoosesTheDeviceWithMostFreeMemoryAndTheFirstOfEquals) {
  const FakeDevice little({.free_bytes = 100});
  const FakeDevice much({.free_bytes = 300});
  const FakeDevice as_much({.free_bytes = 300});
  EXPECT_EQ(DeviceSet({little.device, much.device, as_much.device}).max_free(), much.device);
  EXPECT_EQ(DeviceSet({as_much.device, much.device}).max_free(), as_much.device);
}

TEST(DeviceSet, PassesOverDevicesThatCannotBeAsked) {
  const FakeDevice mute({.free_bytes = 300});
  const FakeDevice good({.free_bytes = 0});
  const DeviceSet set({mute.device, good.device});
  mute.ledger->fail_next(Call::memory);
  EXPECT_EQ(set.max_free(), good.device);

  mute.ledger->fail_next(Call::memory);
  good.ledger->fail_next(Call::memory);
  const Result<Device> none = set.try_max_free();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::driver);
  EXPECT_EQ(set.max_free(), mute.device);
}

TEST(DeviceSet, CompletesTheWorkOfAllThoughOneFails) {
  const FakeDevice a, b;
  const Stream stream(b.device);
  int calls = 0;
  stream.call([](void* context) { ++*static_cast<int*>(context); }, &calls);
  a.ledger->fail_next(Call::synchronize);
  const DeviceSet set({a.device, b.device});
  const Result<void> synchronized = set.try_synchronize();
  ASSERT_FALSE(synchronized);
  EXPECT_EQ(synchronized.failure().string("call"), "synchronize");
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(set.try_synchronize());
}

TEST(DeviceSet, RefusesEmptyClosedAndRepeatedDevices) {
  const FakeDevice a;
  EXPECT_THROW(DeviceSet({}), InvalidArgument);
  EXPECT_THROW(DeviceSet({a.device, Device()}), InvalidArgument);
  EXPECT_THROW(DeviceSet({a.device, a.device}), InvalidArgument);
}

TEST(DeviceSet, KeepsItsDevicesOpen) {
  auto fake = std::make_unique<FakeDevice>();
  const std::shared_ptr<test::Ledger> ledger = fake->ledger;
  {
    const DeviceSet set({fake->device});
    fake.reset();
    EXPECT_FALSE(ledger->has_closed());
  }
  EXPECT_TRUE(ledger->has_closed());
}

}  // namespace
}  // namespace tern
