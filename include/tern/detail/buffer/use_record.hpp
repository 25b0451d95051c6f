// Not part of the interface.
//
// A UseRecord remembers which streams may still use a piece of memory, and whether they read or
// write.
//
//   auto ticket = record.try_begin(stream, Access::read);       // queues the waits that are needed
//   // ... submit the work to the stream ...
//   record.end(*ticket, stream, stream.next_mark(), Access::read);
//
// A use begins before its work is submitted: try_begin() queues exactly the waits that the use
// needs on its stream. A use ends after the submission: end() leaves a mark. A read waits for the
// writes of other streams, a write also waits for their reads. The record keeps one mark per stream
// and access, and newer marks replace older ones, so the record does not grow with the number of
// uses. No event is recorded until a user has to wait.
//
// Between begin and end, a use holds the turn, which serializes conflicting uses of several
// threads: another thread that wants to write the memory, or to read while it is being written,
// waits until the use has left its mark. Reads do not wait for reads, and a thread never waits for
// itself: a thread that reads and begins to write waits for the other readers only. If two threads
// do so, they would wait for each other, so the second one fails.
//
// A write makes the record forget earlier uses, but only those that the write has waited for. Uses
// that began after the write began stay on record. Thread-safe. Invariants:
//
//   1. Every use that has ended and may not be done is covered by an entry, or by a write that
//      waited for it.
//   2. There is at most one entry per stream and access (read or write).
//   3. There is room for every use that has begun and not ended, so end() never allocates.
//   4. A use whose work is still to come has no mark until another user has to wait for it, even if
//      the stream gets marks for other reasons. Such a use is not forgotten as long as its stream
//      accepts work.
//
// A pause is like an open write of a thread that does not exist, so every use that begins finds the
// turn taken. It fails with access_conflict instead of waiting.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// A set of marks to wait for, with only the latest mark of each stream, so that uses that begin
/// together wait once per stream. Up to eight streams need no heap memory. Not thread-safe.
class TERN_EXPORT MarkSet {
 public:
  MarkSet() noexcept = default;
  MarkSet(const MarkSet&) = delete;
  MarkSet& operator=(const MarkSet&) = delete;

  /// Adds a mark. Returns false if the host has no memory.
  [[nodiscard]] bool try_add(Mark mark) noexcept;
  [[nodiscard]] std::span<const Mark> all() const noexcept { return marks_; }

 private:
  InlineVector<Mark, 8> marks_;  // most uses wait for none
};

/// The record of one piece of memory.
class TERN_EXPORT UseRecord {
 public:
  /// A use that has begun. Pass it to end() or cancel(), exactly once. The ticket is one word,
  /// because storing it in parts and loading it as a whole stalls the processor.
  class Ticket {
   public:
    constexpr Ticket() noexcept = default;
    constexpr Ticket(std::uint64_t version, bool has_turn, bool is_write,
                     std::uint32_t slot = 0) noexcept
        : word_(version << 8 | std::uint64_t{slot} << 2 | (has_turn ? turn_bit : 0) |
                (is_write ? write_bit : 0)) {}

    /// The version of the record when the use began. The use has waited for everything up to it.
    [[nodiscard]] constexpr std::uint64_t version() const noexcept { return word_ >> 8; }
    /// Returns true if the use holds the turn.
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

  /// What try_begin() does if another thread holds the turn. A thread that takes the turn of
  /// several records must take them in the order of their addresses; otherwise two threads could
  /// deadlock.
  enum class LockMode : std::uint8_t {
    wait,     // wait until the other uses end
    if_free,  // if a wait is needed, begin nothing; the ticket then has no turn (has_turn())
    none,     // ignore the turn: the caller keeps conflicting uses apart
  };

  /// Stands for the sequence of a mark: the work of the use is submitted later.
  static constexpr std::uint64_t still_to_come = ~std::uint64_t{0};

  /// The latest read or the latest write of one stream. Small, so that a record with one entry
  /// occupies few cache lines: a launch usually finds its buffers evicted from the cache by the
  /// driver.
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
    std::uint64_t sequence = 0;  // of the mark, or still_to_come
    std::uint64_t version = 0;   // version of the record after this use ended
    [[nodiscard]] Mark mark() const noexcept { return {stream.id(), sequence}; }
    /// The version of the record when the use began. The use comes after all writes up to this
    /// version.
    [[nodiscard]] std::uint64_t began() const noexcept { return began_and_is_write_ >> 1; }
    [[nodiscard]] bool is_write() const noexcept { return (began_and_is_write_ & 1) != 0; }

   private:
    std::uint64_t began_and_is_write_ = 0;
  };

  UseRecord() noexcept {}
  UseRecord(const UseRecord&) = delete;
  UseRecord& operator=(const UseRecord&) = delete;
  ~UseRecord() = default;

  /// Begins a use and queues the waits it needs on the stream. The host waits for devices of other
  /// backends, because no stream can wait for their marks. Fails as waits do, with out_of_memory,
  /// with capacity if too many uses are open, and with access_conflict if another thread has held
  /// the turn for a minute, or immediately if this thread has an open read and another thread with
  /// an open read already waits to write. On failure nothing is recorded.
  [[nodiscard]] Result<Ticket> try_begin(StreamRef stream, Access access,
                                         CallSite site = CallSite::here(),
                                         LockMode turn = LockMode::wait) noexcept;
  /// Begins a use but only collects the waits; the caller must queue them before it ends the use.
  /// Fails with out_of_memory, capacity, access_conflict.
  [[nodiscard]] Result<Ticket> try_begin(StreamRef stream, Access access, MarkSet& waits,
                                         LockMode turn, CallSite site = CallSite::here()) noexcept;
  /// Ends a use whose work was submitted before `mark`. Pass an empty mark if the work is submitted
  /// next or the stream has been destroyed meanwhile: the use then covers all work that the stream
  /// has when another user has to wait for it.
  void end(const Ticket& ticket, StreamRef stream, Mark mark, Access access) noexcept;
  /// Cancels a use: nothing was submitted.
  void cancel(const Ticket& ticket) noexcept;

  /// Begins a pause of the memory: until end() or cancel(), no use can begin, whatever its
  /// LockMode. Adds the marks of all uses so far to `uses`. `tag` names the memory in the errors of
  /// the uses. Fails with access_conflict if a use has begun and not ended, or if the memory is
  /// paused already, and with out_of_memory.
  [[nodiscard]] Result<Ticket> try_pause(Tag tag, MarkSet& uses, CallSite site) noexcept;
  /// Returns whether the memory is paused.
  [[nodiscard]] bool is_paused() const noexcept;
  /// Fails with access_conflict if the memory is paused.
  [[nodiscard]] Result<void> check_not_paused(CallSite site) const noexcept;

  /// Queues on the stream the waits that a use needs, but records no use. For foreign code that
  /// does not report the end of its use. Fails as waits do, with out_of_memory, and with
  /// access_conflict if the memory is paused.
  [[nodiscard]] Result<void> try_order(StreamRef stream, Access access,
                                       CallSite site = CallSite::here()) noexcept;
  /// Collects all marks that a use without a stream has to wait for. The caller waits for them
  /// without the lock. Returns false if the host has no memory.
  [[nodiscard]] bool try_collect(Access access, MarkSet& earlier) const noexcept;

  /// Waits until the host may access the memory in this way.
  [[nodiscard]] Result<void> try_wait(Access access,
                                      CallSite site = CallSite::here()) const noexcept;
  /// Like try_wait(), and begins a use by the host, which holds the turn until the ticket is
  /// cancelled. Fails as waits do, and with access_conflict.
  [[nodiscard]] Result<Ticket> try_begin_on_host(Access access, CallSite site) noexcept;
  /// Returns whether try_wait() would return immediately. Never blocks.
  [[nodiscard]] Result<bool> try_is_ready(Access access) const noexcept;

  /// Gives a mark to every use that is still to come, as if another user had to wait for it now.
  /// Work that the streams submit later no longer belongs to these uses.
  void settle() noexcept;

  /// Records a use that was made elsewhere. For example, adopted memory is ready at a mark.
  [[nodiscard]] Result<void> try_note(StreamRef stream, Mark mark, Access access) noexcept;

  /// Records the first use, a write. Takes no lock: no other thread may know the record yet.
  void begin_with(StreamRef stream, Mark mark) noexcept {
    if (!mark) return;
    // Constructed in place: moving an Entry would load values right after they were stored in
    // smaller parts, which is slow.
    ::new (static_cast<void*>(entries_.inline_data()))
        Entry(stream, mark.sequence, ++version_, 0, true);
    count_ = 1;
  }

  /// Returns the number of uses that have ended so far.
  [[nodiscard]] std::uint64_t version() const noexcept;
  /// Copies the entries to `out`. Returns the number of entries, which may be larger than `out`.
  /// Gives marks to uses that are still to come.
  std::size_t list(std::span<Entry> out) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// Returns the entries without a lock. No other thread may know the record.
  [[nodiscard]] std::span<const Entry> unshared() const noexcept {
    return {entries_.data(), count_};
  }
  /// Removes uses that are done.
  void prune() noexcept;
  /// Removes uses by lost devices, which do nothing any more. Call it after the loss has been
  /// reported.
  void forget_lost() noexcept;

 private:
  static constexpr std::size_t inline_entries = 3;

  /// Takes the mutex, and the turn if `turn` wants it. On failure, or if the turn was wanted and
  /// not available, the mutex is not held.
  [[nodiscard]] Result<Ticket> try_lock_in_turn(Access access, LockMode turn,
                                                CallSite site) noexcept;

  // Call the functions below with the mutex held.
  [[nodiscard]] bool has_pause() const noexcept { return opener_ == pauser && open_uses_ != 0; }
  [[nodiscard]] Failure paused(CallSite site) const noexcept;
  /// Returns the failure of a use of paused memory, and unlocks the mutex.
  [[nodiscard]] Failure leave_paused(CallSite site) noexcept;
  /// Returns whether a use must wait for open uses of other threads.
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
  void return_turn(const Ticket& ticket) noexcept {
    if (!ticket.has_turn()) return;
    --open_uses_;
    open_writes_ = static_cast<std::uint8_t>(open_writes_ - (ticket.is_write() ? 1 : 0));
    if (ticket.slot() != 0) [[unlikely]]
      leave_slot(ticket.slot());
  }
  [[nodiscard]] std::span<Entry> entries() noexcept { return {data(), count_}; }
  [[nodiscard]] Entry* data() noexcept { return entries_.data(); }
  [[nodiscard]] bool make_room() noexcept;
  void put(StreamRef stream, std::uint64_t sequence, std::uint64_t began, bool is_write) noexcept;
  void forget_up_to(std::uint64_t version) noexcept;
  /// Collects the marks that a use of the stream has to wait for. Returns false if the host has no
  /// memory.
  [[nodiscard]] bool add_waits(StreamId stream, Access access, MarkSet& waits) noexcept;
  /// Gives a mark to a use that is still to come.
  static void settle(Entry& entry) noexcept;
  /// Returns whether the use is done. Gives it a mark if its stream no longer accepts work.
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
    Tag paused = {};                        // of the memory, while it is paused
    std::array<Slot, Ticket::slots> slots;  // by the thread's number, or the next free one
  };

  static constexpr std::uint32_t several_threads = 0;
  static constexpr std::uint32_t pauser = ~std::uint32_t{0};  // no thread has this number
  static constexpr std::uint32_t max_entries = 0xFFFF;
  static constexpr std::uint32_t max_open_uses = 0xFFFF, max_open_writes = 0xFF;

  // Small members first, so that the first entry is in the second cache line of a Storage.
  mutable SpinLock mutex_;
  std::uint8_t open_writes_ = 0;  // guarded by mutex_, as are the members below
  std::uint16_t open_uses_ = 0;   // uses that hold the turn
  std::uint16_t count_ = 0;
  std::uint16_t capacity_ = inline_entries;
  std::uint32_t begun_ = 0;   // uses that have begun and will need an entry
  std::uint32_t opener_ = 0;  // the thread of all open uses, several_threads or pauser
  std::uint64_t version_ = 0;
  /// The first count_ elements are constructed. An InlineVector would store its size here, too, and
  /// push the first entry out of the second cache line.
  InlineStorage<Entry, inline_entries> entries_;
  static_assert(std::is_trivially_destructible_v<Entry>);
  std::unique_ptr<OtherUsers> others_;
};

}  // namespace tern
