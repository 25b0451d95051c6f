// ArenaLayout divides a range of offsets into blocks, lowest first.
//
// The layout depends only on the order of the calls, so a rehearsal and a capture that make the
// same calls get the same offsets. Freed offsets belong to a lane, such as a stream: they are used
// again in that lane only, because other streams may still use them. Lane 0 is the host, whose
// freed offsets every lane may use. Not thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace tern {

class ArenaLayout {
 public:
  /// A number that names a stream. 0 is the host.
  using Lane = std::uintptr_t;

  explicit ArenaLayout(std::size_t capacity_bytes) noexcept : capacity_bytes_(capacity_bytes) {}

  /// Returns the lowest offset, a multiple of `alignment`, with `bytes` free for the lane. Returns
  /// nothing if there is none below the capacity. `bytes` is not 0. Throws std::bad_alloc.
  [[nodiscard]] std::optional<std::size_t> take(std::size_t bytes, std::size_t alignment,
                                                Lane lane);
  /// Frees the block at the offset, for the lane, or for the lane that took it. Allocates nothing.
  void put(std::size_t offset, std::optional<Lane> lane = std::nullopt) noexcept;

  /// The end of the highest block so far.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return extent_bytes_; }

 private:
  struct Piece {
    std::size_t bytes = 0;
    Lane lane = 0;
    bool is_free = false;
  };
  using Pieces = std::map<std::size_t, Piece>;

  // Joins a free piece with the next one, if that is free for the same lane.
  void join_next(Pieces::iterator piece) noexcept;

  const std::size_t capacity_bytes_;
  std::size_t extent_bytes_ = 0;
  Pieces pieces_;  // by offset; they cover everything below extent_bytes_
};

}  // namespace tern
