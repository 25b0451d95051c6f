// A bench case: a name, what it shows, and a function that measures and reports figures.
//
// One case per file; a file adds its case by defining a Registration. `tern bench` runs the cases
// whose names match and prints the figures beside what they are compared with. A figure and its
// baseline come from the same run, taken in turns, because a machine changes its mind over time.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::bench {

enum class Better { higher, lower };

/// One measured number.
struct Figure {
  std::string name = {};
  double value = 0;
  std::string unit = {};
  Better better = Better::higher;
  /// What it is compared with, measured in the same run; without it there is no ratio.
  std::string baseline_name = {};
  std::optional<double> baseline = {};
  /// How many times better than the baseline this figure has to be.
  std::optional<double> goal_ratio = {};

  /// How many times better than the baseline; above 1 is better, whichever way is better.
  [[nodiscard]] std::optional<double> ratio() const;
  [[nodiscard]] bool misses_goal() const;
};

/// What a case gets to work with.
class Context {
 public:
  using Progress = std::function<void(std::string_view step)>;

  Context(double seconds_per_figure, Progress progress)
      : seconds_per_figure_(seconds_per_figure), progress_(std::move(progress)) {}

  /// About how long to measure one figure.
  [[nodiscard]] double seconds_per_figure() const { return seconds_per_figure_; }
  /// Tells a watching person what is being measured now.
  void step(std::string_view what) { progress_(what); }
  void add(Figure figure) { figures_.push_back(std::move(figure)); }
  [[nodiscard]] const std::vector<Figure>& figures() const { return figures_; }

 private:
  double seconds_per_figure_;
  Progress progress_;
  std::vector<Figure> figures_;
};

struct Case {
  std::string_view name;   // "host.copy"
  std::string_view shows;  // one line
  void (*run)(Context& context) = nullptr;
};

/// All registered cases, by name.
[[nodiscard]] std::vector<Case> all_cases();

struct Registration {
  explicit Registration(const Case& added);
};

}  // namespace tern::bench
