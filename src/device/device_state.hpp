// DeviceState is the state that all handles of an open device share: the backend, the streams, the
// pool of spare events.
//
// Streams live in slots. A slot is created once and never moves while the device is open. A mark
// therefore finds its stream without a lock, and a stale StreamRef is detected instead of reading
// freed memory. A slot is reused only after all marks of its last stream are done. Sequence numbers
// keep increasing across reuse, so an old mark never looks pending.
//
// Foreign streams. A borrowed stream is found by the driver's id of the stream, without a lock. The
// device keeps a stream that is borrowed again and again: its state stays in the slot while nobody
// borrows it (it is idle), so that borrowing it again is one lookup and one atomic instruction. The
// owner may destroy an idle stream at any time, so nothing calls the driver with its handle.
//
// Locks, in the order in which they may be taken: settle_mutex_, then streams_mutex_, then
// StreamState::mutex, then events_mutex_.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fork_count.hpp"
#include "core/process.hpp"
#include "device/copy_times.hpp"
#include "device/host_order.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "trace/recording.hpp"

namespace tern {

/// The state of one stream, and of all streams that used its slot before.
struct StreamState {
  /// Records that the host has seen everything up to this mark complete.
  void see_done(std::uint64_t sequence) noexcept;
  /// Writes an event to the recording: the host has seen everything up to this mark complete.
  void record_done(std::uint64_t sequence) const noexcept;

  /// Returns the last mark that anybody holds. If somebody holds the next mark, issues it first. Do
  /// not call this function while the stream may end: marks issued after the seal are not counted.
  [[nodiscard]] std::uint64_t last_promised() noexcept {
    if (has_next.load(std::memory_order_acquire)) {
      return issued.fetch_add(1, std::memory_order_acq_rel) + 1;
    }
    return issued.load(std::memory_order_acquire);
  }

  // Who uses the stream, in one word, so that the last user leaves in one step: the number of the
  // stream, the loans, the pins, and flags. The owner of a stream has one loan; so has the device
  // for its default stream.
  static constexpr std::uint64_t number_mask = (std::uint64_t{1} << StreamId::number_bits) - 1;
  static constexpr std::uint64_t one_loan = std::uint64_t{1} << 28, loans_mask = 0xffff * one_loan;
  static constexpr std::uint64_t one_pin = std::uint64_t{1} << 44, pins_mask = 0xffff * one_pin;
  /// The last user must record an event: Tern has submitted work, or somebody needs a mark. Stays
  /// set if there was no event.
  static constexpr std::uint64_t must_seal = std::uint64_t{1} << 60;
  /// The stream is foreign and stays in its slot while nobody borrows it.
  static constexpr std::uint64_t is_kept = std::uint64_t{1} << 61;
  /// The program has no handle of the device left; the loans keep the device open.
  static constexpr std::uint64_t is_handed_over = std::uint64_t{1} << 62;
  /// The stream is about to end or changes hands: no new loan and no new pin.
  static constexpr std::uint64_t is_claimed = std::uint64_t{1} << 63;

  /// Returns true if `word` names this stream and somebody has a loan.
  [[nodiscard]] static bool is_lent(std::uint64_t word, StreamId name_of_it) noexcept {
    return ((word ^ name_of_it.value()) & number_mask) == 0 && (word & loans_mask) != 0;
  }
  /// Returns true if `word` names this stream and the device keeps it.
  [[nodiscard]] static bool is_kept_as(std::uint64_t word, StreamId name_of_it) noexcept {
    return ((word ^ name_of_it.value()) & number_mask) == 0 && (word & is_kept) != 0;
  }
  /// Returns true if this slot holds the stream `name_of_it` and the stream accepts work. A relaxed
  /// load is sufficient, because a stream must not end while it is in use.
  [[nodiscard]] bool is_open_as(StreamId name_of_it) const noexcept {
    return is_lent(use.load(std::memory_order_relaxed), name_of_it);
  }
  /// Returns true if the slot holds the stream `name_of_it` and memory may be freed in its order:
  /// it accepts work, or the device keeps it and nobody borrows it now.
  [[nodiscard]] bool accepts_frees_as(StreamId name_of_it) const noexcept {
    const std::uint64_t now = use.load(std::memory_order_relaxed);
    return ((now ^ name_of_it.value()) & number_mask) == 0 && (now & (loans_mask | is_kept)) != 0;
  }
  /// Takes a loan of the stream, if the slot still holds it and it accepts one.
  [[nodiscard]] bool try_lend(StreamId name_of_it) noexcept {
    std::uint64_t now = use.load(std::memory_order_relaxed);
    do {
      if (((now ^ name_of_it.value()) & number_mask) != 0 || (now & is_claimed) != 0 ||
          (now & (loans_mask | is_kept)) == 0 || (now & loans_mask) == loans_mask) {
        return false;
      }
    } while (!use.compare_exchange_weak(now, now + one_loan, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
    return true;
  }
  /// Ends a loan, if that needs no more than to count it. Nothing may use the state afterwards.
  [[nodiscard]] bool try_end_loan() noexcept {
    std::uint64_t now = use.load(std::memory_order_acquire);
    do {
      const bool is_last = (now & loans_mask) == one_loan;
      if ((now & is_handed_over) != 0 ||
          (is_last && (now & (is_kept | must_seal | pins_mask)) != is_kept)) {
        return false;
      }
    } while (!use.compare_exchange_weak(now, now - one_loan, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
    return true;
  }
  /// Claims an idle stream, so that nobody can borrow it until the claim ends.
  [[nodiscard]] bool try_claim_idle() noexcept {
    std::uint64_t now = use.load(std::memory_order_acquire);
    do {
      if ((now & (is_kept | is_claimed | loans_mask | pins_mask)) != is_kept) return false;
    } while (!use.compare_exchange_weak(now, now | is_claimed, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
    return true;
  }
  [[nodiscard]] bool is_idle() const noexcept {
    return (use.load(std::memory_order_acquire) & (is_kept | loans_mask)) == is_kept;
  }
  /// Returns true for a foreign stream that stays in its slot while nobody borrows it.
  [[nodiscard]] bool is_kept_by_device() const noexcept {
    return (use.load(std::memory_order_relaxed) & is_kept) != 0;
  }
  /// Notes that the stream must not become idle without an event after its work.
  void need_seal() noexcept {
    if ((use.load(std::memory_order_relaxed) & must_seal) == 0) use.fetch_or(must_seal);
  }

  /// Notes that somebody holds the next mark, so that the stream does not end without issuing it.
  void hold_next() noexcept {
    hold_next_of_free();
    need_seal();
  }
  /// Like hold_next() and promise_next(), for a pool that frees blocks: if the stream becomes idle,
  /// the mark gets no event until the stream is borrowed again.
  void hold_next_of_free() noexcept {
    if (!has_next.load(std::memory_order_relaxed)) {
      has_next.store(true, std::memory_order_release);
    }
  }
  [[nodiscard]] std::uint64_t promise_next_of_free() noexcept {
    hold_next_of_free();
    return issued.load(std::memory_order_relaxed) + 1;
  }
  /// Implements StreamRef::next_mark() for an open stream.
  [[nodiscard]] std::uint64_t promise_next() noexcept {
    hold_next();
    // A relaxed load is sufficient: a thread that recorded an event before one of the submissions
    // that this mark covers has already advanced `issued`, and the queue's own order makes that
    // visible here.
    return issued.load(std::memory_order_relaxed) + 1;
  }

  /// Implements StreamRef::try_mark() for an open stream.
  [[nodiscard]] std::uint64_t issue() noexcept {
    need_seal();
    return issued.fetch_add(1, std::memory_order_acq_rel) + 1;
  }

  // Whether all work of the stream is complete is known without a query if only Tern can use the
  // stream and the host has waited for every submission. `submissions` counts the calls that submit
  // work: in its low bits those that have not returned, above them all of them. `awaited` is its
  // value at the beginning of the last wait. If a call was active then, its work may have been
  // submitted too late for the wait; that value never equals one without active calls.
  static constexpr std::uint64_t one_submission = std::uint64_t{1} << 16;
  static constexpr std::uint64_t active_mask = one_submission - 1;

  /// Begins a call that submits work. Returns whether the stream is known to be idle.
  [[nodiscard]] bool begin_submission() noexcept {
    const std::uint64_t before =
        submissions.fetch_add(one_submission + 1, std::memory_order_acq_rel);
    return (before & active_mask) == 0 && before == awaited.load(std::memory_order_acquire) &&
           is_private.load(std::memory_order_relaxed);
  }
  void end_submission() noexcept { submissions.fetch_sub(1, std::memory_order_release); }
  /// Notes that the host has waited for the stream, or that it is new. `before` is the value of
  /// `submissions` at the beginning of the wait.
  void note_idle(std::uint64_t before) noexcept {
    awaited.store(before, std::memory_order_release);
  }

  /// An event recorded on the stream, the last mark that it covers, and the number of host threads
  /// that are waiting for it. While a thread waits, the event is not recorded again, which would
  /// extend the wait, and is not given to another user.
  struct Record {
    std::uint64_t sequence = 0;
    NativeEvent event;
    std::uint32_t waiters = 0;
  };

  /// Reports that work of the stream failed after it was submitted. The next synchronize() of the
  /// stream returns the failure. If there is one already, it stays. For host functions: calls
  /// nothing.
  void report_late(StreamId of, const Failure& failure) noexcept {
    const std::lock_guard lock(late_lock);
    if (late_failure && late_of == of.value()) return;
    late_failure = failure;
    late_of = of.value();
    has_late_failure.store(true, std::memory_order_release);
  }
  /// Returns the reported failure, once.
  [[nodiscard]] Result<void> take_late(StreamId of) noexcept {
    if (!has_late_failure.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(late_lock);
    const std::optional<Failure> failure = std::exchange(late_failure, std::nullopt);
    has_late_failure.store(false, std::memory_order_relaxed);
    // An earlier stream of the slot may have left one.
    return failure && late_of == of.value() ? Result<void>(*failure) : Result<void>();
  }

  DeviceState* device = nullptr;
  NativeStream native;
  std::array<char, 32> name = {};
  // Borrowed streams only, else 0. Written with the device's streams_mutex_ held.
  std::atomic<std::uint64_t> driver_id = 0;
  std::atomic<std::uintptr_t> foreign_handle = 0;
  std::atomic<std::uint64_t> use = 0;
  std::atomic<std::uint64_t> id = 0;      // 0: the slot is free
  std::atomic<std::uint64_t> issued = 0;  // the last mark taken
  std::atomic<std::uint64_t> done = 0;    // the last mark seen complete
  std::atomic<bool> has_ended = false;    // destroyed, but not all of its marks are done
  // Somebody holds the mark after the last one issued. The stream must not end without issuing it.
  std::atomic<bool> has_next = false;
  std::atomic<std::uint64_t> submissions = 0, awaited = 0;
  /// Tern created the stream, no other stream delays it, and the program has no handle of it.
  std::atomic<bool> is_private = false;
  // Successful calls of all streams that used this slot, for DeviceActivity.
  struct Counts {
    std::atomic<std::uint64_t> events = 0, stream_waits = 0, host_waits = 0, launches = 0;
  };
  Counts counts;
  /// Counts a call if it succeeded, and returns its result.
  Result<void> count(std::atomic<std::uint64_t> Counts::*what,
                     const Result<void>& result) noexcept {
    if (result) (counts.*what).fetch_add(1, std::memory_order_relaxed);
    return result;
  }

  SpinLock late_lock;  // guards the next two
  std::optional<Failure> late_failure;
  std::uint64_t late_of = 0;  // the id of the stream
  std::atomic<bool> has_late_failure = false;

  // Pending events of the stream, oldest first. There are several, so that a stream whose marks are
  // queried often still shows progress. A listed event is never recorded again, because older marks
  // would then wait for newer work. Queries use up to asked_records entries and record_early() up
  // to early_records. The last entry is reserved for the seal.
  static constexpr std::size_t asked_records = 4, early_records = 32;
  std::mutex mutex;
  std::array<Record, early_records + 1> records = {};  // guarded by mutex
  std::size_t record_count = 0;                        // guarded by mutex
  // The last mark of the stream when it ended. A mark issued at that moment may have a higher
  // number but covers no additional work.
  std::uint64_t sealed = 0;  // guarded by mutex
  // The stream ended without a last event, because the device was lost or did not answer. Only a
  // wait for the whole device, with all streams that the backend does not know, shows that its work
  // is over, and the slot is not reused before that.
  bool is_unsealed = false;  // guarded by mutex
  // The stream is unsealed because its owner destroyed it while it was idle.
  bool has_vanished = false;   // guarded by mutex
  std::uint64_t settling = 0;  // guarded by the device's settle_mutex_
};

/// An object that a stream delivers to the library when it reaches a host function. If the stream
/// never gets there, because the device was lost, the device owns the object and deletes it.
struct InFlightObject {
  InFlightObject() = default;
  InFlightObject(const InFlightObject&) = delete;
  InFlightObject& operator=(const InFlightObject&) = delete;
  virtual ~InFlightObject() = default;

  /// Called when the library learns that the device is lost, before it tells the program, and
  /// possibly several times. Afterwards, the program and the library free the memory of lost work.
  /// An object whose memory something else than the device uses, such as the disk, waits here until
  /// that use has ended.
  virtual void on_device_lost(const Failure& why) noexcept { static_cast<void>(why); }

 private:
  friend class DeviceState;
  InFlightObject* previous = nullptr;
  InFlightObject* next = nullptr;
};

/// State that a higher layer attaches to a device. It is created on first use and destroyed with
/// the device.
///
/// A companion may own objects that keep the device open through an inner handle, and then the
/// device would never close. The device therefore calls on_last_handle() when the last other handle
/// is gone, and the companion releases those objects.
struct Companion {
  Companion() = default;
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;
  virtual ~Companion() = default;

  /// Called once, by the thread that drops the last handle, without a lock held.
  virtual void on_last_handle() noexcept = 0;
};

class DeviceState : public std::enable_shared_from_this<DeviceState> {
 public:
  static constexpr std::size_t max_streams = std::size_t{1} << StreamId::slot_bits;
  static constexpr std::size_t max_spare_events = 1024;

  explicit DeviceState(std::unique_ptr<Backend> backend);
  ~DeviceState();

  /// Registers the device so that marks can find it. Call it once, right after construction.
  void publish();
  static const std::shared_ptr<DeviceState>& of(const Device& device) noexcept {
    return device.state_;
  }
  /// Returns the first program handle of a device. This handle, its copies, and the streams and
  /// events made from them are the program handles; inner handles are not. The companion keeps its
  /// objects as long as a program handle exists. Call it once, after publish().
  [[nodiscard]] static std::shared_ptr<DeviceState> begin_handles(
      std::shared_ptr<DeviceState> state);
  /// Sets a function that is called when the last program handle of any device is gone, by the
  /// thread that drops it and without a lock held. For a higher layer that holds objects which keep
  /// devices open. There is one function for all devices.
  static void on_last_handle_of_device(void (*told)(DeviceState& device) noexcept) noexcept;
  /// Returns another program handle. If none is left, returns an inner handle.
  [[nodiscard]] Device handle();
  /// Returns an inner handle: it keeps the device open but is not a program handle. A companion may
  /// hold it.
  [[nodiscard]] Device inner_handle() { return Device(shared_from_this()); }

  /// Returns null until make_companion() was called.
  [[nodiscard]] Companion* companion() const noexcept {
    return companion_.load(std::memory_order_acquire);
  }
  /// Creates the companion if there is none, and passes whether the program still has handles.
  /// There is only one kind of companion; a second kind would need a list.
  template <class Kind>
  [[nodiscard]] Companion& make_companion() {
    const std::lock_guard lock(companion_mutex_);
    if (companion() == nullptr) {
      companion_.store(new Kind(has_handles_), std::memory_order_release);
    }
    return *companion();
  }

  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  [[nodiscard]] const DeviceInfo& info() const noexcept { return info_; }
  [[nodiscard]] DeviceId id() const noexcept { return id_; }
  [[nodiscard]] StreamRef default_stream() noexcept;
  /// Returns the sum over all slots.
  [[nodiscard]] DeviceActivity activity() const noexcept;
  /// Returns the library's stream for copies, which is created on first use.
  [[nodiscard]] Result<StreamRef> copy_stream() noexcept;

  /// Succeeds if this process may use the device. Fails with after_fork in a forked child.
  [[nodiscard]] Result<void> check_process() const noexcept {
    if (is_same_process(generation_)) return {};
    return check_not_forked(generation_);
  }
  /// Returns the observer of order between host threads, or null if the backend does not want one.
  [[nodiscard]] HostOrder* host_order() const noexcept { return host_order_; }
  /// Calls the function for the observer of each open device.
  static void note_host_order(void (HostOrder::*note)(std::uint64_t) noexcept,
                              std::uint64_t tag) noexcept;
  /// Returns true if the host has already seen the mark done. Takes no lock, so it works in a
  /// forked child too.
  [[nodiscard]] bool is_known_done(Mark mark) noexcept { return pending(mark) == nullptr; }
  [[nodiscard]] bool is_in_its_process() const noexcept { return is_same_process(generation_); }
  /// Fails with unsupported, naming the capability and the device, if it was not declared.
  [[nodiscard]] Result<void> check_can(Capability capability) const noexcept;

  [[nodiscard]] Result<StreamRef> make_stream(const StreamOptions& options) noexcept;
  /// Borrows a stream by its driver handle, until end_loan(), if the stream is already borrowed or
  /// is kept from an earlier loan. Returns an empty reference otherwise. The loan keeps the device
  /// open.
  [[nodiscard]] StreamRef borrow_known(NativeStream handle) noexcept {
    const StreamIdentity identity = backend_->identify_stream(handle);
    return identity.is_default ? lend_default() : find_lendable(identity.id);
  }
  /// Borrows any stream.
  /// With `keep`, the device keeps the stream from the first loan on: memory will be freed in its
  /// order without a loan.
  [[nodiscard]] Result<StreamRef> borrow_stream(NativeStream handle, bool keep = false) noexcept;
  /// Ends a loan. If it was the last one, ends the stream, or leaves it idle if the device keeps
  /// it.
  static void end_loan(StreamRef stream) noexcept;
  /// Returns true if the mark has no event, and gets none until the idle stream is borrowed again.
  /// A wait for such a mark waits for the whole device. Requests an event from the next loan.
  [[nodiscard]] bool is_out_of_reach(Mark mark) noexcept;
  /// Waits until the device has passed all work of the context, and so everything that idle streams
  /// promised.
  [[nodiscard]] Result<void> settle_idle() noexcept;
  /// Ends a stream: waits for StreamPins, records a last event for pending marks (the seal), and
  /// destroys the driver's stream. See docs/architecture.md.
  void end_stream(StreamRef stream) noexcept;
  static StreamState* state_of(StreamRef stream) noexcept { return stream.state_; }
  /// Waits like StreamRef::try_synchronize(), but leaves a reported late failure to the program.
  /// The library waits for streams of the program with this function.
  [[nodiscard]] static Result<void> wait_for_stream(StreamRef stream, CallSite site) noexcept;
  /// Returns a copy of the reference, loaded word by word, for hot paths. The two words were often
  /// stored separately just before, and a single wide load would have to wait until both stores
  /// have reached the processor's cache.
  [[gnu::always_inline]] static StreamRef load_words(const StreamRef& stream) noexcept {
    StreamState* state = stream.state_;
    asm("" : "+r"(state));  // keeps the compiler from joining the two loads
    return {state, stream.id_};
  }
  /// Returns the stream with this id. Returns an empty reference if the slot was freed; the marks
  /// of the stream are then done. An ended stream is found as long as its slot is not freed.
  [[nodiscard]] static StreamRef find_stream(StreamId id) noexcept;
  /// Like find_stream(), for a stream of this device.
  [[nodiscard]] StreamRef stream_of(StreamId id) const noexcept {
    StreamState* const stream = slots_[id.slot()].load(std::memory_order_acquire);
    if (stream == nullptr || stream->id.load(std::memory_order_acquire) != id.value()) return {};
    return {stream, id};
  }
  /// Like next_mark(), for whoever frees memory: the mark of a stream that the device keeps gets no
  /// event when the stream becomes idle.
  [[nodiscard]] Mark next_mark_of_free(StreamId id) noexcept;
  /// Returns a handle to each open device. Throws std::bad_alloc.
  [[nodiscard]] static std::vector<Device> open_handles();
  /// Fails with device_mismatch, naming both devices, if the address lies in memory of an open
  /// device other than `device`. Queries every open device; a device that cannot answer does not
  /// count.
  [[nodiscard]] static Result<void> check_not_elsewhere(const Device& device,
                                                        const void* address) noexcept;

  /// add_in_flight_object() registers an object before it is passed to a stream.
  /// remove_in_flight_object() unregisters it. Objects that are still registered when the device
  /// closes are deleted.
  void add_in_flight_object(InFlightObject& load) noexcept;
  void remove_in_flight_object(InFlightObject& load) noexcept;
  /// Tells the registered objects if a wait or a query found that the device is lost. Call it
  /// before the outcome is returned, with no lock held.
  template <class T>
  void note_if_lost(const Result<T>& outcome) noexcept {
    if (!outcome && outcome.failure().code() == ErrorCode::device_lost) [[unlikely]] {
      note_lost(outcome.failure());
    }
  }
  void note_lost(const Failure& why) noexcept;

  /// take_event() returns an event from the pool, or a new one. give_event() puts an event back.
  [[nodiscard]] Result<NativeEvent> take_event() noexcept;
  void give_event(NativeEvent event) noexcept;
  /// Lends an event to an object that may outlive the device. The device destroys the event when it
  /// closes, unless take_back() was called before.
  [[nodiscard]] Result<NativeEvent> lend_event() noexcept;
  void take_back(NativeEvent event) noexcept;

  /// Waits for all work of the device. Marks issued before are then known to be done, for streams
  /// in the first 64 slots. Marks of other streams are queried when needed.
  [[nodiscard]] Result<void> synchronize(CallSite site) noexcept;
  /// Work that the host waited for, or saw complete without a wait, as recordings describe it. With
  /// neither a mark nor an event: all work of the stream.
  struct DoneWork {
    StreamId stream = {};        // empty: all work of the device
    std::uint64_t sequence = 0;  // sequence number of a mark of the stream
    NativeEvent event = {};      // event of the program
  };
  /// Records that the host waited for the work from `begun_ns` until now.
  void record_host_wait(const DoneWork& done, std::uint64_t begun_ns, CallSite site) noexcept;
  /// Records that the host saw the work complete without a wait. `tern check` needs these events to
  /// know the order.
  void record_done_seen(const DoneWork& done) const noexcept;
  /// The simulated device has no times, and more events would change its schedule.
  [[nodiscard]] bool has_copy_times() const noexcept {
    return info().backend != "sim" && info().capabilities.has(Capability::event_timing);
  }
  [[nodiscard]] CopyTimes& copy_times() noexcept { return copy_times_; }
  /// A barrier is one wait for the whole device. next_barrier() returns the number of the first
  /// barrier that begins after the call; has_passed() returns true once that barrier or a later one
  /// has ended.
  [[nodiscard]] std::uint64_t next_barrier() const noexcept { return barriers_begun_.load() + 1; }
  [[nodiscard]] bool has_passed(std::uint64_t barrier) const noexcept {
    return barriers_passed_.load(std::memory_order_acquire) >= barrier;
  }

  // --- Marks of this device's streams
  /// Returns the last mark of the slot that the host has seen done, for the stream and for earlier
  /// streams of its slot. Does not query the driver.
  [[nodiscard]] std::uint64_t last_done(StreamId id) const noexcept {
    const StreamState* stream = slots_[id.slot()].load(std::memory_order_acquire);
    return stream == nullptr ? 0 : stream->done.load(std::memory_order_acquire);
  }
  [[nodiscard]] Mark next_mark(StreamId id) noexcept;
  /// Records an event for the mark now instead of on the first query. If too many events are
  /// pending, drops every second older one.
  [[nodiscard]] Result<void> record_early(Mark mark) noexcept;
  [[nodiscard]] Result<bool> is_done(Mark mark) noexcept;
  [[nodiscard]] Result<void> wait_on_host(Mark mark, CallSite site) noexcept;
  /// Queues a wait for the mark on the stream of `submission`, which may belong to another device
  /// of the same backend.
  [[nodiscard]] Result<void> wait_on_stream(Mark mark, Backend& waiter,
                                            const Submission& submission) noexcept;

 private:
  friend class DeviceScope;

  /// Returns the stream of the mark if work up to the mark may be pending, else null.
  StreamState* pending(Mark mark) noexcept;
  /// Like pending(). If the result is null, the caller continues immediately, so the observer of
  /// host order is told that this thread relies on the mark.
  StreamState* pending_or_rely(Mark mark) noexcept {
    StreamState* const stream = pending(mark);
    if (stream == nullptr && host_order_ != nullptr) [[unlikely]] {
      host_order_->note_known_done(mark.stream.slot());
    }
    return stream;
  }
  /// An event that covers a mark. If the list of the stream's records was full, the event is not
  /// listed and the caller must return it with give_event().
  struct Covering {
    NativeEvent event;
    bool is_listed = false;
    bool is_out_of_reach = false;  // there is no event: the stream is idle
  };
  // The next functions require the mutex of the stream.
  /// Issues the mark if it is the next mark of the stream.
  static void take_next(StreamState& stream, Mark mark) noexcept;
  /// What to do if the list of records is full: query the driver for records that are complete, or
  /// replace the newest record. The event of the new record also covers the marks of the replaced
  /// one, so a stream can wait for it. A wait of a stream then costs two driver calls and no more.
  enum class WhenFull : std::uint8_t { poll, replace };
  /// Returns the oldest record that covers the mark, or records a new event.
  [[nodiscard]] Result<Covering> cover(StreamState& stream, Mark mark, WhenFull what) noexcept;
  /// Records an event now. Lists it if fewer than `places` records are listed.
  [[nodiscard]] Result<Covering> record_now(StreamState& stream, std::size_t places,
                                            WhenFull what) noexcept;
  /// Drops every second record except the last. Marks that a dropped record covered are then
  /// covered by the next later record.
  void thin_out(StreamState& stream) noexcept;
  /// Queries the records with as few driver calls as possible, and drops those that are complete.
  [[nodiscard]] Result<void> poll(StreamState& stream) noexcept;
  void erase_record(StreamState& stream, std::size_t index) noexcept;

  /// These functions return a stream with a new loan, or an empty reference.
  [[nodiscard]] StreamRef lend_default() noexcept;
  [[nodiscard]] StreamRef find_lendable(std::uint64_t driver_id) noexcept;
  void end_loan_slowly(StreamState& stream) noexcept;
  /// Ends the stream, or records an event after the work of a stream that the device keeps. Returns
  /// false if a kept stream accepts no event, for example because it is being captured. Only a wait
  /// for the whole device then shows that its work is over. The stream must be claimed.
  [[nodiscard]] bool seal(StreamState& stream) noexcept;
  /// Lets the loans keep the device open when the last handle of the program is gone. Returns false
  /// if there are none.
  [[nodiscard]] bool hand_over_to_loans(const std::shared_ptr<DeviceState>& state) noexcept;
  [[nodiscard]] bool has_loans() const noexcept;
  /// Ends all idle streams. Those that still exist get a new state when they are borrowed again.
  void retire_idle() noexcept;
  /// Waits for the streams that the backend does not know: those that the device keeps, and those
  /// that have ended without an event.
  [[nodiscard]] Result<void> wait_for_unknown() noexcept;
  [[nodiscard]] Result<void> synchronize_context() noexcept;

  /// Waits for the device if the stream ended without a last event. Requires the mutex of the
  /// stream.
  [[nodiscard]] Result<void> end_unsealed(StreamState& stream) noexcept;
  /// Frees the slot of an ended stream if all its marks are done. Takes the mutex of the stream.
  void recycle_if_done(StreamState& stream) noexcept;
  // The next functions require streams_mutex_.
  struct FreeSlot {
    StreamState* stream;
    std::uint32_t slot;
  };
  [[nodiscard]] Result<FreeSlot> find_slot() noexcept;
  StreamState* free_slot(std::uint32_t& slot);
  [[nodiscard]] StreamRef begin_stream(const FreeSlot& place, NativeStream native,
                                       std::string_view name, trace::StreamOrder order,
                                       std::uint64_t flags = StreamState::must_seal) noexcept;
  [[nodiscard]] Result<StreamRef> begin_borrowed(NativeStream handle, bool keep) noexcept;
  /// Ends a claimed idle stream whose owner has destroyed it.
  void retire(StreamState& stream) noexcept;
  [[nodiscard]] bool is_full_of_kept(const Failure& failure) const noexcept;
  /// Ends the idle streams whose promises are done. Returns true if there were any.
  bool retire_settled() noexcept;
  /// Returns true once a stream has been borrowed often enough to be kept.
  [[nodiscard]] bool is_borrowed_often(std::uint64_t driver_id) noexcept;
  void remember_foreign(std::uint64_t driver_id, std::uint32_t slot) noexcept;

  std::unique_ptr<Backend> backend_;
  const DeviceInfo& info_;  // belongs to the backend; cached because every call reads it
  HostOrder* const host_order_;
  CopyTimes copy_times_;
  const std::uint64_t generation_;
  const DeviceId id_;
  std::size_t visits_ = 0;  // guarded by OpenDevices::mutex
  std::atomic<std::uint64_t> barriers_begun_ = 0, barriers_passed_ = 0;

  std::array<std::atomic<StreamState*>, max_streams> slots_ = {};
  std::mutex streams_mutex_;
  std::size_t slot_count_ = 0;     // guarded by streams_mutex_
  std::uint32_t next_number_ = 0;  // guarded by streams_mutex_

  // The slots of foreign streams, by a hash of the driver's id: at most max_probes places after the
  // hash. An entry may be outdated: the state in the slot has the id that counts. 0: unused.
  static constexpr std::size_t foreign_places = 2 * max_streams, max_probes = 8;
  std::array<std::atomic<std::uint16_t>, foreign_places> foreign_slots_ = {};
  /// How often a stream was borrowed while the device did not keep it.
  struct Seen {
    std::uint64_t driver_id = 0;
    std::uint32_t times = 0;
  };
  static constexpr std::uint32_t keep_after = 8;
  static constexpr std::size_t max_kept = 1024;
  std::array<Seen, 256> seen_ = {};  // guarded by streams_mutex_
  std::size_t kept_count_ = 0;       // guarded by streams_mutex_
  // A foreign stream was borrowed, or a stream has ended without an event.
  std::atomic<bool> has_unknown_ = false;
  std::size_t handed_over_count_ = 0;         // guarded by streams_mutex_; states with that flag
  std::shared_ptr<DeviceState> loan_handle_;  // guarded by streams_mutex_; held for the loans
  std::mutex settle_mutex_;

  std::mutex copy_stream_mutex_;
  StreamRef copy_stream_;  // guarded by copy_stream_mutex_

  std::mutex events_mutex_;
  std::vector<NativeEvent> spare_events_;  // guarded by events_mutex_
  std::vector<NativeEvent> lent_events_;   // guarded by events_mutex_

  std::mutex in_flight_objects_mutex_;
  InFlightObject* in_flight_objects_ = nullptr;  // guarded by in_flight_objects_mutex_

  struct Handles;
  std::mutex first_handle_mutex_;
  std::weak_ptr<DeviceState> first_handle_;  // guarded by first_handle_mutex_
  std::mutex companion_mutex_;
  std::atomic<Companion*> companion_ = nullptr;  // set once, with companion_mutex_ held
  bool has_handles_ = true;                      // guarded by companion_mutex_
};

inline void StreamState::see_done(std::uint64_t sequence) noexcept {
  std::uint64_t seen = done.load(std::memory_order_relaxed);
  if (seen >= sequence) return;
  if (HostOrder* const order = device->host_order(); order != nullptr) [[unlikely]] {
    order->note_seen_done(StreamId::from(id.load(std::memory_order_relaxed)).slot());
  }
  if (trace::is_recording()) [[unlikely]]
    record_done(sequence);
  while (seen < sequence &&
         !done.compare_exchange_weak(seen, sequence, std::memory_order_release)) {
  }
}

/// Finds an open device by its id, as marks need it, and delays its destruction. During a visit the
/// device may begin to close, which completes its work, but its state is not destroyed. A mark is
/// therefore never reported as done only because its device is about to close, and the thread that
/// closes a device returns after the work is complete.
class DeviceScope {
 public:
  explicit DeviceScope(DeviceId id) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /// Returns false if no device with this id is open.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] DeviceState* operator->() const noexcept { return state_; }

 private:
  DeviceState* state_ = nullptr;
};

/// Delays the end of a stream while the library queues work on it on its own, for example to free a
/// buffer. Without a pin, that work could come after the last mark of an ending stream and would
/// be lost. Keep a pin for a few instructions only, keep the device open meanwhile, and never end
/// a stream while holding one.
class StreamPin {
 public:
  /// Whether a stream that the device keeps and nobody borrows can be pinned. Its owner may have
  /// destroyed it, so the caller may take marks and must not call the driver with the handle.
  enum class Idle : std::uint8_t { refused, accepted };

  explicit StreamPin(StreamRef stream, Idle idle = Idle::refused) noexcept
      : state_(DeviceState::state_of(stream)) {
    if (state_ == nullptr) return;
    const std::uint64_t before = state_->use.fetch_add(StreamState::one_pin);
    if ((before & StreamState::is_claimed) == 0 &&
        (StreamState::is_lent(before, stream.id()) ||
         (idle == Idle::accepted && StreamState::is_kept_as(before, stream.id())))) {
      return;
    }
    state_->use.fetch_sub(StreamState::one_pin);
    state_ = nullptr;
  }
  ~StreamPin() {
    if (state_ != nullptr) state_->use.fetch_sub(StreamState::one_pin);
  }
  StreamPin(const StreamPin&) = delete;
  StreamPin& operator=(const StreamPin&) = delete;

  /// Returns false if the stream has ended or is about to end. Do not queue work then.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  StreamState* state_;
};

/// These functions return the failure or the result with the call site of the user's line.
inline Failure at(CallSite site, const Failure& failure) noexcept {
  return Failure(failure).at(site);
}
inline Result<void> at(CallSite site, const Result<void>& result) noexcept {
  if (result) return result;
  return Failure(result.failure()).at(site);
}

}  // namespace tern
