#include "backends/sim/range_allocator.hpp"

#include <algorithm>
#include <iterator>

namespace tern::sim {
namespace {

/// How many freed ranges are kept in order; older ones are found by address.
constexpr std::size_t recent_ranges = 64;

}  // namespace

std::optional<std::uint64_t> RangeAllocator::cut(Free::iterator range, std::uint64_t bytes,
                                                 std::uint64_t alignment, std::uint64_t least) {
  const auto [begin, size] = *range;
  const std::uint64_t start = std::max(begin, least);
  const std::uint64_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned < begin || aligned - begin > size || size - (aligned - begin) < bytes) {
    return std::nullopt;
  }
  const std::uint64_t end = begin + size;
  free_.erase(range);
  if (aligned > begin) free_.emplace(begin, aligned - begin);
  if (end > aligned + bytes) free_.emplace(aligned + bytes, end - aligned - bytes);
  used_ += bytes;
  fresh_ = std::max(fresh_, aligned + bytes);
  return aligned;
}

std::optional<std::uint64_t> RangeAllocator::take(std::uint64_t bytes, std::uint64_t alignment) {
  if (bytes > total_) return std::nullopt;
  bytes = rounded(bytes);
  alignment = std::max(alignment, granule);
  if (reuse_ == Reuse::hostile) {
    for (std::size_t i = recent_.size(); i > 0; --i) {
      // A freed range may have been joined with its neighbours: find the range that contains it
      // now.
      Range& freed = recent_[i - 1];
      auto range = free_.upper_bound(freed.begin);
      if (range == free_.begin()) continue;
      --range;
      const std::optional<std::uint64_t> offset = cut(range, bytes, alignment, freed.begin);
      if (!offset) continue;
      // The rest of the range counts as freed at the same time.
      freed.begin = *offset + bytes;
      if (freed.begin >= freed.end)
        recent_.erase(recent_.begin() + static_cast<std::ptrdiff_t>(i - 1));
      return offset;
    }
  } else if (!free_.empty()) {
    if (const auto offset = cut(std::prev(free_.end()), bytes, alignment, fresh_)) return offset;
  }
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (const auto offset = cut(range, bytes, alignment, 0)) return offset;
  }
  return std::nullopt;
}

void RangeAllocator::give(std::uint64_t offset, std::uint64_t bytes) {
  bytes = rounded(bytes);
  used_ -= bytes;
  // One entry per range, so that a block that is freed repeatedly does not displace all others.
  std::erase_if(recent_, [&](const Range& freed) {
    return freed.begin >= offset && freed.begin < offset + bytes;
  });
  recent_.push_back({offset, offset + bytes});
  if (recent_.size() > recent_ranges) recent_.erase(recent_.begin());
  const auto range = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(range); next != free_.end() && next->first == offset + bytes) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    if (const auto before = std::prev(range); before->first + before->second == offset) {
      before->second += range->second;
      free_.erase(range);
    }
  }
}

}  // namespace tern::sim
