// Not part of the interface.
//
// The implementation of sim::shrink(), see tern/backends/sim.hpp.

#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tern::sim {

/// The default for `depends`: no step depends on another.
template <class Step>
struct NothingDepends {
  bool operator()(const Step& /*later*/, const Step& /*earlier*/) const noexcept { return false; }
};
/// The default for `simpler`: no step has a simpler replacement.
template <class Step>
struct NothingIsSimpler {
  std::vector<Step> operator()(const Step& /*step*/) const { return {}; }
};

/// The implementation of shrink(). Holds the current shortest failing program.
template <class Step, class StillFails, class Depends, class Simpler>
class Shrinker {
 public:
  Shrinker(std::vector<Step> steps, StillFails still_fails, Depends depends, Simpler simpler,
           std::size_t max_runs)
      : steps_(std::move(steps)),
        still_fails_(std::move(still_fails)),
        depends_(std::move(depends)),
        simpler_(std::move(simpler)),
        runs_left_(max_runs) {}

  /// Returns the shortest failing program found. Returns the program unchanged if it does not fail.
  [[nodiscard]] std::vector<Step> run() && {
    if (!fails(steps_)) return std::move(steps_);
    do {
      for (std::size_t piece = steps_.size() / 2; piece > 1; piece /= 2) leave_out(piece);
      while (leave_out(1)) {
      }
    } while (make_simpler());
    return std::move(steps_);
  }

 private:
  [[nodiscard]] bool fails(const std::vector<Step>& steps) {
    if (runs_left_ == 0) return false;
    --runs_left_;
    return still_fails_(std::span<const Step>(steps));
  }

  /// Tries to remove each group of `piece` steps. Goes from the end to the front, because steps
  /// after the failure are irrelevant and are then removed by the first attempts. Returns true if a
  /// group was removed.
  bool leave_out(std::size_t piece) {
    bool has_shrunk = false;
    for (std::size_t end = steps_.size(); end > 0;) {
      const std::size_t begin = end > piece ? end - piece : 0;
      std::vector<Step> fewer = without(begin, end);
      if (fails(fewer)) {
        steps_ = std::move(fewer);
        has_shrunk = true;
      }
      end = begin;
    }
    return has_shrunk;
  }

  /// Returns the steps without [begin, end) and without steps that depend on a removed step.
  [[nodiscard]] std::vector<Step> without(std::size_t begin, std::size_t end) const {
    std::vector<const Step*> gone;
    std::vector<Step> kept;
    kept.reserve(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const bool goes =
          (i >= begin && i < end) || std::ranges::any_of(gone, [&](const Step* earlier) {
            return depends_(steps_[i], *earlier);
          });
      if (goes) {
        gone.push_back(&steps_[i]);
      } else {
        kept.push_back(steps_[i]);
      }
    }
    return kept;
  }

  /// Tries to replace each step by a simpler one. Returns true if a step was replaced.
  bool make_simpler() {
    bool is_simpler = false;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (Step& candidate : simpler_(steps_[i])) {
        std::swap(steps_[i], candidate);
        if (fails(steps_)) {
          is_simpler = true;
          break;
        }
        std::swap(steps_[i], candidate);
      }
    }
    return is_simpler;
  }

  std::vector<Step> steps_;
  StillFails still_fails_;
  Depends depends_;
  Simpler simpler_;
  std::size_t runs_left_;
};

}  // namespace tern::sim
