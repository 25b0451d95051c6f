#include "tern/launch/use_scope.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

/// Streams that stand still until the test ends, on a device that checks the order of everything.
class UseScopeTest : public testing::Test {
 protected:
  Buffer buffer(std::size_t floats = 64) {
    return Buffer::allocate(device, Shape{floats}, DType::f32, {.contents = Contents::unspecified});
  }
  /// Work on a stream that uses buffers in this way.
  static void use(StreamRef stream, const Buffer& used, Access access) {
    UseScope scope(stream);
    scope.add(used, access);
    scope.begin();
    scope.end();
  }
  std::uint64_t waits() const { return sim::calls(device, "wait"); }
  /// Would the memory be taken by the host at once?
  static bool is_idle(const Buffer& used) {
    return used.storage()->uses().try_is_ready(Access::discard).value();
  }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream a{device}, b{device}, c{device}, d{device};
  std::uint64_t hold_a = sim::hold(a), hold_b = sim::hold(b), hold_d = sim::hold(d);

  void TearDown() override {
    sim::resume(device, hold_a);
    sim::resume(device, hold_b);
    sim::resume(device, hold_d);
    EXPECT_TRUE(sim::findings(device).empty());
  }
};

TEST_F(UseScopeTest, QueuesExactlyTheWaitsThatAnAccessNeeds) {
  for (const Access first : {Access::read, Access::read_write, Access::discard}) {
    for (const Access then : {Access::read, Access::read_write, Access::discard}) {
      const Buffer used = buffer();
      use(a, used, first);
      std::uint64_t before = waits();
      use(a, used, first);
      EXPECT_EQ(waits(), before) << "a stream is in order with itself";
      use(b, used, then);
      EXPECT_EQ(waits() - before, is_write(first) || is_write(then) ? 1u : 0u);
      before = waits();
      use(b, used, then);
      EXPECT_EQ(waits(), before) << "it has waited before";
    }
  }
}

TEST_F(UseScopeTest, ReadersThatTakeTurnsWaitOnceEach) {
  const Buffer used = buffer();
  use(a, used, Access::discard);
  for (int round = 0; round < 10; ++round) {
    use(b, used, Access::read);
    use(c, used, Access::read);
  }
  EXPECT_EQ(waits(), 2u);
}

TEST_F(UseScopeTest, GivesAddressesOnlyBetweenItsBeginningAndItsEnd) {
  const Buffer used = buffer();
  UseScope scope(a);
  const std::size_t whole = scope.add(used, Access::read);
  const std::size_t part = scope.add(used.byte_view(16, 8), Access::read);
  EXPECT_EQ(scope.pointer(whole), nullptr);
  scope.begin();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scope.pointer(whole)), used.address());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scope.pointer(part)), used.address() + 16);
  EXPECT_EQ(scope.pointer(2), nullptr);
  scope.end();
  EXPECT_EQ(scope.pointer(whole), nullptr);
}

TEST_F(UseScopeTest, TakesArraysAndTheirSlices) {
  Array<float> array = Array<float>::zeros(device, 100, {.stream = a});
  UseScope scope(a);
  const std::size_t slice = scope.add(array.slice(10, 5), Access::read);
  scope.begin();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scope.pointer(slice)), array.address() + 40);
}

TEST_F(UseScopeTest, AllocatesWhatHasNoMemoryYet) {
  const Buffer lazy(device, Shape{8}, DType::f32);
  UseScope scope(a);
  const std::size_t index = scope.add(lazy, Access::discard);
  EXPECT_FALSE(lazy.is_allocated());
  scope.begin();
  EXPECT_NE(scope.pointer(index), nullptr);
}

TEST_F(UseScopeTest, QueuesNothingIfOneOfSeveralIsRefused) {
  const Device other = sim::open({});
  const Buffer good = buffer(), better = buffer();
  use(a, good, Access::discard);
  use(a, better, Access::discard);
  struct Bad {
    const char* what;
    Buffer buffer;
    Access access;
    ErrorCode code;
  };
  const std::vector<Bad> bad = {
      {"another device's", Buffer::allocate(other, Shape{4}, DType::f32), Access::discard,
       ErrorCode::device_mismatch},
      {"never written", Buffer::allocate(device, Shape{4}, DType::f32), Access::read,
       ErrorCode::never_written},
      {"read-only",
       adopt(device, reinterpret_cast<void*>(buffer().address()), 16, {.read_only = true}),
       Access::discard, ErrorCode::read_only},
  };
  for (const Bad& third : bad) {
    UseScope scope(b);
    scope.add(good, Access::read);
    scope.add(better, Access::read_write);
    scope.add(third.buffer, third.access);
    const std::uint64_t before = waits();
    const Result<void> begun = scope.try_begin();
    ASSERT_FALSE(begun) << third.what;
    EXPECT_EQ(begun.failure().code(), third.code) << third.what;
    EXPECT_EQ(waits(), before) << third.what;
    EXPECT_EQ(good.storage()->uses().size(), 1u) << third.what;
    EXPECT_EQ(scope.pointer(0), nullptr);
  }
}

TEST_F(UseScopeTest, QueuesNothingIfMemoryRunsOut) {
  const Buffer good = buffer();
  use(a, good, Access::discard);
  const Buffer lazy(device, Shape{1u << 20}, DType::f32);
  UseScope scope(b);
  scope.add(good, Access::read);
  scope.add(lazy, Access::discard);
  sim::set_faults(device, "allocate#1+=oom, map#1+=oom");
  ASSERT_FALSE(scope.try_begin());
  EXPECT_EQ(waits(), 0u);
  sim::set_faults(device, "");
  EXPECT_TRUE(scope.try_begin()) << "the same call, made again";
  EXPECT_EQ(waits(), 1u);
}

TEST_F(UseScopeTest, RecordsNothingWhereAnyWaitFailsAndSucceedsWhenTriedAgain) {
  const std::array<StreamRef, 3> users = {a, b, d};
  for (std::size_t failing = 1; failing <= users.size(); ++failing) {
    std::vector<Buffer> used;
    for (const StreamRef user : users) use(user, used.emplace_back(buffer()), Access::discard);
    UseScope scope(c);
    for (const Buffer& one : used) scope.add(one, Access::read_write);
    sim::set_faults(device, "wait#" + std::to_string(failing) + "=fail");
    ASSERT_FALSE(scope.try_begin()) << failing;
    for (std::size_t i = 0; i < users.size(); ++i) {
      std::array<UseRecord::Entry, 4> left;
      ASSERT_EQ(used[i].storage()->uses().list(left), 1u);
      EXPECT_EQ(left[0].stream, users[i]);
    }
    EXPECT_FALSE(scope.has_begun());
    sim::set_faults(device, "");
    ASSERT_TRUE(scope.try_begin()) << failing;
    EXPECT_EQ(waits(), 3u);
    scope.end();
    EXPECT_EQ(used[2].storage()->uses().size(), 1u) << "the write has taken the place of the other";
  }
}

TEST_F(UseScopeTest, WaitsOnceForAStreamHoweverManyBuffersItUses) {
  std::vector<Buffer> used;
  for (int i = 0; i < 20; ++i) {
    use(i % 2 == 0 ? a : b, used.emplace_back(buffer(4)),
        i % 3 == 0 ? Access::read : Access::discard);
  }
  UseScope scope(c);
  for (const Buffer& one : used) scope.add(one, Access::read_write);
  scope.begin();
  EXPECT_EQ(waits(), 2u);
}

TEST_F(UseScopeTest, UsesAStorageOnceHoweverOftenItIsAdded) {
  const Buffer used = buffer(), plain = buffer();
  use(a, used, Access::discard);
  use(c, plain, Access::discard);
  UseScope scope(b);
  scope.add(used.byte_view(0, 16), Access::read);
  scope.add(plain, Access::read);
  scope.add(used.byte_view(16, 16), Access::discard);
  scope.begin();
  EXPECT_EQ(waits(), 2u);
  scope.end();
  std::array<UseRecord::Entry, 4> left;
  ASSERT_EQ(used.storage()->uses().list(left), 1u) << "read and discard are a write";
  EXPECT_TRUE(left[0].is_write());
  EXPECT_EQ(plain.storage()->uses().size(), 2u);
}

TEST_F(UseScopeTest, WritesOnlyTheRangesItWasToldOf) {
  const Buffer fresh = Buffer::allocate(device, Shape{64}, DType::f32);
  UseScope scope(a);
  scope.add(fresh.byte_view(0, 16), Access::discard);
  scope.add(fresh.byte_view(32, 16), Access::read_write);
  scope.begin();
  scope.end();
  EXPECT_TRUE(fresh.storage()->check_written(0, 16, {}));
  EXPECT_TRUE(fresh.storage()->check_written(32, 16, {}));
  EXPECT_FALSE(fresh.storage()->check_written(16, 16, {}));
}

TEST_F(UseScopeTest, ACancelledScopeRecordsNothing) {
  const Buffer used = Buffer::allocate(device, Shape{64}, DType::f32);
  UseScope scope(a);
  scope.add(used, Access::discard);
  scope.begin();
  scope.cancel();
  EXPECT_TRUE(is_idle(used));
  EXPECT_FALSE(used.storage()->check_written(0, 4, {}));
  EXPECT_EQ(scope.pointer(0), nullptr);
}

TEST_F(UseScopeTest, ADestroyedScopeHasEnded) {
  const Buffer used = buffer();
  {
    UseScope scope(a);
    scope.add(used, Access::read);
    scope.begin();
  }
  EXPECT_FALSE(is_idle(used));
}

TEST_F(UseScopeTest, AnAdditionBehindTheBeginningIsRefused) {
  const Buffer used = buffer();
  UseScope scope(a);
  scope.begin();
  EXPECT_EQ(scope.try_add(used, Access::read).failure().code(), ErrorCode::stream_misuse);
  EXPECT_EQ(scope.try_begin().failure().code(), ErrorCode::stream_misuse);
  scope.end();
  EXPECT_EQ(scope.try_add(used, Access::read).failure().code(), ErrorCode::stream_misuse);
}

TEST_F(UseScopeTest, ZeroBytesAreNoUse) {
  UseScope scope(a);
  scope.add(Buffer(), Access::read);
  scope.add(buffer().byte_view(0, 0), Access::discard);
  scope.add(Array<float>(), Access::read);
  scope.begin();
  EXPECT_EQ(scope.pointer(0), nullptr);
  EXPECT_EQ(scope.pointer(1), nullptr);
  scope.end();
  EXPECT_EQ(waits(), 0u);
}

TEST_F(UseScopeTest, AStreamThatTakesNoWorkIsRefused) {
  const Buffer used = buffer();
  std::optional<Stream> gone(std::in_place, device);
  UseScope scope(*gone);
  scope.add(used, Access::read);
  gone.reset();
  EXPECT_EQ(scope.try_begin().failure().code(), ErrorCode::stream_misuse);
  UseScope none{StreamRef()};
  none.add(used, Access::read);
  EXPECT_FALSE(none.try_begin());
}

TEST_F(UseScopeTest, WorkOfAStreamThatHasEndedSinceStaysOnRecord) {
  Buffer used = buffer();
  std::optional<Stream> gone(std::in_place, device);
  const std::uint64_t hold = sim::hold(*gone);
  UseScope scope(*gone);
  scope.add(used, Access::discard);
  scope.begin();
  gone->fill(static_cast<float*>(scope.pointer(0)), 64, 1.0f);
  gone.reset();
  scope.end();
  EXPECT_FALSE(is_idle(used));
  sim::resume(device, hold);
}

TEST_F(UseScopeTest, NeedsNoHeapForEightUses) {
  std::vector<Buffer> used;
  for (int i = 0; i < 9; ++i) use(a, used.emplace_back(buffer()), Access::read);
  std::size_t eight = 0, nine = 0;
  for (const std::size_t count : {std::size_t{8}, std::size_t{9}}) {
    const test::AllocationCounter counter;
    {
      UseScope scope(a);
      for (std::size_t i = 0; i < count; ++i) {
        static_cast<void>(scope.try_add(used[i], Access::read_write).value());
      }
      scope.begin();
      scope.end();
    }
    (count == 8 ? eight : nine) = counter.count();
  }
  EXPECT_EQ(eight, 0u);
  EXPECT_EQ(nine, 1u);
}

TEST_F(UseScopeTest, HoldsAsManyUsesAsThereAre) {
  std::vector<Buffer> used;
  UseScope scope(b);
  for (int i = 0; i < 100; ++i) {
    use(a, used.emplace_back(buffer(4)), Access::discard);
    scope.add(used.back(), Access::read);
  }
  scope.begin();
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scope.pointer(i)), used[i].address());
  }
}

TEST_F(UseScopeTest, KeepsTheStorageUntilItsEnd) {
  std::optional<Buffer> used = buffer();
  UseScope scope(a);
  const std::size_t index = scope.add(*used, Access::discard);
  scope.begin();
  used.reset();
  a.fill(static_cast<float*>(scope.pointer(index)), 64, 1.0f);
  scope.end();
}

TEST_F(UseScopeTest, TakesNoShareOfWhatItBorrows) {
  const Buffer used = buffer();
  UseScope scope(a);
  const std::size_t index = scope.try_add_borrowed(used, Access::discard).value();
  EXPECT_EQ(used.storage()->shares(), 1u);
  const std::size_t owned = scope.add(used.byte_view(0, 4), Access::read);
  EXPECT_EQ(used.storage()->shares(), 2u);
  scope.begin();
  EXPECT_EQ(scope.pointer(index), scope.pointer(owned));
  scope.end();
  EXPECT_EQ(used.storage()->shares(), 1u);
  EXPECT_FALSE(is_idle(used));
}

TEST_F(UseScopeTest, AMillionReadsOnEightStreamsHoldNothing) {
  std::vector<Stream> streams;
  for (int i = 0; i < 8; ++i) streams.emplace_back(device);
  const Buffer used = buffer();
  const auto read = [&](StreamRef stream) {
    UseScope scope(stream);
    static_cast<void>(scope.try_add(used, Access::read).value());
    scope.begin();
    scope.end();
  };
  use(a, used, Access::discard);
  for (const Stream& stream : streams) read(stream);
  const std::uint64_t waits_before = waits(), records_before = sim::calls(device, "record");
  const test::AllocationCounter counter;
  for (int i = 0; i < 1'000'000; ++i) read(streams[static_cast<std::size_t>(i) % 8]);
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(waits(), waits_before) << "each has waited for the write";
  EXPECT_EQ(sim::calls(device, "record"), records_before);
  EXPECT_LT(records_before, 100u);
  EXPECT_EQ(used.storage()->uses().size(), 9u);
}

TEST(UseScopeOnFake, AMillionReadsOnEightStreamsMakeFewEventsWhoeverWritesBetweenThem) {
  constexpr std::size_t reads = test::is_sanitized ? 10'000 : 1'000'000;
  const test::FakeDevice fake;
  std::vector<Stream> streams;
  for (int i = 0; i < 8; ++i) streams.emplace_back(fake.device);
  const Stream writer(fake.device);
  const Buffer used = Buffer::allocate(fake.device, Shape{64}, DType::f32);
  const auto use = [&](StreamRef stream, Access access) {
    UseScope scope(stream);
    static_cast<void>(scope.try_add(used, access).value());
    scope.begin();
    scope.end();
  };
  for (std::size_t i = 0; i < reads; ++i) {
    if (i % 1000 == 0) use(writer, Access::discard);
    use(streams[i % streams.size()], Access::read);
    EXPECT_LE(used.storage()->uses().size(), 9u);
  }
  EXPECT_GT(fake.ledger->count(test::Call::wait), 8u);
  EXPECT_LT(fake.ledger->count(test::Call::create_event), 100u);
}

}  // namespace
}  // namespace tern
