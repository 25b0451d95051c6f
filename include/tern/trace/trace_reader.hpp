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

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/record.hpp"

namespace tern {

class TERN_EXPORT TraceReader {
 public:
  /// What the writer stored about itself and the run.
  struct About {
    std::string writer = {};
    std::string context = {};
    std::string replay = {};
  };

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

  /// Returns what the writer stored about itself and the run.
  [[nodiscard]] const About& about() const noexcept;

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

}  // namespace tern
