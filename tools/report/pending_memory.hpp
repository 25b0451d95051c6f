// PendingMemory computes how much memory of a recording is pending over time. Memory is pending
// from its free until the pool may give it to another stream: until the program has seen that the
// stream has passed the free. Until then only this stream can reuse the memory.
//
// A pool joins adjacent ranges that one stream has freed. The newest free counts for the joined
// range, so a range that grows at its end stays pending although the stream has passed older frees.

#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
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
  /// From `time` on, nothing that this block left is pending.
  struct Passed {
    std::uint64_t time = 0, block = 0;
  };

  /// A block was allocated, so its memory is not pending any more.
  void allocate(const trace::MemoryEvent& event, std::uint64_t time);
  /// A block was freed. `device` is the index of its device, and `block` any number for the block,
  /// both of the caller. Returns whether the memory of the block is pending.
  bool free(const trace::MemoryEvent& event, std::uint64_t time, std::uint32_t device,
            std::uint64_t block);
  /// The program saw that a stream has passed its work. Call all three in the order of time.
  void done_seen(const trace::MemoryEvent& event, std::uint64_t time);

  /// Returns the changes in the order of time. If there are many, divides the duration into parts
  /// and returns, for each device, the highest and the last value of each part.
  [[nodiscard]] std::vector<Change> changes(std::uint64_t duration) const;
  /// Returns the blocks whose memory a stream was seen to pass.
  [[nodiscard]] const std::vector<Passed>& passed() const noexcept { return passed_; }

 private:
  /// Adjacent frees of one stream, from an address to `end`.
  struct Range {
    std::uint64_t end = 0, stream = 0, sequence = 0;
    std::uint32_t resource = 0, device = 0;
  };
  /// What is left of one free, from an address to `end`.
  struct Piece {
    std::uint64_t end = 0, block = 0;
  };
  /// A range by stream and sequence number.
  struct Order {
    std::uint64_t stream = 0, sequence = 0, address = 0;

    friend auto operator<=>(const Order&, const Order&) = default;
  };
  using Ranges = std::map<std::uint64_t, Range>;

  void insert(std::uint64_t address, const Range& range);
  Range remove(Ranges::iterator at);
  void cut(std::uint64_t address, std::uint64_t end, std::uint64_t time);
  void cut_pieces(std::uint64_t address, std::uint64_t end);
  void note(std::uint32_t device, std::uint64_t time);

  Ranges ranges_;                                           // no two overlap
  std::map<std::uint64_t, Piece> pieces_;                   // they fill the ranges
  std::set<Order> order_;                                   // of the ranges
  std::unordered_map<std::uint32_t, std::uint64_t> bytes_;  // by device
  std::vector<Change> changes_;
  std::vector<Passed> passed_;
};

}  // namespace tern::tools
