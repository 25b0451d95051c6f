// Shrinking: from a long program that fails to the shortest one found that still does.
//
// A property test makes a program as a list of steps and runs it; when a run fails, most of its
// steps have nothing to do with it. `shrink` leaves steps out, large pieces first, each together
// with the later steps that make no sense without it, then tries simpler steps in place of the ones
// that are left, and runs what remains each time. In the result no single step can be left out or
// made simpler, unless the runs were used up. Nothing is random: the same program shrinks the same
// way.
//
//   auto shortest = tern::sim::shrink(steps, [&](std::span<const Step> some) {
//     return run(some).code == first.code;
//   });
//
// It knows nothing of devices, and a Step is whatever the test says. On one thread.

#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tern::sim {

/// How a list of steps may be made smaller. Both default to "not at all".
template <class Step>
struct NothingDepends {
  bool operator()(const Step& /*later*/, const Step& /*earlier*/) const noexcept { return false; }
};
template <class Step>
struct NothingIsSimpler {
  std::vector<Step> operator()(const Step& /*step*/) const { return {}; }
};

struct ShrinkOptions {
  /// Programs run at the most; when they are used up, the shortest so far is the result.
  std::size_t most_runs = 20'000;
};

/// One shrinking, step by step: what `shrink` below does in one call.
template <class Step, class StillFails, class Depends, class Simpler>
class Shrinker {
 public:
  Shrinker(std::vector<Step> steps, StillFails still_fails, Depends depends, Simpler simpler,
           const ShrinkOptions& options)
      : steps_(std::move(steps)),
        still_fails_(std::move(still_fails)),
        depends_(std::move(depends)),
        simpler_(std::move(simpler)),
        runs_left_(options.most_runs) {}

  /// A program that does not fail to begin with is given back as it is.
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

  /// From the end, because what comes after the failure goes in the first attempts.
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

  /// The steps but those of [begin, end) and whatever depends on one that is left out.
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

/// The shortest program found for which `still_fails(std::span<const Step>)` is true. It must
/// answer the same for the same steps, and should ask for the same failure: another one is easily
/// met on the way. `depends(later, earlier)` says that a step makes no sense without an earlier
/// one; `simpler(step)` gives what to try in its place, simplest first, and must not go in circles.
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
