// Timelines: counters that streams and the host signal and wait for. Marks of streams are in
// device_state.cpp.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/device/event.hpp"

namespace tern {

namespace {

/// An event recorded right after a signal. The host waits for it or queries it, because that is how
/// every device, including one with a checker, learns that the host is ordered after the stream. If
/// the device is gone, its work is done.
class Sent {
 public:
  using Flag = std::shared_ptr<const std::atomic<bool>>;

  Sent(std::uint64_t value, DeviceId device, NativeEvent event, Flag is_delivered) noexcept
      : value_(value), device_(device), event_(event), is_delivered_(std::move(is_delivered)) {}
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;
  ~Sent() {
    if (const DeviceScope device(device_); device) device->take_back(event_);
  }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }
  /// Returns true if the stream has run the signal, so its event is complete or about to be.
  [[nodiscard]] bool is_delivered() const noexcept {
    return is_delivered_->load(std::memory_order_acquire);
  }
  [[nodiscard]] Result<bool> is_done() const noexcept {
    const DeviceScope device(device_);
    if (!device) return true;
    if (Result<void> usable = device->check_process(); !usable) return usable.failure();
    return device->backend().query(event_);
  }
  [[nodiscard]] Result<void> wait() const noexcept {
    const DeviceScope device(device_);
    if (!device) return {};
    if (Result<void> usable = device->check_process(); !usable) return usable;
    return device->backend().synchronize(event_);
  }

 private:
  const std::uint64_t value_;
  const DeviceId device_;
  const NativeEvent event_;
  const Flag is_delivered_;
};

/// Maximum number of signals that are remembered. Above it, the oldest one is dropped as soon as
/// its event is done.
constexpr std::size_t max_sent = 64;
/// Interval between queries in a wait with a timeout.
constexpr std::chrono::milliseconds poll_interval{1};

std::uint64_t next_timeline_number() noexcept {
  static std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

struct TimelineState {
  const std::uint64_t number = next_timeline_number();  // tag of its host order
  std::mutex mutex;
  std::condition_variable changed;               // the value rose, or a new signal was queued
  std::uint64_t value = 0;                       // guarded by mutex
  std::deque<std::shared_ptr<const Sent>> sent;  // guarded by mutex

  void raise_to(std::uint64_t target) noexcept {
    {
      const std::lock_guard lock(mutex);
      if (target <= value) return;
      value = target;
    }
    changed.notify_all();
  }

  /// Returns the remembered signal with the lowest value that reaches `target`, or null. Requires
  /// the mutex.
  [[nodiscard]] std::shared_ptr<const Sent> signal_for(std::uint64_t target) const noexcept {
    std::shared_ptr<const Sent> best;
    for (const std::shared_ptr<const Sent>& one : sent) {
      if (one->value() >= target && (!best || one->value() < best->value())) best = one;
    }
    return best;
  }
};

namespace {

/// The context of the host function. Keeps the timeline alive until the stream has run it.
struct Signal final : InFlightObject {
  Signal(DeviceState& on, std::shared_ptr<TimelineState> timeline, std::uint64_t target,
         std::shared_ptr<std::atomic<bool>> flag)
      : device(on), state(std::move(timeline)), value(target), is_delivered(std::move(flag)) {}

  DeviceState& device;  // outlives the signal: it deletes signals that never run
  std::shared_ptr<TimelineState> state;
  std::uint64_t value;
  std::shared_ptr<std::atomic<bool>> is_delivered;
};

void deliver(void* context) {
  const std::unique_ptr<Signal> signal(static_cast<Signal*>(context));
  signal->device.remove_in_flight_object(*signal);
  signal->is_delivered->store(true, std::memory_order_release);
  signal->state->raise_to(signal->value);
}

/// Records and stores the event of a signal. If that fails, the value is still set and waiting
/// threads still wake up; only the checker does not see the order.
void remember(TimelineState& state, DeviceState& device, const Submission& submission,
              std::uint64_t value, const std::shared_ptr<std::atomic<bool>>& flag) noexcept {
  const Result<NativeEvent> event = device.lend_event();
  if (!event) return;
  if (!device.backend().record(submission, *event)) return device.take_back(*event);
  std::shared_ptr<const Sent> oldest;
  try {
    auto made = std::make_shared<const Sent>(value, device.id(), *event, flag);
    const std::lock_guard lock(state.mutex);
    state.sent.push_back(std::move(made));
    if (state.sent.size() > max_sent) oldest = state.sent.front();
  } catch (const std::bad_alloc&) {
    return device.take_back(*event);
  }
  state.changed.notify_all();
  // Keep the oldest event if it is pending, because a waiting thread may need it. There are no more
  // such events than signals in flight.
  if (!oldest || !oldest->is_delivered()) return;
  const Result<bool> is_done = oldest->is_done();
  if (is_done && !*is_done) return;
  const std::lock_guard lock(state.mutex);
  if (!state.sent.empty() && state.sent.front() == oldest) state.sent.pop_front();
}

/// Longer timeouts would overflow the clock. They are treated as unlimited; this one is 146 years.
constexpr std::uint64_t longest_timeout_ns = std::numeric_limits<std::int64_t>::max() / 2;

Result<void> wait_for(TimelineState& state, std::uint64_t value,
                      std::uint64_t timeout_ns) noexcept {
  const bool is_bounded = timeout_ns != 0 && timeout_ns <= longest_timeout_ns;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(is_bounded ? timeout_ns : 0);
  std::unique_lock lock(state.mutex);
  while (state.value < value) {
    const std::shared_ptr<const Sent> signal = state.signal_for(value);
    if (is_bounded && std::chrono::steady_clock::now() >= end) {
      return Failure(ErrorCode::timeout).with("target", value).with("current", state.value);
    }
    if (!signal) {
      if (is_bounded) {
        state.changed.wait_until(lock, end);
      } else {
        state.changed.wait(lock);
      }
      continue;
    }
    lock.unlock();
    const Result<bool> is_done = is_bounded ? signal->is_done() : Result<bool>(true);
    Result<void> waited = is_done ? Result<void>() : Result<void>(is_done.failure());
    if (!is_bounded) waited = signal->wait();
    lock.lock();
    if (!waited) return waited;
    if (!is_done || *is_done) continue;
    state.changed.wait_until(lock, std::min(end, std::chrono::steady_clock::now() + poll_interval));
  }
  const std::shared_ptr<const Sent> signal = state.signal_for(value);
  lock.unlock();
  // The value has been reached. Query the event anyway, so that a checker learns that the host is
  // ordered after the stream. The event comes right after the signal, so it may still be pending
  // when the signal has run. If the host or another stream set the value, the signal found here may
  // be far from running; do not wait for it then.
  if (!signal) return {};
  if (signal->is_delivered() && !is_bounded) {
    static_cast<void>(signal->wait());
    return {};
  }
  for (;;) {
    const Result<bool> is_done = signal->is_done();
    if (!is_done || *is_done || !signal->is_delivered()) return {};
    if (std::chrono::steady_clock::now() >= end) return {};
  }
}

}  // namespace

Timeline::Timeline(std::uint64_t value) : state_(std::make_shared<TimelineState>()) {
  state_->value = value;
}

std::uint64_t Timeline::value() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->value;
}

void Timeline::set(std::uint64_t value) noexcept {
  DeviceState::note_host_order(&HostOrder::note_released, state_->number);
  state_->raise_to(value);
}

Result<void> Timeline::try_set(StreamRef stream, std::uint64_t value,
                               CallSite site) const noexcept {
  // try_call() returns the right failure for a stream that does not accept work.
  if (!stream.is_usable()) return stream.try_call(deliver, nullptr, site);
  StreamState* const queue = DeviceState::state_of(stream);
  DeviceState& device = *queue->device;
  std::unique_ptr<Signal> signal;
  std::shared_ptr<std::atomic<bool>> flag;
  try {
    flag = std::make_shared<std::atomic<bool>>(false);
    signal = std::make_unique<Signal>(device, state_, value, flag);
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Signal), "a signal", site);
  }
  // Register the signal first: it may be delivered before try_call() returns.
  device.add_in_flight_object(*signal);
  Signal& carried = *signal.release();
  Result<void> queued = stream.try_call(deliver, &carried, site);
  if (!queued) {
    device.remove_in_flight_object(carried);
    delete &carried;
    return queued;
  }
  remember(*state_, device, {queue->native, site}, value, flag);
  return queued;
}

Result<void> Timeline::try_wait(std::uint64_t value, std::uint64_t timeout_ns) const noexcept {
  Result<void> waited = wait_for(*state_, value, timeout_ns);
  if (waited) DeviceState::note_host_order(&HostOrder::note_acquired, state_->number);
  return waited;
}

}  // namespace tern
