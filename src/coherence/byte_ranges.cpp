#include "coherence/byte_ranges.hpp"

namespace tern {

std::vector<ByteRange> subtract(std::span<const ByteRange> ranges,
                                std::span<const ByteRange> removed) {
  std::vector<ByteRange> left;
  for (ByteRange one : ranges) {
    for (const ByteRange& hole : removed) {
      if (!overlap(hole, one)) continue;
      if (one.begin < hole.begin) left.push_back({one.begin, hole.begin});
      one.begin = std::min(hole.end, one.end);
    }
    if (one.begin < one.end) left.push_back(one);
  }
  return left;
}

}  // namespace tern
