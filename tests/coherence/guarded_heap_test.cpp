#include "coherence/guarded_heap.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>

#include "support/forked_child.hpp"
#include "support/thread.hpp"

namespace tern {
namespace {

using Allowed = GuardedHeap::Allowed;

class GuardedHeapTest : public testing::Test {
 protected:
  GuardedHeapTest() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  /// In a process that dies: a sanitizer's handler would end it in its own way.
  static void forget_handlers() { signal(SIGSEGV, SIG_DFL); }

  static inline const std::size_t page = GuardedHeap::page_bytes();
  struct Heap {
    GuardedHeap pages{3 * page + 1, Tag("heap")};
    volatile char* first =
        static_cast<volatile char*>(pages.try_begin(CallSite::here()).value().host_address);

    void close_all_but(ByteRange range, Allowed allowed) {
      pages.begin_rules();
      pages.allow(range, allowed);
      pages.close({"a.cpp", "", 7});
    }
  };
  static void touch(std::size_t offset, ByteRange range, Allowed allowed, bool writes) {
    forget_handlers();
    Heap heap;
    heap.close_all_but(range, allowed);
    if (writes) heap.first[offset] = 1;
    static_cast<void>(heap.first[offset]);
  }
};

const testing::KilledBySignal by_fault(SIGSEGV);

TEST_F(GuardedHeapTest, IsOpenAtFirstAndWhenItIsOpenedAgain) {
  Heap heap;
  for (std::size_t i = 0; i <= 3 * page; i += page) heap.first[i] = 1;
  heap.close_all_but({0, 0}, Allowed::nothing);
  heap.pages.open();
  for (std::size_t i = 0; i <= 3 * page; i += page) EXPECT_EQ(heap.first[i], 1);
  heap.first[3 * page] = 2;
}

TEST_F(GuardedHeapTest, ClosesPagesOfWhichNothingIsAllowed) {
  const ByteRange allowed{page, page + 1};
  {
    Heap heap;
    heap.close_all_but(allowed, Allowed::everything);
    heap.first[page] = 1;
    heap.first[2 * page - 1] = 1;  // of the same page
  }
  for (const std::size_t offset : {page - 1, 2 * page, 3 * page}) {
    EXPECT_EXIT(touch(offset, allowed, Allowed::everything, false), by_fault,
                "'heap': the host touched byte " + std::to_string(offset) + " .*\n.*a.cpp:7");
  }
}

TEST_F(GuardedHeapTest, LetsPagesBeReadAndNotWritten) {
  const ByteRange allowed{0, 2 * page};
  {
    Heap heap;
    heap.close_all_but(allowed, Allowed::reading);
    EXPECT_EQ(heap.first[0], 0);
    EXPECT_EQ(heap.first[2 * page - 1], 0);
  }
  EXPECT_EXIT(touch(page, allowed, Allowed::reading, true), by_fault, "touched byte");
}

TEST_F(GuardedHeapTest, AllowsTheMostThatAnybodyMayDoWithAPage) {
  Heap heap;
  heap.pages.begin_rules();
  heap.pages.allow({0, 10}, Allowed::everything);
  heap.pages.allow({5, page + 5}, Allowed::reading);
  heap.pages.allow({9, 9}, Allowed::everything);
  heap.pages.close({});
  heap.first[page - 1] = 1;
  EXPECT_EQ(heap.first[page], 0);
}

TEST_F(GuardedHeapTest, EndsInAChildWhileAnotherThreadOfTheParentClosesPages) {
  Heap busy;
  auto heap = std::make_unique<Heap>();
  std::atomic<bool> is_over = false;
  test::Thread other([&] {
    while (!is_over) busy.close_all_but({0, 1}, Allowed::reading);
  });
  // A fork that finds the other thread at it is not far off.
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    EXPECT_EQ(test::in_a_forked_child([&] {
                heap->pages.open();
                heap->first[0] = 1;
                heap.reset();
                return true;
              }),
              0);
  }
  is_over = true;
  other.join();
}

TEST_F(GuardedHeapTest, IsRefusedWhereTheHostHasNoRoom) {
  // More than a process has addresses for.
  GuardedHeap large(std::size_t{1} << 50, Tag("large"));
  const Result<StorageOrigin::Memory> refused = large.try_begin(CallSite::here());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace tern
