// All memory of a simulated world, found by the addresses that users hold.
//
// Device memory is reached through its alias, host memory directly; managed memory follows whoever
// uses it. Refers to the devices, the host's memory and its managed pages, which outlive it.
// Confined.

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
#include "tern/core/visibility.hpp"

namespace tern::sim {

class Memories {
 public:
  using Devices = std::vector<std::unique_ptr<SimDevice>>;

  Memories(const Devices& devices, HostSpace& host, ManagedPages& managed) noexcept
      : devices_(devices), host_(host), managed_(managed) {}

  /// Which device and offset the address belongs to; nothing for host memory.
  [[nodiscard]] TERN_EXPORT std::optional<std::pair<std::uint32_t, std::uint64_t>> locate(
      const void* address) const noexcept;
  [[nodiscard]] AliasMemory& of_device(std::uint32_t index) const {
    return *devices_[index]->memory;
  }

  /// Nobody may touch users' addresses of any device.
  void close_all() const;

  /// The byte as a device reaches it.
  [[nodiscard]] std::byte* reach(const void* address) const noexcept;
  /// Before a device reads it, or writes a part of it: what was never written shows its pattern.
  void prepare(const void* address, std::size_t bytes) const;
  /// Before a device overwrites all of it.
  void forget(const void* address, std::size_t bytes) const;
  /// Somebody uses the range, if it is managed memory; gives how many bytes had to come for that.
  std::uint64_t migrate(const void* address, std::size_t bytes, Place who, bool writes) const;

 private:
  const Devices& devices_;
  HostSpace& host_;
  ManagedPages& managed_;
};

}  // namespace tern::sim
