// The simulated device: a GPU-like device in host memory that checks the order of every access.
//
//   Device device = sim::open({.seed = 7});
//   run_my_pipeline(device);               // throws Violation at a missing wait
//   for (const Finding& leak : sim::leaks(device)) std::cout << leak.text();
//
// The device `sim` opens on any machine. It behaves like a device with its own memory and
// asynchronous streams. It reports a missing wait, a premature reuse or a use after free at the
// line that submitted the work, independent of timing. One seed determines everything the device
// does, so a report can be reproduced.
//
// This header has the options of the device and the functions to test your own stream-ordered code.
// sim_gtest.hpp has a GoogleTest fixture. docs/guide/sim.md is the guide.
//
// Calls are safe from any thread. All host threads count as one actor, unless
// Options::per_thread_host is set. A run is repeatable if the calls come in the same order. Every
// function that takes a Device throws InvalidDevice if the device is not simulated. A CUDA device
// that was opened with `driver=sim` counts as simulated.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/backends/shrinker.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/trace/finding.hpp"

namespace tern::sim {

/// What happens when the checker finds an error.
enum class Mode : std::uint8_t {
  raise,    // the submitting call fails with violation and queues nothing
  collect,  // the program continues; findings() returns the findings
  abort,    // prints the report and aborts: for debuggers and code that swallows exceptions
};

/// Which freed memory the simulated driver reuses.
enum class Reuse : std::uint8_t {
  hostile,   // the most recently freed range that fits, as early as the rules allow
  friendly,  // no address is reused until the memory is used up
};

/// Which actor, the host or a stream, runs next where there is a choice.
/// - `mix`: the seed selects one of the other policies, except `eager`.
/// - `lazy`: streams run only when the host waits.
/// - `eager`: streams run as soon as work is submitted.
/// - `random`: each ready actor is equally likely.
/// - `skewed`: each actor has a random weight.
/// - `stall_one`: one stream runs only when no other actor can.
/// - `pct`: actors have random priorities that change a few times (probabilistic concurrency
///   testing).
enum class Policy : std::uint8_t { mix, lazy, eager, random, skewed, stall_one, pct };

/// Options of a simulated device.
struct Options {
  /// The seed of all random choices.
  std::uint64_t seed = 0;
  Policy policy = Policy::mix;
  /// For Policy::pct: the depth d, 2 to 5. The running actor drops to the lowest priority d - 1
  /// times.
  unsigned pct_depth = 3;
  Reuse reuse = Reuse::hostile;
  Mode mode = Mode::raise;
  /// Prints findings to standard error, once per faulty line, because code may swallow the
  /// exception. Turn it off for tests with planted errors.
  bool print_findings = true;
  /// The simulated hardware: "h200", "small", or the path of a profile. Empty means h200. See
  /// docs/guide/sim.md.
  std::string profile = {};
  /// Bytes of device memory. If unset, the profile decides.
  std::optional<std::size_t> memory_bytes = {};
  /// Keeps what is written to device memory. If false, device memory costs the host nothing,
  /// however large it is and however much is written to it: copies to it and fills do nothing,
  /// kernels do not run, and copies from it read zeros. Standard error says so once. For `tern
  /// rehearse`.
  bool keeps_contents = true;
  /// Runs the checker. Without it, an error shows only as wrong bytes. Turn it off to measure what
  /// the checker costs.
  bool check = true;
  /// Whether the device declares Capability::concurrent_managed. If unset, the profile decides.
  std::optional<bool> concurrent_managed = {};
  /// Whether the device declares Capability::float64.
  bool float64 = true;
  /// C++ kernels can access only the pages that their launch declares. Any other access is reported
  /// as TERN-S303.
  bool strict_kernels = false;
  /// Each host thread is a separate actor. Use release() and acquire() to declare their order.
  bool per_thread_host = false;
  /// If true, frees wait for the device, copies of pageable memory wait for their stream, and the
  /// checker counts these waits as order, as the manual of a driver promises. By default the
  /// checker does not count such waits, because code that relies on them may fail with another
  /// driver version. Set this to test existing code.
  bool implicit_sync = false;
  /// The fault plan, such as "allocate#3=oom, copy%2=fail". See docs/guide/sim.md.
  std::string faults = {};
  /// The file to write a trace to, for `tern check`. Empty means no file. If another open device
  /// already writes to the file, this device appends ".2", ".3" and so on to the name. Needs the
  /// checker.
  std::string trace = {};
  /// Maximum size of a trace that is kept in memory for save_trace(). Only used if `trace` is
  /// empty. 0 keeps no trace.
  std::size_t trace_memory_bytes = 0;
};

/// Returns the default options, changed by TERN_SIM_SEED, TERN_SIM_SCHEDULE, TERN_SIM_REUSE,
/// TERN_SIM_MODE, TERN_SIM_REPORT, TERN_SIM_PROFILE, TERN_SIM_FAULTS and TERN_SIM_TRACE. Throws
/// InvalidArgument for an invalid value, and FileError for a profile that cannot be read.
[[nodiscard]] TERN_EXPORT Options options_from_config();

/// Opens a new simulated device. Two calls return two devices, even with equal options. The device
/// has no peers, unlike `sim:0` and `sim:1` of the catalog. Throws InvalidArgument for invalid
/// options, and FileError for a profile that cannot be read or a trace that cannot be written.
[[nodiscard]] TERN_EXPORT Device open(const Options& options);
/// Opens `count` devices, 1 to 64, that are peers of each other. Throws like open().
[[nodiscard]] TERN_EXPORT std::vector<Device> open_peers(const Options& options, unsigned count);

/// host_read() and host_write() announce a host access that the checker cannot observe. They throw
/// Violation in Mode::raise if the access is not ordered after the work on that memory, and
/// InvalidArgument for a null address.
TERN_EXPORT void host_read(const Device& device, const void* address, std::size_t bytes,
                           CallSite site = CallSite::here());
TERN_EXPORT void host_write(const Device& device, void* address, std::size_t bytes,
                            CallSite site = CallSite::here());

/// With Options::per_thread_host, release() and acquire() declare the order of two threads:
/// everything that a thread did before release() is ordered before everything that another thread
/// does after acquire() with the same tag. Call them where the program synchronizes its threads
/// with a lock or a flag.
TERN_EXPORT void release(const Device& device, std::uint64_t tag);
TERN_EXPORT void acquire(const Device& device, std::uint64_t tag);

/// Holds the stream at this point: later work of the stream does not begin before resume(). Returns
/// the number of the hold. On other devices, a host function that blocks has this effect; on a
/// simulated device such a function would block the simulation itself.
[[nodiscard]] TERN_EXPORT std::uint64_t hold(StreamRef stream);
/// Ends a hold.
TERN_EXPORT void resume(const Device& device, std::uint64_t hold);
/// Runs the stream until it has reached the hold.
TERN_EXPORT void run_to_hold(const Device& device, std::uint64_t hold);
/// Sets how long a wait for a held stream lasts before it is reported. Until then, another thread
/// can end the hold with resume(). Afterwards the wait is reported as a deadlock (TERN-S501), and a
/// polling loop as endless (TERN-S502). The default is ten seconds.
TERN_EXPORT void set_patience(const Device& device, std::uint64_t milliseconds);

/// The result of for_every_schedule().
struct Exploration {
  std::uint64_t runs = 0;    // how often the body ran
  bool is_complete = false;  // true if every schedule was run
};
/// Runs the body once for every schedule and every choice that a driver has, each time on a new
/// device with these options. Stops after `max_runs` runs. Suitable for small programs only.
///
/// With Policy::lazy, streams run only when the host waits. There are far fewer such schedules, and
/// they produce all outcomes if the host does nothing between its waits that depends on the
/// streams.
///
/// Throws InvalidArgument for invalid options, and if the body does not make the same calls in
/// every run. Passes on what the body throws.
TERN_EXPORT Exploration for_every_schedule(const Options& options, std::uint64_t max_runs,
                                           const std::function<void(const Device&)>& body);

/// Returns all findings so far, in order. They include findings of calls that cannot fail, such as
/// frees.
[[nodiscard]] TERN_EXPORT std::vector<Finding> findings(const Device& device);
/// Returns the live allocations as findings, oldest first.
[[nodiscard]] TERN_EXPORT std::vector<Finding> leaks(const Device& device);
/// Returns a hash of all trace records so far. Equal runs have equal hashes.
[[nodiscard]] TERN_EXPORT std::uint64_t trace_hash(const Device& device);
/// Returns the place where a page of managed memory is now, or nullopt before its first use. Throws
/// InvalidArgument for other memory.
[[nodiscard]] TERN_EXPORT std::optional<Place> residence(const Device& device, const void* address);
/// Returns how many bytes of managed memory had to migrate so far, in either direction.
[[nodiscard]] TERN_EXPORT std::uint64_t migrated_bytes(const Device& device);
/// Writes the buffered part of the trace to its file. Throws FileError if this write or an earlier
/// one failed, and CapacityReached if records were lost. Does nothing if the device has no trace.
TERN_EXPORT void flush_trace(const Device& device);
/// Ends the trace that is kept in memory, as if the device were shut down now, and writes it to a
/// file. Returns the number of records. Throws FileError if the file cannot be written, and
/// InvalidArgument if no trace was kept.
TERN_EXPORT std::uint64_t save_trace(const Device& device, const std::string& path);
/// Returns the virtual time since the device was opened, in nanoseconds.
[[nodiscard]] TERN_EXPORT std::uint64_t virtual_time_ns(const Device& device);
/// Returns the number of calls of a fault class, such as "allocate", "copy" or "launch", over the
/// device and all its peers. Use it to fail each call in turn. Throws InvalidArgument for an
/// unknown class.
[[nodiscard]] TERN_EXPORT std::uint64_t calls(const Device& device, std::string_view fault_class);
/// Replaces the fault plan of the device and its peers and resets the call counts. Throws
/// InvalidArgument for an invalid plan.
TERN_EXPORT void set_faults(const Device& device, std::string_view plan);

// shrink() reduces a failing list of steps to a short list that still fails.
//
//   auto shortest = tern::sim::shrink(steps, [&](std::span<const Step> some) {
//     return run(some).code == first.code;
//   });
//
// A property test generates a program as a list of steps and runs it. If a run fails, most steps
// are usually irrelevant. shrink() removes groups of steps, large groups first, together with the
// later steps that depend on a removed step. Then it replaces the remaining steps by simpler ones.
// It runs each candidate and keeps it if it still fails.
//
// In the result, no single step can be removed or simplified, unless the maximum number of runs was
// reached. shrink() is deterministic: the same program always shrinks to the same result. It does
// not use a device, and Step can be any copyable type. Call it from one thread.

/// Returns the shortest program found for which `still_fails(std::span<const Step>)` returns true.
///
/// - `still_fails` must return the same result for the same steps. It should test for the original
///   failure, because shortened programs often fail in other ways.
/// - `depends(later, earlier)` returns true if the later step makes no sense without the earlier
///   one.
/// - `simpler(step)` returns replacements to try, simplest first. Repeated replacement must not
///   lead back to an earlier step.
/// - `max_runs` is the maximum number of programs to run. When it is reached, the shortest failing
///   program so far is the result.
template <class Step, class StillFails, class Depends = NothingDepends<Step>,
          class Simpler = NothingIsSimpler<Step>>
[[nodiscard]] std::vector<Step> shrink(std::vector<Step> steps, StillFails still_fails,
                                       Depends depends = {}, Simpler simpler = {},
                                       std::size_t max_runs = 20'000) {
  return Shrinker<Step, StillFails, Depends, Simpler>(std::move(steps), std::move(still_fails),
                                                      std::move(depends), std::move(simpler),
                                                      max_runs)
      .run();
}

}  // namespace tern::sim
