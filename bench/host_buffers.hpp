// Memory for the host cases: heap memory and memory of a host device. Every page has been written.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "tern/core/bytes.hpp"
#include "tern/device/device.hpp"

namespace tern::bench {

/// The size for which the goals hold. It is larger than the caches of one core.
inline constexpr std::size_t transfer_bytes = 64 * mib;

struct FreeDeleter {
  void operator()(std::byte* address) const { std::free(address); }
};
using HeapMemory = std::unique_ptr<std::byte, FreeDeleter>;

inline HeapMemory heap_memory(std::size_t bytes, int value) {
  HeapMemory memory(static_cast<std::byte*>(std::malloc(bytes)));
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), value, bytes);
  return memory;
}

struct ReleaseDeleter {
  Device device;
  void operator()(std::byte* address) const { static_cast<void>(device.try_release(address)); }
};
using DeviceMemory = std::unique_ptr<std::byte, ReleaseDeleter>;

/// The device must have host_access.
inline DeviceMemory device_memory(const Device& device, std::size_t bytes, int value) {
  DeviceMemory memory(static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes)),
                      ReleaseDeleter{device});
  std::memset(memory.get(), value, bytes);
  return memory;
}

}  // namespace tern::bench
