#include "tern/device/timeline.hpp"

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "device/device_state.hpp"

namespace tern {

struct TimelineState {
  std::mutex mutex;
  std::condition_variable risen;
  std::uint64_t value = 0;  // guarded by mutex

  void raise_to(std::uint64_t target) noexcept {
    {
      const std::lock_guard lock(mutex);
      if (target <= value) return;
      value = target;
    }
    risen.notify_all();
  }
};

namespace {

/// What a stream carries until it gets there; keeps the timeline alive.
struct Signal final : Carried {
  Signal(DeviceState& on, std::shared_ptr<TimelineState> timeline, std::uint64_t target)
      : device(on), state(std::move(timeline)), value(target) {}

  DeviceState& device;  // which completes its work, or ends what never runs, before it goes
  std::shared_ptr<TimelineState> state;
  std::uint64_t value;
};

void deliver(void* context) {
  const std::unique_ptr<Signal> signal(static_cast<Signal*>(context));
  signal->device.put_down(*signal);
  signal->state->raise_to(signal->value);
}

/// Longer timeouts than this overflow the clock; three hundred years are for ever.
constexpr std::uint64_t longest_timeout_ns = std::numeric_limits<std::int64_t>::max() / 2;

}  // namespace

Timeline::Timeline(std::uint64_t value) : state_(std::make_shared<TimelineState>()) {
  state_->value = value;
}

std::uint64_t Timeline::value() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->value;
}

void Timeline::set(std::uint64_t value) noexcept { state_->raise_to(value); }

Result<void> Timeline::try_set(StreamRef stream, std::uint64_t value,
                               CallSite site) const noexcept {
  StreamState* const queue = DeviceState::state_of(stream);
  // A reference to no stream is refused by the call.
  if (queue == nullptr) return stream.try_call(deliver, nullptr, site);
  DeviceState& device = *queue->device;
  std::unique_ptr<Signal> signal(new (std::nothrow) Signal(device, state_, value));
  if (!signal) {
    return Failure(ErrorCode::out_of_memory,
                   "the host could not allocate {requested} for a signal. Free host memory.", site)
        .with_bytes("requested", sizeof(Signal));
  }
  // It may be delivered before the call returns.
  device.carry(*signal);
  Signal& carried = *signal.release();
  Result<void> queued = stream.try_call(deliver, &carried, site);
  if (!queued) {
    device.put_down(carried);
    delete &carried;
  }
  return queued;
}

Result<void> Timeline::try_wait(std::uint64_t value, std::uint64_t timeout_ns) const noexcept {
  std::unique_lock lock(state_->mutex);
  const auto is_reached = [&] { return state_->value >= value; };
  if (timeout_ns == 0 || timeout_ns > longest_timeout_ns) {
    state_->risen.wait(lock, is_reached);
    return {};
  }
  if (state_->risen.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_reached)) return {};
  return Failure(ErrorCode::timeout).with("target", value).with("current", state_->value);
}

}  // namespace tern
