// Two-level segregated lists of free ranges.

#include "memory/pool/fit_index.hpp"

#include <algorithm>
#include <limits>

namespace tern::pool {

void FitIndex::insert(Descriptor& range) noexcept {
  const auto [octave, part] = list_of(range.size);
  Descriptor*& head = lists_[octave][part];
  range.previous = nullptr;
  range.next = head;
  if (head != nullptr) head->previous = &range;
  head = &range;
  part_bits_[octave] |= 1u << part;
  octave_bits_ |= std::uint64_t{1} << octave;
  total_ += range.size;
}

void FitIndex::remove(Descriptor& range) noexcept {
  const auto [octave, part] = list_of(range.size);
  if (range.next != nullptr) range.next->previous = range.previous;
  (range.previous != nullptr ? range.previous->next : lists_[octave][part]) = range.next;
  range.previous = range.next = nullptr;
  total_ -= range.size;
  if (lists_[octave][part] != nullptr) return;
  part_bits_[octave] &= ~(1u << part);
  if (part_bits_[octave] == 0) octave_bits_ &= ~(std::uint64_t{1} << octave);
}

Descriptor* FitIndex::find(std::uint64_t granules, std::uint64_t alignment,
                           Effort effort) const noexcept {
  auto [octave, part] = list_of(granules);
  if (octave >= octaves) return nullptr;
  int looks = effort == Effort::quick ? max_looks : std::numeric_limits<int>::max();
  // All ranges from the next list on are large enough; with an alignment, only those that are
  // larger by the alignment. In the lists between, a range may happen to fit, so a quick search
  // tries the first of each.
  while (true) {
    for (Descriptor* at = lists_[octave][part]; at != nullptr && looks > 0; at = at->next) {
      if (fits(*at, granules, alignment)) return at;
      --looks;
    }
    if (effort == Effort::quick) looks = 1;
    if (++part == parts) {
      part = 0;
      ++octave;
    }
    if (octave >= octaves) return nullptr;
    std::uint32_t later = part_bits_[octave] & (~std::uint32_t{0} << part);
    if (later == 0) {
      if (octave + 1 >= octaves) return nullptr;
      const std::uint64_t more = octave_bits_ & (~std::uint64_t{0} << (octave + 1));
      if (more == 0) return nullptr;
      octave = static_cast<std::size_t>(std::countr_zero(more));
      later = part_bits_[octave];
    }
    part = static_cast<std::size_t>(std::countr_zero(later));
  }
}

Descriptor* FitIndex::find_lowest(std::uint64_t granules, std::uint64_t alignment,
                                  std::uint64_t below_granules) const noexcept {
  auto [octave, part] = list_of(granules);
  Descriptor* lowest = nullptr;
  int looks = max_looks_for_lowest;
  for (; octave < octaves; ++octave, part = 0) {
    std::uint32_t later = part_bits_[octave] & (~std::uint32_t{0} << part);
    for (; later != 0; later &= later - 1) {
      Descriptor* at = lists_[octave][static_cast<std::size_t>(std::countr_zero(later))];
      for (; at != nullptr; at = at->next) {
        // Sizes only increase from list to list, so nothing below `below_granules` follows, apart
        // from ranges of this list.
        if (looks-- == 0 || at->size >= below_granules) return lowest;
        if (lowest != nullptr && lowest->offset < at->offset) continue;
        if (fits(*at, granules, alignment)) lowest = at;
      }
    }
  }
  return lowest;
}

std::uint64_t FitIndex::exact_largest() const noexcept {
  if (octave_bits_ == 0) return 0;
  const auto octave = static_cast<std::size_t>(std::bit_width(octave_bits_)) - 1;
  const auto part = static_cast<std::size_t>(std::bit_width(part_bits_[octave])) - 1;
  std::uint64_t most = 0;
  for (const Descriptor* at = lists_[octave][part]; at != nullptr; at = at->next) {
    most = std::max(most, at->size);
  }
  return most;
}

std::uint64_t FitIndex::largest() const noexcept {
  if (octave_bits_ == 0) return 0;
  const auto octave = static_cast<std::size_t>(std::bit_width(octave_bits_)) - 1;
  const auto part = static_cast<std::size_t>(std::bit_width(part_bits_[octave])) - 1;
  if (octave == 0) return part;
  return (std::uint64_t{parts} + part) << (octave - 1);
}

bool FitIndex::check_invariants() const noexcept {
  std::uint64_t total = 0;
  for (std::size_t octave = 0; octave < octaves; ++octave) {
    for (std::size_t part = 0; part < parts; ++part) {
      const Descriptor* previous = nullptr;
      for (const Descriptor* at = lists_[octave][part]; at != nullptr; at = at->next) {
        const List home = list_of(at->size);
        if (home.octave != octave || home.part != part || at->previous != previous) return false;
        total += at->size;
        previous = at;
      }
      const bool has_bit = (part_bits_[octave] >> part & 1u) != 0;
      if (has_bit != (lists_[octave][part] != nullptr)) return false;
    }
    const bool has_bit = (octave_bits_ >> octave & 1u) != 0;
    if (has_bit != (part_bits_[octave] != 0)) return false;
  }
  return total == total_;
}

}  // namespace tern::pool
