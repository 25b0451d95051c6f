// Work on one stream is ordered. Work on two streams is not, until one waits.

#include <atomic>
#include <mutex>

#include "support/ladder.hpp"
#include "support/thread.hpp"

namespace tern::test {
namespace {

class OrdersStreams : public Ladder {
 protected:
  void SetUp() override {
    if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  }

  /// Notes the order in which host functions run.
  struct Log {
    std::mutex mutex;
    std::vector<int> entries;
  };
  struct Entry {
    Log* log;
    int number;
  };
  static void note(void* context) {
    const auto* entry = static_cast<Entry*>(context);
    const std::lock_guard lock(entry->log->mutex);
    entry->log->entries.push_back(entry->number);
  }
};
TERN_CLIMB(OrdersStreams);

TEST_P(OrdersStreams, FirstInFirstOut) {
  constexpr int count = 1000;
  Log log;
  std::vector<Entry> entries;
  for (int i = 0; i < count; ++i) entries.push_back({&log, i});
  for (Entry& entry : entries) stream.call(note, &entry);
  stream.synchronize();
  ASSERT_EQ(log.entries.size(), std::size_t{count});
  EXPECT_TRUE(std::ranges::is_sorted(log.entries));
}

TEST_P(OrdersStreams, CopiesAndFillsWithEverythingElse) {
  const Block block(device, 3 * mib);
  Bytes early(3 * mib), late(3 * mib);
  stream.fill(block.get(), 3 * mib, std::byte{1});
  stream.copy(early.data(), block.get(), 3 * mib);
  stream.fill(block.get(), 3 * mib, std::byte{2});
  stream.copy(late.data(), block.get(), 3 * mib);
  stream.synchronize();
  EXPECT_TRUE(early == Bytes(3 * mib, std::byte{1}));
  EXPECT_TRUE(late == Bytes(3 * mib, std::byte{2}));
}

TEST_P(OrdersStreams, AndReturnsBeforeTheWorkIsDone) {
  const Block block(device, 64);
  write(block.get(), Bytes(64, std::byte{0}));
  Gate gate;
  gate.hold(stream);
  stream.fill(block.get(), 64, std::byte{9});
  EXPECT_FALSE(stream.is_idle());
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(stream.is_idle());
  EXPECT_EQ(read(block.get(), 64), Bytes(64, std::byte{9}));
}

TEST_P(OrdersStreams, NotTwoThatDoNotWaitForEachOther) {
  const Stream other(device);
  const Block block(device, 64);  // given back behind the gate: a driver may wait for all streams
  Gate gate;
  gate.hold(stream);
  other.fill(block.get(), 64, std::byte{1});
  other.synchronize();  // would never return behind the gate
  EXPECT_TRUE(other.is_idle());
  EXPECT_FALSE(stream.is_idle());
}

TEST_P(OrdersStreams, NotTheDefaultStreamWithOnesThatAreNotBlocking) {
  const Block block(device, 64);
  Gate gate;
  gate.hold(stream);
  EXPECT_TRUE(device.default_stream().try_fill(block.get(), 64, std::byte{1}));
  EXPECT_TRUE(device.default_stream().try_synchronize());
  EXPECT_FALSE(stream.is_idle());
}

TEST_P(OrdersStreams, TheDefaultStreamBehindBlockingOnes) {
  const Stream blocking(device, {.blocking = true});
  Log log;
  Entry first{&log, 1}, second{&log, 2};
  Gate gate;
  gate.hold(blocking);
  blocking.call(note, &first);
  device.default_stream().call(note, &second);
  gate.wait_until_reached();
  EXPECT_FALSE(device.default_stream().is_idle());
  gate.open();
  device.default_stream().synchronize();
  EXPECT_EQ(log.entries, (std::vector{1, 2}));
}

TEST_P(OrdersStreams, BlockingOnesBehindTheDefaultStream) {
  const Stream blocking(device, {.blocking = true});
  Log log;
  Entry first{&log, 1}, second{&log, 2};
  Gate gate;
  gate.hold(device.default_stream());
  device.default_stream().call(note, &first);
  blocking.call(note, &second);
  gate.wait_until_reached();
  EXPECT_FALSE(blocking.is_idle());
  gate.open();
  blocking.synchronize();
  EXPECT_EQ(log.entries, (std::vector{1, 2}));
}

TEST_P(OrdersStreams, TheDefaultStreamBehindABlockingOneThatHasEnded) {
  Log log;
  Entry first{&log, 1}, second{&log, 2};
  Gate gate;
  {
    const Stream blocking(device, {.blocking = true});
    gate.hold(blocking);
    blocking.call(note, &first);
  }
  device.default_stream().call(note, &second);
  EXPECT_FALSE(device.default_stream().is_idle());
  gate.open();
  device.default_stream().synchronize();
  EXPECT_EQ(log.entries, (std::vector{1, 2}));
}

TEST_P(OrdersStreams, AndCompletesTheWorkOfAStreamThatEnds) {
  const Block block(device, 64);
  Gate gate;
  {
    const Stream brief(device);
    gate.hold(brief);
    brief.fill(block.get(), 64, std::byte{3});
  }
  gate.open();
  device.synchronize();
  EXPECT_EQ(read(block.get(), 64), Bytes(64, std::byte{3}));
}

TEST_P(OrdersStreams, WithNamesPeopleGave) {
  EXPECT_EQ(Stream(device, {.name = "copy"}).name(), "copy");
  EXPECT_EQ(Stream(device, {.name = std::string(40, 'x')}).name(), std::string(31, 'x'));
  EXPECT_EQ(stream.name(), "stream " + std::to_string(stream.id().number()));
}

TEST_P(OrdersStreams, WhenSeveralThreadsSubmitToOne) {
  constexpr int each = 500;
  std::atomic<int> calls = 0;
  const auto count = [](void* context) {
    static_cast<std::atomic<int>*>(context)->fetch_add(1, std::memory_order_relaxed);
  };
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < each; ++k) stream.call(count, &calls);
    });
  }
  for (test::Thread& thread : threads) thread.join();
  stream.synchronize();
  EXPECT_EQ(calls, 4 * each);
}

}  // namespace
}  // namespace tern::test
