#include "memory/pool/segment_store.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "tern/core/bytes.hpp"

namespace tern::pool {
namespace {

class SegmentStoreTest : public testing::Test {
 protected:
  test::FakeDevice fake;
};

void* address_of(std::uint64_t offset) { return reinterpret_cast<void*>(offset * granule_bytes); }

TEST_F(SegmentStoreTest, HoldsAddedSegments) {
  SegmentStore store(fake.device, MemoryKind::device);
  const std::uint64_t first = store.try_add(1 * mib, 4096).value();
  const std::uint64_t second = store.try_add(2 * mib, 64 * kib).value();
  EXPECT_EQ(store.held_bytes(), 3 * mib);
  EXPECT_EQ(store.driver_calls(), 2u);
  EXPECT_EQ(second * granule_bytes % (64 * kib), 0u);
  std::memset(address_of(first), 1, 1 * mib);
  std::memset(address_of(second), 2, 2 * mib);
  EXPECT_TRUE(store.try_release(first));
  EXPECT_EQ(store.held_bytes(), 2 * mib);
  EXPECT_TRUE(store.try_release(second));
  EXPECT_EQ(store.held_bytes(), 0u);
  EXPECT_EQ(store.driver_calls(), 4u);
}

TEST_F(SegmentStoreTest, FreesEverythingAtItsEnd) {
  {
    SegmentStore store(fake.device, MemoryKind::pinned);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(store.try_add(64 * kib, 4096));
    EXPECT_EQ(store.held_bytes(), 20 * 64 * kib);
  }
  EXPECT_EQ(fake.ledger->count(test::Call::allocate), 20u);
  EXPECT_EQ(fake.ledger->count(test::Call::release), 20u);
}

TEST_F(SegmentStoreTest, KeepsASegmentTheDriverFailsToFree) {
  SegmentStore store(fake.device, MemoryKind::device);
  const std::uint64_t first = store.try_add(1 * mib, 4096).value();
  fake.ledger->fail_next(test::Call::release);
  EXPECT_FALSE(store.try_release(first));
  EXPECT_EQ(store.held_bytes(), 1 * mib);
  EXPECT_TRUE(store.try_release(first));
  EXPECT_EQ(store.held_bytes(), 0u);
}

TEST_F(SegmentStoreTest, HoldsNothingMoreIfTheDriverFails) {
  SegmentStore store(fake.device, MemoryKind::device);
  fake.ledger->fail_next(test::Call::allocate);
  EXPECT_FALSE(store.try_add(1 * mib, 4096));
  EXPECT_EQ(store.held_bytes(), 0u);
  EXPECT_EQ(store.driver_calls(), 1u);
  EXPECT_TRUE(store.try_add(1 * mib, 4096));
}

TEST_F(SegmentStoreTest, MakesNoDriverCallIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  SegmentStore store(fake.device, MemoryKind::device);
  ErrorCode code{};
  {
    const test::HeapExhausted none;
    code = store.try_add(1 * mib, 4096).failure().code();
  }
  EXPECT_EQ(code, ErrorCode::out_of_memory);
  EXPECT_EQ(fake.ledger->count(test::Call::allocate), 0u);
  EXPECT_EQ(store.held_bytes(), 0u);
}

}  // namespace
}  // namespace tern::pool
