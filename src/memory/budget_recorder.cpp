#include "memory/budget_recorder.hpp"

#include <algorithm>

#include "trace/memory_event.hpp"

namespace tern {

BudgetRecorder::BudgetRecorder(const Budget& budget) noexcept
    : budget_(budget), number_(trace::new_number()) {
  start_listening();
}

BudgetRecorder::~BudgetRecorder() {
  stop_listening();
  if (trace::is_recording()) record(0, next_time_ns(), true);
}

void BudgetRecorder::recording_changed(bool is_on) noexcept {
  if (!is_on) return;
  // A thread changes the count first, and tests afterwards whether a recording is on. So either the
  // thread records its change, or record() reads a count that includes the change.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  record();
}

// Returns a later time on each call. So the events of a budget have a definite order, even if the
// clocks of two processors differ.
std::uint64_t BudgetRecorder::next_time_ns() noexcept {
  const std::uint64_t now_ns = trace::now_ns();
  std::uint64_t last = last_time_ns_.load(), time_ns = 0;
  do {
    time_ns = std::max(now_ns, last + 1);
  } while (!last_time_ns_.compare_exchange_weak(last, time_ns));
  return time_ns;
}

// Gets the time before it reads the count. A thread that changes the count after this read gets a
// later time, so the event with the latest time has the current count.
[[gnu::noinline, gnu::cold]] void BudgetRecorder::record() noexcept {
  const std::uint64_t time_ns = next_time_ns();
  record(budget_.used_bytes(), time_ns);
}

// If another thread has already lowered the count, records two events: the count that this thread
// reached, and the current count. Without the first event, the highest use could be missing.
[[gnu::noinline, gnu::cold]] void BudgetRecorder::record_reached(std::size_t used_bytes) noexcept {
  const std::uint64_t time_ns = next_time_ns();
  const std::size_t now = budget_.used_bytes();
  if (now >= used_bytes) return record(now, time_ns);
  record(used_bytes, time_ns);
  record();
}

void BudgetRecorder::record(std::size_t used_bytes, std::uint64_t time_ns, bool is_end) noexcept {
  trace::record(trace::EventKind::budget_use,
                {.block = number_,
                 .address = budget_.has_limit() ? budget_.limit_bytes() : trace::no_limit,
                 .bytes = used_bytes,
                 .text = budget_.path(),
                 .text_cache = &path_,
                 .detail = is_end ? std::uint8_t{1} : std::uint8_t{0},
                 .time_ns = time_ns});
}

}  // namespace tern
