#include "tools/top/live_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/temporary_folder.hpp"
#include "tern/device/device_info.hpp"
#include "tern/memory/budget.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::tools {
namespace {

using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

MemoryEvent event(EventKind kind, std::uint64_t block, std::uint64_t bytes, std::uint16_t tag = 0,
                  std::uint64_t stream = 0) {
  MemoryEvent made;
  made.kind = kind;
  made.block = block;
  made.bytes = bytes;
  made.tag = tag;
  made.stream = stream;
  made.device = 1;
  return made;
}

TEST(LiveMemory, IsTheSameInAnyOrderOfThreads) {
  std::minstd_rand random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<MemoryEvent> events;
    std::map<std::uint16_t, std::uint64_t> live;
    for (std::uint64_t block = 1; block <= 100; ++block) {
      const std::uint64_t bytes = 1 + random() % 1000;
      const auto tag = static_cast<std::uint16_t>(random() % 3);
      events.push_back(event(EventKind::allocate, block, bytes, tag, 5));
      if (random() % 2 == 0) {
        events.push_back(event(EventKind::free, block, bytes, tag, 6));
      } else {
        live[tag] += bytes;
      }
    }
    std::shuffle(events.begin(), events.end(), random);
    LiveMemory memory;
    for (const MemoryEvent& one : events) memory.add(one, MemoryTrace());
    std::uint64_t all = 0;
    for (const auto& [tag, bytes] : live) {
      EXPECT_EQ(memory.tags().at({1, tag}).bytes, bytes);
      all += bytes;
    }
    EXPECT_EQ(memory.places().at(1).live.bytes, all);
    EXPECT_EQ(memory.streams().at({1, 5}).bytes, all) << "by the stream of the allocation";
    EXPECT_EQ(memory.events(), events.size());
  }
}

TEST(LiveMemory, KeepsThePeak) {
  LiveMemory memory;
  memory.add(event(EventKind::allocate, 1, 100), MemoryTrace());
  memory.add(event(EventKind::allocate, 2, 50), MemoryTrace());
  memory.add(event(EventKind::free, 1, 100), MemoryTrace());
  EXPECT_EQ(memory.places().at(1).live.bytes, 50u);
  EXPECT_EQ(memory.places().at(1).live.blocks, 1u);
  EXPECT_EQ(memory.places().at(1).peak, 150u);
}

TEST(LiveMemory, AddsUpWhatResourcesHold) {
  LiveMemory memory;
  MemoryEvent hold = event(EventKind::hold, 0, 100);
  hold.resource = 1;
  memory.add(hold, MemoryTrace());
  hold.resource = 2;
  memory.add(hold, MemoryTrace());
  hold.bytes = 40;
  memory.add(hold, MemoryTrace());
  EXPECT_EQ(memory.places().at(1).held, 140u);
}

MemoryEvent use(std::uint64_t budget, std::uint64_t time, std::uint64_t bytes,
                std::uint64_t limit = 100, std::uint8_t is_end = 0) {
  MemoryEvent made = event(EventKind::budget_use, budget, bytes);
  made.time_ns = time;
  made.address = limit;
  made.extra = budget;
  made.detail = is_end;
  return made;
}

TEST(LiveMemory, PageLockedMemoryIsNotMemoryOfTheDevice) {
  MemoryTrace names;
  names.define(trace::DefinitionKind::device, 1, {"cuda:0"});
  names.define(trace::DefinitionKind::resource, 2,
               {.text = "pool", .detail = static_cast<std::uint8_t>(MemoryKind::pinned)});
  LiveMemory memory;
  memory.add(event(EventKind::allocate, 1, 100), names);
  MemoryEvent locked = event(EventKind::allocate, 2, 50);
  locked.resource = 2;
  memory.add(locked, names);
  locked.kind = EventKind::hold;
  locked.bytes = 4096;
  memory.add(locked, names);
  EXPECT_EQ(memory.places().at(1).live.bytes, 100u);
  EXPECT_EQ(memory.places().at(1).held, 0u);
  EXPECT_EQ(memory.places().at({1, true}).live.bytes, 50u);
  EXPECT_EQ(memory.places().at({1, true}).held, 4096u);
  EXPECT_NE(live_text(memory, names).find("cuda:0, page-locked"), std::string::npos);
}

TEST(LiveMemory, KnowsTheLatestUseOfABudget) {
  LiveMemory memory;
  memory.add(use(1, 10, 50), MemoryTrace());
  memory.add(use(1, 30, 70), MemoryTrace());
  memory.add(use(1, 20, 90), MemoryTrace());
  memory.add(use(2, 5, 7, 8), MemoryTrace());
  ASSERT_EQ(memory.budgets().size(), 2u);
  EXPECT_EQ(memory.budgets().at(1).used, 70u);
  EXPECT_EQ(memory.budgets().at(2).used, 7u);
  EXPECT_EQ(memory.budgets().at(2).limit, 8u);
}

TEST(LiveMemory, AgreesWithTheBudgetsOfARunningProgram) {
  const test::TemporaryFolder folder;
  const BudgetHandle process = Budget::make("process", BudgetLimit::bytes(1000));
  const Charge before = process->charge(100);
  trace::start(folder / "run.trace");
  const BudgetHandle task = Budget::make("task", BudgetLimit::unlimited(), {.parent = process});
  std::vector<Charge> charges(1);
  LiveMemory memory;
  trace::MemoryTrace recorded;
  trace::TraceFollower file = trace::TraceFollower::try_open(folder / "run.trace").value();
  for (int i = 0; i < 3; ++i) {
    charges.push_back(task->charge(10));
    ASSERT_TRUE(file.try_read_new(recorded));
    for (const MemoryEvent& one : recorded.events) memory.add(one, MemoryTrace());
    recorded.events.clear();
    std::map<std::string, std::uint64_t> used;
    for (const auto& [number, one] : memory.budgets()) {
      used[recorded.find(trace::DefinitionKind::text, one.path)->text] = one.used;
    }
    EXPECT_EQ(used["process"], process->used_bytes());
    EXPECT_EQ(used["process/task"], task->used_bytes());
  }
  trace::stop();
}

TEST(LiveMemory, ForgetsABudgetThatWasDestroyed) {
  LiveMemory memory;
  memory.add(use(1, 10, 50), MemoryTrace());
  memory.add(use(1, 30, 0, 100, 1), MemoryTrace());
  memory.add(use(1, 20, 90), MemoryTrace());
  EXPECT_TRUE(memory.budgets().empty()) << "an older event of another thread";
}

TEST(LiveMemory, ShowsBudgetsWithTheirShares) {
  trace::MemoryTrace names;
  names.define(trace::DefinitionKind::text, 1, {"process/\x1b[31mtask"});
  names.define(trace::DefinitionKind::text, 2, {"process"});
  LiveMemory memory;
  memory.add(use(1, 1, 512, 2048), MemoryTrace());
  memory.add(use(2, 1, 512, trace::no_limit), MemoryTrace());
  memory.add(use(3, 1, 1024, 0), MemoryTrace());
  const std::string text = live_text(memory, names);
  EXPECT_NE(text.find("budget                           used        limit      share\n"
                      "number 3                      1.0 KiB          0 B           \n"
                      "process                         512 B         none           \n"
                      "process/"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("512 B      2.0 KiB       25 %\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(LiveMemory, ShowsTheFirstBudgetsOfMany) {
  LiveMemory memory;
  for (std::uint64_t number = 1; number <= 20; ++number)
    memory.add(use(number, 1, number), MemoryTrace());
  EXPECT_NE(live_text(memory, {}).find("... and 5 more\n"), std::string::npos);
}

TEST(LiveMemory, IsShownWithTheLargestTagFirst) {
  trace::MemoryTrace names;
  names.define(trace::DefinitionKind::device, 1, {"sim:0"});
  names.define(trace::DefinitionKind::tag, 1, {"small\x1b[31m"});
  names.define(trace::DefinitionKind::tag, 2, {"large"});
  LiveMemory memory;
  memory.add(event(EventKind::allocate, 1, 10, 1), MemoryTrace());
  memory.add(event(EventKind::allocate, 2, 1000, 2), MemoryTrace());
  memory.add(event(EventKind::allocate, 3, 7, 9), MemoryTrace());
  memory.add(event(EventKind::refuse, 0, 1), MemoryTrace());
  const std::string text = live_text(memory, names);
  EXPECT_LT(text.find("large"), text.find("small"));
  EXPECT_NE(text.find("number 9"), std::string::npos) << "its definition was lost";
  EXPECT_NE(text.find("1 request refused"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tern::tools
