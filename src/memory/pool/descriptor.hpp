// A descriptor stands for a range of the pool's addresses: a block, or a piece of free memory.
//
// Device memory holds no headers; what the pool knows of it lies here, in host memory. Ranges that
// touch are linked in the order of their addresses, so that free ones can be joined; free ones are
// also linked into the list that offers them. Confined to whoever holds the range's lock.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern::pool {

enum class State : std::uint8_t {
  unused,     // the descriptor itself is free
  live,       // a user has it
  cached,     // freed, and kept for its stream
  in_flight,  // freed, and its stream may still use it
  quiescent,  // free for everybody
  unbacked,   // addresses without memory
};

struct Descriptor {
  std::uint64_t offset = 0;  // in granules, from the beginning of the pool
  std::uint64_t size = 0;    // in granules
  // Neighbours by address; null at the ends.
  Descriptor* before = nullptr;
  Descriptor* after = nullptr;
  // Neighbours in the list that offers it.
  Descriptor* previous = nullptr;
  Descriptor* next = nullptr;
  State state = State::unused;

  [[nodiscard]] std::uint64_t end() const noexcept { return offset + size; }
};

}  // namespace tern::pool
