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
// purpose, for each tag of the memory on the device's side. A copy counts when it was submitted, or
// when it is done if the call waits for it. A copy that fails does not count. One call counts once,
// in however many pieces its bytes move; each copy of a batch counts on its own. Between devices
// that cannot reach each other, bytes move through the host and count in both directions.
//
// Memory that the host reaches by its address (pageable, pinned, registered) and files belong to
// the host side. Managed memory belongs to its device. Copies within the host are not counted.
//
// Not counted are copies by bare address (StreamRef::copy), accesses of the host in place, and
// pages that a driver migrates. All functions may be called from any thread.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/transfer_rule.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The direction of a copy.
enum class TransferDirection : std::uint8_t {
  host_to_device,    // an upload
  device_to_host,    // a download
  device_to_device,  // within one device
  between_devices    // from one device to another, not through the host
};
/// The number of directions.
inline constexpr std::size_t transfer_directions = 4;

/// The purpose of a copy. All purposes except `result` follow from the size.
enum class TransferPurpose : std::uint8_t {
  scalar,    // one element: up to 16 bytes
  metadata,  // up to 4,096 bytes: sizes, offsets, launch parameters
  data,      // anything larger
  result     // to the host, explicitly allowed by a TransferGate
};
/// The number of purposes.
inline constexpr std::size_t transfer_purposes = 4;

/// Upper bounds of the sizes that count as scalar and as metadata.
inline constexpr std::size_t max_scalar_bytes = 16;
inline constexpr std::size_t max_metadata_bytes = 4096;

/// The counters of all directions and purposes.
class TransferCounts {
 public:
  /// The counter of one direction and purpose.
  [[nodiscard]] constexpr CopyCount& at(TransferDirection direction,
                                        TransferPurpose purpose) noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  [[nodiscard]] constexpr const CopyCount& at(TransferDirection direction,
                                              TransferPurpose purpose) const noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  /// Returns the sum over all purposes of a direction.
  [[nodiscard]] constexpr CopyCount at(TransferDirection direction) const noexcept {
    CopyCount sum;
    for (const CopyCount& one : counts_[static_cast<std::size_t>(direction)]) sum += one;
    return sum;
  }
  /// Return the sums over all purposes of one direction: host_to_device(), device_to_host(),
  /// device_to_device() and between_devices().
  [[nodiscard]] constexpr CopyCount host_to_device() const noexcept {
    return at(TransferDirection::host_to_device);
  }
  [[nodiscard]] constexpr CopyCount device_to_host() const noexcept {
    return at(TransferDirection::device_to_host);
  }
  [[nodiscard]] constexpr CopyCount device_to_device() const noexcept {
    return at(TransferDirection::device_to_device);
  }
  [[nodiscard]] constexpr CopyCount between_devices() const noexcept {
    return at(TransferDirection::between_devices);
  }

  /// Returns the difference between two readings.
  friend constexpr TransferCounts operator-(const TransferCounts& now,
                                            const TransferCounts& then) noexcept {
    TransferCounts since;
    for (std::size_t i = 0; i < transfer_directions; ++i) {
      for (std::size_t j = 0; j < transfer_purposes; ++j) {
        since.counts_[i][j] = now.counts_[i][j] - then.counts_[i][j];
      }
    }
    return since;
  }
  friend constexpr bool operator==(const TransferCounts&, const TransferCounts&) noexcept = default;

 private:
  std::array<std::array<CopyCount, transfer_purposes>, transfer_directions> counts_ = {};
};

/// Returns the counts of the process so far. While other threads copy, one number may already
/// include a copy that another number does not.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts() noexcept;
/// Returns the counts of memory with this tag: the tag of the destination, or of the source for a
/// copy to the host. The first 127 tags with a copy are counted separately.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts(Tag tag) noexcept;

/// Returns the tags that are counted separately, with their counts, in no particular order. Throws
/// std::bad_alloc.
[[nodiscard]] TERN_EXPORT std::vector<std::pair<Tag, TransferCounts>> transfer_counts_by_tag();
/// Returns the counts of all further tags together.
[[nodiscard]] TERN_EXPORT TransferCounts transfer_counts_of_other_tags() noexcept;

/// What all gates of all threads have refused or counted.
struct TransferGateStatistics {
  CopyCount refused = {};  // copies that failed with download_refused
  CopyCount counted = {};  // copies of gates that only count
  CallSite last = {};      // the line that read, or would have read
};
/// Returns the sums over the gates of the process so far.
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
  /// allow, count or refuse, from lenient to strict.
  using Mode = TransferRule::Mode;

  explicit TransferGate(Mode mode = Mode::refuse, CallSite site = CallSite::here()) noexcept;
  TransferGate(const TransferGate&) = delete;
  TransferGate& operator=(const TransferGate&) = delete;
  ~TransferGate();

  /// Returns the data that this gate refused or, in Mode::count, let through.
  [[nodiscard]] CopyCount violations() const noexcept { return rule_.violations; }
  /// Returns the scalars and metadata that passed.
  [[nodiscard]] CopyCount small_reads() const noexcept { return rule_.small; }

 private:
  TransferRule rule_;
};

}  // namespace tern
