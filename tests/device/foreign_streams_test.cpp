// Streams of other code on a CUDA device with a fake driver, which reuses handles at once and
// checks the order of the uses of memory.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "support/cuda_bench.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using cuda::code;
using cuda::CudaBench;
using cuda::CUstream;
using cuda::why;

constexpr std::size_t block_bytes = 4096;

NativeStream native(CUstream stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }

class ForeignStreamsTest : public testing::Test {
 protected:
  [[nodiscard]] Stream borrow(CUstream stream) const {
    return Stream::borrow(device, native(stream));
  }
  /// Borrows the stream so often that the device keeps it, and returns its id.
  [[nodiscard]] StreamId make_kept(CUstream stream) const {
    for (int i = 0; i < 16; ++i) pair(borrow(stream));
    return borrow(stream).id();
  }
  void pair(StreamRef stream) const {
    pool->deallocate(pool->allocate({.bytes = block_bytes, .stream = stream}), stream);
  }
  /// The owner of the stream uses a block.
  void use(CUstream stream, const Block& block) {
    bench.fill(block.address, block.bytes, 7, native(stream));
  }

  CudaBench bench;
  const CudaBench::Elsewhere elsewhere{bench};  // this thread has a context, as in other libraries
  Device device{bench.open(0).value()};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
};

TEST_F(ForeignStreamsTest, AreKnownWithTwoDriverCallsWhenSeenBefore) {
  const CUstream stream = bench.foreign_stream();
  const StreamId id = make_kept(stream);
  const std::uint64_t before = bench.fake.total_calls();
  EXPECT_EQ(borrow(stream).id(), id);
  EXPECT_EQ(bench.fake.total_calls(), before + 2);
  test::Thread([&] { EXPECT_EQ(borrow(stream).id(), id); }).join();  // without a current context
  EXPECT_EQ(bench.fake.total_calls(), before + 4);
  const std::uint64_t records = bench.fake.calls("cuEventRecord");
  for (int i = 0; i < 100; ++i) pair(borrow(stream));
  EXPECT_EQ(bench.fake.calls("cuEventRecord"), records) << "a pair leaves no event";
  bench.end_foreign(stream);
}

TEST_F(ForeignStreamsTest, NeedNoDriverCallIfTheyAreTheDefaultStream) {
  const std::uint64_t before = bench.fake.total_calls();
  for (const std::uintptr_t handle : {std::uintptr_t{0}, std::uintptr_t{1}}) {
    EXPECT_EQ(Stream::borrow(device, {handle}).id(), device.default_stream().id());
  }
  EXPECT_EQ(bench.fake.total_calls(), before);
  EXPECT_TRUE(device.default_stream().is_usable());
}

TEST_F(ForeignStreamsTest, AcceptWorkOnlyWhileTheyAreBorrowed) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  StreamRef ref;
  {
    const Stream borrowed = borrow(stream);
    ref = borrowed;
    EXPECT_TRUE(ref.is_usable());
  }
  EXPECT_FALSE(ref.is_usable());
  EXPECT_EQ(code(ref.try_synchronize()), "stream_misuse");
  const std::uint64_t before = bench.fake.total_calls();
  EXPECT_FALSE(pool->try_allocate({.bytes = block_bytes, .stream = ref}));
  EXPECT_EQ(bench.fake.total_calls(), before);
  const Stream again = borrow(stream);
  EXPECT_EQ(StreamRef(again), ref) << "it is the same stream";
}

TEST_F(ForeignStreamsTest, GetANewIdIfTheirHandleIsReused) {
  const CUstream first = bench.foreign_stream();
  const StreamId id = make_kept(first);
  Block block;
  std::uint64_t hold = 0;
  {
    const Stream borrowed = borrow(first);
    block = pool->allocate({.bytes = block_bytes, .stream = borrowed});
    hold = bench.fake.hold(first);
    use(first, block);
    pool->deallocate(block, borrowed);
  }
  bench.end_foreign(first);
  const CUstream second = bench.foreign_stream();
  ASSERT_EQ(first, second) << "the driver reuses the handle";
  {
    const Stream borrowed = borrow(second);
    EXPECT_NE(borrowed.id(), id);
    // The first stream has not passed the free.
    const Block other = pool->allocate({.bytes = block_bytes, .stream = borrowed});
    EXPECT_NE(other.address, block.address);
    use(second, other);
    pool->deallocate(other, borrowed);
  }
  test::Thread([&] { bench.fake.resume(hold); }).join();
  device.synchronize();
  bench.end_foreign(second);
  // Everything is over, so the block is free for every stream.
  EXPECT_EQ(pool->trim(0) > 0, true);
}

TEST_F(ForeignStreamsTest, AreWaitedForByTheEndOfThePoolAfterTheyVanished) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  std::uint64_t hold = 0;
  {
    const Stream borrowed = borrow(stream);
    const Block block = pool->allocate({.bytes = block_bytes, .stream = borrowed});
    hold = bench.fake.hold(stream);
    use(stream, block);
    pool->deallocate(block, borrowed);
  }
  bench.end_foreign(stream);
  // No call has said that the stream does not exist any more.
  test::Thread other([&] { bench.fake.resume(hold); });
  pool.reset();  // the checker reports memory that is released while it is used
  other.join();
}

TEST_F(ForeignStreamsTest, AreWaitedForByTheDeviceAfterTheyVanished) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const std::uint64_t hold = bench.fake.hold(stream);
  borrow(stream).fill(memory, 64, std::byte{3});
  bench.end_foreign(stream);
  ASSERT_EQ(bench.foreign_stream(), stream);
  const StreamId id = borrow(stream).id();  // now the device knows that the first one is gone
  test::Thread other([&] { bench.fake.resume(hold); });
  device.synchronize();
  other.join();
  EXPECT_NE(borrow(stream).id(), id) << "it is not kept yet";
  device.release(memory);  // the checker reports it if the fill is not done
}

TEST_F(ForeignStreamsTest, LeaveAMarkAfterWorkOnABlockThatTheyStillHave) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  static_cast<void>(borrow(stream).mark());  // an event after everything so far
  Block block;
  std::uint64_t hold = 0;
  StreamRef gone;
  {
    const Stream borrowed = borrow(stream);
    gone = borrowed;
    block = pool->allocate({.bytes = block_bytes, .stream = borrowed});
    hold = bench.fake.hold(stream);
    use(stream, block);
  }
  bench.end_foreign(stream);
  const CUstream second = bench.foreign_stream();
  ASSERT_EQ(second, stream) << "the driver reuses the handle";
  const Stream next = borrow(second);  // the device learns that the first stream has ended
  test::Thread other([&] { bench.fake.resume(hold); });
  pool->deallocate(block, gone);  // waits, because no event is after the work
  const Block again = pool->allocate({.bytes = block_bytes, .stream = next});
  next.fill(static_cast<std::byte*>(again.address), block_bytes, std::byte{1});
  pool->deallocate(again, next);
  other.join();
}

TEST_F(ForeignStreamsTest, LeaveAnEventAfterWorkOfTern) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  void* const memory = device.allocate(MemoryKind::device, 64);
  const std::uint64_t hold = bench.fake.hold(stream);
  Mark mark;
  {
    const Stream borrowed = borrow(stream);
    borrowed.fill(static_cast<std::byte*>(memory), 64, std::byte{3});
    mark = borrowed.mark();
  }
  bench.end_foreign(stream);
  EXPECT_FALSE(Device::try_is_done(mark).value());
  const std::uint64_t waits = bench.fake.calls("cuCtxSynchronize");
  test::Thread other([&] { bench.fake.resume(hold); });
  EXPECT_EQ(code(Device::try_wait(mark)), "success");
  other.join();
  device.synchronize();
  EXPECT_EQ(bench.fake.calls("cuCtxSynchronize"), waits);
  device.release(memory);
}

TEST_F(ForeignStreamsTest, AreWaitedForByTheDeviceWhileTheyAreBorrowed) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const std::uint64_t hold = bench.fake.hold(stream);
  const Stream borrowed = borrow(stream);
  borrowed.fill(memory, 64, std::byte{3});
  test::Thread other([&] { bench.fake.resume(hold); });
  device.synchronize();
  other.join();
  EXPECT_TRUE(borrowed.is_idle());
  device.release(memory);  // the checker reports it if the fill is not done
}

TEST_F(ForeignStreamsTest, GiveAnEventToOthersWhenTheyAreBorrowedAgain) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  pair(borrow(stream));
  const Stream ours(device);
  const StreamRef idle = borrow(stream);
  // A mark that only the pool holds is not known to be done while nobody borrows the stream.
  const Mark mark = device.next_mark(idle.id());
  EXPECT_FALSE(Device::try_is_done(mark).value());
  const std::uint64_t records = bench.fake.calls("cuEventRecord");
  pair(borrow(stream));
  EXPECT_EQ(bench.fake.calls("cuEventRecord"), records + 1) << "somebody has asked";
  while (!Device::try_is_done(mark).value()) std::this_thread::yield();
  bench.end_foreign(stream);
}

TEST_F(ForeignStreamsTest, AreWaitedForWithTheWholeDeviceIfNobodyBorrowsThem) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  pair(borrow(stream));
  const StreamRef idle = borrow(stream);
  const Mark mark = device.next_mark(idle.id());
  const CUstream captured = bench.foreign_stream();
  {
    const Stream borrowed = borrow(captured);
    bench.capture(captured);
    EXPECT_EQ(code(Device::try_wait(mark)), "stream_misuse");
    EXPECT_TRUE(bench.is_capturing(captured)) << "the wait would have ended the capture";
    bench.fake.end_capture(captured);
  }
  EXPECT_EQ(code(Device::try_wait(mark)), "success");
  EXPECT_EQ(bench.fake.calls("cuCtxSynchronize"), 1u);
  EXPECT_TRUE(Device::try_is_done(mark).value());
  device.synchronize();
  EXPECT_EQ(bench.fake.calls("cuCtxSynchronize"), 1u) << "nothing was promised since";
}

TEST_F(ForeignStreamsTest, AreRefusedDuringACaptureUnlessTheyAreBorrowedAlready) {
  const CUstream never_seen = bench.foreign_stream(), kept = bench.foreign_stream();
  const StreamId id = make_kept(kept);
  for (const auto mode :
       {cuda::CU_STREAM_CAPTURE_MODE_GLOBAL, cuda::CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (const CUstream stream : {never_seen, kept}) {
      bench.capture(stream, mode);
      for (int i = 0; i < 20; ++i) {
        const Result<Stream> refused = Stream::try_borrow(device, native(stream));
        ASSERT_EQ(code(refused), "stream_misuse");
        EXPECT_NE(why(refused).find("Borrow the stream before the capture begins"),
                  std::string::npos)
            << why(refused);
      }
      EXPECT_TRUE(bench.is_capturing(stream));
      bench.fake.end_capture(stream);
      const Stream held = borrow(stream);
      EXPECT_EQ(held.id() == id, stream == kept);
      bench.capture(stream, mode);
      {
        // The driver does not tell the id now, but the owner keeps a borrowed stream alive.
        const Stream again = borrow(stream);
        EXPECT_EQ(StreamRef(again), StreamRef(held));
        EXPECT_TRUE(again.is_capturing());
      }
      EXPECT_TRUE(bench.is_capturing(stream));
      bench.fake.end_capture(stream);
    }
  }
  EXPECT_EQ(borrow(kept).id(), id);
}

TEST_F(ForeignStreamsTest, AreNotDoneIfTheyAreCapturedWhenTheirLastLoanEnds) {
  const CUstream stream = bench.foreign_stream();
  const StreamId id = make_kept(stream);
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const std::uint64_t hold = bench.fake.hold(stream);
  Mark mark;
  {
    const Stream borrowed = borrow(stream);
    borrowed.fill(memory, 64, std::byte{3});
    mark = borrowed.mark();
    bench.capture(stream);
  }
  EXPECT_TRUE(bench.is_capturing(stream));
  EXPECT_FALSE(Device::try_is_done(mark).value()) << "the fill was submitted before the capture";
  bench.fake.end_capture(stream);
  EXPECT_FALSE(Device::try_is_done(mark).value());
  EXPECT_EQ(borrow(stream).id(), id) << "the device still keeps it";
  EXPECT_FALSE(Device::try_is_done(mark).value());
  test::Thread other([&] { bench.fake.resume(hold); });
  EXPECT_EQ(code(Device::try_wait(mark)), "success");
  other.join();
  device.release(memory);  // the checker reports it if the fill is not done
}

TEST_F(ForeignStreamsTest, AreNotDoneIfTheDriverAcceptsNoEventAndNoWait) {
  const CUstream stream = bench.foreign_stream();
  const StreamId id = make_kept(stream);
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const std::uint64_t hold = bench.fake.hold(stream);
  Mark mark;
  for (int i = 0; i < 40; ++i) {
    const Stream borrowed = borrow(stream);
    EXPECT_EQ(borrowed.id(), id);
    borrowed.fill(memory, 64, std::byte{3});
    mark = borrowed.mark();
    bench.fake.fail_calls_from("cuStreamSynchronize", 1, cuda::CUDA_ERROR_UNKNOWN);
    // The device can record the ends of the streams that it knows.
    bench.fake.fail_call("cuEventRecord", 1, cuda::CUDA_ERROR_UNKNOWN);
  }
  EXPECT_FALSE(Device::try_is_done(mark).value());
  bench.fake.clear_failures();
  test::Thread other([&] { bench.fake.resume(hold); });
  EXPECT_EQ(code(Device::try_wait(mark)), "success");
  other.join();
  device.release(memory);
}

TEST_F(ForeignStreamsTest, AreWaitedForWithTheWorkOfTheirOwnersWhileTheyAreBorrowed) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  static_cast<void>(borrow(stream).mark());
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const std::uint64_t hold = bench.fake.hold(stream);
  const Stream borrowed = borrow(stream);
  bench.fill(memory, 64, 7, native(stream));
  test::Thread other([&] { bench.fake.resume(hold); });
  device.synchronize();
  other.join();
  device.release(memory);  // the checker reports it if the fill is not done
}

TEST_F(ForeignStreamsTest, HaveAMaximumOfLoansIfTheyAreTheDefaultStream) {
  std::vector<Stream> loans;
  for (int i = 0; i < 0xfffe; ++i) loans.push_back(borrow({}));
  EXPECT_EQ(code(Stream::try_borrow(device, {})), "capacity");
  loans.pop_back();
  EXPECT_EQ(borrow({}).id(), device.default_stream().id());
}

TEST_F(ForeignStreamsTest, AreFoundAfterAFaultOfTheDriver) {
  const CUstream stream = bench.foreign_stream();
  const StreamId id = make_kept(stream);
  for (const char* const call : {"cuStreamIsCapturing", "cuStreamGetId"}) {
    bench.fake.fail_call(call, 1, cuda::CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(borrow(stream).id(), id) << call;
    bench.fake.fail_calls_from(call, 1, cuda::CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code(Stream::try_borrow(device, native(stream))), "driver") << call;
    bench.fake.clear_failures();
    EXPECT_EQ(borrow(stream).id(), id) << call;
  }
  bench.end_foreign(stream);
  EXPECT_EQ(code(Stream::try_borrow(device, native(stream))), "driver") << "it was destroyed";
}

TEST_F(ForeignStreamsTest, OfAnotherDeviceAreRefused) {
  const CUstream stream = bench.foreign_stream(cuda::CU_STREAM_NON_BLOCKING, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(code(Stream::try_borrow(device, native(stream))), "device_mismatch");
  }
}

TEST_F(ForeignStreamsTest, AreTheirOwnOnEveryThreadIfTheDriverSaysSo) {
  const NativeStream per_thread{2};
  std::set<std::uint64_t> ids;
  const Stream here = Stream::borrow(device, per_thread);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(StreamRef(Stream::borrow(device, per_thread)), StreamRef(here));
  }
  test::Thread([&] {
    const Stream there = Stream::borrow(device, per_thread);
    EXPECT_NE(StreamRef(there), StreamRef(here));
    there.synchronize();
    EXPECT_EQ(code(here.try_synchronize()), "stream_misuse");
  }).join();
}

TEST_F(ForeignStreamsTest, KeepTheDeviceOpen) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  for (const std::uintptr_t handle : {native(stream).value, std::uintptr_t{0}}) {
    Device another{bench.open(0).value()};
    for (int i = 0; i < 16; ++i) static_cast<void>(Stream::borrow(another, {handle}));
    Stream first = Stream::borrow(another, {handle});
    Stream second = Stream::borrow(another, {handle});
    const DeviceId id = another.id();
    another = Device();
    EXPECT_EQ(first.device().id(), id);
    EXPECT_EQ(code(first.try_synchronize()), "success");
    first = Stream();
    EXPECT_EQ(second.device().id(), id);
    another = second.device();
    second = Stream();
    EXPECT_TRUE(another.is_open());
    EXPECT_EQ(code(another.try_synchronize()), "success");
    Stream third = Stream::borrow(another, {handle});
    another = Device();
    EXPECT_EQ(code(third.try_synchronize()), "success");
  }
}

TEST_F(ForeignStreamsTest, CannotBeBorrowedInAForkedChild) {
  const CUstream stream = bench.foreign_stream();
  static_cast<void>(make_kept(stream));
  std::optional<Stream> borrowed = borrow(stream);
  EXPECT_EQ(test::in_a_forked_child([&] {
              const bool is_refused =
                  test::is_after_fork(Stream::try_borrow(device, native(stream)));
              pool.reset();
              device = Device();
              borrowed.reset();
              return is_refused;
            }),
            0);
  EXPECT_TRUE(borrowed->is_usable());
}

TEST_F(ForeignStreamsTest, DoNotPileUp) {
  const int batches = test::is_thorough ? 20 : 3;
  std::uint32_t highest = 0;
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<CUstream> streams;
    for (int i = 0; i < 600; ++i) streams.push_back(bench.foreign_stream());
    for (const CUstream stream : streams) {
      for (int i = 0; i < 9; ++i) {
        const Stream borrowed = borrow(stream);
        highest = std::max(highest, borrowed.id().slot());
        if (i == 8) pair(borrowed);
      }
    }
    // In the same order, so that every handle is reused in another order.
    for (const CUstream stream : streams) bench.end_foreign(stream);
  }
  EXPECT_LT(highest, 1100u);
  // Streams that are borrowed once leave nothing.
  const std::size_t events = bench.fake.live().events;
  const int count = test::is_thorough ? 1'000'000 : 5'000;
  for (int i = 0; i < count; ++i) {
    const CUstream stream = bench.foreign_stream();
    pair(borrow(stream));
    bench.end_foreign(stream);
  }
  EXPECT_LE(bench.fake.live().events, events + 1100) << "the device keeps 1,024 spare events";
}

TEST_F(ForeignStreamsTest, AreBorrowedByManyThreads) {
  std::array<CUstream, 4> own = {};
  for (CUstream& stream : own) stream = bench.foreign_stream();
  const CUstream shared = bench.foreign_stream();
  const int rounds = test::is_thorough ? 20'000 : 300;
  std::atomic<bool> is_over = false;
  {
    test::Thread waiter([&] {
      while (!is_over.load()) EXPECT_EQ(code(device.try_synchronize()), "success");
    });
    std::vector<test::Thread> threads;
    for (std::size_t i = 0; i < own.size(); ++i) {
      threads.emplace_back([&, i] {
        const CudaBench::Elsewhere here(bench);
        for (int round = 0; round < rounds; ++round) {
          const Stream a = borrow(own[i]);
          const Stream b = borrow(shared);
          const Block block = pool->allocate({.bytes = block_bytes, .stream = a});
          if (round % 8 == 0) use(own[i], block);
          if (round % 16 == 1) b.wait(a.mark());
          const bool is_ordered = round % 16 == 1;
          pool->deallocate(block, is_ordered ? StreamRef(b) : StreamRef(a));
        }
      });
    }
    for (test::Thread& thread : threads) thread.join();
    is_over = true;
  }
  device.synchronize();
}

// Random programs: the streams of others come and go, and the model knows which stream a handle is.
TEST_F(ForeignStreamsTest, FollowAModel) {
  const int programs = test::is_thorough ? 100 : 6;
  for (int program = 0; program < programs; ++program) {
    SCOPED_TRACE(program);
    std::mt19937 random(static_cast<unsigned>(program));
    const auto below = [&](std::size_t count) { return random() % count; };
    struct Theirs {
      CUstream handle;
      std::uint64_t number;
      std::vector<Stream> loans;
    };
    std::vector<Theirs> theirs;
    struct Held {
      Block block;
      std::uint64_t owner;
    };
    std::vector<Held> held;
    std::map<std::uint64_t, std::uint64_t> number_of_id;  // every id belongs to one stream for ever
    std::uint64_t last_number = 0;
    for (int step = 0; step < 400; ++step) {
      const std::size_t what = below(20);
      if (theirs.empty() || (what == 0 && theirs.size() < 6)) {
        theirs.push_back({bench.foreign_stream(), ++last_number, {}});
        continue;
      }
      Theirs& one = theirs[below(theirs.size())];
      if (what == 1) {
        // The blocks of the stream are freed first, on the stream.
        std::erase_if(held, [&](const Held& block) {
          if (block.owner != one.number) return false;
          pool->deallocate(block.block, borrow(one.handle));
          return true;
        });
        one.loans.clear();
        bench.end_foreign(one.handle);
        std::swap(one, theirs.back());
        theirs.pop_back();
      } else if (what == 2) {
        device.synchronize();
      } else if (what == 3) {
        static_cast<void>(pool->trim(0));
      } else if (what < 6) {
        one.loans.clear();
      } else if (what < 8) {
        one.loans.push_back(borrow(one.handle));
      } else if (what < 13 || held.empty()) {
        const Stream borrowed = borrow(one.handle);
        const auto known = number_of_id.emplace(borrowed.id().value(), one.number).first;
        ASSERT_EQ(known->second, one.number) << "an id of another stream";
        for (const Stream& loan : one.loans) ASSERT_EQ(StreamRef(loan), StreamRef(borrowed));
        const Block block = pool->allocate({.bytes = block_bytes << below(6), .stream = borrowed});
        use(one.handle, block);
        held.push_back({block, one.number});
        if (what == 12) borrowed.fill(static_cast<std::byte*>(block.address), 64, std::byte{1});
      } else {
        // On the stream that allocated it, or on another one behind it.
        const std::size_t index = below(held.size());
        const Held block = held[index];
        held[index] = held.back();
        held.pop_back();
        const auto owner = std::ranges::find(theirs, block.owner, &Theirs::number);
        ASSERT_NE(owner, theirs.end());
        const Stream from = borrow(owner->handle);
        if (what < 18) {
          pool->deallocate(block.block, from);
          continue;
        }
        const Stream to = borrow(one.handle);
        to.wait(from.mark());
        use(one.handle, block.block);
        pool->deallocate(block.block, to);
      }
    }
    for (const Held& block : held) {
      const auto owner = std::ranges::find(theirs, block.owner, &Theirs::number);
      pool->deallocate(block.block, borrow(owner->handle));
    }
    for (Theirs& one : theirs) {
      one.loans.clear();
      bench.end_foreign(one.handle);
    }
    ASSERT_TRUE(sim::findings(bench.fake.device(0)).empty())
        << sim::findings(bench.fake.device(0))[0].text();
  }
  device.synchronize();
}

}  // namespace
}  // namespace tern
