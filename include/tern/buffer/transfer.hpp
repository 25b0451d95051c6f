// Copies between host and devices, as they are counted: which way they go, and what they are for.
//
// Every copy that buffers and arrays make is counted (launch/transfer_audit.hpp reads the counts),
// behind its success: one that was refused or failed moved nothing. Memory that the host reaches by
// its address (the host's own, pinned, registered) is the host's side, and so are files; managed
// memory is its device's. What does not leave the host is not counted.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"

namespace tern {

enum class TransferDirection : std::uint8_t {
  host_to_device,
  device_to_host,
  device_to_device,  // within one
  between_devices    // and not through the host
};
inline constexpr std::size_t transfer_directions = 4;

/// What a copy is for, as far as its size tells.
enum class TransferPurpose : std::uint8_t {
  scalar,    // one element: up to 16 bytes
  metadata,  // up to 4,096 bytes: sizes, offsets, what a launch has to know
  data,
  result  // to the host, where a TransferGate allows it in so many words
};
inline constexpr std::size_t transfer_purposes = 4;

inline constexpr std::size_t max_scalar_bytes = 16;
inline constexpr std::size_t max_metadata_bytes = 4096;

struct TransferCount {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;

  constexpr TransferCount& operator+=(const TransferCount& other) noexcept {
    calls += other.calls;
    bytes += other.bytes;
    return *this;
  }
  /// Since then.
  friend constexpr TransferCount operator-(const TransferCount& now,
                                           const TransferCount& then) noexcept {
    return {now.calls - then.calls, now.bytes - then.bytes};
  }
  friend constexpr bool operator==(const TransferCount&, const TransferCount&) noexcept = default;
};

/// Calls and bytes by direction and purpose.
class TransferCounts {
 public:
  [[nodiscard]] constexpr TransferCount& at(TransferDirection direction,
                                            TransferPurpose purpose) noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  [[nodiscard]] constexpr const TransferCount& at(TransferDirection direction,
                                                  TransferPurpose purpose) const noexcept {
    return counts_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(purpose)];
  }
  /// For whatever purpose.
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

  /// Since then.
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

/// What a thread has said about copies to the host; a TransferGate puts it in force.
struct TransferRule {
  enum class Mode : std::uint8_t { allow, count, refuse };  // the stricter the later

  Mode mode = Mode::allow;
  TransferRule* outer = nullptr;
  CallSite site = {};
  // What met the rule, and those inside it that are no exceptions.
  TransferCount violations = {};  // data, refused or counted
  TransferCount small = {};       // scalars and metadata, which pass
};

}  // namespace tern
