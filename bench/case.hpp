// A bench case has a name, a one-line description, and a function that measures and reports
// figures.
//
// One case per file; a file adds its case by defining a Registration. `tern bench` runs the cases
// whose names match, and prints each figure beside its baseline. A figure and its baseline are
// measured in the same run and in turns, because the speed of a machine changes over time.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::bench {

enum class Better { higher, lower };

/// The value of another contestant in the same run.
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
  /// The value that the figure is compared with, measured in the same run. Without it there is no
  /// ratio.
  std::string baseline_name = {};
  std::optional<double> baseline = {};
  /// Further values, printed beside the baseline.
  std::vector<Peer> others = {};
  /// The ratio to the baseline that the figure has to reach.
  std::optional<double> goal_ratio = {};
  /// The bound for the value: a minimum, or a maximum if lower is better.
  std::optional<double> goal = {};

  /// Returns how many times better than the baseline the value is. Above 1 is better, also if lower
  /// values are better.
  [[nodiscard]] std::optional<double> ratio() const;
  [[nodiscard]] bool has_goal() const { return goal || goal_ratio; }
  [[nodiscard]] bool misses_goal() const;
};

struct ContextOptions {
  double seconds_per_figure = 0.5;
  /// Small sizes and few rounds, to test that a case runs. The values are meaningless, so the
  /// figures have no goals.
  bool is_quick = false;
  /// The device for cases that can run on any device.
  std::string device = "host";
};

/// The settings of a run, and the figures that the case reports.
class Context {
 public:
  using Progress = std::function<void(std::string_view step)>;

  Context(ContextOptions options, Progress progress)
      : options_(std::move(options)), progress_(std::move(progress)) {}

  /// Returns the approximate time to spend on one figure.
  [[nodiscard]] double seconds_per_figure() const { return options_.seconds_per_figure; }
  [[nodiscard]] bool is_quick() const { return options_.is_quick; }
  [[nodiscard]] const std::string& device() const { return options_.device; }
  /// Returns the usual size or count, or the smaller one for a quick run.
  template <class T>
  [[nodiscard]] T usual_or_quick(T usual, T quick) const {
    return options_.is_quick ? quick : usual;
  }
  /// Reports progress: what is measured now.
  void step(std::string_view what) { progress_(what); }
  void add(Figure figure);
  /// Adds a remark for the reader of the figures, such as that less memory was used.
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

/// Returns all registered cases, sorted by name.
[[nodiscard]] std::vector<Case> all_cases();

struct Registration {
  explicit Registration(const Case& added);
};

}  // namespace tern::bench
