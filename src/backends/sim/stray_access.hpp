// Detects host accesses to memory of a simulated device.
//
// While a simulated device is open, its address range is watched (core/fault_watch). An access
// prints a report with the device and the offset, and the process ends with the fault. Thread-safe.

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "backends/sim/alias_memory.hpp"

namespace tern::sim {

/// `device` is the name in reports, cut at 31 bytes.
void watch_reservation(const AliasMemory& memory, std::string_view device) noexcept;
void forget_reservation(const AliasMemory& memory) noexcept;

/// During its lifetime this thread may access watched memory: the first access to each closed page
/// is recorded, the page is opened, and the access continues. After a maximum number of pages,
/// everything is opened. The creator closes the pages again.
class TouchRecorder {
 public:
  static constexpr std::size_t most = 16;

  TouchRecorder() noexcept;
  ~TouchRecorder();
  TouchRecorder(const TouchRecorder&) = delete;
  TouchRecorder& operator=(const TouchRecorder&) = delete;

  [[nodiscard]] std::span<const void* const> touched() const noexcept {
    return {touched_.data(), count_};
  }
  /// Returns whether more pages were accessed than were recorded. All watched memory may be open
  /// then.
  [[nodiscard]] bool has_more() const noexcept { return has_more_; }
  /// Called by the fault handler with the watched range. Returns false if the page cannot be
  /// opened.
  bool note(void* address, std::uint64_t offset, std::size_t watched) noexcept;

 private:
  std::array<const void*, most> touched_ = {};
  std::size_t count_ = 0;
  bool has_more_ = false;
  TouchRecorder* const outer_;
};

}  // namespace tern::sim
