// What a device says about itself: its properties and capabilities, its memory, and the counts of
// what it was asked to do. All types here are plain values.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/place.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

// MemoryKind names the kind of memory at an address, which decides who may access it.

/// - `host`: host memory that the device does not know.
/// - `pinned`: page-locked host memory that the device allocated.
/// - `registered`: existing host memory that was page-locked afterwards.
/// - `device`: memory of the device.
/// - `managed`: memory that host and device share through one address.
/// - `mapped`: pages mapped into a reserved address range.
/// - `file`: the bytes of a file, read-only. Only buffers have this kind, see open_file().
///
/// A Device allocates `device`, `pinned` and `managed`. Device::try_pointer_info() returns any
/// kind.
enum class MemoryKind : std::uint8_t { host, pinned, registered, device, managed, mapped, file };

/// Returns the enumerator as text.
[[nodiscard]] constexpr std::string_view name(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::host:
      return "host";
    case MemoryKind::pinned:
      return "pinned";
    case MemoryKind::registered:
      return "registered";
    case MemoryKind::device:
      return "device";
    case MemoryKind::managed:
      return "managed";
    case MemoryKind::mapped:
      return "mapped";
    case MemoryKind::file:
      return "file";
  }
  return "unknown";
}

// Capabilities lists the optional features that a device supports.
//
//   if (device.can(Capability::managed_memory)) ...
//
// A backend declares the capabilities of a device when it opens the device. They never change
// afterwards. A call that needs a missing capability fails with ErrorCode::unsupported before it
// reaches the backend; it is never ignored silently. A plain value.

/// The list of all capabilities, one line each: TERN_CAPABILITY(enumerator, meaning). `tern info`
/// and error messages print the meaning.
#define TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)                                                \
  TERN_CAPABILITY(host_access, "the host can read and write device memory")                      \
  TERN_CAPABILITY(pinned_memory, "page-locked host memory")                                      \
  TERN_CAPABILITY(registered_memory, "page-locking existing host memory")                        \
  TERN_CAPABILITY(managed_memory, "one pointer for host and device")                             \
  TERN_CAPABILITY(concurrent_managed, "host and device may use managed memory at the same time") \
  TERN_CAPABILITY(prefetch, "prefetching managed memory")                                        \
  TERN_CAPABILITY(advice, "hints on managed memory")                                             \
  TERN_CAPABILITY(discard, "discarding the contents of managed memory")                          \
  TERN_CAPABILITY(virtual_memory, "address ranges and pages, mapped and remapped")               \
  TERN_CAPABILITY(stream_ordered_memory, "stream-ordered allocation and free")                   \
  TERN_CAPABILITY(host_functions, "host functions in stream order")                              \
  TERN_CAPABILITY(event_timing, "time between two events")                                       \
  TERN_CAPABILITY(kernels, "launching work")                                                     \
  TERN_CAPABILITY(float64, "kernels that compute with 64-bit floats")                            \
  TERN_CAPABILITY(peer_copies, "copies between devices of this backend")                         \
  TERN_CAPABILITY(borrowed_streams, "submitting to borrowed streams")                            \
  TERN_CAPABILITY(memory_after_fork, "memory calls in a forked child")                           \
  TERN_CAPABILITY(shareable_memory, "sharing memory with other processes")                       \
  TERN_CAPABILITY(graphs, "capturing work into graphs and launching it again")

/// One optional feature. The list above has the meaning of each: `host_access`, `pinned_memory`,
/// `registered_memory`, `managed_memory`, `concurrent_managed`, `prefetch`, `advice`, `discard`,
/// `virtual_memory`, `stream_ordered_memory`, `host_functions`, `event_timing`, `kernels`,
/// `float64`, `peer_copies`, `borrowed_streams`, `memory_after_fork`, `shareable_memory`, `graphs`.
enum class Capability : std::uint8_t {
#define TERN_CAPABILITY(enumerator, meaning) enumerator,
  TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
};

/// Every capability, in the order of the list.
inline constexpr auto all_capabilities = std::to_array<Capability>({
#define TERN_CAPABILITY(enumerator, meaning) Capability::enumerator,
    TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
});

/// Returns the enumerator as text, such as "managed_memory".
[[nodiscard]] constexpr std::string_view name(Capability capability) noexcept {
  switch (capability) {
#define TERN_CAPABILITY(enumerator, meaning) \
  case Capability::enumerator:               \
    return #enumerator;
    TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
  }
  return "unknown";
}

/// Returns what the capability allows, as a phrase for people.
[[nodiscard]] constexpr std::string_view meaning(Capability capability) noexcept {
  switch (capability) {
#define TERN_CAPABILITY(enumerator, meaning) \
  case Capability::enumerator:               \
    return meaning;
    TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
  }
  return "unknown";
}

/// A set of capabilities, stored as bits.
class Capabilities {
 public:
  /// The empty set.
  constexpr Capabilities() noexcept = default;
  constexpr Capabilities(std::initializer_list<Capability> list) noexcept {
    for (const Capability capability : list) bits_ |= bit(capability);
  }

  /// Returns whether the set contains the capability.
  [[nodiscard]] constexpr bool has(Capability capability) const noexcept {
    return (bits_ & bit(capability)) != 0;
  }
  /// Returns a copy of this set with the capability added.
  [[nodiscard]] constexpr Capabilities with(Capability capability) const noexcept {
    Capabilities more = *this;
    more.bits_ |= bit(capability);
    return more;
  }
  /// Returns a copy of this set with the capability removed.
  [[nodiscard]] constexpr Capabilities without(Capability capability) const noexcept {
    Capabilities rest = *this;
    rest.bits_ &= ~bit(capability);
    return rest;
  }

  friend constexpr bool operator==(Capabilities, Capabilities) noexcept = default;

 private:
  static constexpr std::uint32_t bit(Capability capability) noexcept {
    return std::uint32_t{1} << static_cast<unsigned>(capability);
  }
  static_assert(all_capabilities.size() <= 32);

  std::uint32_t bits_ = 0;
};

/// Properties of a device that do not change while it is open.
struct DeviceInfo {
  std::string backend;  // "host"
  std::string spec;     // canonical spec, which opens this device again
  std::string name;     // the model of the CPU or GPU, for people
  std::string driver;   // version of the driver, as text
  Capabilities capabilities;
  std::size_t total_bytes = 0;
  std::size_t alignment = 64;              // minimum alignment of every allocation
  std::size_t max_alignment = 256u << 20;  // maximum alignment of a request
  std::size_t page_bytes = 0;              // page size of virtual memory; 0 if none
  std::uint32_t processors = 0;            // cores, multiprocessors, compute units
  std::uint32_t compute_major = 0, compute_minor = 0;
  std::uint32_t max_kernel_arguments = 0;  // 0: no limit
  bool wants_notes = false;                // the device has a checker that uses notes
  bool is_host = false;                    // device memory is host memory
};

/// Device memory, of all processes.
struct MemoryInfo {
  std::size_t free_bytes = 0;   // what the driver could allocate now
  std::size_t total_bytes = 0;  // used or not
};

/// What the device knows about an address: its `kind`. `base` and `bytes` describe the allocation
/// that contains it. They are zero for host memory that the device does not know.
struct PointerInfo {
  MemoryKind kind = MemoryKind::host;
  void* base = nullptr;
  std::size_t bytes = 0;
};

/// The settings in force and the memory of the pool. Peaks are high-water marks since the last
/// reset.
struct DriverPoolInfo {
  std::size_t max_bytes = 0;  // 0: the driver decides
  std::size_t release_threshold_bytes = 0;
  std::size_t reserved_bytes = 0, peak_reserved_bytes = 0;  // allocated from the system
  std::size_t used_bytes = 0, peak_used_bytes = 0;          // allocated from the pool
};

/// Whether kernels of one device can access memory of another device.
enum class PeerAccess : std::uint8_t {
  unavailable,  // cannot be enabled
  disabled,
  enabled,
};

/// The hints in force for a range of managed memory. From a device, a hint that differs between
/// pages is unset. From Hints::query(), it is mixed.
struct ManagedInfo {
  bool is_read_mostly = false;          // for all pages
  std::vector<Place> accessed_by = {};  // devices and host that have all pages mapped
  std::optional<Place> preferred = {};  // the preferred location
  /// The destination of the last prefetch, which is not always where the pages are.
  std::optional<Place> last_prefetch = {};
  /// Set by Hints::query() if parts of the range have different settings.
  bool is_read_mostly_mixed = false, is_preferred_mixed = false;
  bool is_accessed_by_mixed = false, is_last_prefetch_mixed = false;

  /// Returns true if `accessed_by` contains the place.
  [[nodiscard]] TERN_EXPORT bool is_accessed_by(Place place) const noexcept;
};

// DeviceActivity counts what a device was asked to do: events, waits and launches.
//
// Counting is always on and costs one atomic addition per call. Device::activity() returns the
// counts without a driver call.

/// Successful calls on all streams of a device since the device was opened. A plain value. Subtract
/// two values to see what a piece of code did.
struct DeviceActivity {
  /// Events recorded, including those that the library records for marks.
  std::uint64_t events = 0;
  /// Waits that one stream queued for another stream.
  std::uint64_t stream_waits = 0;
  /// Waits of host threads for a mark, an event, a stream or the whole device.
  std::uint64_t host_waits = 0;
  /// Kernels launched.
  std::uint64_t launches = 0;

  friend bool operator==(const DeviceActivity&, const DeviceActivity&) noexcept = default;
};

}  // namespace tern
