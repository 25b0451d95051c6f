// Finds a free range that is large enough, in constant time: lists by size, two levels of bitmaps.
//
// The first level is the octave of the size, the second one of 32 equal parts of it. Every range in
// a later list is at least as large as any in an earlier one, so the first list behind the one a
// size belongs to fits without a search. Before that is used, a few ranges of the size's own list
// are tried, where a tighter one may be. Offers ranges and changes nothing else in them. Confined.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor.hpp"

namespace tern::pool {

class FitIndex {
 public:
  static constexpr std::size_t octaves = 40;
  static constexpr std::size_t parts = 32;
  /// How many ranges of a size's own list are looked at.
  static constexpr int most_looks = 8;
  /// How many ranges the lowest is chosen of.
  static constexpr int most_looks_for_lowest = 32;

  void insert(Descriptor& range) noexcept;
  void remove(Descriptor& range) noexcept;
  /// A range of at least so many granules, in which they fit at an offset that is a multiple of
  /// `alignment` granules; null if there is none. It stays in the index. A quick look may miss one
  /// that just fits; a thorough one does not, and takes as long as there are such lists.
  enum class Effort : std::uint8_t { quick, thorough };
  [[nodiscard]] Descriptor* find(std::uint64_t granules, std::uint64_t alignment = 1,
                                 Effort effort = Effort::quick) const noexcept;
  /// Of the ranges that fit and have fewer than `below_granules`, the one with the lowest address
  /// of the first few; null if there is none. Whoever always takes that one leaves the higher
  /// addresses to empty, where the tightest fit keeps a little in use everywhere.
  [[nodiscard]] Descriptor* find_lowest(std::uint64_t granules, std::uint64_t alignment,
                                        std::uint64_t below_granules) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return octave_bits_ == 0; }
  /// The size of the largest range, to the part of an octave it lies in: at least this many
  /// granules can be had. 0 if there are none.
  [[nodiscard]] std::uint64_t largest() const noexcept;
  /// The same to the granule; looks at all ranges of the last list.
  [[nodiscard]] std::uint64_t exact_largest() const noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
  /// Are lists, bitmaps and the total what a look at every range says? For tests.
  [[nodiscard]] bool is_well() const noexcept;

 private:
  struct List {
    std::size_t octave;
    std::size_t part;
  };
  /// The list a size belongs to. Sizes below 32 are in the first octave, one list each.
  [[nodiscard]] static List list_of(std::uint64_t granules) noexcept {
    if (granules < parts) return {0, static_cast<std::size_t>(granules)};
    const auto width = static_cast<std::size_t>(std::bit_width(granules));
    const std::size_t octave = width - 5;  // 32 to 63 are octave 1
    return {octave, static_cast<std::size_t>(granules >> (octave - 1)) & (parts - 1)};
  }
  [[nodiscard]] static bool fits(const Descriptor& range, std::uint64_t granules,
                                 std::uint64_t alignment) noexcept {
    const std::uint64_t begin = (range.offset + alignment - 1) / alignment * alignment;
    return begin - range.offset <= range.size && range.size - (begin - range.offset) >= granules;
  }

  std::array<std::array<Descriptor*, parts>, octaves> lists_ = {};
  std::array<std::uint32_t, octaves> part_bits_ = {};
  std::uint64_t octave_bits_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace tern::pool
