#include "core/file_limit_signal.hpp"

#include <pthread.h>

#include <cerrno>
#include <ctime>

namespace tern {
namespace {

sigset_t only_file_limit() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

}  // namespace

FileLimitSignal::FileLimitSignal() noexcept {
  const sigset_t set = only_file_limit();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  if (sigismember(&before_, SIGXFSZ) == 1) {
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  }
}

FileLimitSignal::~FileLimitSignal() {
  const int error = errno;
  if (!was_pending_) {
    const sigset_t set = only_file_limit();
    const timespec now = {};
    while (sigtimedwait(&set, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

}  // namespace tern
