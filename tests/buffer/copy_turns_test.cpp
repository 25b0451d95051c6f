#include "buffer/copy_turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/copy_places.hpp"
#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/launch/use_scope.hpp"

namespace tern::test {
namespace {

/// Both at once, so often, by two threads.
void race(int rounds, const std::function<void(int)>& one, const std::function<void(int)>& other) {
  std::atomic<int> arrived = 0;
  const auto run = [&](const std::function<void(int)>& step) {
    for (int i = 0; i < rounds; ++i) {
      ++arrived;
      while (arrived < 2 * (i + 1)) std::this_thread::yield();
      try {
        step(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "round " << i << ": " << error.what();
      }
    }
  };
  Thread beside([&] { run(other); });
  run(one);
  beside.join();
}

/// Two threads that use one storage, each through a handle and a stream of its own.
class TwoThreads : public OnDevice {
 protected:
  static constexpr std::size_t size = 4096;
  static constexpr int rounds = 200;

  static bool is_uniform(const std::vector<int>& some) {
    return std::ranges::all_of(some, [&](int one) { return one == some[0]; });
  }
  static std::vector<int> bytes_now(const Buffer& of) {
    std::vector<int> now(size);
    of.copy_to(std::span(now));
    return now;
  }
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    a = Stream(device);
    b = Stream(device);
    buffer = Buffer(device, {size}, DType::i32);
    same = buffer;
  }
  void TearDown() override {
    if (IsSkipped()) return;
    device.synchronize();
    expect_no_findings(device);
  }

  Stream a, b;
  Buffer buffer, same;
};
INSTANTIATE_TEST_SUITE_P(Devices, TwoThreads,
                         testing::Values("sim", "sim?schedule=lazy", "host", "cuda:0?driver=sim",
                                         "opencl:0", "cuda:0"),
                         spec_name);

TEST_P(TwoThreads, FillsAreOrdered) {
  for (int i = 0; i < rounds; ++i) {
    race(
        1, [&](int) { buffer.fill(1, a); }, [&](int) { same.fill(2, b); });
    EXPECT_TRUE(is_uniform(bytes_now(buffer))) << i;
  }
}

TEST_P(TwoThreads, AFillAndACopyAreOrdered) {
  buffer.fill(0, a);
  std::vector<int> seen(size);
  race(
      rounds, [&](int i) { buffer.fill(i, a); },
      [&](int i) {
        same.copy_to(std::span(seen));
        EXPECT_TRUE(is_uniform(seen)) << i;
      });
}

TEST_P(TwoThreads, ACopyInAndACopyOutAreOrdered) {
  buffer.fill(0, a);
  std::vector<int> given(size), seen(size);
  race(
      rounds,
      [&](int i) {
        std::ranges::fill(given, i);
        buffer.copy_from(std::span<const int>(given));
      },
      [&](int i) {
        same.copy_to(std::span(seen));
        EXPECT_TRUE(is_uniform(seen)) << i;
      });
}

TEST_P(TwoThreads, CopiesInOppositeDirectionsDoNotDeadlock) {
  Buffer further(device, {size}, DType::i32);
  Buffer same_further = further;
  buffer.fill(1, a);
  further.fill(2, a);
  race(
      rounds, [&](int) { copy(further, buffer, a); }, [&](int) { copy(same, same_further, b); });
  EXPECT_TRUE(is_uniform(bytes_now(buffer)));
  EXPECT_EQ(bytes_now(buffer), bytes_now(further));
}

TEST_P(TwoThreads, ScopesOfTheSameBuffersInAnyOrderDoNotDeadlock) {
  Buffer further(device, {size}, DType::i32);
  Buffer same_further = further;
  const auto use = [](StreamRef on, Buffer& first, Buffer& second, int value) {
    UseScope scope(on);
    const std::size_t x = scope.add(first, Access::discard);
    const std::size_t y = scope.add(second, Access::discard);
    scope.begin();
    on.fill(static_cast<int*>(scope.pointer(x)), size, value);
    on.fill(static_cast<int*>(scope.pointer(y)), size, value);
    scope.end();
  };
  for (int i = 0; i < rounds; ++i) {
    race(
        1, [&](int) { use(a, buffer, further, 1); }, [&](int) { use(b, same_further, same, 2); });
    const std::vector<int> now = bytes_now(buffer);
    EXPECT_TRUE(is_uniform(now)) << i;
    EXPECT_EQ(now, bytes_now(further)) << i;
  }
}

TEST_P(TwoThreads, RecordersOfTheSameBufferAreOrdered) {
  const auto use = [](StreamRef on, Buffer& used, int value) {
    LaunchRecorder recorder(on);
    const std::size_t x = recorder.use(used, Access::discard);
    recorder.preflight();
    on.fill(static_cast<int*>(recorder.pointer(x)), size, value);
    recorder.commit();
  };
  for (int i = 0; i < rounds; ++i) {
    race(
        1, [&](int) { use(a, buffer, 1); }, [&](int) { use(b, same, 2); });
    EXPECT_TRUE(is_uniform(bytes_now(buffer))) << i;
  }
}

TEST_P(TwoThreads, BatchesOfTheSameBuffersDoNotDeadlock) {
  Buffer further(device, {size}, DType::i32);
  buffer.fill(1, a);
  further.fill(2, a);
  const std::vector<BufferCopy> there = {{further.slice(0, 2048), buffer.slice(0, 2048)},
                                         {further.slice(2048, 2048), buffer.slice(2048, 2048)}};
  const std::vector<BufferCopy> back = {{buffer.slice(2048, 2048), further.slice(2048, 2048)},
                                        {buffer.slice(0, 2048), further.slice(0, 2048)}};
  race(
      rounds, [&](int) { copy_batch(there, a); }, [&](int) { copy_batch(back, b); });
  EXPECT_TRUE(is_uniform(bytes_now(buffer)));
  EXPECT_EQ(bytes_now(buffer), bytes_now(further));
}

}  // namespace
}  // namespace tern::test
