#include "backends/host/host_stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "support/thread_famine.hpp"

namespace tern::host {
namespace {

std::shared_ptr<HostStream> make_stream() {
  return std::make_shared<HostStream>(std::make_shared<WorkerTeam>(1), false);
}

/// Blocks the stream's thread while it holds.
struct Latch {
  std::atomic<bool> is_open = false;
  static void wait(void* context) {
    while (!static_cast<Latch*>(context)->is_open) std::this_thread::yield();
  }
};

void add_one(void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); }

TEST(HostStream, DoesItsOperationsInOrder) {
  const auto stream = make_stream();
  struct Step {
    std::vector<int>* log;
    int number;
  };
  std::vector<int> log;
  std::vector<Step> steps;
  for (int i = 0; i < 1000; ++i) steps.push_back({&log, i});
  for (Step& step : steps) {
    ASSERT_TRUE(stream->submit(CallOperation{[](void* context) {
                                               const auto* s = static_cast<Step*>(context);
                                               s->log->push_back(s->number);
                                             },
                                             &step}));
  }
  stream->position().wait();
  EXPECT_EQ(stream->passed(), 1000u);
  ASSERT_EQ(log.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(log[static_cast<std::size_t>(i)], i);
  stream->close();
}

TEST(HostStream, HasPassedNothingToWaitFor) {
  EXPECT_TRUE(Position{}.is_passed());
  Position{}.wait();
  const auto stream = make_stream();
  EXPECT_TRUE(stream->position().is_passed());
  stream->position().wait();
}

TEST(HostStream, KnowsWhereItStands) {
  const auto stream = make_stream();
  Latch latch;
  std::atomic<int> calls = 0;
  const Position start = stream->position();
  ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
  const Position first = stream->position();
  ASSERT_TRUE(stream->submit(CallOperation{Latch::wait, &latch}));
  ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
  const Position end = stream->position();
  EXPECT_TRUE(start.is_passed());
  first.wait();
  EXPECT_TRUE(first.is_passed());
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(end.is_passed());
  latch.is_open = true;
  end.wait();
  EXPECT_EQ(calls, 2);
  stream->close();
}

TEST(HostStream, WaitsForAPositionOfAnother) {
  const auto first = make_stream();
  const auto second = make_stream();
  Latch latch;
  std::atomic<int> calls = 0;
  ASSERT_TRUE(first->submit(CallOperation{Latch::wait, &latch}));
  ASSERT_TRUE(second->submit(first->position()));
  ASSERT_TRUE(second->submit(CallOperation{add_one, &calls}));
  EXPECT_FALSE(second->position().is_passed());
  EXPECT_EQ(calls, 0);
  latch.is_open = true;
  second->position().wait();
  EXPECT_EQ(calls, 1);
  first->close();
  second->close();
}

TEST(HostStream, FinishesItsWorkAfterItWasClosed) {
  auto stream = make_stream();
  Latch latch;
  std::atomic<int> calls = 0;
  ASSERT_TRUE(stream->submit(CallOperation{Latch::wait, &latch}));
  ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
  EXPECT_FALSE(stream->is_finished());
  stream->close();
  EXPECT_FALSE(stream->is_finished());
  const Position end = stream->position();
  const std::weak_ptr<HostStream> weak = stream;
  stream.reset();
  latch.is_open = true;
  end.wait();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(end.stream->is_finished());
}

TEST(HostStream, IsFinishedOnlyWhenClosed) {
  const auto stream = make_stream();
  EXPECT_FALSE(stream->is_finished());
  stream->close();
  EXPECT_TRUE(stream->is_finished());
}

TEST(HostStream, LeavesWithItsThreadWhenClosed) {
  std::weak_ptr<HostStream> weak;
  {
    const auto stream = make_stream();
    weak = stream;
    std::atomic<int> calls = 0;
    ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
    stream->position().wait();
    stream->close();
  }
  while (!weak.expired()) std::this_thread::yield();
}

TEST(HostStream, WakesForEachOperationThoughItSleptBetween) {
  const auto stream = make_stream();
  std::atomic<int> calls = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
    stream->position().wait();
    ASSERT_EQ(calls, i + 1);
  }
  stream->close();
}

TEST(HostStream, TakesOperationsFromSeveralThreads) {
  const auto stream = make_stream();
  std::atomic<int> calls = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
      stream->position().wait();
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 4000);
  stream->close();
}

TEST(HostStream, QueuesNothingWhenTheHeapIsExhausted) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  const auto stream = make_stream();
  std::atomic<int> calls = 0;
  bool is_refused = false;
  {
    const test::HeapExhausted exhausted;
    const Result<void> queued = stream->submit(CallOperation{add_one, &calls});
    is_refused = !queued && queued.failure().code() == ErrorCode::out_of_memory;
  }
  EXPECT_TRUE(is_refused);
  EXPECT_EQ(stream->position().number, 0u);
  ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
  stream->position().wait();
  EXPECT_EQ(calls, 1);
  stream->close();
}

TEST(HostStream, QueuesNothingWhenItsThreadCannotStart) {
  const auto stream = make_stream();
  std::atomic<int> calls = 0;
  {
    const test::ThreadFamine famine;
    const Result<void> queued = stream->submit(CallOperation{add_one, &calls});
    ASSERT_FALSE(queued);
    EXPECT_EQ(queued.failure().code(), ErrorCode::driver);
    EXPECT_EQ(queued.failure().string("call"), "pthread_create");
  }
  EXPECT_EQ(stream->position().number, 0u);
  ASSERT_TRUE(stream->submit(CallOperation{add_one, &calls}));
  stream->position().wait();
  stream->close();
  EXPECT_EQ(calls, 1);
}

TEST(HostStream, StampsTheLatestRecordOnly) {
  const auto stream = make_stream();
  const auto stamp = std::make_shared<TimeStamp>();
  ASSERT_TRUE(stream->submit(StampOperation{stamp, 2}));
  stream->position().wait();
  const std::uint64_t time = stamp->time_ns;
  EXPECT_GT(time, 0u);
  ASSERT_TRUE(stream->submit(StampOperation{stamp, 1}));  // an older record, passed later
  stream->position().wait();
  EXPECT_EQ(stamp->record, 2u);
  EXPECT_EQ(stamp->time_ns, time);
  stream->close();
}

}  // namespace
}  // namespace tern::host
