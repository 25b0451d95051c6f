// Not part of the interface.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern {

/// A range of bytes in a spill file. It is a plain value: its holder calls SpillFile::release()
/// once.
struct SpillExtent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::uint64_t checksum = 0;
};

}  // namespace tern
