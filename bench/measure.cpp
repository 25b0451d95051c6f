#include "bench/measure.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const Body& body) {
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<double> median_seconds(const std::vector<Body>& bodies, double seconds) {
  constexpr std::size_t min_rounds = 5;
  for (const Body& body : bodies) body();

  std::vector<std::vector<double>> times(bodies.size());
  const double budget = seconds * static_cast<double>(bodies.size());
  const Clock::time_point start = Clock::now();
  const auto is_within_budget = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count() < budget;
  };
  for (std::size_t round = 0; round < min_rounds || is_within_budget(); ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) times[i].push_back(seconds_of(bodies[i]));
  }

  std::vector<double> medians;
  for (std::vector<double>& measured : times) medians.push_back(median(std::move(measured)));
  return medians;
}

double median_ns(const Body& body, std::size_t operations, double seconds) {
  return median_seconds({body}, seconds).front() * 1e9 / static_cast<double>(operations);
}

double median_ns_after(const Body& prepare, const Body& body, std::size_t operations,
                       double seconds) {
  constexpr std::size_t min_rounds = 5;
  prepare();
  body();
  std::vector<double> times;
  double measured = 0;
  while (times.size() < min_rounds || measured < seconds) {
    prepare();
    times.push_back(seconds_of(body));
    measured += times.back();
  }
  return median(std::move(times)) * 1e9 / static_cast<double>(operations);
}

}  // namespace tern::bench
