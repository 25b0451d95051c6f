// Memory that is used on one stream, dropped, and reused by another stream: declared uses make this
// safe.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/random.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/launch/use_scope.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

enum class Declared : std::uint8_t { yes, no };

// --- One block, two streams

constexpr std::size_t litmus_bytes = 4096;

/// Fills memory of stream `a` on stream `b`, behind other work there, drops it, and takes new
/// memory on `a`: does it keep what is written there?
bool keeps_what_is_written(const Device& device, const ResourceHandle& pool, StreamRef a,
                           StreamRef b, Buffer& other, Declared declared, unsigned char value) {
  other.try_fill(std::byte{1}, b).value();
  std::optional<Buffer> first =
      Buffer::allocate(device, Shape{litmus_bytes}, DType::byte, {.resource = pool, .stream = a});
  if (declared == Declared::yes) {
    UseScope scope(b);
    scope.add(*first, Access::discard);
    scope.begin();
    b.fill(static_cast<std::byte*>(scope.pointer(0)), litmus_bytes, std::byte{0xEE});
  } else {
    b.fill(reinterpret_cast<std::byte*>(first->address()), litmus_bytes, std::byte{0xEE});
  }
  first.reset();
  Buffer second =
      Buffer::allocate(device, Shape{litmus_bytes}, DType::byte, {.resource = pool, .stream = a});
  second.fill(std::byte{value}, a);
  b.synchronize();
  const std::vector<std::byte> bytes = second.to_vector<std::byte>();
  return std::all_of(bytes.begin(), bytes.end(),
                     [value](std::byte byte) { return byte == std::byte{value}; });
}

int right_rounds(const Device& device, int rounds, Declared declared, std::size_t busy_bytes) {
  const auto pool = std::make_shared<PoolResource>(device);
  const Stream a(device), b(device);
  Buffer other = Buffer::allocate(device, Shape{busy_bytes}, DType::byte);
  int right = 0;
  for (int round = 0; round < rounds; ++round) {
    right += keeps_what_is_written(device, pool, a, b, other, declared,
                                   static_cast<unsigned char>(round))
                 ? 1
                 : 0;
  }
  return right;
}

constexpr int litmus_rounds = 64;

TEST(Reuse, ComesBehindDeclaredUsesOnOtherStreams) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .mode = sim::Mode::collect});
  EXPECT_EQ(right_rounds(device, litmus_rounds, Declared::yes, 64), litmus_rounds);
  EXPECT_EQ(sim::findings(device).size(), 0u);
}

TEST(Reuse, IsReportedIfUsesAreNotDeclared) {
  int found = 0;
  for (int round = 0; round < litmus_rounds; ++round) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .mode = sim::Mode::collect});
    right_rounds(device, 1, Declared::no, 64);
    if (!sim::findings(device).empty()) ++found;
  }
  EXPECT_EQ(found, litmus_rounds);
}

TEST(Reuse, ComesBehindDeclaredUsesOnARealDevice) {
  const Result<Device> device = try_open_device("cuda:0");
  if (!device) GTEST_SKIP() << device.failure().text();
  EXPECT_EQ(right_rounds(*device, 1000, Declared::yes, std::size_t{64} << 20), 1000);
}

TEST(Reuse, ComesBehindDeclaredUsesOnTheHost) {
  EXPECT_EQ(right_rounds(open_device("host"), litmus_rounds, Declared::yes, 1 << 16),
            litmus_rounds);
}

constexpr int thread_count = 8;
constexpr int rounds_of_a_thread = test::is_sanitized ? 16 : 128;
constexpr int runs = test::is_sanitized ? 2 : 10;

/// Each thread has its streams, and all of them one pool.
int right_rounds_of_threads(const Device& device) {
  const auto pool = std::make_shared<PoolResource>(device);
  std::atomic<int> right = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      const Stream a(device), b(device);
      Buffer other = Buffer::allocate(device, Shape{64}, DType::byte);
      for (int round = 0; round < rounds_of_a_thread; ++round) {
        if (keeps_what_is_written(device, pool, a, b, other, Declared::yes,
                                  static_cast<unsigned char>(i * 16 + round))) {
          ++right;
        }
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  return right;
}

TEST(Reuse, ComesBehindDeclaredUsesOfManyThreads) {
  const Device host = open_device("host");
  for (int run = 0; run < runs; ++run) {
    EXPECT_EQ(right_rounds_of_threads(host), thread_count * rounds_of_a_thread) << run;
    const Device simulated = sim::open({.seed = static_cast<std::uint64_t>(run),
                                        .policy = sim::Policy::lazy,
                                        .mode = sim::Mode::collect});
    EXPECT_EQ(right_rounds_of_threads(simulated), thread_count * rounds_of_a_thread) << run;
    EXPECT_EQ(sim::findings(simulated).size(), 0u) << run;
  }
}

// --- Many blocks, several streams, anything

/// One random program: all of it follows from the seed. Without declarations it does the same work,
/// with the addresses that the buffers have.
class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, Declared declared)
      : random_(seed),
        declared_(declared),
        device_(sim::open(
            {.seed = seed, .mode = sim::Mode::collect, .memory_bytes = std::size_t{64} << 20})),
        pool_(std::make_shared<PoolResource>(device_)),
        kernel_(device_.try_load_kernel({.entry = "work"}).value()) {
    const std::size_t count = 2 + random_.below(3);
    for (std::size_t i = 0; i < count; ++i) streams_.emplace_back(device_);
  }

  std::vector<Finding> run() {
    for (int step = 0; step < 40; ++step) {
      switch (random_.below(8)) {
        case 0:
          drop();
          break;
        case 1:
          drop_block();
          break;
        case 2:
          copy();
          break;
        case 3:
          use_block();
          break;
        case 4:
          if (random_.below(4) == 0) stream().synchronize();
          break;
        default:
          launch();
      }
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) drop(i);
    for (std::size_t i = 0; i < blocks_.size(); ++i) drop_block(i);
    device_.synchronize();
    device_.unload_kernel(kernel_);
    return sim::findings(device_);
  }

 private:
  static constexpr std::size_t bytes = 1024;

  StreamRef stream() { return streams_[random_.below(streams_.size())]; }
  Access access() { return static_cast<Access>(random_.below(3)); }
  void fill(StreamRef on, void* memory) {
    on.fill(static_cast<std::byte*>(memory), bytes, std::byte{7});
  }
  void submit(StreamRef on, const std::vector<void*>& memory, const std::vector<Access>& accesses) {
    std::vector<KernelArgument> arguments;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      arguments.push_back({&memory[i], sizeof(void*), memory[i], bytes, accesses[i]});
    }
    on.launch(kernel_, {}, arguments);
  }

  /// The buffer of a place, made and written if there is none.
  Buffer& buffer(std::size_t place) {
    std::optional<Buffer>& there = buffers_[place];
    if (!there) {
      const StreamRef first = random_.below(2) == 0 ? stream() : StreamRef();
      there = Buffer::allocate(device_, Shape{bytes}, DType::byte,
                               {.resource = pool_, .stream = first});
      const StreamRef on = stream();
      if (declared_ == Declared::yes) {
        UseScope scope(on);
        scope.add(*there, Access::discard);
        scope.begin();
        fill(on, scope.pointer(0));
        scope.end();
      } else {
        fill(on, reinterpret_cast<void*>(there->address()));
      }
    }
    return *there;
  }
  std::size_t place() { return random_.below(buffers_.size()); }

  void launch() {
    const std::size_t count = 1 + random_.below(3);
    std::vector<std::size_t> places;
    std::vector<Access> accesses;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t next = place();
      if (std::find(places.begin(), places.end(), next) != places.end()) continue;
      places.push_back(next);
      accesses.push_back(access());
      buffer(next);
    }
    const StreamRef on = stream();
    const std::uint64_t way = random_.below(8);
    std::vector<void*> memory;
    if (declared_ == Declared::no) {
      if (way == 0) return;
      for (const std::size_t one : places) {
        memory.push_back(reinterpret_cast<void*>(buffers_[one]->address()));
      }
      submit(on, memory, accesses);
    } else if (way < 4) {
      UseScope scope(on);
      for (std::size_t i = 0; i < places.size(); ++i) scope.add(*buffers_[places[i]], accesses[i]);
      scope.begin();
      if (way == 0) return scope.cancel();
      for (std::size_t i = 0; i < places.size(); ++i) memory.push_back(scope.pointer(i));
      submit(on, memory, accesses);
    } else {
      LaunchRecorder recorder(on);
      for (std::size_t i = 0; i < places.size(); ++i) {
        recorder.use(*buffers_[places[i]], accesses[i]);
      }
      recorder.preflight();
      for (std::size_t i = 0; i < places.size(); ++i) memory.push_back(recorder.pointer(i));
      submit(on, memory, accesses);
      if (way != 4) recorder.commit();  // else it is dropped
    }
  }

  void copy() {
    const std::size_t from = place(), to = place();
    if (from == to) return;
    buffer(from);
    buffer(to);
    const StreamRef on = stream();
    if (declared_ == Declared::no) {
      on.copy(reinterpret_cast<void*>(buffers_[to]->address()),
              reinterpret_cast<void*>(buffers_[from]->address()), bytes);
      return;
    }
    UseScope scope(on);
    scope.add(*buffers_[from], Access::read);
    scope.add(*buffers_[to], Access::discard);
    scope.begin();
    on.copy(scope.pointer(1), scope.pointer(0), bytes);
  }

  void drop() { drop(place()); }
  void drop(std::size_t which) { buffers_[which].reset(); }

  void use_block() {
    Block& block = blocks_[random_.below(blocks_.size())];
    const StreamRef on = stream();
    const bool is_new = !block;
    if (is_new) block = pool_->allocate({.bytes = bytes, .stream = on});
    const Access how = is_new ? Access::discard : access();
    if (declared_ == Declared::no) return submit(on, {block.address}, {how});
    LaunchRecorder recorder(on);
    recorder.use(*pool_, block, how);
    recorder.preflight();
    submit(on, {recorder.pointer(0)}, {how});
    recorder.commit();
  }
  void drop_block() { drop_block(random_.below(blocks_.size())); }
  void drop_block(std::size_t which) {
    Block& block = blocks_[which];
    if (!block) return;
    const StreamRef on = stream();
    if (declared_ == Declared::yes) try_wait_for_uses(on, block).value();
    pool_->deallocate(block, on);
    block = {};
  }

  bench::Random random_;
  const Declared declared_;
  Device device_;
  std::shared_ptr<PoolResource> pool_;
  NativeKernel kernel_;
  std::vector<Stream> streams_;
  std::vector<std::optional<Buffer>> buffers_{5};
  std::vector<Block> blocks_{2};
};

constexpr std::uint64_t program_count = test::is_sanitized ? 500 : 10'000;

TEST(RandomPrograms, WithDeclaredUsesAreInOrder) {
  for (std::uint64_t seed = 1; seed <= program_count; ++seed) {
    const std::vector<Finding> findings = RandomProgram(seed, Declared::yes).run();
    ASSERT_TRUE(findings.empty()) << "seed " << seed << "\n" << findings[0].text();
  }
}

TEST(RandomPrograms, WithoutDeclarationsAreNot) {
  // The same programs, of which hardly one is right by chance.
  constexpr std::uint64_t count = program_count / 10;
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    if (!RandomProgram(seed, Declared::no).run().empty()) ++found;
  }
  EXPECT_GT(found, count * 9 / 10) << "of " << count;
}

}  // namespace
}  // namespace tern
