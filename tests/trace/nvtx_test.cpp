// Ranges in a profiler: a library as profilers have them is loaded into a program of its own, and
// the program's ranges reach it.

#include "trace/nvtx.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/temporary_folder.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::trace {
namespace {

/// Runs in a child, because a process looks for a profiler once.
template <class Body>
int exit_code_of(Body body) {
  const pid_t child = fork();
  if (child == 0) std::_Exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string contents_of(const std::string& path) {
  std::string text(4096, '\0');
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return "no file";
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST(Nvtx, RangesReachTheProfiler) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(exit_code_of([&] {
              setenv("NVTX_INJECTION64_PATH", TERN_FAKE_PROFILER, 1);
              setenv("FAKE_PROFILER_LOG", (folder / "log").c_str(), 1);
              const Range outer("step 1");
              { const Range inner("forward"); }
              return 0;
            }),
            0);
  EXPECT_EQ(contents_of(folder / "log"), "push step 1\npush forward\npop\npop\n");
}

TEST(Nvtx, NothingHappensWithoutAProfiler) {
  EXPECT_EQ(exit_code_of([] {
              unsetenv("NVTX_INJECTION64_PATH");
              const Range range("step 1");
              return 0;
            }),
            0);
}

TEST(Nvtx, ALibraryThatIsNoProfilerIsIgnored) {
  for (const char* path : {"/no/such/library.so", "libm.so.6"}) {
    EXPECT_EQ(exit_code_of([&] {
                setenv("NVTX_INJECTION64_PATH", path, 1);
                const Range range("step 1");
                return 0;
              }),
              0)
        << path;
  }
}

TEST(Nvtx, AProfilerThatRefusesIsIgnored) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(exit_code_of([&] {
              setenv("NVTX_INJECTION64_PATH", TERN_FAKE_PROFILER, 1);
              setenv("FAKE_PROFILER_LOG", (folder / "log").c_str(), 1);
              setenv("FAKE_PROFILER_REFUSES", "1", 1);
              const Range range("step 1");
              return 0;
            }),
            0);
  EXPECT_EQ(contents_of(folder / "log"), "");
}

}  // namespace
}  // namespace tern::trace
