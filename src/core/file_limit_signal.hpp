// FileLimitSignal keeps SIGXFSZ, the signal of the file size limit (`ulimit -f`), from ending the
// process.
//
// While the object exists, a write of this thread beyond the limit only fails with EFBIG. The
// destructor consumes the signal that such a write raised. A signal that was pending before stays
// pending.

#pragma once

#include <signal.h>

namespace tern {

class FileLimitSignal {
 public:
  FileLimitSignal() noexcept;
  /// Does not change errno.
  ~FileLimitSignal();
  FileLimitSignal(const FileLimitSignal&) = delete;
  FileLimitSignal& operator=(const FileLimitSignal&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace tern
