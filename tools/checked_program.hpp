// Random programs under the checker, with a vector-clock oracle beside it.
//
// A program uses one or two simulated devices, several streams, and sometimes several host threads.
// It orders its accesses by events, marks, timelines, host waits and other streams, and addresses
// are reused. On request it leaves out an order now and then. The checker must report a race
// exactly if the oracle sees one.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/trace/finding.hpp"
#include "tools/race_oracle.hpp"

namespace tern::tools {

/// What a program leaves out.
enum class Omission : std::uint8_t {
  nothing,
  wait_of_a_stream,     // a stream uses memory without a wait
  wait_of_the_host,     // the host reads or writes without a wait
  wait_before_release,  // memory is released without a wait
  wait_after_reuse,     // a stream that got reused memory uses other memory without a wait
  record,               // a stream waits for an event that was not recorded
  signal,               // the host waits for a value of a timeline that was set before
  acquire,              // a thread does not acquire what another one released
  any,                  // any of these
};

struct NamedOmission {
  Omission omission;
  const char* name;
};
inline constexpr std::array all_omissions = {
    NamedOmission{Omission::wait_of_a_stream, "a wait of a stream"},
    NamedOmission{Omission::wait_of_the_host, "a wait of the host"},
    NamedOmission{Omission::wait_before_release, "a wait before a release"},
    NamedOmission{Omission::wait_after_reuse, "a wait after a reuse"},
    NamedOmission{Omission::record, "the record of an event"},
    NamedOmission{Omission::signal, "the signal of a timeline"},
    NamedOmission{Omission::acquire, "an acquire of a thread"},
};

struct CheckedRun {
  Verdict verdict = Verdict::ordered;  // by the oracle
  std::string why;                     // why it is not ordered
  std::vector<Finding> findings;       // by the checker

  // Contents of the program.
  std::size_t devices = 1, threads = 1;
  std::size_t reuses = 0;          // reused addresses
  std::size_t timeline_waits = 0;  // by a host thread
};

struct CheckedProgram {
  std::uint64_t seed = 0;
  Omission omission = Omission::nothing;
  std::optional<sim::Reuse> reuse = {};  // unset: the seed decides
  bool is_verbose = false;               // prints each step

  [[nodiscard]] CheckedRun run() const;
};

}  // namespace tern::tools
