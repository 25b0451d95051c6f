#include "core/worker_team.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "support/thread.hpp"
#include "support/thread_famine.hpp"

namespace tern {
namespace {

/// Runs a loop and sees that each index came exactly once.
void expect_each_once(WorkerTeam& team, std::size_t count) {
  std::vector<std::atomic<int>> calls(count);
  team.for_each(count, [&](std::size_t index) { calls[index].fetch_add(1); });
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << i << " of " << count;
}

TEST(WorkerTeam, CountsTheCoresOfTheProcess) { EXPECT_GE(usable_cores(), 1u); }

TEST(WorkerTeam, CallsEachIndexExactlyOnce) {
  for (const std::size_t threads : {1u, 2u, 3u, 8u}) {
    WorkerTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (const std::size_t count : {0u, 1u, 2u, 7u, 1000u}) expect_each_once(team, count);
  }
}

TEST(WorkerTeam, HasReturnedFromEveryCallWhenTheLoopReturns) {
  WorkerTeam team(4);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> written(16);  // plain: a call still running would be a race
    team.for_each(16, [&](std::size_t index) { written[index] = round; });
    for (const int value : written) ASSERT_EQ(value, round);
  }
}

TEST(WorkerTeam, UsesItsHelpers) {
  WorkerTeam team(2);
  // Each call waits for the other, so one thread alone would never return.
  for (int round = 0; round < 500; ++round) {
    std::atomic<int> arrived = 0;
    team.for_each(2, [&](std::size_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    ASSERT_EQ(arrived, 2);
  }
}

TEST(WorkerTeam, DoesWithoutHelpersThatCannotBeStarted) {
  const test::ThreadFamine famine;
  WorkerTeam team(4);
  expect_each_once(team, 100);
  expect_each_once(team, 100);
}

TEST(WorkerTeam, KeepsToTheCallersThreadWhenItIsAlone) {
  WorkerTeam team(1);
  const std::thread::id caller = std::this_thread::get_id();
  team.for_each(100, [&](std::size_t) { ASSERT_EQ(std::this_thread::get_id(), caller); });
}

TEST(WorkerTeam, RunsLoopsOfSeveralThreadsAtOnce) {
  WorkerTeam team(3);
  std::vector<test::Thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) expect_each_once(team, 100);
    });
  }
  for (test::Thread& caller : callers) caller.join();
}

TEST(WorkerTeam, RunsLoopsInsideLoops) {
  WorkerTeam team(3);
  std::atomic<int> calls = 0;
  team.for_each(8, [&](std::size_t) {
    team.for_each(8, [&](std::size_t) { team.for_each(4, [&](std::size_t) { ++calls; }); });
  });
  EXPECT_EQ(calls, 8 * 8 * 4);
}

TEST(WorkerTeam, RunsALoopWhileItsOwnerDoesOtherWork) {
  WorkerTeam team(2);
  std::atomic<int> calls = 0;
  WorkerTeam::Background loop(team, 1, [&](std::size_t) { ++calls; });
  // The owner has not finished the loop, so a helper makes the call.
  while (calls == 0) std::this_thread::yield();
  loop.finish();
  EXPECT_EQ(calls, 1);
}

TEST(WorkerTeam, FinishesALoopWithoutHelpers) {
  WorkerTeam team(1);
  const std::thread::id caller = std::this_thread::get_id();
  int calls = 0;
  {
    WorkerTeam::Background loop(team, 10, [&](std::size_t) {
      ASSERT_EQ(std::this_thread::get_id(), caller);
      ++calls;
    });
    EXPECT_EQ(calls, 0);
    loop.finish();
    EXPECT_EQ(calls, 10);
  }
  EXPECT_EQ(calls, 10);
  // The destructor finishes a loop.
  {
    const WorkerTeam::Background loop(team, 10, [&](std::size_t) { ++calls; });
  }
  EXPECT_EQ(calls, 20);
}

TEST(WorkerTeam, EndsAtOnceUsedOrNot) {
  for (int i = 0; i < 50; ++i) {
    auto team = std::make_unique<WorkerTeam>(4);
    if (i % 2 == 0) expect_each_once(*team, 8);
    team.reset();
  }
}

}  // namespace
}  // namespace tern
