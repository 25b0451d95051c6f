// CopyTimes records when copies ran on the device.
//
// A copy may run long after its submission. During a recording, CopyTimes records a timed event on
// the stream before and after each large copy. When both events have completed, it records when the
// copy began and how long it took. It queries the events when another copy is submitted and after
// the host has waited. If the host never waits for a copy, the time of the copy is not recorded.
//
// One event relates the clock of the device to the clock of the host. CopyTimes records this event
// on a separate idle stream, and reads the clock of the host before and after. This takes at most a
// few milliseconds, about once per second.
//
// The backend copies pageable memory in another way if the stream is idle. A recording must not
// change that, so after the first event on an idle stream start() waits, for at most 20
// microseconds, until the stream is idle again.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/detail/core/mutex.hpp"
#include "tern/detail/device/backend.hpp"
#include "tern/device/operations.hpp"
#include "trace/recording.hpp"

namespace tern {

class CopyTimes {
 public:
  /// A copy of fewer bytes takes hardly longer than the events that would measure it.
  static constexpr std::size_t min_bytes = 64 * 1024;

  CopyTimes() = default;
  CopyTimes(const CopyTimes&) = delete;
  CopyTimes& operator=(const CopyTimes&) = delete;

  /// Destroys the events, before the backend ends.
  void end(Backend& backend) noexcept;

  /// Call before a copy is submitted. Returns a null event if the copy cannot be measured.
  [[nodiscard]] NativeEvent start(Backend& backend, NativeStream stream) noexcept;
  /// Call after the copy was submitted. Returns the number of the copy, or 0 if there are no times.
  [[nodiscard]] std::uint64_t stop(Backend& backend, NativeStream stream, NativeEvent started,
                                   const trace::Named& device) noexcept;
  /// Call if the copy could not be submitted.
  void cancel(Backend& backend, NativeEvent started) noexcept;

  /// Records the times of copies that have completed. Does not wait.
  void record_completed(Backend& backend) noexcept {
    if (count_.load(std::memory_order_relaxed) != 0) record_completed(backend, max_pending);
  }

 private:
  struct Pending {
    NativeEvent started, stopped;
    std::uint64_t number = 0;
    trace::Named device = {};
    const trace::Recording* recording = nullptr;  // never freed, so it names one recording
  };
  static constexpr std::size_t max_pending = 256;

  /// Gives up after `max_queries` copies that have not completed.
  void record_completed(Backend& backend, std::size_t max_queries) noexcept;
  /// Records one copy if it has completed. Call with the lock held.
  [[nodiscard]] bool try_record(Backend& backend, const Pending& copy) noexcept;
  /// Makes an event whose time on both clocks is known. Call with the lock held.
  [[nodiscard]] bool try_join_clocks(Backend& backend) noexcept;
  [[nodiscard]] NativeEvent take_event(Backend& backend) noexcept;
  void keep_event(Backend& backend, NativeEvent event) noexcept;

  Mutex mutex_;
  // Guarded by mutex_. Only count_ is read without it.
  std::atomic<std::size_t> count_ = 0;
  std::array<Pending, max_pending> pending_ = {};
  std::array<NativeEvent, 2 * max_pending + 2> spare_ = {};
  std::size_t spare_count_ = 0;
  std::size_t running_ = 0;  // copies between start() and stop()
  NativeStream idle_stream_ = {};
  NativeEvent joined_ = {};
  std::uint64_t joined_ns_ = 0;
  bool is_unsupported_ = false;
};

}  // namespace tern
