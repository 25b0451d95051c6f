// A recording has the use of every budget: what the counters of the budget say.

#include "memory/budget_recorder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/budgets.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

using test::limited;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

class RecordedBudgets : public testing::Test {
 protected:
  ~RecordedBudgets() override { trace::stop(); }
  void start() const { trace::start(folder_ / "run.trace"); }
  [[nodiscard]] MemoryTrace stop() const {
    trace::stop();
    return MemoryTrace::try_read(folder_ / "run.trace").value();
  }
  static std::vector<MemoryEvent> events_of(const MemoryTrace& trace, std::string_view path,
                                            EventKind kind = EventKind::budget_use) {
    std::vector<MemoryEvent> found;
    for (const MemoryEvent& event : trace.events) {
      if (event.kind == kind && path_of(trace, event) == path) found.push_back(event);
    }
    return found;
  }
  static std::string path_of(const MemoryTrace& trace, const MemoryEvent& event) {
    const MemoryTrace::Name* const name =
        trace.find(trace::DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
    return name != nullptr ? name->text : "";
  }
  using Uses = std::vector<std::uint64_t>;
  /// The recorded use of a budget, one after another.
  static Uses uses_of(const MemoryTrace& trace, std::string_view path) {
    Uses uses;
    for (const MemoryEvent& event : events_of(trace, path)) uses.push_back(event.bytes);
    return uses;
  }
  [[nodiscard]] static std::uint64_t stall(const Stream& stream) {
    const std::uint64_t hold = sim::hold(stream);
    stream.call([](void*) {}, nullptr);
    return hold;
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(RecordedBudgets, HaveEveryChangeAtEveryLevel) {
  start();
  const BudgetHandle process = limited(1000, "process");
  const BudgetHandle task = limited(500, "task", process);
  {
    const Charge first = task->charge(100);
    const Charge second = process->charge(50);
    const Charge third = task->charge(20);
  }
  const MemoryTrace recorded = stop();
  EXPECT_EQ(uses_of(recorded, "process"), (Uses{0, 100, 150, 170, 150, 100, 0}));
  EXPECT_EQ(uses_of(recorded, "process/task"), (Uses{0, 100, 120, 100, 0}));
  const MemoryEvent of_task = events_of(recorded, "process/task").front();
  EXPECT_EQ(of_task.address, 500u);
  EXPECT_EQ(of_task.detail, 0u);
  EXPECT_NE(of_task.block, events_of(recorded, "process").front().block);
}

TEST_F(RecordedBudgets, ThatExistWhenARecordingStartsAreInIt) {
  const BudgetHandle process = limited(1000, "process");
  const Charge charge = process->charge(300);
  for (int i = 0; i < 2; ++i) {
    start();
    static_cast<void>(process->charge(1));
    EXPECT_EQ(uses_of(stop(), "process"), (Uses{300, 301, 300})) << "in recording " << i;
  }
}

TEST_F(RecordedBudgets, HaveTheirLimits) {
  start();
  const BudgetHandle budget = limited(1000, "changing");
  budget->set_limit(BudgetLimit::unlimited());
  budget->set_limit(BudgetLimit::bytes(0));
  std::vector<std::uint64_t> limits;
  for (const MemoryEvent& event : events_of(stop(), "changing")) limits.push_back(event.address);
  EXPECT_EQ(limits, (std::vector<std::uint64_t>{1000, trace::no_limit, 0}));
}

TEST_F(RecordedBudgets, EndWhenTheyAreDestroyed) {
  start();
  limited(10, "task");
  limited(10, "task");
  const std::vector<MemoryEvent> events = events_of(stop(), "task");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].block, events[1].block);
  EXPECT_EQ(events[2].block, events[3].block);
  EXPECT_NE(events[0].block, events[2].block) << "two budgets with one path";
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].detail, i % 2) << i;
}

TEST_F(RecordedBudgets, CountPendingFreesAndNoReservations) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream stream(device);
  const BudgetHandle budget = limited(1000, "pending");
  BudgetResource resource(std::make_shared<AsyncResource>(device), budget);
  start();
  const Reservation reservation = budget->reserve(500);
  const Block first = resource.allocate({.bytes = 100, .stream = stream});
  const Block second = resource.allocate({.bytes = 200, .stream = stream});
  const std::uint64_t hold = stall(stream);
  resource.deallocate(first, stream);
  resource.deallocate(second, stream);
  budget->drain();
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(budget->drain(), 300u);
  EXPECT_EQ(uses_of(stop(), "pending"), (Uses{0, 100, 300, 0})) << "one event for one drain";
}

TEST_F(RecordedBudgets, DoNotChangeWhileAPoolRecyclesTheirMemory) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream stream(device);
  const BudgetHandle budget = limited(8 * mib, "recycled");
  BudgetResource resource(std::make_shared<PoolResource>(device), budget);
  resource.deallocate(resource.allocate({.bytes = 4096, .stream = stream}), stream);
  start();
  for (int i = 0; i < 10; ++i) {
    resource.deallocate(resource.allocate({.bytes = 4096, .stream = stream}), stream);
  }
  EXPECT_EQ(uses_of(stop(), "recycled"), (Uses{4096}));
}

TEST_F(RecordedBudgets, EndTheChargesOfADestroyedResource) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  const auto upstream = std::make_shared<AsyncResource>(device);
  const BudgetHandle budget = limited(1000, "ended");
  start();
  auto resource = std::make_unique<BudgetResource>(upstream, budget);
  const Block first = resource->allocate({.bytes = 100});
  const Block second = resource->allocate({.bytes = 200});
  resource.reset();
  EXPECT_EQ(uses_of(stop(), "ended").back(), 0u);
  upstream->deallocate(first, {});
  upstream->deallocate(second, {});
}

TEST_F(RecordedBudgets, AreNamedByWaitsAndRefusals) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream stream(device), other(device);
  const BudgetHandle process = limited(1000, "process");
  BudgetResource resource(std::make_shared<AsyncResource>(device), limited(9000, "task", process));
  start();
  resource.deallocate(resource.allocate({.bytes = 1000, .stream = stream}), stream);
  resource.deallocate(resource.allocate({.bytes = 1000, .stream = other}), other);
  EXPECT_FALSE(resource.try_allocate({.bytes = 1001, .stream = stream}));
  const MemoryTrace recorded = stop();
  const std::uint64_t number = events_of(recorded, "process").front().block;
  const std::vector<MemoryEvent> refusals =
      events_of(recorded, "process", EventKind::budget_refuse);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].block, number);
  std::vector<std::uint64_t> waits;
  for (const MemoryEvent& event : recorded.events) {
    if (event.kind == EventKind::budget_wait) waits.push_back(event.block);
  }
  EXPECT_EQ(waits, std::vector<std::uint64_t>{number});
}

TEST_F(RecordedBudgets, HaveAUseThatAnotherThreadHasLoweredAlready) {
  const BudgetHandle budget = limited(1000, "lowered");
  const Charge charge = budget->charge(20);
  start();
  BudgetRecorder recorder(*budget);
  recorder.record_reached(50);
  recorder.record_reached(10);
  Uses uses;
  for (const MemoryEvent& event : events_of(stop(), "lowered")) {
    if (event.block == recorder.number()) uses.push_back(event.bytes);
  }
  EXPECT_EQ(uses, (Uses{20, 50, 20, 20}));
}

TEST_F(RecordedBudgets, EndWithTheCountsOfTheBudgetWhateverThreadsDo) {
  for (int round = 0; round < 20; ++round) {
    const BudgetHandle process = limited(1 * gib, "process");
    const BudgetHandle task = limited(1 * gib, "task", process);
    start();
    std::vector<Charge> kept(4);
    {
      std::vector<test::Thread> threads;
      for (std::size_t i = 0; i < kept.size(); ++i) {
        threads.emplace_back([&, i] {
          for (std::size_t j = 0; j < 500; ++j) kept[i] = task->charge(1 + (i + j) % 7);
        });
      }
    }
    const MemoryTrace recorded = stop();
    for (const BudgetHandle& budget : {process, task}) {
      const std::vector<MemoryEvent> events = events_of(recorded, budget->path());
      EXPECT_EQ(events.back().bytes, budget->used_bytes()) << budget->path();
      EXPECT_EQ(std::ranges::max_element(events, {}, &MemoryEvent::bytes)->bytes,
                budget->peak_bytes())
          << budget->path();
      // A time that two events share would leave their order open.
      EXPECT_EQ(
          std::ranges::adjacent_find(events, std::ranges::greater_equal(), &MemoryEvent::time_ns),
          events.end());
    }
  }
}

TEST_F(RecordedBudgets, HaveTheCountAsSoonAsThreadsPause) {
  constexpr std::size_t rounds = 50'000;
  const BudgetHandle budget = limited(1 * gib, "rounds");
  start();
  std::atomic<std::size_t> arrivals = 0, pauses = 0;
  {
    const auto run = [&](std::size_t bytes) {
      Charge kept;
      for (std::size_t i = 1; i <= rounds; ++i) {
        kept = budget->charge(bytes);
        if (++arrivals == 2 * i) {
          // A new limit records the count while no other thread changes it.
          budget->set_limit(BudgetLimit::bytes(1 * gib - i));
          pauses = i;
        }
        // Threads that sleep here would rarely change the count at the same moment.
        for (int spins = 0; pauses < i; ++spins) {
          if (spins > 1000) std::this_thread::yield();
        }
      }
    };
    const test::Thread one(run, 1), other(run, 100);
  }
  const std::vector<MemoryEvent> events = events_of(stop(), "rounds");
  int stale = 0;
  for (std::size_t i = 1; i < events.size(); ++i) {
    const bool is_pause = events[i].address != events[i - 1].address;
    if (is_pause && events[i].bytes != events[i - 1].bytes) ++stale;
  }
  EXPECT_EQ(stale, 0);
}

}  // namespace
}  // namespace tern
