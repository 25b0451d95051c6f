// A memory trace that is written and read is the same trace.

#include "tools/formats/memory_trace_writer.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "support/random_memory_trace.hpp"
#include "support/temporary_folder.hpp"
#include "support/written_bytes.hpp"

namespace tern::tools {
namespace {

using trace::MemoryEvent;
using trace::MemoryTrace;

/// The events of each thread, as bytes.
std::map<std::uint32_t, std::string> events_of(const MemoryTrace& trace) {
  std::map<std::uint32_t, std::string> events;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    events[trace.threads[i]].append(reinterpret_cast<const char*>(&trace.events[i]),
                                    sizeof(MemoryEvent));
  }
  return events;
}

using Names = std::map<std::uint32_t, std::tuple<std::string, int, int, int>>;
std::vector<Names> names_of(const MemoryTrace& trace) {
  std::vector<Names> names(trace::definition_kinds);
  for (std::size_t kind = 0; kind < names.size(); ++kind) {
    for (const auto& [number, name] : trace.names(static_cast<trace::DefinitionKind>(kind))) {
      names[kind][number] = {name.text, name.line, name.device, name.detail};
    }
  }
  return names;
}

TEST(MemoryTraceWriting, KeepsEventsAndNames) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "out.trace";
  // Nothing, and more events than a slab has.
  for (const std::size_t events : {std::size_t{0}, std::size_t{100}, 5 * trace::slab_events}) {
    const MemoryTrace before = test::RandomMemoryTrace(1, events).trace();
    const std::string bytes =
        test::written_bytes([&](Output& out) { write_memory_trace(before, out); });
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ((bytes.size() - trace::file_header_bytes) % trace::slab_bytes, 0u);
    const Result<MemoryTrace> after = MemoryTrace::try_read(path);
    ASSERT_TRUE(after) << after.failure().text();
    EXPECT_EQ(events_of(*after), events_of(before));
    EXPECT_EQ(names_of(*after), names_of(before));
    EXPECT_EQ(after->damaged_slabs, 0u);
    EXPECT_EQ(after->header.start_ns, before.header.start_ns);
    EXPECT_EQ(after->header.start_unix_ns, before.header.start_unix_ns);
    EXPECT_EQ(after->header.process, before.header.process);
    EXPECT_EQ(after->header.is_closed, before.header.is_closed);
    EXPECT_EQ(after->header.lost_events, before.header.lost_events);
    // What was read is written as the same bytes.
    EXPECT_TRUE(bytes ==
                test::written_bytes([&](Output& out) { write_memory_trace(*after, out); }));
  }
}

TEST(MemoryTraceWriting, DefinitionsFillSeveralSlabs) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "out.trace";
  MemoryTrace before;
  for (std::uint32_t i = 1; i <= 1000; ++i) {
    before.define(trace::DefinitionKind::site, i, {std::string(i % 1500, 'x'), i, 0, 0});
  }
  before.define(trace::DefinitionKind::tag, 1, {std::string(70'000, 'y'), 0, 0, 0});
  std::ofstream(path, std::ios::binary)
      << test::written_bytes([&](Output& out) { write_memory_trace(before, out); });
  const Result<MemoryTrace> after = MemoryTrace::try_read(path);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->damaged_slabs, 0u);
  EXPECT_EQ(names_of(*after)[1], names_of(before)[1]);
  EXPECT_EQ(after->find(trace::DefinitionKind::tag, 1)->text.size(), trace::max_text_bytes);
}

}  // namespace
}  // namespace tern::tools
