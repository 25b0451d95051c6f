// A Block is memory that a resource has handed out: an address, its size, its device, and a
// generation that tells this block from every other that ever was.
//
// It is a plain value of 32 bytes that owns nothing; OwnedBlock does. What else is known of it, its
// stream, tag and state, is found through its generation, and so is a mistake: a block that was
// freed before, or belongs to somebody else, is refused and never undefined.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tern/core/place.hpp"

namespace tern {

/// Which of all blocks of the process: a place in one table, and how often that place was used.
class Generation {
 public:
  static constexpr unsigned slot_bits = 28, count_bits = 36;

  /// No block.
  constexpr Generation() noexcept = default;
  constexpr Generation(std::uint32_t slot, std::uint64_t count) noexcept
      : value_(count << slot_bits | slot) {}

  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>(value_ & ((std::uint64_t{1} << slot_bits) - 1));
  }
  /// From 1; the generation in which a place has been used so many times.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return value_ >> slot_bits; }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(const Generation&, const Generation&) noexcept = default;
  friend constexpr auto operator<=>(const Generation&, const Generation&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

struct Block {
  /// Null for a block of no bytes, which needs no freeing.
  void* address = nullptr;
  /// Granted, which may be more than was asked for.
  std::size_t bytes = 0;
  DeviceId device = {};
  Generation generation = {};

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return bool(generation); }
  friend constexpr bool operator==(const Block&, const Block&) noexcept = default;
};

static_assert(sizeof(Block) == 32 && std::is_trivially_copyable_v<Block>);

enum class BlockState : std::uint8_t {
  freed,  // or never was
  live,
  retired,      // freed, but its stream may still use it
  quarantined,  // freed, and held back to catch late uses
};

}  // namespace tern
