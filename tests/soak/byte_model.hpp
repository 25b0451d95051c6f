// A model of the values that each byte of a buffer may have. After a failed operation, a byte has
// its old value or the new one, or its next read fails. A read shows the actual value, and the
// model keeps it.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "soak/driver.hpp"

namespace tern::soak {

using Byte = std::uint8_t;

/// Values that no program writes: for the caller's memory after a failed call, and for new
/// destinations.
inline constexpr Byte source_garbage = 0xEE;
inline constexpr Byte destination_canary = 0xC3;
[[nodiscard]] inline Byte any_byte(Random& random) noexcept {
  return static_cast<Byte>(random.below(0xC0));
}

struct Range {
  std::size_t begin = 0, count = 0;
  [[nodiscard]] std::size_t end() const noexcept { return begin + count; }
};
/// Returns a random range of `of` bytes. It is not empty, unless `of` is 0.
[[nodiscard]] inline Range any_range(Random& random, std::size_t of) noexcept {
  if (of == 0) return {};
  const std::size_t begin = random.below(of);
  return {begin, 1 + random.below(of - begin)};
}

class ByteModel {
 public:
  explicit ByteModel(std::size_t bytes = 0) : cells_(bytes) {}

  [[nodiscard]] std::size_t size() const noexcept { return cells_.size(); }
  /// New bytes count as never written.
  void resize(std::size_t bytes) { cells_.resize(bytes); }
  /// New bytes may have any value, like those of an array that grew.
  void resize_with_any(std::size_t bytes) { cells_.resize(bytes, Cell{.is_any = true}); }

  /// Returns whether every byte of the range was certainly written.
  [[nodiscard]] bool is_written(Range range) const noexcept {
    return std::all_of(at(range.begin), at(range.end()),
                       [](const Cell& one) { return one.count != 0 && !one.may_be_unwritten; });
  }
  /// Returns whether no byte of the range is known to be unwritten.
  [[nodiscard]] bool may_be_written(Range range) const noexcept {
    return std::all_of(at(range.begin), at(range.end()),
                       [](const Cell& one) { return one.count != 0; });
  }
  /// Returns whether a read of the range may fail because of an earlier failure.
  [[nodiscard]] bool may_fail(Range range) const noexcept {
    return std::any_of(at(range.begin), at(range.end()),
                       [](const Cell& one) { return one.may_fail || one.may_be_unwritten; });
  }

  /// Returns the maximal ranges without a byte that is known to be unwritten.
  [[nodiscard]] std::vector<Range> written_runs() const {
    std::vector<Range> runs;
    for (std::size_t i = 0; i < size(); ++i) {
      if (cells_[i].count == 0) continue;
      if (runs.empty() || runs.back().end() != i) runs.push_back({i, 0});
      ++runs.back().count;
    }
    return runs;
  }

  void write(std::size_t index, Byte value) {
    cells_[index] =
        Cell{.values = {value}, .count = 1, .may_be_unwritten = false, .may_fail = false};
  }
  void write(Range range, Byte value) {
    for (std::size_t i = 0; i < range.count; ++i) write(range.begin + i, value);
  }
  void write(Range range, const Byte* values) {
    for (std::size_t i = 0; i < range.count; ++i) write(range.begin + i, values[i]);
  }
  /// Models a failed write: the byte has its old value or this one, or reading it fails.
  void may_write(std::size_t index, Byte value) { cells_[index].add(value); }
  void may_write(Range range, Byte value) {
    for (std::size_t i = 0; i < range.count; ++i) may_write(range.begin + i, value);
  }
  void may_write(Range range, const Byte* values) {
    for (std::size_t i = 0; i < range.count; ++i) may_write(range.begin + i, values[i]);
  }
  void forget(Range range) {
    for (std::size_t i = range.begin; i < range.end(); ++i) cells_[i] = {};
  }
  /// Models a failed transfer or a lost device: a read of the bytes may fail.
  void hurt(Range range) {
    for (std::size_t i = range.begin; i < range.end(); ++i) cells_[i].may_fail = true;
  }
  void hurt() { hurt({0, size()}); }

  /// Models a copy. With `failed`, each byte may also have its old value.
  void copy(Range to, const ByteModel& from, std::size_t begin, bool failed = false) {
    std::vector<Cell> source(from.at(begin), from.at(begin + to.count));
    for (std::size_t i = 0; i < to.count; ++i) {
      Cell& cell = cells_[to.begin + i];
      if (!failed) {
        cell = source[i];
        continue;
      }
      for (std::size_t k = 0; k < source[i].count; ++k) cell.add(source[i].values[k]);
    }
  }

  /// Checks bytes that were read. Throws Mismatch for an impossible value, and keeps the actual
  /// values.
  void see(Range range, const Byte* seen, const char* where) {
    for (std::size_t i = 0; i < range.count; ++i) {
      Cell& cell = cells_[range.begin + i];
      if (cell.count == 0) continue;  // never written: any value is possible
      if (!cell.is_any && !cell.has(seen[i])) {
        throw Mismatch(fmt::format("byte {} of {} is {:#04x} {}, and may be {}", range.begin + i,
                                   size(), seen[i], where, cell.text()));
      }
      write(range.begin + i, seen[i]);
    }
  }

 private:
  struct Cell {
    std::array<Byte, 4> values = {};
    std::uint8_t count = 0;  // 0: never written
    bool is_any = false;     // any value, or too many values to list
    bool may_be_unwritten = false;
    bool may_fail = false;

    [[nodiscard]] bool has(Byte value) const noexcept {
      return std::find(values.begin(), values.begin() + count, value) != values.begin() + count;
    }
    void add(Byte value) {
      if (count == 0) may_be_unwritten = true;
      may_fail = true;
      if (has(value)) return;
      if (count == values.size()) {
        is_any = true;
      } else {
        values[count++] = value;
      }
    }
    [[nodiscard]] std::string text() const {
      std::string made;
      for (std::size_t i = 0; i < count; ++i) {
        made += fmt::format("{}{:#04x}", i == 0 ? "" : " or ", values[i]);
      }
      return made;
    }
  };

  [[nodiscard]] std::vector<Cell>::const_iterator at(std::size_t index) const noexcept {
    return cells_.begin() + static_cast<std::ptrdiff_t>(index);
  }

  std::vector<Cell> cells_;
};

}  // namespace tern::soak
