// Random programs for a whole device whose result does not depend on the schedule.
//
// A program uses two devices that are peers, nine streams of all kinds, and memory of all kinds:
// copies, fills, kernels with and without a body, stream-ordered allocation, reads and writes by
// the host. Every use waits for what it depends on, by marks, events, other streams or the host,
// but only if nothing orders it yet, so most order is transitive. Bytes are written before they are
// read. So all schedules must end with the same bytes. If they do not and the checker reports
// nothing, the checker or the device is wrong. Leaving out a wait tests that this comparison can
// fail.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/trace/finding.hpp"

namespace tern::tools {

struct DeviceStep {
  enum class Kind : std::uint8_t {
    allocate,    // `block` at `where`, by the host
    begin,       // `block` on the device of `stream`, in its order
    end,         // free `block` in the order of `stream`
    fill,        // `cells` of `block` from `cell` with `value`
    copy,        // from `source`; between devices a peer copy
    copy_rows,   // the same as rows
    no_body,     // a kernel without a body: reads `source`, writes `block`
    body,        // a kernel with one
    host_write,  // by the host
    host_read,
    record,       // event `slot` on `stream`
    mark,         // keep a mark of `stream` in `slot`
    wait_stream,  // `stream` waits for all that `other` did so far
    wait_event,   // `stream` waits for event `slot`
    wait_mark,    // `stream` waits for the mark in `slot`
    host_waits,   // the host waits for a mark of `other`
    host_drains,  // the host waits for stream `other`
    host_stops,   // the host waits for the device of `other`
    ask,          // query whether `stream` is idle; the answer changes nothing
    prefetch,
  };
  enum class Where : std::uint8_t { first_device, second_device, pinned, managed, pageable };

  Kind kind = Kind::fill;
  Where where = Where::first_device;
  std::uint8_t stream = 0;
  std::uint8_t other = 0;
  std::uint8_t slot = 0;
  std::uint16_t block = 0, cell = 0, cells = 1;
  std::uint16_t source = 0, source_cell = 0;
  std::uint8_t value = 0;
  /// Later steps may need it.
  [[nodiscard]] bool is_wait() const noexcept {
    return kind >= Kind::wait_stream && kind <= Kind::host_stops;
  }
};

/// The result of a run.
struct DeviceRun {
  std::uint64_t bytes_hash = 0;   // of all written bytes
  std::uint64_t trace_hash = 0;   // of the records: equal for equal seeds on every platform
  std::vector<Finding> findings;  // none in a correct program
};

struct DeviceProgram {
  static constexpr std::size_t streams = 9;
  static constexpr std::size_t cells_per_block = 4;

  std::uint64_t seed = 0;
  std::size_t cell_bytes = 64;
  std::vector<DeviceStep> steps;

  [[nodiscard]] static DeviceProgram make(std::uint64_t seed, int operations = 60);
  /// Returns the program without one step, which should be a wait.
  [[nodiscard]] DeviceProgram without(std::size_t step) const;
  /// Runs on two fresh devices and collects findings.
  [[nodiscard]] DeviceRun run(sim::Options options) const;
};

/// A policy and its name.
struct NamedPolicy {
  sim::Policy policy;
  unsigned pct_depth;
  const char* name;
};
inline constexpr std::array all_policies = {
    NamedPolicy{sim::Policy::eager, 3, "eager"},
    NamedPolicy{sim::Policy::lazy, 3, "lazy"},
    NamedPolicy{sim::Policy::random, 3, "random"},
    NamedPolicy{sim::Policy::skewed, 3, "skewed"},
    NamedPolicy{sim::Policy::stall_one, 3, "stall-one"},
    NamedPolicy{sim::Policy::pct, 2, "pct:2"},
    NamedPolicy{sim::Policy::pct, 3, "pct:3"},
    NamedPolicy{sim::Policy::pct, 4, "pct:4"},
    NamedPolicy{sim::Policy::pct, 5, "pct:5"},
    NamedPolicy{sim::Policy::mix, 3, "mix"},
};

/// Runs the program under the policy with each seed. Returns the first error, if there is one: the
/// finding of a run, or wrong-bytes if a run ends with other bytes than `expected`. Alternates
/// between the earliest and the latest reuse of memory.
[[nodiscard]] std::vector<Finding> compare_runs(const DeviceProgram& program,
                                                const NamedPolicy& policy, std::uint64_t first_seed,
                                                std::uint64_t seeds, std::uint64_t expected);

/// The results of leaving out each wait of a program in turn.
struct DroppedWaits {
  std::size_t waits = 0;
  std::size_t found = 0;           // by the checker
  std::size_t shown = 0;           // by other bytes under some schedule, without the checker
  std::size_t shown_by_eager = 0;  // by Policy::eager, which cannot show any
  std::size_t missed = 0;          // other bytes without a finding: must be 0
};
[[nodiscard]] DroppedWaits drop_waits(const DeviceProgram& program, std::uint64_t seeds);

}  // namespace tern::tools
