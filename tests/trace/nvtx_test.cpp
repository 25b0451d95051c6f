// Ranges in a profiler: a library as profilers have them is loaded into a program of its own, and
// the program's ranges reach it.

#include "trace/nvtx.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/temporary_folder.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::trace {
namespace {

/// The statements run in a new process, because a process looks for a profiler once.
class NvtxDeathTest : public testing::Test {
 protected:
  NvtxDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // The new process has the variable of the first one, and keeps it.
    setenv("FAKE_PROFILER_LOG", (folder_ / "log").c_str(), 0);
  }
  ~NvtxDeathTest() override { unsetenv("FAKE_PROFILER_LOG"); }

  /// What the profiler was told.
  [[nodiscard]] std::string log() const {
    std::string text(4096, '\0');
    std::FILE* const file = std::fopen((folder_ / "log").c_str(), "rb");
    if (file == nullptr) return "no file";
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
  }
  static void open_ranges() {
    const Range outer("step 1");
    const Range inner("forward");
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(NvtxDeathTest, RangesReachTheProfiler) {
  EXPECT_EXIT(
      {
        setenv("NVTX_INJECTION64_PATH", TERN_FAKE_PROFILER, 1);
        open_ranges();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(log(), "push step 1\npush forward\npop\npop\n");
}

TEST_F(NvtxDeathTest, DriverCallsForTaggedMemoryAreInARangeOfTheTag) {
  EXPECT_EXIT(
      {
        setenv("NVTX_INJECTION64_PATH", TERN_FAKE_PROFILER, 1);
        const TagRange outer("weights");
        {
          const TagRange untagged{Tag()};
          const TagRange longest(std::string(Tag::max_name_bytes, 'x'));
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(log(), "push weights\npush " + std::string(Tag::max_name_bytes, 'x') + "\npop\n");
}

TEST_F(NvtxDeathTest, NothingHappensWithoutAProfiler) {
  EXPECT_EXIT(
      {
        unsetenv("NVTX_INJECTION64_PATH");
        open_ranges();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(NvtxDeathTest, ALibraryThatIsNoProfilerIsIgnored) {
  for (const char* path : {"/no/such/library.so", "libm.so.6"}) {
    EXPECT_EXIT(
        {
          setenv("NVTX_INJECTION64_PATH", path, 1);
          open_ranges();
          std::_Exit(0);
        },
        testing::ExitedWithCode(0), "")
        << path;
  }
}

TEST_F(NvtxDeathTest, AProfilerThatRefusesIsIgnored) {
  EXPECT_EXIT(
      {
        setenv("NVTX_INJECTION64_PATH", TERN_FAKE_PROFILER, 1);
        setenv("FAKE_PROFILER_REFUSES", "1", 1);
        open_ranges();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(log(), "");
}

}  // namespace
}  // namespace tern::trace
