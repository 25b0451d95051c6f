#include "tern/buffer/copy.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "support/refused.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern::test {
namespace {

class Copy : public testing::Test {
 protected:
  void TearDown() override {
    for (const Device& device : peers) {
      device.synchronize();
      expect_no_findings(device);
    }
  }

  [[nodiscard]] Buffer holding(const Bytes& bytes, std::size_t on = 0,
                               MemoryKind kind = MemoryKind::device) const {
    return CopyPlace{"", peers[on], kind}.holding(bytes);
  }
  [[nodiscard]] Buffer empty(std::size_t bytes, std::size_t on = 0,
                             MemoryKind kind = MemoryKind::device) const {
    return Buffer(peers[on], {bytes}, DType::byte, {.kind = kind});
  }

  Device host = open_device("host");
  std::vector<Device> peers = sim::open_peers({}, 2);
  Stream a{peers[0]}, b{peers[0]};
};

// --- Refusals

TEST_F(Copy, NamesBothSizesIfTheyDiffer) {
  const Buffer to = empty(40), from = holding(Bytes(41));
  for (const Failure& failure : {refused(try_copy(to, from, a), ErrorCode::size_mismatch),
                                 refused(try_copy(to, from), ErrorCode::size_mismatch)}) {
    EXPECT_EQ(failure.number("expected"), 40u);
    EXPECT_EQ(failure.number("actual"), 41u);
  }
  EXPECT_FALSE(to.is_allocated());
}

TEST_F(Copy, RejectsAnUnwrittenSource) {
  const Buffer to = empty(40), from = empty(40);
  refused(try_copy(to, from, a), ErrorCode::never_written);
  refused(try_copy(to, from), ErrorCode::never_written);
  EXPECT_FALSE(to.is_allocated());
  EXPECT_FALSE(from.is_allocated());
  const Bytes half(20);
  from.byte_view(0, 20).try_copy_from(half.data(), 20).value();
  const Failure failure = refused(try_copy(to, from, a), ErrorCode::never_written);
  EXPECT_EQ(failure.number("begin"), 20u);
  EXPECT_TRUE(try_copy(to.byte_view(0, 20), from.byte_view(0, 20), a));
  refused(try_copy(from, to, a), ErrorCode::never_written);
}

TEST_F(Copy, NamesTheEmptyBuffer) {
  const Buffer one = holding(Bytes(8));
  EXPECT_EQ(refused(try_copy(Buffer(), one, a), ErrorCode::not_allocated).string("name"),
            "destination");
  EXPECT_EQ(refused(try_copy(one, Buffer(), a), ErrorCode::not_allocated).string("name"), "source");
  refused(try_copy(one, Buffer()), ErrorCode::not_allocated);
}

TEST_F(Copy, RejectsEndedStreamsAndStreamsOfAThirdDevice) {
  const Buffer to = empty(8), from = holding(Bytes(8));
  StreamRef ended;
  {
    const Stream gone(peers[0]);
    ended = gone;
  }
  refused(try_copy(to, from, ended), ErrorCode::stream_misuse);
  refused(try_copy(to, from, StreamRef()), ErrorCode::stream_misuse);
  const Stream elsewhere(peers[1]);
  const Failure failure = refused(try_copy(to, from, elsewhere), ErrorCode::device_mismatch);
  EXPECT_EQ(failure.string("a"), peers[0].spec());
  EXPECT_EQ(failure.string("device"), peers[1].spec());
  EXPECT_FALSE(to.is_allocated());
}

TEST_F(Copy, MakesNoCallForZeroBytes) {
  sim::set_faults(peers[0], "");
  const Buffer to = empty(0), from = empty(0, 1);
  EXPECT_TRUE(try_copy(to, from));
  EXPECT_TRUE(try_copy(to, from, a));
  EXPECT_TRUE(try_copy(to, from, StreamRef()));
  for (const char* one : {"copy", "allocate", "pin", "map", "stream", "record", "wait", "sync"}) {
    EXPECT_EQ(sim::calls(peers[0], one), 0u) << one;
  }
}

// --- Order

TEST_F(Copy, ReturnsImmediatelyAndIsPendingWhileItsStreamIsHeld) {
  Gate gate;
  gate.hold(a);
  const Bytes in = counted(1000);
  const Buffer from = holding(in);
  const Buffer to = empty(1000), other = empty(1000);
  const Mark pending = copy(to, from, a);
  EXPECT_FALSE(Device::is_done(pending));
  const Mark done = copy(other, from, b);
  Device::wait(done);
  EXPECT_TRUE(bytes_of(other) == in);
  EXPECT_FALSE(Device::is_done(pending));
  gate.open();
  EXPECT_TRUE(bytes_of(to) == in);
}

TEST_F(Copy, WaitsOnlyForUsesOfItsBuffers) {
  const Bytes in = counted(1000);
  const Buffer from = holding(in), to = empty(1000), busy = empty(1000);
  Gate gate;
  gate.hold(a);
  copy(busy, from, a);
  copy(to, from);
  EXPECT_TRUE(bytes_of(to) == in);
  gate.open();
}

TEST_F(Copy, IsOrderedAfterWritersOfTheSourceAndReadersOfTheDestination) {
  const Bytes in = counted(1000);
  const Buffer first = holding(in), second = empty(1000), third = empty(1000);
  Gate gate;
  gate.hold(a);
  copy(second, first, a);
  const Mark behind = copy(third, second, b);
  EXPECT_FALSE(Device::is_done(behind));
  gate.open();
  EXPECT_TRUE(bytes_of(third) == in);
  copy(second, third, b);
  copy(third, first, a);
  EXPECT_TRUE(bytes_of(second) == in);
}

TEST_F(Copy, KeepsBothSidesUntilItIsDone) {
  const ResourceHandle resource = default_resource(peers[0]);
  Gate gate;
  gate.hold(a);
  std::optional<Buffer> to = empty(1000), from = holding(counted(1000));
  copy(*to, *from, a);
  to.reset();
  from.reset();
  gate.open();
  a.synchronize();
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
}

TEST_F(Copy, OnAnEndedStreamReleasesItsBuffersWithoutAHostWait) {
  const ResourceHandle resource = default_resource(peers[0]);
  sim::set_patience(peers[0], 1);
  Gate gate;
  gate.hold(a);
  const Buffer from = holding(counted(1000));
  std::optional<Buffer> to = empty(1000);
  to->ensure_allocated();
  {
    const Stream ending(peers[0]);
    ending.wait(a.mark());
    copy(*to, from, ending);
  }
  to.reset();
  EXPECT_EQ(resource->failed_frees(), 0u);
  gate.open();
}

TEST_F(Copy, FromAPeerOnTheSourcesStreamIsInThatStreamsOrder) {
  const Bytes in = counted(5000);
  const Buffer from = empty(5000), to = empty(5000, 1);
  Gate gate;
  gate.hold(a);
  const Buffer pinned = holding(in, 0, MemoryKind::pinned);
  copy(from, pinned, a);
  const Mark mark = copy(to, from, a);
  EXPECT_EQ(mark.stream, a.id());
  EXPECT_FALSE(Device::is_done(mark));
  gate.open();
  Device::wait(mark);
  EXPECT_TRUE(bytes_of(to) == in);
}

TEST_F(Copy, HandedOverIsOrderedAfterEarlierWorkOfItsStream) {
  const Bytes in = counted(5000);
  const Buffer source = holding(in, 0, MemoryKind::pinned);
  const Buffer pinned = holding(Bytes(5000), 0, MemoryKind::pinned);
  const Buffer to = empty(5000, 1);
  Gate gate;
  gate.hold(a);
  // By its address, which no record knows of.
  a.copy(reinterpret_cast<void*>(pinned.address()), reinterpret_cast<void*>(source.address()),
         5000);
  const Mark mark = copy(to, pinned, a);
  gate.open();
  Device::wait(mark);
  EXPECT_TRUE(bytes_of(to) == in);
}

TEST_F(Copy, BlockingMakesTheHostWaitInsteadOfTheStream) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream writer(device);
  Buffer from(device, {1000}, DType::byte), to(device, {1000}, DType::byte);
  Bytes out(1000);
  for (int i = 0; i < 2; ++i) {
    from.try_fill_bytes({}, writer).value();
    to.try_fill_bytes({}, writer).value();
    sim::set_faults(device, "");
    if (i == 0) {
      copy(to, from);
    } else {
      from.try_copy_to(out.data(), out.size()).value();
      to.try_copy_from(out.data(), out.size()).value();
    }
    EXPECT_EQ(sim::calls(device, "wait"), 0u);
    EXPECT_GT(sim::calls(device, "sync"), 0u);
  }
  expect_no_findings(device);
}

TEST_F(Copy, HandedOverBlocksNoOtherStream) {
  const Bytes in = counted(5000);
  const Buffer pinned = holding(in, 0, MemoryKind::pinned);
  const Buffer to = empty(5000, 1), other = empty(5000, 1);
  Gate gate;
  gate.hold(a);
  const Mark held = copy(to, pinned, a);
  const Mark free = copy(other, pinned, b);
  Device::wait(free);
  copy(other, pinned);
  EXPECT_FALSE(Device::is_done(held));
  gate.open();
  EXPECT_TRUE(bytes_of(to) == in);
}

TEST_F(Copy, BetweenSeparateSimulationsIsStagedThroughTheHost) {
  const Device apart = sim::open({});
  const Bytes in = counted(5000);
  const Buffer from = holding(in), to(apart, {5000}, DType::byte), back = empty(5000);
  const Stream there(apart);
  copy(to, from, there);
  EXPECT_TRUE(bytes_of(to) == in);
  copy(back, to, there);
  EXPECT_TRUE(bytes_of(back) == in);
  copy(to, back);
  EXPECT_TRUE(bytes_of(to) == in);
  apart.synchronize();
  expect_no_findings(apart);
}

TEST_F(Copy, OfMuchHostMemoryIsSharedByThreads) {
  const Bytes in = counted(5 * mib + 1);
  const Buffer from = CopyPlace{"", host, MemoryKind::host}.holding(in);
  const Buffer to(host, {in.size()}, DType::byte);
  copy(to, from);
  EXPECT_TRUE(bytes_of(to) == in);
}

TEST_F(Copy, ConflictsWithAnOpenCheckedHostAccess) {
  Buffer pinned(peers[0], {64}, DType::u8, {.kind = MemoryKind::pinned, .checked = true});
  const Buffer from = holding(Bytes(64));
  {
    const auto view = pinned.discard_host<std::uint8_t>();
    refused(try_copy(pinned, from, a), ErrorCode::access_conflict);
    refused(try_copy(pinned, from), ErrorCode::access_conflict);
  }
  EXPECT_TRUE(try_copy(pinned, from, a));
  EXPECT_TRUE(try_copy(pinned.byte_view(1, 60), pinned.byte_view(0, 60)));
}

}  // namespace
}  // namespace tern::test
