#include "tern/device/event.hpp"

#include <utility>

#include "device/device_state.hpp"
#include "trace/recording.hpp"

namespace tern {

Event::Event(const Device& device, CallSite site) : Event(try_make(device).value(site)) {}

Event::Event(std::shared_ptr<DeviceState> device, NativeEvent native, bool has_timing) noexcept
    : device_(std::move(device)), native_(native), has_timing_(has_timing) {}

Result<Event> Event::try_make(const Device& device) noexcept { return try_create(device, false); }

Result<Event> Event::try_make_timed(const Device& device) noexcept {
  return try_create(device, true);
}

Result<Event> Event::try_create(const Device& device, bool has_timing) noexcept {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(ErrorCode::invalid_device,
                   "an event needs an open device, and the Device is empty. Open one with "
                   "open_device().")
        .with("spec", "");
  }
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  if (has_timing) {
    if (Result<void> able = state->check_can(Capability::event_timing); !able) {
      return able.failure();
    }
  }
  // Only events without timing are pooled. Timed events are rare, and the driver treats them as
  // another type.
  const Result<NativeEvent> native =
      has_timing ? state->backend().create_event(true) : state->take_event();
  if (!native) return native.failure();
  return Event(state, *native, has_timing);
}

Result<Event> Event::try_borrow(const Device& device, NativeEvent handle) noexcept {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(ErrorCode::invalid_device,
                   "an event needs an open device, and the Device is empty. Open one with "
                   "open_device().")
        .with("spec", "");
  }
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  if (handle.value == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a borrowed event needs a handle: '{name}' is {value}.")
        .with("name", "handle")
        .with("value", std::uint64_t{0});
  }
  Event event(state, handle, false);
  event.is_recorded_ = true;
  event.is_borrowed_ = true;
  return event;
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)),
      native_(std::exchange(other.native_, {})),
      has_timing_(other.has_timing_),
      is_recorded_(std::exchange(other.is_recorded_, false)),
      recorded_by_(std::exchange(other.recorded_by_, {})),
      is_borrowed_(std::exchange(other.is_borrowed_, false)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  end();
  device_ = std::move(other.device_);
  native_ = std::exchange(other.native_, {});
  has_timing_ = other.has_timing_;
  is_recorded_ = std::exchange(other.is_recorded_, false);
  recorded_by_ = std::exchange(other.recorded_by_, {});
  is_borrowed_ = std::exchange(other.is_borrowed_, false);
  return *this;
}

Event::~Event() { end(); }

void Event::end() noexcept {
  if (device_ && !is_borrowed_ && device_->check_process()) {
    if (has_timing_) {
      device_->backend().destroy_event(native_);
    } else {
      device_->give_event(native_);
    }
  }
  native_ = {};
  device_.reset();
}

DeviceId Event::device_id() const noexcept { return device_ ? device_->id() : DeviceId{}; }

Result<bool> Event::try_is_done() const noexcept {
  if (!is_recorded_) return true;
  if (Result<void> usable = device_->check_process(); !usable) return usable.failure();
  Result<bool> is_done = device_->backend().query(native_);
  device_->note_if_lost(is_done);
  if (trace::is_recording() && is_done && *is_done) {
    device_->record_done_seen({recorded_by_, 0, native_});
  }
  return is_done;
}

Result<void> Event::try_synchronize(CallSite site) const noexcept {
  if (!is_recorded_) return {};
  if (Result<void> usable = device_->check_process(); !usable) return usable;
  const std::uint64_t begun_ns = trace::is_recording() ? trace::now_ns() : 0;
  Result<void> waited =
      DeviceState::state_of(device_->default_stream())
          ->count(&StreamState::Counts::host_waits, device_->backend().synchronize(native_));
  device_->note_if_lost(waited);
  if (begun_ns != 0) {
    // A wait without a stream would be one for the whole device.
    if (recorded_by_) device_->record_host_wait({recorded_by_, 0, native_}, begun_ns, site);
    if (waited && !recorded_by_) device_->record_done_seen({});
  }
  return waited;
}

Result<std::uint64_t> Event::try_elapsed_ns(const Event& start) const noexcept {
  const auto refuse = [](const char* why) {
    return Failure(ErrorCode::stream_misuse, "the time between two events is unknown: {why}.")
        .with("stream", std::uint64_t{0})
        .with("why", why);
  };
  if (!has_timing_ || !start.has_timing_) return refuse("both events must be created with timing");
  if (!is_recorded_ || !start.is_recorded_) return refuse("both events must be recorded first");
  if (device_ != start.device_) {
    return Failure(ErrorCode::device_mismatch)
        .with("a", start.device_->info().spec)
        .with("b", device_->info().spec);
  }
  for (const Event* event : {&start, this}) {
    const Result<bool> is_complete = event->try_is_done();
    if (!is_complete) return is_complete.failure();
    if (!*is_complete) return refuse("both events must be complete. Synchronise the later one");
  }
  return device_->backend().elapsed_ns(start.native_, native_);
}

}  // namespace tern
