// A TraceWriter writes trace records to a file or to memory, in the format of
// docs/formats/trace.md.
//
// Recording never throws and never fails: what cannot be written (no memory, a full disk, a limit
// reached) is counted, said by status() and close(), and stands in the trace as a gap wherever
// something follows it. Records are gathered and written in chunks of about 16 KiB, so a process
// that dies leaves a trace that can be read up to its last chunk. A writer that is destroyed closes
// its trace; in a forked child it does nothing. Confined to one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/record.hpp"

namespace tern {

class TERN_EXPORT TraceWriter {
 public:
  struct Options {
    /// What findings about the trace say of the run, and the line that repeats it.
    std::string context = "trace";
    std::string replay = {};
    /// The trace ends with a gap before it would grow above this many bytes.
    std::uint64_t limit_bytes = std::numeric_limits<std::uint64_t>::max();
  };

  /// Makes the file, or empties it. Refused with file if it cannot be opened, and with capacity if
  /// somebody is writing a trace to it now.
  [[nodiscard]] static Result<TraceWriter> try_open(const std::string& path,
                                                    const Options& options);
  [[nodiscard]] static TraceWriter open(const std::string& path, const Options& options,
                                        CallSite site = CallSite::here()) {
    return try_open(path, options).value(site);
  }
  /// Keeps the bytes; see bytes(). Throws only for want of memory.
  [[nodiscard]] static TraceWriter to_memory(const Options& options);

  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  ~TraceWriter();

  /// The strings of call sites must live as long as the writer. Strings above 4096 bytes are cut.
  void write(const TraceRecord& record) noexcept;
  /// A finding that no record leads to, made by whoever ran the work. Its line is not kept.
  void write_finding(const Finding& finding) noexcept;

  /// Hands what was gathered to the file. The first failure of any kind, and every time from then.
  Result<void> flush() noexcept;
  /// Ends the trace, so that readers see that nothing is missing behind it. Later records are lost.
  Result<void> close() noexcept;
  /// What flush() would say, without writing.
  [[nodiscard]] Result<void> status() const noexcept;

  /// Records in the trace so far, gaps included, and records that were lost.
  [[nodiscard]] std::uint64_t record_count() const noexcept;
  [[nodiscard]] std::uint64_t lost_count() const noexcept;
  /// Of a writer to memory: the trace up to the last flush.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;

 private:
  struct State;
  explicit TraceWriter(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace tern
