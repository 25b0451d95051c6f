// PendingMemory computes how much memory of a recording is pending over time. Memory is pending
// from its free until the program has seen that the stream has passed the free. Until then only
// this stream can reuse the memory.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/memory_event.hpp"

namespace tern::tools {

class PendingMemory {
 public:
  /// From `time` on, `bytes` of the device are pending.
  struct Change {
    std::uint64_t time = 0, bytes = 0;
    std::uint32_t device = 0;
  };

  /// Adds an event; allocations, frees, and work that was seen complete change the pending memory.
  /// Call it in the order of time. `device` is the index of the event's device in a list of the
  /// caller.
  void add(const trace::MemoryEvent& event, std::uint64_t time, std::uint32_t device);

  /// Returns the changes in the order of time. If there are many, divides the duration into parts
  /// and returns, for each device, the highest and the last value of each part.
  [[nodiscard]] std::vector<Change> changes(std::uint64_t duration) const;

 private:
  struct Freed {
    std::uint64_t bytes = 0, stream = 0, sequence = 0;
    std::uint32_t device = 0;
  };
  using ByAddress = std::map<std::uint64_t, Freed>;

  void begin(std::uint64_t address, const Freed& freed, std::uint64_t time);
  ByAddress::iterator end(ByAddress::iterator freed, std::uint64_t time);
  void end_overlapping(std::uint64_t address, std::uint64_t bytes, std::uint64_t time);
  void end_passed(std::uint64_t stream, std::uint64_t sequence, std::uint64_t time);
  void note(std::uint32_t device, std::uint64_t time);

  ByAddress pending_;  // no two overlap
  /// The frees of each stream in their order: sequence number and address.
  std::unordered_map<std::uint64_t, std::deque<std::pair<std::uint64_t, std::uint64_t>>> by_stream_;
  std::unordered_map<std::uint32_t, std::uint64_t> bytes_;  // by device
  std::vector<Change> changes_;
};

}  // namespace tern::tools
