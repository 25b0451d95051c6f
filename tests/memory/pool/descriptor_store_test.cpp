#include "memory/pool/descriptor_store.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "memory/block_table.hpp"
#include "support/allocation_counter.hpp"

namespace tern::pool {
namespace {

constexpr DeviceId device{7};

/// Somebody to own places; only the address counts.
const Resource* some_owner() {
  static const std::byte somebody{};
  return reinterpret_cast<const Resource*>(&somebody);
}

TEST(DescriptorStore, IsEmptyBeforePreparation) {
  const DescriptorStore store(nullptr, device);
  EXPECT_EQ(store.spare_count(), 0u);
  EXPECT_EQ(store.used_count(), 0u);
}

TEST(DescriptorStore, ProvidesThePreparedNumber) {
  DescriptorStore store(nullptr, device);
  ASSERT_TRUE(store.try_prepare(300));
  EXPECT_GE(store.spare_count(), 300u);
  std::set<Descriptor*> taken;
  for (std::size_t i = 1; i <= 300; ++i) {
    Descriptor& one = store.take();
    EXPECT_EQ(one.state, State::held);
    EXPECT_EQ(one.next, nullptr);
    EXPECT_TRUE(taken.insert(&one).second);
    EXPECT_EQ(store.used_count(), i);
  }
  std::size_t used = 0;
  store.for_each([&used](const Descriptor& one) { used += one.state != State::spare; });
  EXPECT_EQ(used, 300u);
}

TEST(DescriptorStore, ReusesReturnedDescriptorsFirst) {
  DescriptorStore store(nullptr, device);
  ASSERT_TRUE(store.try_prepare(1));
  const std::size_t spare = store.spare_count();
  Descriptor& one = store.take();
  Descriptor other;
  one.before = one.after = one.previous = one.older = one.newer = &other;
  store.give(one);
  EXPECT_EQ(store.spare_count(), spare);
  Descriptor& again = store.take();
  EXPECT_EQ(&again, &one);
  EXPECT_EQ(again.before, nullptr);
  EXPECT_EQ(again.after, nullptr);
  EXPECT_EQ(again.previous, nullptr);
  EXPECT_EQ(again.older, nullptr);
  EXPECT_EQ(again.newer, nullptr);
}

TEST(DescriptorStore, GivesEachAnEntryInTheBlockTable) {
  std::uint32_t slot = 0;
  {
    DescriptorStore store(some_owner(), device);
    ASSERT_TRUE(store.try_prepare(2));
    Descriptor& one = store.take();
    Descriptor& two = store.take();
    EXPECT_NE(one.slot, two.slot);
    EXPECT_EQ(one.place, find_place(one.slot));
    EXPECT_EQ(one.place->owner.load(), some_owner());
    EXPECT_EQ(one.place->device.load(), device);
    EXPECT_EQ(one.place->note.load(), reinterpret_cast<std::uintptr_t>(&one));
    slot = one.slot;
    // A place stays when the descriptor is used for another range.
    BlockPlace* const place = two.place;
    store.give(two);
    EXPECT_EQ(store.take().place, place);
  }
  // Dropped with the store: the table has it to give again.
  std::vector<std::uint32_t> kept;
  bool is_there = false;
  for (int i = 0; i < 4096 && !is_there; ++i) {
    kept.push_back(try_keep_place(some_owner(), device, 0).value());
    is_there = kept.back() == slot;
  }
  for (const std::uint32_t one : kept) drop_place(one);
  EXPECT_TRUE(is_there);
}

TEST(DescriptorStore, ReplacesAnExhaustedEntry) {
  DescriptorStore store(some_owner(), device);
  ASSERT_TRUE(store.try_prepare(1));
  Descriptor& one = store.take();
  BlockPlace* const old = one.place;
  const std::uint32_t old_slot = one.slot;
  old->address.store(&store);
  old->bytes.store(512);
  old->word.store(BlockPlace::word_of(BlockPlace::last_count, BlockPhase::retired));
  ASSERT_TRUE(store.try_replace_place(one));
  EXPECT_NE(one.slot, old_slot);
  EXPECT_EQ(one.place, find_place(one.slot));
  EXPECT_LT(one.place->count(), BlockPlace::last_count);
  EXPECT_EQ(one.place->address.load(), &store);
  EXPECT_EQ(one.place->bytes.load(), 512u);
  EXPECT_EQ(one.place->note.load(), reinterpret_cast<std::uintptr_t>(&one));
  // The old one is given to nobody: its next generation would be one that was there before.
  std::vector<std::uint32_t> kept;
  for (int i = 0; i < 8192; ++i) {
    kept.push_back(try_keep_place(some_owner(), device, 0).value());
    ASSERT_NE(kept.back(), old_slot);
  }
  for (const std::uint32_t slot : kept) drop_place(slot);
}

TEST(DescriptorStore, ChangesNothingIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  // All places are taken but 64, and a slab needs 128.
  std::vector<std::uint32_t> kept;
  kept.reserve(1 << 16);
  kept.push_back(try_keep_place(some_owner(), device, 0).value());  // so that there are any
  while (kept.size() < kept.capacity()) {
    const test::HeapExhausted none;
    const Result<std::uint32_t> slot = try_keep_place(some_owner(), device, 0);
    if (!slot) break;
    kept.push_back(*slot);
  }
  for (int i = 0; i < 64; ++i) {
    drop_place(kept.back());
    kept.pop_back();
  }
  DescriptorStore store(some_owner(), device);
  bool has_failed_late = false;
  for (std::size_t left = 0;; ++left) {
    Result<void> prepared;
    std::size_t places = 0;
    {
      const test::HeapExhausted few(left);
      prepared = store.try_prepare(1);
    }
    if (prepared) break;
    EXPECT_EQ(prepared.failure().code(), ErrorCode::out_of_memory);
    EXPECT_EQ(store.spare_count(), 0u);
    EXPECT_EQ(store.used_count(), 0u);
    {
      const test::HeapExhausted none;
      while (const Result<std::uint32_t> slot = try_keep_place(some_owner(), device, 0)) {
        kept.push_back(*slot);
        ++places;
      }
    }
    EXPECT_EQ(places, 64u) << "with " << left << " allocations";
    has_failed_late |= left >= 2;
    for (std::size_t i = 0; i < places; ++i) {
      drop_place(kept.back());
      kept.pop_back();
    }
  }
  EXPECT_TRUE(has_failed_late);
  EXPECT_GE(store.spare_count(), 1u);
  for (const std::uint32_t slot : kept) drop_place(slot);
}

}  // namespace
}  // namespace tern::pool
