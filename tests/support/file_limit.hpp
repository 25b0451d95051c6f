// A limit on the length of files while the object exists, in bytes; like `ulimit -f`.
//
// A write beyond the limit sends SIGXFSZ, which ends the process unless the code under test blocks
// it. A parent process may have left the signal ignored (Python does), hence the default action.

#pragma once

#include <signal.h>
#include <sys/resource.h>

namespace tern::test {

class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(SIGXFSZ, &action, &action_before_);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    sigaction(SIGXFSZ, &action_before_, nullptr);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_ = {};
  struct sigaction action_before_ = {};
};

}  // namespace tern::test
