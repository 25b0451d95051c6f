// check_trace() runs the order checker over a whole trace.
//
//   TraceReader reader = TraceReader::try_open("run.trace").value();
//   CheckSummary summary = check_trace(reader, [](const Finding& f) { std::cout << f.text(); });
//
// Every record is applied, with or without a finding, because the run has already happened.
//
// A trace file may come from anywhere, so a check has a budget: the work and the memory of the
// checker must stay proportional to the size of the trace. Ordinary traces use a small part of the
// budget. A trace that was built to keep the machine busy makes the check stop with a capacity
// failure; earlier findings remain valid.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "tern/core/error.hpp"
#include "tern/core/visibility.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/trace_reader.hpp"

namespace tern {

/// The limits of a check. Each limit is a constant plus an amount per byte of trace read.
struct CheckBudget {
  /// Steps of the checker. A step takes at most a tenth of a microsecond.
  std::uint64_t steps = std::uint64_t{1} << 27;
  std::uint64_t steps_per_byte = 64;
  /// Memory for clocks and concurrent reads.
  std::uint64_t history_bytes = std::uint64_t{256} << 20;
  std::uint64_t history_bytes_per_byte = 64;

  /// No limits, for traces that you made yourself.
  [[nodiscard]] static constexpr CheckBudget unlimited() noexcept {
    return {~std::uint64_t{0}, 0, ~std::uint64_t{0}, 0};
  }
};

/// The result of a check.
struct CheckSummary {
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t actors = 0;
  std::uint64_t findings = 0;
  std::uint64_t gaps = 0;
  /// The number of lost records in all gaps for which the trace contains the number.
  std::uint64_t lost = 0;
  /// Records whose tag was dropped; see TraceReader::tags_left_out().
  std::uint64_t tags_left_out = 0;
  /// True if the end of the trace was read. False if the writer died or the check stopped early.
  bool is_complete = false;
  /// The reason why the check stopped early: the trace is damaged, or checking it exceeds the
  /// budget.
  std::optional<Failure> failure = {};
};

/// Reads the trace to its end and calls `on_finding` for each finding, including leaks at a
/// shutdown (at most 1000). Do not use the call sites of findings after the reader is destroyed.
/// Calls `on_progress` from time to time with the bytes and records read so far. Does not throw for
/// a damaged trace; see CheckSummary::failure.
[[nodiscard]] TERN_EXPORT CheckSummary check_trace(
    TraceReader& reader, const std::function<void(const Finding&)>& on_finding,
    const CheckBudget& budget = {},
    const std::function<void(std::uint64_t bytes, std::uint64_t records)>& on_progress = {});

}  // namespace tern
