// A Place names where bytes can be: the host, one NUMA node of the host, a device, or a file.
//
//   if (buffer_place == device.place()) ...
//
// A Place is a plain value of eight bytes that can be compared and hashed. The place of a device
// contains its DeviceId, which the process assigns when it opens the device and never reuses.

#pragma once

#include <compare>
#include <cstdint>
#include <string>  // also declares std::hash; smaller than <functional>

#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The number of a device that this process has opened, counted from 1. Zero means no device.
struct DeviceId {
  std::uint32_t value = 0;

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value != 0; }
  // Both operators are declared because nvcc does not derive == from a defaulted <=>.
  friend constexpr bool operator==(const DeviceId&, const DeviceId&) noexcept = default;
  friend constexpr auto operator<=>(const DeviceId&, const DeviceId&) noexcept = default;
};

class TERN_EXPORT Place {
 public:
  /// The functions of the same names below explain `host`, `host_numa`, `host_numa_current`,
  /// `device` and `file`.
  enum class Kind : std::uint8_t { host, host_numa, host_numa_current, device, file };

  /// The host, on any NUMA node.
  constexpr Place() noexcept = default;
  /// The same as Place().
  [[nodiscard]] static constexpr Place host() noexcept { return {}; }
  /// Memory of one NUMA node of the host.
  [[nodiscard]] static constexpr Place host_numa(std::uint32_t node) noexcept {
    return Place(Kind::host_numa, node);
  }
  /// The NUMA node of the thread that makes the request, at the time of the request.
  [[nodiscard]] static constexpr Place host_numa_current() noexcept {
    return Place(Kind::host_numa_current, 0);
  }
  /// Memory of an open device. Device::place() returns this place.
  [[nodiscard]] static constexpr Place device(DeviceId id) noexcept {
    return Place(Kind::device, id.value);
  }
  /// A file. All files share one place.
  [[nodiscard]] static constexpr Place file() noexcept { return Place(Kind::file, 0); }

  /// Returns which of the functions above made the place.
  [[nodiscard]] constexpr Kind kind() const noexcept { return kind_; }
  /// Returns true for the host and for its NUMA nodes.
  [[nodiscard]] constexpr bool is_host() const noexcept {
    return kind_ == Kind::host || kind_ == Kind::host_numa || kind_ == Kind::host_numa_current;
  }
  /// Returns the NUMA node or the number of the device. Returns 0 for the other kinds.
  [[nodiscard]] constexpr std::uint32_t index() const noexcept { return index_; }
  /// Returns the device, or the empty DeviceId if this place is not a device.
  [[nodiscard]] constexpr DeviceId device_id() const noexcept {
    return DeviceId{kind_ == Kind::device ? index_ : 0};
  }

  /// Returns "host", "host numa 1", "host numa current", "device 3" or "file".
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
