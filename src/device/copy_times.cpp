#include "device/copy_times.hpp"

#include <mutex>
#include <utility>

namespace tern {
namespace {

/// The clocks of device and host drift, so they are compared again after a second. After two, a
/// device that is never without a copy is not measured until it is.
constexpr std::uint64_t max_joined_ns = 1'000'000'000;
/// How long an event on an idle stream may take. A longer one is on a stream that shares its queue
/// with a busy one.
constexpr std::uint64_t max_start_ns = 20'000, max_join_ns = 1'000'000, good_join_ns = 100'000;

/// Queries the event until it has completed or the time is over.
bool completes_within(Backend& backend, NativeEvent event, std::uint64_t ns) noexcept {
  const std::uint64_t begun_ns = trace::now_ns();
  for (;;) {
    const Result<bool> is_done = backend.query(event);
    if (!is_done || *is_done) return bool(is_done);
    if (trace::now_ns() - begun_ns > ns) return false;
  }
}

std::uint64_t new_copy_number() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

void CopyTimes::end(Backend& backend) noexcept {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count_; ++i) {
    keep_event(backend, pending_[i].started);
    keep_event(backend, pending_[i].stopped);
  }
  count_ = 0;
  if (joined_.value != 0) keep_event(backend, std::exchange(joined_, {}));
  while (spare_count_ != 0) backend.destroy_event(spare_[--spare_count_]);
  if (idle_stream_.value != 0) backend.destroy_stream(std::exchange(idle_stream_, {}));
}

NativeEvent CopyTimes::start(Backend& backend, NativeStream stream) noexcept {
  // Copies behind a stalled stream are not queried again and again.
  if (count_.load(std::memory_order_relaxed) != 0) record_completed(backend, 2);
  const std::lock_guard lock(mutex_);
  if (is_unsupported_ || count_ == max_pending) return {};
  const Result<bool> is_captured = backend.is_capturing(stream);
  if (!is_captured || *is_captured) return {};
  const std::uint64_t age_ns = trace::now_ns() - joined_ns_;
  // The event of the clocks must be older than all that are compared with it.
  const bool may_join = count_ == 0 && running_ == 0;
  if (may_join ? age_ns > max_joined_ns && !try_join_clocks(backend) : age_ns > 2 * max_joined_ns) {
    return {};
  }
  const NativeEvent event = take_event(backend);
  if (event.value == 0) return {};
  const Result<bool> was_idle = backend.query(stream);
  if (!backend.record({.stream = stream, .stays_out_of_graphs = true}, event)) {
    keep_event(backend, event);
    return {};
  }
  if (was_idle && *was_idle) static_cast<void>(completes_within(backend, event, max_start_ns));
  ++running_;
  return event;
}

std::uint64_t CopyTimes::stop(Backend& backend, NativeStream stream, NativeEvent started,
                              const trace::Named& device) noexcept {
  if (started.value == 0) return 0;
  const std::lock_guard lock(mutex_);
  --running_;
  // Another thread may have taken the last place.
  const NativeEvent event = count_ < max_pending ? take_event(backend) : NativeEvent{};
  if (event.value == 0 || !backend.record({.stream = stream, .stays_out_of_graphs = true}, event)) {
    if (event.value != 0) keep_event(backend, event);
    keep_event(backend, started);
    return 0;
  }
  const std::uint64_t number = new_copy_number();
  pending_[count_++] = {started, event, number, device, trace::current_recording.load()};
  return number;
}

void CopyTimes::cancel(Backend& backend, NativeEvent started) noexcept {
  if (started.value == 0) return;
  const std::lock_guard lock(mutex_);
  --running_;
  keep_event(backend, started);
}

void CopyTimes::record_completed(Backend& backend, std::size_t max_queries) noexcept {
  const std::lock_guard lock(mutex_);
  std::size_t left = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (left >= max_queries || !try_record(backend, pending_[i])) pending_[left++] = pending_[i];
  }
  count_ = left;
}

bool CopyTimes::try_record(Backend& backend, const Pending& copy) noexcept {
  const Result<bool> is_done = backend.query(copy.stopped);
  if (is_done && !*is_done) return false;
  const Result<std::uint64_t> before = backend.elapsed_ns(joined_, copy.started);
  const Result<std::uint64_t> took = backend.elapsed_ns(copy.started, copy.stopped);
  const bool is_of_this_recording = copy.recording == trace::current_recording.load();
  if (is_done && before && took && is_of_this_recording) {
    trace::record(trace::EventKind::copy_time, {.block = copy.number,
                                                .extra = *took,
                                                .device = copy.device,
                                                .time_ns = joined_ns_ + *before});
  }
  keep_event(backend, copy.started);
  keep_event(backend, copy.stopped);
  return true;
}

bool CopyTimes::try_join_clocks(Backend& backend) noexcept {
  if (idle_stream_.value == 0) {
    const Result<NativeStream> made = backend.create_stream({});
    is_unsupported_ = !made;
    if (!made) return false;
    idle_stream_ = *made;
  }
  if (joined_.value == 0) joined_ = take_event(backend);
  is_unsupported_ = joined_.value == 0;
  if (is_unsupported_) return false;
  const Submission submission = {.stream = idle_stream_, .stays_out_of_graphs = true};
  // The thread may lose its processor between the calls. Then the interval is long.
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t begun_ns = trace::now_ns();
    is_unsupported_ = !backend.record(submission, joined_);
    if (is_unsupported_ || !completes_within(backend, joined_, max_join_ns)) return false;
    const std::uint64_t took_ns = trace::now_ns() - begun_ns;
    joined_ns_ = begun_ns + took_ns / 2;
    if (took_ns < good_join_ns) break;
  }
  return true;
}

NativeEvent CopyTimes::take_event(Backend& backend) noexcept {
  if (spare_count_ != 0) return spare_[--spare_count_];
  const Result<NativeEvent> made = backend.create_event(true);
  return made ? *made : NativeEvent{};
}

void CopyTimes::keep_event(Backend& backend, NativeEvent event) noexcept {
  if (spare_count_ == spare_.size()) return backend.destroy_event(event);
  spare_[spare_count_++] = event;
}

}  // namespace tern
