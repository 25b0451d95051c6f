// A slice of a trace contains only the records that explain one finding.
//
//   const std::vector<std::size_t> chosen = slice(records, at);
//   const RecordList shorter = extract(records, chosen);
//
// A run of a real program cannot be shortened by leaving out steps and running it again, because a
// pool would then behave differently. The trace can be shortened. A slice contains the operations
// on the affected bytes, the operations that allocated and wrote those bytes, and the records and
// waits that order these operations. Checking the slice alone yields the same code for the same
// bytes at the last record. All functions are pure and safe from any thread.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"
#include "trace/record_list.hpp"

namespace tern {

/// Returns the indices of the records that explain the finding at record `at`, ascending. The last
/// index is `at`. The slice may contain other findings too. If record `at` has no finding, the
/// slice explains all bytes that the record touches. Throws InvalidArgument if `at` is not the
/// index of a record, or if a record before it cannot be checked.
[[nodiscard]] TERN_EXPORT std::vector<std::size_t> slice(std::span<const TraceRecord> records,
                                                         std::size_t at);

/// Copies the chosen records, given by ascending indices, into a trace of their own. Host waits for
/// the first n operations of a stream are renumbered to count only the chosen operations.
[[nodiscard]] TERN_EXPORT RecordList extract(std::span<const TraceRecord> records,
                                             std::span<const std::size_t> chosen);

}  // namespace tern
