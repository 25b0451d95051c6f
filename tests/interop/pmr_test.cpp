// PmrUpstream. tests/conformance/resource_test.cpp tests what it guarantees as a resource.

#include "tern/interop/pmr.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/heap_resource.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

using test::HeapExhausted;
using test::HeapResource;

ResourceHandle host_memory() { return std::make_shared<DirectResource>(open_device("host")); }

bool is_aligned(const void* address, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

/// Containers of several kinds, in which everything is allocated from the resource.
std::size_t use_containers(std::pmr::memory_resource* memory) {
  std::pmr::vector<int> numbers(memory);
  for (int i = 0; i < 300; ++i) numbers.push_back(i);
  std::pmr::map<int, std::pmr::string> words(memory);
  for (int i = 0; i < 30; ++i) {
    words.emplace(i, "a string that is too long to be kept inside of itself");
  }
  for (int i = 0; i < 30; i += 2) words.erase(i);
  std::pmr::string text("another string that needs memory of its own", memory);
  text += text;
  const std::pmr::vector<int> copy(numbers, memory);
  return copy.size() + words.size() + text.size();
}
constexpr std::size_t used_size = 300 + 15 + 86;

// --- PmrAdapter

TEST(PmrAdapter, LetsContainersUseAResource) {
  const ResourceHandle resource = host_memory();
  PmrAdapter adapter(resource);
  EXPECT_EQ(adapter.resource(), resource);
  EXPECT_EQ(use_containers(&adapter), used_size);
  EXPECT_GT(resource->statistics().requests, 60u);
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
  EXPECT_EQ(resource->statistics().refusals, 0u);
  EXPECT_EQ(adapter.mistaken_frees(), 0u);
}

TEST(PmrAdapter, WorksAsUpstreamOfStandardPools) {
  const ResourceHandle resource = host_memory();
  PmrAdapter adapter(resource);
  {
    std::pmr::monotonic_buffer_resource monotonic(&adapter);
    EXPECT_EQ(use_containers(&monotonic), used_size);
    std::pmr::synchronized_pool_resource pool(&adapter);
    EXPECT_EQ(use_containers(&pool), used_size);
    EXPECT_GT(resource->statistics().live_bytes, 0u);
  }
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
}

TEST(PmrAdapter, AsksWithATagAndALine) {
  auto tracking = std::make_shared<TrackingResource>(host_memory());
  PmrAdapter adapter(tracking, "words");
  const std::uint32_t line = CallSite::here().line - 1;
  const std::pmr::vector<int> numbers(100, &adapter);
  const std::vector<Holder> holders = tracking->top_holders(2);
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].tag, Tag("words"));
  EXPECT_EQ(holders[0].site.line, line);
  EXPECT_EQ(holders[0].bytes, 400u);
}

TEST(PmrAdapter, AlignsAsItIsAsked) {
  PmrAdapter adapter(host_memory());
  for (std::size_t alignment = 1; alignment <= 64 * kib; alignment *= 2) {
    void* const address = adapter.allocate(100, alignment);
    EXPECT_TRUE(is_aligned(address, alignment)) << alignment;
    adapter.deallocate(address, 100, alignment);
  }
  struct alignas(1024) Wide {
    std::array<char, 1024> bytes;
  };
  const std::pmr::vector<Wide> wide(3, &adapter);
  EXPECT_TRUE(is_aligned(wide.data(), 1024));
  EXPECT_THROW(static_cast<void>(adapter.allocate(64, 1 * gib)), Misaligned);
}

TEST(PmrAdapter, ReturnsAnAddressForZeroBytes) {
  PmrAdapter adapter(host_memory());
  void* const a = adapter.allocate(0, 1);
  void* const b = adapter.allocate(0, 1);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
  adapter.deallocate(a, 0, 1);
  adapter.deallocate(b, 0, 1);
  EXPECT_EQ(adapter.mistaken_frees(), 0u);
  EXPECT_EQ(adapter.resource()->statistics().live_blocks, 0u);
}

TEST(PmrAdapter, NeedsMemoryThatTheHostCanUse) {
  const Device device = sim::open({});
  EXPECT_THROW(PmrAdapter{nullptr}, InvalidArgument);
  EXPECT_THROW(PmrAdapter{std::make_shared<DirectResource>(device)}, Unsupported);
  PmrAdapter pinned(std::make_shared<DirectResource>(device, MemoryKind::pinned));
  EXPECT_EQ(use_containers(&pinned), used_size);
}

TEST(PmrAdapter, IsEqualToOthersOfItsResource) {
  const ResourceHandle resource = host_memory();
  PmrAdapter one(resource), two(resource), foreign(host_memory());
  EXPECT_TRUE(one == two);
  EXPECT_FALSE(one == foreign);
  EXPECT_FALSE(one == *std::pmr::new_delete_resource());

  std::pmr::vector<int> from(100, 7, &one);
  const int* const data = from.data();
  std::pmr::vector<int> to(std::move(from), &two);
  EXPECT_EQ(to.data(), data) << "equal resources hand memory over";
  to = std::pmr::vector<int>(&two);
  to.shrink_to_fit();
  EXPECT_EQ(two.mistaken_frees(), 0u);
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
}

TEST(PmrAdapter, FreesBlocksOfAnEarlierAdapter) {
  const ResourceHandle resource = host_memory();
  std::optional<PmrAdapter> first(resource), second(resource);
  void* const address = first->allocate(64, 8);
  first.reset();
  second->deallocate(address, 64, 8);
  EXPECT_EQ(second->mistaken_frees(), 0u);
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
}

TEST(PmrAdapter, KeepsItsResourceAliveAndNoLonger) {
  ResourceHandle resource = host_memory();
  const std::weak_ptr<Resource> watched = resource;
  {
    PmrAdapter adapter(std::move(resource));
    EXPECT_EQ(use_containers(&adapter), used_size);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST(PmrAdapter, ThrowsWhatTheResourceRefusesWith) {
  auto fault = std::make_shared<FaultResource>(host_memory());
  PmrAdapter adapter(fault);
  fault->fail_next();
  EXPECT_THROW(static_cast<void>(adapter.allocate(64)), OutOfMemory);
  fault->fail_next();
  EXPECT_THROW(std::pmr::vector<int>(100, &adapter), std::bad_alloc);
  const volatile std::size_t everything = SIZE_MAX;  // the compiler would say so too
  EXPECT_THROW(static_cast<void>(adapter.allocate(everything)), SizeOverflow);

  PmrAdapter limited(std::make_shared<BudgetResource>(host_memory(), test::limited(1024)));
  std::pmr::vector<char> most(1000, &limited);
  EXPECT_THROW(most.resize(2000), OutOfBudget);
  EXPECT_EQ(most.size(), 1000u);
}

TEST(PmrAdapter, SurvivesAFaultAtEveryRequest) {
  for (const bool after_upstream : {false, true}) {
    bool is_done = false;
    for (std::uint64_t nth = 1; !is_done; ++nth) {
      ASSERT_LT(nth, 200u);
      const auto fault = std::make_shared<FaultResource>(
          host_memory(), std::vector<FaultRule>{{.after_upstream = after_upstream, .nth = nth}});
      PmrAdapter adapter(fault);
      try {
        EXPECT_EQ(use_containers(&adapter), used_size);
        is_done = true;
        EXPECT_GT(nth, 60u);
      } catch (const OutOfMemory&) {
        EXPECT_EQ(fault->failed_requests(), 1u);
      }
      EXPECT_EQ(fault->statistics().live_bytes, 0u) << nth;
      EXPECT_EQ(adapter.mistaken_frees(), 0u);
    }
  }
}

TEST(PmrAdapter, GivesABlockBackThatItCannotRecord) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  const ResourceHandle resource = host_memory();
  PmrAdapter adapter(resource);
  adapter.deallocate(adapter.allocate(64), 64);  // so that the resource has what it needs itself
  const std::uint64_t frees = resource->statistics().frees;
  void* address = nullptr;
  std::optional<Failure> failure;
  std::size_t left = 0;
  for (; address == nullptr && left < 100; ++left) {
    const HeapExhausted exhausted(left);
    try {
      address = adapter.allocate(64);
    } catch (const OutOfMemory& error) {
      failure = error.failure();
    }
  }
  ASSERT_NE(address, nullptr);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->string("what"), "the record of a block");
  EXPECT_GT(resource->statistics().frees, frees);
  EXPECT_EQ(resource->statistics().live_blocks, 1u);
  adapter.deallocate(address, 64);

  const ResourceHandle other = host_memory();
  for (std::size_t most = 0; most < 2; ++most) {
    const HeapExhausted exhausted(most);
    EXPECT_THROW(PmrAdapter{other}, OutOfMemory);
  }
  EXPECT_EQ(other.use_count(), 1);
  PmrAdapter again(other);
}

TEST(PmrAdapter, FreesWithoutTakingMemory) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  const ResourceHandle resource = host_memory();
  PmrAdapter adapter(resource);
  std::vector<void*> addresses(1000);
  for (void*& address : addresses) address = adapter.allocate(64);
  {
    const HeapExhausted exhausted;
    for (void* address : addresses) adapter.deallocate(address, 64);
  }
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
  EXPECT_EQ(resource->failed_frees(), 0u);
}

TEST(PmrAdapter, CountsMistakenFreesAndChangesNothing) {
  const ResourceHandle resource = host_memory();
  PmrAdapter adapter(resource);
  void* const address = adapter.allocate(64);
  int foreign = 0;
  adapter.deallocate(&foreign, sizeof foreign);
  adapter.deallocate(address, 63);
  EXPECT_EQ(adapter.mistaken_frees(), 2u);
  EXPECT_EQ(resource->statistics().live_blocks, 1u);
  adapter.deallocate(address, 64);
  adapter.deallocate(address, 64);
  EXPECT_EQ(adapter.mistaken_frees(), 3u);
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
  EXPECT_EQ(resource->failed_frees(), 0u);
}

TEST(PmrAdapter, LeavesAFreeThatFailedToTheResource) {
  const auto fault = std::make_shared<FaultResource>(
      host_memory(), std::vector<FaultRule>{{.for_frees = true, .nth = 1}});
  PmrAdapter adapter(fault);
  adapter.deallocate(adapter.allocate(64), 64);
  EXPECT_EQ(fault->failed_frees(), 1u);
  EXPECT_EQ(fault->statistics().live_bytes, 64u);
  EXPECT_EQ(fault->retry_failed_frees(), 1u);
  EXPECT_EQ(fault->statistics().live_bytes, 0u);
}

TEST(PmrAdapter, ServesManyThreads) {
  const ResourceHandle resource = host_memory();
  std::mutex mutex;
  std::vector<std::pair<void*, std::size_t>> handed;  // guarded by mutex; freed by whoever comes
  std::uint64_t mistakes = 0;
  {
    PmrAdapter adapters[] = {PmrAdapter(resource), PmrAdapter(resource)};
    std::vector<test::Thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::pmr::memory_resource& memory = adapters[t % 2];
        for (std::size_t i = 0; i < 2000; ++i) {
          const std::size_t bytes = 1 + (i * 37 + t) % 2000;
          std::pair<void*, std::size_t> mine(memory.allocate(bytes), bytes);
          {
            const std::lock_guard lock(mutex);
            handed.push_back(mine);
            if (handed.size() < 8) continue;
            std::swap(handed.front(), handed.back());
            mine = handed.back();
            handed.pop_back();
          }
          memory.deallocate(mine.first, mine.second);
        }
        EXPECT_EQ(use_containers(&memory), used_size);
      });
    }
    for (test::Thread& thread : threads) thread.join();
    for (const auto& [address, bytes] : handed) adapters[0].deallocate(address, bytes);
    mistakes = adapters[0].mistaken_frees();
  }
  EXPECT_EQ(mistakes, 0u);
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
}

// --- PmrUpstream

class PmrUpstreamTest : public testing::Test {
 protected:
  ~PmrUpstreamTest() override {
    EXPECT_EQ(heap.live_blocks(), 0u);
    EXPECT_EQ(heap.mistakes, 0);
    EXPECT_EQ(heap.meetings, 0);
  }

  HeapResource heap;
  Device device = open_device("host");
  PmrUpstream resource{device, &heap};
};

TEST_F(PmrUpstreamTest, TakesEachBlockFromItsUpstream) {
  EXPECT_STREQ(resource.name(), "pmr");
  EXPECT_EQ(resource.upstream(), &heap);
  EXPECT_TRUE(resource.traits().is_host_accessible);
  EXPECT_FALSE(resource.traits().is_stream_ordered);
  const Block plain = resource.allocate({.bytes = 100});
  const Block aligned = resource.allocate({.bytes = 100, .alignment = 4096});
  EXPECT_TRUE(is_aligned(plain.address, device.info().alignment));
  EXPECT_TRUE(is_aligned(aligned.address, 4096));
  EXPECT_EQ(heap.live_blocks(), 2u);
  EXPECT_TRUE(resource.try_deallocate(plain, {}));
  EXPECT_TRUE(resource.try_deallocate(aligned, {}));
  EXPECT_EQ(resource.good_size({.bytes = 100}), 100u);
}

TEST_F(PmrUpstreamTest, RefusesADoubleFree) {
  const Block block = resource.allocate({.bytes = 100});
  EXPECT_TRUE(resource.try_deallocate(block, {}));
  const Result<void> twice = resource.try_deallocate(block, {});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.failure().code(), ErrorCode::use_after_free);
}

TEST_F(PmrUpstreamTest, RefusesWithWhatTheUpstreamThrows) {
  const auto refusal = [&](std::function<void()> thrower) {
    heap.in_allocate = std::move(thrower);
    const CallSite here = CallSite::here();
    const Result<Block> block = resource.try_allocate({.bytes = 2048, .site = here});
    heap.in_allocate = {};
    EXPECT_FALSE(block);
    EXPECT_EQ(block.failure().site().line, here.line);
    return block.failure();
  };
  EXPECT_EQ(refusal([] { throw std::bad_alloc(); }).text(),
            "a std::pmr::memory_resource could not allocate 2.0 KiB. Free host memory, or raise "
            "its limit.");
  EXPECT_EQ(refusal([] { throw std::bad_alloc(); }).code(), ErrorCode::out_of_memory);
  const Failure known = refusal([] { throw std::runtime_error("the sky fell"); });
  EXPECT_EQ(known.code(), ErrorCode::driver);
  EXPECT_EQ(known.text(),
            "a std::pmr::memory_resource threw on a request for 2.0 KiB: the sky fell.");
  EXPECT_EQ(refusal([] { throw 42; }).code(), ErrorCode::driver);
  EXPECT_EQ(refusal([] { raise(Failure(ErrorCode::out_of_budget)); }).code(),
            ErrorCode::out_of_budget);
  EXPECT_EQ(resource.statistics().refusals, 5u);
  PmrUpstream nothing(device, std::pmr::null_memory_resource());
  EXPECT_EQ(nothing.try_allocate({.bytes = 1}).failure().code(), ErrorCode::out_of_memory);
}

TEST_F(PmrUpstreamTest, KeepsNothingToUseAgain) {
  const Result<Block> refused = resource.try_allocate({.bytes = 64, .only_recycled = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

TEST_F(PmrUpstreamTest, NeedsTheHostAndAnUpstream) {
  EXPECT_THROW(PmrUpstream(device, nullptr), InvalidArgument);
  EXPECT_THROW(PmrUpstream(Device(), &heap), InvalidArgument);
  EXPECT_THROW(PmrUpstream(sim::open({}), &heap), Unsupported);
}

TEST_F(PmrUpstreamTest, FreesWhenTheStreamHasPassed) {
  const test::FakeDevice fake;
  const Stream stream(fake.device);
  PmrUpstream ordered(fake.device, &heap);
  const Block block = ordered.allocate({.bytes = 64, .stream = stream});
  test::Gate gate;
  gate.hold(stream);
  std::atomic<bool> has_passed = false;
  stream.call([](void* passed) { static_cast<std::atomic<bool>*>(passed)->store(true); },
              &has_passed);
  // The wait begins with a record, and only then may the stream go on.
  fake.ledger->run_after(test::Call::record, [&] { gate.open(); });
  bool had_passed = false;
  heap.in_deallocate = [&] { had_passed = has_passed; };
  EXPECT_TRUE(ordered.try_deallocate(block, stream));
  EXPECT_TRUE(had_passed);
}

TEST_F(PmrUpstreamTest, LetsOneThreadAtATimeIn) {
  // Others get the chance to come in meanwhile.
  heap.in_allocate = heap.in_deallocate = [] { std::this_thread::yield(); };
  std::vector<test::Thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) resource.deallocate(resource.allocate({.bytes = 64}), {});
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(resource.failed_frees(), 0u);
}

TEST_F(PmrUpstreamTest, StandsBelowContainersToo) {
  const auto fault = std::make_shared<FaultResource>(std::make_shared<PmrUpstream>(device, &heap));
  PmrAdapter inner(fault);
  PmrAdapter outer(std::make_shared<PmrUpstream>(device, &inner));
  EXPECT_EQ(use_containers(&outer), used_size);
  fault->fail_next();
  try {
    static_cast<void>(outer.allocate(64));
    ADD_FAILURE() << "nothing was refused";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.failure().number("rule"), 0u) << error.text();
  }
}

}  // namespace
}  // namespace tern
