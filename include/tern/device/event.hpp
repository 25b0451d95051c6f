// An Event stands for a point in a stream, once that stream has recorded it.
//
// Marks do the same for nothing and are what to use by default; an Event is for measuring time, for
// code that speaks in events, and for handing order to other libraries. It comes from a pool of its
// device and goes back there. One that was never recorded orders nothing and counts as done; a wait
// keeps the record it saw, whatever is recorded later. It keeps its device open. Thread-compatible;
// waiting on it from several streams is safe.

#pragma once

#include <cstdint>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"

namespace tern {

class TERN_EXPORT Event {
 public:
  Event() noexcept = default;
  explicit Event(const Device& device, const EventOptions& options = {},
                 CallSite site = CallSite::here());
  [[nodiscard]] static Result<Event> try_make(const Device& device,
                                              const EventOptions& options = {}) noexcept;
  /// An event that somebody else made on the device and has recorded, by the driver's own handle:
  /// to be waited for. Its maker keeps it until this one has ended, which leaves it as it is.
  /// Refused with invalid_argument for no handle.
  [[nodiscard]] static Result<Event> try_borrow(const Device& device, NativeEvent handle) noexcept;

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  [[nodiscard]] DeviceId device_id() const noexcept;
  [[nodiscard]] bool is_recorded() const noexcept { return is_recorded_; }
  /// The backend's own handle. Null for an event that was moved from.
  [[nodiscard]] NativeEvent native() const noexcept { return native_; }

  /// Never blocks.
  [[nodiscard]] Result<bool> try_is_done() const noexcept;
  [[nodiscard]] bool is_done(CallSite site = CallSite::here()) const {
    return try_is_done().value(site);
  }
  /// Blocks the host until the latest record is complete.
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

  /// From `start` to this event; both made with timing on one device, recorded and complete, else
  /// stream_misuse.
  [[nodiscard]] Result<std::uint64_t> try_elapsed_ns(const Event& start) const noexcept;
  [[nodiscard]] std::uint64_t elapsed_ns(const Event& start,
                                         CallSite site = CallSite::here()) const {
    return try_elapsed_ns(start).value(site);
  }

 private:
  friend class StreamRef;
  Event(std::shared_ptr<DeviceState> device, NativeEvent native, bool has_timing) noexcept;
  void end() noexcept;

  std::shared_ptr<DeviceState> device_;
  NativeEvent native_;
  bool has_timing_ = false;
  bool is_recorded_ = false;
  bool is_borrowed_ = false;
};

}  // namespace tern
