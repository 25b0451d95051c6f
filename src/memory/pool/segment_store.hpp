// A SegmentStore holds the memory of a pool without pages: segments, each one driver allocation.
//
// Not thread-safe: the pool holds its growth lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/pool/block_poisoning.hpp"
#include "memory/pool/size_class.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern::pool {

class SegmentStore {
 public:
  static constexpr std::size_t segment_bytes = std::size_t{64} << 20;

  SegmentStore(Device device, MemoryKind kind, BlockPoisoning poisoning = {}) noexcept
      : device_(std::move(device)), kind_(kind), poisoning_(poisoning) {}
  /// Releases all segments; errors of the driver are ignored.
  ~SegmentStore();
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  /// Allocates a segment from the driver. Returns its granule offset.
  [[nodiscard]] Result<std::uint64_t> try_add(std::size_t bytes, std::size_t alignment) noexcept;
  /// Releases the segment that begins at `offset` to the driver.
  [[nodiscard]] Result<void> try_release(std::uint64_t offset) noexcept;

  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return driver_calls_; }

 private:
  struct Segment {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  const Device device_;
  const MemoryKind kind_;
  const BlockPoisoning poisoning_;
  std::vector<Segment> segments_;
  std::size_t held_bytes_ = 0;
  std::uint64_t driver_calls_ = 0;
};

}  // namespace tern::pool
