#include "tern/launch/launch_recorder.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer/block_uses.hpp"
#include "support/cuda_bench.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// Two streams that stand still, a pool, and a device that checks the order of everything.
class LaunchRecorderTest : public testing::Test {
 protected:
  Buffer buffer() {
    return Buffer::allocate(device, Shape{64}, DType::f32,
                            {.resource = pool, .contents = Contents::unspecified});
  }
  Block block(std::size_t bytes = 256) { return pool->allocate({.bytes = bytes, .stream = c}); }
  template <class Used>
  void launch(StreamRef stream, const Used& used, Access access) {
    LaunchRecorder recorder(stream);
    recorder.use(used, access);
    recorder.preflight();
    recorder.commit();
  }
  void launch(StreamRef stream, const Block& used, Access access) {
    LaunchRecorder recorder(stream);
    recorder.use(*pool, used, access);
    recorder.preflight();
    recorder.commit();
  }
  std::uint64_t waits() const { return sim::calls(device, "wait"); }
  static bool is_idle(const Buffer& used) {
    return used.storage()->uses().try_is_ready(Access::discard).value();
  }
  static ErrorCode code(const Result<void>& result) {
    return result ? ErrorCode{} : result.failure().code();
  }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream a{device}, b{device}, c{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  std::uint64_t hold_a = sim::hold(a), hold_b = sim::hold(b);

  void TearDown() override {
    sim::resume(device, hold_a);
    sim::resume(device, hold_b);
    EXPECT_TRUE(sim::findings(device).empty());
  }
};

TEST_F(LaunchRecorderTest, PutsALaunchInOrder) {
  const Buffer in = buffer(), out = buffer();
  launch(a, in, Access::discard);
  LaunchRecorder recorder(b);
  const std::size_t first = recorder.use(in, Access::read);
  const std::size_t second = recorder.use(out, Access::discard);
  EXPECT_EQ(recorder.pointer(first), nullptr) << "no address without a preflight";
  recorder.preflight();
  EXPECT_EQ(waits(), 1u);
  b.copy(recorder.pointer(second), recorder.pointer(first), 256);
  EXPECT_TRUE(is_idle(out)) << "not on record yet";
  recorder.commit();
  EXPECT_FALSE(is_idle(out));
  EXPECT_EQ(recorder.pointer(first), nullptr);
}

TEST_F(LaunchRecorderTest, RejectsCallsInTheWrongOrder) {
  const Buffer used = buffer();
  LaunchRecorder recorder(a);
  recorder.use(used, Access::read);
  EXPECT_EQ(code(recorder.try_commit()), ErrorCode::stream_misuse) << "without preflight";
  recorder.preflight();
  EXPECT_EQ(recorder.try_use(used, Access::read).failure().code(), ErrorCode::stream_misuse);
  EXPECT_EQ(recorder.try_use(*pool, Block(), Access::read).failure().code(),
            ErrorCode::stream_misuse);
  EXPECT_EQ(recorder.try_use_external(&hold_a, 8, Access::read).failure().code(),
            ErrorCode::stream_misuse);
  EXPECT_EQ(code(recorder.try_preflight()), ErrorCode::stream_misuse) << "twice";
  recorder.commit();
  EXPECT_EQ(code(recorder.try_commit()), ErrorCode::stream_misuse) << "twice";
  EXPECT_EQ(code(recorder.try_preflight()), ErrorCode::stream_misuse);
  EXPECT_EQ(recorder.try_use(used, Access::read).failure().code(), ErrorCode::stream_misuse);
  EXPECT_EQ(recorder.size(), 1u);
}

TEST_F(LaunchRecorderTest, WithoutDeclarationsDoesNothing) {
  const LaunchStatistics before = launch_statistics();
  {
    LaunchRecorder recorder(a);
    recorder.preflight();
    recorder.commit();
    const LaunchRecorder untouched(a);
  }
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(launch_statistics().dropped, before.dropped);
}

TEST_F(LaunchRecorderTest, KeepsAUseThatOthersBeginBetweenPreflightAndCommit) {
  std::optional<Buffer> used = buffer();
  LaunchRecorder writer(a);
  writer.use(*used, Access::discard);
  writer.preflight();
  launch(b, *used, Access::read);  // of the same thread, which does not wait for itself
  writer.commit();
  std::vector<UseRecord::Entry> left(4);
  ASSERT_EQ(used->storage()->uses().list(left), 2u);
  const std::uint64_t before = waits();
  used.reset();
  EXPECT_EQ(waits(), before + 1) << "freed on one of the streams, behind the other";
}

TEST_F(LaunchRecorderTest, AnotherThreadLaunchesBehindTheCommit) {
  Buffer used = buffer();
  LaunchRecorder writer(a);
  writer.use(used, Access::discard);
  writer.preflight();
  const std::uint64_t before = waits();
  std::atomic<bool> is_about_to = false;
  test::Thread reader([&] {
    is_about_to = true;
    launch(b, used, Access::read);
  });
  while (!is_about_to) std::this_thread::yield();
  writer.commit();
  reader.join();
  EXPECT_EQ(waits(), before + 1) << "the reader's stream waits for the writer's";
}

TEST_F(LaunchRecorderTest, ABlockAndItsFreeAreInOrderToo) {
  const Block used = block();
  launch(a, used, Access::discard);
  launch(b, used, Access::read);
  EXPECT_EQ(waits(), 1u);
  ASSERT_TRUE(try_wait_for_uses(c, used));
  EXPECT_EQ(waits(), 3u) << "behind the writer and the reader";
  pool->deallocate(used, c);
}

TEST_F(LaunchRecorderTest, ABlockMustMatchItsAllocation) {
  const Block used = block();
  LaunchRecorder recorder(b);
  launch(a, used, Access::discard);
  recorder.use(*pool, used, Access::read);
  recorder.use(*pool, used, Access::read_write);
  recorder.preflight();
  EXPECT_EQ(waits(), 1u) << "one use";
  recorder.commit();

  pool->deallocate(used, c);
  const Block next = block();
  ASSERT_EQ(next.address, used.address);
  LaunchRecorder late(c);
  late.use(*pool, next, Access::read);
  late.use(*pool, used, Access::read);
  EXPECT_EQ(code(late.try_preflight()), ErrorCode::use_after_free) << "another generation";
  pool->deallocate(next, c);
}

TEST_F(LaunchRecorderTest, ReportsABlockFreedBeforeTheCommit) {
  const Block used = block();
  const Buffer other = buffer();
  LaunchRecorder recorder(a);
  recorder.use(*pool, used, Access::read);
  recorder.use(other, Access::read);
  recorder.preflight();
  pool->deallocate(used, c);
  EXPECT_EQ(code(recorder.try_commit()), ErrorCode::use_after_free);
  EXPECT_FALSE(is_idle(other)) << "the launch was made: the others are on record";
}

TEST_F(LaunchRecorderTest, QueuesNothingIfOneOfThreeIsBad) {
  const Buffer first = buffer();
  const Block second = block();
  launch(a, first, Access::discard);
  launch(a, second, Access::discard);
  const Block stale = block();
  pool->deallocate(stale, c);
  Block inside = second;
  inside.address = static_cast<std::byte*>(inside.address) + 16;
  for (const Block& third : {stale, inside}) {
    LaunchRecorder recorder(b);
    recorder.use(first, Access::read);
    recorder.use(*pool, second, Access::read);
    recorder.use(*pool, third, Access::read);
    EXPECT_FALSE(recorder.try_preflight());
    EXPECT_EQ(waits(), 0u);
    EXPECT_EQ(code(recorder.try_commit()), ErrorCode::stream_misuse) << "nothing has begun";
  }
  const Device peer = sim::open({});
  const auto far = std::make_shared<PoolResource>(peer);
  const Block there = far->allocate({.bytes = 64});
  LaunchRecorder recorder(b);
  recorder.use(first, Access::read);
  recorder.use(*far, there, Access::read);
  EXPECT_EQ(code(recorder.try_preflight()), ErrorCode::device_mismatch);
  EXPECT_EQ(waits(), 0u);
  far->deallocate(there, {});
  pool->deallocate(second, c);
}

TEST_F(LaunchRecorderTest, LeavesNothingWhereAWaitFailsAndSucceedsWhenTriedAgain) {
  for (const char* fault : {"wait#1=fail", "wait#2=fail"}) {
    const Buffer first = buffer();
    const Block second = block();
    launch(a, first, Access::discard);
    launch(a, second, Access::discard);
    LaunchRecorder recorder(b);
    recorder.use(first, Access::discard);
    recorder.use(*pool, second, Access::discard);
    sim::set_faults(device, fault);
    ASSERT_FALSE(recorder.try_preflight()) << fault;
    EXPECT_EQ(first.storage()->uses().size(), 1u);
    EXPECT_EQ(find_uses_of(second)->size(), 1u);
    sim::set_faults(device, "");
    ASSERT_TRUE(recorder.try_preflight()) << fault;
    EXPECT_EQ(waits(), 2u);
    recorder.commit();
    std::vector<UseRecord::Entry> left(2);
    ASSERT_EQ(find_uses_of(second)->list(left), 1u);
    EXPECT_EQ(left[0].stream, b);
    ASSERT_TRUE(try_wait_for_uses(c, second));
    pool->deallocate(second, c);
  }
}

/// Gives blocks whose late uses nobody would notice.
class ForgetfulResource final : public WrappingResource {
 public:
  explicit ForgetfulResource(ResourceHandle upstream)
      : WrappingResource("forgetful", std::move(upstream)) {}
  ResourceTraits traits() const noexcept override {
    ResourceTraits traits = WrappingResource::traits();
    traits.tracks_use = false;
    return traits;
  }
};

TEST_F(LaunchRecorderTest, StrictRefusesWhatItCannotTrackAndSaysWhy) {
  ForgetfulResource forgetful(pool);
  const Block used = forgetful.allocate({.bytes = 64, .stream = c});
  LaunchRecorder untracked(a);
  untracked.use(forgetful, used, Access::read);
  const Result<void> refused = untracked.try_preflight();
  EXPECT_EQ(code(refused), ErrorCode::untracked_buffer);
  EXPECT_NE(refused.failure().text().find("its resource does not track uses"), std::string::npos);

  LaunchRecorder external(a);
  external.use_external(used.address, 64, Access::read);
  const Result<void> unknown = external.try_preflight();
  EXPECT_EQ(code(unknown), ErrorCode::untracked_buffer);
  EXPECT_NE(unknown.failure().text().find("external memory"), std::string::npos);
  forgetful.deallocate(used, c);
}

TEST_F(LaunchRecorderTest, PermissiveSkipsAndCountsIt) {
  const std::uint64_t before = launch_statistics().skipped;
  const Buffer tracked = buffer();
  float other[4] = {};
  LaunchRecorder recorder(a, {.permissive = true});
  recorder.use(tracked, Access::read);
  const std::size_t skipped = recorder.use_external(other, sizeof other, Access::read);
  recorder.preflight();
  EXPECT_EQ(recorder.pointer(skipped), other);
  EXPECT_EQ(recorder.skipped(), 1u);
  EXPECT_EQ(launch_statistics().skipped, before + 1);
  recorder.commit();
  EXPECT_FALSE(is_idle(tracked));
}

TEST_F(LaunchRecorderTest, AdoptedMemoryIsTracked) {
  const Block theirs = block();
  {
    Buffer adopted = adopt(device, theirs.address, 256, {.is_complete = true});
    launch(a, adopted, Access::discard);
    const std::uint64_t before = waits();
    launch(b, adopted, Access::read);
    EXPECT_EQ(waits(), before + 1);
  }
  c.wait(a.mark());
  c.wait(b.mark());
  pool->deallocate(theirs, c);
}

TEST_F(LaunchRecorderTest, StrictRefusesAnImportOfUnstatedReadiness) {
  const Block theirs = block();
  c.synchronize();
  {
    const Buffer ours = buffer();
    const Buffer adopted = adopt(device, theirs.address, 256, {});
    const Buffer lent = borrow(device, theirs.address, 256, {});
    for (const Buffer& imported : {adopted, lent}) {
      const std::uint64_t before = waits();
      LaunchRecorder recorder(a);
      recorder.use(ours, Access::discard);
      recorder.use(imported, Access::read);
      const Result<void> refused = recorder.try_preflight();
      ASSERT_EQ(code(refused), ErrorCode::untracked_buffer);
      EXPECT_EQ(refused.failure().number("argument"), 1u) << "the second one";
      EXPECT_EQ(refused.failure().number("buffer"), imported.storage()->id().value);
      const std::string text(refused.failure().text());
      EXPECT_NE(text.find("argument 1"), std::string::npos) << text;
      EXPECT_NE(text.find("synchronize"), std::string::npos) << text;
      EXPECT_EQ(waits(), before) << "nothing is queued";
      EXPECT_TRUE(is_idle(ours)) << "and nothing is on record";
    }
    LaunchRecorder permissive(a, {.permissive = true});
    permissive.use(adopted, Access::read);
    permissive.preflight();
    EXPECT_EQ(permissive.skipped(), 0u) << "its uses are tracked";
    permissive.commit();
    EXPECT_FALSE(is_idle(adopted));
  }
  c.wait(a.mark());
  pool->deallocate(theirs, c);
}

TEST_F(LaunchRecorderTest, StrictTakesAnImportWhoseReadinessWasStatedWithIt) {
  const Block theirs = block();
  c.synchronize();
  const std::uint64_t hold = sim::hold(c);
  {
    struct Case {
      Buffer imported;
      std::uint64_t waits;  // for the producer
    };
    for (const Case& one : {Case{adopt(device, theirs.address, 256, {.stream = c}), 1},
                            Case{adopt(device, theirs.address, 256, {.ready = c.next_mark()}), 1},
                            Case{adopt(device, theirs.address, 256, {.is_complete = true}), 0},
                            Case{borrow(device, theirs.address, 256, {.stream = c}), 1},
                            Case{borrow(device, theirs.address, 256, {.is_complete = true}), 0}}) {
      const std::uint64_t before = waits();
      LaunchRecorder recorder(b);
      recorder.use(one.imported, Access::read);
      ASSERT_TRUE(recorder.try_preflight());
      EXPECT_EQ(waits(), before + one.waits);
      recorder.cancel();
    }
  }
  sim::resume(device, hold);
  pool->deallocate(theirs, c);
}

TEST_F(LaunchRecorderTest, ReadinessMayBeStatedAfterTheImport) {
  const Block theirs = block();
  c.synchronize();
  const std::uint64_t hold = sim::hold(c);
  {
    const Buffer imported = adopt(device, theirs.address, 256, {});
    LaunchRecorder recorder(b);
    recorder.use(imported, Access::read);
    ASSERT_EQ(code(recorder.try_preflight()), ErrorCode::untracked_buffer);
    state_ready(imported, c);
    const std::uint64_t before = waits();
    ASSERT_TRUE(recorder.try_preflight()) << "the same call is made again";
    EXPECT_EQ(waits(), before + 1) << "behind the stream that was stated";
    recorder.cancel();

    const Buffer complete = adopt(device, theirs.address, 256, {});
    state_ready(complete, {});
    LaunchRecorder another(b);
    another.use(complete, Access::read);
    ASSERT_TRUE(another.try_preflight());
    another.cancel();
    EXPECT_EQ(try_state_ready(Buffer(), {}).failure().code(), ErrorCode::not_allocated);
  }
  sim::resume(device, hold);
  pool->deallocate(theirs, c);
}

TEST_F(LaunchRecorderTest, SynchronizingTheDeviceSettlesReadiness) {
  const Device other = sim::open({});
  const Stream stream(other);
  void* const theirs = other.allocate(MemoryKind::device, 256);
  {
    const Buffer earlier = adopt(other, theirs, 256, {});
    other.synchronize();
    const Buffer later = adopt(other, theirs, 256, {});
    LaunchRecorder settled(stream);
    settled.use(earlier, Access::read);
    EXPECT_TRUE(settled.try_preflight());
    settled.cancel();
    LaunchRecorder unsettled(stream);
    unsettled.use(later, Access::read);
    EXPECT_EQ(code(unsettled.try_preflight()), ErrorCode::untracked_buffer)
        << "the wait was before the import";
    sim::set_faults(other, "sync#1=fail");
    EXPECT_FALSE(other.try_synchronize());
    EXPECT_EQ(code(unsettled.try_preflight()), ErrorCode::untracked_buffer)
        << "a wait that failed says nothing";
    other.synchronize();
    EXPECT_TRUE(unsettled.try_preflight());
    unsettled.cancel();
  }
  static_cast<void>(reclaim_deferred());
  other.release(theirs);
}

TEST_F(LaunchRecorderTest, ADroppedRecorderIsCountedAndItsMemoryHeld) {
  const std::uint64_t before = launch_statistics().dropped;
  const Buffer used = Buffer::allocate(device, Shape{64}, DType::f32);
  const Block raw = block();
  {
    LaunchRecorder recorder(a);
    recorder.use(used, Access::discard);
    recorder.use(*pool, raw, Access::discard);
    recorder.preflight({"train.cpp", "step", 12});
  }
  EXPECT_EQ(launch_statistics().dropped, before + 1);
  EXPECT_EQ(launch_statistics().last_dropped.line, 12u);
  EXPECT_FALSE(is_idle(used));
  EXPECT_EQ(find_uses_of(raw)->size(), 1u);
  EXPECT_FALSE(used.storage()->check_written(0, 4, {})) << "nobody knows that";
  ASSERT_TRUE(try_wait_for_uses(c, raw));
  pool->deallocate(raw, c);
}

TEST_F(LaunchRecorderTest, ACancelledRecorderLeavesNothing) {
  const std::uint64_t before = launch_statistics().dropped;
  const Buffer used = buffer();
  const Block raw = block();
  {
    LaunchRecorder recorder(a);
    recorder.use(used, Access::discard);
    recorder.use(*pool, raw, Access::discard);
    recorder.preflight();
    recorder.cancel();
    EXPECT_EQ(code(recorder.try_commit()), ErrorCode::stream_misuse);
  }
  EXPECT_EQ(launch_statistics().dropped, before);
  EXPECT_TRUE(is_idle(used));
  EXPECT_EQ(find_uses_of(raw)->size(), 0u);
  pool->deallocate(raw, c);
}

TEST_F(LaunchRecorderTest, ABoundRecorderTakesMemoryOfItsResourceOnly) {
  const auto other = std::make_shared<PoolResource>(device);
  const Block theirs = other->allocate({.bytes = 64, .stream = c});
  const Buffer far = Buffer::allocate(device, Shape{4}, DType::f32, {.resource = other});
  LaunchRecorder recorder(a, {.resource = pool});
  recorder.use(buffer(), Access::read);
  EXPECT_EQ(recorder.try_use(*other, theirs, Access::read).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(recorder.try_use(far, Access::discard).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(recorder.size(), 1u);
  // Also where it would only be skipped.
  LaunchRecorder permissive(a, {.permissive = true, .resource = pool});
  int external = 0;
  const Result<std::size_t> refused =
      permissive.try_use_external(&external, sizeof(external), Access::read);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
  other->deallocate(theirs, c);
  sim::resume(device, hold_a);  // the end of a pool waits for all streams
  sim::resume(device, hold_b);
}

TEST_F(LaunchRecorderTest, ForgetsTheRecordsOfBlocksThatAreFreed) {
  for (int i = 0; i < 1000; ++i) {
    const Block used = block();
    launch(c, used, Access::discard);
    pool->deallocate(used, c);
  }
  EXPECT_LE(block_use_records(), 128u);
}

TEST(LaunchRecorderOnForeignStreams, TreatsABorrowedStreamLikeOneOfOurs) {
  // A driver of its own: a process has one at a time, and other tests here have theirs.
  const sim::FakeDriver fake{sim::FakeDriverOptions{}};
  const cuda::Driver driver = cuda::load_driver(cuda::fake_library());
  const Device device(
      cuda::open_backend(driver,
                         {.spec = "cuda:0?driver=sim", .ordinal = 0, .staging = cuda::no_staging()})
          .value());
  const Stream theirs(device), ours(device);
  // What a library would have in its hands.
  const Stream borrowed = Stream::borrow(device, theirs.try_native().value());
  const Buffer used = Buffer::allocate(device, Shape{64}, DType::f32, {.stream = ours});
  const std::uint64_t before = sim::calls(device, "wait");
  LaunchRecorder recorder(borrowed);
  recorder.use(used, Access::discard);
  recorder.preflight();
  EXPECT_EQ(sim::calls(device, "wait"), before + 1) << "the fence before";
  borrowed.fill(static_cast<float*>(recorder.pointer(0)), 64, 1.0f);
  recorder.commit();
  EXPECT_EQ(used.to_vector<float>(), std::vector<float>(64, 1.0f)) << "the fence behind";
}

TEST_F(LaunchRecorderTest, WithoutUsesItNeedsNoPreflight) {
  LaunchRecorder recorder(a);
  EXPECT_TRUE(recorder.try_commit());
  EXPECT_EQ(recorder.try_commit().failure().code(), ErrorCode::stream_misuse);
  EXPECT_EQ(waits(), 0u);
}

}  // namespace
}  // namespace tern
