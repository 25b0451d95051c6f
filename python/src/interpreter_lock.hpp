// The global interpreter lock.
//
// When the interpreter ends, Python stops a daemon thread that asks for the lock: it unwinds the
// stack of the thread (before 3.14), which ends the process if a C++ frame does not allow that.
// LockReleased never asks for the lock then, and the thread sleeps until the process ends.

#pragma once

#include <nanobind/nanobind.h>

namespace tern::python {

/// Releases the interpreter lock and takes it again.
class LockReleased {
 public:
  LockReleased() noexcept : thread_(PyEval_SaveThread()) { ++depth_; }
  LockReleased(const LockReleased&) = delete;
  LockReleased& operator=(const LockReleased&) = delete;
  ~LockReleased();

  /// Whether this thread has released the lock. A Python function that the library calls meanwhile
  /// takes the lock, and this stays true.
  [[nodiscard]] static bool is_active() noexcept { return depth_ > 0; }

 private:
  static thread_local constinit int depth_;

  PyThreadState* thread_;
};

/// Registers what has to happen when the interpreter ends.
void add_interpreter_lock(nanobind::module_& module);

}  // namespace tern::python
