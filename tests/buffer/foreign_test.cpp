#include "tern/buffer/foreign.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/simulated.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

using test::Gate;
using test::HeapExhausted;

static_assert(!std::is_copy_constructible_v<Released> && !std::is_copy_assignable_v<Released>);
static_assert(std::is_nothrow_move_constructible_v<Released> &&
              std::is_nothrow_move_assignable_v<Released>);
static_assert(std::is_const_v<std::remove_reference_t<decltype(std::declval<Buffer>().storage())>>);
static_assert(!std::is_assignable_v<decltype(std::declval<Released>().address()), void*>);

constexpr std::size_t block_bytes = 4096;

/// Counts how often it is called, and may free memory then.
struct Callback {
  static void call(void* context) {
    auto* self = static_cast<Callback*>(context);
    ++self->calls;
    if (self->address != nullptr) self->device.release(self->address);
  }
  Device device = {};
  void* address = nullptr;
  int calls = 0;
};

class ForeignTest : public testing::TestWithParam<std::string> {
 protected:
  ~ForeignTest() override {
    // What one test leaves behind is not another's.
    device_.synchronize();
    EXPECT_EQ(reclaim_deferred().count, 0u);
    if (test::is_simulated(device_)) {
      sim::set_faults(device_, "");
      const std::vector<Finding> found = sim::findings(device_);
      EXPECT_EQ(found.size(), found_before_) << found.back().text();
    }
  }

  void* memory(std::size_t bytes = block_bytes) {
    return device_.allocate(MemoryKind::device, bytes);
  }
  /// Adopted, and freed by the callback.
  Buffer adopted(Callback& callback) {
    callback.device = device_;
    callback.address = memory();
    return adopt(device_, callback.address, block_bytes,
                 {.release = Callback::call, .context = &callback});
  }
  /// Work of the stream that writes all of the buffer.
  static void write(const Buffer& buffer, StreamRef stream, Access access = Access::discard) {
    StorageUse use = buffer.try_use(stream, access).value();
    stream.fill(static_cast<std::byte*>(use.address()), buffer.size_bytes(), std::byte{7});
    use.end();
  }

  const Device device_ = open_device(GetParam());
  const std::size_t found_before_ = test::is_simulated(device_) ? sim::findings(device_).size() : 0;
  const Stream stream_{device_};
  const Stream other_{device_};
};

INSTANTIATE_TEST_SUITE_P(Devices, ForeignTest, testing::Values("host", "sim", "cuda?driver=sim"),
                         test::spec_name);

// --- Adopt

TEST_P(ForeignTest, AdoptsEachKindOfMemory) {
  Callback callback;
  {
    const Buffer buffer = adopted(callback);
    EXPECT_EQ(buffer.address(), reinterpret_cast<std::uintptr_t>(callback.address));
    EXPECT_EQ(buffer.size_bytes(), block_bytes);
    EXPECT_EQ(buffer.dtype(), DType::byte);
    EXPECT_EQ(buffer.device(), device_);
    EXPECT_EQ(buffer.kind(), device_.info().is_host ? MemoryKind::host : MemoryKind::device);
    EXPECT_TRUE(buffer.is_external());
    EXPECT_TRUE(buffer.is_allocated());
    EXPECT_EQ(buffer.wasted_bytes(), 0u);
    write(buffer, stream_);
    EXPECT_EQ(callback.calls, 0);
    stream_.synchronize();
  }
  EXPECT_EQ(callback.calls, 1);
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::managed}) {
    const Result<void*> address = device_.try_allocate(kind, block_bytes);
    if (!address) continue;
    Buffer buffer = adopt(device_, *address, Shape{2, 512}, dtype_of<float>(), {});
    if (!device_.info().is_host) {
      EXPECT_EQ(name(buffer.kind()), name(kind));
    }
    buffer.discard_host<float>()[0] = 1;
    EXPECT_EQ(buffer.shape(), (Shape{2, 512}));
    buffer = {};
    device_.release(*address);
  }
}

TEST_P(ForeignTest, CallsBackAfterTheLastUseIsDone) {
  Callback callback;
  Gate gate;
  {
    const Buffer buffer = adopted(callback);
    gate.hold(stream_);
    write(buffer, stream_);
    write(buffer, other_, Access::read_write);
  }
  EXPECT_EQ(callback.calls, 0);
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_EQ(deferred_frees().bytes, block_bytes);
  EXPECT_EQ(reclaim_deferred().count, 1u);
  EXPECT_EQ(callback.calls, 0);
  gate.open();
  other_.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(callback.calls, 1);
}

TEST_P(ForeignTest, CallsBackWhenAnotherStorageIsMade) {
  Callback callback;
  Gate gate;
  gate.hold(stream_);
  write(adopted(callback), stream_);
  EXPECT_EQ(callback.calls, 0);
  gate.open();
  stream_.synchronize();
  EXPECT_EQ(callback.calls, 0);
  const Buffer another(device_, Shape{1}, DType::byte);
  EXPECT_EQ(callback.calls, 1);
}

TEST_P(ForeignTest, KeepsAdoptedMemoryForItsViews) {
  Callback callback;
  Buffer view;
  view = adopted(callback).byte_view(16, 16);
  EXPECT_EQ(callback.calls, 0);
  view = {};
  EXPECT_EQ(callback.calls, 1);
}

TEST_P(ForeignTest, LetsTheCallbackUseBuffersItself) {
  std::vector<std::byte> host(16);
  int calls = 0;
  {
    const Buffer buffer = adopt(device_, host.data(), host.size(), {.on_release = [&] {
                                  ++calls;
                                  const Buffer inner = adopt(device_, host.data(), host.size(),
                                                             {.on_release = [&] { ++calls; }});
                                }});
  }
  EXPECT_EQ(calls, 2);
}

TEST_P(ForeignTest, AcceptsNoCallbackAndRejectsTwo) {
  Callback callback;
  std::array<std::byte, 16> host;
  EXPECT_TRUE(try_adopt(device_, host.data(), 16, {}));
  EXPECT_EQ(try_adopt(device_, host.data(), 16,
                      {.release = Callback::call, .context = &callback, .on_release = [] {}})
                .failure()
                .code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(callback.calls, 0);
}

TEST_P(ForeignTest, SurvivesACallbackThatThrows) {
  std::array<std::byte, 16> host;
  {
    const Buffer buffer = adopt(device_, host.data(), 16,
                                {.on_release = [] { throw std::runtime_error("told not to"); }});
  }
  EXPECT_EQ(deferred_frees().count, 0u);
}

TEST_P(ForeignTest, OrdersUsesAfterTheProducersWrites) {
  Callback first, second, third;
  Gate gate;
  gate.hold(stream_);
  const auto filled = [&](Callback& callback) {
    callback = {device_, memory()};
    stream_.fill(static_cast<std::byte*>(callback.address), block_bytes, std::byte{3});
    return callback.address;
  };
  const Buffer by_stream = adopt(device_, filled(first), block_bytes,
                                 {.release = Callback::call, .context = &first, .stream = stream_});
  void* const address = filled(second);
  const Buffer by_mark =
      adopt(device_, address, block_bytes,
            {.release = Callback::call, .context = &second, .ready = stream_.mark()});
  const Buffer by_both = adopt(
      device_, filled(third), block_bytes,
      {.release = Callback::call, .context = &third, .ready = stream_.mark(), .stream = stream_});
  for (const Buffer* buffer : {&by_stream, &by_mark, &by_both}) {
    EXPECT_FALSE(buffer->storage()->uses().try_is_ready(Access::read).value());
    write(*buffer, other_, Access::read_write);
  }
  EXPECT_FALSE(other_.is_idle());
  gate.open();
  other_.synchronize();
  EXPECT_TRUE(by_mark.storage()->uses().try_is_ready(Access::discard).value());
  std::array<std::byte, 16> host;
  EXPECT_EQ(try_adopt(device_, host.data(), 16, {.ready = stream_.mark(), .stream = other_})
                .failure()
                .code(),
            ErrorCode::invalid_argument);
}

TEST_P(ForeignTest, TakesTheMarkOfAStreamThatHasEnded) {
  Callback callback{device_, memory()};
  Mark ready;
  Gate gate;
  {
    const Stream gone(device_);
    gate.hold(stream_);
    gone.wait(stream_.mark());
    gone.fill(static_cast<std::byte*>(callback.address), block_bytes, std::byte{3});
    ready = gone.mark();
  }
  const Buffer buffer = adopt(device_, callback.address, block_bytes,
                              {.release = Callback::call, .context = &callback, .ready = ready});
  EXPECT_FALSE(buffer.storage()->uses().try_is_ready(Access::read).value());
  write(buffer, other_, Access::read_write);
  gate.open();
  other_.synchronize();
}

TEST_P(ForeignTest, LeavesRejectedMemoryToItsOwner) {
  Callback callback;
  const BudgetHandle budget = test::limited(1 << 20);
  void* const address = memory();
  Adoption adoption{
      .release = Callback::call, .context = &callback, .charge = budget->charge(block_bytes)};
  const auto code = [&](const Device& device, void* at, Shape shape, DType dtype) {
    return try_adopt(device, at, std::move(shape), dtype, std::move(adoption)).failure().code();
  };
  constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
  const DType f32 = dtype_of<float>();
  EXPECT_EQ(code(device_, nullptr, Shape{1}, f32), ErrorCode::invalid_argument);
  EXPECT_EQ(code(device_, address, Shape{std::size_t{1} << 62, 8}, f32), ErrorCode::size_overflow);
  EXPECT_EQ(code(device_, address, Shape{huge}, DType::byte), ErrorCode::size_overflow);
  EXPECT_EQ(code(device_, reinterpret_cast<void*>(huge - 10), Shape{12}, DType::byte),
            ErrorCode::size_overflow);
  EXPECT_EQ(code({}, address, Shape{1}, f32), ErrorCode::invalid_device);
  EXPECT_EQ(code({}, nullptr, Shape{0}, f32), ErrorCode::invalid_device);
  EXPECT_EQ(code(device_, static_cast<std::byte*>(address) + 2, Shape{1}, f32),
            ErrorCode::misaligned);
  EXPECT_EQ(code(device_, address, Shape{block_bytes + 1}, DType::byte), ErrorCode::out_of_bounds);
  EXPECT_EQ(code(device_, static_cast<std::byte*>(address) + 1, Shape{block_bytes}, DType::byte),
            ErrorCode::out_of_bounds);
  adoption.stream = other_;
  {
    Stream ended(device_);
    adoption.stream = ended;
  }
  EXPECT_EQ(code(device_, address, Shape{1}, f32), ErrorCode::stream_misuse);
  EXPECT_EQ(callback.calls, 0);
  EXPECT_EQ(adoption.charge.bytes(), block_bytes);
  EXPECT_EQ(budget->used_bytes(), block_bytes);
  device_.release(address);
}

TEST_P(ForeignTest, ChargesAdoptedMemoryToTheGivenBudget) {
  const BudgetHandle budget = test::limited(1 << 20);
  Callback callback{device_, memory()};
  Buffer buffer = adopt(
      device_, callback.address, block_bytes,
      {.release = Callback::call, .context = &callback, .charge = budget->charge(block_bytes)});
  EXPECT_EQ(budget->used_bytes(), block_bytes);
  Gate gate;
  gate.hold(stream_);
  write(buffer, stream_);
  buffer = {};
  EXPECT_EQ(budget->used_bytes(), block_bytes);
  gate.open();
  stream_.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(callback.calls, 1);
  EXPECT_EQ(budget->used_bytes(), 0u);
  test::expect_sound(*budget);
}

TEST_P(ForeignTest, AdoptsZeroBytesAndCallsBack) {
  Callback callback;
  {
    Buffer buffer = adopt(device_, nullptr, 0, {.release = Callback::call, .context = &callback});
    EXPECT_EQ(buffer.size_bytes(), 0u);
    EXPECT_EQ(buffer.address(), 0u);
    EXPECT_EQ(buffer.try_device_ptr(stream_, Access::discard).value(), nullptr);
    EXPECT_EQ(callback.calls, 0);
  }
  stream_.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(callback.calls, 1);
}

TEST_P(ForeignTest, RejectsWritesToReadOnlyMemory) {
  void* const address = memory();
  stream_.fill(static_cast<std::byte*>(address), block_bytes, std::byte{1});
  stream_.synchronize();
  for (Buffer buffer : {adopt(device_, address, block_bytes, {.read_only = true}),
                        borrow(device_, address, block_bytes, {.read_only = true})}) {
    EXPECT_FALSE(buffer.reach().kernels_write);
    EXPECT_FALSE(buffer.reach().host_writes);
    EXPECT_EQ(buffer.try_use(stream_, Access::discard).failure().code(), ErrorCode::read_only);
    EXPECT_EQ(buffer.try_use(stream_, Access::read_write).failure().code(), ErrorCode::read_only);
    EXPECT_TRUE(buffer.try_use(stream_, Access::read));
    const Result<HostView<std::byte>> view = buffer.try_rw_host<std::byte>();
    EXPECT_EQ(view.failure().code(), device_.can(Capability::host_access)
                                         ? ErrorCode::read_only
                                         : ErrorCode::not_host_accessible);
  }
  device_.release(address);
}

TEST_P(ForeignTest, AdoptsHostMemoryOnAnyDevice) {
  alignas(64) std::array<std::byte, 64> host = {};
  Buffer buffer = adopt(device_, host.data(), host.size(), {});
  EXPECT_EQ(buffer.kind(), MemoryKind::host);
  buffer.discard_host<std::byte>()[3] = std::byte{9};
  EXPECT_EQ(host[3], std::byte{9});
  EXPECT_EQ(bool(buffer.try_use(stream_, Access::read)), device_.info().is_host);
}

TEST_P(ForeignTest, RefusesMemoryOfAnotherDevice) {
  const Device there = sim::open({});
  void* const address = there.allocate(MemoryKind::device, block_bytes);
  Callback callback;
  const Failure failure =
      try_adopt(device_, address, block_bytes, {.release = Callback::call, .context = &callback})
          .failure();
  EXPECT_EQ(failure.code(), ErrorCode::device_mismatch);
  EXPECT_EQ(failure.string("a"), device_.spec());
  EXPECT_EQ(failure.string("b"), there.spec());
  EXPECT_EQ(try_borrow(device_, address, block_bytes, {}).failure().code(),
            ErrorCode::device_mismatch);
  EXPECT_EQ(callback.calls, 0);
  there.release(address);
}

TEST_P(ForeignTest, RefusesMemoryOfAPeer) {
  if (!test::is_simulated(device_)) GTEST_SKIP() << "there is one such device";
  const bool is_cuda = device_.info().backend == "cuda";
  const Device there = open_device(is_cuda ? "cuda:1?driver=sim" : "sim:1");
  void* const address = there.allocate(MemoryKind::device, block_bytes);
  const Failure failure = try_adopt(device_, address, block_bytes, {}).failure();
  EXPECT_EQ(failure.code(), ErrorCode::device_mismatch);
  EXPECT_EQ(failure.string("a"), device_.spec());
  // What stands behind a simulated driver knows the memory too.
  EXPECT_TRUE(failure.string("b") == there.spec() || failure.string("b") == "sim:1");
  EXPECT_TRUE(try_adopt(there, address, block_bytes, {}));
  there.release(address);
}

TEST_P(ForeignTest, LeaksNothingIfTheHostHasNoMemory) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "operator new cannot be refused here";
  if (test::is_simulated(device_)) GTEST_SKIP() << "the simulation itself needs memory";
  void* const address = memory();
  Callback callback;
  const auto owner = std::make_shared<int>(1);
  for (std::size_t left = 0;; ++left) {
    bool has_failed = false, is_adopted = false, is_borrowed = false;
    {
      const HeapExhausted exhausted(left);
      is_adopted = bool(try_adopt(device_, address, block_bytes,
                                  {.release = Callback::call, .context = &callback}));
      is_borrowed =
          bool(try_borrow(device_, address, block_bytes, {.owner = owner, .stream = stream_}));
      has_failed = exhausted.has_failed();
    }
    EXPECT_EQ(callback.calls, is_adopted ? 1 : 0);
    EXPECT_EQ(reclaim_deferred().count, 0u);
    EXPECT_EQ(owner.use_count(), 1);
    callback.calls = 0;
    if (!has_failed) {
      EXPECT_TRUE(is_adopted && is_borrowed);
      break;
    }
    ASSERT_LT(left, 100u);
  }
  device_.release(address);
}

/// Runs the program with each call of each class refused in turn, as often as there are calls.
template <class Program>
void with_every_fault(const Device& device, Program program) {
  for (const char* fault_class : {"allocate", "release", "copy", "fill", "record", "wait", "query",
                                  "sync", "stream", "info"}) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(std::string(fault_class) + "#" + std::to_string(n));
      sim::set_faults(device, std::string(fault_class) + "#" + std::to_string(n) + "=fail");
      const auto until_mended = [&] { sim::set_faults(device, ""); };
      const bool was_enough = program([&] { return sim::calls(device, fault_class); }, until_mended,
                                      static_cast<std::uint64_t>(n));
      sim::set_faults(device, "");
      if (was_enough) break;
      ASSERT_LT(n, 100);
    }
  }
}

TEST_P(ForeignTest, CallsBackOnceWhicheverDriverCallFails) {
  if (!test::is_simulated(device_)) GTEST_SKIP() << "no call of this device fails on demand";
  with_every_fault(device_, [&](auto calls, auto fix, std::uint64_t n) {
    int adopted = 0, released = 0, ours = 0;
    Callback callback{device_};
    {
      const Result<void*> address = device_.try_allocate(MemoryKind::device, block_bytes);
      if (address) {
        callback.address = *address;
        Result<Buffer> buffer =
            try_adopt(device_, *address, block_bytes,
                      {.release = [](void* context) { ++*static_cast<int*>(context); },
                       .context = &released,
                       .stream = stream_});
        adopted = buffer ? 1 : 0;
        if (buffer) {
          for (const StreamRef on : {StreamRef(stream_), StreamRef(other_)}) {
            Result<StorageUse> use = buffer->try_use(on, Access::read_write);
            if (!use) continue;
            if (on.try_fill(static_cast<std::byte*>(use->address()), 64, std::byte{1})) use->end();
          }
        }
        ours = 1;
      }
    }
    const std::uint64_t made = calls();
    fix();
    device_.synchronize();
    static_cast<void>(reclaim_deferred());
    EXPECT_EQ(released, adopted);
    if (ours == 1) device_.release(callback.address);
    return made < n;
  });
}

TEST_P(ForeignTest, EndsAdoptionsInAForkedChildOnlyWhereNoDeviceWasInvolved) {
  Callback callback;
  Gate gate;
  Buffer used = adopted(callback);
  gate.hold(stream_);
  write(used, stream_);
  std::array<std::byte, 16> host;
  int calls = 0;
  Buffer plain = adopt(device_, host.data(), 16, {.on_release = [&] { ++calls; }});
  EXPECT_EQ(test::in_a_forked_child([&] {
              used = {};
              plain = {};
              return callback.calls == 0 && calls == 1;
            }),
            0);
  gate.open();
  stream_.synchronize();
}

// --- Release

TEST_P(ForeignTest, ReleasesTheMemoryItselfAndTakesItBackOnce) {
  const auto resource = std::make_shared<DirectResource>(device_);
  Buffer buffer(device_, Shape{1024}, dtype_of<float>(), {.resource = resource});
  write(buffer, stream_);
  const std::uintptr_t address = buffer.address();
  Released released = release(std::move(buffer), stream_);
  EXPECT_FALSE(buffer);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(released.address()), address);
  EXPECT_EQ(released.bytes(), block_bytes);
  EXPECT_EQ(released.device(), device_);
  EXPECT_EQ(released.kind(), device_.info().is_host ? MemoryKind::host : MemoryKind::device);
  EXPECT_EQ(resource->statistics().live_blocks, 1u);
  stream_.fill(static_cast<std::byte*>(released.address()), block_bytes, std::byte{2});
  released.give_back(stream_);
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
  EXPECT_FALSE(released);
  EXPECT_EQ(released.address(), nullptr);
  EXPECT_EQ(released.bytes(), 0u);
  EXPECT_EQ(released.try_give_back(stream_).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(resource->failed_frees(), 0u);
}

TEST_P(ForeignTest, TakesReleasedMemoryBackAtTheEndOfItsOwner) {
  const auto resource = std::make_shared<DirectResource>(device_);
  const auto released = [&](StreamRef stream) {
    Buffer buffer(device_, Shape{16}, DType::byte, {.resource = resource});
    write(buffer, stream);
    return release(std::move(buffer), stream);
  };
  {
    Released one = released(stream_);
    Released moved = std::move(one);
    EXPECT_FALSE(one);
    moved = released(stream_);
    EXPECT_EQ(resource->statistics().live_blocks, 1u);
    moved = Released();
    EXPECT_EQ(resource->statistics().live_blocks, 0u);
    moved = released(stream_);
  }
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
  EXPECT_EQ(resource->failed_frees(), 0u);
}

TEST_P(ForeignTest, TakesReleasedMemoryBackBehindAStreamThatHasEnded) {
  Released released;
  Gate gate;
  const ResourceHandle resource = default_resource(device_);
  const std::size_t live = resource->statistics().live_blocks;
  {
    const Stream ended(device_);
    Buffer buffer(device_, Shape{block_bytes}, DType::byte);
    gate.hold(stream_);
    ended.wait(stream_.mark());
    write(buffer, ended);
    released = release(std::move(buffer), ended);
  }
  released = {};
  EXPECT_EQ(resource->statistics().live_blocks, live);
  // What the stream still writes is given to nobody else without a wait.
  const Buffer next(device_, Shape{block_bytes}, DType::byte);
  write(next, other_);
  gate.open();
  device_.synchronize();
}

TEST_P(ForeignTest, PutsTheNextOwnersWorkBehindAllUses) {
  Gate gate;
  Buffer buffer(device_, Shape{64}, DType::byte);
  write(buffer, stream_);
  gate.hold(stream_);
  write(buffer, stream_);
  Released released = release(std::move(buffer), other_);
  other_.fill(static_cast<std::byte*>(released.address()), 64, std::byte{2});
  EXPECT_FALSE(other_.is_idle());
  gate.open();
  released.give_back(other_);
  other_.synchronize();
}

TEST_P(ForeignTest, WaitsForTheUsesWhereNoStreamIsNamed) {
  Buffer buffer(device_, Shape{64}, DType::byte);
  write(buffer, stream_);
  const Released released = release(std::move(buffer), {});
  EXPECT_TRUE(stream_.is_idle());
}

TEST_P(ForeignTest, RejectsReleaseOfASharedBuffer) {
  Buffer buffer(device_, Shape{64}, DType::byte);
  {
    const Buffer view = buffer.byte_view(0, 8);
    const Failure failure = try_release(std::move(buffer), stream_).failure();
    EXPECT_EQ(failure.code(), ErrorCode::access_conflict);
    EXPECT_EQ(failure.number("handles"), 2u);
  }
  {
    const StorageUse use = buffer.try_use(stream_, Access::discard).value();
    EXPECT_EQ(try_release(std::move(buffer), stream_).failure().code(), ErrorCode::access_conflict);
  }
  const Device elsewhere = sim::open({});
  EXPECT_EQ(try_release(std::move(buffer), elsewhere.default_stream()).failure().code(),
            ErrorCode::device_mismatch);
  StreamRef ended;
  {
    const Stream gone(device_);
    ended = gone;
  }
  EXPECT_EQ(try_release(std::move(buffer), ended).failure().code(), ErrorCode::stream_misuse);
  EXPECT_TRUE(buffer);
  write(buffer, stream_);
  const Released released = release(std::move(buffer), stream_);
  EXPECT_EQ(try_release(std::move(buffer), stream_).failure().code(), ErrorCode::not_allocated);
  std::array<std::byte, 16> host;
  Buffer foreign = adopt(device_, host.data(), 16, {});
  EXPECT_EQ(try_release(std::move(foreign), stream_).failure().code(), ErrorCode::unsupported);
  EXPECT_TRUE(foreign);
}

TEST_P(ForeignTest, KeepsReleasedMemoryIfGivingBackFails) {
  Buffer buffer(device_, Shape{64}, DType::byte);
  const Device elsewhere = sim::open({});
  Released released = release(std::move(buffer), stream_);
  EXPECT_EQ(released.try_give_back(elsewhere.default_stream()).failure().code(),
            ErrorCode::device_mismatch);
  EXPECT_TRUE(released);
  other_.wait(stream_.mark());  // whoever chooses another stream puts it behind the first
  EXPECT_TRUE(released.try_give_back(other_));

  const auto resource = std::make_shared<DirectResource>(device_);
  buffer = Buffer(device_, Shape{64}, DType::byte, {.resource = resource});
  {
    Released refused = release(std::move(buffer), stream_);
    EXPECT_FALSE(refused.try_give_back(elsewhere.default_stream()));
  }
  EXPECT_EQ(resource->statistics().live_blocks, 0u);
}

TEST_P(ForeignTest, ReleasesAViewAndZeroBytes) {
  Buffer buffer(device_, Shape{64}, DType::byte);
  buffer.ensure_allocated(stream_);
  const std::uintptr_t address = buffer.address();
  buffer = buffer.byte_view(16, 8);
  const Released view = release(std::move(buffer), stream_);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.address()), address + 16);
  EXPECT_EQ(view.bytes(), 8u);
  const Released none = release(Buffer(device_, Shape{0}, DType::byte), stream_);
  EXPECT_EQ(none.address(), nullptr);
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_FALSE(Released());
}

TEST_P(ForeignTest, CountsReleasedMemoryUntilItIsGivenBack) {
  const BudgetHandle budget = test::limited(1 << 20);
  const auto resource =
      std::make_shared<BudgetResource>(std::make_shared<DirectResource>(device_), budget);
  Buffer buffer =
      Buffer::allocate(device_, Shape{block_bytes}, DType::byte, {.resource = resource});
  const std::size_t charged = budget->used_bytes();
  EXPECT_GE(charged, block_bytes);
  Released released = release(std::move(buffer), stream_);
  EXPECT_EQ(budget->used_bytes(), charged);
  EXPECT_EQ(budget->pending_bytes(), 0u);
  released.give_back(stream_);
  stream_.synchronize();
  static_cast<void>(budget->drain());
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_P(ForeignTest, KeepsTheBufferIfTheReleaseFails) {
  if (!test::is_simulated(device_)) GTEST_SKIP() << "no call of this device fails on demand";
  const auto resource = std::make_shared<DirectResource>(device_);
  with_every_fault(device_, [&](auto calls, auto fix, std::uint64_t n) {
    std::uint64_t made = 0;
    {
      Buffer buffer(device_, Shape{64}, DType::byte, {.resource = resource});
      Result<StorageUse> use = buffer.try_use(other_, Access::discard);
      if (use && other_.try_fill(static_cast<std::byte*>(use->address()), 64, std::byte{1})) {
        use->end();
      } else if (use) {
        use = StorageUse();
      }
      const Result<Released> released = try_release(std::move(buffer), stream_);
      EXPECT_EQ(bool(buffer), !released);
      made = calls();
      if (!released) {
        fix();
        EXPECT_TRUE(try_release(std::move(buffer), stream_));
      }
      fix();
    }
    device_.synchronize();
    resource->retry_failed_frees();
    EXPECT_EQ(resource->statistics().live_blocks, 0u);
    return made < n;
  });
}

// --- Borrow

/// Memory of somebody else, freed with its last owner.
std::shared_ptr<void> foreign_memory(const Device& device, std::size_t bytes = block_bytes) {
  return {device.allocate(MemoryKind::device, bytes),
          [device](void* address) { device.release(address); }};
}

TEST_P(ForeignTest, OrdersBorrowedMemoryBehindItsOwnerAndTheOwnerBehindUs) {
  const Stream& theirs = other_;
  std::shared_ptr<void> owner = foreign_memory(device_);
  const std::weak_ptr<void> is_alive = owner;
  void* const address = owner.get();
  Gate gate;
  gate.hold(theirs);
  theirs.fill(static_cast<std::byte*>(address), block_bytes, std::byte{1});
  Buffer buffer = borrow(device_, address, Shape{1024}, dtype_of<float>(),
                         {.owner = std::move(owner), .stream = theirs});
  EXPECT_TRUE(buffer.is_external());
  write(buffer, stream_, Access::read_write);
  EXPECT_FALSE(stream_.is_idle());
  gate.open();
  stream_.synchronize();

  Gate ours;
  ours.hold(stream_);
  write(buffer, stream_, Access::read_write);
  buffer = {};
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_FALSE(is_alive.expired());
  theirs.fill(static_cast<std::byte*>(address), block_bytes, std::byte{2});
  EXPECT_FALSE(theirs.is_idle());
  EXPECT_FALSE(is_alive.expired());
  ours.open();
  theirs.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_TRUE(is_alive.expired());
}

TEST_P(ForeignTest, KeepsAnOwnerThatTheCallerDrops) {
  Gate gate;
  gate.hold(stream_);
  {
    std::shared_ptr<void> owner = foreign_memory(device_);
    void* const address = owner.get();
    const Buffer buffer = borrow(device_, address, block_bytes, {.owner = std::move(owner)});
    write(buffer, stream_);
  }
  EXPECT_EQ(reclaim_deferred().count, 1u);
  gate.open();
  stream_.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
}

TEST_P(ForeignTest, ReleasesTheOwnerImmediatelyIfTheMemoryWasNotUsed) {
  const std::shared_ptr<void> owner = foreign_memory(device_);
  static_cast<void>(borrow(device_, owner.get(), block_bytes, {.owner = owner, .stream = stream_}));
  stream_.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_P(ForeignTest, BorrowsNothingInTheOrderOfAnotherDevice) {
  const std::shared_ptr<void> owner = foreign_memory(device_);
  const Device elsewhere = sim::open({});
  Loan loan{.owner = owner, .stream = elsewhere.default_stream()};
  EXPECT_EQ(try_borrow(device_, owner.get(), block_bytes, std::move(loan)).failure().code(),
            ErrorCode::device_mismatch);
  {
    const Stream gone(device_);
    loan.stream = gone;
  }
  EXPECT_EQ(try_borrow(device_, owner.get(), block_bytes, std::move(loan)).failure().code(),
            ErrorCode::stream_misuse);
  loan.stream = stream_;
  EXPECT_EQ(try_borrow(device_, nullptr, block_bytes, std::move(loan)).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ(loan.owner, owner);
}

TEST_P(ForeignTest, ReleasesTheOwnerWhicheverDriverCallFails) {
  if (!test::is_simulated(device_)) GTEST_SKIP() << "no call of this device fails on demand";
  std::shared_ptr<void> owner = foreign_memory(device_);
  with_every_fault(device_, [&](auto calls, auto fix, std::uint64_t n) {
    {
      const Result<Buffer> buffer =
          try_borrow(device_, owner.get(), block_bytes, {.owner = owner, .stream = other_});
      if (buffer) {
        Result<StorageUse> use = buffer->try_use(stream_, Access::read_write);
        if (use && stream_.try_fill(static_cast<std::byte*>(use->address()), 64, std::byte{1})) {
          use->end();
        }
      }
    }
    const std::uint64_t made = calls();
    fix();
    // Theirs, behind ours: refused waits were tried again, or the uses were done.
    static_cast<void>(reclaim_deferred());
    other_.fill(static_cast<std::byte*>(owner.get()), 64, std::byte{1});
    device_.synchronize();
    static_cast<void>(reclaim_deferred());
    EXPECT_EQ(owner.use_count(), 1);
    return made < n;
  });
}

TEST(ForeignLoopTest, AnyNumberOfBorrowsMakesTwoEvents) {
  constexpr int borrows = test::is_sanitized ? 10'000 : 1'000'000;
  const test::FakeDevice fake;
  const Stream ours(fake.device), theirs(fake.device);
  const std::shared_ptr<void> owner = foreign_memory(fake.device);
  const std::size_t before = fake.ledger->count(test::Call::create_event);
  for (int i = 0; i < borrows; ++i) {
    {
      const Buffer buffer =
          borrow(fake.device, owner.get(), block_bytes, {.owner = owner, .stream = theirs});
      StorageUse use = buffer.try_use(ours, Access::read_write).value();
      use.end();
    }
    // Whoever lends so often also waits for what was done.
    theirs.synchronize();
  }
  EXPECT_LE(fake.ledger->count(test::Call::create_event) - before, 2u);
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(ForeignLoopTest, BorrowsOnTheLendersOwnStreamMakeNoEvent) {
  const test::FakeDevice fake;
  const Stream theirs(fake.device);
  const std::shared_ptr<void> owner = foreign_memory(fake.device);
  const auto calls = [&] {
    return fake.ledger->count(test::Call::create_event) + fake.ledger->count(test::Call::wait);
  };
  const std::size_t before = calls();
  {
    const Buffer buffer =
        borrow(fake.device, owner.get(), block_bytes, {.owner = owner, .stream = theirs});
    StorageUse use = buffer.try_use(theirs, Access::read_write).value();
    use.end();
    theirs.synchronize();
  }
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(ForeignLoopTest, BorrowsUnderAHeldStreamAreAllReleasedInOrder) {
  const Device device = sim::open({});
  const Stream ours(device), theirs(device);
  const std::shared_ptr<void> owner = foreign_memory(device);
  Gate gate;
  gate.hold(ours);
  for (int i = 0; i < 1000; ++i) {
    const Buffer buffer =
        borrow(device, owner.get(), block_bytes, {.owner = owner, .stream = theirs});
    StorageUse use = buffer.try_use(ours, Access::read).value();
    use.end();
  }
  EXPECT_EQ(deferred_frees().count, 1000u);
  gate.open();
  device.synchronize();
  // Each new one asks a few.
  for (int i = 0; i < 250; ++i) {
    static_cast<void>(Buffer(device, Shape{1}, DType::byte));
  }
  EXPECT_EQ(deferred_frees().count, 0u);
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(ForeignLostTest, CallsBackWhenTheDeviceIsLost) {
  const Device device = sim::open({});
  const Stream stream(device), other(device);
  int calls = 0;
  void* const address = device.allocate(MemoryKind::device, block_bytes);
  {
    const Buffer buffer = adopt(device, address, block_bytes, {.on_release = [&] { ++calls; }});
    for (const StreamRef on : {StreamRef(stream), StreamRef(other)}) {
      StorageUse use = buffer.try_use(on, Access::read).value();
      use.end();
    }
    sim::set_faults(device, "fill#1=lost");
    EXPECT_FALSE(stream.try_fill(static_cast<std::byte*>(address), 16, std::byte{1}));
  }
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(calls, 1);
}

// --- Register

TEST_P(ForeignTest, RegistersMemoryWhereItIs) {
  std::vector<float> host(1024, 1.0f);
  const std::span<float> memory(host);
  if (!device_.can(Capability::registered_memory)) {
    EXPECT_EQ(try_register_host(device_, memory).failure().code(), ErrorCode::unsupported);
    EXPECT_EQ(try_register_host(device_, memory.first(0)).failure().code(), ErrorCode::unsupported);
    return;
  }
  {
    Buffer buffer = register_host(device_, memory);
    EXPECT_EQ(buffer.kind(), MemoryKind::registered);
    EXPECT_TRUE(buffer.is_pinned());
    EXPECT_TRUE(buffer.is_external());
    EXPECT_EQ(buffer.reach(), (Reach{true, true, true, true}));
    EXPECT_EQ(buffer.shape(), Shape{1024});
    EXPECT_EQ(device_.pointer_info(host.data()).kind, MemoryKind::registered);
    write(buffer, stream_);
    EXPECT_EQ(buffer.read_host<float>().data(), host.data());
    buffer.rw_host<float>()[0] = 5;
    const Failure twice = try_register_host(device_, memory).failure();
    EXPECT_EQ(twice.code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(device_.pointer_info(host.data()).kind, MemoryKind::host);
  EXPECT_EQ(host[0], 5);
  EXPECT_EQ(register_host(device_, memory.first(0)).size_bytes(), 0u);
  EXPECT_EQ(
      register_host(device_, memory, {.read_only = true}).try_rw_host<float>().failure().code(),
      ErrorCode::read_only);
}

TEST_P(ForeignTest, RefusesToRegisterWhatIsNoMemory) {
  constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(try_register_host(device_, nullptr, Shape{1}, DType::byte).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(try_register_host(device_, this, Shape{huge, 2}, DType::byte).failure().code(),
            ErrorCode::size_overflow);
  EXPECT_EQ(try_register_host({}, this, Shape{1}, DType::byte).failure().code(),
            ErrorCode::invalid_device);
  if (!device_.can(Capability::registered_memory)) return;
  alignas(64) std::array<std::byte, 64> host;
  EXPECT_EQ(
      try_register_host(device_, host.data() + 1, Shape{2}, dtype_of<float>()).failure().code(),
      ErrorCode::misaligned);
  EXPECT_EQ(device_.pointer_info(host.data() + 1).kind, MemoryKind::host);
}

TEST_P(ForeignTest, StaysRegisteredUntilTheUsesAreDone) {
  if (!device_.can(Capability::registered_memory)) GTEST_SKIP() << "it registers nothing";
  std::vector<std::byte> host(block_bytes);
  Gate gate;
  gate.hold(stream_);
  write(register_host(device_, std::span(host)), stream_);
  EXPECT_EQ(device_.pointer_info(host.data()).kind, MemoryKind::registered);
  gate.open();
  stream_.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(device_.pointer_info(host.data()).kind, MemoryKind::host);
}

TEST(ForeignRegisterTest, HasAnAddressForTheDeviceAndForTheHost) {
  const test::FakeDevice fake({.registered_offset = 64});
  const Stream stream(fake.device);
  alignas(64) std::array<float, 32> host = {};
  const Buffer buffer = register_host(fake.device, std::span(host));
  const auto number = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  EXPECT_EQ(buffer.read_host<float>().data(), host.data());
  EXPECT_EQ(buffer.address(), number(host.data()) + 64);
  EXPECT_EQ(number(buffer.device_ptr(stream, Access::read)), number(host.data()) + 64);
  EXPECT_EQ(number(buffer.slice(2, 1).device_ptr(stream, Access::read)), number(&host[2]) + 64);
}

TEST(ForeignRegisterTest, LeavesNothingRegisteredWhicheverCallFails) {
  const test::FakeDevice fake;
  std::vector<std::byte> host(block_bytes);
  fake.ledger->fail_next(test::Call::register_host);
  EXPECT_FALSE(try_register_host(fake.device, std::span(host)));
  EXPECT_EQ(fake.ledger->live_registrations(), 0u);

  fake.ledger->fail_next(test::Call::unregister_host, 2);
  { const Buffer buffer = register_host(fake.device, std::span(host)); }
  EXPECT_EQ(fake.ledger->live_registrations(), 1u);
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_EQ(reclaim_deferred().count, 1u);
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(fake.ledger->live_registrations(), 0u);
  EXPECT_EQ(fake.ledger->violations(), 0u);
}

TEST(ForeignRegisterTest, LeavesNothingRegisteredWhenTheHostHasNoMemory) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "operator new cannot be refused here";
  const test::FakeDevice fake;
  std::vector<std::byte> host(block_bytes);
  for (std::size_t left = 0;; ++left) {
    bool has_failed = false, is_registered = false;
    {
      const HeapExhausted exhausted(left);
      is_registered = bool(try_register_host(fake.device, std::span(host)));
      has_failed = exhausted.has_failed();
    }
    EXPECT_EQ(fake.ledger->live_registrations(), 0u);
    if (!has_failed) {
      EXPECT_TRUE(is_registered);
      break;
    }
    ASSERT_LT(left, 100u);
  }
}

TEST(AdoptedChain, IsReleasedWithoutRecursion) {
  const Device device = open_device("host");
  constexpr int length = 20'000;
  int byte = 0, released = 0;
  Buffer last;
  for (int i = 0; i < length; ++i) {
    last = adopt(device, &byte, {1}, DType::byte,
                 {.on_release = [kept = std::move(last), &released] { ++released; }});
  }
  last = {};  // one inside the other they would not fit on the stack
  EXPECT_EQ(released, length);
}

}  // namespace
}  // namespace tern
