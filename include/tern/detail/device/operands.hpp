// Not part of the interface.
//
// Operands of calls on devices and streams that programs do not name.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tern/core/place.hpp"

namespace tern {

/// The bytes that a fill repeats: the value of one element, 1 to 16 bytes.
struct Pattern {
  static constexpr std::size_t max_bytes = 16;
  std::byte bytes[max_bytes] = {};
  std::size_t width_bytes = 1;
};

/// One prefetch of a batch.
struct PrefetchRange {
  void* address = nullptr;
  std::size_t bytes = 0;
  Place destination = {};
};

/// What a backend knows about a loaded kernel.
struct KernelInfo {
  static constexpr std::size_t max_parameters = 64;

  enum class Kind : std::uint8_t { unknown, value, address };
  struct Parameter {
    std::uint32_t value_bytes = 0;  // 0 if unknown
    Kind kind = Kind::unknown;
  };

  /// The number of arguments of a launch. Unset if unknown.
  std::optional<std::uint32_t> parameter_count = {};
  /// The first parameters.
  std::array<Parameter, max_parameters> parameters = {};
  /// The number of threads per block with which a one-dimensional launch uses the device best. 0 if
  /// unknown.
  std::uint32_t block_threads = 0;
};

/// A block that a pool hands out from memory it allocated earlier. For checkers and tools.
struct Suballocation {
  const void* address = nullptr;
  std::size_t bytes = 0;
  std::uint64_t generation = 0;
};

}  // namespace tern
