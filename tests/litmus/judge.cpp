#include "litmus/judge.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tern::test::litmus {
namespace {

bool is_among(const std::vector<OutcomePattern>& patterns, const Outcome& outcome) {
  return std::ranges::any_of(
      patterns, [&](const OutcomePattern& pattern) { return matches(pattern, outcome); });
}

std::string list(const std::vector<OutcomePattern>& patterns) {
  std::string text;
  for (const OutcomePattern& pattern : patterns) {
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", text_of(pattern));
  }
  return text.empty() ? "none" : text;
}

std::vector<OutcomePattern> allowed_anywhere(const Program& program) {
  std::vector<OutcomePattern> patterns = program.allowed;
  patterns.insert(patterns.end(), program.beyond_sim.begin(), program.beyond_sim.end());
  return patterns;
}

std::vector<std::string> outside(const Program& program, const Tally& tally,
                                 const std::vector<OutcomePattern>& patterns) {
  std::vector<std::string> complaints;
  for (const auto& [outcome, times] : tally.seen) {
    if (is_among(patterns, outcome)) continue;
    complaints.push_back(fmt::format(
        "{}: the outcome '{}' was seen {} times in {} runs{}. Allowed: {}.", program.name,
        text_of(outcome), times, tally.runs,
        is_among(program.forbidden, outcome) ? ", and is named as forbidden" : "", list(patterns)));
  }
  return complaints;
}

bool is_seen(const OutcomePattern& pattern, const Tally& tally) {
  return std::ranges::any_of(tally.seen,
                             [&](const auto& entry) { return matches(pattern, entry.first); });
}

std::size_t count_seen(const std::vector<OutcomePattern>& patterns, const Tally& tally) {
  return static_cast<std::size_t>(std::ranges::count_if(
      patterns, [&](const OutcomePattern& pattern) { return is_seen(pattern, tally); }));
}

}  // namespace

std::size_t distinct(const Program& program, const Tally& tally) {
  return count_seen(program.allowed, tally);
}

std::size_t distinct_beyond_sim(const Program& program, const Tally& tally) {
  return count_seen(program.beyond_sim, tally);
}

std::vector<std::string> judge(const Program& program, const Tally& tally) {
  return outside(program, tally, allowed_anywhere(program));
}

std::vector<std::string> judge_sim(const Program& program, const Tally& tally) {
  std::vector<std::string> complaints = outside(program, tally, program.allowed);
  for (const OutcomePattern& pattern : program.allowed) {
    if (is_seen(pattern, tally)) continue;
    complaints.push_back(fmt::format("{}: the outcome '{}' is allowed and was not seen in {} runs.",
                                     program.name, text_of(pattern), tally.runs));
  }
  return complaints;
}

}  // namespace tern::test::litmus
