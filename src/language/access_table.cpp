#include "language/access_table.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

namespace tern::language {
namespace {

std::uint64_t begin_of(const AccessTable::Range& range) {
  return reinterpret_cast<std::uintptr_t>(range.address);
}
std::uint64_t end_of(const AccessTable::Range& range) {
  return begin_of(range) + range.elements * range.element_bytes;
}

}  // namespace

AccessTable::AccessTable(std::span<const Range> ranges) : stamps_(ranges.size()) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].elements > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return begin_of(ranges[a]) < begin_of(ranges[b]);
  });
  // Ranges that overlap form one region with common stamps.
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    const std::uint64_t begin = begin_of(ranges[order[first]]);
    std::uint64_t end = begin;
    // One stamp covers the largest piece that no element begins or ends inside of.
    std::uint64_t piece = 0;
    bool is_read = false, is_changed = false, is_atomic = false;
    for (; last < order.size(); ++last) {
      const Range& range = ranges[order[last]];
      if (last > first && begin_of(range) >= end) break;
      end = std::max(end, end_of(range));
      piece =
          std::gcd(std::gcd(piece, std::uint64_t{range.element_bytes}), begin_of(range) - begin);
      is_read |= range.is_read;
      is_changed |= range.is_written || range.is_atomic;
      is_atomic |= range.is_atomic;
    }
    if (!is_changed) continue;
    const std::uint64_t cells = (end - begin) / piece;
    AccessStamp* const write = column(cells);
    AccessStamp* const read = is_read ? column(cells) : nullptr;
    AccessStamp* const atomic = is_atomic ? column(cells) : nullptr;
    for (std::size_t i = first; i < last; ++i) {
      const Range& range = ranges[order[i]];
      const std::uint64_t offset = (begin_of(range) - begin) / piece;
      Stamps& stamps = stamps_[order[i]];
      stamps.write = write + offset;
      stamps.read = is_read ? read + offset : nullptr;
      stamps.atomic = is_atomic ? atomic + offset : nullptr;
      stamps.per_element = static_cast<std::uint32_t>(range.element_bytes / piece);
    }
  }
}

AccessTable::Stamps AccessTable::shared_stamps(std::uint64_t elements) {
  return {.write = column(elements),
          .read = column(elements),
          .atomic = column(elements),
          .is_shared = true};
}

AccessStamp* AccessTable::column(std::uint64_t cells) {
  // calloc, because the system provides zeroed pages for a large column only when they are touched.
  std::unique_ptr<AccessStamp[], Free> made(static_cast<AccessStamp*>(
      std::calloc(std::max<std::uint64_t>(cells, 1), sizeof(AccessStamp))));
  if (made == nullptr) throw std::bad_alloc();
  columns_.push_back(std::move(made));
  return columns_.back().get();
}

}  // namespace tern::language
