// What `tern replay` prints: the figures of all resources side by side, and recommendations.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/contest.hpp"
#include "tools/replay/recommendation.hpp"
#include "tools/replay/recorded_allocations.hpp"

namespace tern::tools {

struct ReplayReport {
  std::string file;
  const RecordedAllocations& recording;
  bench::TraceFacts facts;
  std::string device;  // its spec
  std::size_t device_bytes = 0;
  unsigned passes = 0;
  std::vector<ContestResult> results;
  /// Without a value, nothing was tried.
  std::optional<std::vector<Recommendation>> recommendations;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json() const;
};

}  // namespace tern::tools
