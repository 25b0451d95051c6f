// The counters of copies between host and devices, by direction and purpose.
//
// Every copy of buffers and arrays is counted after it succeeded; a copy that failed moved nothing
// and is not counted. launch/transfer_audit.hpp reads the counters. Memory that the host reaches by
// its address (pageable, pinned, registered) and files belong to the host side. Managed memory
// belongs to its device. Copies within the host are not counted.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"

namespace tern {

/// The direction of a copy.
enum class TransferDirection : std::uint8_t {
  host_to_device,
  device_to_host,
  device_to_device,  // within one device
  between_devices    // from one device to another, not through the host
};
inline constexpr std::size_t transfer_directions = 4;

/// The purpose of a copy. All purposes except `result` follow from the size.
enum class TransferPurpose : std::uint8_t {
  scalar,    // one element: up to 16 bytes
  metadata,  // up to 4,096 bytes: sizes, offsets, launch parameters
  data,      // anything larger
  result     // to the host, explicitly allowed by a TransferGate
};
inline constexpr std::size_t transfer_purposes = 4;

/// Upper bounds of the sizes that count as scalar and as metadata.
inline constexpr std::size_t max_scalar_bytes = 16;
inline constexpr std::size_t max_metadata_bytes = 4096;

/// Number of copies and their bytes.
struct TransferCount {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;

  constexpr TransferCount& operator+=(const TransferCount& other) noexcept {
    calls += other.calls;
    bytes += other.bytes;
    return *this;
  }
  /// Returns the difference between two readings.
  friend constexpr TransferCount operator-(const TransferCount& now,
                                           const TransferCount& then) noexcept {
    return {now.calls - then.calls, now.bytes - then.bytes};
  }
  friend constexpr bool operator==(const TransferCount&, const TransferCount&) noexcept = default;
};

/// The counters of all directions and purposes.
class TransferCounts {
 public:
  /// The counter of one direction and purpose.
  [[nodiscard]] constexpr TransferCount& at(TransferDirection direction,
                                            TransferPurpose purpose) noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  [[nodiscard]] constexpr const TransferCount& at(TransferDirection direction,
                                                  TransferPurpose purpose) const noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  /// Returns the sum over all purposes of a direction.
  [[nodiscard]] constexpr TransferCount at(TransferDirection direction) const noexcept {
    TransferCount sum;
    for (const TransferCount& one : counts_[static_cast<std::size_t>(direction)]) sum += one;
    return sum;
  }
  [[nodiscard]] constexpr TransferCount host_to_device() const noexcept {
    return at(TransferDirection::host_to_device);
  }
  [[nodiscard]] constexpr TransferCount device_to_host() const noexcept {
    return at(TransferDirection::device_to_host);
  }
  [[nodiscard]] constexpr TransferCount device_to_device() const noexcept {
    return at(TransferDirection::device_to_device);
  }
  [[nodiscard]] constexpr TransferCount between_devices() const noexcept {
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
  std::array<std::array<TransferCount, transfer_purposes>, transfer_directions> counts_ = {};
};

/// A thread's rule for copies to the host. A TransferGate installs it; rules nest.
struct TransferRule {
  /// From lenient to strict. Of nested rules the strictest applies, except inside a rule of
  /// Mode::allow.
  enum class Mode : std::uint8_t { allow, count, refuse };

  Mode mode = Mode::allow;
  TransferRule* outer = nullptr;
  CallSite site = {};
  // Copies to the host under this rule and the rules inside it, up to a rule of Mode::allow.
  TransferCount violations = {};  // copies of data, counted or refused
  TransferCount small = {};       // scalars and metadata, which are always allowed
};

}  // namespace tern
