#include "core/file_limit_signal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "support/file_limit.hpp"
#include "support/forked_child.hpp"
#include "support/temporary_folder.hpp"

namespace tern {
namespace {

/// Writes ten bytes where eight may be; is the second write refused?
bool is_refused_beyond_eight_bytes(const std::string& path) {
  const test::FileLimit limit(8);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  bool is_refused = false;
  {
    const FileLimitSignal blocked;
    is_refused = write(file, "0123456789", 10) == 8 && write(file, "89", 2) == -1;
  }
  is_refused = is_refused && errno == EFBIG;
  close(file);
  return is_refused;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGXFSZ) == 1;
}

TEST(FileLimitSignal, MakesAWriteBeyondTheLimitFailAndNotEndTheProcess) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  EXPECT_EQ(test::in_a_forked_child([&] { return is_refused_beyond_eight_bytes(path); }), 0);
}

TEST(FileLimitSignal, LeavesTheSignalAsItWas) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  EXPECT_EQ(test::in_a_forked_child([&] {
              sigset_t mask;
              if (!is_refused_beyond_eight_bytes(path)) return false;
              pthread_sigmask(SIG_SETMASK, nullptr, &mask);
              return sigismember(&mask, SIGXFSZ) == 0 && !is_pending();
            }),
            0);
}

TEST(FileLimitSignal, LeavesOneThatWasPendingBefore) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  EXPECT_EQ(test::in_a_forked_child([&] {
              sigset_t mask;
              sigemptyset(&mask);
              sigaddset(&mask, SIGXFSZ);
              pthread_sigmask(SIG_BLOCK, &mask, nullptr);
              if (!is_refused_beyond_eight_bytes(path) || is_pending()) return false;
              ::raise(SIGXFSZ);
              return is_refused_beyond_eight_bytes(path) && is_pending();
            }),
            0);
}

}  // namespace
}  // namespace tern
