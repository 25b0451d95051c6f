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
// A run that fails leaves its trace in the current folder, as tern-<test>-<seed>.trace, for
// `tern check`.
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
  explicit Run(const Options& options)
      : seed_(options.seed), trace_(options.trace), device_(sim::open(options)) {}

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
  std::string trace_;
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
    // A run that fails shows its findings; one that expects them does not.
    options.report = Report::quiet;
    // Kept for the run that fails, up to a size nobody minds.
    if (options.trace.empty() && options.check) options.trace_memory_bytes = std::size_t{16} << 20;
    const bool is_replay = !config().sim_seed.empty();
    for (int i = 0; i < (is_replay ? 1 : runs) && !HasFailure(); ++i) {
      if (!is_replay) options.seed = static_cast<std::uint64_t>(i);
      run_once(options, body);
    }
  }

 private:
  static void run_once(const Options& options, const Body& body) {
    sim::Run run(options);
    bool is_cut_short = false;
    try {
      // Failures of the test's own say which run it was.
      const testing::ScopedTrace trace(__FILE__, __LINE__, "replay: " + seed_text(run));
      body(run);
      run.device().synchronize();
    } catch (const Violation&) {
      // What it says stands in the findings, at length.
      is_cut_short = true;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << run.seed() << ": " << error.what() << "\n  " << replay_line(run);
      return;
    } catch (...) {
      ADD_FAILURE() << "seed " << run.seed() << ": something was thrown that is no exception\n  "
                    << replay_line(run);
      return;
    }
    if (HasFailure()) {
      // The test's own: the trace shows how it came to that.
      ADD_FAILURE() << "seed " << run.seed() << " failed\n  " << replay_line(run);
      return;
    }
    const std::vector<Finding> found = findings(run.device());
    if (run.expected_.empty()) {
      // A body that was cut short had no chance to free what it had.
      const std::vector<Finding> live = is_cut_short ? std::vector<Finding>() : leaks(run.device());
      if (found.empty() && live.empty()) return;
      const std::string replay = replay_line(run);
      for (const Finding& finding : found) ADD_FAILURE() << finding.text() << "  " << replay;
      for (const Finding& leak : live) ADD_FAILURE() << leak.text() << "  " << replay;
      return;
    }
    std::string codes;
    for (const Finding& finding : found) {
      if (code_text(finding.code) == run.expected_) return;
      codes += (codes.empty() ? "" : ", ") + code_text(finding.code);
    }
    ADD_FAILURE() << "seed " << run.seed() << " should have ended with " << run.expected_
                  << ", and ended with " << (codes.empty() ? "no finding" : codes) << "\n  "
                  << replay_line(run);
  }

  static std::string test_name() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    return std::string(test->test_suite_name()) + "." + test->name();
  }

  static std::string seed_text(const sim::Run& run) {
    return "TERN_SIM_SEED=" + std::to_string(run.seed()) + " --gtest_filter=" + test_name();
  }

  /// Writes the run's trace as well, if there is one to write: call it once for a run.
  static std::string replay_line(const sim::Run& run) {
    return "replay: " + seed_text(run) + trace_text(run, test_name()) + "\n";
  }

  static std::string trace_text(const sim::Run& run, std::string name) {
    // Findings name the file they were traced to themselves.
    if (!run.trace_.empty()) return "";
    // Names of tests with parameters have slashes.
    for (char& c : name) c = c == '/' ? '_' : c;
    const std::string path = "tern-" + name + "-" + std::to_string(run.seed()) + ".trace";
    try {
      return "  (" + path + ", " + std::to_string(save_trace(run.device(), path)) + " records)";
    } catch (const Error& error) {
      return std::string("  (no trace: ") + error.text() + ")";
    }
  }
};

}  // namespace tern::sim
