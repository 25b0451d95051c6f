// A kernel that is watched: it works on users' addresses, of which only the pages it declared are
// open while it runs.
//
// What it touches on other pages is noted by the handler of faults, and found to the page; what it
// writes beside declared bytes of the same page is found to the byte. Host memory is open to all.
// Lives around one run of the body, on the thread that runs it.

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
  /// Opens what the launch declares.
  StrictWindow(const Memories& memories, const KernelLaunch& launch);

  /// Something the launch did not declare.
  struct Undeclared {
    std::uint32_t device = 0;
    std::uint64_t offset = 0;
    bool is_written = false;  // else touched, somehow
  };
  /// Closes everything again, and tells. Once, when the body has run.
  [[nodiscard]] std::vector<Undeclared> close();

 private:
  // Memory of all devices in one row, so that one map holds any range of it.
  static constexpr unsigned offset_bits = 48;
  [[nodiscard]] static std::uint32_t device_of(std::uint64_t at) noexcept {
    return static_cast<std::uint32_t>(at >> offset_bits);
  }
  [[nodiscard]] static std::uint64_t offset_of(std::uint64_t at) noexcept {
    return at & ((std::uint64_t{1} << offset_bits) - 1);
  }

  const Memories& memories_;
  IntervalMap<bool> pages_;  // open; for writing too?
  // What shares a page with declared bytes, as it was.
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> neighbours_;
  TouchRecorder recorder_;
};

}  // namespace tern::sim
