// What all handles of one opened device share: the backend, its streams, its spare events.
//
// Streams live in slots that are made once and never move while the device is open, so that a mark
// finds its stream without a lock, and a reference to an ended stream is noticed instead of
// followed into freed memory. A slot is used again only when everything its last stream was asked
// about is done; sequence numbers go on rising across that, so an old mark can never look undone.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/fork_count.hpp"
#include "device/host_order.hpp"
#include "tern/core/process.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct StreamState {
  /// The host has seen everything up to this mark complete.
  void see_done(std::uint64_t sequence) noexcept;

  /// The last mark anybody holds. One that was promised as the next is taken for it. Not while the
  /// stream may end: behind its seal nothing is counted any more.
  [[nodiscard]] std::uint64_t last_promised() noexcept {
    if (has_next.load(std::memory_order_acquire)) {
      return issued.fetch_add(1, std::memory_order_acq_rel) + 1;
    }
    return issued.load(std::memory_order_acquire);
  }

  /// Would the stream of that name take work? A stream must not end while it is used, so the answer
  /// needs no order.
  [[nodiscard]] bool is_open_as(StreamId name_of_it) const noexcept {
    return id.load(std::memory_order_relaxed) == name_of_it.value() &&
           !has_ended.load(std::memory_order_relaxed);
  }
  /// Somebody holds its next mark, whichever that will be.
  void hold_next() noexcept {
    if (!has_next.load(std::memory_order_relaxed)) {
      has_next.store(true, std::memory_order_release);
    }
  }
  /// StreamRef::next_mark, of a stream that is open.
  [[nodiscard]] std::uint64_t promise_next() noexcept {
    hold_next();
    // Not before the submissions it stands for: whoever queued an event before one of those has
    // moved the count before, and the queue's own order makes that visible here.
    return issued.load(std::memory_order_relaxed) + 1;
  }

  /// An event recorded on the stream, the last mark it covers, and how many host threads wait for
  /// it right now. While any does, the event is neither recorded again, which would move their
  /// goal, nor given to anybody else.
  struct Record {
    std::uint64_t sequence = 0;
    NativeEvent event;
    std::uint32_t waiters = 0;
  };

  DeviceState* device = nullptr;
  NativeStream native;
  std::array<char, 32> name = {};
  std::uint64_t driver_id = 0;  // of a borrowed stream; guarded by the device's streams_mutex_
  std::size_t loans = 0;        // the same
  std::atomic<std::uint64_t> id = 0;      // 0: the slot is free
  std::atomic<std::uint64_t> issued = 0;  // the last mark taken
  std::atomic<std::uint64_t> done = 0;    // the last mark seen complete
  std::atomic<bool> has_ended = false;    // destroyed, but not all of its marks are done
  // Somebody holds the mark after the last one issued: the stream must not end without it.
  std::atomic<bool> has_next = false;
  // See StreamStay.
  std::atomic<std::uint32_t> stays = 0;
  std::atomic<bool> is_ending = false;

  // Calls that succeeded, of all streams that were in this slot (DeviceActivity).
  struct Counts {
    std::atomic<std::uint64_t> events = 0, stream_waits = 0, host_waits = 0, launches = 0;
  };
  Counts counts;
  /// Counts a call if it succeeded, and hands its result on.
  Result<void> count(std::atomic<std::uint64_t> Counts::*what,
                     const Result<void>& result) noexcept {
    if (result) (counts.*what).fetch_add(1, std::memory_order_relaxed);
    return result;
  }

  // Oldest first. Several, so that a stream which is asked often still shows progress; and never
  // recorded anew while listed, which would make older marks wait for newer work. A few are for
  // whoever asks, the more for those who record early; the last place is for the seal.
  static constexpr std::size_t asked_records = 4, early_records = 32;
  std::mutex mutex;
  std::array<Record, early_records + 1> records = {};  // guarded by mutex
  std::size_t record_count = 0;                        // guarded by mutex
  // The last mark it had as it ended. One that somebody took at that moment is beyond, and stands
  // for nothing that was not before.
  std::uint64_t sealed = 0;  // guarded by mutex
  // It ended without a record, on a device that was lost or did not answer: only a wait for the
  // whole device shows that its work is over, and until then it is not recycled.
  bool is_unsealed = false;  // guarded by mutex
};

/// What a stream carries for the library until it gets there. If it never does, because its device
/// was lost, the device has it and ends it.
struct Carried {
  Carried() = default;
  Carried(const Carried&) = delete;
  Carried& operator=(const Carried&) = delete;
  virtual ~Carried() = default;

 private:
  friend class DeviceState;
  Carried* previous = nullptr;
  Carried* next = nullptr;
};

/// What a layer above keeps for a device, made when it is first wanted and ended with the device.
///
/// It may own what keeps the device open by an inner handle. Nobody would ever close the device
/// then, so it is told when the last other handle is gone, and lets go of that.
struct Companion {
  Companion() = default;
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;
  virtual ~Companion() = default;

  /// Once, by whoever drops the last handle, with no lock held.
  virtual void let_go() noexcept = 0;
};

class DeviceState : public std::enable_shared_from_this<DeviceState> {
 public:
  static constexpr std::size_t max_streams = std::size_t{1} << StreamId::slot_bits;
  static constexpr std::size_t max_spare_events = 1024;

  explicit DeviceState(std::unique_ptr<Backend> backend);
  ~DeviceState();

  /// Makes the device known to marks. Once, right after construction.
  void publish();
  static const std::shared_ptr<DeviceState>& of(const Device& device) noexcept {
    return device.state_;
  }
  /// The first handle of a device. It and its copies, and what is made from them, are what its
  /// companion stays for. Once, after publish().
  [[nodiscard]] static std::shared_ptr<DeviceState> begin_handles(
      std::shared_ptr<DeviceState> state);
  /// Called whenever the last such handle of a device is gone, by whoever drops it, with no lock
  /// held: for a layer above that keeps what keeps devices open. One for all devices.
  static void tell_of_last_handles(void (*told)(DeviceState& device) noexcept) noexcept;
  /// Another such handle; if there are none any more, an inner one.
  [[nodiscard]] Device handle();
  /// Keeps the device open, and nothing else: a companion may hold it.
  [[nodiscard]] Device inner_handle() { return Device(shared_from_this()); }

  /// Null until it is made.
  [[nodiscard]] Companion* companion() const noexcept {
    return companion_.load(std::memory_order_acquire);
  }
  /// Makes it if there is none. It is told whether there are handles to stay for. There is one kind
  /// of companion; a second would need a list.
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
  /// The sum over all slots.
  [[nodiscard]] DeviceActivity activity() const noexcept;
  /// Made when it is first wanted.
  [[nodiscard]] Result<StreamRef> copy_stream() noexcept;

  /// Success if this process may use the device, after_fork in a forked child.
  [[nodiscard]] Result<void> check_process() const noexcept {
    if (is_same_process(generation_)) return {};
    return check_not_forked(generation_);
  }
  /// Who is told when one thread relies on what another has seen; null unless the backend asks.
  [[nodiscard]] HostOrder* host_order() const noexcept { return host_order_; }
  /// Has somebody seen it done? Without a lock, and so in a forked child too.
  [[nodiscard]] bool is_known_done(Mark mark) noexcept { return pending(mark) == nullptr; }
  [[nodiscard]] bool is_in_its_process() const noexcept { return is_same_process(generation_); }
  /// Unsupported, naming the ability and the device, if it was not declared.
  [[nodiscard]] Result<void> check_can(Capability capability) const noexcept;

  [[nodiscard]] Result<StreamRef> make_stream(const StreamOptions& options) noexcept;
  /// Of a stream that somebody else made; the one there is, if it was borrowed before.
  [[nodiscard]] Result<StreamRef> borrow_stream(NativeStream handle) noexcept;
  void end_stream(StreamRef stream) noexcept;
  static StreamState* state_of(StreamRef stream) noexcept { return stream.state_; }
  /// A copy that is loaded word by word, for hot paths: what was stored word by word just before
  /// cannot be loaded as a whole until it has reached the processor's cache.
  [[gnu::always_inline]] static StreamRef load_words(const StreamRef& stream) noexcept {
    StreamState* state = stream.state_;
    asm("" : "+r"(state));  // keeps the compiler from joining the two loads
    return {state, stream.id_};
  }
  /// By its name; no stream if it is not known any more, and then its marks are done. One that has
  /// ended is found while they are not.
  [[nodiscard]] static StreamRef find_stream(StreamId id) noexcept;
  /// A handle of each device that is open. Throws std::bad_alloc.
  [[nodiscard]] static std::vector<Device> open_handles();
  /// Refused with device_mismatch, naming both, if the address lies in the own memory of an open
  /// device other than `device`. Asks each of them; one that cannot say does not know it.
  [[nodiscard]] static Result<void> check_not_elsewhere(const Device& device,
                                                        const void* address) noexcept;

  /// From before it is handed to a stream until put_down(), or to the end of the device.
  void carry(Carried& load) noexcept;
  void put_down(Carried& load) noexcept;

  [[nodiscard]] Result<NativeEvent> take_event() noexcept;
  void give_event(NativeEvent event) noexcept;
  /// An event for somebody who may outlive the device: it ends with the device at the latest.
  [[nodiscard]] Result<NativeEvent> lend_event() noexcept;
  void take_back(NativeEvent event) noexcept;

  /// Waits for everything, and knows then that all marks are done.
  [[nodiscard]] Result<void> synchronize() noexcept;
  /// The first wait for everything that begins from now on, and has it ended?
  [[nodiscard]] std::uint64_t next_barrier() const noexcept { return barriers_begun_.load() + 1; }
  [[nodiscard]] bool has_passed(std::uint64_t barrier) const noexcept {
    return barriers_passed_.load(std::memory_order_acquire) >= barrier;
  }

  // Marks of this device's streams.
  /// Marks up to this one of the stream, and of those before it in its slot, are done as far as the
  /// host has seen. Asks nobody.
  [[nodiscard]] std::uint64_t last_done(StreamId id) const noexcept {
    const StreamState* stream = slots_[id.slot()].load(std::memory_order_acquire);
    return stream == nullptr ? 0 : stream->done.load(std::memory_order_acquire);
  }
  [[nodiscard]] Mark next_mark(StreamId id) noexcept;
  /// An event for the mark now rather than when somebody asks. Where there are many, earlier ones
  /// make room for it.
  [[nodiscard]] Result<void> record_early(Mark mark) noexcept;
  [[nodiscard]] Result<bool> is_done(Mark mark) noexcept;
  [[nodiscard]] Result<void> wait_on_host(Mark mark) noexcept;
  /// Queues a wait for the mark on `submission`'s stream of a device of the same backend.
  [[nodiscard]] Result<void> wait_on_stream(Mark mark, Backend& waiter,
                                            const Submission& submission) noexcept;

 private:
  friend class DeviceVisit;

  /// The stream of the mark if it may still have work before the mark, else null.
  StreamState* pending(Mark mark) noexcept;
  /// The same for whoever goes on at once if it is null.
  StreamState* pending_or_rely(Mark mark) noexcept {
    StreamState* const stream = pending(mark);
    if (stream == nullptr && host_order_ != nullptr) [[unlikely]] {
      host_order_->note_known_done(mark.stream.slot());
    }
    return stream;
  }
  /// An event that covers a mark. One that found no room among the stream's records is the
  /// caller's to give back.
  struct Covering {
    NativeEvent event;
    bool is_listed;
  };
  // All of these with the stream's mutex held.
  /// A next mark becomes one when it is asked about.
  static void take_next(StreamState& stream, Mark mark) noexcept;
  /// The oldest record that covers the mark, made now if there is none.
  [[nodiscard]] Result<Covering> cover(StreamState& stream, Mark mark) noexcept;
  /// If less than so many are listed, the new one is too.
  [[nodiscard]] Result<Covering> record_now(StreamState& stream, std::size_t places) noexcept;
  /// Forgets every second record, but not the last: marks between two wait for the later one.
  void thin_out(StreamState& stream) noexcept;
  /// Asks the oldest records, and forgets those that are complete.
  [[nodiscard]] Result<void> poll(StreamState& stream) noexcept;
  void erase_record(StreamState& stream, std::size_t index) noexcept;

  /// Waits for the device if the stream ended without a record. With the stream's mutex held.
  [[nodiscard]] Result<void> end_unsealed(StreamState& stream) noexcept;
  /// Frees the slot of an ended stream whose marks are all done.
  void recycle_if_done(StreamState& stream) noexcept;
  // All of these with streams_mutex_ held.
  struct FreeSlot {
    StreamState* stream;
    std::uint32_t slot;
  };
  [[nodiscard]] Result<FreeSlot> find_slot() noexcept;
  StreamState* free_slot(std::uint32_t& slot);
  [[nodiscard]] StreamRef begin_stream(const FreeSlot& place, NativeStream native,
                                       std::string_view name) noexcept;

  std::unique_ptr<Backend> backend_;
  const DeviceInfo& info_;  // the backend's; kept because every call asks it
  HostOrder* const host_order_;
  const std::uint64_t generation_;
  const DeviceId id_;
  std::size_t visits_ = 0;  // guarded by the mutex of the list of open devices
  std::atomic<std::uint64_t> barriers_begun_ = 0, barriers_passed_ = 0;

  std::array<std::atomic<StreamState*>, max_streams> slots_ = {};
  std::mutex streams_mutex_;
  std::size_t slot_count_ = 0;     // guarded by streams_mutex_
  std::uint32_t next_number_ = 0;  // guarded by streams_mutex_

  std::mutex copy_stream_mutex_;
  StreamRef copy_stream_;  // guarded by copy_stream_mutex_

  std::mutex events_mutex_;
  std::vector<NativeEvent> spare_events_;  // guarded by events_mutex_
  std::vector<NativeEvent> lent_events_;   // guarded by events_mutex_

  std::mutex carried_mutex_;
  Carried* carried_ = nullptr;  // guarded by carried_mutex_

  struct Handles;
  std::weak_ptr<DeviceState> first_handle_;  // set before anybody else knows the device
  std::mutex companion_mutex_;
  std::atomic<Companion*> companion_ = nullptr;  // made with companion_mutex_ held, and never again
  bool has_handles_ = true;                      // guarded by companion_mutex_
};

inline void StreamState::see_done(std::uint64_t sequence) noexcept {
  std::uint64_t seen = done.load(std::memory_order_relaxed);
  if (seen >= sequence) return;
  if (HostOrder* const order = device->host_order(); order != nullptr) [[unlikely]] {
    order->note_seen_done(StreamId::from(id.load(std::memory_order_relaxed)).slot());
  }
  while (seen < sequence &&
         !done.compare_exchange_weak(seen, sequence, std::memory_order_release)) {
  }
}

/// A device found by its number, as marks need it. While a visit lasts the device may begin to
/// close, which completes its work, but does not end. So a mark is never called done because its
/// device is about to be, and whoever closes a device returns when its work is complete.
class DeviceVisit {
 public:
  explicit DeviceVisit(DeviceId id) noexcept;
  ~DeviceVisit();
  DeviceVisit(const DeviceVisit&) = delete;
  DeviceVisit& operator=(const DeviceVisit&) = delete;

  /// False if no device of that number is open.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] DeviceState* operator->() const noexcept { return state_; }

 private:
  DeviceState* state_ = nullptr;
};

/// While it lasts, a stream does not end: whoever ends it waits. For what the library queues on
/// streams of others when they have said nothing, which would be lost behind the last mark that a
/// stream gives away as it ends. Brief, with its device open, and never by who ends streams.
class StreamStay {
 public:
  explicit StreamStay(StreamRef stream) noexcept : state_(DeviceState::state_of(stream)) {
    if (state_ == nullptr) return;
    state_->stays.fetch_add(1);
    if (!state_->is_ending.load() && state_->is_open_as(stream.id())) return;
    state_->stays.fetch_sub(1);
    state_ = nullptr;
  }
  ~StreamStay() {
    if (state_ != nullptr) state_->stays.fetch_sub(1);
  }
  StreamStay(const StreamStay&) = delete;
  StreamStay& operator=(const StreamStay&) = delete;

  /// False if the stream has ended, or is about to.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  StreamState* state_;
};

/// A failure with the call site of the user's line.
inline Failure at(CallSite site, const Failure& failure) noexcept {
  return Failure(failure).at(site);
}
inline Result<void> at(CallSite site, const Result<void>& result) noexcept {
  if (result) return result;
  return Failure(result.failure()).at(site);
}

}  // namespace tern
