// What few storages have: made when it is first needed, for all time.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "buffer/host_accesses.hpp"
#include "buffer/written_ranges.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/buffer/use_record.hpp"

namespace tern {

struct Storage::Rare {
  /// As those of storages: memory of others comes and goes, and each piece has one.
  static void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept;
  static void operator delete(void* record) noexcept;
  static void operator delete(void* record, const std::nothrow_t&) noexcept;
  static auto& spare_records() noexcept;

  std::mutex mutex;  // of those up to the escapes' lock
  WrittenRanges written;
  HostAccesses accesses;
  std::set<std::size_t> edges;
  std::set<std::pair<Advice, Place>> advice;  // what takes it back
  BriefLock escapes_lock;                     // of these two
  std::uint32_t escapes = 0;
  std::size_t escaped_bytes = 0;       // as many as there were with the first: it may grow since
  Reservation* reservation = nullptr;  // while an array is being made, by who makes it
  // Constant from the beginning, where there is no resource.
  std::unique_ptr<StorageOrigin> origin;
  Device device;
  std::uint64_t owners_uses = 0;           // so many on record are the owner's own affair
  bool is_end_queued = false;              // whoever ends it knows it alone
  std::atomic<std::uint64_t> barrier = 0;  // of the device, that strangers' work is behind
  std::atomic<std::uint64_t> writes = 0;   // since somebody wanted them counted
  /// Of the device, that earlier writes of an import are behind if nothing else is known of them; 0
  /// if their end was stated.
  std::atomic<std::uint64_t> ready_barrier = 0;
};

}  // namespace tern
