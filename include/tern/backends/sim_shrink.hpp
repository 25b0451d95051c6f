// shrink() reduces a failing list of steps to a short list that still fails.
//
//   auto shortest = tern::sim::shrink(steps, [&](std::span<const Step> some) {
//     return run(some).code == first.code;
//   });
//
// A property test generates a program as a list of steps and runs it. If a run fails, most steps
// are usually irrelevant. shrink() removes groups of steps, large groups first, together with the
// later steps that depend on a removed step. Then it replaces the remaining steps by simpler ones.
// It runs each candidate and keeps it if it still fails.
//
// In the result, no single step can be removed or simplified, unless the maximum number of runs was
// reached. shrink() is deterministic: the same program always shrinks to the same result. It does
// not use a device, and Step can be any copyable type. Call it from one thread.

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

struct ShrinkOptions {
  /// Maximum number of programs to run. When it is reached, the shortest failing program so far is
  /// the result.
  std::size_t max_runs = 20'000;
};

/// The implementation of shrink(). Holds the current shortest failing program.
template <class Step, class StillFails, class Depends, class Simpler>
class Shrinker {
 public:
  Shrinker(std::vector<Step> steps, StillFails still_fails, Depends depends, Simpler simpler,
           const ShrinkOptions& options)
      : steps_(std::move(steps)),
        still_fails_(std::move(still_fails)),
        depends_(std::move(depends)),
        simpler_(std::move(simpler)),
        runs_left_(options.max_runs) {}

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

/// Returns the shortest program found for which `still_fails(std::span<const Step>)` returns true.
///
/// - `still_fails` must return the same result for the same steps. It should test for the original
///   failure, because shortened programs often fail in other ways.
/// - `depends(later, earlier)` returns true if the later step makes no sense without the earlier
///   one.
/// - `simpler(step)` returns replacements to try, simplest first. Repeated replacement must not
///   lead back to an earlier step.
template <class Step, class StillFails, class Depends = NothingDepends<Step>,
          class Simpler = NothingIsSimpler<Step>>
[[nodiscard]] std::vector<Step> shrink(std::vector<Step> steps, StillFails still_fails,
                                       Depends depends = {}, Simpler simpler = {},
                                       const ShrinkOptions& options = {}) {
  return Shrinker<Step, StillFails, Depends, Simpler>(std::move(steps), std::move(still_fails),
                                                      std::move(depends), std::move(simpler),
                                                      options)
      .run();
}

}  // namespace tern::sim
