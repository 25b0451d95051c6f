// Each test runs in its own process, because shutdown() is final.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern {
namespace {

/// Runs the check in another process and expects it to hold there; says what did not.
#define EXPECT_IN_A_PROCESS(...)                  \
  GTEST_FLAG_SET(death_test_style, "threadsafe"); \
  EXPECT_EXIT(std::_Exit((__VA_ARGS__)() ? 0 : 1), testing::ExitedWithCode(0), "")

bool holds(bool is_true, const char* what) {
  if (!is_true) std::fprintf(stderr, "does not hold: %s\n", what);
  return is_true;
}
#define HOLDS(expression) holds(bool(expression), #expression)

TEST(ShutdownDeathTest, ReportsNothingWithoutLeaks) {
  EXPECT_IN_A_PROCESS([] {
    const Device device = open_device("host");
    const Stream stream(device);
    { const OwnedBlock block(default_resource(device), {.bytes = 4096, .stream = stream}); }
    const ShutdownReport report = shutdown();
    const Result<ResourceHandle> after = try_default_resource(device);
    return HOLDS(report.is_clean()) &&
           HOLDS(report.text().find("never freed") == std::string::npos) &&
           HOLDS(!after && after.failure().code() == ErrorCode::after_shutdown);
  });
}

TEST(ShutdownDeathTest, NamesWhatIsLiveByTagAndDevice) {
  EXPECT_IN_A_PROCESS([] {
    const Device device = sim::open({});
    OwnedBlock small(default_resource(device), {.bytes = 256, .tag = "small"});
    DirectResource direct(device);
    const Block first = direct.allocate({.bytes = 4096, .tag = "direct"});
    const Block second = direct.allocate({.bytes = 4096, .tag = "direct"});
    const ShutdownReport report = shutdown();
    bool is_right = HOLDS(!report.is_clean()) && HOLDS(report.leaks.size() == 2) &&
                    HOLDS(report.leaks[0].tag == Tag("direct")) &&
                    HOLDS(report.leaks[0].blocks == 2) && HOLDS(report.leaks[0].bytes == 8192) &&
                    HOLDS(report.leaks[0].device == device.spec()) &&
                    HOLDS(report.leaks[1].tag == Tag("small")) &&
                    HOLDS(report.text().find("TERN_MEMORY=track") != std::string::npos);
    // What is live can still be freed, and the next report says so.
    for (const Block& block : {first, second}) direct.deallocate(block, {});
    is_right = is_right && HOLDS(shutdown().leaks.size() == 1);
    small = {};
    return is_right && HOLDS(shutdown().is_clean());
  });
}

TEST(ShutdownDeathTest, NamesTheLineWhereBlocksAreTracked) {
  EXPECT_IN_A_PROCESS([] {
    setenv("TERN_MEMORY", "poison,track", 1);
    const Device device = sim::open({});
    const CallSite here = CallSite::here();
    const OwnedBlock block(default_resource(device), {.bytes = 100, .tag = "lost", .site = here});
    const ShutdownReport report = shutdown();
    return HOLDS(report.leaks.size() == 1) && HOLDS(report.leaks[0].site.line == here.line) &&
           HOLDS(report.leaks[0].bytes == 100) &&
           HOLDS(report.text().find("shutdown_test.cpp") != std::string::npos);
  });
}

/// Exits with live blocks of two lines, which a static object frees later.
[[noreturn]] void exit_with_leaks() {
  setenv("TERN_MEMORY", "leaks", 1);
  static const Device device = open_device("sim");
  static std::vector<OwnedBlock> kept;
  for (int i = 0; i < 2; ++i) {
    kept.emplace_back(default_resource(device),
                      Request{.bytes = 1000, .tag = "weights", .site = CallSite::here()});
  }
  kept.emplace_back(default_resource(device), Request{.bytes = 64, .site = CallSite::here()});
  static_cast<void>(OwnedBlock(default_resource(device), {.bytes = 64, .tag = "freed"}));
  std::exit(0);
}

TEST(ShutdownDeathTest, PrintsLeaksAtExitIfTheEnvironmentAsksForIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_leaks(), testing::ExitedWithCode(0),
              "never freed  blocks  device +tag +allocated at\n"
              " +2.0 KiB +2  sim:0 +weights +[^ ]*shutdown_test.cpp:[0-9]+\n"
              " +256 B +1  sim:0 +untagged +[^ ]*shutdown_test.cpp:[0-9]+\n$");
}

TEST(ShutdownDeathTest, PrintsNothingAtExitIfNothingIsLive) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("TERN_MEMORY", "leaks", 1);
        static_cast<void>(OwnedBlock(default_resource(open_device("sim")), {.bytes = 64}));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(ShutdownDeathTest, CountsWhatWasPendingAndWaitsForIt) {
  EXPECT_IN_A_PROCESS([] {
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Stream stream(device);
    const ResourceHandle pool = default_resource(device);
    std::vector<Block> blocks;
    // More than a stream keeps for itself, so that some are in flight.
    for (int i = 0; i < 100; ++i) {
      blocks.push_back(pool->allocate({.bytes = 64, .stream = stream}));
      stream.fill(static_cast<std::byte*>(blocks.back().address), 64, std::byte{1});
    }
    for (const Block& block : blocks) pool->deallocate(block, stream);
    const ShutdownReport report = shutdown();
    return HOLDS(report.pending_bytes > 0) && HOLDS(report.is_clean()) &&
           HOLDS(pool->statistics().reserved_bytes == 0) && HOLDS(stream.is_idle());
  });
}

TEST(ShutdownDeathTest, TriesFailedFreesAgain) {
  EXPECT_IN_A_PROCESS([] {
    const Device device = sim::open({});
    auto faulty = std::make_shared<FaultResource>(std::make_shared<DirectResource>(device));
    set_default_resource(device, faulty);
    faulty->set_rules({{.for_frees = true, .nth = 1}});
    faulty->deallocate(faulty->allocate({.bytes = 4096}), {});
    const bool was_live = faulty->statistics().live_bytes == 4096;
    const ShutdownReport report = shutdown();
    return HOLDS(was_live) && HOLDS(report.failed_frees == 1) &&
           HOLDS(report.failed_free_bytes == 0) && HOLDS(report.is_clean()) &&
           HOLDS(report.text() == "1 frees failed; 0 B are live because of that");
  });
}

TEST(ShutdownDeathTest, NamesADeviceThatIsLost) {
  EXPECT_IN_A_PROCESS([] {
    const Device lost = sim::open({.faults = "sync#1=lost"}), other = sim::open({});
    static_cast<void>(default_resource(lost));
    const ShutdownReport report = shutdown();
    return HOLDS(report.unfinished.size() == 1) &&
           HOLDS(report.unfinished[0].code() == ErrorCode::device_lost) &&
           HOLDS(!try_default_resource(other));
  });
}

TEST(ShutdownDeathTest, RunsInSeveralThreads) {
  EXPECT_IN_A_PROCESS([] {
    const Device device = sim::open({});
    const OwnedBlock block(default_resource(device), {.bytes = 256, .tag = "live"});
    std::vector<std::size_t> leaks(8);
    std::vector<test::Thread> threads;
    for (std::size_t& one : leaks) {
      threads.emplace_back([&one] { one = shutdown().leaks.size(); });
    }
    for (test::Thread& one : threads) one.join();
    bool is_right = true;
    for (const std::size_t one : leaks) is_right = is_right && HOLDS(one == 1);
    return is_right;
  });
}

}  // namespace
}  // namespace tern
