// Keeps the signal of the file size limit (SIGXFSZ, `ulimit -f`) from ending the process.
//
// While it lives, a write of this thread that goes beyond the limit only fails, with EFBIG. The
// signal that the system raises for it is taken away at the end; one that was pending before stays.

#pragma once

#include <signal.h>

namespace tern {

class FileLimitSignal {
 public:
  FileLimitSignal() noexcept;
  /// Leaves errno as it is.
  ~FileLimitSignal();
  FileLimitSignal(const FileLimitSignal&) = delete;
  FileLimitSignal& operator=(const FileLimitSignal&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace tern
