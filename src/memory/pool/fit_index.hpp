// A FitIndex finds a free range that is large enough in constant time: lists by size, two bitmap
// levels.
//
// The first level is the octave of the size, the second level one of 32 equal parts of the octave.
// Every range in a later list is at least as large as every range in an earlier one. So the first
// non-empty list after the list of the requested size fits without a search. Before it uses that
// list, find() tries a few ranges of the size's own list, which may contain a tighter fit. The
// index links ranges and changes nothing else. Not thread-safe: the pool holds its lock.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor.hpp"

namespace tern::pool {

/// Returns the first offset in the range that is a multiple of `alignment`, a power of two. It may
/// be behind the end of the range.
[[nodiscard]] inline std::uint64_t aligned_begin(const Descriptor& range,
                                                 std::uint64_t alignment) noexcept {
  return (range.offset + alignment - 1) & ~(alignment - 1);
}

class FitIndex {
 public:
  static constexpr std::size_t octaves = 40;
  static constexpr std::size_t parts = 32;
  /// Upper bound on the ranges of the size's own list that find() tries.
  static constexpr int max_looks = 8;
  /// Upper bound on the ranges among which find_lowest() chooses.
  static constexpr int max_looks_for_lowest = 32;

  void insert(Descriptor& range) noexcept;
  void remove(Descriptor& range) noexcept;
  /// Returns a range that holds `granules` at an offset that is a multiple of `alignment` granules,
  /// or null. The range stays in the index. A quick search may miss a range that only just fits. A
  /// thorough search misses nothing, but its time grows with the number of candidate lists.
  enum class Effort : std::uint8_t { quick, thorough };
  [[nodiscard]] Descriptor* find(std::uint64_t granules, std::uint64_t alignment = 1,
                                 Effort effort = Effort::quick) const noexcept;
  /// Returns the range with the lowest address among the first few that fit and are smaller than
  /// `below_granules`, or null. Always choosing the lowest lets higher addresses become empty; the
  /// tightest fit would keep a little memory in use everywhere.
  [[nodiscard]] Descriptor* find_lowest(std::uint64_t granules, std::uint64_t alignment,
                                        std::uint64_t below_granules) const noexcept;
  /// Returns a range for which `matches` returns true, or null. Visits every range.
  template <class Matches>
  [[nodiscard]] Descriptor* find_if(Matches matches) const noexcept {
    for (const auto& octave : lists_) {
      for (Descriptor* range : octave) {
        for (; range != nullptr; range = range->next) {
          if (matches(*range)) return range;
        }
      }
    }
    return nullptr;
  }
  [[nodiscard]] bool empty() const noexcept { return octave_bits_ == 0; }
  /// Returns a lower bound for the size of the largest range: the start of its part of the octave.
  /// Returns 0 if the index is empty.
  [[nodiscard]] std::uint64_t largest() const noexcept;
  /// Returns the exact size of the largest range. Visits all ranges of the last list.
  [[nodiscard]] std::uint64_t exact_largest() const noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
  /// Checks the lists, the bitmaps and the total against a visit of every range. For tests.
  [[nodiscard]] bool check_invariants() const noexcept;

 private:
  struct List {
    std::size_t octave;
    std::size_t part;
  };
  /// Returns the list of a size. Sizes below 32 are in octave 0, one list per size.
  [[nodiscard]] static List list_of(std::uint64_t granules) noexcept {
    if (granules < parts) return {0, static_cast<std::size_t>(granules)};
    const auto width = static_cast<std::size_t>(std::bit_width(granules));
    const std::size_t octave = width - 5;  // 32 to 63 are octave 1
    return {octave, static_cast<std::size_t>(granules >> (octave - 1)) & (parts - 1)};
  }
  [[nodiscard]] static bool fits(const Descriptor& range, std::uint64_t granules,
                                 std::uint64_t alignment) noexcept {
    const std::uint64_t begin = aligned_begin(range, alignment);
    return begin - range.offset <= range.size && range.size - (begin - range.offset) >= granules;
  }

  std::array<std::array<Descriptor*, parts>, octaves> lists_ = {};
  std::array<std::uint32_t, octaves> part_bits_ = {};
  std::uint64_t octave_bits_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace tern::pool
