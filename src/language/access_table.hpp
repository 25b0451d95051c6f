// An AccessTable remembers who used each element of the arrays of a launch, and finds two uses that
// nothing orders. The Interpreter asks it on each access.
//
// Threads of one block are ordered by the ends of loops over threads, which divide the block into
// phases. Blocks are not ordered. The interpreter runs blocks one after another, and in each phase
// one thread after another. So three stamps per element are enough:
// - the last plain write,
// - the first plain read of the last phase with reads, or of the first block that reads,
// - the first atomic access, likewise.
// An older stamp than these is ordered before the new access, or was part of a race that was found
// then. If the first reader is the thread itself, no other thread has read in this phase yet.
//
// Elements are found by address, so two arguments that share memory share stamps. Memory that the
// kernel cannot write has none. Stamps are allocated as zeroed pages: elements that a launch does
// not touch take no memory. One thread uses a table.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace tern::language {

/// Who accesses where: phase (32 bits, counted in the whole launch), thread (16 bits), place in the
/// code (16 bits). 0 is nobody.
using AccessStamp = std::uint64_t;

class AccessTable {
 public:
  /// What an array parameter lets the kernel do.
  struct Range {
    const std::byte* address = nullptr;
    std::uint64_t elements = 0;
    std::uint32_t element_bytes = 1;
    bool is_read = false, is_written = false, is_atomic = false;
  };
  /// The stamps of an array. Without `write`, its accesses are not checked. Each element has
  /// `per_element` stamps of a kind, more than one if it shares memory with smaller elements.
  struct Stamps {
    AccessStamp* write = nullptr;
    AccessStamp* read = nullptr;
    AccessStamp* atomic = nullptr;
    std::uint32_t per_element = 1;
    bool is_shared = false;  // each block has an array of its own, so older blocks do not count
  };
  /// The thread number of code that runs once for the whole block.
  static constexpr std::uint32_t whole_block = 0xffff;
  static constexpr std::uint32_t max_place = 0xffff;

  /// Throws std::bad_alloc. stamps(i) belongs to ranges[i].
  explicit AccessTable(std::span<const Range> ranges);
  [[nodiscard]] const Stamps& stamps(std::size_t range) const { return stamps_[range]; }
  /// Makes stamps for a shared array. Throws std::bad_alloc.
  [[nodiscard]] Stamps shared_stamps(std::uint64_t elements);

  // The time and the thread of the accesses that follow.

  void begin_block() noexcept {
    begin_phase();
    block_ = phase_;
  }
  void begin_phase() noexcept { begin_thread_at(++phase_, 0); }
  void begin_thread(std::uint32_t thread) noexcept { begin_thread_at(phase_, thread); }
  [[nodiscard]] std::uint32_t phase() const noexcept { return phase_; }

  /// Notes an access of an element, and returns the stamp of an earlier access that is not ordered
  /// with it, or 0.
  [[nodiscard]] AccessStamp read(const Stamps& stamps, std::uint64_t index, std::uint32_t place) {
    return each(stamps, index, place, [&](std::uint64_t cell, AccessStamp now) {
      AccessStamp found = conflict(stamps, stamps.write, cell, now);
      if (found == 0) found = conflict(stamps, stamps.atomic, cell, now);
      note_first(stamps, stamps.read, cell, now);
      return found;
    });
  }
  [[nodiscard]] AccessStamp write(const Stamps& stamps, std::uint64_t index, std::uint32_t place) {
    return each(stamps, index, place, [&](std::uint64_t cell, AccessStamp now) {
      AccessStamp found = conflict(stamps, stamps.write, cell, now);
      if (found == 0) found = conflict(stamps, stamps.read, cell, now);
      if (found == 0) found = conflict(stamps, stamps.atomic, cell, now);
      stamps.write[cell] = now;
      return found;
    });
  }
  [[nodiscard]] AccessStamp atomic(const Stamps& stamps, std::uint64_t index, std::uint32_t place) {
    return each(stamps, index, place, [&](std::uint64_t cell, AccessStamp now) {
      AccessStamp found = conflict(stamps, stamps.write, cell, now);
      if (found == 0) found = conflict(stamps, stamps.read, cell, now);
      note_first(stamps, stamps.atomic, cell, now);
      return found;
    });
  }

  /// Returns whether the launch, or the block for a shared array, has written the whole element.
  [[nodiscard]] bool is_written(const Stamps& stamps, std::uint64_t index) const noexcept {
    const std::uint64_t end = (index + 1) * stamps.per_element;
    for (std::uint64_t cell = index * stamps.per_element; cell < end; ++cell) {
      AccessStamp last = stamps.write[cell];
      if (stamps.atomic != nullptr && stamps.atomic[cell] > last) last = stamps.atomic[cell];
      if (stamps.is_shared ? phase_of(last) < block_ : last == 0) return false;
    }
    return true;
  }

  [[nodiscard]] static std::uint32_t phase_of(AccessStamp stamp) noexcept {
    return static_cast<std::uint32_t>(stamp >> 32);
  }
  [[nodiscard]] static std::uint32_t thread_of(AccessStamp stamp) noexcept {
    return static_cast<std::uint32_t>(stamp >> 16) & 0xffff;
  }
  [[nodiscard]] static std::uint32_t place_of(AccessStamp stamp) noexcept {
    return static_cast<std::uint32_t>(stamp) & 0xffff;
  }
  /// Returns whether the stamp is of the block that runs now.
  [[nodiscard]] bool is_of_this_block(AccessStamp stamp) const noexcept {
    return phase_of(stamp) >= block_;
  }

 private:
  struct Free {
    void operator()(AccessStamp* stamps) const noexcept { std::free(stamps); }
  };

  void begin_thread_at(std::uint32_t phase, std::uint32_t thread) noexcept {
    now_ = std::uint64_t{phase} << 32 | std::uint64_t{thread} << 16;
  }
  template <class Visit>
  AccessStamp each(const Stamps& stamps, std::uint64_t index, std::uint32_t place, Visit visit) {
    const AccessStamp now = now_ | (place < max_place ? place : max_place);
    if (stamps.per_element == 1) [[likely]]
      return visit(index, now);
    AccessStamp found = 0;
    for (std::uint32_t i = 0; i < stamps.per_element; ++i) {
      const AccessStamp one = visit(index * stamps.per_element + i, now);
      if (found == 0) found = one;
    }
    return found;
  }
  [[nodiscard]] AccessStamp conflict(const Stamps& stamps, const AccessStamp* column,
                                     std::uint64_t cell, AccessStamp now) const noexcept {
    if (column == nullptr) return 0;
    const AccessStamp before = column[cell];
    // The usual cases: nobody, and the same thread in the same phase.
    if (before == 0 || (before ^ now) >> 16 == 0) return 0;
    if (phase_of(before) == phase_) return before;
    return phase_of(before) < block_ && !stamps.is_shared ? before : 0;
  }
  void note_first(const Stamps& stamps, AccessStamp* column, std::uint64_t cell,
                  AccessStamp now) const noexcept {
    if (column == nullptr) return;
    const AccessStamp before = column[cell];
    if (phase_of(before) == phase_) return;
    // A stamp of an older block stays: that block conflicts with every later one.
    if (before == 0 || stamps.is_shared || phase_of(before) >= block_) column[cell] = now;
  }
  [[nodiscard]] AccessStamp* column(std::uint64_t cells);

  std::vector<Stamps> stamps_;
  std::vector<std::unique_ptr<AccessStamp[], Free>> columns_;
  std::uint32_t phase_ = 0;
  std::uint32_t block_ = 0;  // the first phase of the block
  AccessStamp now_ = 0;
};

}  // namespace tern::language
