// The simulated device: a GPU-like device in ordinary memory that checks the order of everything.
//
// It opens on any machine as `sim`, behaves like a device with memory of its own and asynchronous
// streams, and reports a missing wait, a reuse too early or a use after free at the line that
// submitted it, whatever the timing. Everything it does follows from one seed, so a report replays.
// This header has its knobs and the means to test one's own stream-ordered code with it; a
// GoogleTest fixture is in sim_gtest.hpp.
//
// Calls are safe from any thread. All threads count as one host unless they say otherwise; runs are
// repeatable if the calls come in the same order.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/trace/finding.hpp"

namespace tern::sim {

/// What happens when the checker finds something.
enum class Mode : std::uint8_t {
  raise,    // the submitting call fails with violation, and nothing is queued
  collect,  // everything runs on; findings() has the list
  abort,    // print the report and abort: for debuggers, and programs that swallow exceptions
};

/// Which range a driver hands out again.
enum class Reuse : std::uint8_t {
  hostile,   // the most recently freed one that fits, at the first moment the rules allow
  friendly,  // no address twice until the memory is used up
};

/// Who runs next whenever a call gives the choice.
enum class Policy : std::uint8_t { mix, lazy, eager, random, skewed, stall_one, pct };

/// Which of a driver's own synchronisations count as order. Relying on them is what makes code fail
/// with the next driver, so none does, unless old code is to be tested as it is.
enum class CreditImplicit : std::uint8_t {
  none,
  documented,  // releasing memory waits for the device; copies of pageable memory wait for the copy
};

/// Who hears of a finding besides the caller.
enum class Report : std::uint8_t {
  print,  // standard error, once for each line that is wrong: an exception may be swallowed
  quiet,  // nobody; for tests that plant mistakes
};

struct Options {
  std::uint64_t seed = 0;
  Policy policy = Policy::mix;
  /// Of pct: how many times the running actor is overtaken, 2 to 5.
  unsigned pct_depth = 3;
  Reuse reuse = Reuse::hostile;
  Mode mode = Mode::raise;
  Report report = Report::print;
  /// What is simulated: h200, small, or the path of a profile; empty is h200. See
  /// docs/guide/sim.md.
  std::string profile = {};
  /// Bytes of device memory; unset: the profile's.
  std::optional<std::size_t> memory_bytes = {};
  /// Without the checker only wrong bytes show a mistake; for measuring what it adds.
  bool check = true;
  /// Whether the device declares Capability::concurrent_managed; unset: the profile's word.
  std::optional<bool> concurrent_managed = {};
  /// Whether the device declares Capability::float64.
  bool float64 = true;
  /// C++ kernels see only the pages they declare; anything else they touch is TERN-S303.
  bool strict_kernels = false;
  /// Every host thread is an actor of its own; release() and acquire() order them.
  bool per_thread_host = false;
  CreditImplicit credit_implicit = CreditImplicit::none;
  /// "allocate#3=oom, copy%2=fail": see docs/guide/sim.md.
  std::string faults = {};
  /// The file to write a trace to, for `tern check`; empty: none. While another device writes to
  /// it, this one writes to the same name with ".2", ".3" and so on. Needs the checker.
  std::string trace = {};
  /// Without a file: how much of the trace to keep in memory, for save_trace().
  std::size_t trace_memory_bytes = 0;
};

/// From the environment: TERN_SIM_SEED, TERN_SIM_SCHEDULE, TERN_SIM_REUSE, TERN_SIM_MODE,
/// TERN_SIM_REPORT, TERN_SIM_PROFILE, TERN_SIM_FAULTS, TERN_SIM_TRACE. Throws InvalidArgument,
/// FileError.
[[nodiscard]] TERN_EXPORT Options options_from_config();

/// A device of its own: two calls give two devices, whatever the options. The catalog's `sim:0` and
/// `sim:1` are peers; these have none. Throws InvalidArgument for options that make no sense,
/// FileError for a profile that cannot be read.
[[nodiscard]] TERN_EXPORT Device open(const Options& options);
/// Several devices that are peers of each other.
[[nodiscard]] TERN_EXPORT std::vector<Device> open_peers(const Options& options, unsigned count);

/// Tells the checker of an access to memory by the host that it cannot see. Throws Violation in
/// mode raise.
TERN_EXPORT void host_read(const Device& device, const void* address, std::size_t bytes,
                           CallSite site = CallSite::here());
TERN_EXPORT void host_write(const Device& device, void* address, std::size_t bytes,
                            CallSite site = CallSite::here());

/// With per_thread_host: what this thread did before release() comes before what another does after
/// acquire() with the same tag, as a lock or a flag of the program's own orders them.
TERN_EXPORT void release(const Device& device, std::uint64_t tag);
TERN_EXPORT void acquire(const Device& device, std::uint64_t tag);

/// Holds the stream at this point: later work of it does not begin before let_go(). It is what a
/// host function that blocks would be on other devices; here that would block the simulation
/// itself.
[[nodiscard]] TERN_EXPORT std::uint64_t hold(StreamRef stream);
TERN_EXPORT void let_go(const Device& device, std::uint64_t hold);
/// Runs the stream until it stands at the hold.
TERN_EXPORT void run_to_hold(const Device& device, std::uint64_t hold);
/// How long a wait for a held stream gives other threads to let it go, before it is called a
/// deadlock (TERN-S501), and a poll endless (TERN-S502). Ten seconds unless told otherwise.
TERN_EXPORT void set_patience(const Device& device, std::uint64_t milliseconds);

/// Runs the body once for every schedule and every choice a driver has, each time on a fresh device
/// with the options; for small programs only. With Policy::lazy the streams run only when the host
/// waits: these are far fewer schedules, and have all outcomes if the host does nothing in between
/// that depends on the streams. Gives the number of runs, at most `most_runs`. Throws
/// InvalidArgument if the body does not do the same every time.
struct Exploration {
  std::uint64_t runs = 0;
  bool is_complete = false;  // every schedule was run
};
TERN_EXPORT Exploration for_every_schedule(const Options& options, std::uint64_t most_runs,
                                           const std::function<void(const Device&)>& body);

/// What has been found so far, in order. The findings of calls that may not fail are here too.
[[nodiscard]] TERN_EXPORT std::vector<Finding> findings(const Device& device);
/// Live allocations as findings, oldest first.
[[nodiscard]] TERN_EXPORT std::vector<Finding> leaks(const Device& device);
/// Depends on every record so far, and on nothing else: equal runs have equal hashes.
[[nodiscard]] TERN_EXPORT std::uint64_t trace_hash(const Device& device);
/// Where the page of managed memory is now; unset before its first use. Throws InvalidArgument for
/// other memory.
[[nodiscard]] TERN_EXPORT std::optional<Place> residence(const Device& device, const void* address);
/// Bytes of managed memory that had to move so far, in either direction.
[[nodiscard]] TERN_EXPORT std::uint64_t migrated_bytes(const Device& device);
/// Brings the trace in its file up to date. Throws FileError if it could not be written, then or
/// before, and CapacityReached if it was cut short. Nothing without a trace.
TERN_EXPORT void flush_trace(const Device& device);
/// Ends the trace kept in memory, as if the device were shut down now, writes it to a file, and
/// says how many records it has. Throws FileError, and InvalidArgument if none was kept.
TERN_EXPORT std::uint64_t save_trace(const Device& device, const std::string& path);
/// Virtual nanoseconds since the device was opened.
[[nodiscard]] TERN_EXPORT std::uint64_t virtual_time_ns(const Device& device);
/// How often each class of call was made, for fault loops: "allocate", "copy", "launch", ... Peers
/// count together.
[[nodiscard]] TERN_EXPORT std::uint64_t calls(const Device& device, std::string_view fault_class);
/// Replaces the fault plan, and counts calls from zero again. Throws InvalidArgument.
TERN_EXPORT void set_faults(const Device& device, std::string_view plan);

}  // namespace tern::sim
