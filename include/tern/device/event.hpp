// An Event represents a point in the work of a stream, once the stream has recorded it.
//
//   Event start = Event::timed(device), end = Event::timed(device);
//   stream.record(start);
//   stream.launch(kernel, size, arguments);
//   stream.record(end);
//   end.synchronize();
//   std::uint64_t ns = end.elapsed_ns(start);
//
// Prefer marks (mark.hpp): they express the same order without a driver call. Use an Event to
// measure time, or to exchange order with code that works with events.
//
// An event that was never recorded orders nothing and counts as done. A wait on an event refers to
// the latest record at the time of the wait; recording the event again later does not change
// earlier waits. An Event keeps its device open. Events without timing come from a pool of the
// device and return to it.
//
// Thread-compatible: recording and moving need exclusive access. Several streams may wait for one
// event at the same time.

#pragma once

#include <cstdint>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class TERN_EXPORT Event {
 public:
  /// An event without a device. It counts as done and cannot be recorded.
  Event() noexcept = default;
  /// Creates an event without timing. Throws the failure that try_make() returns.
  explicit Event(const Device& device, CallSite site = CallSite::here());
  /// Creates an event without timing. Fails with invalid_device if the device is not open.
  [[nodiscard]] static Result<Event> try_make(const Device& device) noexcept;
  /// Creates an event for elapsed_ns(). Also fails with unsupported if the device lacks
  /// Capability::event_timing.
  [[nodiscard]] static Result<Event> try_make_timed(const Device& device) noexcept;
  [[nodiscard]] static Event timed(const Device& device, CallSite site = CallSite::here()) {
    return try_make_timed(device).value(site);
  }
  /// Borrows an event that other code created and recorded on this device, by its driver handle, so
  /// that Tern can wait for it. The owner must keep the event alive until this Event is destroyed,
  /// and destroying this Event does not change the owner's event. Fails with invalid_argument for a
  /// null handle.
  [[nodiscard]] static Result<Event> try_borrow(const Device& device, NativeEvent handle) noexcept;

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// Returns the device of the event, or the empty id for an event without a device.
  [[nodiscard]] DeviceId device_id() const noexcept;
  /// Returns true once a stream has recorded the event. Always true for a borrowed event.
  [[nodiscard]] bool is_recorded() const noexcept { return is_recorded_; }
  /// Returns the handle of the backend. Returns null for an empty event, such as one that was moved
  /// from.
  [[nodiscard]] NativeEvent native() const noexcept { return native_; }

  /// Returns true if the work up to the latest record has completed, or if the event was never
  /// recorded. Does not wait.
  [[nodiscard]] Result<bool> try_is_done() const noexcept;
  [[nodiscard]] bool is_done(CallSite site = CallSite::here()) const {
    return try_is_done().value(site);
  }
  /// Blocks the host until the work up to the latest record has completed. Returns immediately if
  /// the event was never recorded.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(site); }

  /// Returns the time from `start` to this event in nanoseconds. Both events must have been created
  /// with timing, recorded, and completed; otherwise the call fails with stream_misuse. Fails with
  /// device_mismatch if the events belong to different devices.
  [[nodiscard]] Result<std::uint64_t> try_elapsed_ns(const Event& start) const noexcept;
  [[nodiscard]] std::uint64_t elapsed_ns(const Event& start,
                                         CallSite site = CallSite::here()) const {
    return try_elapsed_ns(start).value(site);
  }

 private:
  friend class StreamRef;
  Event(std::shared_ptr<DeviceState> device, NativeEvent native, bool has_timing) noexcept;
  [[nodiscard]] static Result<Event> try_create(const Device& device, bool has_timing) noexcept;
  void end() noexcept;

  std::shared_ptr<DeviceState> device_;
  NativeEvent native_;
  bool has_timing_ = false;
  bool is_recorded_ = false;
  StreamId recorded_by_;  // none if other code has recorded the event
  bool is_borrowed_ = false;
};

// A Timeline is a counter that only increases. Streams and the host set it; the host waits for it.
//
//   Timeline timeline;
//   timeline.set(stream, 1);   // when the work submitted so far has completed
//   timeline.wait(1);
//
// A stream sets a value when the device *completes* the preceding work, not when the work is
// submitted. The host sets a value immediately. Setting a value below the current one has no
// effect. wait() never misses a value that was reached before or during the call.
//
// Copies refer to the same timeline. The timeline lives until the last handle is gone and the last
// stream that will set it has done so. Thread-safe.

struct TimelineState;

class TERN_EXPORT Timeline {
 public:
  /// Creates a timeline with an initial value. Throws std::bad_alloc.
  explicit Timeline(std::uint64_t value = 0);
  // Copies refer to the same timeline. There is no move constructor, because a timeline that was
  // moved from would have no state.
  Timeline(const Timeline&) noexcept = default;
  Timeline& operator=(const Timeline&) noexcept = default;

  /// Returns the current value.
  [[nodiscard]] std::uint64_t value() const noexcept;

  /// Raises the value now and wakes waiting threads.
  void set(std::uint64_t value) noexcept;
  /// Raises the value when the stream has completed everything submitted to it so far. Needs
  /// Capability::host_functions. Fails with stream_misuse if the stream does not accept work, and
  /// with out_of_memory.
  Result<void> try_set(StreamRef stream, std::uint64_t value,
                       CallSite site = CallSite::here()) const noexcept;
  void set(StreamRef stream, std::uint64_t value, CallSite site = CallSite::here()) const {
    try_set(stream, value, site).value();
  }

  /// Blocks the host until the value is reached, for at most `timeout_ns` nanoseconds. 0 waits
  /// without a limit. Fails with timeout, which carries the awaited value and the current value.
  /// Fails with the failure of the device if the work of the stream that would set the value
  /// failed.
  Result<void> try_wait(std::uint64_t value, std::uint64_t timeout_ns = 0) const noexcept;
  void wait(std::uint64_t value, std::uint64_t timeout_ns = 0,
            CallSite site = CallSite::here()) const {
    try_wait(value, timeout_ns).value(site);
  }

 private:
  std::shared_ptr<TimelineState> state_;
};

}  // namespace tern
