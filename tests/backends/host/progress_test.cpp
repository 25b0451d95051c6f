#include "backends/host/progress.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/thread.hpp"

namespace tern::host {
namespace {

TEST(Progress, CountsFromZero) {
  Progress progress;
  EXPECT_EQ(progress.value(), 0u);
  progress.advance();
  progress.advance();
  EXPECT_EQ(progress.value(), 2u);
}

TEST(Progress, ALateWaiterReturnsImmediately) {
  Progress progress;
  progress.wait_for(0);
  progress.advance();
  progress.wait_for(1);
}

TEST(Progress, LosesNoWakeUp) {
  constexpr std::uint64_t rounds = 20'000;
  Progress there, back;
  test::Thread other([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      there.wait_for(i);
      back.advance();
    }
  });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    there.advance();
    back.wait_for(i);
  }
  other.join();
}

TEST(Progress, WakesEachWaiterAtItsNumber) {
  Progress progress;
  std::vector<test::Thread> waiters;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    waiters.emplace_back([&, i] {
      progress.wait_for(i);
      EXPECT_GE(progress.value(), i);
    });
  }
  for (int i = 0; i < 8; ++i) progress.advance();
  for (test::Thread& waiter : waiters) waiter.join();
}

TEST(Progress, ShowsWhatWasWrittenBeforeItAdvanced) {
  for (int round = 0; round < 200; ++round) {
    Progress progress;
    int value = 0;
    test::Thread writer([&] {
      value = 7;
      progress.advance();
    });
    progress.wait_for(1);
    EXPECT_EQ(value, 7);
    writer.join();
  }
}

}  // namespace
}  // namespace tern::host
