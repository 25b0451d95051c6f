// What `tern rehearse` prints: what the recording shows, and how large the devices have to be.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/rehearse/child_program.hpp"
#include "tools/rehearse/device_size.hpp"
#include "tools/replay/recorded_allocations.hpp"
#include "tools/report/trace_summary.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// A request that a device refuses, with what a person needs to find it.
struct RefusedRequest {
  std::string device, tag, site, error;
  std::uint64_t bytes = 0, live_bytes = 0, held_bytes = 0;
};

/// The requests that were refused while a program was recorded.
struct RecordedRefusals {
  std::uint64_t by_resources = 0, by_budgets = 0;
  /// The first one of a resource. A budget may refuse as a matter of course: unified buffers then
  /// evict others.
  std::optional<RefusedRequest> first = {};
};
[[nodiscard]] RecordedRefusals refusals_of(const trace::MemoryTrace& trace);

/// One device of the recording.
struct RehearsedDevice {
  std::string name;
  std::uint64_t refused_requests = 0;  // in the recording
  /// The replay on a device of the rehearsed size. Only for a recording: a program ran itself.
  std::optional<SizeTrial> trial = {};
  std::optional<SmallestDevice> smallest = {}, smallest_with_limit = {};
  /// What the replay, and the device that is one granule smaller, refuse first.
  std::optional<RefusedRequest> refused = {}, refused_by_one_less = {};
};

struct RehearsalReport {
  std::size_t memory_bytes = 0;
  /// How the program ended. Nothing if a recording was rehearsed.
  std::optional<ChildEnd> end = {};
  std::size_t recordings = 1;  // of the program and its children; the largest one is shown
  const TraceSummary& summary;
  RecordedRefusals refusals = {};
  std::vector<RehearsedDevice> devices = {};

  /// The first request that was refused: by a resource of the program, or by the replay.
  [[nodiscard]] std::optional<RefusedRequest> first_refused() const;
  /// The program ended well, or the recording was served.
  [[nodiscard]] bool is_success() const;
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json() const;
};

/// Describes the request that a replay refused.
[[nodiscard]] RefusedRequest refused_request(const trace::MemoryTrace& trace,
                                             const RecordedAllocations& recorded,
                                             const SizeTrial& trial);

}  // namespace tern::tools
