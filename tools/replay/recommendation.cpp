#include "tools/replay/recommendation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/device/device_info.hpp"
#include "tools/replay/smallest.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t page_bytes = 2 * mib;

/// Smaller differences do not matter to a user: 2 % of the memory, 10 % of the calls.
constexpr double memory_share = 0.02, call_share = 0.1;
constexpr std::uint64_t min_calls = 10;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

void compare_figure(std::string_view figure, double from, double to, double min_difference,
                    std::vector<Change>& gains, std::vector<Change>& costs) {
  if (from - to >= min_difference) gains.push_back({figure, from, to});
  if (to - from >= min_difference) costs.push_back({figure, from, to});
}

void compare_calls(std::string_view figure, std::uint64_t from, std::uint64_t to,
                   std::vector<Change>& gains, std::vector<Change>& costs) {
  const double difference = std::max(static_cast<double>(min_calls),
                                     call_share * static_cast<double>(std::max(from, to)));
  compare_figure(figure, static_cast<double>(from), static_cast<double>(to), difference, gains,
                 costs);
}

std::string phrase_of(const Change& change) {
  const auto bytes = [](double value) { return format_bytes(static_cast<std::uint64_t>(value)); };
  if (change.figure == "peak_held_bytes") {
    return fmt::format("holds {} instead of {}", bytes(change.to), bytes(change.from));
  }
  if (change.figure == "returned_bytes") {
    return fmt::format("returns {} after a pass", bytes(change.to));
  }
  const char* pass = change.figure == "cold_driver_calls" ? "first" : "last";
  return fmt::format("makes {:.0f} driver calls in the {} pass instead of {:.0f}", change.to, pass,
                     change.from);
}

std::string join_phrases(const std::vector<Change>& changes) {
  std::vector<std::string> phrases;
  for (const Change& one : changes) phrases.push_back(phrase_of(one));
  return fmt::format("{}", fmt::join(phrases, " and "));
}

std::string sentence_of(const Recommendation& one, const ContestResult& base) {
  const auto times = [](const ContestResult& result) {
    return fmt::format("{:.0f} ns cold and {:.0f} ns warm", result.cold().ns_per_call,
                       result.warm().ns_per_call);
  };
  std::string text = fmt::format("{} {}", one.result.setting.text(), join_phrases(one.gains));
  if (!one.costs.empty()) text += fmt::format(", but {}", join_phrases(one.costs));
  text += fmt::format(". A call takes {} instead of {}", times(one.result), times(base));
  if (one.result.setting.pool.initial_bytes > 0) {
    text += fmt::format(". Creating the pool takes {}",
                        time_text(static_cast<std::uint64_t>(one.result.setup_ns)));
  }
  return text + ".";
}

/// Settings to try, each with one change.
std::vector<ResourceSetting> candidates(const Contest& contest, const ContestResult& base) {
  std::vector<ResourceSetting> all;
  const auto add = [&](auto change) {
    ResourceSetting setting = base.setting;
    change(setting);
    if (setting.text() != base.setting.text()) all.push_back(setting);
  };
  if (contest.device().can(Capability::virtual_memory)) {
    const bool is_segments = base.setting.pool.backing == PoolBacking::segments;
    add([&](ResourceSetting& one) {
      one.pool.backing = is_segments ? PoolBacking::pages : PoolBacking::segments;
    });
  }
  if (contest.trace().stream_count > 1) {
    add([](ResourceSetting& one) { one.pool.preference = PoolPreference::reuse; });
    add([](ResourceSetting& one) { one.pool.preference = PoolPreference::independence; });
  }
  const std::size_t held = whole_pages(base.peak_held_bytes);
  const std::size_t limit = base.setting.pool.limit_bytes;
  if (limit == 0 || held <= limit) {
    add([&](ResourceSetting& one) { one.pool.initial_bytes = held; });
  }
  add([](ResourceSetting& one) { one.trim_bytes = 0; });
  return all;
}

}  // namespace

void compare(const ContestResult& base, const ContestResult& other, std::vector<Change>& gains,
             std::vector<Change>& costs) {
  const auto held = static_cast<double>(base.peak_held_bytes);
  compare_figure("peak_held_bytes", held, static_cast<double>(other.peak_held_bytes),
                 std::max<double>(page_bytes, memory_share * held), gains, costs);
  compare_calls("cold_driver_calls", base.cold().driver_calls, other.cold().driver_calls, gains,
                costs);
  compare_calls("warm_driver_calls", base.warm().driver_calls, other.warm().driver_calls, gains,
                costs);
  // Returning memory is wanted, so it is never a cost.
  const std::size_t returned = other.returned_bytes();
  if (returned > base.returned_bytes() && static_cast<double>(returned) >= memory_share * held) {
    gains.push_back({"returned_bytes", static_cast<double>(base.returned_bytes()),
                     static_cast<double>(returned)});
  }
}

ContestResult find_smallest_limit(Contest& contest, ResourceSetting setting, std::size_t max_bytes,
                                  std::size_t granule_bytes) {
  ContestResult best;
  // A pool cannot hold less than what is live.
  const std::size_t live = contest.facts().peak_bytes;
  find_smallest((live - 1) / granule_bytes, max_bytes / granule_bytes, [&](std::size_t granules) {
    setting.pool.limit_bytes = granules * granule_bytes;
    ContestResult one = contest.run(setting);
    const bool serves = one.has_figures() && one.refusals() == 0;
    if (serves) best = std::move(one);
    return serves;
  });
  return best;
}

std::vector<Recommendation> recommend(Contest& contest, const ContestResult& base) {
  std::vector<Recommendation> all;
  const auto judge = [&](ContestResult result) {
    if (!result.has_figures() || result.refusals() > base.refusals()) return;
    Recommendation one = {.result = std::move(result)};
    compare(base, one.result, one.gains, one.costs);
    if (one.gains.empty()) return;
    one.text = sentence_of(one, base);
    all.push_back(std::move(one));
  };
  for (const ResourceSetting& setting : candidates(contest, base)) judge(contest.run(setting));
  const std::size_t held = base.peak_held_bytes;
  const std::size_t range = held - std::min(contest.facts().peak_bytes, held);
  if (base.refusals() == 0 &&
      static_cast<double>(range) >= memory_share * static_cast<double>(held)) {
    // At most a hundred limits between the live bytes and what the pool holds, for a short search.
    judge(find_smallest_limit(contest, base.setting, held, whole_pages(range / 100 + 1)));
  }
  std::ranges::stable_sort(all, {}, [](const Recommendation& one) { return !one.costs.empty(); });
  return all;
}

}  // namespace tern::tools
