// `tern bench`: runs the cases in bench/ and prints their figures.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/case.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Measured {
  std::string_view case_name;
  bench::Figure figure;
};

/// A filter is a whole group ("host", which does not match "hosted.copy") or, with a point, the
/// beginning of a case ("coherence.over").
bool matches(std::string_view name, std::string_view filter) {
  if (!name.starts_with(filter)) return false;
  const bool names_a_case = filter.find('.') != filter.npos;
  return filter.empty() || names_a_case || name[filter.size()] == '.';
}

/// Formats three significant digits: 28.4, 1.06, 152.
std::string format_value(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

Json to_json(const Measured& measured) {
  const bench::Figure& figure = measured.figure;
  Json json = {{"case", measured.case_name},
               {"name", figure.name},
               {"value", figure.value},
               {"unit", figure.unit},
               {"better", figure.better == bench::Better::higher ? "higher" : "lower"}};
  if (figure.baseline) {
    json["baseline"] = {{"name", figure.baseline_name}, {"value", *figure.baseline}};
  }
  for (const bench::Peer& other : figure.others) {
    json["others"].push_back({{"name", other.name}, {"value", other.value}});
  }
  if (const std::optional<double> ratio = figure.ratio()) json["ratio"] = *ratio;
  if (figure.goal_ratio) json["goal_ratio"] = *figure.goal_ratio;
  if (figure.goal) json["goal"] = *figure.goal;
  if (figure.has_goal()) json["meets_goal"] = !figure.misses_goal();
  return json;
}

void print_header() {
  fmt::print("{}\n", bold(fmt::format("{:<17} {:<42} {:>8} {:<5} {:>7}  {}", "case", "figure",
                                      "value", "unit", "ratio", "against")));
}

/// Returns a text such as "goal <= 45 ns ok".
std::string goal_text(const bench::Figure& figure) {
  if (!figure.has_goal()) return "";
  std::string goal = "goal";
  if (figure.goal_ratio) goal += fmt::format(" {:.2f}x", *figure.goal_ratio);
  if (figure.goal) {
    goal += fmt::format(" {} {}{}{}", figure.better == bench::Better::higher ? ">=" : "<=",
                        format_value(*figure.goal), figure.unit.empty() ? "" : " ", figure.unit);
  }
  return figure.misses_goal() ? red(goal + " MISSED") : green(goal + " ok");
}

void print_row(const Measured& measured) {
  const bench::Figure& figure = measured.figure;
  const std::optional<double> ratio = figure.ratio();
  std::vector<std::string> parts;
  const auto add_peer = [&](const std::string& name, double value) {
    parts.push_back(fmt::format("{} {}{}{}", name, format_value(value),
                                figure.unit.empty() ? "" : " ", figure.unit));
  };
  if (figure.baseline) add_peer(figure.baseline_name, *figure.baseline);
  for (const bench::Peer& other : figure.others) add_peer(other.name, other.value);
  if (figure.has_goal()) parts.push_back(goal_text(figure));
  const std::string against = fmt::format("{}", fmt::join(parts, "; "));
  fmt::print("{:<17} {:<42} {:>8} {:<5} {:>7}  {}\n", measured.case_name, figure.name,
             format_value(figure.value), figure.unit, ratio ? fmt::format("{:.2f}x", *ratio) : "",
             against);
  std::fflush(stdout);
}

std::vector<bench::Case> chosen_cases(const std::string& filter) {
  std::vector<bench::Case> cases = bench::all_cases();
  std::erase_if(cases, [&](const bench::Case& one) { return !matches(one.name, filter); });
  return cases;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  const std::vector<bench::Case> cases = chosen_cases(options.filter);
  if (cases.empty()) {
    fmt::print(stderr, "tern bench: no case is called '{}'. The cases are:\n", options.filter);
    for (const bench::Case& one : bench::all_cases()) fmt::print(stderr, "  {}\n", one.name);
    return 2;
  }
  if (options.list) {
    for (const bench::Case& one : cases) fmt::print("{:<18} {}\n", one.name, one.shows);
    return 0;
  }

  Json json = Json::array();
  std::size_t goals = 0, missed = 0;
  ProgressLine progress;
  if (!options.json) print_header();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bench::Case& one = cases[i];
    const auto show = [&](std::string_view step) {
      progress.show(fmt::format("[{}/{}] {} {}", i + 1, cases.size(), one.name, step));
    };
    show("");
    bench::Context context({.seconds_per_figure = options.quick ? 0.001 : options.seconds,
                            .is_quick = options.quick,
                            .device = options.device},
                           show);
    one.run(context);
    progress.clear();
    for (const bench::Figure& figure : context.figures()) {
      const Measured measured{one.name, figure};
      goals += figure.has_goal() ? 1u : 0u;
      missed += figure.misses_goal() ? 1u : 0u;
      if (options.json) {
        json.push_back(to_json(measured));
      } else {
        print_row(measured);
      }
    }
    if (options.json) continue;
    for (const std::string& note : context.notes()) {
      fmt::print("{:<17} {}\n", one.name, dim(note));
    }
  }
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
  } else if (goals > 0) {
    fmt::print("{} of {} goals are met.\n", goals - missed, goals);
  }
  return options.check && missed > 0 ? 1 : 0;
}

}  // namespace tern::tools
