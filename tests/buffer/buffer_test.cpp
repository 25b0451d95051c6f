#include "tern/buffer/buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/ladder.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class BufferTest : public testing::Test {
 protected:
  Buffer make(Shape shape, DType dtype = DType::f32, StorageOptions options = {}) {
    if (!options.resource) options.resource = pool;
    return Buffer(device, std::move(shape), dtype, options);
  }
  Statistics now() const { return pool->statistics(); }

  Device device = sim::open({.policy = sim::Policy::lazy});
  ResourceHandle pool = std::make_shared<PoolResource>(device);
  ResourceHandle pinned =
      std::make_shared<PoolResource>(device, PoolOptions{.kind = MemoryKind::pinned});
  Stream stream{device};
};

template <class T>
void expect_refused(const Result<T>& result, ErrorCode code) {
  ASSERT_FALSE(result) << "should be refused with " << name(code);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
}

TEST_F(BufferTest, CreationAllocatesNothing) {
  const Buffer buffer = make({10});
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.size_bytes(), 40u);
  EXPECT_EQ(buffer.wasted_bytes(), 0u);
  expect_refused(buffer.try_address(), ErrorCode::not_allocated);
  EXPECT_EQ(now().requests, 0u);
  buffer.ensure_allocated();
  buffer.ensure_allocated();
  EXPECT_TRUE(buffer.is_allocated());
  EXPECT_NE(buffer.address(), 0u);
  EXPECT_EQ(now().requests, 1u);
}

TEST_F(BufferTest, AllocateIsMakeAndEnsure) {
  const Buffer buffer = Buffer::allocate(device, {10}, DType::f32, {.resource = pool});
  EXPECT_TRUE(buffer.is_allocated());
  EXPECT_GT(buffer.wasted_bytes(), 0u);
  EXPECT_EQ(buffer.wasted_bytes(), now().live_bytes - 40);
}

TEST_F(BufferTest, ReportsSizesForEveryShape) {
  EXPECT_EQ(make({}).size_bytes(), 4u);
  EXPECT_EQ(make({}).size(), 1u);
  EXPECT_EQ(make({0}).size_bytes(), 0u);
  EXPECT_EQ(make({3, 0, 2}).size_bytes(), 0u);
  EXPECT_EQ(make({2, 3}, DType::complex128).size_bytes(), 96u);
  EXPECT_EQ(make({7}, DType::void_).size_bytes(), 0u);
  EXPECT_EQ(make({7}, DType::void_).size(), 0u);
}

TEST_F(BufferTest, RefusesShapesThatNoMemoryHolds) {
  const auto refused =
      Buffer::try_make(device, Shape{std::size_t{1} << 62, 8}, DType::f32, {.resource = pool});
  expect_refused(refused, ErrorCode::size_overflow);
  EXPECT_EQ(now().requests, 0u);
  expect_refused(Buffer::try_make(Device(), {1}, DType::f32), ErrorCode::invalid_device);
}

TEST_F(BufferTest, ZeroElementsReachNoDriver) {
  Buffer empty = make({3, 0});
  empty.ensure_allocated(stream);
  EXPECT_EQ(empty.address(), 0u);
  EXPECT_EQ(empty.byte_view(0, 0).size_bytes(), 0u);
  EXPECT_EQ(empty.device_ptr(stream, Access::read_write), nullptr);
  EXPECT_EQ(now().requests, 0u);
  Buffer on_host = make({0}, DType::f32, {.resource = pinned});
  EXPECT_TRUE(on_host.rw_host<float>().empty());
}

TEST_F(BufferTest, AnEmptyViewAllocatesNothing) {
  Buffer buffer = make({100});
  Buffer nothing = buffer.byte_view(400, 0);
  EXPECT_EQ(nothing.device_ptr(stream, Access::read), nullptr);
  StorageUse use = nothing.try_use(stream, Access::discard).value();
  EXPECT_EQ(use.address(), nullptr);
  use.end();
  EXPECT_FALSE(buffer.is_allocated());
  const Device other = sim::open({});
  const Stream elsewhere(other);
  EXPECT_EQ(nothing.try_device_ptr(elsewhere, Access::read).failure().code(),
            ErrorCode::device_mismatch);
}

TEST_F(BufferTest, CopiesOfTheHandleAreTheSameBytes) {
  const Buffer one = make({10});
  const Buffer two = one;
  EXPECT_EQ(one, two);
  EXPECT_EQ(one.id(), two.id());
  EXPECT_NE(make({10}).id(), one.id());
  EXPECT_FALSE(make({10}) == one);
}

TEST_F(BufferTest, MemoryIsFreedOnceInAnyOrderOfHandlesAndViews) {
  std::array<int, 4> order = {0, 1, 2, 3};
  int rounds = 0;
  do {
    const Statistics before = now();
    std::vector<Buffer> all = {make({10})};
    for (std::size_t i = 1; i < 4; ++i) all.push_back(all[0].byte_view(i, 4));
    all[0].ensure_allocated();
    for (const int next : order) {
      EXPECT_EQ(now().frees, before.frees);
      all[static_cast<std::size_t>(next)] = {};
    }
    EXPECT_EQ(now().frees, before.frees + 1);
    ++rounds;
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(rounds, 24);
  EXPECT_EQ(now().live_bytes, 0u);
}

TEST_F(BufferTest, AViewKeepsTheBytesOfItsParent) {
  Buffer view;
  {
    Buffer parent = make({4}, DType::i32, {.resource = pinned});
    {
      const HostView<int> elements = parent.discard_host<int>();
      std::iota(elements.begin(), elements.end(), 10);
    }
    view = parent.slice(2, 2);
  }
  EXPECT_EQ(view.read_host<int>()[1], 13);
}

TEST_F(BufferTest, ByteViewsStayInsideTheirParent) {
  const Buffer buffer = make({10});
  EXPECT_EQ(buffer.byte_view(4, 16).size_bytes(), 16u);
  EXPECT_EQ(buffer.byte_view(4, 16).dtype(), DType::byte);
  EXPECT_EQ(buffer.byte_view(40, 0).size_bytes(), 0u);
  const auto refused = buffer.try_byte_view(36, 16);
  expect_refused(refused, ErrorCode::invalid_view);
  EXPECT_EQ(refused.failure().number("offset"), 36u);
  EXPECT_EQ(refused.failure().number("size"), 16u);
  EXPECT_EQ(refused.failure().number("extent"), 40u);
  expect_refused(buffer.try_byte_view(SIZE_MAX - 3, 8), ErrorCode::invalid_view);
  expect_refused(buffer.try_byte_view(8, SIZE_MAX), ErrorCode::invalid_view);
  expect_refused(buffer.try_byte_view(41, 0), ErrorCode::invalid_view);
}

TEST_F(BufferTest, OffsetsOfViewsOfViewsAddUp) {
  const Buffer buffer = make({10});
  const Buffer inner = buffer.byte_view(4, 16).byte_view(8, 4);
  EXPECT_EQ(inner.offset_bytes(), 12u);
  EXPECT_EQ(inner.id(), buffer.id());
  EXPECT_FALSE(buffer.is_allocated()) << "views allocate nothing";
  const auto refused = buffer.byte_view(4, 16).try_byte_view(0, 17);
  expect_refused(refused, ErrorCode::invalid_view);
  EXPECT_EQ(refused.failure().number("extent"), 16u) << "the view's own extent";
  inner.ensure_allocated();
  EXPECT_TRUE(buffer.is_allocated());
  EXPECT_EQ(inner.address(), buffer.address() + 12);
}

TEST_F(BufferTest, SlicesCountElements) {
  const Buffer slice = make({10}, DType::f64).slice(3, 4);
  EXPECT_EQ(slice.offset_bytes(), 24u);
  EXPECT_EQ(slice.size_bytes(), 32u);
  EXPECT_EQ(slice.dtype(), DType::f64);
  expect_refused(make({10}).try_slice(9, 2), ErrorCode::invalid_view);
  expect_refused(make({10}).try_slice(SIZE_MAX, 2), ErrorCode::invalid_view);
}

TEST_F(BufferTest, ReshapingKeepsTheNumberOfElements) {
  const Buffer buffer = make({6});
  EXPECT_EQ(buffer.reshape({2, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(buffer.reshape({2, 3}).id(), buffer.id());
  const auto refused = buffer.try_reshape({2, 4});
  expect_refused(refused, ErrorCode::shape_mismatch);
  EXPECT_EQ(refused.failure().number("expected"), 8u);
  EXPECT_EQ(refused.failure().number("actual"), 6u);
  expect_refused(buffer.try_reshape({std::size_t{1} << 62, 8}), ErrorCode::size_overflow);
  EXPECT_EQ(make({1}).reshape({}).size(), 1u);
  EXPECT_EQ(make({0}).reshape({5, 0}).size_bytes(), 0u);
}

TEST_F(BufferTest, ViewsAsATypeNeedAlignmentAndWholeElements) {
  const Buffer buffer = make({40}, DType::u8);
  EXPECT_EQ(buffer.as<float>().size(), 10u);
  EXPECT_EQ(buffer.as(DType::i8).shape(), buffer.shape());
  expect_refused(buffer.byte_view(2, 4).try_as(DType::f32), ErrorCode::misaligned);
  const auto uneven = buffer.byte_view(0, 10).try_as(DType::f32);
  expect_refused(uneven, ErrorCode::size_mismatch);
  EXPECT_EQ(uneven.failure().number("actual"), 10u);
  EXPECT_TRUE(buffer.byte_view(8, 16).try_as(DType::complex64))
      << "complex numbers align as their parts";
  expect_refused(buffer.try_as(DType::void_), ErrorCode::invalid_argument);
}

TEST_F(BufferTest, NothingCanBeAViewOfVoid) {
  const Buffer nothing = make({7}, DType::void_);
  expect_refused(nothing.try_byte_view(0, 0), ErrorCode::invalid_argument);
  expect_refused(nothing.try_slice(0, 1), ErrorCode::invalid_argument);
  expect_refused(nothing.try_as(DType::f32), ErrorCode::invalid_argument);
  EXPECT_EQ(nothing.reshape({7, 1}).size_bytes(), 0u);
  expect_refused(nothing.try_reshape({8}), ErrorCode::shape_mismatch);
}

TEST_F(BufferTest, HostAccessNeedsTheStoredType) {
  const Buffer buffer = make({4}, DType::f32, {.resource = pinned, .contents = Contents::zero});
  const auto refused = buffer.try_read_host<int>();
  expect_refused(refused, ErrorCode::type_mismatch);
  EXPECT_EQ(refused.failure().string("expected"), "i32");
  EXPECT_EQ(refused.failure().string("actual"), "f32");
  EXPECT_EQ(buffer.read_host<float>().size(), 4u);
}

TEST_F(BufferTest, ElementsAreFoundByOneIndexForEachDimension) {
  Buffer buffer = make({2, 3}, DType::i32, {.resource = pinned});
  const HostView<int> view = buffer.discard_host<int>();
  std::iota(view.begin(), view.end(), 0);
  EXPECT_EQ(view.at(1, 2), 5);
  EXPECT_THROW(static_cast<void>(view.at(1)), ShapeMismatch);
  EXPECT_THROW(static_cast<void>(view.at(2, 0)), OutOfBounds);
}

TEST_F(BufferTest, RejectsHostAccessToDeviceMemory) {
  Buffer buffer = make({4});
  expect_refused(buffer.try_rw_host<float>(), ErrorCode::not_host_accessible);
  expect_refused(buffer.try_discard_host<float>(), ErrorCode::not_host_accessible);
  EXPECT_FALSE(buffer.is_allocated());
}

TEST_F(BufferTest, RejectsReadsOfUnwrittenBytes) {
  Buffer buffer = make({4}, DType::i32, {.resource = pinned});
  expect_refused(buffer.try_read_host<int>(), ErrorCode::never_written);
  EXPECT_FALSE(buffer.is_allocated()) << "asking changed nothing";
  {
    Buffer front = buffer.slice(0, 2);
    const HostView<int> half = front.discard_host<int>();
    half[0] = half[1] = 1;
  }
  EXPECT_TRUE(buffer.slice(0, 2).try_read_host<int>());
  const auto refused = buffer.try_read_host<int>();
  expect_refused(refused, ErrorCode::never_written);
  EXPECT_EQ(refused.failure().number("begin"), 8u);
  EXPECT_EQ(refused.failure().number("end"), 16u);
  const Buffer anything(open_device("host"), {4}, DType::i32, {.contents = Contents::unspecified});
  EXPECT_TRUE(anything.try_read_host<int>()) << "the reader's affair";
}

TEST_F(BufferTest, AKernelWriteCountsAsAWrite) {
  Buffer buffer = make({4}, DType::i32, {.resource = pinned});
  Result<StorageUse> use = buffer.try_use(stream, Access::discard);
  ASSERT_TRUE(use);
  stream.fill(static_cast<int*>(use->address()), 4, 9);
  use->end();
  EXPECT_EQ(buffer.read_host<int>()[3], 9) << "the host waited for it";
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(BufferTest, PinnedIsPinnedAtAnySize) {
  for (const std::size_t count : {std::size_t{1000}, 1024 * std::size_t{1024}}) {
    const Buffer buffer = make({count}, DType::f32, {.resource = pinned});
    EXPECT_TRUE(buffer.is_pinned());
    EXPECT_EQ(buffer.kind(), MemoryKind::pinned);
    buffer.ensure_allocated();
    EXPECT_EQ(device.pointer_info(reinterpret_cast<void*>(buffer.address())).kind,
              MemoryKind::pinned);
  }
  EXPECT_FALSE(make({4}).is_pinned());
}

TEST_F(BufferTest, DefaultResourcesGiveEveryKind) {
  for (const auto& [kind, expected] : {std::pair{MemoryKind::device, MemoryKind::device},
                                       {MemoryKind::pinned, MemoryKind::pinned},
                                       {MemoryKind::managed, MemoryKind::managed}}) {
    const Buffer buffer(device, {16}, DType::u8, {.kind = kind});
    EXPECT_EQ(buffer.kind(), expected);
    buffer.ensure_allocated();
  }
  expect_refused(Buffer::try_make(device, {16}, DType::u8, {.kind = MemoryKind::registered}),
                 ErrorCode::invalid_argument);
  const Device host = open_device("host");
  EXPECT_EQ(Buffer(host, {1}, DType::u8).kind(), MemoryKind::host);
}

TEST_F(BufferTest, AManagedReadWaitsForItsOwnKernelOnly) {
  Buffer buffer(device, {4}, DType::i32, {.kind = MemoryKind::managed});
  const Stream other(device);
  sim::set_patience(device, 50);
  const std::uint64_t hold = sim::hold(other);
  Result<StorageUse> use = buffer.try_use(stream, Access::discard);
  ASSERT_TRUE(use) << use.failure().text();
  stream.fill(static_cast<int*>(use->address()), 4, 5);
  use->end();
  EXPECT_EQ(buffer.read_host<int>()[0], 5);
  EXPECT_TRUE(sim::findings(device).empty());
  sim::resume(device, hold);
}

TEST_F(BufferTest, CheckedHostAccessesThatOverlapAreRefused) {
  Buffer buffer =
      make({4}, DType::i32, {.resource = pinned, .contents = Contents::zero, .checked = true});
  const HostView<int> writer = buffer.rw_host<int>();
  const auto refused = buffer.try_rw_host<int>();
  expect_refused(refused, ErrorCode::access_conflict);
  EXPECT_EQ(*refused.failure().number("b_line"), *refused.failure().number("a_line") + 1);
  expect_refused(buffer.slice(1, 1).try_read_host<int>(), ErrorCode::access_conflict);
  expect_refused(buffer.try_use(stream, Access::read), ErrorCode::access_conflict);
  Buffer unchecked = make({4}, DType::i32, {.resource = pinned, .checked = false});
  const HostView<int> one = unchecked.discard_host<int>(), two = unchecked.discard_host<int>();
  EXPECT_EQ(one.data(), two.data()) << "contents are not locked";
}

TEST_F(BufferTest, AnAccessThatIsRefusedIsNotLeftOpen) {
  Buffer buffer = make({4}, DType::i32, {.resource = pinned, .checked = true});
  expect_refused(buffer.try_read_host<int>(), ErrorCode::never_written);
  EXPECT_TRUE(buffer.try_discard_host<int>());
}

TEST_F(BufferTest, DevicePointersComeWithWaitsAndAreOnRecord) {
  Buffer buffer = make({16}, DType::u8);
  const Stream other(device);
  auto* first = static_cast<std::byte*>(buffer.device_ptr(stream, Access::discard));
  stream.fill(first, 16, std::byte{1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first), buffer.address());
  const std::uint64_t before = sim::calls(device, "wait");
  EXPECT_EQ(buffer.byte_view(4, 4).device_ptr(other, Access::read), first + 4);
  EXPECT_EQ(sim::calls(device, "wait"), before + 1);
}

TEST_F(BufferTest, ZeroBytesAllocateNoHostMemory) {
  Buffer buffer = make({16}, DType::u8, {.resource = pinned});
  EXPECT_TRUE(buffer.slice(16, 0).read_host<std::uint8_t>().empty());
  EXPECT_TRUE(buffer.slice(3, 0).discard_host<std::uint8_t>().empty());
  EXPECT_FALSE(buffer.is_allocated());
}

TEST_F(BufferTest, RecordsAUseWhoseStreamHasEnded) {
  Buffer buffer = make({16}, DType::u8);
  auto brief = std::make_unique<Stream>(device);
  StorageUse use = buffer.try_use(*brief, Access::discard).value();
  brief->fill(static_cast<std::byte*>(use.address()), 16, std::byte{1});
  brief.reset();
  use.end();
  EXPECT_EQ(buffer.to_vector<std::uint8_t>(), std::vector<std::uint8_t>(16, 1));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(BufferWithoutHeapTest, RefusesWhatTheHostHasNoMemoryFor) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "operator new is not ours";
  const Device host = open_device("host");
  const Stream stream(host);
  const Buffer buffer(host, {1, 2, 2, 2, 2}, DType::u8, {.contents = Contents::zero});
  buffer.ensure_allocated(stream);
  const std::vector<std::function<bool()>> calls = {
      [&] { return bool(buffer.try_clone(stream)); },
      [&] { return bool(buffer.try_as(DType::i8)); },
      [&] { return bool(buffer.try_read_host<std::uint8_t>()); },
      [&] { return !Buffer().device().is_open() && !Device().info().is_host; },
  };
  for (const std::function<bool()>& call : calls) {
    bool has_failed = true, was_refused = false;
    for (std::size_t left = 0; has_failed && left < 20; ++left) {
      const test::HeapExhausted heap(left);
      was_refused = !call();
      has_failed = heap.has_failed();
    }
    EXPECT_FALSE(has_failed);
    EXPECT_FALSE(was_refused) << "with memory it works";
  }
}

TEST_F(BufferTest, AnEmptyHandleIsRefusedEverywhere) {
  Buffer none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.text(), "no buffer");
  EXPECT_FALSE(none.device().is_open());
  EXPECT_FALSE(none.id());
  expect_refused(none.try_ensure_allocated(), ErrorCode::not_allocated);
  expect_refused(none.try_address(), ErrorCode::not_allocated);
  expect_refused(none.try_byte_view(0, 0), ErrorCode::not_allocated);
  expect_refused(none.try_slice(0, 0), ErrorCode::not_allocated);
  expect_refused(none.try_reshape({}), ErrorCode::not_allocated);
  expect_refused(none.try_as(DType::f32), ErrorCode::not_allocated);
  expect_refused(none.try_read_host<int>(), ErrorCode::not_allocated);
  expect_refused(none.try_item<int>(), ErrorCode::not_allocated);
  expect_refused(none.try_use(stream, Access::read), ErrorCode::not_allocated);
  EXPECT_TRUE(none.try_synchronize());
}

TEST_F(BufferTest, DescribesItselfAsText) {
  const Buffer buffer = make({2, 3}).reshape({6}).slice(1, 2);
  EXPECT_EQ(buffer.text(), "f32 {2} at 4 of buffer " + std::to_string(buffer.id().value) + " on '" +
                               std::string(device.spec()) + "', device memory");
}

TEST_F(BufferTest, ItemReadsExactlyOneElement) {
  const Buffer one = make({1}, DType::i32, {.contents = Contents::zero});
  EXPECT_EQ(one.item<int>(), 0);
  const auto two = make({2}, DType::i32, {.contents = Contents::zero}).try_item<int>();
  expect_refused(two, ErrorCode::size_mismatch);
  EXPECT_EQ(two.failure().number("expected"), 1u);
  EXPECT_EQ(two.failure().number("actual"), 2u);
  expect_refused(make({0}, DType::i32).try_item<int>(), ErrorCode::size_mismatch);
  expect_refused(one.try_item<float>(), ErrorCode::type_mismatch);
}

/// Every device there is: one buffer, many threads that use it first.
class BufferOnEveryDevice : public testing::TestWithParam<std::string> {};

TEST_P(BufferOnEveryDevice, SixtyFourThreadsGetOneAllocation) {
  constexpr int threads = 64;
  const Device device = open_device(GetParam());
  const auto pool = std::make_shared<PoolResource>(device);
  for (int round = 0; round < 5; ++round) {
    const Buffer buffer(device, {1000}, DType::f32, {.resource = pool});
    std::atomic<int> waiting = 0;
    std::array<std::uintptr_t, threads> seen = {};
    std::vector<test::Thread> running;
    for (std::size_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        waiting.fetch_add(1);
        while (waiting.load() < threads) std::this_thread::yield();
        const Buffer mine = buffer.byte_view(0, 8);
        mine.ensure_allocated();
        seen[i] = mine.address();
      });
    }
    for (test::Thread& thread : running) thread.join();
    for (const std::uintptr_t address : seen) EXPECT_EQ(address, seen[0]);
    EXPECT_EQ(pool->statistics().live_blocks, 1u);
    EXPECT_EQ(pool->statistics().requests, static_cast<std::uint64_t>(round) + 1);
  }
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

std::vector<std::string> device_specs() {
  std::vector<std::string> specs = {"cuda?driver=sim"};
  for (const BackendListing& backend : list_backends()) {
    if (!backend.devices.empty()) specs.push_back(backend.devices[0]);
  }
  return specs;
}
INSTANTIATE_TEST_SUITE_P(EveryDevice, BufferOnEveryDevice, testing::ValuesIn(device_specs()),
                         test::spec_name);

}  // namespace
}  // namespace tern
