// What a pool tells checkers of its blocks: in the right order, also beside other threads and on a
// lost device, and nothing that a program would have to be blamed for.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/trace_check.hpp"

namespace tern {
namespace {

using test::Call;

TEST(PoolNotes, TakeTheMarkOfAFreeAfterItsNote) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.wants_notes = true; }});
  PoolResource pool(fake.device);
  const Stream stream(fake.device);
  const Block block = pool.allocate({.bytes = 4 * mib, .stream = stream});
  test::Gate gate;
  // Another thread records the mark that the free has promised, and the stream passes it, before
  // the stream is told of the free.
  fake.ledger->run_after(Call::note_subrelease, [&] {
    const Mark promised = fake.device.next_mark(stream.id());
    ASSERT_TRUE(fake.device.try_record_mark(stream.id()));
    Device::wait(promised);
    gate.hold(stream);
  });
  pool.deallocate(block, stream);
  EXPECT_EQ(pool.trim(0), 0u);
  EXPECT_EQ(pool.pool_statistics().in_flight_bytes, block.bytes);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(pool.trim(0), 4 * mib);
}

TEST(PoolNotes, AreOrderedWhenThreadsAllocateDuringATrim) {
  const Device device = sim::open({.mode = sim::Mode::collect, .memory_bytes = 64 * mib});
  PoolResource pool(device);
  std::atomic<int> running = 3;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const Stream stream(device);
      for (int round = 0; round < test::races(3'000); ++round) {
        const auto bytes = static_cast<std::size_t>(256 << ((round + i) % 8));
        const Result<Block> block = pool.try_allocate({.bytes = bytes, .stream = stream});
        if (!block) continue;
        stream.fill(static_cast<std::byte*>(block->address), bytes, std::byte{1});
        pool.deallocate(*block, stream);
      }
      --running;
    });
  }
  while (running > 0) pool.trim(0);
  for (test::Thread& thread : threads) thread.join();
  const std::vector<Finding> found = sim::findings(device);
  EXPECT_TRUE(found.empty()) << found.size() << ", first " << found.front().text();
}

class NotesOfALostDevice : public testing::Test {
 protected:
  const Device device = sim::open({.mode = sim::Mode::collect});
  const Stream stream{device};

  /// The work of the stream is never waited for.
  void use_and_lose(const Block& block) {
    stream.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
    sim::set_faults(device, "sync#1=lost");
    EXPECT_EQ(device.try_synchronize().failure().code(), ErrorCode::device_lost);
  }
  void expect_nothing_found(const Resource& resource) {
    const std::vector<Finding> found = sim::findings(device);
    EXPECT_TRUE(found.empty()) << found.front().text();
    EXPECT_EQ(resource.statistics().live_bytes, 0u);
  }
};

TEST_F(NotesOfALostDevice, AllowAFreeInTheOrderOfTheDefaultStream) {
  PoolResource pool(device);
  const Block block = pool.allocate({.bytes = 4096, .stream = stream});
  use_and_lose(block);
  pool.deallocate(block, device.default_stream());
  expect_nothing_found(pool);
}

TEST_F(NotesOfALostDevice, AllowAFreeByAThreadThatNeverHeardOfTheLoss) {
  PoolResource pool(device);
  const Block block = pool.allocate({.bytes = 4096, .stream = stream});
  use_and_lose(block);
  test::Thread([&] { pool.deallocate(block, device.default_stream()); }).join();
  expect_nothing_found(pool);
}

TEST_F(NotesOfALostDevice, AllowTheDriverToFreeInTheOrderOfTheDefaultStream) {
  AsyncResource driver(device);
  const Block block = driver.allocate({.bytes = 4096, .stream = stream});
  use_and_lose(block);
  test::Thread([&] { driver.deallocate(block, device.default_stream()); }).join();
  expect_nothing_found(driver);
}

/// What `tern check` says of a program that ends with the default resource as it is.
std::vector<std::string> found_at_the_end(const Device& device) {
  const std::string path = testing::TempDir() + "pool_notes.trace";
  sim::save_trace(device, path);
  std::vector<std::string> found;
  {
    TraceReader reader = TraceReader::try_open(path).value();
    const CheckSummary summary =
        check_trace(reader, [&](const Finding& finding) { found.push_back(finding.text()); });
    EXPECT_FALSE(summary.failure);
  }
  std::remove(path.c_str());
  return found;
}

TEST(PoolNotes, ReportNoLeakForTheDefaultResource) {
  const Device device = sim::open({.trace_memory_bytes = 1 * mib});
  const Stream stream(device);
  {
    const OwnedBlock block(default_resource(device), {.bytes = 4096, .stream = stream});
    stream.fill(static_cast<std::byte*>(block.address()), 4096, std::byte{1});
  }
  EXPECT_TRUE(found_at_the_end(device).empty());
}

TEST(PoolNotes, NameABlockThatIsLiveAtTheEnd) {
  const Device device = sim::open({.trace_memory_bytes = 1 * mib});
  const OwnedBlock block(default_resource(device), {.bytes = 4096, .tag = "forgotten"});
  const std::vector<std::string> found = found_at_the_end(device);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("forgotten"), std::string::npos) << found[0];
}

}  // namespace
}  // namespace tern
