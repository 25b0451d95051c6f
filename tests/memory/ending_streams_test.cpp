// Whoever frees memory in the order of a stream may be the library, on a thread that knows nothing
// of the stream but that the memory was last used there. So its owner may end it at that moment.

#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <memory>
#include <vector>

#include "support/budgets.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/async_resource.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/direct_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/finding.hpp"

namespace tern {
namespace {

constexpr std::size_t bytes = 4096;

/// Frees a block on a stream while that ends, and uses its memory on another, again and again.
void race(const Device& device, Resource& resource) {
  const int rounds = test::races(2'000);
  const Stream other(device);
  std::barrier<> both(2);
  Block block;
  StreamRef last;
  test::Thread frees([&] {
    for (int i = 0; i < rounds; ++i) {
      both.arrive_and_wait();
      resource.deallocate(block, last);
      both.arrive_and_wait();
    }
  });
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
