// The byte ranges of a storage that were ever written.
//
// Adjacent ranges are joined, so a storage that is filled from front to back has one range. Not
// thread-safe: the storage holds its lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/interval_map.hpp"
#include "tern/detail/buffer/byte_range.hpp"

namespace tern {

class WrittenRanges {
 public:
  /// Marks [begin, end) as written. Throws std::bad_alloc; then earlier marks are unchanged.
  void add(std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    // Join adjacent ranges, so that no two ranges ever touch.
    if (const auto before = ranges_.find(begin == 0 ? 0 : begin - 1); before != ranges_.end()) {
      if (before->second.end >= end) return;
      begin = before->first;
    }
    if (const auto behind = ranges_.find(end); behind != ranges_.end()) end = behind->second.end;
    ranges_.assign(begin, end, Nothing{});
  }

  /// Marks [begin, end) as not written. Throws std::bad_alloc; then nothing has changed.
  void remove(std::size_t begin, std::size_t end) { ranges_.erase(begin, end); }

  /// Returns the first unwritten part of [begin, end), if there is one.
  [[nodiscard]] std::optional<ByteRange> first_gap(std::size_t begin, std::size_t end) const {
    std::optional<ByteRange> gap;
    ranges_.visit(begin, end, [&gap](std::uint64_t from, std::uint64_t to, const Nothing* written) {
      if (written != nullptr) return true;
      gap = ByteRange{from, to};
      return false;
    });
    return gap;
  }

  /// Returns whether some byte of [begin, end) is written.
  [[nodiscard]] bool has_some(std::size_t begin, std::size_t end) const {
    bool found = false;
    ranges_.visit(begin, end, [&found](std::uint64_t, std::uint64_t, const Nothing* written) {
      found |= written != nullptr;
      return !found;
    });
    return found;
  }

  /// Returns the written parts of [begin, end). Throws std::bad_alloc.
  [[nodiscard]] std::vector<ByteRange> inside(std::size_t begin, std::size_t end) const {
    std::vector<ByteRange> written;
    ranges_.visit(begin, end, [&](std::uint64_t from, std::uint64_t to, const Nothing* one) {
      if (one != nullptr) written.push_back({from, to});
      return true;
    });
    return written;
  }

  [[nodiscard]] bool has_all(std::size_t bytes) const { return !first_gap(0, bytes); }
  [[nodiscard]] std::size_t size() const noexcept { return ranges_.size(); }

 private:
  struct Nothing {};
  IntervalMap<Nothing> ranges_;
};

}  // namespace tern
