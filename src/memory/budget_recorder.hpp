// A BudgetRecorder records the bytes in use of one budget (EventKind::budget_use).
//
// The recorded count is Budget::used_bytes(): all memory that is charged to the budget, including
// freed memory whose stream has not passed the free. The count does not include requests in
// progress and undrawn reservations. Threads do not cache parts of a budget, so the count is exact.
// A block that a pool reuses while its charge is pending keeps the charge: the count does not
// change, and there is no event.
//
// A budget has an event when a recording starts, when the budget is created or destroyed, and after
// every change of the count or of the limit. Charges that end in one drain share an event. The
// event with the latest time has the current count. The highest count has an event, too.
//
// Call record() and record_reached() only if trace::is_recording(). They take no lock after the
// first event of the budget in a recording. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/memory/budget.hpp"
#include "trace/recording.hpp"

namespace tern {

class BudgetRecorder final : private trace::RecordingListener {
 public:
  /// The budget must be fully constructed. If a recording is on, records the count.
  explicit BudgetRecorder(const Budget& budget) noexcept;
  /// Records that the budget is destroyed.
  ~BudgetRecorder() override;

  /// Returns the number of the budget, which is unique in the process.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  /// Records the count. Call it after this thread has changed the count or the limit.
  void record() noexcept;
  /// Like record(), for an admission of this thread that raised the count to `used_bytes`.
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
