#include "backends/host/host_backend.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "backends/host/machine.hpp"
#include "core/memory_tool.hpp"
#include "core/spans_in_flight.hpp"
#include "core/worker_team.hpp"
#include "support/allocation_counter.hpp"
#include "support/fake_memory_tool.hpp"
#include "support/thread.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

struct Latch {
  std::atomic<bool> is_open = false;
  static void wait(void* context) {
    while (!static_cast<Latch*>(context)->is_open) std::this_thread::yield();
  }
};

void add_one(void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); }

class HostBackendTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend =
      *open_backend({.spec = "host?threads=2", .memory = {}, .threads = 2});
};

TEST_F(HostBackendTest, DescribesItselfAsText) {
  const DeviceInfo& info = backend->info();
  EXPECT_EQ(info.backend, "host");
  EXPECT_EQ(info.spec, "host?threads=2");
  EXPECT_EQ(info.name, processor_name());
  EXPECT_EQ(info.total_bytes, total_bytes());
  EXPECT_EQ(info.processors, usable_cores());
  EXPECT_EQ(info.alignment, 64u);
  EXPECT_EQ(info.max_alignment, 256 * mib);
  EXPECT_EQ(info.page_bytes, 2 * mib);
  EXPECT_TRUE(info.capabilities.has(Capability::memory_after_fork));
  EXPECT_FALSE(info.capabilities.has(Capability::peer_copies));
  EXPECT_FALSE(info.capabilities.has(Capability::advice));
  EXPECT_FALSE(info.capabilities.has(Capability::registered_memory));
}

TEST_F(HostBackendTest, CompletesAllWorkBeforeItEnds) {
  std::atomic<int> calls = 0;
  Latch latch;
  const NativeStream stream = *backend->create_stream({});
  ASSERT_TRUE(backend->call_host({stream, {}, {}}, Latch::wait, &latch));
  ASSERT_TRUE(backend->call_host({stream, {}, {}}, add_one, &calls));
  ASSERT_TRUE(backend->call_host({backend->default_stream(), {}, {}}, add_one, &calls));
  backend->destroy_stream(stream);
  test::Thread closer([&] { backend.reset(); });
  latch.is_open = true;
  closer.join();
  EXPECT_EQ(calls, 2);
}

TEST_F(HostBackendTest, CompletesAllWorkBeforeItEndsThoughTheHeapIsExhausted) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  std::atomic<int> calls = 0;
  Latch latch;
  std::vector<NativeStream> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(*backend->create_stream({}));
  for (const NativeStream stream : streams) {
    ASSERT_TRUE(backend->call_host({stream, {}, {}}, Latch::wait, &latch));
    ASSERT_TRUE(backend->call_host({stream, {}, {}}, add_one, &calls));
    backend->destroy_stream(stream);
  }
  test::Thread opener([&] { latch.is_open = true; });
  {
    const test::HeapExhausted exhausted;
    backend.reset();
  }
  EXPECT_EQ(calls, 8);
  opener.join();
}

TEST_F(HostBackendTest, RefusesWithoutLossWhenTheHeapIsExhausted) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  void* address = *backend->allocate_async({backend->default_stream(), {}, {}}, 64, 64);
  bool is_refused = true;
  int value = 1;
  const KernelArgument argument{&value, sizeof value, nullptr, 0, Access::read};
  const NativeKernel kernel =
      *backend->load_kernel({.entry = "none", .body = [](const KernelCall&) {}});
  {
    const test::HeapExhausted exhausted;
    const Submission submission{backend->default_stream(), {}, {}};
    is_refused = !backend->create_stream({}) && !backend->create_event(false) &&
                 !backend->create_event(true) && !backend->synchronize() &&
                 !backend->load_kernel({.entry = "none", .body = [](const KernelCall&) {}}) &&
                 !backend->launch(submission, kernel, {}, std::span(&argument, 1)) &&
                 !backend->release_async(submission, address) &&
                 !backend->allocate(MemoryKind::device, 64, 64, {}, {}) &&
                 !open_backend({.spec = "host", .memory = {}, .threads = 1});
  }
  EXPECT_TRUE(is_refused);
  // The release that could not be queued was taken back.
  EXPECT_EQ(backend->pointer_info(address)->base, address);
  EXPECT_TRUE(backend->release(address, {}));
  EXPECT_TRUE(backend->synchronize());
  backend->unload_kernel(kernel);
}

TEST_F(HostBackendTest, StartsNoThreadForAStreamWithoutWork) {
  std::vector<NativeStream> streams;
  for (int i = 0; i < 2000; ++i) streams.push_back(*backend->create_stream({}));
  EXPECT_TRUE(backend->synchronize());
  for (const NativeStream stream : streams) backend->destroy_stream(stream);
}

TEST_F(HostBackendTest, OrdersBlockingStreamsOnlyWhileThereAreSome) {
  Latch latch;
  std::atomic<int> calls = 0;
  const NativeStream blocking = *backend->create_stream({.blocking = true});
  const NativeStream free_running = *backend->create_stream({});
  ASSERT_TRUE(backend->call_host({blocking, {}, {}}, Latch::wait, &latch));
  ASSERT_TRUE(backend->call_host({backend->default_stream(), {}, {}}, add_one, &calls));
  ASSERT_TRUE(backend->call_host({free_running, {}, {}}, add_one, &calls));
  EXPECT_TRUE(backend->synchronize(free_running));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(*backend->query(backend->default_stream()));
  backend->destroy_stream(blocking);
  ASSERT_TRUE(backend->call_host({backend->default_stream(), {}, {}}, add_one, &calls));
  EXPECT_EQ(calls, 1);
  latch.is_open = true;
  EXPECT_TRUE(backend->synchronize());
  EXPECT_EQ(calls, 3);
  backend->destroy_stream(free_running);
}

TEST_F(HostBackendTest, LetsBlockingStreamsAndTheDefaultOneInterleaveFromThreads) {
  // Waits always point to earlier work, so they cannot close a circle.
  std::atomic<int> calls = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const NativeStream own = *backend->create_stream({.blocking = true});
      for (int k = 0; k < 300; ++k) {
        const NativeStream stream = (i + k) % 3 == 0 ? backend->default_stream() : own;
        ASSERT_TRUE(backend->call_host({stream, {}, {}}, add_one, &calls));
      }
      backend->destroy_stream(own);
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_TRUE(backend->synchronize());
  EXPECT_EQ(calls, 1200);
}

/// A kernel of these holds its stream; unlike a host function it may not touch any memory.
std::atomic<bool> may_pass = false;
void hold(const KernelCall&) {
  while (!may_pass) std::this_thread::yield();
}

TEST_F(HostBackendTest, ClosesWhatACopyWillWriteUntilItRuns) {
  test::FakeMemoryTool tool;
  const ScopedMemoryTool scoped(&tool);
  const NativeStream stream = *backend->create_stream({});
  const NativeKernel kernel = *backend->load_kernel({.entry = "hold", .body = hold});
  const std::vector<char> source(100, 'x');
  std::vector<char> vector(100), shared(100), pointed(100);
  void* const own = *backend->allocate(MemoryKind::device, 100, 64, {}, {});
  const Submission on{stream, {}, {}};
  const auto copy = [&](void* to, const void* from) { return backend->copy(on, to, from, 100); };

  may_pass = false;
  ASSERT_TRUE(backend->launch(on, kernel, {}, {}));
  ASSERT_TRUE(copy(vector.data(), source.data()));
  EXPECT_TRUE(tool.is_poisoned(vector.data(), 100));
  EXPECT_TRUE(tool.is_accessible(source.data(), 100));
  ASSERT_TRUE(copy(own, shared.data()));
  EXPECT_TRUE(tool.is_accessible(own, 100));
  ASSERT_TRUE(copy(shared.data(), source.data()));  // behind one that reads it
  EXPECT_TRUE(tool.is_accessible(shared.data(), 100));
  const void* const pointer = pointed.data();
  const KernelArgument argument{.value = &pointer, .value_bytes = sizeof pointer};
  ASSERT_TRUE(backend->launch(on, kernel, {}, {&argument, 1}));
  ASSERT_TRUE(copy(pointed.data(), source.data()));  // behind a kernel that may have it
  EXPECT_TRUE(tool.is_accessible(pointed.data(), 100));
  may_pass = true;
  EXPECT_TRUE(backend->synchronize(stream));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
  EXPECT_EQ(spans_in_flight(), 0u);
  EXPECT_EQ(vector, source);

  backend->unload_kernel(kernel);
  backend->destroy_stream(stream);
  EXPECT_TRUE(backend->release(own, {}));
}

}  // namespace
}  // namespace tern::host
