// The transfer audit counts the bytes that copies of buffers and arrays move between host and
// devices. A TransferGate makes copies to the host fail, to keep data on the device.
//
//   const TransferCounts before = transfer_counts();
//   {
//     const TransferGate gate;                    // this thread reads no data back in here
//     run_query(tables, stream);                  // rows.to_vector() in it throws DownloadRefused
//   }
//   const TransferCounts moved = transfer_counts() - before;
//
// Counting is always on and takes no lock. There are counts of calls and bytes by direction and
// purpose (buffer/transfer.hpp), for each tag of the memory on the device's side. A copy counts
// when it was submitted, or when it is done if the call waits for it. A copy that fails does not
// count. One call counts once, in however many pieces its bytes move; each copy of a batch counts
// on its own. Between devices that cannot reach each other, bytes move through the host and count
// in both directions.
//
// Not counted are copies by bare address (StreamRef::copy), accesses of the host in place, and
// pages that a driver migrates. All functions may be called from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/buffer/transfer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/core/visibility.hpp"

namespace tern {

/// Returns the counts of the process so far. While other threads copy, one number may already
/// include a copy that another number does not.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts() noexcept;
/// Returns the counts of memory with this tag: the tag of the destination, or of the source for a
/// copy to the host. The first 127 tags that move anything have counts of their own.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts(Tag tag) noexcept;

/// A tag and its counts.
struct TaggedTransfers {
  Tag tag;
  TransferCounts counts;
};
/// Returns all tags that have counts of their own, in no particular order. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT std::vector<TaggedTransfers> transfer_counts_by_tag();
/// Returns the counts of all further tags together.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts_of_other_tags() noexcept;

/// What all gates of all threads have refused or counted.
struct TransferGateStatistics {
  TransferCount refused = {};
  TransferCount counted = {};
  CallSite last = {};  // the line that read, or would have read
};
[[nodiscard]] TERN_EXPORT TransferGateStatistics transfer_gate_statistics() noexcept;

/// A scope of one thread in which copies to the host fail with download_refused. They fail before
/// the host allocates memory and before the device is called, and change nothing.
///
/// Copies of up to max_metadata_bytes are allowed, for example a scalar (Buffer::item) or a row
/// count. A call is judged by its total size, so a batch or the rows of a pitched copy do not pass
/// one by one. To find many small reads, check small_reads().
///
/// Gates nest, and the strictest gate applies. Inside a gate of Mode::allow, the outer gates do not
/// apply, and data that is read counts as a result. Gates must end in the reverse order of their
/// beginning, as scopes do.
class TERN_EXPORT TransferGate {
 public:
  using Mode = TransferRule::Mode;

  explicit TransferGate(Mode mode = Mode::refuse, CallSite site = CallSite::here()) noexcept;
  TransferGate(const TransferGate&) = delete;
  TransferGate& operator=(const TransferGate&) = delete;
  ~TransferGate();

  /// Returns the data that this gate refused or, in Mode::count, let through.
  [[nodiscard]] TransferCount violations() const noexcept { return rule_.violations; }
  /// Returns the scalars and metadata that passed.
  [[nodiscard]] TransferCount small_reads() const noexcept { return rule_.small; }

 private:
  TransferRule rule_;
};

}  // namespace tern
