// A host access to memory of a simulated device, caught and attributed.
//
// While a simulated device is open its reservation is watched (core/fault_watch): a report says
// which device and offset were touched, and the process dies of it as it would have. Thread-safe.

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "backends/sim/alias_memory.hpp"

namespace tern::sim {

/// `device` is what reports call it, cut at 31 bytes.
void watch_reservation(const AliasMemory& memory, std::string_view device) noexcept;
void forget_reservation(const AliasMemory& memory) noexcept;

/// While it lives, this thread may touch watched memory: the first touch of each closed page is
/// noted, the page is opened, and the access goes on; of so many at the most, behind which nothing
/// is closed any more. Whoever made it closes the pages again.
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
  /// More pages were touched than are named; then all watched memory may be open.
  [[nodiscard]] bool has_more() const noexcept { return has_more_; }
  /// From the handler, with the place and size of what is watched: false if it cannot be opened.
  bool note(void* address, std::uint64_t offset, std::size_t watched) noexcept;

 private:
  std::array<const void*, most> touched_ = {};
  std::size_t count_ = 0;
  bool has_more_ = false;
  TouchRecorder* const outer_;
};

}  // namespace tern::sim
