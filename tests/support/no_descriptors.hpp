// While it lives, the process cannot open another file descriptor.

#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace tern::test {

class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = before_.rlim_cur < 256 ? before_.rlim_cur : 256;
    setrlimit(RLIMIT_NOFILE, &few);
    for (int opened; (opened = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
      opened_.push_back(opened);
    }
  }
  ~NoDescriptors() {
    for (const int descriptor : opened_) close(descriptor);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_ = {};
  std::vector<int> opened_;
};

}  // namespace tern::test
