// A TraceSummary is what a memory trace shows: blocks with their lives, what resources held,
// copies, launches, waits, and what follows from them: peaks, refusals, leaks, transfers.
//
// Indices into `tags`, `sites`, `streams`, `resources`, `devices` and `kernels` name things. Times
// are nanoseconds since the trace began. tools/report/README.md has the same model as data.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/pending_memory.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

struct TraceSummary {
  static constexpr std::uint64_t never = UINT64_MAX;

  struct Resource {
    std::string name;
    std::uint32_t device = 0;
    /// Device or managed memory of a device other than the host, so that a copy from the host to it
    /// moves bytes to the device. The library's transfer counts use the same rule.
    bool is_device_memory = true;
    /// The highest live and held memory, and what was live and held when the trace ended.
    std::uint64_t peak_live = 0, peak_time = 0, peak_held = 0;
    std::uint64_t live_at_end = 0, held_at_end = 0;
  };
  struct Stream {
    std::string name;
    std::uint32_t device = 0;
  };
  struct Block {
    std::uint64_t begin = 0;
    std::uint64_t end = never;  // never: not freed
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;
    /// From the free to this time, the memory was pending unless it was allocated again.
    std::uint64_t pending_until = 0;
    std::uint32_t tag = 0, site = 0, free_site = 0, stream = 0, free_stream = 0, resource = 0;
  };
  /// What a resource holds from now on. If it grew for a request, the request is known.
  struct Hold {
    std::uint64_t time = 0, bytes = 0;
    std::uint32_t resource = 0;
    std::uint64_t pending = 0;  // freed, but not passed by the stream that freed it
    std::uint64_t requested = 0;
    std::uint32_t tag = 0, site = 0, stream = 0;  // of the request
  };
  enum class Direction : std::uint8_t {
    to_device,
    to_host,
    within_device,
    between_devices,
    unknown,     // both addresses are in no block of the trace
    within_host  // from memory of the host to memory of the host
  };
  static constexpr std::size_t directions = 6;
  struct Copy {
    /// When it began on the device, or when it was submitted if that is unknown. Then took is 0.
    std::uint64_t time = 0, took = 0, bytes = 0;
    std::uint32_t stream = 0, site = 0, tag = 0;
    Direction direction = Direction::to_device;
  };
  struct Launch {
    std::uint64_t time = 0;
    std::uint32_t stream = 0, kernel = 0, site = 0;
  };
  struct Wait {
    std::uint64_t time = 0, took = 0;
    std::uint32_t stream = 0, waits_for = 0, site = 0;  // stream 0: the host waits
    std::uint32_t thread = 0;
    std::uint64_t over = never;  // when the program saw that the wait was over
  };
  /// A function of the host that a stream calls.
  struct HostCall {
    std::uint64_t time = 0;      // when it was submitted
    std::uint64_t over = never;  // when the program saw that the stream had passed it
    std::uint32_t stream = 0, site = 0;
  };
  struct Range {
    std::uint64_t begin = 0, took = 0;
    std::uint32_t depth = 0, thread = 0, name = 0;  // name is an index into kernels
  };
  /// Live blocks that share a tag, or a tag and a site.
  struct Share {
    std::uint32_t tag = 0, site = 0;
    std::uint64_t bytes = 0, blocks = 0;
  };
  struct Peak {
    std::uint32_t device = 0;
    std::uint64_t time = 0, live = 0, held = 0;
    std::uint64_t peak_held = 0;  // may be at another time
    std::uint64_t live_at_end = 0;
    std::vector<Share> tags, sites;  // the largest first
    std::string text;
  };
  struct Refusal {
    std::uint64_t time = 0, bytes = 0, held = 0;
    std::uint64_t live = 0;           // on the device
    std::uint64_t resource_live = 0;  // in the resource
    std::uint64_t pending = 0;        // in the resource: freed, but not passed by their streams
    std::uint64_t largest_free = 0;   // bytes of the largest free range; 0: unknown
    std::uint32_t device = 0, resource = 0, tag = 0, site = 0, stream = 0;
    std::string error;
    /// Of the resource, if it is a pool; 0: unknown.
    std::uint64_t limit = 0;
    trace::Backing backing = trace::Backing::unknown;
    /// The thread asked again and got the memory, for example after evictions.
    bool is_served_later = false;
    std::vector<Share> tags;
  };
  struct Leak {
    std::uint32_t device = 0, tag = 0, site = 0;
    std::uint64_t bytes = 0, blocks = 0;
  };
  struct Transfers {
    std::uint64_t calls = 0, bytes = 0;
    std::uint64_t busy = 0, timed_bytes = 0;  // of the copies whose time is known
  };
  /// Bytes that unified buffers moved for one reason.
  struct Moves {
    std::string reason;
    std::uint64_t calls = 0, bytes = 0;
  };
  /// A copy that leases, opened at one line, kept from eviction.
  struct KeptCopy {
    std::uint32_t tag = 0, site = 0;     // where the leases were opened
    std::uint64_t times = 0, bytes = 0;  // of the largest copy
  };
  /// What the checker of a simulated device reported.
  struct CheckerFinding {
    std::uint64_t time = 0;
    std::uint32_t site = 0;
    std::string text;
  };
  struct Count {
    std::uint64_t calls = 0, sum = 0;
  };
  /// Waits of one stream, or of the host, for another stream.
  struct WaitSum {
    std::uint32_t stream = 0, waits_for = 0;
    std::uint64_t calls = 0, took = 0;
    std::uint32_t site = 0;  // the line that waited longest or, between streams, most often
  };
  /// Calls of one tag and one line, with their bytes or their nanoseconds.
  struct LineCount {
    std::uint32_t tag = 0, site = 0;
    std::uint64_t calls = 0, sum = 0;
  };

  /// The budgets that have one path: a program may make many, one after another.
  struct Budget {
    std::string path;
    std::uint64_t count = 0;               // of budgets
    std::uint64_t highest = 0, limit = 0;  // of the budget that used most, at `time`
    std::uint64_t time = 0;
    std::uint64_t waits = 0, waited = 0;  // ns
    std::uint64_t refused = 0;            // requests
  };

  explicit TraceSummary(const trace::MemoryTrace& trace, std::string title);

  std::string title, program, started;
  std::uint32_t process = 0;
  std::uint64_t duration = 0, events = 0, lost = 0;
  std::uint64_t start = 0;  // of the monotonic clock
  bool is_complete = true;
  std::vector<std::string> notes;
  std::vector<std::string> devices, tags, sites, kernels;
  std::vector<Resource> resources;
  std::vector<Stream> streams;
  std::vector<Block> blocks;  // sorted by begin
  std::vector<Hold> holds;
  std::vector<PendingMemory::Change> pending;
  std::vector<Copy> copies;
  std::vector<Launch> launches;
  std::vector<Wait> waits;
  std::vector<HostCall> host_calls;
  std::vector<Range> ranges;
  std::vector<Peak> peaks;
  std::vector<Refusal> refusals;   // the first ones
  std::uint64_t refused = 0;       // all of them
  std::uint64_t served_later = 0;  // of those: the request was repeated and served
  std::vector<Leak> leaks;
  Transfers transfers[directions];
  std::vector<Moves> moves;
  Count evictions;              // and their bytes
  Count budget_waits;           // and their nanoseconds
  std::vector<Budget> budgets;  // the highest use first
  std::vector<WaitSum> wait_sums;
  std::vector<LineCount> evicted_lines, budget_wait_lines;  // the largest sum first
  std::vector<KeptCopy> kept_copies;                        // the most frequent first
  std::vector<CheckerFinding> checker_findings;             // at most 100
};

/// The name of a direction, such as "host to device".
[[nodiscard]] std::string_view name(TraceSummary::Direction direction) noexcept;

/// How a pool holds memory: "pages" or "segments". Empty if unknown.
[[nodiscard]] std::string_view name(trace::Backing backing) noexcept;

/// A time such as "12.3 ms" or "4.56 s".
[[nodiscard]] std::string time_text(std::uint64_t ns);

/// The limit of a budget, such as "4.0 GiB", or "none".
[[nodiscard]] std::string limit_text(std::uint64_t limit);
/// The share of a limit, such as "75 %". Empty if there is no limit, or a limit of 0.
[[nodiscard]] std::string share_text(std::uint64_t used, std::uint64_t limit);

/// Writes the summary as text for terminals and logs.
[[nodiscard]] std::string text_report(const TraceSummary& summary);
/// Writes the summary as JSON for programs, with exact numbers.
[[nodiscard]] std::string json_report(const TraceSummary& summary);
/// Writes the summary as one page of HTML.
[[nodiscard]] std::string page_report(const TraceSummary& summary);

}  // namespace tern::tools
