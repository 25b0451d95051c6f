// Records the decisions of a run, so that all possible runs can be tried one after the other.
//
// Every choice of the scheduler and every random choice asks the log. A run repeats the recorded
// decisions and takes the first alternative at every new decision. advance() then changes the last
// decision that has another alternative. If there is none, all runs have been tried. Not
// thread-safe.

#pragma once

#include <cstddef>
#include <vector>

namespace tern::sim {

class DecisionLog {
 public:
  /// Returns one of `choices`, which must be at least 1.
  [[nodiscard]] std::size_t choose(std::size_t choices) {
    if (at_ == log_.size()) log_.push_back({0, choices});
    const Decision& decision = log_[at_++];
    // The same decisions must lead to the same choice.
    if (decision.choices != choices) is_repeatable_ = false;
    return decision.choice < choices ? decision.choice : choices - 1;
  }

  /// Selects the next run. Returns false if there is none.
  [[nodiscard]] bool advance() {
    log_.resize(at_);
    at_ = 0;
    while (!log_.empty() && log_.back().choice + 1 >= log_.back().choices) log_.pop_back();
    if (log_.empty()) return false;
    ++log_.back().choice;
    return true;
  }

  /// Returns false if a run made other choices than an earlier run after the same decisions.
  [[nodiscard]] bool is_repeatable() const noexcept { return is_repeatable_; }

 private:
  struct Decision {
    std::size_t choice;
    std::size_t choices;
  };
  std::vector<Decision> log_;
  std::size_t at_ = 0;
  bool is_repeatable_ = true;
};

}  // namespace tern::sim
