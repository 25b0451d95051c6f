// Misuse fails with a named error, and the device works as before.

#include "support/forked_child.hpp"
#include "support/ladder.hpp"

namespace tern::test {
namespace {

class FailsCleanly : public Ladder {
 protected:
  void TearDown() override {
    const Block block(device, 100);
    write(block.get(), sample(100));
    EXPECT_EQ(read(block.get(), 100), sample(100));
  }

  /// Every call of a stream that can be refused for the stream's own sake.
  static void expect_all_refused(StreamRef ref, const Device& device, ErrorCode code) {
    std::byte a[64] = {}, b[64] = {};
    Event event(device);
    expect_refused(ref.try_copy(a, b, 64), code);
    expect_refused(ref.try_copy(a, b, 0), code);
    expect_refused(ref.try_copy_2d({a, 8, b, 8, 8, 8}), code);
    expect_refused(ref.try_copy_from_peer(a, device, b, 64), code);
    expect_refused(ref.try_fill_bytes(a, 64, Pattern{}), code);
    expect_refused(ref.try_fill(a, 64, std::byte{1}), code);
    expect_refused(ref.try_allocate(64), code);
    expect_refused(ref.try_release(a), code);
    expect_refused(ref.try_prefetch(a, 64, Place::host()), code);
    expect_refused(ref.try_call([](void*) {}, nullptr), code);
    expect_refused(ref.try_launch({}, {}, {}), code);
    expect_refused(ref.try_mark(), code);
    expect_refused(ref.try_wait(Mark{}), code);
    expect_refused(ref.try_record(event), code);
    expect_refused(ref.try_wait(event), code);
    expect_refused(ref.try_is_idle(), code);
    expect_refused(ref.try_synchronize(), code);
    expect_refused(ref.try_native(), code);
  }
};
TERN_CLIMB(FailsCleanly);

TEST_P(FailsCleanly, OnAReferenceToNoStream) {
  expect_all_refused(StreamRef(), device, ErrorCode::stream_misuse);
  EXPECT_EQ(StreamRef().name(), "ended");
  EXPECT_THROW(static_cast<void>(StreamRef().device()), StreamMisuse);
}

TEST_P(FailsCleanly, OnAStreamThatHasEnded) {
  StreamRef ref;
  {
    const Stream brief(device);
    ref = brief;
  }
  expect_all_refused(ref, device, ErrorCode::stream_misuse);
  EXPECT_EQ(ref.try_mark().failure().number("stream"), ref.id().number());
  EXPECT_EQ(ref.name(), "ended");
  const Stream next(device);  // takes the slot
  expect_all_refused(ref, device, ErrorCode::stream_misuse);
  EXPECT_NE(ref, StreamRef(next));
}

TEST_P(FailsCleanly, OnAStreamThatHasEndedWithWorkLeft) {
  if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  Gate gate;
  StreamRef ref;
  {
    const Stream brief(device);
    ref = brief;
    gate.hold(brief);
    static_cast<void>(brief.mark());
  }
  expect_all_refused(ref, device, ErrorCode::stream_misuse);
}

TEST_P(FailsCleanly, OnAnEventOfAnotherDevice) {
  const Device second = open_device(device.spec() == "host" ? "host?threads=2" : "host");
  Event foreign(second);
  const Result<void> refused = stream.try_record(foreign);
  expect_refused(refused, ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), device.spec());
  EXPECT_EQ(refused.failure().string("b"), second.spec());
  EXPECT_FALSE(foreign.is_recorded());
}

TEST_P(FailsCleanly, OnAStreamOfAnotherDeviceUnlessItsBackendCanWait) {
  if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  const Device second = open_device(device.spec() == "host" ? "host?threads=2" : "host");
  const Stream foreign(second);
  Gate gate;
  gate.hold(foreign);
  const Mark mark = foreign.mark();
  if (second.info().backend != device.info().backend) {
    expect_refused(stream.try_wait(mark), ErrorCode::device_mismatch);
    return;
  }
  ASSERT_TRUE(stream.try_wait(mark));
  Event event(second);
  foreign.record(event);
  ASSERT_TRUE(stream.try_wait(event));
  EXPECT_FALSE(stream.is_idle());
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(Device::is_done(mark));
}

TEST_P(FailsCleanly, WithMemoryThatBelongsToAnotherDevice) {
  const Device second = open_device(device.spec() == "host" ? "host?threads=2" : "host");
  const Block block(second, 64);
  expect_refused(device.try_release(block.get()), ErrorCode::use_after_free);
}

TEST_P(FailsCleanly, InAForkedChild) {
  const Mark mark = stream.mark();
  stream.call([](void*) {}, nullptr);  // the stream has a thread, where streams have threads
  stream.synchronize();
  ASSERT_TRUE(Device::is_done(mark));
  const Event event(device);
  const Mark unseen = stream.mark();
  const int outcome = in_a_forked_child([&] {
    // The parent has seen the first mark done, which is still true in the child.
    return bool(Device::try_wait(mark)) && Device::is_done(mark) &&
           is_after_fork(Device::try_wait(unseen)) && is_after_fork(Device::try_is_done(unseen)) &&
           is_after_fork(stream.try_synchronize()) && is_after_fork(stream.try_is_idle()) &&
           is_after_fork(stream.try_mark()) && is_after_fork(stream.try_wait(unseen)) &&
           is_after_fork(stream.try_wait(event)) && is_after_fork(device.try_synchronize()) &&
           is_after_fork(Stream::try_make(device)) && is_after_fork(Event::try_make(device)) &&
           is_after_fork(device.try_memory()) && is_after_fork(device.try_pointer_info(&mark)) &&
           is_after_fork(device.try_enable_peer_access(device)) &&
           is_after_fork(device.default_stream().try_synchronize()) &&
           (!can(Capability::virtual_memory) || is_after_fork(device.try_reserve(2 * mib))) &&
           (!can(Capability::kernels) || is_after_fork(device.try_load_kernel({})));
  });
  EXPECT_EQ(outcome, 0);
}

TEST_P(FailsCleanly, InAForkedChildWhereHostMemoryStillWorks) {
  void* before = device.allocate(MemoryKind::device, 5 * mib);
  const int outcome = in_a_forked_child([&] {
    const Result<void*> address = device.try_allocate(MemoryKind::device, 1000);
    if (!can(Capability::memory_after_fork)) return is_after_fork(address);
    if (!address) return false;
    std::memset(*address, 1, 1000);
    return bool(device.try_release(*address)) && bool(device.try_release(before)) &&
           !device.try_release(before);
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(device.try_release(before));
}

TEST_P(FailsCleanly, InAForkedChildWhereHandlesEndQuietly) {
  const int outcome = in_a_forked_child([&] {
    Stream moved(std::move(stream));
    moved = Stream();
    Event event;
    Device last(device);
    last = Device();
    return true;
  });
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tern::test
