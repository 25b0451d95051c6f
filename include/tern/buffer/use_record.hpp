// A UseRecord knows which streams may still be using a piece of memory, and in which way.
//
// A use is begun before its work is submitted, which queues exactly the waits it needs on its
// stream, and ended behind it, which leaves a mark. A read waits for the writes of other streams, a
// write for their reads too. What is kept is one mark per stream and way of use, newest first to
// replace oldest, so nothing grows with the number of uses; no event exists until somebody waits.
//
// Between its beginning and its end a use has the turn, so that the uses of several threads come
// one after the other: another thread that would write the memory, or read what is written, waits
// until the use has left its mark. Reads do not wait for reads, and a thread never waits for
// itself: one that reads and begins to write waits for the other readers only. Two threads that
// both do so would wait for each other, so the second is refused.
//
// A write makes earlier uses unnecessary to remember, but only those it has waited for: what others
// began to do between its beginning and its end stays on record. Thread-safe. Invariants:
//  1. Every use that was ended and may not be done is covered by an entry, or by a write that
//     waited for it.
//  2. There is at most one entry for a stream and way of use.
//  3. There is room for every use that was begun and not ended: ending never needs memory.
//  4. A use whose work is still to come has no mark, whoever marks its stream meanwhile, until
//     somebody has to wait for it. It is not forgotten as long as its stream takes work.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <type_traits>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Marks to wait for, the latest of each stream: uses that begin together wait once. Up to eight
/// streams need no heap memory. Confined.
class TERN_EXPORT MarkSet {
 public:
  MarkSet() noexcept {}
  MarkSet(const MarkSet&) = delete;
  MarkSet& operator=(const MarkSet&) = delete;

  /// False if the host has no memory.
  [[nodiscard]] bool try_add(Mark mark) noexcept;
  [[nodiscard]] std::span<const Mark> all() const noexcept {
    return {more_ ? more_.get() : inline_, count_};
  }

 private:
  static constexpr std::size_t inline_marks = 8;
  static_assert(std::is_trivially_copyable_v<Mark>);

  std::size_t count_ = 0, capacity_ = inline_marks;
  std::unique_ptr<Mark[]> more_;
  union {
    Mark inline_[inline_marks];  // the first count_ are alive; most uses wait for none
  };
};

/// A lock for a few instructions, taken twice by every use of every buffer: half the price of a
/// mutex. Whoever finds it taken lets others run.
class BriefLock {
 public:
  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      lock_among_others();
  }
  [[nodiscard]] bool try_lock() noexcept {
    return !is_taken_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  TERN_EXPORT void lock_among_others() noexcept;

  std::atomic<bool> is_taken_ = false;
};

class TERN_EXPORT UseRecord {
 public:
  /// A use that has begun: what it waited for. To be ended or cancelled, once. One word, because
  /// what is stored in parts and loaded as a whole right afterwards makes a processor wait.
  class Ticket {
   public:
    constexpr Ticket() noexcept = default;
    constexpr Ticket(std::uint64_t version, bool has_turn, bool is_write,
                     std::uint32_t slot = 0) noexcept
        : word_(version << 8 | std::uint64_t{slot} << 2 | (has_turn ? turn_bit : 0) |
                (is_write ? write_bit : 0)) {}

    /// Of the record when the use began.
    [[nodiscard]] constexpr std::uint64_t version() const noexcept { return word_ >> 8; }
    [[nodiscard]] constexpr bool has_turn() const noexcept { return (word_ & turn_bit) != 0; }
    [[nodiscard]] constexpr bool is_write() const noexcept { return (word_ & write_bit) != 0; }
    /// Where the use is counted among those of other threads (OtherUsers). 0: it is the first
    /// thread's.
    [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
      return static_cast<std::uint32_t>(word_ >> 2) & (slots - 1);
    }

    static constexpr std::uint32_t slots = 64;

   private:
    static constexpr std::uint64_t turn_bit = 2, write_bit = 1;
    std::uint64_t word_ = 0;
  };

  /// What a use does about the uses that other threads have begun and not ended.
  enum class Turn : std::uint8_t {
    wait,     // until they end. Who has the turn of several records asks for them in the order of
              // their addresses, so that no two threads wait for each other
    if_free,  // without it there is no ticket (has_turn) if a wait were needed
    none,     // nothing: the caller keeps conflicting uses apart by itself
  };

  /// In place of a mark's sequence: what is used is submitted next.
  static constexpr std::uint64_t still_to_come = ~std::uint64_t{0};

  /// One stream's latest use of a kind. Small, so that a record with one of them is in as few cache
  /// lines as can be: a launch comes to its buffers when the driver has filled the cache.
  class Entry {
   public:
    Entry() noexcept = default;
    Entry(StreamRef by, std::uint64_t mark_sequence, std::uint64_t ended, std::uint64_t began,
          bool is_write) noexcept
        : stream(by),
          sequence(mark_sequence),
          version(ended),
          began_and_is_write_(began << 1 | std::uint64_t{is_write}) {}

    StreamRef stream = {};
    std::uint64_t sequence = 0;  // of the mark
    std::uint64_t version = 0;   // counts the uses that were ended
    [[nodiscard]] Mark mark() const noexcept { return {stream.id(), sequence}; }
    /// The version at its beginning: all writes up to it are behind.
    [[nodiscard]] std::uint64_t began() const noexcept { return began_and_is_write_ >> 1; }
    [[nodiscard]] bool is_write() const noexcept { return (began_and_is_write_ & 1) != 0; }

   private:
    std::uint64_t began_and_is_write_ = 0;
  };

  UseRecord() noexcept {}
  UseRecord(const UseRecord&) = delete;
  UseRecord& operator=(const UseRecord&) = delete;
  ~UseRecord() = default;

  /// Queues on the stream the waits that a use needs; the host waits for devices of other backends,
  /// whose marks no stream can wait for. Refused as waits are, with out_of_memory, and with
  /// access_conflict if another thread has a use begun for a minute, or at once if this thread has
  /// a read begun and another one that has too waits to write; then nothing is on record.
  [[nodiscard]] Result<Ticket> try_begin(StreamRef stream, Access access,
                                         CallSite site = CallSite::here(),
                                         Turn turn = Turn::wait) noexcept;
  /// The same, but the caller queues the waits, before the use is ended. Refused with
  /// out_of_memory, access_conflict.
  [[nodiscard]] Result<Ticket> try_begin(StreamRef stream, Access access, MarkSet& waits, Turn turn,
                                         CallSite site = CallSite::here()) noexcept;
  /// The use is submitted, up to the mark. Without one it is submitted next, or the stream has
  /// ended meanwhile: it lasts up to what the stream has when somebody must wait for it.
  void end(const Ticket& ticket, StreamRef stream, Mark mark, Access access) noexcept;
  /// Nothing was submitted.
  void cancel(const Ticket& ticket) noexcept;

  /// Queues on the stream the waits that a use needs, and nothing is on record: it is a stranger's,
  /// who says nothing of its end. Refused as waits are, and with out_of_memory.
  [[nodiscard]] Result<void> try_order(StreamRef stream, Access access,
                                       CallSite site = CallSite::here()) noexcept;
  /// All that a use of somebody who has no stream here waits for: devices are asked without the
  /// lock. False if the host has no memory.
  [[nodiscard]] bool try_collect(Access access, MarkSet& earlier) const noexcept;

  /// Blocks the host until it may use the memory in this way.
  [[nodiscard]] Result<void> try_wait(Access access) const noexcept;
  /// The same, and the host has the turn then, until the ticket is cancelled. Refused as waits are,
  /// and with access_conflict.
  [[nodiscard]] Result<Ticket> try_begin_on_host(Access access, CallSite site) noexcept;
  /// Could try_wait() return at once? Never blocks.
  [[nodiscard]] Result<bool> try_is_ready(Access access) const noexcept;

  /// What is still to come is what its stream has now, as if somebody had to wait for it: whoever
  /// does so later does not wait for what the stream does from here on.
  void settle() noexcept;

  /// A use that was made elsewhere: memory that was adopted is ready at a mark.
  [[nodiscard]] Result<void> try_note(StreamRef stream, Mark mark, Access access) noexcept;

  /// The first entry, by somebody who is the only one to know the record.
  void begin_with(StreamRef stream, Mark mark) noexcept {
    if (!mark) return;
    // In place: loading what was just stored in smaller parts is slow, and moving it would do that.
    ::new (static_cast<void*>(inline_)) Entry(stream, mark.sequence, ++version_, 0, true);
    count_ = 1;
  }

  /// How many uses were ended. Have there been any behind that many, of which something is left?
  [[nodiscard]] std::uint64_t version() const noexcept;
  [[nodiscard]] bool has_any_since(std::uint64_t version) const noexcept;
  /// All there is, into `out`; gives how many there are, which may be more than were put there.
  std::size_t list(std::span<Entry> out) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// The same for somebody who is the only one to know the record.
  [[nodiscard]] std::span<const Entry> unshared() const noexcept {
    return {more_ ? more_.get() : inline_, count_};
  }
  /// Forgets uses that are done.
  void prune() noexcept;
  /// Forgets uses by devices that are lost, once somebody has been told: they do nothing any more.
  void forget_lost() noexcept;

 private:
  static constexpr std::size_t inline_entries = 3;

  /// Takes the mutex, and the turn if it is wanted. Refused, or without the turn that was wanted,
  /// it does not have the mutex.
  [[nodiscard]] Result<Ticket> try_lock_in_turn(Access access, Turn turn, CallSite site) noexcept;

  // All of these with the mutex held.
  /// Must a use wait until others have ended?
  [[nodiscard]] bool is_blocked(std::uint32_t thread, bool is_write) const noexcept {
    if (open_uses_ == 0 || opener_ == thread) return false;
    if (!is_write && open_writes_ == 0) return false;
    return opener_ != several_threads || count_own(thread) != open_uses_;
  }
  /// How many of the open uses are the thread's.
  [[nodiscard]] std::uint32_t count_own(std::uint32_t thread) const noexcept;
  /// Waits with the mutex held, and lets go of it meanwhile; refused, it does not have it.
  [[nodiscard]] Result<void> try_wait_for_turn(std::uint32_t thread, bool is_write,
                                               CallSite site) noexcept;
  /// Where another thread than the first is counted; none if the host has no memory.
  [[nodiscard]] std::uint32_t try_take_slot(std::uint32_t thread) noexcept;
  void leave_slot(std::uint32_t slot) noexcept;
  void give_turn_back(const Ticket& ticket) noexcept {
    if (!ticket.has_turn()) return;
    --open_uses_;
    open_writes_ = static_cast<std::uint8_t>(open_writes_ - (ticket.is_write() ? 1 : 0));
    if (ticket.slot() != 0) [[unlikely]]
      leave_slot(ticket.slot());
  }
  [[nodiscard]] std::span<Entry> entries() noexcept { return {data(), count_}; }
  [[nodiscard]] Entry* data() noexcept { return more_ ? more_.get() : inline_; }
  [[nodiscard]] bool make_room() noexcept;
  void put(StreamRef stream, std::uint64_t sequence, std::uint64_t began, bool is_write) noexcept;
  void forget_up_to(std::uint64_t version) noexcept;
  /// What a use of the stream has to wait for. False if the host has no memory.
  [[nodiscard]] bool add_waits(StreamId stream, Access access, MarkSet& waits) noexcept;
  /// What is still to come is what the stream has now.
  static void settle(Entry& entry) noexcept;
  /// The same, and is the use over?
  static bool is_done(Entry& entry) noexcept;

  /// Whose the open uses are, while they are of several threads: made when that first happens. Uses
  /// that are counted in no slot are those of the thread that came first.
  struct OtherUsers {
    struct Slot {
      std::uint32_t thread = 0;
      std::uint32_t uses = 0;
    };
    /// Slot 0 stands for the first thread, the last one for all who found no other.
    static constexpr std::uint32_t nameless = Ticket::slots - 1;

    std::uint32_t first_thread = 0;
    std::uint32_t uses = 0;                 // in all slots
    bool has_waiting_reader = false;        // one who reads waits for the other readers, to write
    std::array<Slot, Ticket::slots> slots;  // by the thread's number, or the next free one
  };

  static constexpr std::uint32_t several_threads = 0;
  static constexpr std::uint32_t max_entries = 0xFFFF;
  static constexpr std::uint32_t max_open_uses = 0xFFFF, max_open_writes = 0xFF;

  // Small, so that the first entry is in the second cache line of a storage.
  mutable BriefLock mutex_;
  std::uint8_t open_writes_ = 0;  // guarded by mutex_, as all of these
  std::uint16_t open_uses_ = 0;   // that have the turn
  std::uint16_t count_ = 0;
  std::uint16_t capacity_ = inline_entries;
  std::uint32_t begun_ = 0;   // uses that will need an entry
  std::uint32_t opener_ = 0;  // the thread of all open uses, or several_threads
  std::uint64_t version_ = 0;
  std::unique_ptr<Entry[]> more_;
  union {
    Entry inline_[inline_entries];  // the first count_ of them are alive
  };
  std::unique_ptr<OtherUsers> others_;
};

}  // namespace tern
