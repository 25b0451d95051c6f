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

/// What a further contestant of the same run reached.
struct Peer {
  std::string name = {};
  double value = 0;
};

/// One measured number.
struct Figure {
  std::string name = {};
  double value = 0;
  std::string unit = {};
  Better better = Better::higher;
  /// What it is compared with, measured in the same run; without it there is no ratio.
  std::string baseline_name = {};
  std::optional<double> baseline = {};
  /// Shown beside the baseline.
  std::vector<Peer> others = {};
  /// How many times better than the baseline this figure has to be.
  std::optional<double> goal_ratio = {};
  /// What the value itself has to be: at least, or at most where lower is better.
  std::optional<double> goal = {};

  /// How many times better than the baseline; above 1 is better, whichever way is better.
  [[nodiscard]] std::optional<double> ratio() const;
  [[nodiscard]] bool has_goal() const { return goal || goal_ratio; }
  [[nodiscard]] bool misses_goal() const;
};

struct ContextOptions {
  double seconds_per_figure = 0.5;
  /// Small sizes and few rounds, to see that a case runs. What it measures then means nothing, so
  /// its figures lose their goals.
  bool is_quick = false;
  /// Which device the cases run on that can run on any.
  std::string device = "host";
};

/// What a case gets to work with.
class Context {
 public:
  using Progress = std::function<void(std::string_view step)>;

  Context(ContextOptions options, Progress progress)
      : options_(std::move(options)), progress_(std::move(progress)) {}

  /// About how long to measure one figure.
  [[nodiscard]] double seconds_per_figure() const { return options_.seconds_per_figure; }
  [[nodiscard]] bool is_quick() const { return options_.is_quick; }
  [[nodiscard]] const std::string& device() const { return options_.device; }
  /// The usual extent of something, or the one for a quick run.
  template <class T>
  [[nodiscard]] T usual_or_quick(T usual, T quick) const {
    return options_.is_quick ? quick : usual;
  }
  /// Tells a watching person what is being measured now.
  void step(std::string_view what) { progress_(what); }
  void add(Figure figure);
  /// A sentence the reader of the figures should know, such as that less memory was used.
  void note(std::string text);
  [[nodiscard]] const std::vector<Figure>& figures() const { return figures_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  ContextOptions options_;
  Progress progress_;
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
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
