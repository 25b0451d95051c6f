// The state of one simulated device: its memory and its allocations.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/sim/alias_memory.hpp"
#include "backends/sim/page_table.hpp"
#include "backends/sim/range_allocator.hpp"
#include "tern/core/error.hpp"
#include "tern/core/place.hpp"
#include "tern/device/device_info.hpp"

namespace tern::sim {

/// A live allocation.
struct SimBlock {
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  std::uint64_t generation = 0;
};

/// A stream-ordered free that its stream has not reached yet.
struct PendingRelease {
  std::size_t stream = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::uint64_t generation = 0;  // of the block: the range may have had several owners
};

struct SimDevice {
  std::string name = {};  // "sim:0"
  DeviceId id = {};       // the device id in the process
  std::uint32_t space = 1;
  std::unique_ptr<AliasMemory> memory;
  std::optional<RangeAllocator> allocator;
  std::map<std::uint64_t, SimBlock> blocks;  // by offset
  std::vector<PendingRelease> pending;       // oldest first
  std::optional<PageTable> pages;
  std::size_t default_stream = 0;
  // Events for what ended streams, and ended blocking streams, have waited for, after their numbers
  // were reused; 0 before that.
  std::uint64_t retired_event = 0;
  std::uint64_t retired_blocking_event = 0;
  bool default_must_learn = false;  // the default stream must wait for the second first
  std::array<std::uint64_t, 3> engine_time_ns = {};  // uploads, downloads, everything else
  std::optional<Failure> loss;                       // why the device is lost
};

}  // namespace tern::sim
