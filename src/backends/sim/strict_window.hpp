// Runs a strict kernel: it works on users' addresses, and only the pages that its launch declares
// are accessible.
//
// Accesses to other pages are recorded by the fault handler, with page precision. Writes to
// undeclared bytes of declared pages are found by comparison, with byte precision. Host memory is
// always accessible. Accesses of other threads count too, if only one strict kernel runs. The
// object lives around one run of the body, on the thread that runs it.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backends/kernel_launch.hpp"
#include "backends/sim/memories.hpp"
#include "backends/sim/stray_access.hpp"
#include "core/interval_map.hpp"

namespace tern::sim {

class StrictWindow {
 public:
  /// Opens the declared pages. The launch must outlive the object.
  StrictWindow(const Memories& memories, const KernelLaunch& launch);

  /// An access that the launch did not declare.
  struct Undeclared {
    std::uint32_t device = 0;
    std::uint64_t offset = 0;
    bool is_written = false;            // else read or written
    bool is_declared_for_read = false;  // so only the write is undeclared
    bool is_by_other_thread = false;    // not by the thread that runs the body
  };
  /// Closes all pages and returns the undeclared accesses. Call it once, after the body has run.
  [[nodiscard]] std::vector<Undeclared> close();

 private:
  // The memory of all devices in one address space, so that one map covers any range.
  static constexpr unsigned offset_bits = 48;
  [[nodiscard]] static std::uint32_t device_of(std::uint64_t at) noexcept {
    return static_cast<std::uint32_t>(at >> offset_bits);
  }
  [[nodiscard]] static std::uint64_t offset_of(std::uint64_t at) noexcept {
    return at & ((std::uint64_t{1} << offset_bits) - 1);
  }

  /// Returns whether an argument declares the byte.
  [[nodiscard]] bool is_declared(std::uint32_t device, std::uint64_t offset) const noexcept;

  const Memories& memories_;
  const KernelLaunch& launch_;
  IntervalMap<bool> pages_;  // open pages; true: writable
  // The old contents of undeclared bytes on declared pages.
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> neighbours_;
  TouchRecorder recorder_;
};

}  // namespace tern::sim
