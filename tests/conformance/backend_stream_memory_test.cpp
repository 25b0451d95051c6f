// Stream-ordered allocation and free.

#include <limits>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class AllocatesInOrder : public Ladder {
 protected:
  void SetUp() override {
    if (can(Capability::stream_ordered_memory)) return;
    expect_unsupported(stream.try_allocate(64), Capability::stream_ordered_memory, device);
    expect_unsupported(stream.try_release(nullptr), Capability::stream_ordered_memory, device);
    GTEST_SKIP() << "has no memory in stream order";
  }
};
TERN_CLIMB(AllocatesInOrder);

TEST_P(AllocatesInOrder, MemoryForLaterWorkOfTheStream) {
  auto* address = static_cast<std::byte*>(stream.allocate(mib, {.alignment = 4096}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 4096, 0u);
  stream.fill(address, mib, std::byte{6});
  EXPECT_TRUE(read(address, mib) == Bytes(mib, std::byte{6}));
  stream.release(address);
  stream.synchronize();
}

TEST_P(AllocatesInOrder, AndReleasesBehindEarlierWork) {
  auto* address = static_cast<std::byte*>(stream.allocate(64));
  Bytes out(64);
  Gate gate;
  gate.hold(stream);
  stream.fill(address, 64, std::byte{7});
  stream.copy(out.data(), address, 64);
  stream.release(address);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(out, Bytes(64, std::byte{7}));
}

TEST_P(AllocatesInOrder, AndRefusesASecondRelease) {
  void* address = stream.allocate(64);
  Gate gate;
  gate.hold(stream);
  stream.release(address);
  // The memory is still there, but dead to everybody.
  expect_refused(stream.try_release(address), ErrorCode::use_after_free);
  expect_refused(device.try_release(address), ErrorCode::use_after_free);
  EXPECT_EQ(device.pointer_info(address).base, nullptr);
  gate.open();
  stream.synchronize();
  expect_refused(stream.try_release(address), ErrorCode::use_after_free);
}

TEST_P(AllocatesInOrder, AndRefusesToReleaseForeignMemory) {
  int on_the_stack = 0;
  expect_refused(stream.try_release(&on_the_stack), ErrorCode::use_after_free);
}

TEST_P(AllocatesInOrder, ZeroBytesAsNull) {
  EXPECT_EQ(stream.allocate(0), nullptr);
  EXPECT_TRUE(stream.try_release(nullptr));
}

TEST_P(AllocatesInOrder, NothingImpossible) {
  expect_refused(stream.try_allocate(64, {.alignment = 3}), ErrorCode::invalid_argument);
  expect_refused(stream.try_allocate(64, {.alignment = 2 * device.info().max_alignment}),
                 ErrorCode::invalid_argument);
  expect_refused(stream.try_allocate(std::numeric_limits<std::size_t>::max()),
                 ErrorCode::size_overflow);
  expect_refused(stream.try_allocate(max_request_bytes + 1), ErrorCode::size_overflow);
  expect_refused(stream.try_allocate(max_request_bytes), ErrorCode::out_of_memory);
}

TEST_P(AllocatesInOrder, ManyBlocksFromManyStreams) {
  const Stream other(device);
  for (int i = 0; i < 200; ++i) {
    auto* address = static_cast<std::byte*>(stream.allocate(1000));
    stream.fill(address, 1000, std::byte{1});
    other.wait(stream.mark());
    other.fill(address, 1000, std::byte{2});
    other.release(address);
  }
  other.synchronize();
}

}  // namespace
}  // namespace tern::test
