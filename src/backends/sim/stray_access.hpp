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
#include "backends/sim/memories.hpp"
#include "core/fault_watch.hpp"

namespace tern::sim {

/// `device` is the name in reports, cut at 31 bytes.
void watch_reservation(const AliasMemory& memory, std::string_view device) noexcept;
void forget_reservation(const AliasMemory& memory) noexcept;

/// During its lifetime this thread may access watched memory: the first access to each closed page
/// is recorded, the page is opened, and the access continues. After a maximum number of pages,
/// everything is opened. The creator closes the pages again.
///
/// If no other recorder exists, accesses of other threads to the given memories are recorded too: a
/// kernel may start threads, and the handler cannot tell them from other threads.
class TouchRecorder {
 public:
  static constexpr std::size_t most = 16;
  struct Touched {
    const void* address = nullptr;
    bool is_by_other_thread = false;
  };

  explicit TouchRecorder(const Memories* memories = nullptr) noexcept;
  ~TouchRecorder();
  TouchRecorder(const TouchRecorder&) = delete;
  TouchRecorder& operator=(const TouchRecorder&) = delete;

  [[nodiscard]] std::span<const Touched> touched() const noexcept {
    return {touched_.data(), count_};
  }
  /// Returns whether more pages were accessed than were recorded. All watched memory may be open
  /// then.
  [[nodiscard]] bool has_more() const noexcept { return has_more_; }
  /// Records an access, for the fault handler. Returns false if the access is not allowed or the
  /// page cannot be opened.
  static bool note(const Fault& fault) noexcept;

 private:
  bool open(const Fault& fault, bool is_by_other_thread) noexcept;

  std::array<Touched, most> touched_ = {};
  std::size_t count_ = 0;
  bool has_more_ = false;
  const Memories* const memories_;
  TouchRecorder* const outer_;       // of this thread
  TouchRecorder* others_ = nullptr;  // of all threads
};

}  // namespace tern::sim
