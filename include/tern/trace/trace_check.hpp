// Checking a whole trace: every record goes through the order checker, as one that has happened.
//
// A file may come from anywhere, so a check has a budget: what the checker does and what it keeps
// must stay in proportion to the bytes it is given. Honest traces use a small part of it; one that
// is made to keep a machine busy is refused with capacity. What was found until then still counts.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "tern/core/error.hpp"
#include "tern/core/export.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/trace_reader.hpp"

namespace tern {

struct CheckBudget {
  /// Small steps of the checker, of a tenth of a microsecond at the most.
  std::uint64_t steps = std::uint64_t{1} << 27;
  std::uint64_t steps_per_byte = 64;
  /// Clocks and concurrent reads that are kept.
  std::uint64_t history_bytes = std::uint64_t{256} << 20;
  std::uint64_t history_bytes_per_byte = 64;

  /// For traces one has made oneself.
  [[nodiscard]] static constexpr CheckBudget unlimited() noexcept {
    return {~std::uint64_t{0}, 0, ~std::uint64_t{0}, 0};
  }
};

struct CheckSummary {
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t actors = 0;
  std::uint64_t findings = 0;
  std::uint64_t gaps = 0;
  /// Records missing in gaps, where their number was known.
  std::uint64_t lost = 0;
  std::uint64_t tags_left_out = 0;
  /// Was the end of the trace there?
  bool is_complete = false;
  /// Why the check ended early, if it did: the trace is damaged, or too costly.
  std::optional<Failure> failure = {};
};

/// Reads the trace to its end and gives each finding as it is made, leaks at a shutdown included,
/// 1000 of them at most. The findings' sites must not be used after the reader is gone.
/// `on_progress` is called now and then with the bytes read so far.
[[nodiscard]] TERN_EXPORT CheckSummary check_trace(
    TraceReader& reader, const std::function<void(const Finding&)>& on_finding,
    const CheckBudget& budget = {},
    const std::function<void(std::uint64_t bytes, std::uint64_t records)>& on_progress = {});

}  // namespace tern
