// Settings of a pool that serve a trace better than the settings at hand, with the figures of the
// replays that show it.
//
// A setting is recommended if a figure is better, whatever it costs, and the recommendation says
// both. Figures are counts and bytes, which a busy machine does not change; times are only printed.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/replay/contest.hpp"

namespace tern::tools {

/// A figure that the setting changes.
struct Change {
  std::string_view figure;  // such as "peak_held_bytes", as in the JSON of `tern replay`
  double from = 0, to = 0;
};

struct Recommendation {
  ContestResult result;  // measured with the setting
  std::vector<Change> gains = {}, costs = {};
  std::string text = {};  // one sentence
};

/// Returns the figures that differ by so much that it matters, as gains and costs.
void compare(const ContestResult& base, const ContestResult& other, std::vector<Change>& gains,
             std::vector<Change>& costs);

/// Replays with other settings of the pool than those of `base`, which must be a pool with figures.
/// Returns what is better than `base` in some figure and refuses no more requests: first what costs
/// nothing. Empty if no setting is better.
[[nodiscard]] std::vector<Recommendation> recommend(Contest& contest, const ContestResult& base);

/// Finds the smallest limit, in steps of `granule_bytes`, with which the pool refuses nothing: with
/// one step less it refuses a request. Returns the result with that limit, or without figures if
/// there is none between the live bytes of the trace and `max_bytes`.
[[nodiscard]] ContestResult find_smallest_limit(Contest& contest, ResourceSetting setting,
                                                std::size_t max_bytes, std::size_t granule_bytes);

}  // namespace tern::tools
