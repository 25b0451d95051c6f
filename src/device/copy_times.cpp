#include "device/copy_times.hpp"

#include <mutex>
#include <utility>

namespace tern {
namespace {

/// The clocks of device and host drift, so they are compared again after a second.
constexpr std::uint64_t max_joined_ns = 1'000'000'000;

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
  // The event of the clocks must be older than all that are compared with it.
  const bool may_join = count_ == 0 && running_ == 0;
  if (may_join && trace::now_ns() - joined_ns_ > max_joined_ns && !try_join_clocks(backend)) {
    return {};
  }
  const NativeEvent event = take_event(backend);
  if (event.value == 0) return {};
  if (backend.record({.stream = stream, .stays_out_of_graphs = true}, event)) {
    ++running_;
    return event;
  }
  keep_event(backend, event);
  return {};
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
  pending_[count_++] = {started, event, number, device};
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
  if (is_done && before && took) {
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
  const std::uint64_t begun_ns = trace::now_ns();
  // The stream is idle, so the wait takes as long as the call and no longer.
  is_unsupported_ = !backend.record(submission, joined_) || !backend.synchronize(joined_);
  joined_ns_ = begun_ns + (trace::now_ns() - begun_ns) / 2;
  return !is_unsupported_;
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
