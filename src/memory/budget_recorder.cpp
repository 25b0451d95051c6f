#include "memory/budget_recorder.hpp"

#include <algorithm>

#include "trace/memory_event.hpp"

namespace tern {
namespace {

std::uint64_t new_budget_number() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

BudgetRecorder::BudgetRecorder(const Budget& budget) noexcept
    : budget_(budget), number_(new_budget_number()) {
  start_listening();
}

BudgetRecorder::~BudgetRecorder() {
  stop_listening();
  if (trace::is_recording()) record(0, next_time_ns(), true);
}

void BudgetRecorder::recording_changed(bool is_on) noexcept {
  if (!is_on) return;
  // A thread changes the count first and asks for a recording afterwards. So either the thread
  // records its change, or the change is in the count that is read here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  record();
}

// No two events of a budget have the same time, so that their order is certain even if the clocks
// of two processors differ.
std::uint64_t BudgetRecorder::next_time_ns() noexcept {
  const std::uint64_t now_ns = trace::now_ns();
  std::uint64_t last = last_time_ns_.load(), time_ns = 0;
  do {
    time_ns = std::max(now_ns, last + 1);
  } while (!last_time_ns_.compare_exchange_weak(last, time_ns));
  return time_ns;
}

// The time is taken before the count is read. A thread that changes the count after that takes a
// later time, so of all events of the budget the latest one has the present count.
[[gnu::noinline, gnu::cold]] void BudgetRecorder::record() noexcept {
  const std::uint64_t time_ns = next_time_ns();
  record(budget_.used_bytes(), time_ns);
}

// If another thread has lowered the count already, the count that this thread reached gets an event
// of its own. Otherwise the highest use would be missing.
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
                 .address = budget_.has_limit() ? budget_.limit_bytes() : trace::no_budget_limit,
                 .bytes = used_bytes,
                 .text = budget_.path(),
                 .text_cache = &path_,
                 .detail = is_end ? std::uint8_t{1} : std::uint8_t{0},
                 .time_ns = time_ns});
}

}  // namespace tern
