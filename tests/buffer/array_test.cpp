#include "tern/buffer/array.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// Something of 12 bytes that cannot be made from nothing and has no dtype.
struct Particle {
  Particle() = delete;
  Particle(float a, float b, float c) : x(a), y(b), z(c) {}
  float x, y, z;
};
static_assert(sizeof(Particle) == 12);

template <class T>
void expect_refused(const Result<T>& result, ErrorCode code) {
  ASSERT_FALSE(result) << "should be refused with " << name(code);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
}

class ArrayTest : public testing::Test {
 protected:
  Statistics now() const { return pool->statistics(); }

  Device device = sim::open({.policy = sim::Policy::lazy});
  ResourceHandle pool = std::make_shared<PoolResource>(device);
  Stream stream{device};
};

TEST_F(ArrayTest, AllocatesAtCreationWithoutFilling) {
  const auto array = Array<float>::uninitialized(pool, 100, {.stream = stream, .tag = "x"});
  EXPECT_EQ(array.size(), 100u);
  EXPECT_EQ(array.size_bytes(), 400u);
  EXPECT_FALSE(array.empty());
  EXPECT_NE(array.address(), 0u);
  EXPECT_TRUE(array.storage()->is_allocated());
  EXPECT_EQ(now().requests, 1u);
  EXPECT_EQ(sim::calls(device, "fill"), 0u);
  EXPECT_EQ(array.storage()->tag(), Tag("x"));
}

TEST_F(ArrayTest, AcceptsTypesWithoutDefaultConstructor) {
  const std::vector<Particle> before = {{1, 2, 3}, {4, 5, 6}};
  auto array = Array<Particle>::from(device, before, {.resource = pool});
  std::vector<Particle> after(2, Particle(0, 0, 0));
  array.copy_to(after);
  EXPECT_EQ(after[1].z, 6);
  EXPECT_EQ(array.buffer().dtype(), DType::byte);
}

TEST_F(ArrayTest, ZerosAreZero) {
  EXPECT_EQ(Array<int>::zeros(device, 3).to_vector(), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(Array<int>::zeros(device, 3, {.stream = stream}).to_vector(),
            (std::vector<int>{0, 0, 0}));
}

TEST_F(ArrayTest, OfBooleansIsReadAsAVector) {
  const bool values[] = {true, false, true};
  EXPECT_EQ(Array<bool>::from(device, std::span<const bool>(values)).to_vector(),
            (std::vector<bool>{true, false, true}));
}

TEST_F(ArrayTest, FillsEveryElementAndNoOther) {
  const Stream other(device);
  auto array = Array<Particle>::uninitialized(pool, 5);
  array.fill({1, 2, 3}, stream);
  auto middle = array.slice(1, 3);
  middle.fill({4, 5, 6}, other);
  EXPECT_EQ(sim::calls(device, "wait"), 1u) << "behind the first";
  std::vector<Particle> after(5, Particle(0, 0, 0));
  array.copy_to(after);
  EXPECT_EQ(after[0].z, 3);
  EXPECT_EQ(after[1].x, 4);
  EXPECT_EQ(after[3].z, 6);
  EXPECT_EQ(after[4].x, 1);
  const Device host = open_device("host");
  const Stream elsewhere(host);
  expect_refused(array.try_fill({0, 0, 0}, elsewhere), ErrorCode::device_mismatch);
  EXPECT_TRUE(Array<int>().try_fill(1, stream)) << "no elements";
}

TEST_F(ArrayTest, NoElementsReachNoDriver) {
  auto none = Array<float>::from(device, {}, {.resource = pool, .stream = stream});
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.to_vector().empty());
  EXPECT_TRUE(none.kernel_view(stream, Access::read_write).empty());
  EXPECT_TRUE(none.slice(0, 0).empty());
  EXPECT_EQ(now().requests, 0u);
  EXPECT_EQ(sim::calls(device, "copy"), 0u);
  EXPECT_TRUE(Array<float>().to_vector().empty());
}

TEST_F(ArrayTest, WhatIsMovedFromHasNoElements) {
  Array<float> array = Array<float>::zeros(device, 4);
  const StorageId id = array.id();
  Array<float> taken = std::move(array);
  EXPECT_TRUE(array.empty());
  EXPECT_EQ(array.address(), 0u);
  EXPECT_TRUE(array.to_vector().empty());
  array = std::move(taken);
  EXPECT_TRUE(taken.empty());
  EXPECT_EQ(array.id(), id);
  EXPECT_EQ(array.to_vector(), std::vector<float>(4, 0.0f));
}

TEST_F(ArrayTest, RejectsImpossibleSizes) {
  expect_refused(Array<double>::try_uninitialized(pool, SIZE_MAX / 4), ErrorCode::size_overflow);
  expect_refused(Array<double>::try_uninitialized(ResourceHandle(), 1),
                 ErrorCode::invalid_argument);
  EXPECT_EQ(now().requests, 0u);
}

TEST_F(ArrayTest, CopiesToTheHostAndBack) {
  std::vector<int> elements(1000);
  std::iota(elements.begin(), elements.end(), 0);
  auto array = Array<int>::from(device, elements, {.resource = pool});
  EXPECT_EQ(array.to_vector(), elements);
  EXPECT_EQ(array.slice(10, 3).to_vector(), (std::vector<int>{10, 11, 12}));
  std::vector<int> part(3);
  const Mark mark = array.slice(20, 3).copy_to(part, stream);
  Device::wait(mark);
  EXPECT_EQ(part[2], 22);
  const std::vector<int> more = {7, 8};
  auto slice = array.slice(0, 2);
  Device::wait(slice.copy_from(more, stream));
  EXPECT_EQ(array.slice(0, 3).to_vector(), (std::vector<int>{7, 8, 2}));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(ArrayTest, CopiesMustMatchItsSize) {
  auto array = Array<int>::zeros(device, 10, {.resource = pool});
  std::vector<int> nine(9), eleven(11);
  const auto refused = array.try_copy_to(nine);
  expect_refused(refused, ErrorCode::size_mismatch);
  EXPECT_EQ(refused.failure().number("expected"), 40u);
  EXPECT_EQ(refused.failure().number("actual"), 36u);
  expect_refused(array.try_copy_from(eleven), ErrorCode::size_mismatch);
  expect_refused(array.try_copy_from(eleven, stream), ErrorCode::size_mismatch);
}

TEST_F(ArrayTest, AStreamOfAnotherDeviceIsRefusedByBothNames) {
  const std::vector<Device> peers = sim::open_peers({}, 2);
  const auto array = Array<int>::zeros(peers[0], 4);
  const Stream foreign(peers[1]);
  std::vector<int> out(4);
  const auto refused = array.try_copy_to(out, foreign);
  expect_refused(refused, ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), peers[0].spec());
  EXPECT_EQ(refused.failure().string("b"), peers[1].spec());
  expect_refused(array.try_kernel_view(foreign), ErrorCode::device_mismatch);
}

TEST_F(ArrayTest, RejectsReadsOfUnwrittenBytes) {
  const auto array = Array<int>::uninitialized(pool, 4);
  std::vector<int> out(4);
  expect_refused(array.try_copy_to(out), ErrorCode::never_written);
  expect_refused(array.try_kernel_view(stream), ErrorCode::never_written);
}

TEST_F(ArrayTest, AViewIsForWorkOnItsStream) {
  auto array = Array<int>::uninitialized(pool, 8);
  const View<int> view = array.kernel_view(stream, Access::discard);
  stream.fill(view.data(), view.size(), 3);
  EXPECT_EQ(view.size(), 8u);
  const Stream other(device);
  const std::uint64_t before = sim::calls(device, "wait");
  const View<const int> read = std::as_const(array).kernel_view(other);
  EXPECT_EQ(sim::calls(device, "wait"), before + 1);
  EXPECT_EQ(read.data(), view.data());
  EXPECT_EQ(array.to_vector(), std::vector<int>(8, 3));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(ArrayTest, AViewCoversItsKernelThoughTheStreamIsMarkedBefore) {
  auto array = Array<int>::zeros(device, 8, {.resource = pool});
  const auto next = Array<int>::zeros(device, 8, {.resource = pool, .stream = stream});
  const View<int> view = array.kernel_view(stream, Access::discard);
  const Stream other(device), third(device);
  static_cast<void>(next.kernel_view(other));  // which waits for the stream
  stream.fill(view.data(), view.size(), 3);
  const View<const int> read = std::as_const(array).kernel_view(third);
  std::vector<int> out(8);
  third.copy(out.data(), read.data(), array.size_bytes());
  third.synchronize();
  EXPECT_EQ(out, std::vector<int>(8, 3));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(ArrayTest, GrowsInPlaceWhereItsBlockAllows) {
  auto array = Array<int>::zeros(device, 10, {.resource = pool});
  const std::uintptr_t address = array.address();
  const std::size_t capacity = array.capacity();
  ASSERT_GT(capacity, 10u);
  array.resize(capacity, stream);
  EXPECT_EQ(array.address(), address);
  EXPECT_EQ(array.size(), capacity);
  EXPECT_EQ(now().requests, 1u);
  EXPECT_EQ(array.slice(0, 10).to_vector(), std::vector<int>(10, 0));
  array.resize(5, stream);
  EXPECT_EQ(array.size(), 5u);
}

TEST_F(ArrayTest, DoesNotGrowInPlaceIfTheStorageIsShared) {
  const std::vector<int> in = {1, 2, 3, 4};
  auto whole = Array<int>::from(device, in, {.resource = pool});
  auto slice = whole.slice(0, 2), copy = whole;
  EXPECT_EQ(slice.capacity(), 2u);
  slice.resize(4, stream);
  slice.slice(2, 2).copy_from(std::vector<int>{7, 7});
  EXPECT_EQ(whole.to_vector(), in);
  const std::uintptr_t address = whole.address();
  whole.resize(6, stream);
  EXPECT_EQ(whole.address(), address) << "nobody has what lies behind all of them";
  whole.slice(4, 2).copy_from(std::vector<int>{5, 6});
  copy.resize(6, stream);
  copy.slice(4, 2).copy_from(std::vector<int>{8, 8});
  EXPECT_EQ(whole.to_vector(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(copy.to_vector(), (std::vector<int>{1, 2, 3, 4, 8, 8}));
}

TEST_F(ArrayTest, OneOfSeveralConcurrentGrowthsStaysInPlace) {
  auto first = Array<int>::from(device, std::vector<int>{1, 2}, {.resource = pool});
  ASSERT_GE(first.capacity(), 8u);
  constexpr std::size_t threads = 8;
  std::vector<Array<int>> arrays(threads, first);
  const std::uintptr_t address = first.address();
  std::vector<test::Thread> running;
  for (Array<int>& array : arrays) running.emplace_back([&] { array.resize(8, stream); });
  for (test::Thread& thread : running) thread.join();
  EXPECT_EQ(std::ranges::count(arrays, address, &Array<int>::address), 1);
}

TEST_F(ArrayTest, AnEmptySliceHasItsAddress) {
  auto whole = Array<int>::zeros(device, 6, {.resource = pool});
  auto end = whole.slice(6, 0);
  expect_refused(end.try_resize(6, stream), ErrorCode::invalid_argument);
  EXPECT_EQ(end.buffer().offset_bytes(), 24u);
  EXPECT_TRUE(end.to_vector().empty());
}

TEST_F(ArrayTest, NewElementsAreUnwritten) {
  for (const std::size_t size : {std::size_t{11}, std::size_t{100'000}}) {
    auto array = Array<int>::zeros(device, 10, {.resource = pool});
    array.resize(size, stream);
    std::vector<int> out(1);
    EXPECT_TRUE(array.slice(9, 1).try_copy_to(out));
    expect_refused(array.slice(10, 1).try_copy_to(out), ErrorCode::never_written);
  }
}

TEST_F(ArrayTest, MovesInStreamOrderIfItCannotGrowInPlace) {
  auto array = Array<int>::uninitialized(pool, 64, {.stream = stream});
  const View<int> view = array.kernel_view(stream, Access::discard);
  stream.fill(view.data(), view.size(), 3);
  const Array<int> old = array;
  array.resize(100'000, stream);
  EXPECT_EQ(array.size(), 100'000u);
  EXPECT_NE(array.id(), old.id());
  EXPECT_EQ(array.slice(0, 64).to_vector(), std::vector<int>(64, 3));
  EXPECT_EQ(old.to_vector(), std::vector<int>(64, 3)) << "others keep what they have";
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(ArrayTest, MovesOnlyWrittenBytes) {
  auto array = Array<int>::uninitialized(pool, 64, {.stream = stream});
  const std::vector<int> two = {1, 2};
  auto slice = array.slice(8, 2);
  slice.copy_from(two, stream);
  array.resize(100'000, stream);
  EXPECT_EQ(array.slice(8, 2).to_vector(), two);
  std::vector<int> out(1);
  expect_refused(array.slice(0, 1).try_copy_to(out), ErrorCode::never_written);
}

TEST_F(ArrayTest, AFailedGrowthChangesNothing) {
  const auto budget = Budget::make("small", BudgetLimit::bytes(4096));
  const auto small = std::make_shared<BudgetResource>(pool, budget);
  auto array = Array<int>::zeros(device, 64, {.resource = small, .stream = stream});
  const std::uintptr_t address = array.address();
  expect_refused(array.try_resize(100'000, stream), ErrorCode::out_of_budget);
  EXPECT_EQ(array.size(), 64u);
  EXPECT_EQ(array.address(), address);
  expect_refused(array.try_resize(SIZE_MAX, stream), ErrorCode::size_overflow);
  auto slice = array.slice(1, 1);
  expect_refused(slice.try_resize(2, stream), ErrorCode::invalid_argument);
  Array<int> none;
  expect_refused(none.try_resize(1, stream), ErrorCode::not_allocated);
}

TEST_F(ArrayTest, RetypingKeepsBlockAndIdentity) {
  {
    const auto array = Array<float>::uninitialized(pool, 6);
    const Array<std::uint32_t> words = array.as<std::uint32_t>();
    EXPECT_EQ(words.size(), 6u);
    EXPECT_EQ(words.address(), array.address());
    EXPECT_EQ(words.id(), array.id());
    EXPECT_EQ(array.as<std::byte>().size(), 24u);
    EXPECT_EQ(array.as<Particle>().size(), 2u);
    expect_refused(array.slice(0, 5).try_as<double>(), ErrorCode::size_mismatch);
    expect_refused(array.slice(1, 4).try_as<double>(), ErrorCode::misaligned);
  }
  EXPECT_EQ(now().requests, 1u);
  EXPECT_EQ(now().frees, 1u);
}

TEST_F(ArrayTest, MillionsOfHandlesMakeNoEventsAndNoAllocations) {
  const auto array = Array<float>::uninitialized(pool, 64, {.stream = stream});
  const std::uint64_t events = sim::calls(device, "record");
  for (int i = 0; i < 1'000'000; ++i) {
    const Array<std::byte> bytes = array.as<std::byte>();
    if (bytes.size() != 256) FAIL();
  }
  EXPECT_EQ(sim::calls(device, "record"), events);
  EXPECT_EQ(now().requests, 1u);
  EXPECT_EQ(array.storage()->shares(), 1u);
}

TEST_F(ArrayTest, IsABufferAndBack) {
  const auto array = Array<float>::zeros(device, 6, {.resource = pool});
  const Buffer buffer = array.buffer();
  EXPECT_EQ(buffer.dtype(), DType::f32);
  EXPECT_EQ(buffer.shape(), Shape{6});
  EXPECT_EQ(Array<float>::try_over(buffer)->address(), array.address());
  EXPECT_EQ(Array<float>::try_over(buffer.byte_view(4, 8))->size(), 2u) << "bytes may be anything";
  expect_refused(Array<int>::try_over(buffer), ErrorCode::type_mismatch);
  expect_refused(Array<float>::try_over(buffer.byte_view(1, 4)), ErrorCode::misaligned);
  expect_refused(Array<float>::try_over(Buffer()), ErrorCode::not_allocated);
}

TEST_F(ArrayTest, IsFreedAfterItsWork) {
  const std::uint64_t hold = sim::hold(stream);
  {
    auto array = Array<int>::uninitialized(pool, 1024, {.stream = stream});
    const View<int> view = array.kernel_view(stream, Access::discard);
    stream.fill(view.data(), view.size(), 3);
  }
  const Stream other(device);
  auto next = Array<int>::uninitialized(pool, 1024, {.stream = other});
  const View<int> view = next.kernel_view(other, Access::discard);
  other.fill(view.data(), view.size(), 4);
  sim::resume(device, hold);
  device.synchronize();
  EXPECT_EQ(next.to_vector(), std::vector<int>(1024, 4));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(ArrayReservation, PaysForAnArrayAndIsRefundedOnFailure) {
  const Device device = sim::open({});
  const BudgetHandle budget = Budget::make("job", BudgetLimit::bytes(4096));
  const auto resource =
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device), budget);
  Reservation reservation = budget->reserve(4096);
  // Without the reservation there is nothing left.
  EXPECT_FALSE(Array<int>::try_uninitialized(resource, 256));
  {
    const auto plain = Array<int>::uninitialized(resource, 256, {.reservation = &reservation});
    EXPECT_EQ(reservation.bytes(), 3072u);
    const auto zeros = Array<int>::zeros(
        device, 256,
        {.resource = resource, .stream = device.default_stream(), .reservation = &reservation});
    EXPECT_EQ(reservation.bytes(), 2048u);
    EXPECT_EQ(budget->used_bytes(), 2048u);
    EXPECT_EQ(zeros.to_vector(), std::vector<int>(256, 0));
    const Result<Array<int>> large =
        Array<int>::try_uninitialized(resource, 1024, {.reservation = &reservation});
    ASSERT_FALSE(large);
    EXPECT_EQ(large.failure().code(), ErrorCode::out_of_budget);
    EXPECT_EQ(reservation.bytes(), 2048u);
  }
  device.synchronize();
  budget->drain();
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(budget->reserved_bytes(), 2048u);
  reservation = {};
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST(ArrayReservation, IsRejectedForALazyBuffer) {
  const Device device = sim::open({});
  const BudgetHandle budget = Budget::make("job", BudgetLimit::bytes(4096));
  Reservation reservation = budget->reserve(4096);
  const Result<StorageHandle> storage =
      Storage::try_make(device, 1024, {.reservation = &reservation});
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.failure().code(), ErrorCode::invalid_argument);
}

TEST(ArrayGrowth, ManySmallStepsMoveEachElementAFewTimes) {
  const Device device = sim::open({});
  const Stream stream(device);
  Array<int> array = Array<int>::from(device, std::vector<int>{1});
  std::uintptr_t address = array.address();
  int moves = 0;
  for (std::size_t size = 2; size <= 20'000; ++size) {
    array.resize(size, stream);
    moves += array.address() != address ? 1 : 0;
    address = array.address();
    EXPECT_EQ(array.size(), size);
  }
  EXPECT_LE(moves, 30);
  EXPECT_EQ(array.slice(0, 1).to_vector(), std::vector<int>{1});
  std::vector<int> all(20'000);
  EXPECT_FALSE(array.try_copy_to(all));  // nobody wrote the new ones
}

TEST(ArrayGrowth, TakesTheExactSizeIfMemoryIsShort) {
  const Device device = sim::open({});
  const Stream stream(device);
  const auto budget = Budget::make("small", BudgetLimit::bytes(17 * 1024));
  const ResourceHandle small =
      std::make_shared<BudgetResource>(std::make_shared<DirectResource>(device), budget);
  Array<std::byte> array = Array<std::byte>::uninitialized(small, 8 * 1024, {.stream = stream});
  array.resize(9 * 1024 - 512, stream);  // 12 KiB more are not there
  EXPECT_EQ(array.size(), 9u * 1024 - 512);
  stream.synchronize();
}

}  // namespace
}  // namespace tern
