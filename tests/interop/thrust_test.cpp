// ThrustAllocator, ThrustScratch and with_cub_storage(), with stand-ins for Thrust and CUB.

#include "tern/interop/thrust.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/budgets.hpp"
#include "support/cuda_libraries.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

constexpr float keys[1000] = {};

using Floats = ThrustAllocator<::thrust::device_ptr<float>>;

static_assert(std::is_same_v<Floats::value_type, float>);
static_assert(std::is_same_v<Floats::const_pointer, ::thrust::device_ptr<const float>>);
static_assert(std::is_same_v<std::allocator_traits<Floats>::rebind_alloc<int>,
                             ThrustAllocator<::thrust::device_ptr<int>>>);
static_assert(std::is_same_v<ThrustAllocator<float*>::rebind<int>::other, ThrustAllocator<int*>>);
static_assert(std::is_nothrow_copy_constructible_v<Floats>);

class ThrustTest : public testing::Test {
 protected:
  [[nodiscard]] std::size_t live_blocks() const { return pool->statistics().live_blocks; }
  [[nodiscard]] cudaStream_t handle_of(StreamRef of) const {
    return reinterpret_cast<cudaStream_t>(of.try_native().value().value);
  }

  Device device = open_device("cuda:0?driver=sim");
  Stream stream{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
};

TEST_F(ThrustTest, ContainersAllocateFromTheResource) {
  {
    const ::thrust::device_vector<float, Floats> x(1000, Floats(pool));
    EXPECT_EQ(pool->statistics().live_bytes, pool->good_size({.bytes = 4000}));
    EXPECT_NE(x.begin().get(), nullptr);
  }
  EXPECT_EQ(live_blocks(), 0u);
}

TEST_F(ThrustTest, AllocatorsUseTheDefaultStreamUnlessTheyNameOne) {
  EXPECT_EQ(Floats(pool).stream(), device.default_stream());
  EXPECT_EQ(Floats(pool, stream).stream(), stream);
  Floats on_stream(pool, stream);
  const auto first = on_stream.allocate(256);
  on_stream.deallocate(first, 256);
  EXPECT_EQ(Floats(pool, stream).allocate(256).get(), first.get()) << "reuse on the same stream";
  on_stream.deallocate(first, 256);
}

TEST_F(ThrustTest, AllocatorsOfOneResourceAndStreamAreEqual) {
  const Floats one(pool, stream), two(pool, stream), other(std::make_shared<PoolResource>(device));
  EXPECT_TRUE(one == two);
  EXPECT_FALSE(one == Floats(pool));
  EXPECT_FALSE(one == other);
  const ThrustAllocator<::thrust::device_ptr<int>> rebound(one);
  EXPECT_EQ(rebound.resource(), pool);
  EXPECT_TRUE(Floats(rebound) == one);
  Floats mine(pool, stream), theirs(two);
  theirs.deallocate(mine.allocate(10), 10);
  EXPECT_EQ(live_blocks(), 0u);
}

TEST_F(ThrustTest, AllocatorsWorkInStandardContainers) {
  const auto host = std::make_shared<DirectResource>(open_device("host"));
  std::vector<int, ThrustAllocator<int*>> numbers{ThrustAllocator<int*>(host)};
  for (int i = 0; i < 1000; ++i) numbers.push_back(i);
  std::vector<int, ThrustAllocator<int*>> copy = numbers;
  EXPECT_EQ(copy.back(), 999);
  copy = std::move(numbers);
  copy = std::vector<int, ThrustAllocator<int*>>(ThrustAllocator<int*>(host));
  EXPECT_EQ(host->statistics().live_bytes, 0u);
}

TEST_F(ThrustTest, AllocatorsThrowTheErrorOfTheResource) {
  EXPECT_THROW(Floats{nullptr}, InvalidArgument);
  Floats limited(std::make_shared<BudgetResource>(pool, test::limited(1024)));
  EXPECT_THROW(static_cast<void>(limited.allocate(1000)), OutOfBudget);
  EXPECT_THROW(static_cast<void>(limited.allocate(SIZE_MAX / 2)), SizeOverflow);
  EXPECT_EQ(live_blocks(), 0u);
}

TEST_F(ThrustTest, KeepsItsResourceAlive) {
  auto own = std::make_shared<PoolResource>(device);
  const std::weak_ptr<Resource> watched = own;
  {
    const ::thrust::device_vector<float, Floats> x(10, Floats(std::move(own)));
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(ThrustTest, ScratchIsTheStorageOfAlgorithms) {
  const auto tracking = std::make_shared<TrackingResource>(pool);
  ThrustScratch scratch(tracking, stream, "sort");
  EXPECT_EQ(scratch.on(::thrust::cuda::par_nosync).stream, handle_of(stream));
  ::thrust::sort(scratch.on(::thrust::cuda::par_nosync), keys, keys + 1000);
  EXPECT_EQ(tracking->statistics().requests, 3u);
  EXPECT_EQ(pool->statistics().reuses, 2u) << "all storage but the first is reused";
  EXPECT_EQ(live_blocks(), 0u);
  ThrustScratch by_default(pool);
  EXPECT_EQ(by_default.stream(), device.default_stream());
  EXPECT_EQ(by_default.on(::thrust::cuda::par).stream, reinterpret_cast<cudaStream_t>(1));
}

TEST_F(ThrustTest, ScratchOfZeroBytesIsNotNull) {
  ThrustScratch scratch(pool, stream);
  char* const nothing = scratch.allocate(0);
  EXPECT_NE(nothing, nullptr);
  scratch.deallocate(nothing, 0);
  EXPECT_EQ(live_blocks(), 0u);
}

TEST_F(ThrustTest, ScratchSurvivesAFaultAtEveryRequest) {
  const auto fault = std::make_shared<FaultResource>(pool);
  ThrustScratch scratch(fault, stream);
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    fault->set_rules({{.nth = nth}});
    EXPECT_THROW(::thrust::sort(scratch.on(::thrust::cuda::par), keys, keys + 1000), OutOfMemory);
    EXPECT_EQ(live_blocks(), 0u);
  }
}

TEST_F(ThrustTest, CubRunsWithStorageOfTheSizeItAsksFor) {
  const auto tracking = std::make_shared<TrackingResource>(pool);
  std::size_t held = 0;
  auto& calls = ::cub::DeviceScan::calls();
  const auto scan = [&](std::size_t count) {
    calls.clear();
    return with_cub_storage(tracking, stream, [&](void* storage, std::size_t& bytes, auto on) {
      held = live_blocks();
      return ::cub::DeviceScan::ExclusiveSum(storage, bytes, nullptr, nullptr, count, on);
    });
  };
  EXPECT_EQ(scan(1000), cudaSuccess);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].storage, nullptr);
  EXPECT_NE(calls[1].storage, nullptr);
  EXPECT_EQ(calls[1].bytes, 500u);
  EXPECT_EQ(calls[1].stream, handle_of(stream));
  EXPECT_EQ(held, 1u);
  EXPECT_EQ(live_blocks(), 0u);

  EXPECT_EQ(scan(0), cudaSuccess);
  ASSERT_EQ(calls.size(), 2u) << "an algorithm without storage also runs";
  EXPECT_EQ(calls[1].bytes, 0u);
  EXPECT_NE(calls[1].storage, nullptr);

  EXPECT_EQ(scan(13), cudaErrorInvalidValue);
  EXPECT_EQ(calls.size(), 1u) << "the first call failed";
  EXPECT_EQ(tracking->statistics().requests, 2u);
}

TEST_F(ThrustTest, CubFreesItsStorageIfTheAlgorithmThrows) {
  EXPECT_THROW(with_cub_storage(pool, {},
                                [&](void* storage, std::size_t& bytes, auto) {
                                  bytes = 100;
                                  if (storage != nullptr) throw 42;
                                  return cudaSuccess;
                                }),
               int);
  EXPECT_EQ(live_blocks(), 0u);
  EXPECT_EQ(pool->statistics().frees, 1u);
}

}  // namespace
}  // namespace tern
