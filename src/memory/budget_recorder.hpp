// A BudgetRecorder records the bytes in use of one budget (EventKind::budget_use).
//
// The figure is Budget::used_bytes(): the memory that exists, including freed memory whose stream
// has not passed the free. Requests in progress and reservations that are not drawn yet are not in
// it. Threads keep no share of a budget, so the figure is the count of the budget itself. A block
// that a pool recycles while its charge is pending keeps its charge, so it changes no count and
// causes no event.
//
// There is an event when a recording starts, when a budget is made or destroyed, and after every
// change of the count or of the limit. Charges that one drain ends share an event. The event with
// the latest time has the present count, and the largest count is in some event. record()
// and record_reached() take no lock after the first event of the budget in a recording. Call them
// if trace::is_recording(). Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/memory/budget.hpp"
#include "trace/recording.hpp"

namespace tern {

class BudgetRecorder final : private trace::RecordingListener {
 public:
  /// The budget must be complete. If a recording is on, records the budget.
  explicit BudgetRecorder(const Budget& budget) noexcept;
  /// Records that the budget is destroyed.
  ~BudgetRecorder() override;

  /// The number of the budget, unique in the process.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  /// Records the count after a change of this thread.
  void record() noexcept;
  /// Like record(), after an admission of this thread that made the count `used_bytes`.
  void record_reached(std::size_t used_bytes) noexcept;

 private:
  void recording_changed(bool is_on) noexcept override;
  [[nodiscard]] std::uint64_t next_time_ns() noexcept;
  void record(std::size_t used_bytes, std::uint64_t time_ns, bool is_end = false) noexcept;

  const Budget& budget_;
  const std::uint64_t number_;
  trace::TextCache path_;
  std::atomic<std::uint64_t> last_time_ns_ = 0;
};

}  // namespace tern
