// A slice of a trace: the few records that explain one finding.
//
// A run of a real program cannot be shrunk by leaving steps out and running it again, because a
// pool would then act differently. Its records can: a slice holds the operations on the bytes
// concerned, what gave those bytes life and contents, and the records and waits through which one
// of these operations comes after another. Checked alone, it gives the same code for the same bytes
// at the last record. Free functions of their arguments; safe from any thread.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/trace/record.hpp"
#include "tern/trace/record_list.hpp"

namespace tern {

/// Which records explain the finding at record `at`, ascending; the last one is `at`. Findings of
/// other records may be in it too. If nothing is found there, the slice is about all bytes that
/// record touches. Throws InvalidArgument if `at` is no record, or one before it cannot be checked.
[[nodiscard]] TERN_EXPORT std::vector<std::size_t> slice(std::span<const TraceRecord> records,
                                                         std::size_t at);

/// The chosen records, ascending, as a trace of their own. Waits for "the first n operations of a
/// stream" count the ones that are left.
[[nodiscard]] TERN_EXPORT RecordList extract(std::span<const TraceRecord> records,
                                             std::span<const std::size_t> chosen);

}  // namespace tern
