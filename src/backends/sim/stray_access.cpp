#include "backends/sim/stray_access.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "core/fault_watch.hpp"

namespace tern::sim {
namespace {

thread_local TouchRecorder* recorder = nullptr;

/// Guards all recorders. Held briefly, and never across an access to watched memory, so the fault
/// handler can take it.
std::atomic_flag recorders_lock;
TouchRecorder* recorders = nullptr;

class RecordersLock {
 public:
  RecordersLock() noexcept {
    while (recorders_lock.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  ~RecordersLock() { recorders_lock.clear(std::memory_order_release); }
  RecordersLock(const RecordersLock&) = delete;
  RecordersLock& operator=(const RecordersLock&) = delete;
};

bool explain(const Fault& fault) noexcept {
  if (TouchRecorder::note(fault)) return true;
  std::array<char, 400> text;
  const auto written =
      fmt::format_to_n(text.data(), text.size(),
                       "TERN-S304 stray-host-access                     {}\n  what    the host "
                       "accessed [{:#x}] of {}, which only the device can access\n  fix     copy "
                       "the bytes to host memory with a stream, and wait for the copy\n",
                       fault.name, fault.offset, fault.name);
  const std::size_t bytes = written.size < text.size() ? written.size : text.size();
  static_cast<void>(!write(STDERR_FILENO, text.data(), bytes));
  return false;
}

}  // namespace

void watch_reservation(const AliasMemory& memory, std::string_view device) noexcept {
  watch_faults(memory.address_of(0), memory.bytes() + memory.window_bytes(), device, explain);
}

void forget_reservation(const AliasMemory& memory) noexcept { forget_faults(memory.address_of(0)); }

TouchRecorder::TouchRecorder(const Memories* memories) noexcept
    : memories_(memories), outer_(std::exchange(recorder, this)) {
  const RecordersLock lock;
  others_ = std::exchange(recorders, this);
}
TouchRecorder::~TouchRecorder() {
  recorder = outer_;
  const RecordersLock lock;
  TouchRecorder** at = &recorders;
  while (*at != this) at = &(*at)->others_;
  *at = others_;
}

bool TouchRecorder::note(const Fault& fault) noexcept {
  const RecordersLock lock;
  if (recorder != nullptr) return recorder->open(fault, false);
  TouchRecorder* const only = recorders;
  const bool is_allowed = only != nullptr && only->others_ == nullptr &&
                          only->memories_ != nullptr && only->memories_->locate(fault.address);
  return is_allowed && only->open(fault, true);
}

bool TouchRecorder::open(const Fault& fault, bool is_by_other_thread) noexcept {
  if (count_ == most) {
    // The list is full. Open all watched memory, because opening single pages would exceed the
    // number of mappings of a process.
    has_more_ = true;
    void* const first = static_cast<std::byte*>(fault.address) - fault.offset;
    return mprotect(first, fault.bytes, PROT_READ | PROT_WRITE) == 0;
  }
  const std::uintptr_t page = AliasMemory::page_bytes();
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(fault.address) / page * page;
  if (mprotect(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE) != 0) return false;
  touched_[count_++] = {fault.address, is_by_other_thread};
  return true;
}

}  // namespace tern::sim
