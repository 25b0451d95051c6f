// The fuzz target for traces, also used by tests that damage traces: reads and checks the bytes,
// once as they are and once with corrected checksums, so that the damage gets past the checksums.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <vector>

#include "tern/trace/trace_check.hpp"
#include "trace/trace_format.hpp"
#include "trace/trace_writer.hpp"

namespace tern::test {

/// Returns the bytes with a valid magic number, version and checksums, as far as the chunks can be
/// found.
inline std::vector<std::byte> with_right_checksums(std::span<const std::byte> bytes) {
  using namespace trace_format;
  std::vector<std::byte> out(bytes.begin(), bytes.end());
  if (out.size() < file_header_bytes) return out;
  std::fill_n(out.begin(), file_header_bytes, std::byte{0});
  std::ranges::transform(magic, out.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  out[8] = std::byte{1};
  for (std::size_t at = file_header_bytes; out.size() - at >= chunk_header_bytes;) {
    const std::size_t length = get_u32(&out[at + 4]);
    const std::size_t payload = at + chunk_header_bytes;
    if (length > out.size() - payload) break;
    std::ranges::copy(chunk_header(get_u32(&out[at]), {out.data() + payload, length}),
                      out.begin() + static_cast<std::ptrdiff_t>(at));
    at = payload + length;
  }
  return out;
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Reads all records, and checks that they can be written and read again.
inline CheckSummary check_bytes(std::span<const std::byte> bytes) {
  const CheckBudget small{1 << 22, 1024, 4 << 20, 64};
  Result<TraceReader> reader = TraceReader::try_read_bytes(bytes);
  CheckSummary summary;
  if (!reader) {
    summary.failure = reader.failure();
    require(!reader.failure().text().empty());
    return summary;
  }
  summary = check_trace(
      *reader,
      [](const Finding& finding) { require(finding.text().size() + finding.json().size() > 0); },
      small);
  require(summary.bytes <= bytes.size());
  require(summary.records <= bytes.size());
  if (summary.failure) require(summary.failure->text().size() > 20);

  Result<TraceReader> again = TraceReader::try_read_bytes(bytes);
  TraceWriter writer = TraceWriter::to_memory({again->context(), again->replay()});
  std::uint64_t copied = 0;
  TraceRecord record;
  for (;; ++copied) {
    const Result<bool> more = again->try_next(record);
    if (!more || !*more) break;
    require(is_well_formed(record));
    writer.write(record);
  }
  require(static_cast<bool>(writer.close()));
  Result<TraceReader> copy = TraceReader::try_read_bytes(writer.bytes());
  require(static_cast<bool>(copy));
  while (*copy->try_next(record)) --copied;
  require(copied == 0 && copy->is_complete());
  return summary;
}

inline void fuzz_trace(std::span<const std::byte> bytes) {
  static_cast<void>(check_bytes(bytes));
  static_cast<void>(check_bytes(with_right_checksums(bytes)));
}

}  // namespace tern::test
