// A TraceSummary is what a memory trace shows: blocks with their lives, what resources held,
// copies, launches, waits, and what follows from them: peaks, refusals, leaks, transfers.
//
// Indices into `tags`, `sites`, `streams`, `resources`, `devices` and `kernels` name things. Times
// are nanoseconds since the trace began. tools/report/README.md has the same model as data.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/memory_trace.hpp"

namespace tern::tools {

struct TraceSummary {
  static constexpr std::uint64_t never = UINT64_MAX;

  struct Resource {
    std::string name;
    std::uint32_t device = 0;
    /// Device or managed memory, so that a copy from the host to it moves bytes to the device.
    bool is_device_memory = true;
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
    std::uint32_t tag = 0, site = 0, free_site = 0, stream = 0, free_stream = 0, resource = 0;
  };
  struct Hold {
    std::uint64_t time = 0, bytes = 0;
    std::uint32_t resource = 0;
  };
  enum class Direction : std::uint8_t {
    to_device,
    to_host,
    within_device,
    between_devices,
    unknown  // both addresses are in no block of the trace
  };
  static constexpr std::size_t directions = 5;
  struct Copy {
    std::uint64_t time = 0, took = 0, bytes = 0;  // took is 0 if unknown
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
    std::vector<Share> tags, sites;  // the largest first
    std::string text;
  };
  struct Refusal {
    std::uint64_t time = 0, bytes = 0, held = 0, live = 0;
    std::uint32_t device = 0, resource = 0, tag = 0, site = 0, stream = 0;
    std::string error;
    std::vector<Share> tags;
  };
  struct Leak {
    std::uint32_t device = 0, tag = 0, site = 0;
    std::uint64_t bytes = 0, blocks = 0;
  };
  struct Transfers {
    std::uint64_t calls = 0, bytes = 0, busy = 0;
  };
  /// Bytes that unified buffers moved for one reason.
  struct Moves {
    std::string reason;
    std::uint64_t calls = 0, bytes = 0;
  };
  struct Count {
    std::uint64_t calls = 0, sum = 0;
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
  std::vector<Copy> copies;
  std::vector<Launch> launches;
  std::vector<Wait> waits;
  std::vector<Range> ranges;
  std::vector<Peak> peaks;
  std::vector<Refusal> refusals;
  std::vector<Leak> leaks;
  Transfers transfers[directions];
  std::vector<Moves> moves;
  Count evictions;     // and their bytes
  Count budget_waits;  // and their nanoseconds
};

/// The name of a direction, such as "host to device".
[[nodiscard]] std::string_view name(TraceSummary::Direction direction) noexcept;

/// A time such as "12.3 ms" or "4.56 s".
[[nodiscard]] std::string time_text(std::uint64_t ns);

/// Writes the summary as text for terminals and logs.
[[nodiscard]] std::string text_report(const TraceSummary& summary);
/// Writes the summary as one page of HTML.
[[nodiscard]] std::string page_report(const TraceSummary& summary);

}  // namespace tern::tools
