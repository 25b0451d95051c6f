// A buffer remembers the stream it was made for and the streams that used it. These streams may end
// while another thread, which does not know them, uses or destroys the buffer.

#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/finding.hpp"

namespace tern {
namespace {

constexpr std::size_t count = 1024;

/// Gives a buffer that was made for a stream its memory while that ends, again and again. The first
/// to use it is another stream, or nobody yet.
void race(const Device& device, const ResourceHandle& resource) {
  const int rounds = test::races(2'000);
  const Stream other(device);
  std::barrier<> both(2);
  Stream ending;
  test::Thread ends([&] {
    for (int i = 0; i < rounds; ++i) {
      both.arrive_and_wait();
      // A little later each time, to meet every moment.
      for (int j = 0; j < i % 64; ++j) static_cast<void>(other.next_mark());
      ending = Stream();
      both.arrive_and_wait();
    }
  });
  Result<void> first;
  const auto look = [&](const Result<void>& result) {
    if (first && !result) first = result.failure();
  };
  for (int i = 0; i < rounds; ++i) {
    ending = Stream(device);
    // Memory that this stream is not done with.
    const auto made = [&] {
      return Buffer(device, Shape{count}, DType::u32,
                    {.resource = resource, .contents = Contents::zero, .stream = ending});
    };
    look(made().try_ensure_allocated(ending));
    Buffer buffer = made();
    both.arrive_and_wait();
    look(i % 2 == 0 ? buffer.try_ensure_allocated() : buffer.try_ensure_allocated(other));
    both.arrive_and_wait();
    const Result<Mark> filled = buffer.try_fill(std::uint32_t{1}, other);
    look(filled ? Result<void>() : Result<void>(filled.failure()));
  }
  ends.join();
  EXPECT_TRUE(first) << first.failure().text();
  device.synchronize();
  const std::vector<Finding> findings = sim::findings(device);
  EXPECT_TRUE(findings.empty()) << findings.size() << ", first " << findings.front().text();
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
  EXPECT_EQ(resource->statistics().failed_frees, 0u);
}

class EndingStreams : public testing::Test {
 protected:
  const Device device = sim::open({});
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
};

TEST_F(EndingStreams, AsAPoolGivesMemoryForThem) { race(device, pool); }

TEST_F(EndingStreams, AsADriverGivesMemoryForThem) {
  race(device, std::make_shared<AsyncResource>(device));
}

TEST_F(EndingStreams, AsAGuardGivesMemoryForThem) {
  race(device, std::make_shared<GuardResource>(pool));
}

TEST_F(EndingStreams, MemoryIsForTheStreamThatUsesItFirst) {
  const Stream named(device), first(device);
  const std::vector<std::uint32_t> values(count, 3);
  const auto freed_by = [&](StreamRef stream) {
    Buffer earlier(device, Shape{count}, DType::u32, {.resource = pool});
    earlier.fill(std::uint32_t{1}, stream);
    return earlier.address();
  };
  const auto made = [&] {
    return Buffer(device, Shape{count}, DType::u32, {.resource = pool, .stream = named});
  };
  const std::uintptr_t of_named = freed_by(named), of_first = freed_by(first);
  Buffer used = made();
  used.fill(std::uint32_t{2}, first);
  EXPECT_EQ(used.address(), of_first);
  // Who fills it from the host is no user.
  Buffer filled = made();
  filled.copy_from(std::span<const std::uint32_t>(values));
  EXPECT_EQ(filled.address(), of_named);
}

}  // namespace
}  // namespace tern
