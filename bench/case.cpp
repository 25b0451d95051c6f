#include "bench/case.hpp"

#include <algorithm>

namespace tern::bench {
namespace {

std::vector<Case>& registered() {
  static std::vector<Case> cases;
  return cases;
}

/// A ratio may miss its goal by this much: the same figure, measured twice in one run, varies as
/// much.
constexpr double tolerance = 0.005;

}  // namespace

std::optional<double> Figure::ratio() const {
  if (!baseline || *baseline <= 0 || value <= 0) return std::nullopt;
  return better == Better::higher ? value / *baseline : *baseline / value;
}

bool Figure::misses_goal() const {
  const std::optional<double> reached = ratio();
  if (goal_ratio && (!reached || *reached < *goal_ratio - tolerance)) return true;
  if (!goal) return false;
  // Written so that NaN does not meet the goal.
  const bool is_met = better == Better::higher ? value >= *goal : value <= *goal;
  return !is_met;
}

void Context::add(Figure figure) {
  if (options_.is_quick) figure.goal = figure.goal_ratio = std::nullopt;
  figures_.push_back(std::move(figure));
}

void Context::note(std::string text) {
  if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(std::move(text));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = registered();
  std::ranges::sort(cases, {}, &Case::name);
  return cases;
}

Registration::Registration(const Case& added) { registered().push_back(added); }

}  // namespace tern::bench
