#include "tools/report/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tern/core/bytes.hpp"

namespace tern::tools {
namespace {

/// What one line did in one trace.
struct LineFacts {
  std::uint64_t bytes = 0, blocks = 0;  // at the peak of the device
  std::uint64_t allocations = 0;
  std::uint64_t leaked_bytes = 0, leaked_blocks = 0;

  LineFacts& operator+=(const LineFacts& more) {
    bytes += more.bytes;
    blocks += more.blocks;
    allocations += more.allocations;
    leaked_bytes += more.leaked_bytes;
    leaked_blocks += more.leaked_blocks;
    return *this;
  }
};

/// Device, tag and line by name, because each trace has its own numbers.
using Key = std::tuple<std::string, std::string, std::string>;

std::map<Key, LineFacts> lines_of(const TraceSummary& summary) {
  std::vector<std::uint64_t> peak_time(summary.devices.size());
  for (const TraceSummary::Peak& peak : summary.peaks) peak_time[peak.device] = peak.time;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, LineFacts> by_number;
  for (const TraceSummary::Block& block : summary.blocks) {
    const std::uint32_t device = summary.resources[block.resource].device;
    LineFacts& line = by_number[{device, block.tag, block.site}];
    ++line.allocations;
    if (block.begin <= peak_time[device] && block.end > peak_time[device]) {
      line.bytes += block.bytes;
      ++line.blocks;
    }
    if (block.end != TraceSummary::never) continue;
    line.leaked_bytes += block.bytes;
    ++line.leaked_blocks;
  }
  std::map<Key, LineFacts> by_name;
  for (const auto& [key, line] : by_number) {
    const auto [device, tag, site] = key;
    by_name[{summary.devices[device], summary.tags[tag], summary.sites[site]}] += line;
  }
  return by_name;
}

/// The highest sum of what the resources of each device held.
std::vector<std::uint64_t> peak_held(const TraceSummary& summary) {
  std::vector<std::uint64_t> by_resource(summary.resources.size());
  std::vector<std::uint64_t> now(summary.devices.size()), most(summary.devices.size());
  for (const TraceSummary::Hold& hold : summary.holds) {
    const std::uint32_t device = summary.resources[hold.resource].device;
    now[device] += hold.bytes - std::exchange(by_resource[hold.resource], hold.bytes);
    most[device] = std::max(most[device], now[device]);
  }
  return most;
}

/// A line of the program: its file, and its number in the file.
struct Place {
  std::string file;
  std::uint64_t line = 0;
};
std::optional<Place> place_of(const std::string& site) {
  const std::size_t colon = site.rfind(':');
  if (colon == site.npos) return std::nullopt;
  Place place{site.substr(0, colon), 0};
  const char* const end = site.data() + site.size();
  const auto [rest, error] = std::from_chars(site.data() + colon + 1, end, place.line);
  if (error != std::errc{} || rest != end) return std::nullopt;
  return place;
}

class Comparer {
 public:
  Comparer(const TraceSummary& before, const TraceSummary& after, Comparison& to)
      : before_(before), after_(after), to_(to) {}

  void compare() {
    for (const auto& [key, line] : lines_of(before_)) lines_[key].first = line;
    for (const auto& [key, line] : lines_of(after_)) lines_[key].second = line;
    pair_moved_lines();
    compare_lines();
    compare_devices();
    compare_transfers();
    compare_figures();
  }

 private:
  static bool has(const LineFacts& line) { return line.allocations > 0; }

  /// Lines of a file that only one trace has, in the order of their numbers.
  struct Moved {
    std::map<std::uint64_t, Key> before = {}, after = {};
  };
  void pair_moved_lines() {
    std::map<Key, Moved> files;  // by device, tag and file
    for (const auto& [key, pair] : lines_) {
      if (has(pair.first) == has(pair.second)) continue;
      const auto& [device, tag, site] = key;
      const std::optional<Place> place = place_of(site);
      if (!place) continue;
      Moved& moved = files[{device, tag, place->file}];
      (has(pair.first) ? moved.before : moved.after)[place->line] = key;
    }
    for (const auto& [key, moved] : files) {
      if (moved.before.size() != moved.after.size()) continue;
      auto to = moved.after.begin();
      for (const auto& [line, from] : moved.before) {
        lines_[to->second].first = lines_[from].first;
        moved_from_[to->second] = std::get<2>(from);
        lines_.erase(from);
        ++to;
      }
    }
  }

  static Comparison::Row row_of(const Key& key, const LineFacts& before, const LineFacts& after) {
    Comparison::Row row;
    std::tie(row.device, row.tag, row.site) = key;
    row.bytes = {before.bytes, after.bytes};
    row.blocks = {before.blocks, after.blocks};
    row.allocations = {before.allocations, after.allocations};
    return row;
  }
  static void add_if_changed(Comparison::Row row, std::vector<Comparison::Row>& rows) {
    if (row.bytes.is_same() && row.blocks.is_same() && row.allocations.is_same()) return;
    rows.push_back(std::move(row));
  }
  static void sort_by_difference(std::vector<Comparison::Row>& rows) {
    std::ranges::stable_sort(rows, [](const Comparison::Row& a, const Comparison::Row& b) {
      return std::pair(a.bytes.distance(), a.allocations.distance()) >
             std::pair(b.bytes.distance(), b.allocations.distance());
    });
  }
  void compare_lines() {
    std::map<Key, std::pair<LineFacts, LineFacts>> tags;
    for (const auto& [key, pair] : lines_) {
      const auto& [before, after] = pair;
      Comparison::Row row = row_of(key, before, after);
      const auto moved = moved_from_.find(key);
      if (moved != moved_from_.end()) row.site_before = moved->second;
      if (after.leaked_bytes > before.leaked_bytes) {
        Comparison::Row leak = row;
        leak.bytes = {before.leaked_bytes, after.leaked_bytes};
        leak.blocks = {before.leaked_blocks, after.leaked_blocks};
        to_.new_leaks.push_back(std::move(leak));
      }
      add_if_changed(std::move(row), to_.lines);
      auto& tag = tags[{std::get<0>(key), std::get<1>(key), ""}];
      tag.first += before;
      tag.second += after;
    }
    for (const auto& [key, pair] : tags) {
      add_if_changed(row_of(key, pair.first, pair.second), to_.tags);
    }
    sort_by_difference(to_.lines);
    sort_by_difference(to_.tags);
    sort_by_difference(to_.new_leaks);
  }

  void compare_devices() {
    std::map<std::string, Comparison::Device> devices;
    const auto add = [&](const TraceSummary& summary, std::uint64_t Comparison::Pair::*side) {
      const std::vector<std::uint64_t> held = peak_held(summary);
      for (const TraceSummary::Peak& peak : summary.peaks) {
        Comparison::Device& device = devices[summary.devices[peak.device]];
        device.live.*side = peak.live;
        device.held.*side = held[peak.device];
      }
    };
    add(before_, &Comparison::Pair::before);
    add(after_, &Comparison::Pair::after);
    for (auto& [name, device] : devices) {
      device.name = name;
      device.text = sentence_of(device);
      to_.devices.push_back(device);
    }
    std::ranges::stable_sort(to_.devices, std::ranges::greater(),
                             [](const Comparison::Device& one) { return one.live.distance(); });
  }
  [[nodiscard]] std::string sentence_of(const Comparison::Device& device) const {
    const Comparison::Pair& live = device.live;
    if (live.is_same()) {
      return fmt::format("{}: the peak of live memory is the same, {}.", device.name,
                         format_bytes(live.after));
    }
    const bool is_more = live.after > live.before;
    const char* const sign = is_more ? "+" : "-";
    std::string text =
        fmt::format("{}: the peak of live memory {} from {} to {} ({}{}", device.name,
                    is_more ? "grew" : "fell", format_bytes(live.before), format_bytes(live.after),
                    sign, format_bytes(live.distance()));
    if (live.before > 0) {
      text += fmt::format(
          ", {}{:.1f} %", sign,
          100.0 * static_cast<double>(live.distance()) / static_cast<double>(live.before));
    }
    text += ')';
    for (const Comparison::Row& row : to_.lines) {
      const bool is_cause = row.device == device.name && !row.bytes.is_same() &&
                            (row.bytes.after > row.bytes.before) == is_more;
      if (!is_cause) continue;
      text += fmt::format(", mostly '{}' at {} ({}{})", row.tag, row.site, sign,
                          format_bytes(row.bytes.distance()));
      break;
    }
    return text + '.';
  }

  void compare_transfers() {
    for (std::size_t i = 0; i < TraceSummary::directions; ++i) {
      const TraceSummary::Transfers &from = before_.transfers[i], &to = after_.transfers[i];
      if (from.calls + to.calls == 0) continue;
      to_.transfers.push_back({std::string(name(static_cast<TraceSummary::Direction>(i))),
                               {from.calls, to.calls},
                               {from.bytes, to.bytes}});
    }
  }
  void compare_figures() {
    using Unit = Comparison::Unit;
    const auto add = [&](const char* name, Unit unit, auto value) {
      to_.figures.push_back({name, unit, {value(before_), value(after_)}});
    };
    const auto waits = [](bool of_host, auto value) {
      return [of_host, value](const TraceSummary& one) {
        std::uint64_t sum = 0;
        for (const TraceSummary::WaitSum& wait : one.wait_sums) {
          if ((wait.stream == 0) == of_host) sum += wait.*value;
        }
        return sum;
      };
    };
    add("duration", Unit::nanoseconds, [](const TraceSummary& one) { return one.duration; });
    add("allocations", Unit::count,
        [](const TraceSummary& one) { return std::uint64_t{one.blocks.size()}; });
    add("refused requests", Unit::count, [](const TraceSummary& one) { return one.refused; });
    add("not freed", Unit::bytes, [](const TraceSummary& one) {
      std::uint64_t sum = 0;
      for (const TraceSummary::Leak& leak : one.leaks) sum += leak.bytes;
      return sum;
    });
    add("evictions", Unit::count, [](const TraceSummary& one) { return one.evictions.calls; });
    add("evicted", Unit::bytes, [](const TraceSummary& one) { return one.evictions.sum; });
    add("waits of the host", Unit::count, waits(true, &TraceSummary::WaitSum::calls));
    add("time of host waits", Unit::nanoseconds, waits(true, &TraceSummary::WaitSum::took));
    add("waits between streams", Unit::count, waits(false, &TraceSummary::WaitSum::calls));
    add("waits for budgets", Unit::nanoseconds,
        [](const TraceSummary& one) { return one.budget_waits.sum; });
    add("lost events", Unit::count, [](const TraceSummary& one) { return one.lost; });
  }

  const TraceSummary& before_;
  const TraceSummary& after_;
  Comparison& to_;
  std::map<Key, std::pair<LineFacts, LineFacts>> lines_;
  std::map<Key, std::string> moved_from_;
};

}  // namespace

Comparison::Comparison(const TraceSummary& before, const TraceSummary& after)
    : title_before(before.title), title_after(after.title) {
  Comparer(before, after, *this).compare();
}

}  // namespace tern::tools
