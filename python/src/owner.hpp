// Python objects that code without the interpreter lock owns and calls.
//
// Threads of Tern may release an object or call a function after Python has begun to end. Python
// would then stop the thread in the middle. An InterpreterEntry therefore counts the threads that
// are about to take the lock, and the end of the program waits for them. Later entries are refused.

#pragma once

#include <memory>
#include <optional>

#include "support.hpp"

namespace tern::python {

/// Holds the interpreter lock, if Python still runs.
class InterpreterEntry {
 public:
  InterpreterEntry() noexcept;
  InterpreterEntry(const InterpreterEntry&) = delete;
  InterpreterEntry& operator=(const InterpreterEntry&) = delete;
  ~InterpreterEntry();

  /// Returns false if Python ends. The lock is not held then.
  [[nodiscard]] explicit operator bool() const noexcept { return lock_.has_value(); }

 private:
  std::optional<nb::gil_scoped_acquire> lock_;
};

/// Returns a pointer to the Python object. The last copy may be destroyed on any thread; it
/// releases the object, or leaks the object if Python ends.
[[nodiscard]] std::shared_ptr<void> shared_owner(nb::object object);

/// Registers the function that waits at the end of the program.
void add_owner(nb::module_& module);

}  // namespace tern::python
