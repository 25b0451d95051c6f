#include "tools/top/live_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tern::tools {
namespace {

using trace::EventKind;
using trace::MemoryEvent;

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
    for (const MemoryEvent& one : events) memory.add(one);
    std::uint64_t all = 0;
    for (const auto& [tag, bytes] : live) {
      EXPECT_EQ(memory.tags().at({1, tag}).bytes, bytes);
      all += bytes;
    }
    EXPECT_EQ(memory.devices().at(1).live.bytes, all);
    EXPECT_EQ(memory.streams().at({1, 5}).bytes, all) << "by the stream of the allocation";
    EXPECT_EQ(memory.events(), events.size());
  }
}

TEST(LiveMemory, KeepsThePeak) {
  LiveMemory memory;
  memory.add(event(EventKind::allocate, 1, 100));
  memory.add(event(EventKind::allocate, 2, 50));
  memory.add(event(EventKind::free, 1, 100));
  EXPECT_EQ(memory.devices().at(1).live.bytes, 50u);
  EXPECT_EQ(memory.devices().at(1).live.blocks, 1u);
  EXPECT_EQ(memory.devices().at(1).peak, 150u);
}

TEST(LiveMemory, AddsUpWhatResourcesHold) {
  LiveMemory memory;
  MemoryEvent hold = event(EventKind::hold, 0, 100);
  hold.resource = 1;
  memory.add(hold);
  hold.resource = 2;
  memory.add(hold);
  hold.bytes = 40;
  memory.add(hold);
  EXPECT_EQ(memory.devices().at(1).held, 140u);
}

TEST(LiveMemory, IsShownWithTheLargestTagFirst) {
  trace::MemoryTrace names;
  names.define(trace::DefinitionKind::device, 1, {"sim:0"});
  names.define(trace::DefinitionKind::tag, 1, {"small\x1b[31m"});
  names.define(trace::DefinitionKind::tag, 2, {"large"});
  LiveMemory memory;
  memory.add(event(EventKind::allocate, 1, 10, 1));
  memory.add(event(EventKind::allocate, 2, 1000, 2));
  memory.add(event(EventKind::allocate, 3, 7, 9));
  memory.add(event(EventKind::refuse, 0, 1));
  const std::string text = live_text(memory, names);
  EXPECT_LT(text.find("large"), text.find("small"));
  EXPECT_NE(text.find("number 9"), std::string::npos) << "its definition was lost";
  EXPECT_NE(text.find("1 requests refused"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tern::tools
