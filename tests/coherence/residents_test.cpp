#include "coherence/residents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/thread.hpp"

namespace tern::test {
namespace {

std::vector<const Resident*> listed(Residents& all) {
  std::vector<const Resident*> found;
  all.visit([&](const Resident& one) { found.push_back(&one); });
  std::ranges::sort(found, {}, &Resident::last_use);
  return found;
}

TEST(Residents, AreThoseThatHaveEnteredAndNotLeft) {
  const auto all = std::make_shared<Residents>();
  Resident a(all, nullptr, 0), b(all, nullptr, 1);
  auto c = std::make_unique<Resident>(all, nullptr, 2);
  EXPECT_TRUE(listed(*all).empty());
  a.enter();
  b.enter();
  c->enter();
  b.enter();  // again
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&a, &b, c.get()}));
  a.leave();
  a.leave();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&b, c.get()}));
  c.reset();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&b}));
  EXPECT_EQ(b.memory(), 1u);
}

TEST(Residents, AreInTheOrderOfTheirLastUse) {
  const auto all = std::make_shared<Residents>();
  Resident a(all, nullptr, 0), b(all, nullptr, 1), c(all, nullptr, 2);
  for (Resident* const one : {&a, &b, &c}) one->enter();
  a.touch();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&b, &c, &a}));
  b.touch();
  b.touch();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&c, &a, &b}));
  b.set_unwanted();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&b, &c, &a}));
  b.touch();
  EXPECT_EQ(listed(*all), (std::vector<const Resident*>{&c, &a, &b}));
}

TEST(Residents, RememberThatSomethingWasOnItsWay) {
  const auto all = std::make_shared<Residents>(), others = std::make_shared<Residents>();
  const std::uint64_t before = all->transits_begun(), elsewhere = others->transits_begun();
  EXPECT_FALSE(all->had_transits_since(before));
  all->begin_transit();
  EXPECT_TRUE(all->had_transits_since(before));
  EXPECT_TRUE(all->had_transits_since(all->transits_begun()));  // it still is
  all->end_transit();
  EXPECT_TRUE(all->had_transits_since(before));
  EXPECT_FALSE(all->had_transits_since(all->transits_begun()));
  EXPECT_FALSE(others->had_transits_since(elsewhere));
}

TEST(Residents, DoNotMoveTheClockByBeingUsedAgain) {
  const auto all = std::make_shared<Residents>();
  Resident a(all, nullptr, 0), b(all, nullptr, 1);
  a.touch();
  const std::uint64_t before = a.last_use();
  for (int i = 0; i < 100; ++i) a.touch();
  EXPECT_EQ(a.last_use(), before);
  b.touch();
  EXPECT_EQ(b.last_use(), before + 1);
}

TEST(Residents, OfAPlaceAreOneListWhileSomebodyHasIt) {
  const Place somewhere = Place::device(DeviceId{4'000'000'001});
  std::shared_ptr<Residents> first = Residents::of(somewhere);
  EXPECT_EQ(Residents::of(somewhere), first);
  EXPECT_NE(Residents::of(Place::device(DeviceId{4'000'000'002})), first);
  EXPECT_EQ(Residents::of(Place::host_numa(1)), Residents::of(Place::host()));
  const std::weak_ptr<Residents> gone = first;
  first.reset();
  EXPECT_TRUE(gone.expired());
}

TEST(Residents, MayBeUsedWhileOthersLookAndComeAndGo) {
  const auto all = std::make_shared<Residents>();
  std::vector<test::Thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 300; ++k) {
        Resident one(all, nullptr, 0);
        one.enter();
        one.touch();
        std::uint64_t newest = 0;
        all->visit([&](const Resident& other) { newest = std::max(newest, other.last_use()); });
        EXPECT_GE(newest, 1u);
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  EXPECT_TRUE(listed(*all).empty());
}

}  // namespace
}  // namespace tern::test
