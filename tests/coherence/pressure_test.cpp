#include "tern/coherence/pressure.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/thread.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::test {
namespace {

// --- Eviction order

TEST_F(Pressed, EvictsNothingWhileThereIsRoom) {
  const UnifiedBuffer<int> a = clean(), b = dirty(), c = stale();
  EXPECT_TRUE(is_there(a) && is_there(b) && is_there(c));
  EXPECT_EQ(since().evicted(), CopyCount{});
  EXPECT_EQ(budget->used_bytes(), 3 * pressed_bytes);
}

TEST_F(Pressed, StaleGoBeforeCleanBeforeDirty) {
  // Oldest first: what goes is not the oldest.
  const UnifiedBuffer<int> c = dirty(7), b = clean(), a = stale(5);
  const UnifiedBuffer<int> first = dirty(1);
  EXPECT_FALSE(is_there(a));
  EXPECT_TRUE(is_there(b) && is_there(c));
  const DeviceLease<const int> held = first.read_device(s);
  const UnifiedBuffer<int> second = dirty(2);
  EXPECT_FALSE(is_there(b));
  EXPECT_TRUE(is_there(c));
  EXPECT_EQ(since().written_back_bytes, 0u);
  EXPECT_EQ(c.statistics().moved().bytes, 0u);
  const UnifiedBuffer<int> third = dirty(3);
  EXPECT_FALSE(is_there(c));
  EXPECT_EQ(since().written_back_bytes, pressed_bytes);
  for (const Eviction kind : {Eviction::stale, Eviction::clean, Eviction::dirty}) {
    EXPECT_EQ(since().on_device(kind), (CopyCount{1, pressed_bytes})) << name(kind);
  }
  EXPECT_EQ(a.to_vector(), std::vector<int>(pressed_ints, 5));
  EXPECT_EQ(b.to_vector(), counting(pressed_ints));
  EXPECT_EQ(c.to_vector(), std::vector<int>(pressed_ints, 7));
  EXPECT_EQ(c.statistics().of(TransferReason::evict), (CopyCount{1, pressed_bytes}));
  EXPECT_EQ(c.statistics().evicted, (CopyCount{1, pressed_bytes}));
  EXPECT_TRUE(c.check());
}

TEST_F(Pressed, TheLeastRecentlyUsedGoesFirst) {
  const UnifiedBuffer<int> a = clean(), b = clean(), c = clean();
  // The short way, which no lock is taken for.
  EXPECT_EQ(on_device(a, s), counting(pressed_ints));
  const UnifiedBuffer<int> d = clean();
  EXPECT_FALSE(is_there(b));
  const UnifiedBuffer<int> e = clean();
  EXPECT_FALSE(is_there(c));
  EXPECT_TRUE(is_there(a) && is_there(d) && is_there(e));
}

TEST_F(Pressed, WhatWillNotBeUsedGoesFirst) {
  const UnifiedBuffer<int> a = clean(), b = clean(), c = clean();
  c.mark_evict_first();
  const UnifiedBuffer<int> d = clean();
  EXPECT_FALSE(is_there(c));
  b.mark_evict_first();
  EXPECT_EQ(on_device(b, s), counting(pressed_ints));  // after all
  const UnifiedBuffer<int> e = clean();
  EXPECT_FALSE(is_there(a));
  EXPECT_TRUE(is_there(b));
}

TEST_F(Pressed, LeasedEscapedKeptAndClaimedCopiesStay) {
  UnifiedBuffer<int> leased = clean("leased"), escaped = clean("escaped"), kept = clean("kept");
  const DeviceLease<const int> lease = leased.read_device(s);
  const UntrackedLease<int> escape = escaped.export_device(s);
  kept.pin_residency(device.place());
  UnifiedBuffer<int> more = pressed("more");
  const Failure refusal = refused(more.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("leased"), 2 * pressed_bytes);
  EXPECT_EQ(refusal.number("kept"), pressed_bytes);
  EXPECT_EQ(refusal.number("freed"), 0u);
  EXPECT_TRUE(is_there(leased) && is_there(escaped) && is_there(kept));
  kept.pin_residency(device.place(), false);
  write_on_device(more, s, 1);
  EXPECT_FALSE(is_there(kept));
  EXPECT_TRUE(is_there(leased) && is_there(escaped));
}

TEST_F(Pressed, CopiesWhoseStorageIsKeptStay) {
  const UnifiedBuffer<int> oldest = clean("oldest"), second = clean("second"), third = clean();
  StorageHandle kept = oldest.raw().storage_of(device.place());
  const UnifiedBuffer<int> more = dirty();
  EXPECT_TRUE(is_there(oldest));
  EXPECT_FALSE(is_there(second));
  kept = {};
  const UnifiedBuffer<int> last = dirty();
  EXPECT_FALSE(is_there(oldest));
}

TEST_F(Pressed, CopiesThatAnotherThreadHasLeasedStay) {
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3);
  DeviceLease<const int> theirs;
  test::Thread([&] { theirs = a.read_device(s); }).join();
  use(b);
  use(c);
  const UnifiedBuffer<int> d = dirty(4);
  EXPECT_TRUE(is_there(a));
  EXPECT_FALSE(is_there(b));
}

TEST_F(Pressed, KeepingWantsAPlaceThatTakesPart) {
  UnifiedBuffer<int> buffer = pressed();
  EXPECT_EQ(refused(buffer.try_pin_residency(devices[1].place()), ErrorCode::invalid_device)
                .string("tag"),
            "u");
  EXPECT_TRUE(buffer.try_pin_residency(devices[1].place(), false));
  EXPECT_TRUE(buffer.try_pin_residency(device.place()));  // before there is a copy
  EXPECT_FALSE(is_there(buffer));
}

TEST_F(Pressed, ALeaseElsewhereKeepsOnlyWhatMustBeWritten) {
  UnifiedBuffer<int> a = clean(), b = dirty(3);
  const UnifiedBuffer<int> filler = clean();
  use(filler);
  const HostLease<const int> read = std::as_const(a).read_host();
  // The other half of b is on the host and leased: nothing of b is written home meanwhile.
  std::ranges::fill(b.slice(0, 1).discard_host(), 9);
  const HostLease<const int> held = std::as_const(b).slice(0, 1).read_host();
  const UnifiedBuffer<int> c = dirty(1);
  EXPECT_FALSE(is_there(a));
  const UnifiedBuffer<int> d = dirty(2);
  EXPECT_FALSE(is_there(filler));
  const UnifiedBuffer<int> e = dirty(3);
  EXPECT_TRUE(is_there(b));
  EXPECT_FALSE(is_there(c));
  EXPECT_EQ(read[1], 2);
}

TEST_F(Pressed, PrefetchesDisplaceNothingThatMustBeWritten) {
  const UnifiedBuffer<int> a = dirty(), b = dirty(), c = dirty();
  UnifiedBuffer<int> more = pressed("more");
  more.copy_from(counting(pressed_ints));
  const Failure refusal = refused(more.try_prefetch(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("freed"), 0u);
  EXPECT_TRUE(is_there(a) && is_there(b) && is_there(c));
  a.sync_to_host();
  more.prefetch(s);
  EXPECT_FALSE(is_there(a));
  const UnifiedBuffer<int> d = pressed();
  UnifiedBuffer<int> e = pressed("e");
  e.copy_from(counting(pressed_ints));
  more.drop_device();
  write_on_device(more, s, 1);
  e.sync_to_device();  // asked for, and not ahead of anything
  EXPECT_TRUE(is_there(e));
}

TEST_F(Pressed, OnlyWhatCountsAgainstTheSameLimitGoes) {
  const BudgetHandle other = limited(pressed_bytes, "other");
  const ResourceHandle elsewhere = std::make_shared<BudgetResource>(pool, other);
  UnifiedBuffer<int> beside(Shape{pressed_ints}, {.device = device, .resources = {elsewhere}});
  write_on_device(beside, s, 4);
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3), d = dirty(4);
  EXPECT_TRUE(beside.has_copy(device.place()));
  EXPECT_FALSE(is_there(a));
}

TEST_F(Pressed, CopiesGoAsFarAsThePolicyOfTheBudgetAllows) {
  for (const Overflow policy : {Overflow::fail, Overflow::wait, Overflow::evict, Overflow::spill}) {
    const BudgetHandle two = limited(2 * pressed_bytes, "two", {}, policy);
    const ResourceHandle from = std::make_shared<BudgetResource>(pool, two);
    const auto make = [&] {
      return UnifiedBuffer<int>(Shape{pressed_ints}, {.device = device, .resources = {from}});
    };
    UnifiedBuffer<int> kept = make(), again = make(), first = make(), second = make();
    write_on_device(kept, s, 7);
    again.copy_from(counting(pressed_ints));
    again.prefetch(s);
    s.synchronize();
    // One copy is dirty and one is clean. The first request needs the clean one, the second a
    // dirty.
    EXPECT_EQ(bool(first.try_discard_device(s)), policy >= Overflow::evict) << name(policy);
    EXPECT_EQ(is_there(again), policy < Overflow::evict) << name(policy);
    EXPECT_TRUE(is_there(kept)) << name(policy);
    if (policy >= Overflow::evict) write_on_device(first, s, 8);
    s.synchronize();
    EXPECT_EQ(bool(second.try_discard_device(s)), policy == Overflow::spill) << name(policy);
    EXPECT_EQ(is_there(kept) && (policy < Overflow::evict || is_there(first)),
              policy < Overflow::spill)
        << name(policy);
    EXPECT_EQ(kept.to_vector(), std::vector<int>(pressed_ints, 7));
    EXPECT_EQ(again.to_vector(), counting(pressed_ints));
  }
}

TEST_F(Pressed, WhatIsUnderACommonLimitGoesToo) {
  const BudgetHandle parent = limited(2 * pressed_bytes, "process");
  const auto child = [&](const char* name) -> ResourceHandle {
    return std::make_shared<BudgetResource>(
        pool, Budget::make(name, BudgetLimit::unlimited(), {.parent = parent}));
  };
  const auto make_in = [&](ResourceHandle from) {
    return UnifiedBuffer<int>(Shape{pressed_ints},
                              {.device = device, .resources = {std::move(from)}});
  };
  UnifiedBuffer<int> a = make_in(child("a")), b = make_in(child("b")), c = make_in(child("c"));
  for (UnifiedBuffer<int>* const one : {&a, &b, &c}) write_on_device(*one, s, 6);
  EXPECT_FALSE(a.has_copy(device.place()));
  EXPECT_EQ(a.to_vector(), std::vector<int>(pressed_ints, 6));
  s.synchronize();
  expect_sound(*parent);
}

TEST_F(Unified, ADeviceThatIsFullEvictsWithoutABudget) {
  const ResourceHandle small = std::make_shared<PoolResource>(
      device, PoolOptions{.limit_bytes = 4 * mib, .backing = PoolBacking::segments});
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back(Shape{mib / sizeof(int)},
                     UnifiedOptions{.device = device, .resources = {small}});
    write_on_device(all.back(), s, i);
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)].load_host(5), i);
  }
  EXPECT_GE(all[0].statistics().evicted.copies, 1u);
}

// --- In which order memory goes

TEST_F(Pressed, MemoryGoesInStreamOrderAndNobodyWaits) {
  UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3);
  s.synchronize();
  Gate gate;
  gate.hold(t);
  {
    // Work that is held uses the copy that has to go.
    const DeviceLease<int> lease = a.rw_device(t);
    t.fill(lease.data(), lease.size(), 11);
  }
  use(b);
  use(c);
  UnifiedBuffer<int> d = pressed();
  write_on_device(d, s, 4);  // returns, behind the gate
  EXPECT_FALSE(is_there(a));
  EXPECT_EQ(budget->used_bytes(), 3 * pressed_bytes);
  // Its bytes and their charge have passed on, so nothing is left to come free.
  EXPECT_EQ(budget->pending_bytes(), 0u);
  {
    const DeviceLease<int> lease = c.rw_device(t);
    t.fill(lease.data(), lease.size(), 12);
  }
  c.free();  // nobody takes what this leaves
  EXPECT_EQ(budget->pending_bytes(), pressed_bytes);
  EXPECT_EQ(budget->used_bytes(), 3 * pressed_bytes);
  gate.open();
  EXPECT_EQ(a.to_vector(), std::vector<int>(pressed_ints, 11));
  EXPECT_EQ(d.to_vector(), std::vector<int>(pressed_ints, 4));
  t.synchronize();
  budget->drain();
  EXPECT_EQ(budget->pending_bytes(), 0u);
  EXPECT_EQ(budget->used_bytes(), 2 * pressed_bytes);
  expect_sound(*budget);
}

/// Is what was written home there, whatever is held? A simulated device refuses to wait for ever.
bool has_come_home(const UnifiedBuffer<int>& buffer, int value) {
  const Result<int> last = buffer.try_load_host(pressed_ints - 1);
  return last && *last == value;
}

TEST_F(Pressed, WhatIsWrittenHomeWaitsForItsOwnUsesOnly) {
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3);
  const UnifiedBuffer<int> d = dirty(4);  // for which a goes
  Gate gate;
  gate.hold(s);
  const UnifiedBuffer<int> e = dirty(5), f = dirty(6);
  EXPECT_FALSE(is_there(a) || is_there(b) || is_there(c));
  // What goes was used before the gate, whoever asked for its room behind it.
  EXPECT_TRUE(has_come_home(a, 1));
  EXPECT_TRUE(has_come_home(b, 2));
  EXPECT_TRUE(has_come_home(c, 3));
  const UnifiedBuffer<int> g = dirty(7), h = dirty(8);
  EXPECT_FALSE(is_there(d) || is_there(e));
  gate.open();
  EXPECT_EQ(d.to_vector(), std::vector<int>(pressed_ints, 4));
  EXPECT_EQ(e.to_vector(), std::vector<int>(pressed_ints, 5));
}

TEST_F(Pressed, WhatWentComesBackWithTheNextAccess) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 12; ++i) all.push_back(dirty(i));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 12; ++i) {
      UnifiedBuffer<int>& one = all[static_cast<std::size_t>(i)];
      EXPECT_EQ(on_device(one, s), std::vector<int>(pressed_ints, i + round));
      write_on_device(one, round % 2 == 0 ? s : t, i + round + 1);
      EXPECT_LE(budget->charged_bytes(), 3 * pressed_bytes);
    }
  }
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)].to_vector(), std::vector<int>(pressed_ints, i + 3));
  }
  EXPECT_GE(since().on_device(Eviction::dirty).copies, 12u);
  all.clear();
  device.synchronize();
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_F(Pressed, ResizingAndCloningMakeRoomToo) {
  UnifiedBuffer<int> a = dirty(1), b = dirty(2);
  a.resize_keep(2 * pressed_ints, s);  // three at once, so b has to go
  EXPECT_FALSE(is_there(b));
  EXPECT_EQ(a.load_host(pressed_ints - 1), 1);
  const UnifiedBuffer<int> copy = b.clone(s);
  EXPECT_EQ(copy.to_vector(), std::vector<int>(pressed_ints, 2));
}

TEST_F(Pressed, WritesHomeIntoPagesThatAreGuarded) {
  UnifiedOptions guarded = options("guarded");
  guarded.guard = true;
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, guarded);
  buffer.copy_from(counting(pressed_ints));
  write_on_device(buffer.slice(0, 100), s, 9);
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3);
  EXPECT_FALSE(is_there(buffer));
  EXPECT_EQ(buffer.slice(0, 100).read_host()[99], 9);
  EXPECT_EQ(buffer.slice(100, 100).read_host()[0], 101);
}

// --- What cannot fit

TEST_F(Pressed, WhatCannotFitIsRefusedBeforeAnythingGoes) {
  const UnifiedBuffer<int> rho = dirty(1, "rho"), grid = clean("grid");
  UnifiedBuffer<int> large = pressed("large", 4);
  const Failure refusal = refused(large.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("hopeless"), 1u);
  EXPECT_EQ(refusal.number("requested"), 4 * pressed_bytes);
  EXPECT_EQ(refusal.number("limit"), 3 * pressed_bytes);
  EXPECT_EQ(refusal.number("evictable"), 2 * pressed_bytes);
  EXPECT_EQ(refusal.number("evictions"), 0u);
  EXPECT_EQ(refusal.string("tag"), "large");
  EXPECT_EQ(refusal.string("by_tag"), "grid 1.0 KiB, rho 1.0 KiB");
  EXPECT_NE(refusal.text().find("does not fit into the limit of 3.0 KiB even after eviction"),
            std::string::npos)
      << refusal.text();
  EXPECT_TRUE(is_there(rho) && is_there(grid));
  EXPECT_STATE(large, uninitialized);
  EXPECT_EQ(since().refused_requests, 1u);
  EXPECT_EQ(budget->used_bytes(), 2 * pressed_bytes);
}

TEST_F(Pressed, WhatCannotFitIntoAnEmptyPlaceIsSaidToo) {
  UnifiedBuffer<int> large = pressed("large", 4);
  const Failure refusal = refused(large.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.string("by_tag"), "no copies");
  EXPECT_NE(refusal.text().find("0 B are pinned or adopted. Copies: no copies. Close leases"),
            std::string::npos)
      << refusal.text();
}

TEST_F(Pressed, WhatDoesNotFitBesideLeasesIsRefusedBeforeAnythingGoes) {
  const UnifiedBuffer<int> rho = dirty(1, "rho"), grid = clean("grid");
  const DeviceLease<const int> lease = rho.read_device(s);
  UnifiedBuffer<int> large = pressed("large", 3);
  const Failure refusal = refused(large.try_discard_device(s), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("hopeless"), 1u);
  EXPECT_EQ(refusal.number("leased"), pressed_bytes);
  EXPECT_EQ(refusal.string("by_tag"), "grid 1.0 KiB, rho 1.0 KiB (1.0 KiB leased)");
  EXPECT_TRUE(is_there(grid));
}

TEST_F(Pressed, SaysWhoHasMemoryByTag) {
  const UnifiedBuffer<int> a = clean("one"), b = clean("two"), c = dirty(3, "two");
  const DeviceLease<const int> lease = c.read_device(s);
  const std::vector<TagResidency> all = residency_by_tag(device.place());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].tag.name(), "two");
  EXPECT_EQ(all[0].copies, 2u);
  EXPECT_EQ(all[0].bytes, 2 * pressed_bytes);
  EXPECT_EQ(all[0].leased_bytes, pressed_bytes);
  EXPECT_EQ(all[1].tag.name(), "one");
  EXPECT_TRUE(residency_by_tag(devices[1].place()).empty());
}

// --- Launches

void add(View<const int> a, View<const int> b, View<int> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
}

TEST_F(Pressed, ALaunchNeverEvictsItsOwnArguments) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 9; ++i) all.push_back(dirty(i));
  for (std::size_t i = 0; i + 2 < all.size(); ++i) {
    // As many as fit at all, in every order.
    kernel.launch(s, LaunchSize{}, in(all[i]), in(all[i + 2]), out(all[i + 1]));
    EXPECT_TRUE(is_there(all[i]) && is_there(all[i + 1]) && is_there(all[i + 2])) << i;
  }
  // 0, 2, 5, 9, 14, ... and the last as it was.
  EXPECT_EQ(all[1].load_host(0), 0 + 2);
  EXPECT_EQ(all[2].load_host(0), 2 + 3);
  EXPECT_EQ(all[7].load_host(0), 27 + 8);
  EXPECT_EQ(all[8].load_host(0), 8);
}

TEST_F(Pressed, AnArgumentThatIsThereStaysForTheOthers) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> sum = pressed("sum");  // older, so it is asked for first
  // The first to go, were it not an argument.
  const UnifiedBuffer<int> a = clean("a");
  UnifiedBuffer<int> b = dirty(2), c = dirty(3);
  kernel.launch(s, LaunchSize{}, in(a), in(c), out(sum));
  EXPECT_EQ(since().evicted().copies, 1u);
  EXPECT_TRUE(is_there(a) && is_there(c) && is_there(sum));
  EXPECT_FALSE(is_there(b));
  EXPECT_EQ(sum.load_host(1), 2 + 3);
}

TEST_F(Pressed, ALaunchThatCannotFitDisplacesNothing) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = pressed("a", 2), b = pressed("b"), sum = pressed("sum");
  a.copy_from(counting(2 * pressed_ints));
  b.copy_from(counting(pressed_ints));
  const UnifiedBuffer<int> other = dirty(1, "other"), another = clean("another");
  const Failure refusal =
      refused(kernel.try_launch(s, LaunchSize{}, in(a), in(b), out(sum)), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("requested"), 4 * pressed_bytes);
  EXPECT_EQ(refusal.number("hopeless"), 1u);
  EXPECT_TRUE(is_there(other) && is_there(another));
  EXPECT_FALSE(is_there(a) || is_there(b) || is_there(sum));
  EXPECT_EQ(a.statistics().moved().bytes, 0u);
  EXPECT_TRUE(a.try_rw_host() && sum.try_discard_host());
  EXPECT_EQ(budget->used_bytes(), 2 * pressed_bytes);
}

TEST_F(Pressed, ALaunchMakesRoomForAllItNeedsAtOnce) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = pressed("a"), b = pressed("b"), sum = pressed("sum");
  a.copy_from(counting(pressed_ints));
  b.copy_from(counting(pressed_ints, 100));
  const UnifiedBuffer<int> x = dirty(1), y = clean(), z = stale();
  kernel.launch(s, LaunchSize{}, in(a), in(b), out(sum));
  EXPECT_FALSE(is_there(x) || is_there(y) || is_there(z));
  EXPECT_EQ(sum.load_host(1), 2 + 101);
  EXPECT_EQ(x.load_host(1), 1);
}

void set_to_nine(View<int> out) {
  for (int& one : out) one = 9;
}

TEST_F(Pressed, WhatALaunchDisplacesWaitsForItsOwnUsesOnly) {
  const Kernel kernel = Kernel::from_function(device, "set_to_nine", set_to_nine);
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2), c = dirty(3);
  UnifiedBuffer<int> d = pressed(), e = pressed(), f = pressed();
  kernel.launch(s, LaunchSize{}, out(d));
  Gate gate;
  gate.hold(s);
  kernel.launch(s, LaunchSize{}, out(e));
  kernel.launch(s, LaunchSize{}, out(f));
  EXPECT_FALSE(is_there(a) || is_there(b) || is_there(c));
  EXPECT_TRUE(has_come_home(a, 1));
  EXPECT_TRUE(has_come_home(b, 2));
  EXPECT_TRUE(has_come_home(c, 3));
  gate.open();
  EXPECT_EQ(f.to_vector(), std::vector<int>(pressed_ints, 9));
}

}  // namespace
}  // namespace tern::test
