#include "memory/arena_layout.hpp"

#include <algorithm>
#include <iterator>

namespace tern {
namespace {

std::size_t aligned(std::size_t offset, std::size_t alignment) noexcept {
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace

std::optional<std::size_t> ArenaLayout::take(std::size_t bytes, std::size_t alignment, Lane lane) {
  for (auto at = pieces_.begin(); at != pieces_.end(); ++at) {
    Piece& piece = at->second;
    if (!piece.is_free || (piece.lane != lane && piece.lane != 0)) continue;
    const std::size_t offset = aligned(at->first, alignment);
    const std::size_t skipped = offset - at->first;
    if (skipped > piece.bytes || piece.bytes - skipped < bytes) continue;
    const std::size_t rest = piece.bytes - skipped - bytes;
    // Both insertions come first: they may throw, and then nothing has changed.
    const auto after = rest == 0 ? pieces_.end()
                                 : pieces_.emplace_hint(std::next(at), offset + bytes,
                                                        Piece{rest, piece.lane, true});
    if (skipped == 0) {
      piece = {bytes, lane, false};
      return offset;
    }
    try {
      pieces_.emplace_hint(std::next(at), offset, Piece{bytes, lane, false});
    } catch (...) {
      if (rest != 0) pieces_.erase(after);
      throw;
    }
    piece.bytes = skipped;
    return offset;
  }
  // Above everything, from the beginning of a free last piece of this lane.
  std::size_t begin = extent_bytes_;
  const auto last = pieces_.empty() ? pieces_.end() : std::prev(pieces_.end());
  const bool joins = last != pieces_.end() && last->second.is_free &&
                     (last->second.lane == lane || last->second.lane == 0);
  if (joins) begin = last->first;
  const std::size_t offset = aligned(begin, alignment);
  if (offset < begin || offset > capacity_bytes_ || capacity_bytes_ - offset < bytes) return {};
  if (joins && offset == begin) {
    last->second = {bytes, lane, false};
  } else {
    pieces_.emplace_hint(pieces_.end(), offset, Piece{bytes, lane, false});
    try {
      if (!joins && offset > begin) pieces_.emplace(begin, Piece{offset - begin, lane, true});
    } catch (...) {
      pieces_.erase(offset);
      throw;
    }
    if (joins) last->second.bytes = offset - begin;
  }
  extent_bytes_ = offset + bytes;
  return offset;
}

void ArenaLayout::put(std::size_t offset, std::optional<Lane> lane) noexcept {
  auto at = pieces_.find(offset);
  if (at == pieces_.end() || at->second.is_free) return;
  at->second.is_free = true;
  if (lane) at->second.lane = *lane;
  join_next(at);
  if (at != pieces_.begin()) {
    if (const auto before = std::prev(at); before->second.is_free) join_next(before);
  }
}

void ArenaLayout::join_next(Pieces::iterator piece) noexcept {
  const auto next = std::next(piece);
  if (next == pieces_.end() || !next->second.is_free || next->second.lane != piece->second.lane) {
    return;
  }
  piece->second.bytes += next->second.bytes;
  pieces_.erase(next);
}

}  // namespace tern
