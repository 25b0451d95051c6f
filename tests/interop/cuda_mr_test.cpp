// CudaMrAdapter and CudaMrUpstream, on a CUDA device with a fake driver.

#include "tern/interop/cuda_mr.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/cuda_bench.hpp"
#include "support/cuda_libraries.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

namespace mr = ::cuda::mr;
using cuda::CudaBench;
using test::HeapExhausted;

using DeviceMemory = CudaMrAdapter<mr::device_accessible>;
using BothMemory = CudaMrAdapter<mr::device_accessible, mr::host_accessible>;

// --- The concepts, of both generations

static_assert(mr::async_resource<DeviceMemory>);
static_assert(mr::resource<DeviceMemory>);
static_assert(mr::resource_with<DeviceMemory, mr::device_accessible>);
static_assert(!::cuda::has_property<DeviceMemory, mr::host_accessible>);
static_assert(mr::resource_with<BothMemory, mr::device_accessible, mr::host_accessible>);
static_assert(mr::resource<CudaMrAdapter<>>);
static_assert(std::is_nothrow_copy_constructible_v<DeviceMemory>);
static_assert(std::is_nothrow_move_constructible_v<DeviceMemory>);
static_assert(std::copyable<DeviceMemory>);

struct almost_device_accessible {};
static_assert(detail::is_property<mr::device_accessible>("device_accessible"));
static_assert(!detail::is_property<almost_device_accessible>("device_accessible"));
static_assert(!detail::is_property<mr::host_accessible>("device_accessible"));

static_assert(detail::CudaStream<cudaStream_t> && detail::CudaStream<::cuda::stream_ref> &&
              detail::CudaStream<::rmm::cuda_stream_view>);
static_assert(!detail::CudaStream<std::nullptr_t> && !detail::CudaStream<int> &&
              !detail::CudaStream<void*>);

/// Records what the failure callback is called with.
class Heard {
 public:
  Heard()
      : old_(
            set_failure_callback([this](const Failure& failure) { failures.push_back(failure); })) {
  }
  ~Heard() { set_failure_callback(std::move(old_)); }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;

  std::vector<Failure> failures;

 private:
  FailureCallback old_;
};

class CudaMrTest : public testing::Test {
 protected:
  /// The stream of another library. The type of the driver's handle is a type of tests here.
  [[nodiscard]] static cudaStream_t handle_of(cuda::CUstream stream) {
    return reinterpret_cast<cudaStream_t>(stream);
  }
  static cudaStream_t handle_of(std::uintptr_t value) {
    return reinterpret_cast<cudaStream_t>(value);
  }
  cudaStream_t foreign_stream(int ordinal = 0) {
    return handle_of(bench.foreign_stream(cuda::CU_STREAM_NON_BLOCKING, ordinal));
  }
  /// A stream that was borrowed so often that the device keeps it between loans.
  cudaStream_t kept_stream() {
    const cudaStream_t stream = foreign_stream();
    for (int i = 0; i < 16; ++i) memory.deallocate(stream, memory.allocate(stream, 64), 64);
    return stream;
  }
  /// The owner of the stream uses the memory.
  void use(cudaStream_t stream, void* address, std::size_t bytes) {
    bench.fill(address, bytes, 7, {reinterpret_cast<std::uintptr_t>(stream)});
  }

  CudaBench bench;
  const CudaBench::Elsewhere elsewhere{bench};  // this thread has a context, as in other libraries
  Device device{bench.open(0).value()};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  DeviceMemory memory{pool};
};

using CudaMrAdapterTest = CudaMrTest;

TEST_F(CudaMrAdapterTest, AllocatesAndFreesWithEveryGenerationOfTheConcepts) {
  const ::cuda::stream_ref stream(foreign_stream());
  const auto is_live = [&](void* address, std::size_t bytes) {
    EXPECT_NE(address, nullptr);
    return pool->statistics().live_bytes == pool->good_size({.bytes = bytes}) &&
           reinterpret_cast<std::uintptr_t>(address) % 256 == 0;
  };
  void* address = memory.allocate(stream, 1000, 256);
  EXPECT_TRUE(is_live(address, 1000));
  memory.deallocate(stream, address, 1000, 256);
  address = memory.allocate_async(1000, 256, stream);
  EXPECT_TRUE(is_live(address, 1000));
  memory.deallocate_async(address, 1000, 256, stream);
  address = memory.allocate_async(1000, ::rmm::cuda_stream_view(stream.get()));
  EXPECT_TRUE(is_live(address, 1000));
  memory.deallocate_async(address, 1000, stream);
  address = memory.allocate_sync(1000, 256);
  EXPECT_TRUE(is_live(address, 1000));
  memory.deallocate_sync(address, 1000, 256);
  address = memory.allocate(1000, 256);
  EXPECT_TRUE(is_live(address, 1000));
  memory.deallocate(address, 1000, 256);
  EXPECT_EQ(pool->statistics().live_bytes, 0u);
  EXPECT_EQ(memory.mistaken_frees(), 0u);
}

TEST_F(CudaMrAdapterTest, ReusesMemoryInTheOrderOfTheStream) {
  const cudaStream_t stream = kept_stream();
  void* const first = memory.allocate(stream, 4096);
  const std::uint64_t hold = bench.fake.hold(reinterpret_cast<cuda::CUstream>(stream));
  use(stream, first, 4096);
  memory.deallocate(stream, first, 4096);
  void* const second = memory.allocate(stream, 4096);
  EXPECT_EQ(second, first) << "a free of this stream needs no wait";
  use(stream, second, 4096);
  void* const other = memory.allocate(foreign_stream(), 4096);
  EXPECT_NE(other, first);
  memory.deallocate(stream, second, 4096);
  bench.fake.resume(hold);
}

TEST_F(CudaMrAdapterTest, AnotherStreamWaitsBeforeItReusesMemory) {
  const cudaStream_t one = foreign_stream(), two = foreign_stream();
  PoolResource small(device, {.limit_bytes = 2 * mib});
  DeviceMemory limited{std::shared_ptr<Resource>(std::shared_ptr<void>(), &small)};
  void* const first = limited.allocate(one, 2 * mib);
  use(one, first, 2 * mib);
  limited.deallocate(one, first, 2 * mib);
  void* const second = limited.allocate(two, 2 * mib);
  EXPECT_EQ(second, first);
  use(two, second, 2 * mib);  // the bench reports it if nothing orders it behind the first use
  limited.deallocate(two, second, 2 * mib);
}

TEST_F(CudaMrAdapterTest, KnowsTheHandlesOfTheDefaultStreams) {
  for (const std::uintptr_t value : {0u, 1u, 2u}) {
    const ::cuda::stream_ref stream(handle_of(value));
    void* const address = memory.allocate(stream, 512);
    use(stream.get(), address, 512);
    memory.deallocate(stream, address, 512);
    EXPECT_EQ(pool->statistics().live_blocks, 0u) << value;
  }
  const std::uint64_t calls = bench.fake.total_calls();
  void* const address = memory.allocate(handle_of(std::uintptr_t{0}), 512);
  memory.deallocate(handle_of(std::uintptr_t{0}), address, 512);
  EXPECT_EQ(memory.allocate(handle_of(std::uintptr_t{1}), 512), address) << "it is one stream";
  memory.deallocate(handle_of(std::uintptr_t{1}), address, 512);
  EXPECT_EQ(bench.fake.total_calls(), calls);
}

TEST_F(CudaMrAdapterTest, RejectsStreamsOfAnotherDevice) {
  const cudaStream_t here = foreign_stream(), there = foreign_stream(1);
  EXPECT_THROW(static_cast<void>(memory.allocate(there, 512)), DeviceMismatch);
  void* const address = memory.allocate(here, 512);
  const Heard heard;
  memory.deallocate(there, address, 512);
  ASSERT_EQ(heard.failures.size(), 1u);
  EXPECT_EQ(heard.failures[0].code(), ErrorCode::device_mismatch);
  EXPECT_EQ(memory.mistaken_frees(), 1u);
  EXPECT_EQ(pool->statistics().live_blocks, 1u) << "the block can still be freed";
  memory.deallocate(here, address, 512);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  EXPECT_EQ(heard.failures.size(), 1u);
}

TEST_F(CudaMrAdapterTest, RejectsAStreamThatIsBeingCapturedAndIsNotBorrowed) {
  const cuda::CUstream stream = bench.foreign_stream();
  bench.capture(stream, cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_THROW(static_cast<void>(memory.allocate(handle_of(stream), 512)), StreamMisuse);
  EXPECT_TRUE(bench.is_capturing(stream));
  bench.fake.end_capture(stream);
}

TEST_F(CudaMrAdapterTest, CountsMistakenFreesAndChangesNothing) {
  const cudaStream_t stream = foreign_stream();
  const Heard heard;
  const CallSite line = CallSite::here();
  const DeviceMemory named(pool, "theirs");
  void* const address = named.allocate(stream, 512);
  int unknown = 0;
  named.deallocate(stream, &unknown, sizeof unknown);
  named.deallocate(stream, address, 511);
  named.deallocate(stream, static_cast<std::byte*>(address) + 256, 256);
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  named.deallocate(stream, address, 512);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  named.deallocate(stream, address, 512);
  named.deallocate_sync(address, 512);
  EXPECT_EQ(named.mistaken_frees(), 5u);
  EXPECT_EQ(memory.mistaken_frees(), 5u) << "adapters of a resource share the count";
  ASSERT_EQ(heard.failures.size(), 5u);
  for (const Failure& failure : heard.failures) {
    EXPECT_EQ(failure.code(), ErrorCode::use_after_free);
    EXPECT_EQ(failure.site().line, line.line + 1);
  }
  const std::string text = heard.failures[0].text();
  EXPECT_NE(text.find("freed 4 B at 0x"), std::string::npos) << text;
  EXPECT_NE(text.find("'cuda:0?driver=sim' (pool)"), std::string::npos) << text;
  EXPECT_EQ(pool->failed_frees(), 0u);
}

TEST_F(CudaMrAdapterTest, ReturnsNullForZeroBytes) {
  const cudaStream_t stream = foreign_stream();
  const std::uint64_t calls = bench.fake.total_calls();
  EXPECT_EQ(memory.allocate(stream, 0), nullptr);
  EXPECT_EQ(memory.allocate_sync(0), nullptr);
  memory.deallocate(stream, nullptr, 0);
  memory.deallocate_sync(nullptr, 0);
  EXPECT_EQ(memory.mistaken_frees(), 0u);
  EXPECT_EQ(bench.fake.total_calls(), calls);
}

TEST_F(CudaMrAdapterTest, IsEqualToOthersOfItsResource) {
  const cudaStream_t stream = foreign_stream();
  DeviceMemory again(pool), copy = memory, other(std::make_shared<PoolResource>(device));
  EXPECT_TRUE(memory == again);
  EXPECT_TRUE(memory == copy);
  EXPECT_TRUE(memory != other);
  void* const address = memory.allocate(stream, 512);
  other.deallocate(stream, address, 512);
  EXPECT_EQ(other.mistaken_frees(), 1u);
  again.deallocate(stream, address, 512);
  EXPECT_EQ(memory.mistaken_frees(), 0u);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  other = memory;
  EXPECT_EQ(other.resource(), pool);
}

TEST_F(CudaMrAdapterTest, KeepsItsResourceAliveAndNoLonger) {
  const cudaStream_t stream = foreign_stream();
  auto own = std::make_shared<PoolResource>(device);
  const std::weak_ptr<Resource> watched = own;
  {
    mr::any_resource<mr::device_accessible> any{DeviceMemory(std::move(own))};
    const mr::any_resource<mr::device_accessible> copy = any;
    void* const address = any.allocate(stream, 512, 256);
    any.deallocate(stream, address, 512, 256);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(CudaMrAdapterTest, RequestsCarryATagAndALine) {
  const auto tracking = std::make_shared<TrackingResource>(pool);
  const DeviceMemory tagged(tracking, "rmm");
  const std::uint32_t line = CallSite::here().line - 1;
  const cudaStream_t stream = foreign_stream();
  void* const address = tagged.allocate(stream, 512);
  const std::vector<Holder> holders = tracking->top_holders(2);
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].tag, Tag("rmm"));
  EXPECT_EQ(holders[0].site.line, line);
  tagged.deallocate(stream, address, 512);
}

TEST_F(CudaMrAdapterTest, ChecksThatTheMemoryHasTheProperties) {
  EXPECT_THROW(DeviceMemory{nullptr}, InvalidArgument);
  try {
    const BothMemory both(pool);
    ADD_FAILURE() << "the host cannot access this memory";
  } catch (const Unsupported& error) {
    EXPECT_EQ(error.failure().string("what"), "host_accessible");
    EXPECT_EQ(
        std::string(error.text()),
        "memory of 'cuda:0?driver=sim' (pool) does not have the property host_accessible. Use "
        "another kind of memory, or leave the property out.");
  }
  const BothMemory pinned(std::make_shared<DirectResource>(device, MemoryKind::pinned));
  pinned.deallocate_sync(pinned.allocate_sync(64), 64);
  EXPECT_EQ(pinned.resource()->statistics().live_blocks, 0u);
}

TEST(CudaMrAdapter, WorksInTheOrderOfTheHostOnDevicesWithoutForeignStreams) {
  const auto pool = std::make_shared<PoolResource>(sim::open({}));
  const DeviceMemory memory(pool);
  void* const address = memory.allocate_sync(512, 256);
  EXPECT_THROW(static_cast<void>(memory.allocate(cudaStream_t{}, 512)), Unsupported);
  memory.deallocate_sync(address, 512, 256);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

TEST_F(CudaMrAdapterTest, ThrowsTheErrorOfTheResource) {
  const cudaStream_t stream = foreign_stream();
  const DeviceMemory limited(std::make_shared<BudgetResource>(pool, test::limited(1024)));
  void* const address = limited.allocate(stream, 1024);
  EXPECT_THROW(static_cast<void>(limited.allocate(stream, 256)), OutOfBudget);
  EXPECT_THROW(static_cast<void>(limited.allocate(stream, 256)), std::bad_alloc);
  limited.deallocate(stream, address, 1024);
  EXPECT_THROW(static_cast<void>(memory.allocate(stream, 1 * gib)), OutOfMemory);
  EXPECT_THROW(static_cast<void>(memory.allocate(stream, SIZE_MAX)), SizeOverflow);
  EXPECT_THROW(static_cast<void>(memory.allocate(stream, 64, 3)), Misaligned);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

TEST_F(CudaMrAdapterTest, SurvivesAFaultAtEveryRequest) {
  const cudaStream_t stream = foreign_stream();
  for (const bool after_upstream : {false, true}) {
    bool is_done = false;
    for (std::uint64_t nth = 1; !is_done; ++nth) {
      ASSERT_LT(nth, 10u);
      const auto fault = std::make_shared<FaultResource>(
          pool, std::vector<FaultRule>{{.after_upstream = after_upstream, .nth = nth}});
      const DeviceMemory faulty(fault);
      void* blocks[3] = {};
      try {
        for (void*& block : blocks) block = faulty.allocate(stream, 512);
        is_done = true;
      } catch (const OutOfMemory&) {
        EXPECT_EQ(fault->failed_requests(), 1u);
      }
      for (void* block : blocks) faulty.deallocate(stream, block, 512);
      EXPECT_EQ(fault->statistics().live_bytes, 0u) << nth;
      EXPECT_EQ(faulty.mistaken_frees(), 0u);
    }
  }
  EXPECT_EQ(pool->statistics().live_bytes, 0u);
}

TEST_F(CudaMrAdapterTest, SurvivesAFaultOfTheDriverAtEveryLoan) {
  const cudaStream_t stream = foreign_stream();
  const Heard heard;
  for (const char* const call : {"cuStreamGetCtx", "cuStreamIsCapturing", "cuStreamGetId"}) {
    bench.fake.fail_calls_from(call, 1, cuda::CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(static_cast<void>(memory.allocate(stream, 512)), DriverError) << call;
    bench.fake.clear_failures();
    void* const address = memory.allocate(stream, 512);
    bench.fake.fail_calls_from(call, 1, cuda::CUDA_ERROR_UNKNOWN);
    memory.deallocate(stream, address, 512);
    bench.fake.clear_failures();
    EXPECT_EQ(pool->statistics().live_blocks, 1u) << call;
    memory.deallocate(stream, address, 512);
    EXPECT_EQ(pool->statistics().live_blocks, 0u) << call;
  }
  EXPECT_EQ(heard.failures.size(), 3u);
}

TEST_F(CudaMrAdapterTest, FreesABlockThatItCannotRecord) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  memory.deallocate_sync(memory.allocate_sync(64), 64);  // the pool has what it needs itself
  std::optional<Failure> failure;
  void* address = nullptr;
  for (std::size_t left = 0; address == nullptr && left < 100; ++left) {
    const HeapExhausted exhausted(left);
    try {
      address = memory.allocate_sync(64);
    } catch (const OutOfMemory& error) {
      failure = error.failure();
    }
  }
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->string("what"), "the record of a block");
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  memory.deallocate_sync(address, 64);

  const auto other = std::make_shared<PoolResource>(device);
  for (std::size_t left = 0; left < 2; ++left) {
    const HeapExhausted exhausted(left);
    EXPECT_THROW(DeviceMemory{other}, OutOfMemory);
  }
  EXPECT_EQ(other.use_count(), 1);
}

TEST_F(CudaMrAdapterTest, ServesManyThreads) {
  const std::array<cudaStream_t, 2> streams = {foreign_stream(), foreign_stream()};
  std::mutex mutex;
  std::vector<void*> shared;  // guarded by mutex; freed by any thread
  std::vector<test::Thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const CudaBench::Elsewhere current{bench};
      const DeviceMemory own = memory;
      for (std::size_t i = 0; i < 200; ++i) {
        void* mine = own.allocate(streams[t % 2], 512);
        {
          const std::lock_guard lock(mutex);
          shared.push_back(mine);
          if (shared.size() < 8) continue;
          mine = shared[i % shared.size()];
          std::erase(shared, mine);
        }
        own.deallocate(streams[(t + 1) % 2], mine, 512);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  for (void* address : shared) memory.deallocate(streams[0], address, 512);
  EXPECT_EQ(memory.mistaken_frees(), 0u);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

TEST_F(CudaMrAdapterTest, IsAcceptedAsTheResourceOfALibrary) {
  const cudaStream_t stream = foreign_stream();
  ::rmm::mr::set_current_device_resource(memory);
  void* const address = ::rmm::mr::current()->allocate(stream, 512, 256);
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  ::rmm::mr::current()->deallocate(stream, address, 512, 256);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  ::rmm::mr::current().reset();
}

// --- CudaMrUpstream

/// What the memory resources below share with their test.
struct Heap {
  struct Call {
    cudaStream_t stream = nullptr;
    std::size_t bytes = 0, alignment = 0;
    bool operator==(const Call&) const = default;
  };

  void* allocate(const Call& call) {
    if (in_call) in_call();
    if (returns_null) return nullptr;
    const std::size_t alignment = ignores_alignment ? 256 : call.alignment;
    auto* const address = static_cast<std::byte*>(
        std::aligned_alloc(4096, checked_round_up(call.bytes + alignment, 4096).value()));
    void* const given = ignores_alignment ? address + 256 : address;
    live[given] = {address, call};
    last = call;
    return given;
  }
  void deallocate(void* address, const Call& call) {
    if (in_call) in_call();
    const auto found = live.find(address);
    ASSERT_NE(found, live.end());
    EXPECT_EQ(found->second.second.bytes, call.bytes);
    EXPECT_EQ(found->second.second.alignment, call.alignment);
    last = call;
    std::free(found->second.first);
    live.erase(found);
  }
  ~Heap() { EXPECT_TRUE(live.empty()); }

  std::function<void()> in_call = {};
  bool returns_null = false;
  bool ignores_alignment = false;
  std::map<void*, std::pair<void*, Call>> live;
  Call last;
};

/// Memory resources of each generation, and without streams.
struct NewerMemory {
  Heap* heap;
  void* allocate(::cuda::stream_ref on, std::size_t bytes, std::size_t alignment) {
    return heap->allocate({on.get(), bytes, alignment});
  }
  void deallocate(::cuda::stream_ref on, void* at, std::size_t bytes, std::size_t alignment) {
    heap->deallocate(at, {on.get(), bytes, alignment});
  }
};
struct OlderMemory {
  Heap* heap;
  void* allocate(std::size_t, std::size_t) { throw std::logic_error("not this one"); }
  void deallocate(void*, std::size_t, std::size_t) { throw std::logic_error("not this one"); }
  void* allocate_async(std::size_t bytes, std::size_t alignment, ::rmm::cuda_stream_view on) {
    return heap->allocate({on, bytes, alignment});
  }
  void deallocate_async(void* at, std::size_t bytes, std::size_t alignment,
                        ::rmm::cuda_stream_view on) {
    heap->deallocate(at, {on, bytes, alignment});
  }
};
struct NewerHostMemory {
  Heap* heap;
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return heap->allocate({nullptr, bytes, alignment});
  }
  void deallocate_sync(void* at, std::size_t bytes, std::size_t alignment) {
    heap->deallocate(at, {nullptr, bytes, alignment});
  }
};
struct OlderHostMemory {
  Heap* heap;
  void* allocate(std::size_t bytes, std::size_t alignment) {
    return heap->allocate({nullptr, bytes, alignment});
  }
  void deallocate(void* at, std::size_t bytes, std::size_t alignment) {
    heap->deallocate(at, {nullptr, bytes, alignment});
  }
};

template <class R>
class CudaMrUpstreamOf : public CudaMrTest {
 protected:
  Heap heap;
  const Stream stream{device};
  const cudaStream_t handle = handle_of(stream.try_native().value().value);
  CudaMrUpstream<R> resource{device, R{&heap}};
};
using AllMemory = testing::Types<NewerMemory, OlderMemory, NewerHostMemory, OlderHostMemory>;
class MemoryNames {
 public:
  template <class R>
  static std::string GetName(int i) {
    return std::array{"Newer", "Older", "NewerHost", "OlderHost"}[static_cast<std::size_t>(i)];
  }
};
TYPED_TEST_SUITE(CudaMrUpstreamOf, AllMemory, MemoryNames);

TYPED_TEST(CudaMrUpstreamOf, TakesEachBlockFromItsUpstream) {
  constexpr bool has_streams =
      std::is_same_v<TypeParam, NewerMemory> || std::is_same_v<TypeParam, OlderMemory>;
  const cudaStream_t expected = has_streams ? this->handle : nullptr;
  CudaMrUpstream<TypeParam>& tested = this->resource;
  EXPECT_STREQ(tested.name(), "cuda_mr");
  EXPECT_EQ(tested.upstream().heap, &this->heap);
  EXPECT_EQ(tested.traits().is_stream_ordered, has_streams);
  EXPECT_TRUE(tested.traits().is_device_accessible);
  EXPECT_FALSE(tested.traits().is_host_accessible);
  const Block plain = tested.allocate({.bytes = 1000, .stream = this->stream});
  EXPECT_EQ(this->heap.last, (Heap::Call{expected, 1000, 256}));
  EXPECT_EQ(plain.bytes, 1000u);
  const Block aligned = tested.allocate({.bytes = 1000, .alignment = 4096, .stream = this->stream});
  EXPECT_EQ(this->heap.last, (Heap::Call{expected, 1000, 4096}));
  EXPECT_TRUE(tested.try_deallocate(plain, this->stream));
  EXPECT_EQ(this->heap.last, (Heap::Call{expected, 1000, 256}));
  EXPECT_TRUE(tested.try_deallocate(aligned, this->stream));
  EXPECT_EQ(tested.try_deallocate(aligned, this->stream).failure().code(),
            ErrorCode::use_after_free);
  EXPECT_EQ(this->heap.live.size(), 0u);
}

TYPED_TEST(CudaMrUpstreamOf, AllocatesForTheHostOnTheDefaultStream) {
  constexpr bool has_streams =
      std::is_same_v<TypeParam, NewerMemory> || std::is_same_v<TypeParam, OlderMemory>;
  const std::uint64_t waits = this->bench.fake.calls("cuStreamSynchronize");
  const Block block = this->resource.allocate({.bytes = 64});
  EXPECT_EQ(this->bench.fake.calls("cuStreamSynchronize"), waits + (has_streams ? 1 : 0))
      << "the block is ready when the call returns";
  EXPECT_EQ(this->heap.last.stream,
            has_streams ? CudaMrTest::handle_of(std::uintptr_t{1}) : nullptr);
  EXPECT_TRUE(this->resource.try_deallocate(block, {}));
}

TYPED_TEST(CudaMrUpstreamOf, FreesOnAStreamThatHasEnded) {
  Stream ending(this->device);
  const Block block = this->resource.allocate({.bytes = 64, .stream = ending});
  const StreamRef ended = ending;
  ending = Stream();
  EXPECT_TRUE(this->resource.try_deallocate(block, ended));
}

TYPED_TEST(CudaMrUpstreamOf, CallsTheUpstreamWithItsDeviceCurrent) {
  cuda::CUcontext expected = nullptr;
  EXPECT_EQ(this->bench.cu.cuCtxGetCurrent(&expected), cuda::CUDA_SUCCESS);
  int calls = 0;
  this->heap.in_call = [&] {
    cuda::CUcontext current = nullptr;
    EXPECT_EQ(this->bench.cu.cuCtxGetCurrent(&current), cuda::CUDA_SUCCESS);
    EXPECT_EQ(current, expected);
    ++calls;
  };
  test::Thread([&] {  // a thread without a current context
    this->resource.deallocate(this->resource.allocate({.bytes = 64, .stream = this->stream}),
                              this->stream);
    cuda::CUcontext current = expected;
    EXPECT_EQ(this->bench.cu.cuCtxGetCurrent(&current), cuda::CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr) << "the thread's own context is back";
  })
      .join();
  EXPECT_EQ(calls, 2);
}

TYPED_TEST(CudaMrUpstreamOf, FailsWithWhatTheUpstreamThrows) {
  const auto refusal = [&](std::function<void()> thrower) {
    this->heap.in_call = std::move(thrower);
    const CallSite here = CallSite::here();
    const Result<Block> block =
        this->resource.try_allocate({.bytes = 2048, .stream = this->stream, .site = here});
    this->heap.in_call = {};
    EXPECT_FALSE(block);
    EXPECT_EQ(block.failure().site().line, here.line);
    return block.failure();
  };
  const Failure full = refusal([] { throw std::bad_alloc(); });
  EXPECT_EQ(full.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(full.text(),
            "a memory resource of a CUDA library could not allocate 2.0 KiB (std::bad_alloc). Free "
            "memory, or raise its limit.");
  const Failure known = refusal([] { throw std::runtime_error("the pool is closed"); });
  EXPECT_EQ(known.code(), ErrorCode::driver);
  EXPECT_EQ(known.text(),
            "a memory resource of a CUDA library threw on a block of 2.0 KiB: the pool is closed.");
  EXPECT_EQ(refusal([] { throw 42; }).code(), ErrorCode::driver);
  EXPECT_EQ(refusal([] { raise(Failure(ErrorCode::out_of_budget)); }).code(),
            ErrorCode::out_of_budget);
  this->heap.returns_null = true;
  EXPECT_EQ(refusal({}).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(this->resource.statistics().refusals, 5u);
  EXPECT_EQ(this->resource.statistics().live_bytes, 0u);
}

TYPED_TEST(CudaMrUpstreamOf, KeepsABlockWhoseFreeThrows) {
  const Block block = this->resource.allocate({.bytes = 64, .stream = this->stream});
  this->heap.in_call = [] { throw std::runtime_error("not now"); };
  this->resource.deallocate(block, this->stream);
  EXPECT_EQ(this->resource.failed_frees(), 1u);
  EXPECT_EQ(this->resource.statistics().live_blocks, 1u);
  this->heap.in_call = {};
  EXPECT_EQ(this->resource.retry_failed_frees(), 1u);
  EXPECT_EQ(this->resource.statistics().live_blocks, 0u);
}

TYPED_TEST(CudaMrUpstreamOf, FailsIfTheUpstreamIgnoresTheAlignment) {
  this->heap.ignores_alignment = true;
  const Result<Block> refused =
      this->resource.try_allocate({.bytes = 64, .alignment = 512, .stream = this->stream});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::misaligned);
  EXPECT_EQ(this->heap.live.size(), 0u);
  this->resource.deallocate(this->resource.allocate({.bytes = 64, .stream = this->stream}),
                            this->stream);
}

using CudaMrUpstreamTest = CudaMrTest;

TEST_F(CudaMrUpstreamTest, WithoutStreamsFreesWhenTheStreamHasPassed) {
  Heap heap;
  CudaMrUpstream<OlderHostMemory> resource(device, {&heap});
  const cuda::CUstream theirs = bench.foreign_stream();
  const Stream stream = Stream::borrow(device, {reinterpret_cast<std::uintptr_t>(theirs)});
  const Block block = resource.allocate({.bytes = 64, .stream = stream});
  std::atomic<bool> has_passed = false;
  const std::uint64_t hold = bench.fake.hold(theirs);
  stream.call([](void* passed) { static_cast<std::atomic<bool>*>(passed)->store(true); },
              &has_passed);
  bool had_passed = false;
  heap.in_call = [&] { had_passed = has_passed; };
  test::Thread other([&] { bench.fake.resume(hold); });
  resource.deallocate(block, stream);
  other.join();
  EXPECT_TRUE(had_passed);
}

TEST_F(CudaMrUpstreamTest, NeedsADeviceAndAKindOfMemory) {
  Heap heap;
  EXPECT_THROW((CudaMrUpstream<NewerMemory>(Device(), {&heap})), InvalidArgument);
  EXPECT_THROW((CudaMrUpstream<NewerMemory>(device, {&heap}, MemoryKind::host)), InvalidArgument);
  const CudaMrUpstream<NewerMemory> pinned(device, {&heap}, MemoryKind::pinned);
  EXPECT_EQ(pinned.kind(), MemoryKind::pinned);
  EXPECT_EQ(pinned.traits().kind, MemoryKind::pinned);
  EXPECT_TRUE(pinned.traits().is_host_accessible);
}

TEST_F(CudaMrUpstreamTest, StandsBelowBudgetsAndTracking) {
  Heap heap;
  const Stream stream(device);
  const auto upstream = std::make_shared<CudaMrUpstream<NewerMemory>>(device, NewerMemory{&heap});
  const auto budget = std::make_shared<BudgetResource>(upstream, test::limited(4096));
  const auto tracking = std::make_shared<TrackingResource>(budget);
  const OwnedBlock block(tracking, {.bytes = 4096, .stream = stream, .tag = "x"});
  EXPECT_EQ(tracking->try_allocate({.bytes = 1, .stream = stream}).failure().code(),
            ErrorCode::out_of_budget);
  EXPECT_EQ(tracking->top_holders(1).at(0).bytes, 4096u);
  EXPECT_EQ(heap.live.size(), 1u);
}

TEST_F(CudaMrUpstreamTest, FreesWithoutItsUpstreamAfterTheDeviceIsLost) {
  Heap newer, older;
  CudaMrUpstream<NewerMemory> ordered(device, {&newer});
  CudaMrUpstream<OlderHostMemory> waiting(device, {&older});
  const Stream stream(device);
  const Block one = ordered.allocate({.bytes = 64, .stream = stream});
  const Block two = waiting.allocate({.bytes = 64, .stream = stream});
  bench.fake.fail_call("cuMemGetInfo", 1, cuda::CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuda::code(device.try_memory()), "device_lost");
  EXPECT_EQ(cuda::code(ordered.try_allocate({.bytes = 64, .stream = stream})), "device_lost");
  EXPECT_EQ(cuda::code(waiting.try_allocate({.bytes = 64, .stream = stream})), "device_lost");
  EXPECT_EQ(cuda::code(ordered.try_deallocate(one, stream)), "success");
  EXPECT_EQ(cuda::code(waiting.try_deallocate(two, stream)), "success");
  for (Heap* const heap : {&newer, &older}) {
    ASSERT_EQ(heap->live.size(), 1u) << "a call of a lost device has no effect";
    std::free(heap->live.begin()->second.first);
    heap->live.clear();
  }
}

TEST_F(CudaMrUpstreamTest, HasNoFreedMemoryOfAStream) {
  Heap heap;
  CudaMrUpstream<NewerMemory> resource(device, {&heap});
  const Result<Block> refused = resource.try_allocate({.bytes = 64, .only_recycled = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

TEST_F(CudaMrUpstreamTest, TakesBlocksThroughAnAdapterOfAnotherResource) {
  const auto upstream = std::make_shared<CudaMrUpstream<DeviceMemory>>(device, memory);
  {
    const Stream stream(device);
    const OwnedBlock block(upstream, {.bytes = 4096, .stream = stream});
    EXPECT_EQ(pool->statistics().live_blocks, 1u);
    use(handle_of(stream.try_native().value().value), block.address(), 4096);
    const OwnedBlock for_host(upstream, {.bytes = 4096});
    EXPECT_EQ(pool->statistics().live_blocks, 2u);
  }
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  EXPECT_EQ(memory.mistaken_frees(), 0u);
}

}  // namespace
}  // namespace tern
