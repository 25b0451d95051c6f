// Memory of each declared kind; requests that cannot be met fail.

#include <limits>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

constexpr MemoryKind allocatable[] = {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed};

bool is_aligned(const void* address, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

class Allocates : public Ladder {
 protected:
  bool has(MemoryKind kind) const {
    if (kind == MemoryKind::pinned) return can(Capability::pinned_memory);
    if (kind == MemoryKind::managed) return can(Capability::managed_memory);
    return true;
  }
};
TERN_CLIMB(Allocates);

TEST_P(Allocates, EachDeclaredKindAndKnowsItAgain) {
  for (const MemoryKind kind : allocatable) {
    SCOPED_TRACE(name(kind));
    const Result<void*> address = device.try_allocate(kind, 1000);
    if (!has(kind)) {
      const Capability missing =
          kind == MemoryKind::pinned ? Capability::pinned_memory : Capability::managed_memory;
      expect_unsupported(address, missing, device);
      continue;
    }
    ASSERT_TRUE(address);
    EXPECT_TRUE(is_aligned(*address, device.info().alignment));

    const Bytes bytes = sample(1000);
    write(*address, bytes);
    EXPECT_EQ(read(*address, 1000), bytes);

    auto* first = static_cast<std::byte*>(*address);
    for (const std::size_t offset : {0u, 1u, 999u}) {
      const PointerInfo info = device.pointer_info(first + offset);
      EXPECT_EQ(info.kind, kind);
      EXPECT_EQ(info.base, *address);
      EXPECT_GE(info.bytes, 1000u);
    }
    EXPECT_TRUE(device.try_release(*address));
  }
}

TEST_P(Allocates, NoOtherKind) {
  for (const MemoryKind kind : {MemoryKind::host, MemoryKind::registered, MemoryKind::mapped}) {
    expect_refused(device.try_allocate(kind, 64), ErrorCode::invalid_argument);
  }
}

TEST_P(Allocates, AtEveryAlignmentItPromises) {
  for (const MemoryKind kind : allocatable) {
    if (!has(kind)) continue;
    for (std::size_t alignment = 1; alignment <= device.info().max_alignment; alignment *= 2) {
      const Result<void*> address = device.try_allocate(kind, 100, {.alignment = alignment});
      ASSERT_TRUE(address) << alignment << ": " << address.failure().text();
      EXPECT_TRUE(is_aligned(*address, std::max(alignment, device.info().alignment)));
      const Bytes bytes = sample(100);
      write(*address, bytes);
      EXPECT_EQ(read(*address, 100), bytes);
      EXPECT_TRUE(device.try_release(*address));
    }
  }
}

TEST_P(Allocates, LargeBlocksAtLargeAlignments) {
  for (const std::size_t bytes : {4 * mib - 1, 4 * mib, 5 * mib + 13}) {
    const Result<void*> address =
        device.try_allocate(MemoryKind::device, bytes, {.alignment = 4 * mib});
    ASSERT_TRUE(address);
    EXPECT_TRUE(is_aligned(*address, 4 * mib));
    auto* first = static_cast<std::byte*>(*address);
    write(first + bytes - 100, sample(100));
    EXPECT_EQ(read(first + bytes - 100, 100), sample(100));
    EXPECT_TRUE(device.try_release(*address));
  }
}

TEST_P(Allocates, NothingAtAnImpossibleAlignment) {
  const std::size_t above = device.info().max_alignment * 2;
  for (const std::size_t alignment : {std::size_t{3}, std::size_t{65}, std::size_t{96}, above,
                                      std::numeric_limits<std::size_t>::max()}) {
    const Result<void*> refused =
        device.try_allocate(MemoryKind::device, 64, {.alignment = alignment});
    expect_refused(refused, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().number("value"), alignment);
    EXPECT_EQ(refused.failure().string("name"), "alignment");
  }
}

TEST_P(Allocates, ZeroBytesAsANullAddressThatMayBeReleased) {
  for (const MemoryKind kind : allocatable) {
    if (!has(kind)) continue;
    const Result<void*> nothing = device.try_allocate(kind, 0);
    ASSERT_TRUE(nothing);
    EXPECT_EQ(*nothing, nullptr);
  }
  EXPECT_TRUE(device.try_release(nullptr));
}

TEST_P(Allocates, NothingAboveTheLargestRequest) {
  for (const std::size_t bytes : {std::numeric_limits<std::size_t>::max(),
                                  static_cast<std::size_t>(-4096), max_request_bytes + 1}) {
    const Result<void*> refused = device.try_allocate(MemoryKind::device, bytes);
    expect_refused(refused, ErrorCode::size_overflow);
    EXPECT_EQ(refused.failure().number("requested"), bytes);
  }
}

TEST_P(Allocates, NothingMoreThanTheMachineHasAndSaysHowMuchThatIs) {
  for (const std::size_t bytes :
       {device.info().total_bytes + 1, 2 * device.info().total_bytes, max_request_bytes}) {
    const Result<void*> refused = device.try_allocate(MemoryKind::device, bytes);
    expect_refused(refused, ErrorCode::out_of_memory);
    EXPECT_EQ(refused.failure().number("requested"), bytes);
    EXPECT_TRUE(refused.failure().number("free"));
    EXPECT_TRUE(refused.failure().number("total"));
  }
  EXPECT_THROW(static_cast<void>(device.allocate(MemoryKind::device, max_request_bytes)),
               OutOfMemory);
}

TEST_P(Allocates, AndNamesTheCallersLineInARefusal) {
  const CallSite here = CallSite::here();
  const Result<void*> refused =
      device.try_allocate(MemoryKind::device, 64, {.alignment = 3, .site = here});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().site().line, here.line);
}

TEST_P(Allocates, AndRefusesToReleaseTwice) {
  for (const std::size_t bytes : {100u, 5u << 20}) {
    void* address = device.allocate(MemoryKind::device, bytes);
    EXPECT_TRUE(device.try_release(address));
    expect_refused(device.try_release(address), ErrorCode::use_after_free);
  }
}

TEST_P(Allocates, AndRefusesToReleaseWhatIsNotTheStartOfABlock) {
  const Block block(device, 4096);
  int on_the_stack = 0;
  expect_refused(device.try_release(block.get() + 64), ErrorCode::use_after_free);
  expect_refused(device.try_release(&on_the_stack), ErrorCode::use_after_free);
  write(block.get(), sample(4096));
  EXPECT_EQ(read(block.get(), 4096), sample(4096));
}

TEST_P(Allocates, AndCallsForeignAndNullAddressesHostMemory) {
  int on_the_stack = 0;
  const Block block(device, 100);
  for (const void* address :
       {static_cast<const void*>(&on_the_stack), static_cast<const void*>(nullptr)}) {
    const PointerInfo info = device.pointer_info(address);
    EXPECT_EQ(info.kind, MemoryKind::host);
    EXPECT_EQ(info.base, nullptr);
    EXPECT_EQ(info.bytes, 0u);
  }
}

TEST_P(Allocates, AndForgetsWhatWasReleased) {
  void* address = device.allocate(MemoryKind::device, 64 * mib);
  device.release(address);
  EXPECT_EQ(device.pointer_info(address).base, nullptr);
}

TEST_P(Allocates, HostMemoryForTheDeviceIfItCanRegisterIt) {
  Bytes bytes(4096);
  const Result<void*> seen = device.try_register_host(bytes.data(), bytes.size());
  if (!can(Capability::registered_memory)) {
    expect_unsupported(seen, Capability::registered_memory, device);
    expect_unsupported(device.try_unregister_host(bytes.data()), Capability::registered_memory,
                       device);
    return;
  }
  ASSERT_TRUE(seen);
  EXPECT_EQ(device.pointer_info(bytes.data()).kind, MemoryKind::registered);
  EXPECT_TRUE(device.try_unregister_host(bytes.data()));
  EXPECT_TRUE(*device.try_register_host(nullptr, 0) == nullptr);
}

}  // namespace
}  // namespace tern::test
