#include "tern/device/stream.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

class StreamTest : public testing::Test {
 protected:
  ~StreamTest() override { EXPECT_EQ(fake.ledger->violations(), 0u); }

  /// Asks the stream, and sees that the backend was not.
  template <class Ask>
  void expect_refused_early(Ask ask, ErrorCode code) {
    const std::size_t before = fake.ledger->total();
    const auto result = ask();
    ASSERT_FALSE(result);
    EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
    EXPECT_EQ(fake.ledger->total(), before);
  }

  // Copies in flight use the arrays of the fixture.
  void TearDown() override { static_cast<void>(fake.device.try_synchronize()); }

  FakeDevice fake;
  Stream stream{fake.device};
  std::byte a[64] = {}, b[64] = {};
};

TEST_F(StreamTest, MakesNoBackendCallForZeroBytes) {
  const std::size_t before = fake.ledger->total();
  EXPECT_TRUE(stream.try_copy(nullptr, nullptr, 0));
  EXPECT_TRUE(stream.try_copy_2d({}));
  EXPECT_TRUE(stream.try_copy_from_peer(nullptr, fake.device, nullptr, 0));
  EXPECT_TRUE(stream.try_fill(static_cast<int*>(nullptr), 0, 7));
  EXPECT_EQ(*stream.try_allocate(0), nullptr);
  EXPECT_TRUE(stream.try_release(nullptr));
  EXPECT_TRUE(stream.try_prefetch(nullptr, 0, Place::host()));
  const PrefetchRange nothing[] = {{nullptr, 0, Place::device(DeviceId{99999})}};
  EXPECT_TRUE(stream.try_prefetch_batch(nothing));
  EXPECT_TRUE(stream.try_discard(nullptr, 0));
  EXPECT_TRUE(stream.try_launch({1}, {.grid = {0, 0, 0}}, {}));
  EXPECT_TRUE(stream.try_wait(Mark{}));
  EXPECT_TRUE(stream.try_wait(stream.mark()));
  EXPECT_EQ(fake.ledger->total(), before);
}

class IdleStream : public StreamTest {
 protected:
  /// Returns whether the backend was told that the stream of a copy is idle.
  bool copies_idly(StreamRef on) {
    const std::size_t before = fake.ledger->idle_copies();
    on.copy(a, b, sizeof a);
    return fake.ledger->idle_copies() > before;
  }
};

TEST_F(IdleStream, IsKnownUntilWorkIsSubmittedAndAfterAWaitOfTheHost) {
  EXPECT_TRUE(copies_idly(stream)) << "a new stream";
  EXPECT_FALSE(copies_idly(stream));
  stream.synchronize();
  EXPECT_TRUE(copies_idly(stream));
  stream.synchronize();
  stream.fill(a, sizeof a, std::byte{1});
  EXPECT_FALSE(copies_idly(stream));
}

TEST_F(IdleStream, IsNotAssumedAfterAWaitForAnotherStream) {
  const Stream other(fake.device);
  Gate gate;
  gate.hold(other);
  stream.wait(other.mark());
  EXPECT_FALSE(copies_idly(stream));
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(copies_idly(stream));
}

TEST_F(IdleStream, IsNotAssumedIfOtherCodeMaySubmitWork) {
  const Stream blocking(fake.device, {.blocking = true});
  EXPECT_FALSE(copies_idly(blocking)) << "the default stream may delay it";
  EXPECT_FALSE(copies_idly(fake.device.default_stream()));
  static_cast<void>(stream.try_native());
  EXPECT_FALSE(copies_idly(stream));
  stream.synchronize();
  EXPECT_FALSE(copies_idly(stream)) << "the program has its handle";
  blocking.synchronize();  // its copy uses the arrays of the fixture
}

// The call may submit its work after the wait.
TEST_F(IdleStream, IsNotAssumedIfACallWasActiveDuringTheWait) {
  bool is_idle_meanwhile = true;
  fake.ledger->run_after(Call::copy, [&] {
    stream.synchronize();
    is_idle_meanwhile = copies_idly(stream);
    stream.synchronize();
  });
  stream.copy(a, b, sizeof a);
  EXPECT_FALSE(is_idle_meanwhile);
  EXPECT_FALSE(copies_idly(stream));
  stream.synchronize();
  EXPECT_TRUE(copies_idly(stream));
}

TEST_F(IdleStream, IsNotAssumedAfterAWaitThatFailed) {
  static_cast<void>(copies_idly(stream));
  fake.ledger->fail_next(Call::synchronize_stream);
  EXPECT_FALSE(stream.try_synchronize());
  EXPECT_FALSE(copies_idly(stream));
}

TEST_F(StreamTest, RefusesBadArgumentsBeforeTheBackendIsAsked) {
  const std::size_t too_much = max_request_bytes + 1;
  const KernelArgument null_value{nullptr, 4, nullptr, 0, Access::read};
  Event empty;
  expect_refused_early([&] { return stream.try_copy(a, nullptr, 64); },
                       ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_copy(a, b, too_much); }, ErrorCode::size_overflow);
  const PrefetchRange good{a, 64, Place::host()};
  const PrefetchRange null_one[] = {good, {nullptr, 64, Place::host()}};
  expect_refused_early([&] { return stream.try_prefetch_batch(null_one); },
                       ErrorCode::invalid_argument);
  const PrefetchRange large_one[] = {good, {a, too_much, Place::host()}};
  expect_refused_early([&] { return stream.try_prefetch_batch(large_one); },
                       ErrorCode::size_overflow);
  const PrefetchRange lost_one[] = {good, {a, 64, Place::device(DeviceId{99999})}};
  expect_refused_early([&] { return stream.try_prefetch_batch(lost_one); },
                       ErrorCode::invalid_device);
  expect_refused_early([&] { return stream.try_discard(nullptr, 64); },
                       ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_discard(a, 64, Place::device(DeviceId{99999})); },
                       ErrorCode::invalid_device);
  expect_refused_early([&] { return stream.try_copy(a + 1, a, 63); }, ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_copy_from_peer(nullptr, fake.device, b, 64); },
                       ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_copy_from_peer(a, Device(), b, 64); },
                       ErrorCode::device_mismatch);
  expect_refused_early([&] { return stream.try_fill(a, too_much, std::byte{1}); },
                       ErrorCode::size_overflow);
  expect_refused_early([&] { return stream.try_allocate(too_much); }, ErrorCode::size_overflow);
  expect_refused_early([&] { return stream.try_call(nullptr, nullptr); },
                       ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_launch({}, {}, {}); }, ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_launch({1}, {}, std::span(&null_value, 1)); },
                       ErrorCode::invalid_argument);
  expect_refused_early([&] { return stream.try_record(empty); }, ErrorCode::invalid_argument);
}

TEST_F(StreamTest, NamesTheCallersLineInEveryRefusal) {
  const CallSite here = CallSite::here();
  EXPECT_EQ(stream.try_copy(a, nullptr, 64, here).failure().site().line, here.line);
  EXPECT_EQ(stream.try_copy(a, a, 64, here).failure().site().line, here.line);
  EXPECT_EQ(StreamRef().try_copy(a, b, 64, here).failure().site().line, here.line);
  for (const Call call : {Call::copy, Call::fill, Call::call_host}) fake.ledger->fail_next(call);
  EXPECT_EQ(stream.try_copy(a, b, 64, here).failure().site().line, here.line);
  EXPECT_EQ(stream.try_fill(a, 64, std::byte{1}, here).failure().site().line, here.line);
  EXPECT_EQ(stream.try_call([](void*) {}, nullptr, here).failure().site().line, here.line);
}

TEST_F(StreamTest, LimitsKernelArgumentsToWhatTheDeviceTakes) {
  const FakeDevice small({.describe = [](DeviceInfo& info) { info.max_kernel_arguments = 2; }});
  const Stream narrow(small.device);
  const NativeKernel kernel =
      *small.device.try_load_kernel({.entry = "none", .body = [](const KernelCall&) {}});
  int value = 1;
  const std::vector<KernelArgument> three(3, {&value, sizeof value, nullptr, 0, Access::read});
  EXPECT_TRUE(narrow.try_launch(kernel, {}, std::span(three).first(2)));
  const Result<void> refused = narrow.try_launch(kernel, {}, three);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(refused.failure().number("count"), 3u);
  EXPECT_EQ(refused.failure().number("max"), 2u);
  narrow.synchronize();
  small.device.unload_kernel(kernel);
  EXPECT_EQ(small.ledger->live_kernels(), 0u);
}

TEST_F(StreamTest, CopiesFromPeersOfItsBackendOnly) {
  const FakeDevice peer({.spec = "fake:1"});
  const FakeDevice stranger({.backend = "other", .spec = "other:0"});
  b[0] = std::byte{5};
  EXPECT_TRUE(stream.try_copy_from_peer(a, peer.device, b, 64));
  stream.synchronize();
  EXPECT_EQ(a[0], std::byte{5});
  const Result<void> refused = stream.try_copy_from_peer(a, stranger.device, b, 64);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("b"), "other:0");
}

TEST_F(StreamTest, WaitsForMarksOfItsBackendOnly) {
  const FakeDevice sibling({.spec = "fake:1"});
  const FakeDevice stranger({.backend = "other", .spec = "other:0"});
  Gate gate;
  gate.hold(stream);
  const Mark mark = stream.mark();
  EXPECT_EQ(stranger.device.default_stream().try_wait(mark).failure().code(),
            ErrorCode::device_mismatch);
  const StreamRef other = sibling.device.default_stream();
  EXPECT_TRUE(other.try_wait(mark));
  EXPECT_FALSE(other.is_idle());
  gate.open();
  other.synchronize();
  EXPECT_TRUE(stranger.device.default_stream().try_wait(Mark{}));
}

TEST_F(StreamTest, CopiesManyRangesAndNoneOfZeroBytes) {
  for (std::size_t i = 0; i < 64; ++i) b[i] = static_cast<std::byte>(i);
  const CopyRange ranges[] = {{nullptr, nullptr, 0}, {a, b, 8},       {a + 8, b + 16, 8},
                              {nullptr, nullptr, 0}, {a + 32, b, 32}, {nullptr, nullptr, 0}};
  stream.copy_batch(ranges);
  stream.synchronize();
  EXPECT_EQ(fake.ledger->count(Call::copy), 3u);
  EXPECT_EQ(a[7], std::byte{7});
  EXPECT_EQ(a[8], std::byte{16});
  EXPECT_EQ(a[16], std::byte{0});
  EXPECT_EQ(a[63], std::byte{31});
  EXPECT_TRUE(stream.try_copy_batch({}));
}

TEST_F(StreamTest, CopiesNothingOfABatchWithABadRange) {
  const std::size_t too_much = max_request_bytes + 1;
  for (const CopyRange& bad : {CopyRange{nullptr, b, 8}, CopyRange{a, nullptr, 8},
                               CopyRange{a, a + 4, 8}, CopyRange{a, b, too_much}}) {
    const CopyRange ranges[] = {{a, b, 8}, bad};
    const std::size_t before = fake.ledger->total();
    EXPECT_FALSE(stream.try_copy_batch(ranges));
    EXPECT_EQ(fake.ledger->total(), before);
  }
  fake.ledger->fail_next(Call::copy);
  const CopyRange fine[] = {{a, b, 8}};
  EXPECT_EQ(stream.try_copy_batch(fine).failure().code(), ErrorCode::driver);
}

TEST_F(StreamTest, BorrowsAStreamAsOneHoweverOften) {
  const std::size_t before = fake.ledger->live_streams();
  {
    Stream first = Stream::borrow(fake.device, NativeStream{70});
    const Stream again = Stream::borrow(fake.device, NativeStream{70});
    const Stream other = Stream::borrow(fake.device, NativeStream{71});
    EXPECT_EQ(StreamRef(first), StreamRef(again));
    EXPECT_NE(StreamRef(first), StreamRef(other));
    EXPECT_EQ(fake.ledger->live_streams(), before + 2);
    const StreamRef ref = first;
    first = Stream();
    EXPECT_TRUE(ref.is_usable());  // the other loan goes on
    again.fill(a, 64, std::byte{4});
    again.synchronize();
    EXPECT_EQ(a[63], std::byte{4});
  }
  EXPECT_EQ(fake.ledger->live_streams(), before);
  // A loan that has ended is over, whatever the handle is used for next.
  const Stream next = Stream::borrow(fake.device, NativeStream{70});
  EXPECT_TRUE(next.is_usable());
}

TEST_F(StreamTest, BorrowsTheDefaultStreamAsItsOwn) {
  {
    const Stream borrowed = Stream::borrow(fake.device, NativeStream{0});
    EXPECT_EQ(StreamRef(borrowed), fake.device.default_stream());
  }
  EXPECT_TRUE(fake.device.default_stream().is_usable());
}

TEST_F(StreamTest, BorrowsNothingWhereThatCannotBe) {
  const FakeDevice plain({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::borrowed_streams);
  }});
  const Result<Stream> refused = Stream::try_borrow(plain.device, NativeStream{70});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(Stream::try_borrow(Device(), NativeStream{70}).failure().code(),
            ErrorCode::invalid_device);
  fake.ledger->fail_next(Call::create_stream);
  EXPECT_EQ(Stream::try_borrow(fake.device, NativeStream{70}).failure().code(), ErrorCode::driver);
}

TEST_F(StreamTest, MovesWithoutEnding) {
  const StreamId id = stream.id();
  Stream moved(std::move(stream));
  EXPECT_EQ(moved.id(), id);
  EXPECT_EQ(static_cast<StreamRef&>(stream), StreamRef());
  Stream& same = moved;
  moved = std::move(same);
  EXPECT_EQ(moved.id(), id);
  EXPECT_TRUE(moved.try_synchronize());
  EXPECT_EQ(fake.ledger->live_streams(), 1u);
  moved = Stream(fake.device);
  EXPECT_NE(moved.id(), id);
  EXPECT_EQ(fake.ledger->live_streams(), 1u);
  moved = Stream();
  EXPECT_EQ(fake.ledger->live_streams(), 0u);
}

TEST_F(StreamTest, ThatWasMovedFromSaysSo) {
  Stream kept(std::move(stream));
  const auto expect_named = [](const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::stream_misuse);
    EXPECT_NE(failure.text().find("the stream was moved from"), std::string::npos)
        << failure.text();
  };
  expect_named(stream.try_synchronize().failure());
  expect_named(stream.try_mark().failure());
  expect_named(stream.try_next_mark().failure());
  expect_named(stream.try_native().failure());
  expect_named(StreamRef(stream).try_is_idle().failure());
  const Timeline timeline;
  expect_named(timeline.try_set(stream, 1).failure());
  EXPECT_THROW(static_cast<void>(stream.device()), StreamMisuse);
  EXPECT_FALSE(stream.is_usable());
  EXPECT_EQ(stream.name(), "ended");
  EXPECT_EQ(stream.id(), StreamId());

  Stream again;
  again = std::move(kept);
  expect_named(kept.try_synchronize().failure());
  stream = std::move(again);
  EXPECT_TRUE(stream.try_synchronize()) << "what was moved from may be assigned to";
  EXPECT_EQ(Stream().try_synchronize().failure().text().find("moved"), std::string::npos);
}

TEST_F(StreamTest, EndsInAForkedChildWithoutAskingTheBackend) {
  const int outcome = test::in_a_forked_child([&] {
    static_cast<void>(stream.try_mark());
    stream = Stream();
    return fake.ledger->live_streams() == 1;
  });
  EXPECT_EQ(outcome, 0);
}

TEST_F(StreamTest, IsNotMadeWhenTheBackendRefuses) {
  fake.ledger->fail_next(Call::create_stream, 2);
  EXPECT_EQ(Stream::try_make(fake.device).failure().code(), ErrorCode::driver);
  EXPECT_THROW(Stream{fake.device}, DriverError);
  const Stream made(fake.device);
  EXPECT_EQ(made.id().number(), stream.id().number() + 1);  // a refusal uses up no number
}

TEST_F(StreamTest, CallsItselfEndedOnceItHas) {
  StreamRef ref;
  {
    const Stream brief(fake.device, {.name = "brief"});
    ref = brief;
    EXPECT_EQ(ref.name(), "brief");
    EXPECT_EQ(ref.device(), fake.device);
  }
  EXPECT_EQ(ref.name(), "ended");
  EXPECT_EQ(ref.device_id(), fake.device.id());
  EXPECT_THROW(static_cast<void>(ref.device()), StreamMisuse);
}

}  // namespace
}  // namespace tern
