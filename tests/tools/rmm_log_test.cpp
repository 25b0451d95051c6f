// RMM logs as memory traces.

#include "tools/formats/rmm_log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/random_memory_trace.hpp"
#include "support/temporary_folder.hpp"
#include "support/written_bytes.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

class RmmLog : public testing::Test {
 protected:
  ~RmmLog() override { std::filesystem::remove(path_); }
  const std::string& write(const std::string& lines) {
    std::ofstream(path_) << "Thread,Time,Action,Pointer,Size,Stream\n" << lines;
    return path_;
  }

 private:
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("tern_rmm_" + std::to_string(getpid()))).string();
};

TEST_F(RmmLog, BecomesATrace) {
  const std::string path = write(
      "1,10:00:00.000001,allocate,0x7f0000000000,1024,0x0\n"
      "2,10:00:00.000003,allocate,0x7f0000000400,2048,0x2\r\n"
      "1,10:00:00.000005,free,0x7f0000000000,1024,0x0\n"
      "1,10:00:00.000007,allocate failure,0x0,999999,0x0\n"
      "1,10:00:00.000009,allocate,0x7f0000000000,512,0x0\n");
  const TraceSummary summary(try_read_rmm_log(path).value(), "log.csv");
  EXPECT_EQ(summary.events, 5u);
  EXPECT_EQ(summary.duration, 8000u);
  ASSERT_EQ(summary.blocks.size(), 3u);
  EXPECT_EQ(summary.blocks[0].end, 4000u);
  EXPECT_EQ(summary.blocks[2].bytes, 512u);
  EXPECT_EQ(summary.blocks[2].end, TraceSummary::never);
  ASSERT_EQ(summary.peaks.size(), 1u);
  EXPECT_EQ(summary.peaks[0].live, 3072u);
  ASSERT_EQ(summary.refusals.size(), 1u);
  EXPECT_EQ(summary.refusals[0].bytes, 999'999u);
  EXPECT_EQ(summary.refusals[0].live, 2048u);
  ASSERT_EQ(summary.leaks.size(), 1u);
  EXPECT_EQ(summary.leaks[0].bytes, 2560u);
}

TEST_F(RmmLog, PassesMidnight) {
  const std::string path = write(
      "1,23:59:59.999999,allocate,0x100,1,0x0\n"
      "1,00:00:00.000001,free,0x100,1,0x0\n");
  const TraceSummary summary(try_read_rmm_log(path).value(), "log.csv");
  EXPECT_EQ(summary.duration, 2000u);
}

TEST_F(RmmLog, AFreeWithoutAnAllocationIsABlockFromBefore) {
  const TraceSummary summary(try_read_rmm_log(write("1,10:00:00.5,free,0x100,64,0x0\n")).value(),
                             "log.csv");
  ASSERT_EQ(summary.blocks.size(), 1u);
  EXPECT_EQ(summary.blocks[0].begin, 0u);
}

TEST_F(RmmLog, RejectsOtherLines) {
  for (const char* const line :
       {"1,10:00:00.1,allocate,0x100,1", "1,10:00:00.1,allocate,0x100,1,0x0,2",
        "x,10:00:00.1,allocate,0x100,1,0x0", "1,25:00:00.1,allocate,0x100,1,0x0",
        "1,10:00,allocate,0x100,1,0x0", "1,10:00:00.1,lose,0x100,1,0x0",
        "1,10:00:00.1,allocate,0xg,1,0x0", "1,10:00:00.1,allocate,0x100,-1,0x0",
        "1,10:00:00.1,allocate,0x100,99999999999999999999999,0x0", ",,,,,",
        "1,10:00:00.12345678901,allocate,0x100,1,0x0"}) {
    const Result<trace::MemoryTrace> trace =
        try_read_rmm_log(write(std::string("1,10:00:00.1,allocate,0x200,1,0x0\n") + line + "\n"));
    ASSERT_FALSE(trace) << line;
    EXPECT_EQ(trace.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(trace.failure().number("line"), 3u) << line;
  }
  EXPECT_FALSE(try_read_rmm_log("/no/such/file"));
}

TEST_F(RmmLog, LinesOfOneMomentKeepTheirOrder) {
  const Result<trace::MemoryTrace> trace =
      try_read_rmm_log(write("2,10:00:00.000001,allocate,0x100,1,0x0\n"
                             "1,10:00:00.000001,free,0x100,1,0x0\n"
                             "3,10:00:00.000001,allocate,0x100,2,0x0\n"));
  ASSERT_TRUE(trace);
  // A file has the events of one thread after the other, and a reader sorts them by time.
  EXPECT_LT(trace->events[0].time_ns, trace->events[1].time_ns);
  EXPECT_LT(trace->events[1].time_ns, trace->events[2].time_ns);
}

TEST_F(RmmLog, ManyThreadsAreOneInTheEnd) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += std::to_string(i + 1) + ",10:00:00.000001,allocate,0x100,1,0x0\n";
  }
  const Result<trace::MemoryTrace> trace = try_read_rmm_log(write(lines));
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->threads[999], 1000u);
  EXPECT_EQ(trace->threads[1000], 0u);
}

/// Blocks in the order in which they begin, with the order in which they end.
struct Requests {
  std::vector<std::array<std::uint64_t, 3>> begins;  // address, bytes, stream
  std::vector<std::array<std::uint64_t, 3>> ends;    // address, bytes, stream
  std::vector<std::uint64_t> refused;
  bool operator==(const Requests&) const = default;
};
Requests requests_of(const trace::MemoryTrace& trace, std::size_t first = 0) {
  Requests requests;
  for (std::size_t i = first; i < trace.events.size(); ++i) {
    const trace::MemoryEvent& one = trace.events[i];
    if (one.kind == trace::EventKind::allocate) {
      requests.begins.push_back({one.address, one.bytes, one.stream});
    }
    if (one.kind == trace::EventKind::free) {
      requests.ends.push_back({one.address, one.bytes, one.stream});
    }
    if (one.kind == trace::EventKind::refuse || one.kind == trace::EventKind::budget_refuse) {
      requests.refused.push_back(one.bytes);
    }
  }
  return requests;
}

TEST_F(RmmLog, ARoundTripKeepsBlocksAndTheirOrder) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "log.csv";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const trace::MemoryTrace before = test::RandomMemoryTrace(seed, 50 * seed).trace();
    const std::string log = test::written_bytes([&](Output& out) {
      const std::vector<std::string> notes = write_rmm_log(before, out);
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_NE(notes[0].find("3 resources"), std::string::npos) << notes[0];
    });
    std::ofstream(path, std::ios::binary) << log;
    const Result<trace::MemoryTrace> after = try_read_rmm_log(path);
    ASSERT_TRUE(after) << after.failure().text();
    // Blocks from before the trace are allocated first.
    const std::size_t earlier =
        requests_of(*after).begins.size() - requests_of(before).begins.size();
    EXPECT_LE(earlier, 5u);
    EXPECT_TRUE(requests_of(*after, earlier) == requests_of(before));
    // No line frees what is not live.
    const TraceSummary seen(*after, "log.csv");
    EXPECT_EQ(seen.blocks.size(), requests_of(*after).begins.size());
  }
}

TEST_F(RmmLog, EqualAddressesOfTwoResourcesGetDifferentPointers) {
  const test::TemporaryFolder folder;
  trace::MemoryTrace trace;
  const auto add = [&](trace::EventKind kind, std::uint64_t number, std::uint32_t resource,
                       std::uint64_t address) {
    trace::MemoryEvent made;
    made.kind = kind;
    made.time_ns = 1000 * (trace.events.size() + 1);
    made.block = number;
    made.resource = resource;
    made.address = address;
    made.bytes = 64;
    trace.events.push_back(made);
    trace.threads.push_back(1);
  };
  using enum trace::EventKind;
  add(allocate, 1, 1, 0x100);
  add(allocate, 2, 2, 0x100);
  add(free, 2, 2, 0x100);
  add(allocate, 3, 1, 0x100);  // the free of 1 is lost
  add(free, 1, 1, 0x100);
  add(allocate, 4, 1, UINT64_MAX - 100);
  const std::string text =
      test::written_bytes([&](Output& out) { static_cast<void>(write_rmm_log(trace, out)); });
  EXPECT_EQ(text,
            "Thread,Time,Action,Pointer,Size,Stream\n"
            "1,00:00:00.000001,allocate,0x100,64,0x0\n"
            "1,00:00:00.000002,allocate,0x4000000000000100,64,0x0\n"
            "1,00:00:00.000003,free,0x4000000000000100,64,0x0\n"
            "1,00:00:00.000004,free,0x100,64,0x0\n"
            "1,00:00:00.000004,allocate,0x100,64,0x0\n"
            "1,00:00:00.000006,allocate,0x4000000000000200,64,0x0\n");
}

}  // namespace
}  // namespace tern::tools
