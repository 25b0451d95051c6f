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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tern/core/error.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/trace/finding.hpp"

namespace tern {

// A TraceReader reads the records of a trace one by one, from a file or from memory.
//
//   TraceReader reader = TraceReader::try_open("run.trace").value();
//   for (TraceRecord record; reader.try_next(record).value();) use(record);
//
// The reader does not trust its input. It checks every length, number and checksum before use, and
// fails with bad_format, which names the byte offset, the field, its value and the allowed bound.
// Memory use is at most proportional to the bytes read, plus one MiB. A trace whose writer died
// ends early without a failure; is_complete() returns whether the end was found.
//
// The reader owns the strings of call sites. Objects that keep the site of a record, such as the
// order checker and its findings, must not outlive the reader. Names and touches are valid until
// the next record is read. Use a reader from one thread at a time.

class TERN_EXPORT TraceReader {
 public:
  /// Opens a trace file. Fails with file if the file cannot be read, with bad_format if it is not a
  /// trace, and with unsupported if the trace has a later format version.
  [[nodiscard]] static Result<TraceReader> try_open(const std::string& path);
  /// Reads from an open descriptor, such as a pipe, and does not close it. `name` is used in
  /// errors. Fails like try_open().
  [[nodiscard]] static Result<TraceReader> try_read_descriptor(int descriptor, std::string name);
  /// Reads from memory. The bytes must outlive the reader. Fails like try_open().
  [[nodiscard]] static Result<TraceReader> try_read_bytes(std::span<const std::byte> bytes);

  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  /// Return what the writer stored: its name and version (writer()), the settings of the run
  /// (context()), and how to repeat the run (replay()).
  [[nodiscard]] const std::string& writer() const noexcept;
  [[nodiscard]] const std::string& context() const noexcept;
  [[nodiscard]] const std::string& replay() const noexcept;

  /// Reads the next record. Returns false at the end of the trace. After a failure, every later
  /// call returns the same failure.
  [[nodiscard]] Result<bool> try_next(TraceRecord& record);

  /// Returns findings that the writer stored because no record leads to them, and that precede the
  /// record read last, or the end of the trace. Their context and replay are empty. Each finding is
  /// returned once.
  [[nodiscard]] std::vector<Finding> take_findings();

  /// Returns true if the end of the trace was found. Valid once try_next() has returned false.
  [[nodiscard]] bool is_complete() const noexcept;
  /// Returns the number of records read so far.
  [[nodiscard]] std::uint64_t record_count() const noexcept;
  /// Returns the number of bytes read so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;
  /// Returns the number of records whose tag was dropped. A tag name in a trace becomes a Tag of
  /// this process. Because a process has few tags, all readers together add at most 4096. Records
  /// with further tags are untagged and counted here.
  [[nodiscard]] std::uint64_t tags_left_out() const noexcept;

 private:
  struct State;
  explicit TraceReader(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

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
  std::uint64_t bytes = 0;    // of the trace that were read
  std::uint64_t records = 0;  // that were judged
  std::uint64_t actors = 0;   // streams and host threads
  std::uint64_t findings = 0;
  std::uint64_t gaps = 0;  // places where the writer lost records
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
