// A Contest replays one allocation trace on one device with one resource after the other, and
// measures each the same way.
//
// Each resource starts with nothing and makes `passes` passes of the trace, so the first pass is
// cold and the last one finds memory in place. The clock stops while figures are read. Streams have
// no work: memory that a stream frees is free for others as soon as somebody asks. One thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tools/replay/resource_setting.hpp"

namespace tern::tools {

struct PassFigures {
  double ns_per_call = 0;
  /// Calls that reached the driver. For a pool, what PoolStatistics::driver_calls() counts; for the
  /// other resources, requests and frees.
  std::uint64_t driver_calls = 0;
  std::uint64_t refusals = 0;
  /// What trimming returned after the pass.
  std::size_t returned_bytes = 0;
};

struct ContestResult {
  ResourceSetting setting;
  /// Why the resource could not be replayed on. Then there are no figures.
  std::string absence = {};
  /// How long it took to make the resource.
  double setup_ns = 0;
  std::vector<PassFigures> passes = {};
  /// Requested bytes that were live at once, at most.
  std::size_t peak_live_bytes = 0;
  /// Memory that the resource held, at most. For `driver`, and where a driver does not tell about
  /// its pool, what the device lacked when the live bytes had their peak.
  std::size_t peak_held_bytes = 0;
  /// Only a pool knows: what was held and not live at the peak of the live bytes in the last pass,
  /// and how fragmented that memory was (Fragmentation::by_block()).
  std::optional<std::size_t> free_at_peak_bytes = {};
  std::optional<double> fragmentation = {};
  /// The step of the first request that was refused, in any pass.
  std::optional<std::size_t> first_refused = {};

  [[nodiscard]] bool has_figures() const { return !passes.empty(); }
  [[nodiscard]] const PassFigures& cold() const { return passes.front(); }
  [[nodiscard]] const PassFigures& warm() const { return passes.back(); }
  [[nodiscard]] std::uint64_t driver_calls() const;  // of all passes
  [[nodiscard]] std::uint64_t refusals() const;
  [[nodiscard]] std::size_t returned_bytes() const;  // after a pass, at most
  [[nodiscard]] double held_per_live() const;
};

class Contest {
 public:
  /// Called before each pass with what is measured.
  using Progress = std::function<void(std::string_view what)>;

  /// The trace must outlive the contest.
  Contest(const Device& device, const bench::AllocationTrace& trace, unsigned passes,
          Progress progress);

  [[nodiscard]] ContestResult run(const ResourceSetting& setting);

  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] const bench::AllocationTrace& trace() const { return trace_; }
  [[nodiscard]] const bench::TraceFacts& facts() const { return facts_; }

 private:
  void run_pass(Resource& resource, ContestResult& result, bool is_last);
  void read_peak(Resource& resource, ContestResult& result, bool is_last) const;

  const Device device_;
  const bench::AllocationTrace& trace_;
  const bench::TraceFacts facts_;
  const unsigned passes_;
  const Progress progress_;
  std::vector<Stream> streams_;
  std::size_t free_before_ = 0;
};

}  // namespace tern::tools
