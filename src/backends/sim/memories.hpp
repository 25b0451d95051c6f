// All memory of a simulation, found by the addresses that users hold.
//
// Device memory is accessed through its alias, host memory directly. Managed memory migrates to its
// user. Refers to the devices, the host memory and the managed pages, which outlive this object.
// Not thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backends/sim/host_space.hpp"
#include "backends/sim/managed_pages.hpp"
#include "backends/sim/sim_device.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::sim {

class Memories {
 public:
  using Devices = std::vector<std::unique_ptr<SimDevice>>;

  Memories(const Devices& devices, HostSpace& host, ManagedPages& managed) noexcept
      : devices_(devices), host_(host), managed_(managed) {}

  /// Returns the device and offset of an address, or nothing for host memory.
  [[nodiscard]] TERN_EXPORT std::optional<std::pair<std::uint32_t, std::uint64_t>> locate(
      const void* address) const noexcept;
  [[nodiscard]] AliasMemory& of_device(std::uint32_t index) const {
    return *devices_[index]->memory;
  }

  /// Forbids all access to users' addresses of devices.
  void close_all() const;

  /// Returns the address through which a device accesses the byte.
  [[nodiscard]] std::byte* reach(const void* address) const noexcept;
  /// Call before a device reads the range or writes a part of it: unwritten bytes get their
  /// pattern.
  void prepare(const void* address, std::size_t bytes) const;
  /// Call before a device overwrites the whole range.
  void forget(const void* address, std::size_t bytes) const;
  /// Migrates the range if it is managed memory. Returns how many bytes had to migrate.
  std::uint64_t migrate(const void* address, std::size_t bytes, Place who, bool writes) const;

 private:
  const Devices& devices_;
  HostSpace& host_;
  ManagedPages& managed_;
};

}  // namespace tern::sim
