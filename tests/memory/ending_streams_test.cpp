// The library may free memory on a stream that the freeing thread does not know. The owner of the
// stream may destroy it at that moment.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "device/device_state.hpp"
#include "support/budgets.hpp"
#include "support/fake_backend.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/finding.hpp"

namespace tern {
namespace {

constexpr std::size_t bytes = 4096;

/// Two threads that begin something at the same moment, give or take a few steps that differ from
/// round to round: so each moment of one meets each of the other.
class Start {
 public:
  void arrive(std::uint32_t round, std::uint32_t steps) noexcept {
    arrived_.fetch_add(1);
    for (std::uint32_t tries = 0; arrived_.load() < 2 * round; ++tries) {
      if (tries > 1'000) std::this_thread::yield();
    }
    for (std::uint32_t i = 0; i < steps; ++i) step_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> arrived_ = 0, step_ = 0;
};

/// Frees a block on a stream while that ends, and uses its memory on another, again and again.
void race(const Device& device, Resource& resource) {
  const int rounds = test::races(2'000);
  const Stream other(device);
  std::barrier<> both(2);
  Start start;
  Block block;
  StreamRef last;
  test::Thread frees([&] {
    std::minstd_rand steps(1);
    for (int i = 0; i < rounds; ++i) {
      both.arrive_and_wait();
      start.arrive(static_cast<std::uint32_t>(i + 1), steps() % 128);
      resource.deallocate(block, last);
      both.arrive_and_wait();
    }
  });
  std::minstd_rand steps(2);
  // What is wrong shows in what the device finds; the rounds go on, because the other thread does.
  const auto take = [&](StreamRef stream) {
    const Result<Block> taken = resource.try_allocate({.bytes = bytes, .stream = stream});
    return taken ? *taken : Block{};
  };
  const auto use = [](const Block& one, StreamRef stream) {
    auto* const first = static_cast<std::byte*>(one.address);
    if (one) static_cast<void>(stream.try_fill(first, bytes, std::byte{1}));
  };
  for (int i = 0; i < rounds; ++i) {
    Stream ending(device);
    block = take(i % 2 == 0 ? ending : other);
    ending.wait(other.mark());
    use(block, ending);
    last = ending;
    both.arrive_and_wait();
    start.arrive(static_cast<std::uint32_t>(i + 1), steps() % 128);
    ending = Stream();
    both.arrive_and_wait();
    const Block again = take(other);
    use(again, other);
    resource.deallocate(again, other);
  }
  frees.join();
  device.synchronize();
  const std::vector<Finding> findings = sim::findings(device);
  EXPECT_TRUE(findings.empty()) << findings.size() << ", first " << findings.front().text();
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
  EXPECT_EQ(resource.statistics().failed_frees, 0u);
}

class EndingStreams : public testing::Test {
 protected:
  const Device device = sim::open({});
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
};

TEST_F(EndingStreams, OfAPool) { race(device, *pool); }

/// The owner begins to end the stream at the very moment the pool tells it of a free: the end
/// waits.
TEST(EndingStream, WaitsUntilAConcurrentFreeIsQueued) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.wants_notes = true; }});
  PoolResource resource(fake.device);
  const Stream first(fake.device);
  auto ending = std::make_unique<Stream>(fake.device);
  const Block block = resource.allocate({.bytes = bytes, .stream = first});
  const std::size_t before = fake.ledger->live_streams();
  test::Thread owner;
  fake.ledger->run_after(test::Call::note_subrelease, [&] {
    const StreamState& state = *DeviceState::state_of(*ending);
    owner = test::Thread([&] { ending.reset(); });
    while ((state.use.load() & StreamState::is_claimed) == 0) std::this_thread::yield();
    // Time enough for an end that does not wait.
    for (int i = 0; i < 20'000 && fake.ledger->live_streams() == before; ++i) {
      std::this_thread::yield();
    }
    EXPECT_EQ(fake.ledger->live_streams(), before);
  });
  resource.deallocate(block, *ending);
  owner.join();
  EXPECT_EQ(fake.ledger->live_streams(), before - 1);
}

/// Once its owner has begun to end it, a stream may be sealed already: a mark promised then would
/// be behind the seal, and stand for nothing.
TEST(EndingStream, IsWaitedForWithItsDeviceOnceItsOwnerHasBegunToEndIt) {
  const test::FakeDevice fake;
  DirectResource resource(fake.device);
  const Stream stream(fake.device);
  const Block block = resource.allocate({.bytes = bytes, .stream = stream});
  StreamState& state = *DeviceState::state_of(stream);
  state.use.fetch_or(StreamState::is_claimed);
  const std::size_t before = fake.ledger->count(test::Call::synchronize);
  EXPECT_TRUE(resource.try_deallocate(block, stream));
  state.use.fetch_and(~StreamState::is_claimed);
  EXPECT_EQ(fake.ledger->count(test::Call::synchronize), before + 1);
}

TEST_F(EndingStreams, OfADriverThatWaits) {
  DirectResource driver(device);
  race(device, driver);
}

TEST_F(EndingStreams, OfADriver) {
  AsyncResource driver(device);
  race(device, driver);
}

TEST_F(EndingStreams, OfAGuardedPool) {
  GuardResource guard(pool);
  race(device, guard);
}

TEST_F(EndingStreams, OfABudget) {
  const BudgetHandle budget = test::limited(2 * bytes);
  {
    BudgetResource limited(pool, budget);
    race(device, limited);
  }
  budget->drain();
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

}  // namespace
}  // namespace tern
