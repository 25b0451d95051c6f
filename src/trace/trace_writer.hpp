// A TraceWriter writes trace records to a file or to memory, in the format of
// docs/formats/trace.md.
//
//   TraceWriter writer = TraceWriter::open("run.trace", {});
//   writer.write(record);
//   writer.close().value();
//
// write() never throws and never fails. If a record cannot be written, because of missing memory, a
// full disk or the size limit, the writer counts it as lost. status(), flush() and close() report
// the loss, and the trace contains a gap before the next record that could be written.
//
// The writer collects records and writes them in chunks of about 16 KiB. If the process dies, the
// trace is readable up to the last chunk. The destructor closes the trace. In a forked child, a
// writer of the parent does nothing. Use a writer from one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/trace/finding.hpp"

namespace tern {

class TERN_EXPORT TraceWriter {
 public:
  struct Options {
    /// What findings about this trace show about the run, and the line that tells how to repeat it.
    std::string context = "trace";
    std::string replay = {};
    /// Maximum size of the trace. The trace ends with a gap before it would exceed this size.
    std::uint64_t limit_bytes = std::numeric_limits<std::uint64_t>::max();
  };

  /// Creates the file or truncates it. Fails with file if the file cannot be opened, and with
  /// capacity if another writer is writing a trace to it.
  [[nodiscard]] static Result<TraceWriter> try_open(const std::string& path,
                                                    const Options& options);
  [[nodiscard]] static TraceWriter open(const std::string& path, const Options& options,
                                        CallSite site = CallSite::here()) {
    return try_open(path, options).value(site);
  }
  /// Keeps the trace in memory; see bytes(). Throws only std::bad_alloc.
  [[nodiscard]] static TraceWriter to_memory(const Options& options);

  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  ~TraceWriter();

  /// Writes a record. The strings of its call site must stay valid as long as the writer. Strings
  /// above 4096 bytes are cut.
  void write(const TraceRecord& record) noexcept;
  /// Writes a finding that cannot be derived from the records, such as one made while the work ran.
  /// Its call site is not stored.
  void write_finding(const Finding& finding) noexcept;

  /// Writes collected records to the file. Fails with the first write error, if there was one, on
  /// this and every later call, and with capacity if records were lost.
  Result<void> flush() noexcept;
  /// Ends the trace, so that readers see that it is complete, and closes the file. Records written
  /// later are lost. Fails like flush(). A second call only returns the status.
  Result<void> close() noexcept;
  /// Returns what flush() would return, without writing.
  [[nodiscard]] Result<void> status() const noexcept;

  /// record_count() returns the number of records in the trace so far, including gaps. lost_count()
  /// returns the number of records that were lost.
  [[nodiscard]] std::uint64_t record_count() const noexcept;
  [[nodiscard]] std::uint64_t lost_count() const noexcept;
  /// For a writer to memory: returns the trace up to the last flush.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;

 private:
  struct State;
  explicit TraceWriter(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace tern
