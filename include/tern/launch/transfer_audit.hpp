// The transfer audit: what copies of buffers and arrays moved between host and devices, and a gate
// that keeps data on the device.
//
//   const TransferCounts before = transfer_counts();
//   {
//     const TransferGate gate;                    // this thread reads no data back in here
//     run_query(tables, stream);                  // rows.to_host() in it throws DownloadRefused
//   }
//   const TransferCounts moved = transfer_counts() - before;
//
// Counting is always on and takes no lock: calls and bytes by direction and purpose
// (buffer/transfer.hpp), for each tag of the device's side. A copy counts when it was submitted,
// or, where the call waits for it, when it is done; one that was refused or has failed does not. A
// call is a copy as it was asked for, in however many pieces it went, and each of a batch is one.
// Between devices that cannot reach each other bytes go through the host, and count both ways.
//
// Not counted: copies by bare addresses (StreamRef::copy), the host's accesses in place, pages that
// a driver migrates. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/buffer/transfer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/tag.hpp"

namespace tern {

/// Of the process, so far. Copies of other threads under way may be in one number and not yet in
/// the next.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts() noexcept;
/// Of memory with the tag: the destination's, or the source's on the way to the host. The first 127
/// tags that move anything have counts of their own.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts(Tag tag) noexcept;

struct TaggedTransfers {
  Tag tag;
  TransferCounts counts;
};
/// All tags with counts of their own, in no order. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT std::vector<TaggedTransfers> transfer_counts_by_tag();
/// Of all further tags together.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts_of_other_tags() noexcept;

/// What gates met, on all threads.
struct TransferGateStatistics {
  TransferCount refused = {};
  TransferCount counted = {};
  CallSite last = {};  // the line that would have read, or did
};
[[nodiscard]] TERN_EXPORT TransferGateStatistics transfer_gate_statistics() noexcept;

/// A scope of one thread in which copies to the host are refused: with download_refused, before the
/// host has made room, before the device is asked for anything, and with nothing changed.
///
/// Up to max_metadata_bytes pass, whatever they are: a scalar (Buffer::item), a count of rows. What
/// a call copies is judged as a whole, so a batch or rows of a pitched copy are not small one by
/// one. Where many small reads would be a fault too, look at small_reads().
///
/// Gates nest, and the strictest holds; inside a gate of Mode::allow it does not, and data that is
/// read there counts as a result. They end in the reverse order of their beginning, as scopes do.
class TERN_EXPORT TransferGate {
 public:
  using Mode = TransferRule::Mode;

  explicit TransferGate(Mode mode = Mode::refuse, CallSite site = CallSite::here()) noexcept;
  TransferGate(const TransferGate&) = delete;
  TransferGate& operator=(const TransferGate&) = delete;
  ~TransferGate();

  /// Data that was refused in this scope, or in mode `count` was let through.
  [[nodiscard]] TransferCount violations() const noexcept { return rule_.violations; }
  /// Scalars and metadata that passed.
  [[nodiscard]] TransferCount small_reads() const noexcept { return rule_.small; }

 private:
  TransferRule rule_;
};

}  // namespace tern
