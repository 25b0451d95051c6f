// A simulated device writes everything that its checker saw: checking the trace gives the same
// findings.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"
#include "tern/trace/trace_check.hpp"

namespace tern {
namespace {

class SimTrace : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }

  /// Two streams share a column without a wait, several times over; the second waits at last.
  static void run(const Device& device, bool releases = true) {
    const Stream produce(device, {.name = "produce"}), consume(device, {.name = "consume"});
    void* column = device.allocate(MemoryKind::device, 4096, {.tag = "column"});
    std::vector<char> result(4096);
    for (int round = 0; round < 3; ++round) {
      produce.fill(static_cast<char*>(column), 4096, 'x');
      try {
        consume.copy(result.data(), column, 4096);
      } catch (const Violation&) {
      }
      consume.wait(produce.mark());
      consume.copy(result.data(), column, 4096);
      try {
        sim::host_read(device, result.data(), 16);
      } catch (const Violation&) {
      }
      consume.synchronize();
      produce.wait(consume.mark());
    }
    device.synchronize();
    if (releases) device.release(column);
  }

  static std::vector<std::string> texts(const std::vector<Finding>& findings) {
    std::vector<std::string> all;
    for (const Finding& finding : findings) all.push_back(finding.text());
    return all;
  }

  struct Checked {
    CheckSummary summary;
    std::vector<std::string> texts;
  };
  static Checked check_file(const std::string& file) {
    Result<TraceReader> reader = TraceReader::try_open(file);
    Checked checked;
    checked.summary = check_trace(
        reader.value(), [&](const Finding& finding) { checked.texts.push_back(finding.text()); });
    return checked;
  }

  const std::string folder = testing::TempDir() + "tern-sim-trace-" + std::to_string(getpid());
  const std::string path = folder + "/run.trace";
};

TEST_F(SimTrace, FindsTheSameInTheFileAsInTheRun) {
  for (const sim::Mode mode : {sim::Mode::raise, sim::Mode::collect}) {
    std::vector<std::string> live;
    {
      const Device device = sim::open({.seed = 7, .mode = mode, .trace = path});
      run(device);
      live = texts(sim::findings(device));
    }
    ASSERT_GE(live.size(), 2u);
    EXPECT_NE(live[0].find("replay  TERN_SIM_SEED=0x7  (" + path + ")"), std::string::npos)
        << live[0];
    const Checked checked = check_file(path);
    EXPECT_EQ(checked.texts, live);
    EXPECT_TRUE(checked.summary.is_complete);
    EXPECT_EQ(checked.summary.actors, 4u) << "the host, the default stream, and two more";
  }
}

TEST_F(SimTrace, HasWhatAKernelDidWrongWhileItRan) {
  std::vector<std::string> live;
  {
    const Device device =
        sim::open({.seed = 7, .print_findings = false, .strict_kernels = true, .trace = path});
    const Stream stream(device, {.name = "A"});
    auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 4096));
    const auto write_past = [](const KernelCall& call) {
      call.argument<std::byte*>(0)[100] = std::byte{1};
    };
    const NativeKernel kernel =
        device.try_load_kernel({.entry = "past", .body = write_past}).value();
    const KernelArgument arguments[] = {{&block, sizeof block, block, 100, Access::discard}};
    stream.launch(kernel, {}, arguments);
    EXPECT_FALSE(stream.try_synchronize());
    device.unload_kernel(kernel);
    device.release(block);
    live = texts(sim::findings(device));
  }
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].substr(0, 27), "TERN-S303 undeclared-access");
  EXPECT_EQ(check_file(path).texts, live);
}

TEST_F(SimTrace, TellsOfLeaksWhenTheDeviceIsClosed) {
  { run(sim::open({.mode = sim::Mode::collect, .trace = path}), false); }
  const Checked checked = check_file(path);
  ASSERT_FALSE(checked.texts.empty());
  EXPECT_EQ(checked.texts.back().substr(0, 14), "TERN-S206 leak");
}

TEST_F(SimTrace, CanBeReadWhileItIsWritten) {
  const Device device = sim::open({.mode = sim::Mode::collect, .trace = path});
  run(device);
  sim::flush_trace(device);
  const Checked checked = check_file(path);
  EXPECT_FALSE(checked.summary.is_complete);
  EXPECT_EQ(checked.texts, texts(sim::findings(device)));
}

TEST_F(SimTrace, OfTwoDevicesAreTwoFiles) {
  const Device a = sim::open({.trace = path}), b = sim::open({.trace = path});
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(path + ".2"));
}

TEST_F(SimTrace, IsKeptInMemoryUntilSaved) {
  const Device device =
      sim::open({.seed = 7, .mode = sim::Mode::collect, .trace_memory_bytes = 1 << 20});
  run(device);
  const std::vector<std::string> live = texts(sim::findings(device));
  const std::uint64_t records = sim::save_trace(device, path);
  const Checked checked = check_file(path);
  EXPECT_EQ(checked.texts, live);
  EXPECT_EQ(checked.summary.records, records);
  EXPECT_TRUE(checked.summary.is_complete);
  EXPECT_THROW(sim::save_trace(device, folder + "/no/such/folder"), FileError);
  EXPECT_THROW(sim::save_trace(sim::open({}), path), InvalidArgument);
}

TEST_F(SimTrace, SaysWhenItCannotBeWritten) {
  EXPECT_THROW((void)sim::open({.trace = folder + "/no/such/folder"}), FileError);
  EXPECT_THROW((void)sim::open({.check = false, .trace = path}), InvalidArgument);
  EXPECT_THROW((void)open_device("sim:0?trace=" + folder + "/no/such/folder"), FileError);
  const Device device = sim::open({.mode = sim::Mode::collect, .trace_memory_bytes = 1000});
  run(device);
  EXPECT_THROW(sim::flush_trace(device), CapacityReached);
  EXPECT_NO_THROW(sim::flush_trace(sim::open({})));
}

TEST_F(SimTrace, OfADeviceOfTheCatalogEndsWithTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    run(open_device("sim:0?mode=collect&trace=" + path));
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  // The child gives up the catalog of its parent, which a leak checker does not forgive it.
  if (!test::is_sanitized) {
    EXPECT_EQ(status, 0);
  }
  const Checked checked = check_file(path);
  EXPECT_TRUE(checked.summary.is_complete);
  EXPECT_GE(checked.texts.size(), 2u);
}

TEST_F(SimTrace, IsWholeWhenAFindingEndsTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(0);
    run(sim::open({.mode = sim::Mode::abort, .trace = path}));
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const Checked checked = check_file(path);
  EXPECT_TRUE(checked.summary.is_complete);
  EXPECT_EQ(checked.texts.size(), 1u);
}

}  // namespace
}  // namespace tern
