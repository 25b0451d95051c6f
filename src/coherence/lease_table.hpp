// LeaseTable holds the open leases of one unified buffer, and the claims of calls in progress. It
// finds the conflicts between them (is_conflict), and lets a thread wait until a conflicting lease
// is released. UnifiedCore::try_claim_range() (unified_core.cpp) decides what the second caller
// gets: an access_conflict, or a wait if the caller passed a LeaseWait and the other lease belongs
// to another thread.
//
// A lease has a slot, and the number of its slot is its name. The table reuses a number after the
// release. References to slots are valid until the next open(), which may move all slots.
//
// Not synchronized: UnifiedCore::mutex_ guards it. The functions that the fast path uses are
// inlined, and the members are small enough to share a cache line with other hot members of the
// core; the parts that only waiting threads need are in ReleaseSignal.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// What threads wait on that wait for a release. See LeaseTable::wait().
class ReleaseSignal {
 public:
  /// Wakes all waiting threads. The caller has called LeaseTable::note_release() and does not hold
  /// the mutex of the table.
  void wake() noexcept {
    { const std::lock_guard lock(mutex_); }
    released_.notify_all();
  }

 private:
  friend class LeaseTable;

  std::mutex mutex_;
  std::condition_variable released_;
};

class LeaseTable {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // empty: none

  static constexpr std::uint32_t no_lease = ~std::uint32_t{0};
  /// The place of a claim that does not use a memory yet.
  static constexpr unsigned nowhere = 255;
  /// The place of a claim that may use any memory of the buffer.
  static constexpr unsigned all_memories = 254;

  /// An exported lease is for code that Tern cannot observe (UntrackedLease).
  enum class Kind : std::uint8_t { lease, exported };
  /// An open lease, the claim of a call in progress, or a free entry.
  struct Slot {
    ByteRange range = {};
    CallSite site = {};
    std::uint64_t thread = 0;
    StreamRef stream = {};
    UseRecord::Ticket ticket = {};
    std::uint64_t stream_uses = 0;  // uses of the memory by streams when the lease began
    // Adjacent, so that the compiler can set most of them with one store.
    Access access = Access::read;
    std::uint8_t place = 0;
    Kind kind = Kind::lease;
    bool is_open = false;
    bool has_use = false;
    bool is_deferred = false;  // covered by the deferred use of its stream
    /// An exported lease whose holder may write at any time, because it has not committed yet.
    bool has_untracked_writer = false;
    /// A reader whose bytes the directory does not list as up to date in its place, because an
    /// untracked writer may have changed them elsewhere.
    bool is_unlisted = false;
    bool is_missing = false;   // a host lease whose bytes did not arrive
    bool is_promised = false;  // a launch that will change the directory
    std::uint32_t next_free = 0;

    [[nodiscard]] bool overlaps(ByteRange other) const noexcept {
      return range.begin < other.end && other.begin < range.end;
    }
    void set_place(unsigned number) noexcept { place = static_cast<std::uint8_t>(number); }
  };
  /// A range that skips the slots that are not open. (clang 14 cannot compile std::views::filter.)
  template <class S>
  class OpenSlots {
   public:
    class Iterator {
     public:
      Iterator(S* at, S* end) noexcept : at_(at), end_(end) { skip(); }
      [[nodiscard]] S& operator*() const noexcept { return *at_; }
      Iterator& operator++() noexcept {
        ++at_;
        skip();
        return *this;
      }
      [[nodiscard]] bool operator==(const Iterator& other) const noexcept {
        return at_ == other.at_;
      }

     private:
      void skip() noexcept {
        while (at_ != end_ && !at_->is_open) ++at_;
      }
      S* at_;
      S* end_;
    };

    OpenSlots(S* begin, S* end) noexcept : begin_(begin), end_(end) {}
    [[nodiscard]] Iterator begin() const noexcept { return {begin_, end_}; }
    [[nodiscard]] Iterator end() const noexcept { return {end_, end_}; }

   private:
    S* begin_;
    S* end_;
  };
  /// The access that a new slot is opened for.
  struct Request {
    ByteRange range = {};
    Access access = Access::read;
    Kind kind = Kind::lease;
    unsigned place = nowhere;
    StreamRef stream = {};
  };

  LeaseTable() { slots_.reserve(8); }

  // --- Open and release

  /// Opens a slot for the calling thread. Returns no_lease if the host has no memory.
  [[nodiscard]] std::uint32_t open(const Request& request, const CallSite& site) noexcept;
  /// Returns whether open_free() may be called.
  [[nodiscard]] bool has_free_slot() const noexcept { return first_free_ != 0; }
  /// Opens the first free slot. Requires has_free_slot().
  [[nodiscard]] std::uint32_t open_free(const Request& request, std::uint64_t thread,
                                        const CallSite& site) noexcept;
  /// Frees a slot. Waiting threads have to be woken afterwards: see note_release().
  void release(std::uint32_t number) noexcept {
    clear_untracked_writer(slots_[number]);
    release_tracked(slots_[number], number);
  }
  /// release(), for a slot without an untracked writer.
  void release_tracked(Slot& slot, std::uint32_t number) noexcept;

  // --- Conflicts

  /// Returns whether an access conflicts with an open lease. A write conflicts with every
  /// overlapping lease; a read does not conflict with an exported lease, not even a writing one.
  [[nodiscard]] static bool is_conflict(const Slot& slot, ByteRange range, Access access) noexcept {
    if (!slot.is_open || !slot.overlaps(range)) return false;
    return is_write(access) || (is_write(slot.access) && slot.kind != Kind::exported);
  }
  /// Returns the first lease that conflicts with an access, or null.
  [[nodiscard]] const Slot* conflict(ByteRange range, Access access) const noexcept;
  /// Like conflict(), for leases that this thread has opened. Waiting for one of them would never
  /// end.
  [[nodiscard]] const Slot* conflict_with_thread(std::uint64_t thread, ByteRange range,
                                                 Access access) const noexcept;

  // --- Untracked writers

  /// Makes a write lease an exported one: its holder may write at any time, and others may read.
  void set_untracked_writer(Slot& slot) noexcept;
  /// The holder of an exported lease has committed, or does not write any more.
  void clear_untracked_writer(Slot& slot) noexcept {
    if (std::exchange(slot.has_untracked_writer, false)) --untracked_writers_;
  }
  [[nodiscard]] bool has_untracked_writers() const noexcept { return untracked_writers_ != 0; }

  // --- Waiting for a release

  /// Waits until a lease is released, or until the deadline. Returns false at the deadline. The
  /// caller holds `mutex`, which is released and taken again.
  [[nodiscard]] bool wait(SpinLock& mutex, ReleaseSignal& signal, const Deadline& deadline);
  /// Returns whether a thread waits. Then whoever releases a lease calls note_release() and
  /// ReleaseSignal::wake().
  [[nodiscard]] bool has_waiters() const noexcept { return waiters_ != 0; }
  void note_release() noexcept { ++releases_; }

  // --- Slots

  [[nodiscard]] std::uint32_t count() const noexcept { return open_count_; }
  [[nodiscard]] bool is_empty() const noexcept { return open_count_ == 0; }
  [[nodiscard]] Slot& operator[](std::uint32_t number) noexcept { return slots_[number]; }
  [[nodiscard]] const Slot& operator[](std::uint32_t number) const noexcept {
    return slots_[number];
  }
  [[nodiscard]] std::uint32_t number_of(const Slot& slot) const noexcept {
    return static_cast<std::uint32_t>(&slot - slots_.data());
  }
  /// The open slots, as a range.
  [[nodiscard]] OpenSlots<Slot> all() noexcept {
    return {slots_.data(), slots_.data() + slots_.size()};
  }
  [[nodiscard]] OpenSlots<const Slot> all() const noexcept {
    return {slots_.data(), slots_.data() + slots_.size()};
  }
  /// Returns an open slot other than `own` that satisfies `fits`, or null.
  template <class Fits>
  [[nodiscard]] const Slot* find_other(std::uint32_t own, Fits fits) const noexcept {
    for (const Slot& slot : all()) {
      if (number_of(slot) != own && fits(slot)) return &slot;
    }
    return nullptr;
  }

 private:
  std::uint32_t open_count_ = 0;
  std::uint32_t untracked_writers_ = 0;  // open slots with has_untracked_writer
  std::uint32_t waiters_ = 0;            // threads in wait()
  std::uint32_t first_free_ = 0;         // the number of the first free slot plus 1, or 0
  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;  // counted while a thread waits
};

[[gnu::always_inline]] inline std::uint32_t LeaseTable::open_free(const Request& request,
                                                                  std::uint64_t thread,
                                                                  const CallSite& site) noexcept {
  const std::uint32_t number = first_free_ - 1;
  Slot& slot = slots_[number];
  first_free_ = slot.next_free;
  slot.range = request.range;
  slot.site = site;
  slot.thread = thread;
  slot.stream = request.stream;
  slot.access = request.access;
  slot.place = static_cast<std::uint8_t>(request.place);
  slot.kind = request.kind;
  slot.is_open = true;
  slot.has_use = slot.is_deferred = false;
  slot.has_untracked_writer = slot.is_unlisted = slot.is_missing = false;
  ++open_count_;
  return number;
}

[[gnu::always_inline]] inline void LeaseTable::release_tracked(Slot& slot,
                                                               std::uint32_t number) noexcept {
  slot.is_open = false;
  slot.next_free = std::exchange(first_free_, number + 1);
  --open_count_;
}

}  // namespace tern
