#include "tern/memory/default_resource.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern {
namespace {

ResourceHandle direct(const Device& device) { return std::make_shared<DirectResource>(device); }

template <class Call>
Failure failure_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.failure();
  }
  ADD_FAILURE() << "nothing was refused";
  return Failure(ErrorCode::violation);
}

TEST(DefaultResource, IsMadeOnceForEachDevice) {
  const Device one = sim::open({}), other = sim::open({});
  const ResourceHandle first = default_resource(one);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->device(), one);
  EXPECT_EQ(default_resource(one), first);
  EXPECT_EQ(&default_resource_ref(one), first.get());
  EXPECT_NE(default_resource(other), first);
  EXPECT_EQ(default_resource(other)->device(), other);
}

TEST(DefaultResource, CanBeAskedForByReferenceFirst) {
  const Device device = sim::open({});
  Resource& reference = default_resource_ref(device);
  EXPECT_EQ(default_resource(device).get(), &reference);
  reference.deallocate(reference.allocate({.bytes = 64}), {});
}

TEST(DefaultResource, IsAPoolWhateverTheDeviceCan) {
  for (const bool can : {true, false}) {
    const test::FakeDevice fake({.describe = [can](DeviceInfo& info) {
      if (can) return;
      info.capabilities = info.capabilities.without(Capability::stream_ordered_memory)
                              .without(Capability::virtual_memory);
    }});
    const ResourceHandle built_in = default_resource(fake.device);
    EXPECT_STREQ(built_in->name(), "pool");
    EXPECT_TRUE(built_in->traits().is_stream_ordered);
  }
}

TEST(DefaultResource, IsOneForConcurrentCallers) {
  for (int round = 0; round < 50; ++round) {
    const Device device = sim::open({});
    std::atomic<int> waiting = 8;
    std::vector<ResourceHandle> got(8);
    std::vector<test::Thread> threads;
    for (std::size_t i = 0; i < got.size(); ++i) {
      threads.emplace_back([&, i] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        got[i] = default_resource(device);
      });
    }
    for (test::Thread& thread : threads) thread.join();
    EXPECT_EQ(std::set(got.begin(), got.end()).size(), 1u);
  }
}

TEST(DefaultResource, HasNoLimitOfDevices) {
  std::vector<Device> devices;
  std::set<Resource*> resources;
  const std::size_t count = test::is_sanitized ? 50 : 500;
  for (std::size_t i = 0; i < count; ++i) {
    devices.push_back(test::FakeDevice().device);
    resources.insert(&default_resource_ref(devices.back()));
  }
  EXPECT_EQ(resources.size(), count);
}

TEST(DefaultResource, IsRetriedAfterAFailure) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  const Device device = sim::open({});
  int failures = 0;
  for (std::size_t left = 0;; ++left) {
    ASSERT_LT(left, 100u);
    const auto make = [&] {
      const test::HeapExhausted exhausted(left);
      return try_default_resource(device);
    };
    const Result<ResourceHandle> made = make();
    if (made) break;
    EXPECT_EQ(made.failure().code(), ErrorCode::out_of_memory);
    ++failures;
  }
  EXPECT_GT(failures, 1);
  const Device other = sim::open({});
  const ResourceHandle own = direct(other);
  const test::HeapExhausted exhausted;
  EXPECT_THROW(set_default_resource(other, own), OutOfMemory);
  EXPECT_THROW(shutdown_default_resource(other), OutOfMemory);
}

TEST(DefaultResource, IsWhatWasSet) {
  const Device device = sim::open({});
  const ResourceHandle own = direct(device);
  EXPECT_EQ(set_default_resource(device, own), nullptr);
  EXPECT_EQ(default_resource(device), own);
  EXPECT_EQ(&default_resource_ref(device), own.get());
  const ResourceHandle next = direct(device);
  EXPECT_EQ(set_default_resource(device, next), own);
  EXPECT_EQ(set_default_resource(device, nullptr), next);
  const ResourceHandle built_in = default_resource(device);
  EXPECT_NE(built_in, own);
  EXPECT_NE(built_in, next);
}

TEST(DefaultResource, IsRestoredBySettingTheOldOne) {
  const Device device = sim::open({});
  const ResourceHandle built_in = default_resource(device);
  const ResourceHandle old =
      set_default_resource(device, std::make_shared<FaultResource>(built_in));
  EXPECT_EQ(old, built_in);
  set_default_resource(device, old);
  EXPECT_EQ(&default_resource_ref(device), built_in.get());
  // Null is the built-in one, and the same one while somebody has it.
  set_default_resource(device, direct(device));
  set_default_resource(device, nullptr);
  EXPECT_EQ(default_resource(device), built_in);
}

TEST(DefaultResource, LeavesBlocksWithTheResourceTheyCameFrom) {
  const Device device = sim::open({});
  OwnedBlock block(default_resource(device), {.bytes = 64});
  const std::weak_ptr<Resource> from = block.resource();
  set_default_resource(device, direct(device));
  EXPECT_EQ(from.lock()->statistics().live_bytes, block.bytes());
  EXPECT_TRUE(block.try_free());
  block = {};
  EXPECT_TRUE(from.expired());
  set_default_resource(device, nullptr);
}

TEST(DefaultResource, RefusesOneOfAnotherDevice) {
  const Device device = sim::open({}), other = sim::open({});
  const ResourceHandle before = default_resource(device);
  const Failure refused = failure_of([&] { set_default_resource(device, direct(other)); });
  EXPECT_EQ(refused.code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.string("b"), device.spec());
  EXPECT_EQ(default_resource(device), before);
}

TEST(DefaultResource, NeedsADevice) {
  const Device none;
  EXPECT_EQ(try_default_resource(none).failure().code(), ErrorCode::invalid_device);
  EXPECT_THROW(static_cast<void>(default_resource(none)), InvalidDevice);
  EXPECT_THROW(static_cast<void>(default_resource_ref(none)), InvalidDevice);
  EXPECT_THROW(set_default_resource(none, direct(sim::open({}))), InvalidDevice);
  EXPECT_THROW(set_default_resource(none, nullptr), InvalidDevice);
  EXPECT_THROW(shutdown_default_resource(none), InvalidDevice);
}

TEST(DefaultResource, DoesNotKeepItsDeviceOpen) {
  test::FakeDevice fake;
  const std::weak_ptr<Resource> watched = default_resource(fake.device);
  EXPECT_FALSE(watched.expired());
  Device copy = fake.device;
  std::optional<Stream> stream(copy);
  fake.device = {};
  copy = {};
  EXPECT_FALSE(watched.expired()) << "the stream is of the device too";
  EXPECT_EQ(default_resource(StreamRef(*stream).device()), watched.lock());
  stream.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(fake.ledger->has_closed());
}

TEST(DefaultResource, KeepsItsDeviceOpenForWhoeverHoldsIt) {
  test::FakeDevice fake;
  ResourceHandle held = default_resource(fake.device);
  fake.device = {};
  EXPECT_FALSE(fake.ledger->has_closed());
  held->deallocate(held->allocate({.bytes = 64}), {});
  EXPECT_EQ(held->failed_frees(), 0u);
  // It is still the default, though nobody is left to keep it.
  EXPECT_EQ(default_resource(held->device()), held);
  EXPECT_EQ(failure_of([&] { static_cast<void>(default_resource_ref(held->device())); }).code(),
            ErrorCode::after_shutdown);
  EXPECT_EQ(failure_of([&] { set_default_resource(held->device(), held); }).code(),
            ErrorCode::after_shutdown);
  EXPECT_EQ(set_default_resource(held->device(), nullptr), nullptr);
  Device last = held->device();
  held = nullptr;
  EXPECT_FALSE(fake.ledger->has_closed());
  ResourceHandle again = default_resource(last);
  again->deallocate(again->allocate({.bytes = 64}), {});
  again = nullptr;
  last = {};
  EXPECT_TRUE(fake.ledger->has_closed());
}

TEST(DefaultResource, ThatTheProgramSetKeepsTheDeviceUntilItIsReplaced) {
  test::FakeDevice fake;
  set_default_resource(fake.device, direct(fake.device));
  const Device* device = &default_resource_ref(fake.device).device();
  fake.device = {};
  EXPECT_FALSE(fake.ledger->has_closed());
  set_default_resource(*device, nullptr);
  EXPECT_TRUE(fake.ledger->has_closed());
}

TEST(DefaultResource, IsRefusedAfterItsShutdown) {
  const Device device = sim::open({});
  const ResourceHandle last = default_resource(device);
  const Block block = last->allocate({.bytes = 64});
  EXPECT_EQ(shutdown_default_resource(device), last);
  EXPECT_EQ(shutdown_default_resource(device), nullptr);
  const Result<ResourceHandle> refused = try_default_resource(device);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::after_shutdown);
  EXPECT_EQ(refused.failure().text(),
            "the default resource of '" + std::string(device.spec()) +
                "' was requested after its shutdown. Shut it down after the "
                "last use.");
  EXPECT_THROW(static_cast<void>(default_resource_ref(device)), AfterShutdown);
  EXPECT_THROW(set_default_resource(device, last), AfterShutdown);
  EXPECT_THROW(set_default_resource(device, nullptr), AfterShutdown);
  // What is still live can be freed, and other devices go on.
  EXPECT_TRUE(last->try_deallocate(block, {}));
  EXPECT_TRUE(try_default_resource(sim::open({})));
  const Device untouched = sim::open({});
  EXPECT_EQ(shutdown_default_resource(untouched), nullptr);
  EXPECT_FALSE(try_default_resource(untouched));
}

TEST(DefaultResource, GivesItsMemoryBackAtItsShutdown) {
  const Device device = sim::open({});
  const std::weak_ptr<Resource> watched = default_resource(device);
  shutdown_default_resource(device);
  EXPECT_TRUE(watched.expired());
}

TEST(DefaultResource, IsRefusedInAForkedChild) {
  const Device device = sim::open({});
  const ResourceHandle own = default_resource(device);
  EXPECT_EQ(
      test::in_a_forked_child([&] { return test::is_after_fork(try_default_resource(device)); }),
      0);
  EXPECT_EQ(test::in_a_forked_child([&] {
              return failure_of([&] { set_default_resource(device, own); }).code() ==
                         ErrorCode::after_fork &&
                     failure_of([&] { shutdown_default_resource(device); }).code() ==
                         ErrorCode::after_fork;
            }),
            0);
}

TEST(DefaultResource, IsReadWithoutALockSoThatItsCallsRefuseInAForkedChild) {
  const Device device = sim::open({});
  static_cast<void>(default_resource(device));
  EXPECT_EQ(test::in_a_forked_child([&] {
              return test::is_after_fork(default_resource_ref(device).try_allocate({.bytes = 64}));
            }),
            0);
}

TEST(DefaultResource, EndsInAForkedChildWhateverLockWasHeld) {
  if (test::is_sanitized) GTEST_SKIP() << "forks of several threads";
  Device device = sim::open({});
  std::atomic<bool> is_over = false;
  // By a resource of its own, so that the child has the only handle.
  const Device* const inner = &default_resource_ref(device).device();
  test::Thread other([&] {
    while (!is_over) static_cast<void>(default_resource(*inner));
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(test::in_a_forked_child([&] {
                device = Device();
                return true;
              }),
              0);
  }
  is_over = true;
  other.join();
}

TEST(DefaultResource, CanBeSetWhileOthersAsk) {
  const Device device = sim::open({});
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0, asked = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        const ResourceHandle now = default_resource(device);
        if (!now || now->device() != device) ++wrong;
        ++asked;
      }
    });
  }
  for (int i = 0; i < 300 || asked < 300; ++i) {
    set_default_resource(device, i % 3 == 0 ? nullptr : direct(device));
  }
  is_over = true;
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  set_default_resource(device, nullptr);
}

TEST(DefaultResource, EndsWithItsDeviceDuringConcurrentCalls) {
  for (int round = 0; round < 100; ++round) {
    test::FakeDevice fake;
    test::Thread other([device = fake.device]() mutable {
      const ResourceHandle held = default_resource(device);
      device = {};
      static_cast<void>(default_resource(held->device()));
    });
    static_cast<void>(default_resource(fake.device));
    fake.device = {};
    other.join();
    EXPECT_TRUE(fake.ledger->has_closed());
  }
}

/// In a process of its own, because the configuration is read once in a process.
TEST(DefaultResourceDeathTest, HasTheWrappersThatTheEnvironmentAsksFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto expect_name = [](const char* words, const char* name) {
    EXPECT_EXIT(
        {
          setenv("TERN_MEMORY", words, 1);
          const ResourceHandle resource = default_resource(sim::open({}));
          std::_Exit(std::string_view(resource->name()) == name ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << words;
  };
  expect_name("guard", "guard(pool)");
  expect_name("poison", "guard(pool)");
  expect_name("track", "tracking(pool)");
  expect_name("track,poison", "tracking(guard(pool))");
}

TEST(DefaultResourceDeathTest, PoisonsFreshBlocksIfTheEnvironmentSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto expect_poisoned = [](const char* words, bool expected) {
    EXPECT_EXIT(
        {
          setenv("TERN_MEMORY", words, 1);
          const OwnedBlock block(default_resource(open_device("host")), {.bytes = 64});
          const std::byte fresh = static_cast<const std::byte*>(block.address())[10];
          std::_Exit((fresh == GuardResource::poison_byte) == expected ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << words;
  };
  expect_poisoned("poison", true);
  expect_poisoned("guard", false);
}

TEST(DefaultResourceDeathTest, PrintsAWriteBeyondABlockThatNobodyLooksFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("TERN_MEMORY", "guard", 1);
        const Device device = open_device("host");
        {
          const OwnedBlock block(default_resource(device), {.bytes = 100, .tag = "short"});
          static_cast<std::byte*>(block.address())[100] = std::byte{1};
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "tern: a write went outside the block of 100 B .*'short'");
}

}  // namespace
}  // namespace tern
