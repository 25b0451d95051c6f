// A GoogleTest fixture that runs stream-ordered code on simulated devices with many seeds. Any
// finding of the order checker fails the test with a full report.
//
//   class Pipeline : public tern::sim::Test {};
//   TEST_F(Pipeline, HandsTheColumnOver) {
//     for_each_schedule(100, [](tern::sim::Run& run) {
//       my::produce(run.stream("produce"), run.device());
//       my::consume(run.stream("consume"), run.device());
//     });
//   }
//
// A failing run writes its trace to the current directory, as tern-<test>-<seed>.trace, for `tern
// check`. TERN_SIM_SEED reruns a single seed.
//
// This header needs GoogleTest; the rest of Tern does not.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/device/stream.hpp"

namespace tern::sim {

/// One run of a test: a new device, streams by name, and the finding that the run expects, if any.
class Run {
 public:
  /// Opens a device. Throws like sim::open().
  explicit Run(const Options& options)
      : seed_(options.seed), trace_(options.trace), device_(sim::open(options)) {}

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  /// The seed of this run's device. TERN_SIM_SEED repeats the run.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// Creates a stream that lives until the run ends.
  [[nodiscard]] StreamRef stream(std::string_view name) {
    return streams_.emplace_back(device_, StreamOptions{.name = name});
  }
  /// Declares that this run must produce a finding with this code, such as "TERN-S101". The run
  /// then fails if there is no such finding.
  void expect(std::string code) { expected_ = std::move(code); }

 private:
  friend class Test;
  std::uint64_t seed_;
  std::string trace_;
  std::string expected_;
  Device device_;
  std::deque<Stream> streams_;
};

/// The base class of fixtures. Derive a fixture from it and call for_each_schedule() in each test.
class Test : public testing::Test {
 protected:
  // sim::Run is qualified because testing::Test has a member named Run.
  using Body = std::function<void(sim::Run&)>;

  /// Runs the body with seeds 0 to runs - 1, or only with TERN_SIM_SEED if that is set. Stops at
  /// the first failing run. A run fails if the body throws, if a test assertion fails, if the
  /// checker has a finding that was not expected, or if memory is still allocated at the end.
  static void for_each_schedule(int runs, const Body& body) {
    Options options = options_from_config();
    // A failing run reports its findings through GoogleTest, and expected findings are not printed.
    options.print_findings = false;
    // The trace is kept in memory and written to a file only if the run fails.
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
      // Adds the seed to the message of each assertion that fails in the body.
      const testing::ScopedTrace trace(__FILE__, __LINE__, "replay: " + seed_text(run));
      body(run);
      run.device().synchronize();
    } catch (const Violation&) {
      // findings() has the full report.
      is_cut_short = true;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << run.seed() << ": " << error.what() << "\n  " << replay_line(run);
      return;
    } catch (...) {
      ADD_FAILURE() << "seed " << run.seed()
                    << ": the program threw an object that is not a std::exception\n  "
                    << replay_line(run);
      return;
    }
    if (HasFailure()) {
      // An assertion of the test failed. The trace shows what led to it.
      ADD_FAILURE() << "seed " << run.seed() << " failed\n  " << replay_line(run);
      return;
    }
    const std::vector<Finding> found = findings(run.device());
    if (run.expected_.empty()) {
      // A body that an exception ended could not free its memory, so its leaks do not count.
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

  /// Returns the line that tells how to rerun this run. Also writes the trace of the run to a file
  /// if one was kept in memory. Call this function once per run.
  static std::string replay_line(const sim::Run& run) {
    return "replay: " + seed_text(run) + trace_text(run, test_name()) + "\n";
  }

  static std::string trace_text(const sim::Run& run, std::string name) {
    // If the run writes a trace file, its findings name the file already.
    if (!run.trace_.empty()) return "";
    // Names of parameterized tests contain slashes.
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
