// The decisions of a run, so that all runs there can be are tried one after another.
//
// Every choice of the scheduler and every coin asks the log. A run follows what was decided before
// and takes the first way wherever it comes to something new; advance() then changes the last
// decision that has another way left. When none has, every run has been had. Confined.

#pragma once

#include <cstddef>
#include <vector>

namespace tern::sim {

class DecisionLog {
 public:
  /// One of `choices`, which is at least 1.
  [[nodiscard]] std::size_t choose(std::size_t choices) {
    if (at_ == log_.size()) log_.push_back({0, choices});
    const Decision& decision = log_[at_++];
    // The same decisions must lead to the same question.
    if (decision.choices != choices) is_repeatable_ = false;
    return decision.choice < choices ? decision.choice : choices - 1;
  }

  /// The next run follows other decisions; false if there are none left.
  [[nodiscard]] bool advance() {
    log_.resize(at_);
    at_ = 0;
    while (!log_.empty() && log_.back().choice + 1 >= log_.back().choices) log_.pop_back();
    if (log_.empty()) return false;
    ++log_.back().choice;
    return true;
  }

  /// False if a run came to other questions than the one before, on the same way.
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
