#include "backends/sim/stray_access.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "core/fault_watch.hpp"

namespace tern::sim {
namespace {

thread_local TouchRecorder* recorder = nullptr;

bool explain(const Fault& fault) noexcept {
  if (recorder != nullptr && recorder->note(fault.address, fault.offset, fault.bytes)) return true;
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

TouchRecorder::TouchRecorder() noexcept : outer_(std::exchange(recorder, this)) {}
TouchRecorder::~TouchRecorder() { recorder = outer_; }

bool TouchRecorder::note(void* address, std::uint64_t offset, std::size_t watched) noexcept {
  if (count_ == most) {
    // The list is full. Open all watched memory, because opening single pages would exceed the
    // number of mappings of a process.
    has_more_ = true;
    void* const first = static_cast<std::byte*>(address) - offset;
    return mprotect(first, watched, PROT_READ | PROT_WRITE) == 0;
  }
  const std::uintptr_t page = AliasMemory::page_bytes();
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address) / page * page;
  if (mprotect(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE) != 0) return false;
  touched_[count_++] = address;
  return true;
}

}  // namespace tern::sim
