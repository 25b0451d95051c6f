// A Block describes memory that a resource has allocated: address, granted size, device and
// generation.
//
//   Block block = resource->allocate({.bytes = 4096, .stream = stream});
//   resource->deallocate(block, stream);
//
// A Block is a plain 32-byte value. It does not own the memory; OwnedBlock does. The generation
// identifies the block for the life of the process. The library uses the generation to look up the
// block's stream, tag and state (block_info.hpp). It also uses the generation to reject a bad free:
// freeing a block twice, or on a resource that did not allocate it, returns an error and is never
// undefined behaviour.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tern/core/place.hpp"

namespace tern {

/// Identifies one block among all blocks of the process. A generation is a slot in the process-wide
/// block table plus the number of times that slot has been used.
class Generation {
 public:
  static constexpr unsigned slot_bits = 28, count_bits = 36;

  /// Constructs the null generation, which identifies no block and converts to false.
  constexpr Generation() noexcept = default;
  /// Combines a slot (28 bits) and a use count (36 bits) into one 64-bit value.
  constexpr Generation(std::uint32_t slot, std::uint64_t count) noexcept
      : value_(count << slot_bits | slot) {}

  /// The slot in the block table. Slots are reused, each time with a larger count.
  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>(value_ & ((std::uint64_t{1} << slot_bits) - 1));
  }
  /// The number of times the slot has been used, including this time. Starts at 1.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return value_ >> slot_bits; }
  /// Slot and count packed into one value. 0 for the null generation.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(const Generation&, const Generation&) noexcept = default;
  friend constexpr auto operator<=>(const Generation&, const Generation&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

/// Memory that a resource has allocated. A default-constructed Block is empty and converts to
/// false; deallocating an empty block succeeds and does nothing.
struct Block {
  /// The address in the memory of the device. Null for a block of 0 bytes, which need not be freed.
  void* address = nullptr;
  /// The granted size, which may be larger than the requested size.
  std::size_t bytes = 0;
  DeviceId device = {};
  Generation generation = {};

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return bool(generation); }
  friend constexpr bool operator==(const Block&, const Block&) noexcept = default;
};

static_assert(sizeof(Block) == 32 && std::is_trivially_copyable_v<Block>);

/// The state of a block, as seen through its generation.
enum class BlockState : std::uint8_t {
  freed,        // the block is freed, or the generation was never issued
  live,         // allocated and not freed
  retired,      // freed, but the stream may still use the memory
  quarantined,  // freed, but kept by a GuardResource to catch late writes
};

}  // namespace tern
