// A Place is where bytes can be: the host, one NUMA node of it, a device, or a file.
//
// A plain eight-byte value that compares and hashes. A device place carries the number the process
// gave that device when it opened it (DeviceId); the number is never used again.

#pragma once

#include <compare>
#include <cstdint>
#include <string>  // and std::hash, for less than <functional>

#include "tern/core/export.hpp"

namespace tern {

/// Numbers the devices a process has opened, from 1. Zero is no device.
struct DeviceId {
  std::uint32_t value = 0;

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value != 0; }
  // Both spelt out: nvcc does not make == from a defaulted <=>.
  friend constexpr bool operator==(const DeviceId&, const DeviceId&) noexcept = default;
  friend constexpr auto operator<=>(const DeviceId&, const DeviceId&) noexcept = default;
};

class TERN_EXPORT Place {
 public:
  enum class Kind : std::uint8_t { host, host_numa, host_numa_current, device, file };

  /// The host, wherever the system puts the pages.
  constexpr Place() noexcept = default;
  [[nodiscard]] static constexpr Place host() noexcept { return {}; }
  [[nodiscard]] static constexpr Place host_numa(std::uint32_t node) noexcept {
    return Place(Kind::host_numa, node);
  }
  /// The node of whoever asks, when it asks.
  [[nodiscard]] static constexpr Place host_numa_current() noexcept {
    return Place(Kind::host_numa_current, 0);
  }
  [[nodiscard]] static constexpr Place device(DeviceId id) noexcept {
    return Place(Kind::device, id.value);
  }
  [[nodiscard]] static constexpr Place file() noexcept { return Place(Kind::file, 0); }

  [[nodiscard]] constexpr Kind kind() const noexcept { return kind_; }
  [[nodiscard]] constexpr bool is_host() const noexcept {
    return kind_ == Kind::host || kind_ == Kind::host_numa || kind_ == Kind::host_numa_current;
  }
  /// The NUMA node, or the device's number; 0 for the other kinds.
  [[nodiscard]] constexpr std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] constexpr DeviceId device_id() const noexcept {
    return DeviceId{kind_ == Kind::device ? index_ : 0};
  }

  /// "host", "host numa 1", "host numa current", "device 3", "file".
  [[nodiscard]] std::string text() const;

  friend constexpr bool operator==(const Place&, const Place&) noexcept = default;
  friend constexpr auto operator<=>(const Place&, const Place&) noexcept = default;

 private:
  constexpr Place(Kind kind, std::uint32_t index) noexcept : kind_(kind), index_(index) {}

  Kind kind_ = Kind::host;
  std::uint32_t index_ = 0;
};

}  // namespace tern

template <>
struct std::hash<tern::DeviceId> {
  std::size_t operator()(tern::DeviceId id) const noexcept { return id.value; }
};

template <>
struct std::hash<tern::Place> {
  std::size_t operator()(const tern::Place& place) const noexcept {
    return (static_cast<std::size_t>(place.kind()) << 32) | place.index();
  }
};
