// The state that few storages need. Allocated when it is first needed; lives as long as the
// storage.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "buffer/arrival.hpp"
#include "buffer/host_accesses.hpp"
#include "buffer/written_ranges.hpp"
#include "tern/detail/buffer/byte_range.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/mutex.hpp"

namespace tern {

struct Storage::ColdState {
  /// Recycled per thread like storages: memory of other owners comes and goes often, and each piece
  /// has one.
  static void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept;
  static void operator delete(void* record) noexcept;
  static void operator delete(void* record, const std::nothrow_t&) noexcept;
  static auto& spare_records() noexcept;

  std::mutex mutex;  // guards the members up to exports_lock
  WrittenRanges written;
  bool has_size_owner = false;  // only try_extend() and try_cut() change the size
  bool can_be_paused = false;   // MemoryUsers knows the storage; its owner's thread writes it
  /// Bytes that submitted work writes. While there are any, all_written_bit is not set.
  struct Expected {
    WrittenRanges ranges;
    std::shared_ptr<Arrival> arrival;
  };
  std::vector<Expected> expected;
  /// Forgets what has arrived. Call with the mutex held.
  void forget_arrived() {
    std::erase_if(expected, [](const Expected& one) {
      return one.arrival->state() == Arrival::State::arrived;
    });
  }
  /// Removes a range that is written again. Call with the mutex held. Throws std::bad_alloc.
  void stop_expecting(ByteRange range) {
    for (Expected& one : expected) one.ranges.remove(range.begin, range.end);
    std::erase_if(expected, [](const Expected& one) { return one.ranges.size() == 0; });
  }
  HostAccesses accesses;
  std::set<std::size_t> edges;
  std::set<std::pair<Advice, Place>> advice;  // calls that undo the advice
  SpinLock exports_lock;                      // guards the next two
  std::uint32_t exports = 0;
  std::size_t exported_bytes = 0;          // size at the first export; the storage may grow later
  Reservation* reservation = nullptr;      // only while an array is being made
  std::atomic<std::uint64_t> barrier = 0;  // device-wide wait that covers foreign work
  std::atomic<std::uint64_t> writes = 0;   // counted since try_count_writes() was first called
};

}  // namespace tern
