// Logs of RMM as memory traces.

#include "tools/report/rmm_log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

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
  ASSERT_TRUE(is_rmm_log(path));
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
  const TraceSummary summary(try_read_rmm_log(write("1,10:00:00.5,free,0x100,64,0x0\n")).value(), "log.csv");
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
  EXPECT_FALSE(is_rmm_log("/no/such/file"));
  EXPECT_FALSE(try_read_rmm_log("/no/such/file"));
}

}  // namespace
}  // namespace tern::tools
