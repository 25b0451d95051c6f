// A TraceReader gives the records of a trace, from a file or from memory, one after the other.
//
// It trusts nothing: every length, number and checksum is examined before it is used, and what does
// not fit is refused with bad_format, naming byte, field, value and bound. Memory stays below a
// constant times the bytes read, and a mebibyte. A trace whose writer died ends early but well:
// is_complete() says whether its end was seen.
//
// The reader owns the strings of call sites: they live as long as it does, and whoever keeps a
// record's site, as the order checker and its findings do, must not outlive it. Names and touches
// last until the next record. Confined to one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/record.hpp"

namespace tern {

class TERN_EXPORT TraceReader {
 public:
  /// What the writer said about itself and the run.
  struct About {
    std::string writer = {};
    std::string context = {};
    std::string replay = {};
  };

  /// Refused with file if it cannot be read, with bad_format if it is no trace, with unsupported if
  /// it is one of a later version.
  [[nodiscard]] static Result<TraceReader> try_open(const std::string& path);
  /// Reads from an open descriptor, a pipe for instance, and leaves it open. `name` is for errors.
  [[nodiscard]] static Result<TraceReader> try_read_descriptor(int descriptor, std::string name);
  /// The bytes must outlive the reader.
  [[nodiscard]] static Result<TraceReader> try_read_bytes(std::span<const std::byte> bytes);

  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  [[nodiscard]] const About& about() const noexcept;

  /// The next record; false at the end of the trace. After a failure, that failure again.
  [[nodiscard]] Result<bool> try_next(TraceRecord& record);

  /// Findings that no record leads to, which stood before the record that was read last, or before
  /// the end. Without context and replay. Each is given once.
  [[nodiscard]] std::vector<Finding> take_findings();

  /// Whether the end of the trace was seen. Known once try_next() has given false.
  [[nodiscard]] bool is_complete() const noexcept;
  [[nodiscard]] std::uint64_t record_count() const noexcept;
  /// Bytes read so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;
  /// Names of tags become tags of this process, of which there are few, so all readers of a process
  /// may add 4096 at most. Records with other tags are untagged, and counted here.
  [[nodiscard]] std::uint64_t tags_left_out() const noexcept;

 private:
  struct State;
  explicit TraceReader(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace tern
