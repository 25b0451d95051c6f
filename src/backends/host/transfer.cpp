#include "backends/host/transfer.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

/// Below this size one thread finishes before a second has woken up.
constexpr std::size_t parallel_bytes = 1 * mib;
/// Slices are whole pages, so that no two threads write one cache line. There are several slices
/// per thread, so that a descheduled thread does not delay the others.
constexpr std::size_t slice_step_bytes = 64 * kib;
constexpr std::size_t slices_per_thread = 4;

std::size_t slice_bytes(const WorkerTeam& team, std::size_t bytes, std::size_t multiple) noexcept {
  const std::size_t step = std::lcm(slice_step_bytes, multiple);
  const std::size_t even = bytes / (team.threads() * slices_per_thread) + 1;
  return (even + step - 1) / step * step;
}

/// Calls body(offset, length) for slices that begin at multiples of `multiple` and cover all bytes.
template <class Body>
void for_each_slice(WorkerTeam& team, std::size_t bytes, std::size_t multiple,
                    const Body& body) noexcept {
  if (bytes < parallel_bytes || team.threads() == 1) return body(std::size_t{0}, bytes);
  const std::size_t slice = slice_bytes(team, bytes, multiple);
  team.for_each((bytes + slice - 1) / slice, [&](std::size_t index) {
    const std::size_t offset = index * slice;
    body(offset, std::min(slice, bytes - offset));
  });
}

/// A pattern repeated to a length that is a multiple of its width and long enough that copying it
/// runs at the speed of memory rather than of calls.
class Tile {
 public:
  explicit Tile(const Pattern& pattern) noexcept
      : bytes_(capacity / pattern.width_bytes * pattern.width_bytes) {
    std::memcpy(data_, pattern.bytes, pattern.width_bytes);
    for (std::size_t have = pattern.width_bytes; have < bytes_; have *= 2) {
      std::memcpy(data_ + have, data_, std::min(have, bytes_ - have));
    }
  }

  void write(std::byte* destination, std::size_t bytes) const noexcept {
    for (; bytes > bytes_; bytes -= bytes_, destination += bytes_) {
      std::memcpy(destination, data_, bytes_);
    }
    std::memcpy(destination, data_, bytes);
  }

 private:
  static constexpr std::size_t capacity = 4096;
  std::size_t bytes_;
  std::byte data_[capacity];
};

bool is_one_byte(const Pattern& pattern) noexcept {
  return std::all_of(pattern.bytes, pattern.bytes + pattern.width_bytes,
                     [&](std::byte b) { return b == pattern.bytes[0]; });
}

}  // namespace

void copy(WorkerTeam& team, void* destination, const void* source, std::size_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  for_each_slice(team, bytes, 1, [=](std::size_t offset, std::size_t length) {
    std::memcpy(to + offset, from + offset, length);
  });
}

void copy_2d(WorkerTeam& team, const Copy2D& copy) noexcept {
  const auto copy_rows = [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch_bytes,
                  static_cast<const std::byte*>(copy.source) + row * copy.source_pitch_bytes,
                  copy.width_bytes);
    }
  };
  // Rows are copied whole. The product cannot wrap: the caller checked both extents.
  if (copy.width_bytes * copy.height < parallel_bytes || team.threads() == 1) {
    return copy_rows(0, copy.height);
  }
  const std::size_t parts = std::min(copy.height, team.threads() * slices_per_thread);
  const std::size_t rows = (copy.height + parts - 1) / parts;
  team.for_each(parts, [&](std::size_t part) {
    copy_rows(std::min(copy.height, part * rows), std::min(copy.height, (part + 1) * rows));
  });
}

void fill(WorkerTeam& team, void* destination, std::size_t bytes, const Pattern& pattern) noexcept {
  auto* to = static_cast<std::byte*>(destination);
  if (is_one_byte(pattern)) {
    const int value = std::to_integer<int>(pattern.bytes[0]);
    return for_each_slice(team, bytes, 1, [=](std::size_t offset, std::size_t length) {
      std::memset(to + offset, value, length);
    });
  }
  const Tile tile(pattern);
  for_each_slice(team, bytes, pattern.width_bytes,
                 [&](std::size_t offset, std::size_t length) { tile.write(to + offset, length); });
}

void touch(WorkerTeam& team, void* address, std::size_t bytes, std::size_t page_bytes) noexcept {
  auto* first = static_cast<unsigned char*>(address);
  // Atomically adds zero: this makes the page present for writing without changing a byte that
  // another thread may be using.
  const auto touch_at = [=](std::size_t offset) {
    std::atomic_ref(first[offset]).fetch_add(0, std::memory_order_relaxed);
  };
  for_each_slice(team, bytes, page_bytes, [=](std::size_t offset, std::size_t length) {
    for (std::size_t i = offset; i < offset + length; i += page_bytes) touch_at(i);
  });
  // A range that begins inside a page may touch one page more than it has steps.
  touch_at(bytes - 1);
}

}  // namespace tern::host
