// A GoogleTest fixture for code that orders work by streams: the test runs on simulated devices
// with different seeds, and any finding of the checker fails it with the whole report.
//
//   class Pipeline : public tern::sim::Test {};
//   TEST_F(Pipeline, HandsTheColumnOver) {
//     for_each_schedule(100, [](tern::sim::Run& run) {
//       my::produce(run.stream("produce"), run.device());
//       my::consume(run.stream("consume"), run.device());
//     });
//   }
//
// Needs GoogleTest, which the rest of Tern does not. TERN_SIM_SEED replays a single seed.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/core/config.hpp"
#include "tern/device/stream.hpp"

namespace tern::sim {

/// One run of a test: a fresh device, streams made by name, and what is expected of the checker.
class Run {
 public:
  explicit Run(const Options& options) : seed_(options.seed), device_(sim::open(options)) {}

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// A new stream that lives until the run ends.
  [[nodiscard]] StreamRef stream(std::string_view name) {
    return streams_.emplace_back(device_, StreamOptions{.name = name});
  }
  /// This run must end with a finding of that code, such as "TERN-S101".
  void expect(std::string code) { expected_ = std::move(code); }

 private:
  friend class Test;
  std::uint64_t seed_;
  std::string expected_;
  Device device_;
  std::deque<Stream> streams_;
};

class Test : public testing::Test {
 protected:
  // Qualified: testing::Test has a Run of its own.
  using Body = std::function<void(sim::Run&)>;

  /// Runs the body with seeds 0 to runs - 1, or with TERN_SIM_SEED alone if that is set. Stops at
  /// the first run that fails.
  static void for_each_schedule(int runs, const Body& body) {
    Options options = options_from_config();
    const bool is_replay = !config().sim_seed.empty();
    for (int i = 0; i < (is_replay ? 1 : runs) && !HasFailure(); ++i) {
      if (!is_replay) options.seed = static_cast<std::uint64_t>(i);
      run_once(options, body);
    }
  }

 private:
  static void run_once(const Options& options, const Body& body) {
    sim::Run run(options);
    try {
      body(run);
      run.device().synchronize();
    } catch (const Violation&) {
      // What it says stands in the findings, at length.
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << run.seed() << ": " << error.what();
      return;
    }
    const std::vector<Finding> found = findings(run.device());
    if (run.expected_.empty()) {
      for (const Finding& finding : found) {
        ADD_FAILURE() << finding.text() << "  " << replay_line(run.seed());
      }
      for (const Finding& leak : leaks(run.device())) {
        ADD_FAILURE() << leak.text() << "  " << replay_line(run.seed());
      }
      return;
    }
    bool is_expected = false;
    for (const Finding& finding : found) {
      is_expected = is_expected || code_text(finding.code) == run.expected_;
    }
    EXPECT_TRUE(is_expected) << "seed " << run.seed() << " should have ended with "
                             << run.expected_;
  }

  static std::string replay_line(std::uint64_t seed) {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    return "replay: TERN_SIM_SEED=" + std::to_string(seed) +
           " --gtest_filter=" + test->test_suite_name() + "." + test->name() + "\n";
  }
};

}  // namespace tern::sim
