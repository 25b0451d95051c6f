// Small constant traces, as seeds for fuzzing and as input of format tests that damage them.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "support/random_trace.hpp"
#include "trace/trace_writer.hpp"

namespace tern::test {

using TraceBytes = std::vector<std::byte>;

inline TraceBytes trace_of(std::span<const TraceRecord> records,
                           const TraceWriter::Options& options = {}) {
  TraceWriter writer = TraceWriter::to_memory(options);
  for (const TraceRecord& record : records) writer.write(record);
  static_cast<void>(writer.close());
  return {writer.bytes().begin(), writer.bytes().end()};
}

/// Returns records of every kind, with a different value in every field.
inline TraceBytes full_trace() {
  const Touch touches[] = {{TouchKind::read, {1, 64, 128}, 7, true},
                           {TouchKind::write, {0, 0x1'0000'0000'0000, ~std::uint64_t{0} >> 16}},
                           {TouchKind::subrelease, {~std::uint32_t{0}, 1, 2}, ~std::uint64_t{0}}};
  std::vector<TraceRecord> records;
  for (std::uint8_t kind = 0; kind <= static_cast<std::uint8_t>(RecordKind::lost_records); ++kind) {
    records.push_back({.kind = static_cast<RecordKind>(kind),
                       .operation = static_cast<OperationKind>(kind % 7),
                       .actor_kind = static_cast<ActorKind>(kind % 4),
                       .actor = kind % 3u,
                       .host = kind % 2u,
                       .device = kind * 1000u,
                       .event = kind * 3u,
                       .sequence = kind * 100u,
                       .name = kind % 2 == 0 ? "scale" : "copy",
                       .touches = std::span(touches).first(kind % 4u),
                       .site = {"sample.cpp", "run", 10u + kind},
                       .tag = kind % 3 == 0 ? "sample" : "",
                       .was_refused = kind % 5 == 4});
  }
  return trace_of(records, {"sample  seed 0x7", "TERN_SIM_SEED=0x7  (sample.trace)"});
}

inline std::vector<TraceBytes> sample_traces() {
  std::vector<TraceBytes> traces = {trace_of({}), full_trace()};
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    traces.push_back(trace_of(RandomTrace(seed, 20 + 40 * seed).records()));
  }
  return traces;
}

}  // namespace tern::test
