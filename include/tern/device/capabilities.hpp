// What a device can do, as declared flags.
//
// A backend declares each ability once, when a device is opened, and it never changes. Asking for
// an undeclared one is refused with ErrorCode::unsupported before the backend is called; it is
// never a silent no-op. A plain value.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace tern {

/// One line per ability: TERN_CAPABILITY(enumerator, what it means).
#define TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)                                                \
  TERN_CAPABILITY(host_access, "the host can read and write device memory")                      \
  TERN_CAPABILITY(pinned_memory, "page-locked host memory")                                      \
  TERN_CAPABILITY(registered_memory, "page-locking host memory that exists")                     \
  TERN_CAPABILITY(managed_memory, "one pointer for host and device")                             \
  TERN_CAPABILITY(concurrent_managed, "host and device may use managed memory at the same time") \
  TERN_CAPABILITY(prefetch, "moving managed memory ahead of its use")                            \
  TERN_CAPABILITY(advice, "hints on managed memory")                                             \
  TERN_CAPABILITY(discard, "giving up the bytes of managed memory")                              \
  TERN_CAPABILITY(virtual_memory, "address ranges and pages, mapped and remapped")               \
  TERN_CAPABILITY(stream_ordered_memory, "allocation and release in stream order")               \
  TERN_CAPABILITY(host_functions, "calling the host in stream order")                            \
  TERN_CAPABILITY(event_timing, "time between two events")                                       \
  TERN_CAPABILITY(kernels, "launching work")                                                     \
  TERN_CAPABILITY(float64, "kernels that compute with floats of 64 bits")                        \
  TERN_CAPABILITY(peer_copies, "copies between devices of this backend")                         \
  TERN_CAPABILITY(borrowed_streams, "submitting to streams that others made")                    \
  TERN_CAPABILITY(memory_after_fork, "memory calls work in a forked child")

enum class Capability : std::uint8_t {
#define TERN_CAPABILITY(enumerator, meaning) enumerator,
  TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
};

inline constexpr auto all_capabilities = std::to_array<Capability>({
#define TERN_CAPABILITY(enumerator, meaning) Capability::enumerator,
    TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
});

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

class Capabilities {
 public:
  constexpr Capabilities() noexcept = default;
  constexpr Capabilities(std::initializer_list<Capability> list) noexcept {
    for (const Capability capability : list) bits_ |= bit(capability);
  }

  [[nodiscard]] constexpr bool has(Capability capability) const noexcept {
    return (bits_ & bit(capability)) != 0;
  }
  [[nodiscard]] constexpr Capabilities with(Capability capability) const noexcept {
    Capabilities more = *this;
    more.bits_ |= bit(capability);
    return more;
  }
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
