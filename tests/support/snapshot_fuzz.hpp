// The fuzz target for PyTorch memory snapshots: reads the bytes as a pickle, and makes a
// snapshot out of them that is a pickle in any case. What can be read is summarized and written in
// every format.

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "support/fuzz_bytes.hpp"
#include "support/written_bytes.hpp"
#include "tools/formats/memory_trace_writer.hpp"
#include "tools/formats/perfetto_writer.hpp"
#include "tools/formats/pickle_writer.hpp"
#include "tools/formats/pytorch_snapshot.hpp"
#include "tools/formats/rmm_log.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::test {

/// Writes a trace in every format, which must not fail whatever is in it.
inline void write_in_every_format(const trace::MemoryTrace& trace) {
  using tools::Output;
  const tools::TraceSummary summary(trace, "fuzz");
  require_in_fuzz(!tools::text_report(summary).empty());
  written_bytes(
      [&](Output& out) { tools::write_perfetto_trace(summary, trace.header.start_unix_ns, out); });
  written_bytes([&](Output& out) { static_cast<void>(tools::write_rmm_log(trace, out)); });
  const std::string snapshot =
      written_bytes([&](Output& out) { tools::write_pytorch_snapshot(trace, out); });
  require_in_fuzz(static_cast<bool>(tools::try_parse_pytorch_snapshot(snapshot)));
}

inline void read_as_snapshot(std::string_view bytes) {
  const Result<trace::MemoryTrace> trace = tools::try_parse_pytorch_snapshot(bytes);
  if (!trace) {
    require_in_fuzz(trace.failure().text().size() > 20);
    return;
  }
  require_in_fuzz(trace->events.size() <= 2 * bytes.size() + 1024);
  require_in_fuzz(trace->events.size() == trace->threads.size());
  write_in_every_format(*trace);
}

/// Writes a value that a field may have, and sometimes another one.
inline void write_fuzzed(tools::PickleWriter& pickle, FuzzBytes& from, std::int64_t small) {
  if (from.chance(30)) return pickle.text("unknown");
  if (from.chance(60)) return pickle.pair(1, 2);
  pickle.number(static_cast<std::uint64_t>(from.number(small)));
}

inline std::string fuzzed_snapshot(FuzzBytes from) {
  static constexpr std::array<std::string_view, 11> actions = {
      "alloc",       "alloc",         "free_requested", "free_requested", "free_completed", "oom",
      "segment_map", "segment_alloc", "segment_free",   "segment_unmap",  "annotate"};
  static constexpr std::array<std::string_view, 4> states = {
      "active_allocated", "inactive", "active_allocated", "active_pending_free"};
  return written_bytes([&](tools::Output& out) {
    tools::PickleWriter pickle(out);
    const auto field = [&](std::string_view name, std::int64_t small) {
      if (from.chance(50)) return;
      pickle.text(name);
      write_fuzzed(pickle, from, small);
    };
    pickle.begin_dict();
    pickle.text("segments");
    pickle.begin_list();
    for (int i = from.take<std::uint8_t>() % 4; i > 0; --i) {
      pickle.begin_dict();
      field("device", 2);
      field("address", 100);
      field("total_size", 5000);
      pickle.text("blocks");
      pickle.begin_list();
      for (int k = from.take<std::uint8_t>() % 4; k > 0; --k) {
        pickle.begin_dict();
        field("size", 100);
        field("requested_size", 100);
        pickle.text("state");
        pickle.text(states[from.take<std::uint8_t>() % states.size()]);
        pickle.end();
      }
      pickle.end();
      pickle.end();
    }
    pickle.end();
    pickle.text("device_traces");
    pickle.begin_list();
    for (int i = 0; i < 2; ++i) {
      pickle.begin_list();
      for (int k = from.take<std::uint8_t>() % 64; k > 0; --k) {
        pickle.begin_dict();
        pickle.text("action");
        pickle.text(actions[from.take<std::uint8_t>() % actions.size()]);
        field("addr", 50);
        field("size", 100);
        field("stream", 3);
        field("time_us", 1000);
        pickle.text("category");
        pickle.text(from.chance(3) ? "unknown" : "tag");
        pickle.end();
      }
      pickle.end();
    }
    pickle.end();
    pickle.end();
    pickle.finish();
  });
}

inline void fuzz_snapshot(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  read_as_snapshot(text);
  read_as_snapshot(fuzzed_snapshot(FuzzBytes(bytes)));
}

}  // namespace tern::test
