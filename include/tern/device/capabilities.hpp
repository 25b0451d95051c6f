// Capabilities lists the optional features that a device supports.
//
//   if (device.can(Capability::managed_memory)) ...
//
// A backend declares the capabilities of a device when it opens the device. They never change
// afterwards. A call that needs a missing capability fails with ErrorCode::unsupported before it
// reaches the backend; it is never ignored silently. A plain value.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace tern {

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
  TERN_CAPABILITY(memory_after_fork, "memory calls in a forked child")

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

}  // namespace tern
