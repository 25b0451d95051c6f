// Records what happens to memory on every device, in a file that `tern report` shows.
//
//   trace::start("run.trace");
//   train();
//   trace::stop();
//
//   $ tern report run.trace -o run.html
//
// TERN_TRACE=run.trace does the same for a whole program. trace::start_ring() keeps the latest
// events in memory instead, and trace::dump() writes them to a file: for programs that run for
// days. A recording contains:
//
//   - requests, frees and refusals of resources, and the memory that pools hold
//   - the use of budgets, waits for them, and their refusals
//   - copies, with the duration of large ones, fills, kernel launches, and waits between streams
//   - waits of the host for streams, events and devices
//   - moves, evictions and leases of unified buffers
//   - ranges of threads, and findings of simulated devices
//
// Every event has its time and, where known, its tag and call site. docs/guide/reports.md lists
// what is not recorded.
//
// An event in a ring costs 30 to 60 ns. An event in a file costs little more, because a helper
// thread maps the pages of the file in advance. Threads share a lock only to claim a slab of 4095
// events in a file, for an event with a text (such as the name of a range), for a new call site,
// tag, device or budget, and for the time of a large copy. An event makes no write call. If an
// event cannot be recorded (the disk is full, or the host has no memory), it is lost and counted,
// and the program continues. If the process is killed, the file is complete up to the last event.
// Thread-safe. In a forked child, nothing is recorded until the child starts a recording itself.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::trace {

/// Creates the file, or replaces it, and starts to record. In the path, %p is replaced by the
/// process id. Fails with file if the file cannot be created, and with invalid_argument if this
/// process is recording already or another process is recording to the file.
[[nodiscard]] TERN_EXPORT Result<void> try_start(const std::string& path) noexcept;
TERN_EXPORT void start(const std::string& path, CallSite site = CallSite::here());

/// Starts to record into memory of this size, at least 1 MiB, in which new events replace the
/// oldest. Fails with invalid_argument if the size is below 1 MiB or this process is recording
/// already, and with out_of_memory if the host cannot allocate the ring.
[[nodiscard]] TERN_EXPORT Result<void> try_start_ring(std::size_t bytes) noexcept;
TERN_EXPORT void start_ring(std::size_t bytes, CallSite site = CallSite::here());

/// Writes the events of the ring to a file. Recording goes on. Fails with invalid_argument without
/// a ring, and with file if the file cannot be written.
[[nodiscard]] TERN_EXPORT Result<void> try_dump(const std::string& path) noexcept;
TERN_EXPORT void dump(const std::string& path, CallSite site = CallSite::here());

/// Stops recording and closes the file. Does nothing if nothing is recorded.
TERN_EXPORT void stop() noexcept;

/// Returns how many events could not be recorded since the start, or nothing if this process is not
/// recording.
[[nodiscard]] TERN_EXPORT std::optional<std::uint64_t> lost_events() noexcept;

/// Names what this thread does from here to the end of the scope, such as "step 12". Ranges nest.
/// A profiler that understands NVTX shows them, too, with or without a recording.
class TERN_EXPORT Range {
 public:
  explicit Range(const std::string& name, CallSite site = CallSite::here()) noexcept;
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();

 private:
  bool is_recorded_ = false;
};

}  // namespace tern::trace
