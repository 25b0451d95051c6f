#include "tern/memory/budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "memory/budget_state.hpp"
#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"

namespace tern {
namespace {

using test::expect_sound;
using test::limited;

template <class T>
const Failure& refused(const Result<T>& result) {
  EXPECT_FALSE(result);
  return result.failure();
}

TEST(Budget, AdmitsExactlyItsLimit) {
  const BudgetHandle budget = limited(4096);
  const Charge whole = budget->charge(4096);
  EXPECT_EQ(budget->used_bytes(), 4096u);
  EXPECT_EQ(budget->remaining_bytes(), 0u);
  const Result<Charge> more = budget->try_charge(1);
  const Failure& failure = refused(more);
  EXPECT_EQ(failure.code(), ErrorCode::out_of_budget);
  EXPECT_EQ(failure.number("requested"), 1u);
  EXPECT_EQ(failure.number("current"), 4096u);
  EXPECT_EQ(failure.number("remaining"), 0u);
  EXPECT_EQ(failure.number("limit"), 4096u);
  EXPECT_EQ(failure.number("required"), 4097u);
  EXPECT_EQ(failure.number("overflow"), 0u);
  expect_sound(*budget);
}

TEST(Budget, TellsWhatARefusalWasAbout) {
  const BudgetHandle budget = limited(1024);
  const Charge most = budget->charge(768, "weights");
  const Result<Charge> more = budget->try_charge(512, "scratch");
  const Failure& failure = refused(more);
  EXPECT_EQ(failure.string("layer"), "test");
  EXPECT_EQ(failure.number("requested"), 512u);
  EXPECT_EQ(failure.number("would_grant"), 512u);
  EXPECT_EQ(failure.number("required"), 1280u);
  EXPECT_EQ(failure.number("current"), 768u);
  EXPECT_EQ(failure.number("admitted"), 768u);
  EXPECT_EQ(failure.number("pending"), 0u);
  EXPECT_EQ(failure.number("reserved"), 0u);
  EXPECT_EQ(failure.number("remaining"), 256u);
  EXPECT_EQ(failure.number("limit"), 1024u);
  EXPECT_EQ(failure.number("peak"), 768u);
  EXPECT_EQ(failure.string("tag"), "scratch");
  EXPECT_EQ(failure.string("device"), "any");
  EXPECT_EQ(failure.number("fits_after_pending"), 0u);
  EXPECT_EQ(failure.text(),
            "budget 'test' cannot hold 512 B more: 768 B of 1.0 KiB in use. Free something, or "
            "raise the limit by 256 B.");
  EXPECT_EQ(failure.number("missing"), 256u);
  EXPECT_EQ(budget->used_bytes(), 768u);
}

TEST(Budget, SaysWhatWouldHelp) {
  const BudgetHandle budget = limited(1024);
  EXPECT_EQ(budget->try_charge(2048).failure().text(),
            "budget 'test' cannot hold 2.0 KiB: the request exceeds its limit of 1.0 KiB by 1.0 "
            "KiB, even if everything else is freed. Ask for less, or raise the limit.");
  const Reservation reservation = budget->reserve(768);
  EXPECT_EQ(budget->try_charge(512).failure().text(),
            "budget 'test' cannot hold 512 B more: 768 B of 1.0 KiB in use, 768 B of it reserved. "
            "Charge the request to the reservation, or end the reservation.");
}

TEST(Budget, RefusesSumsThatWouldWrap) {
  const BudgetHandle budget = limited(1024);
  const Charge some = budget->charge(1000);
  const Result<Charge> more = budget->try_charge(std::numeric_limits<std::size_t>::max() - 500);
  const Failure& failure = refused(more);
  EXPECT_EQ(failure.number("overflow"), 1u);
  EXPECT_EQ(failure.number("required"), std::numeric_limits<std::size_t>::max());
  EXPECT_FALSE(budget->would_fit(std::numeric_limits<std::size_t>::max()));

  const BudgetHandle endless = Budget::make("endless", BudgetLimit::unlimited());
  const Charge one = endless->charge(1);
  EXPECT_FALSE(endless->try_charge(std::numeric_limits<std::size_t>::max()));
  EXPECT_FALSE(endless->try_charge(max_request_bytes));
  EXPECT_EQ(endless->used_bytes(), 1u);
  const Charge rest = endless->charge(max_request_bytes - 1);
  EXPECT_EQ(endless->peak_bytes(), max_request_bytes);
}

TEST(Budget, IsMadeWithALimitOrWithoutOneOnPurpose) {
  static_assert(!std::is_default_constructible_v<BudgetLimit>);
  EXPECT_FALSE(Budget::make("none", BudgetLimit::unlimited())->has_limit());
  EXPECT_TRUE(limited(0)->has_limit());
  EXPECT_FALSE(limited(0)->try_charge(1));
  EXPECT_TRUE(limited(0)->try_charge(0));
  EXPECT_EQ(limited(std::numeric_limits<std::size_t>::max())->limit_bytes(), max_request_bytes);
  EXPECT_THROW(static_cast<void>(Budget::make("", BudgetLimit::bytes(1))), InvalidArgument);
}

TEST(Budget, TakesAFractionOfADevice) {
  const Device device = sim::open({.memory_bytes = 20 * mib});
  const BudgetHandle most = Budget::make("most", BudgetLimit::fraction_of(device));
  EXPECT_EQ(most->limit_bytes(), 16 * mib);
  EXPECT_EQ(most->device(), device.id());
  EXPECT_EQ(BudgetLimit::fraction_of(device, 1).value_bytes(), 20 * mib);
  for (const double bad : {0.0, -0.5, 1.01, std::nan("")}) {
    EXPECT_THROW(static_cast<void>(BudgetLimit::fraction_of(device, bad)), InvalidArgument);
  }
}

TEST(Budget, IsOfOneDeviceOrOfAny) {
  const BudgetHandle neutral = limited(10);
  EXPECT_FALSE(neutral->device());
  const BudgetHandle one =
      Budget::make("one", BudgetLimit::bytes(1), {.parent = neutral, .device = DeviceId{900'000}});
  EXPECT_EQ(limited(1, "child", one)->device(), DeviceId{900'000});
  EXPECT_THROW(static_cast<void>(Budget::make("other", BudgetLimit::bytes(1),
                                              {.parent = one, .device = DeviceId{900'001}})),
               DeviceMismatch);
  const Device device = sim::open({.memory_bytes = 2 * mib});
  EXPECT_THROW(static_cast<void>(Budget::make("other", BudgetLimit::fraction_of(device),
                                              {.device = DeviceId{1'000'000}})),
               DeviceMismatch);
  EXPECT_THROW(one->set_limit(BudgetLimit::fraction_of(device)), DeviceMismatch);
  EXPECT_EQ(one->limit_bytes(), 1u);
}

TEST(Budget, RefusesAtTheLevelWithoutRoomAndUndoesTheOthers) {
  const BudgetHandle root = limited(4096, "root");
  const BudgetHandle parent = limited(1024, "parent", root);
  const BudgetHandle child = limited(2048, "child", parent);
  const Result<Charge> much = child->try_charge(1500);
  EXPECT_EQ(refused(much).string("layer"), "root/parent");
  EXPECT_EQ(refused(much).number("limit"), 1024u);
  for (const BudgetHandle& level : {root, parent, child}) {
    EXPECT_EQ(state_of(*level), (BudgetState{.limit_bytes = level->limit_bytes()}));
  }
  const Charge some = child->charge(1000);
  for (const BudgetHandle& level : {root, parent, child}) {
    EXPECT_EQ(level->used_bytes(), 1000u);
    expect_sound(*level);
  }
  EXPECT_TRUE(child->would_fit(24));
  EXPECT_FALSE(child->would_fit(25));
  EXPECT_TRUE(root->would_fit(25));
}

TEST(Budget, WouldFitChangesNothing) {
  const BudgetHandle budget = limited(1024);
  const BudgetState before = state_of(*budget);
  EXPECT_TRUE(budget->would_fit(0));
  EXPECT_TRUE(budget->would_fit(1024));
  EXPECT_FALSE(budget->would_fit(1025));
  EXPECT_EQ(state_of(*budget), before);
}

TEST(Budget, RevokesNothingWhenItsLimitIsLowered) {
  const BudgetHandle budget = limited(1024);
  Charge first = budget->charge(600);
  const Charge second = budget->charge(400);
  budget->set_limit(BudgetLimit::bytes(500));
  EXPECT_EQ(budget->used_bytes(), 1000u);
  EXPECT_EQ(budget->remaining_bytes(), 0u);
  EXPECT_FALSE(budget->try_charge(1));
  EXPECT_FALSE(budget->try_charge(std::numeric_limits<std::size_t>::max()));
  first = {};
  EXPECT_EQ(budget->remaining_bytes(), 100u);
  EXPECT_FALSE(budget->try_charge(101));
  EXPECT_TRUE(budget->try_charge(100));
  budget->set_limit(BudgetLimit::unlimited());
  EXPECT_TRUE(budget->try_charge(1 << 20));
}

TEST(Budget, KeepsThePeakOfWhatWasAdmitted) {
  const BudgetHandle budget = limited(4096);
  const Charge one = budget->charge(1024);
  {
    const Charge two = budget->charge(2048);
    EXPECT_EQ(budget->peak_bytes(), 3072u);
    EXPECT_FALSE(budget->try_charge(2048));
    EXPECT_EQ(budget->peak_bytes(), 3072u);
  }
  EXPECT_EQ(budget->peak_bytes(), 3072u);
  budget->reset_peak();
  EXPECT_EQ(budget->peak_bytes(), 1024u);
  const Charge three = budget->charge(512);
  EXPECT_EQ(budget->peak_bytes(), 1536u);
  EXPECT_EQ(budget->used_bytes(), 1536u);
  budget->reset_peak();
  EXPECT_EQ(budget->peak_bytes(), 1536u);
  expect_sound(*budget);
}

TEST(Budget, LeavesThePeakAloneWhenBytesAreOnlyReserved) {
  const BudgetHandle budget = limited(4096);
  const PeakWindow window(budget);
  { const Reservation reservation = budget->reserve(4096); }
  EXPECT_EQ(budget->peak_bytes(), 0u);
  EXPECT_EQ(window.peak_bytes(), 0u);
}

TEST(Budget, SeesPeaksThroughNestedWindows) {
  const BudgetHandle root = limited(8192, "root");
  const BudgetHandle budget = limited(4096, "child", root);
  const Charge base = budget->charge(100);
  const PeakWindow outer(budget), top(root);
  EXPECT_EQ(outer.peak_bytes(), 100u);
  { const Charge more = budget->charge(1000); }
  {
    const PeakWindow inner(budget);
    EXPECT_EQ(inner.peak_bytes(), 100u);
    { const Charge less = budget->charge(200); }
    EXPECT_EQ(inner.peak_bytes(), 300u);
  }
  {
    const PeakWindow inner(budget);
    EXPECT_EQ(inner.peak_bytes(), 100u);
    budget->reset_peak();
    { const Charge less = budget->charge(20); }
    EXPECT_EQ(inner.peak_bytes(), 120u);
    EXPECT_EQ(budget->peak_bytes(), 120u);
  }
  EXPECT_EQ(outer.peak_bytes(), 1100u);
  EXPECT_EQ(top.peak_bytes(), 1100u);
  EXPECT_EQ(budget->used_bytes(), 100u);
  EXPECT_THROW(PeakWindow{nullptr}, InvalidArgument);
}

TEST(Budget, ClosesWindowsInAnyOrder) {
  const BudgetHandle budget = limited(4096);
  auto first = std::make_unique<PeakWindow>(budget), second = std::make_unique<PeakWindow>(budget);
  auto third = std::make_unique<PeakWindow>(budget);
  second.reset();
  { const Charge some = budget->charge(10); }
  first.reset();
  EXPECT_EQ(third->peak_bytes(), 10u);
  third.reset();
  const Charge some = budget->charge(20);
  EXPECT_EQ(budget->used_bytes(), 20u);
  EXPECT_EQ(budget->peak_bytes(), 20u);
}

TEST(Budget, CountsByTag) {
  const BudgetHandle root = limited(8192, "root");
  const BudgetHandle budget = limited(4096, "child", root);
  const Charge weights = budget->charge(1000, "weights");
  Charge scratch = budget->charge(200, "scratch");
  const Charge none = budget->charge(30);
  for (const BudgetHandle& level : {root, budget}) {
    EXPECT_EQ(level->used_bytes("weights"), 1000u);
    EXPECT_EQ(level->used_bytes("scratch"), 200u);
    EXPECT_EQ(level->used_bytes(Tag()), 30u);
    EXPECT_EQ(level->used_by_tag().size(), 3u);
    expect_sound(*level);
  }
  scratch = {};
  EXPECT_EQ(root->used_bytes("scratch"), 0u);
  expect_sound(*root);
}

TEST(Budget, ChargesAMovedTokenOnce) {
  const BudgetHandle budget = limited(4096);
  Charge first = budget->charge(100, "elsewhere");
  Charge second = std::move(first);
  EXPECT_EQ(budget->used_bytes(), 100u);
  EXPECT_EQ(first.bytes(), 0u);
  EXPECT_EQ(second.tag(), Tag("elsewhere"));
  first = budget->charge(50);
  second = std::move(first);
  EXPECT_EQ(budget->used_bytes(), 50u);
  Charge& same = second;
  second = std::move(same);
  EXPECT_EQ(budget->used_bytes(), 50u);
  second = {};
  EXPECT_EQ(budget->used_bytes(), 0u);
  expect_sound(*budget);
}

TEST(Budget, ReservesWhatFitsAtEveryLevel) {
  const BudgetHandle root = limited(4095, "root");
  const BudgetHandle budget = limited(8192, "child", root);
  const Result<Reservation> much = budget->try_reserve(4096);
  EXPECT_EQ(refused(much).code(), ErrorCode::out_of_budget);
  EXPECT_EQ(refused(much).string("layer"), "root");
  EXPECT_EQ(budget->charged_bytes() + root->charged_bytes(), 0u);
  {
    Reservation reservation = budget->reserve(4000);
    EXPECT_EQ(root->reserved_bytes(), 4000u);
    EXPECT_EQ(budget->remaining_bytes(), 4192u);
    EXPECT_EQ(root->remaining_bytes(), 95u);
    EXPECT_EQ(root->used_bytes(), 0u);
    EXPECT_FALSE(budget->try_charge(96));
    Reservation moved = std::move(reservation);
    EXPECT_EQ(moved.bytes(), 4000u);
    EXPECT_EQ(reservation.bytes(), 0u);
    expect_sound(*root);
  }
  EXPECT_EQ(budget->charged_bytes() + root->charged_bytes(), 0u);
  EXPECT_EQ(budget->reserved_bytes() + root->reserved_bytes(), 0u);
}

TEST(Budget, LetsOneOfTwoFullReservationsWin) {
  const BudgetHandle budget = limited(4096);
  for (const bool first_dies_first : {true, false}) {
    Result<Reservation> first = budget->try_reserve(4096);
    Result<Reservation> second = budget->try_reserve(4096);
    EXPECT_TRUE(first);
    EXPECT_FALSE(second);
    if (first_dies_first) first = Reservation();
    EXPECT_EQ(bool(budget->try_reserve(4096)), first_dies_first);
  }
  EXPECT_EQ(budget->charged_bytes(), 0u);
  Reservation half = budget->reserve(1000), other = budget->reserve(2000);
  half = std::move(other);
  EXPECT_EQ(budget->reserved_bytes(), 2000u);
  half = {};
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST(Budget, ReservesOnlyBelowALimit) {
  const BudgetHandle endless = Budget::make("endless", BudgetLimit::unlimited());
  EXPECT_EQ(endless->try_reserve(1).failure().code(), ErrorCode::unsupported);
  const BudgetHandle below =
      Budget::make("below", BudgetLimit::unlimited(), {.parent = limited(10, "parent")});
  EXPECT_TRUE(below->try_reserve(10));
  EXPECT_FALSE(below->try_reserve(11));
}

TEST(Budget, KeepsItsParentAlive) {
  BudgetHandle child = limited(10, "child", limited(20, "parent"));
  EXPECT_EQ(child->path(), "parent/child");
  Charge charge = child->charge(5);
  const BudgetHandle parent = child->parent();
  child.reset();
  EXPECT_EQ(parent->used_bytes(), 5u);  // the token keeps its budget
  charge = {};
  EXPECT_EQ(parent->used_bytes(), 0u);
}

TEST(Budget, IsUnchangedIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  const BudgetHandle root = limited(8192, "root");
  const BudgetHandle budget = limited(4096, "child", root);
  const Charge some = budget->charge(100, "some");
  std::vector<Tag> tags;  // so many that the next one has a page of its own
  for (int i = 0; i < 300; ++i) tags.emplace_back("budget_test." + std::to_string(i));
  const Tag tag = tags.back();
  const BudgetState before = state_of(*budget), root_before = state_of(*root);
  std::size_t failures = 0;
  for (std::size_t left = 0;; ++left) {
    Result<Charge> charge = [&] {
      const test::HeapExhausted exhausted(left);
      return budget->try_charge(10, tag);
    }();
    if (charge) break;
    ++failures;
    EXPECT_EQ(charge.failure().code(), ErrorCode::out_of_memory);
    EXPECT_EQ(state_of(*budget), before);
    EXPECT_EQ(state_of(*root), root_before);
    expect_sound(*budget);
  }
  EXPECT_EQ(failures, 2u);
  EXPECT_EQ(state_of(*budget).admitted_bytes, 100u);
  const test::AllocationCounter counter;
  const bool is_refused = !budget->try_charge(5000) && !budget->try_reserve(5000);
  const std::size_t used = counter.count();
  EXPECT_TRUE(is_refused);
  EXPECT_EQ(used, 0u);
  const test::HeapExhausted exhausted;
  EXPECT_THROW(static_cast<void>(limited(1)), OutOfMemory);
}

// --- Threads

TEST(BudgetThreads, NeverPassTheLimit) {
  constexpr std::size_t limit = 1000;
  constexpr int thread_count = 16, steps = 60'000;
  const BudgetHandle root = limited(limit, "root");
  const BudgetHandle leaves[] = {limited(700, "a", root), limited(800, "b", root)};
  std::atomic<bool> is_over = false;
  std::atomic<std::uint64_t> refusals = 0, grants = 0;
  std::size_t most = 0;
  test::Thread watcher([&] {
    while (!is_over) {
      for (const Budget* level : {root.get(), leaves[0].get(), leaves[1].get()}) {
        const std::size_t used = level->used_bytes(), charged = level->charged_bytes();
        if (used > level->limit_bytes() || charged > level->limit_bytes()) {
          most = std::max({most, used, charged});
        }
      }
    }
  });
  std::vector<test::Thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      const Tag tag("thread" + std::to_string(i % 5));
      std::uint64_t random = static_cast<std::uint64_t>(i) + 1;
      Charge held;
      for (int step = 0; step < steps; ++step) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const std::size_t bytes = 1 + (random >> 33) % 300;
        if (random >> 63 != 0) {
          const Result<Reservation> reservation = leaves[i % 2]->try_reserve(bytes);
          reservation ? ++grants : ++refusals;
          continue;
        }
        Result<Charge> charge = leaves[i % 2]->try_charge(bytes, tag);
        charge ? ++grants : ++refusals;
        if (charge) held = std::move(*charge);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  is_over = true;
  watcher.join();
  EXPECT_EQ(most, 0u) << "a level was above its limit";
  EXPECT_GT(refusals, 0u);
  EXPECT_GT(grants, 0u);
  for (const Budget* level : {root.get(), leaves[0].get(), leaves[1].get()}) {
    EXPECT_EQ(level->used_bytes(), 0u);
    EXPECT_EQ(level->charged_bytes(), 0u);
    EXPECT_LE(level->peak_bytes(), level->limit_bytes());
    expect_sound(*level);
  }
}

TEST(BudgetThreads, ChargeTheLastByteOnce) {
  const BudgetHandle budget = limited(1);
  std::atomic<int> holders = 0, most = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 2'000'000; ++step) {
        if (!budget->would_fit(1)) continue;  // so that most of those who try do so together
        const Result<Charge> charge = budget->try_charge(1);
        if (!charge) continue;
        if (++holders > 1) ++most;
        --holders;
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(most, 0);
  EXPECT_EQ(budget->peak_bytes(), 1u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST(BudgetThreads, GiveOneOfTwoFullReservationsEveryRound) {
  const BudgetHandle root = limited(4096, "root");
  const BudgetHandle leaves[] = {limited(4096, "a", root), limited(4096, "b", root)};
  for (int round = 0; round < 300; ++round) {
    Result<Reservation> won[2] = {Reservation(), Reservation()};
    std::atomic<int> ready = 0;
    std::vector<test::Thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        for (++ready; ready < 2;) std::this_thread::yield();
        won[i] = leaves[i]->try_reserve(4096);
      });
    }
    for (test::Thread& thread : threads) thread.join();
    // Both may have claimed their leaf, but the root has room for one.
    EXPECT_EQ(bool(won[0]) + bool(won[1]), 1);
    EXPECT_EQ(root->charged_bytes(), 4096u);
    EXPECT_EQ(leaves[0]->charged_bytes() + leaves[1]->charged_bytes(), 4096u);
  }
  EXPECT_EQ(root->charged_bytes(), 0u);
}

/// While others only take, whatever is used was admitted, so every peak that begins later is at
/// least that.
void race_growth(const std::function<void(const BudgetHandle&)>& check) {
  constexpr int thread_count = 3, charges = 20'000;
  for (int round = 0; round < 5; ++round) {
    const BudgetHandle budget = Budget::make("growing", BudgetLimit::unlimited());
    std::atomic<int> running = thread_count;
    std::vector<std::vector<Charge>> kept(thread_count);
    std::vector<test::Thread> threads;
    for (int i = 0; i < thread_count; ++i) {
      threads.emplace_back([&, i] {
        kept[static_cast<std::size_t>(i)].reserve(charges);
        for (int step = 0; step < charges; ++step) {
          kept[static_cast<std::size_t>(i)].push_back(budget->charge(1));
        }
        --running;
      });
    }
    while (running > 0) check(budget);
    for (test::Thread& thread : threads) thread.join();
    check(budget);
    EXPECT_EQ(budget->used_bytes(), static_cast<std::size_t>(thread_count * charges));
    EXPECT_EQ(budget->peak_bytes(), budget->used_bytes());
  }
}

TEST(BudgetThreads, NeverSeeAPeakBelowWhatIsUsed) {
  std::size_t misses = 0;
  race_growth([&](const BudgetHandle& budget) {
    const std::size_t used = budget->used_bytes();
    misses += budget->peak_bytes() < used;
  });
  EXPECT_EQ(misses, 0u);
}

TEST(BudgetThreads, LoseNothingToAReset) {
  std::size_t misses = 0;
  race_growth([&](const BudgetHandle& budget) {
    budget->reset_peak();
    const std::size_t used = budget->used_bytes();
    misses += budget->peak_bytes() < used;
  });
  EXPECT_EQ(misses, 0u);
}

TEST(BudgetThreads, LoseNothingToResetsThatRace) {
  std::atomic<std::size_t> misses = 0;
  race_growth([&](const BudgetHandle& budget) {
    test::Thread other([&] { budget->reset_peak(); });
    budget->reset_peak();
    const std::size_t used = budget->used_bytes();
    if (budget->peak_bytes() < used) ++misses;
    other.join();
  });
  EXPECT_EQ(misses, 0u);
}

TEST(BudgetThreads, RaiseNothingAfterAResetThatCameBefore) {
  // An admission that saw the large charge must not show after the reset that did not.
  const BudgetHandle budget = limited(1 << 20);
  std::atomic<bool> is_over = false;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) static_cast<void>(budget->try_charge(1));
    });
  }
  std::size_t wrong = 0;
  for (int round = 0; round < 200; ++round) {
    Charge large = budget->charge(1000);
    std::this_thread::yield();
    large = {};
    budget->reset_peak();
    for (int i = 0; i < 4; ++i) wrong += budget->peak_bytes() > 3;
    std::this_thread::yield();
    wrong += budget->peak_bytes() > 3;
  }
  is_over = true;
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(BudgetThreads, LoseNothingToAWindowThatOpens) {
  std::size_t misses = 0, opened = 0;
  race_growth([&](const BudgetHandle& budget) {
    const PeakWindow outer(budget);
    ++opened;
    const std::size_t used = budget->used_bytes();
    const PeakWindow inner(budget);
    const std::size_t later = budget->used_bytes();
    misses += outer.peak_bytes() < used || inner.peak_bytes() < later;
    misses += outer.peak_bytes() < inner.peak_bytes() && outer.peak_bytes() < later;
  });
  EXPECT_EQ(misses, 0u);
  EXPECT_GT(opened, 100u);
}

TEST(BudgetThreads, RaiseNoWindowWithAPeakFromBeforeIt) {
  // The window begins when nothing is used, so the late raise of an earlier charge must not show.
  const BudgetHandle budget = limited(1 << 20);
  std::size_t wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    test::Thread other([&] { const Charge large = budget->charge(1000); });
    while (budget->used_bytes() == 0 && budget->peak_bytes() == 0) std::this_thread::yield();
    other.join();
    budget->reset_peak();
    const PeakWindow window(budget);
    wrong += budget->peak_bytes() != 0 || window.peak_bytes() != 0;
  }
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace tern
