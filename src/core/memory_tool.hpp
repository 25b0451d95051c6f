// MemoryTool poisons host memory for AddressSanitizer or Valgrind, so that the tool reports every
// access to it.
//
// The tool is found at run time: a program built with -fsanitize=address contains the functions of
// AddressSanitizer, and Valgrind can be queried. The library itself may be compiled without
// sanitizers. Without a tool, memory_tool() is null.
//
// Poisoned memory is poisoned for the whole process, including this library, so code that copies
// bytes must unpoison them first. Thread-safe.

#pragma once

#include <cstddef>

namespace tern {

class MemoryTool {
 public:
  virtual ~MemoryTool() = default;

  /// Makes the tool report every access to the memory.
  virtual void poison(const void* address, std::size_t bytes) noexcept = 0;
  /// Allows reads and writes again.
  virtual void unpoison(const void* address, std::size_t bytes) noexcept = 0;
  /// Returns whether every byte may be accessed.
  [[nodiscard]] virtual bool is_accessible(const void* address,
                                           std::size_t bytes) const noexcept = 0;
  /// Returns whether a byte was freed or belongs to a stack frame that has ended. Returns false if
  /// the tool cannot tell.
  [[nodiscard]] virtual bool is_freed(const void* address, std::size_t bytes) const noexcept = 0;
  /// Reports an access to poisoned memory, and ends the process if the tool does so. For accesses
  /// of drivers and devices, which the tool does not see.
  virtual void report(const void* address, std::size_t bytes, bool is_written) noexcept = 0;

  /// Undoes poison(). Memory that was freed meanwhile stays poisoned, so that its next use is
  /// reported.
  void unpoison_unless_freed(const void* address, std::size_t bytes) noexcept {
    if (!is_freed(address, bytes)) unpoison(address, bytes);
  }
};

/// Returns the tool that the program runs under, or null.
[[nodiscard]] MemoryTool* memory_tool() noexcept;

/// Replaces the tool during its lifetime. For tests, on one thread.
class ScopedMemoryTool {
 public:
  explicit ScopedMemoryTool(MemoryTool* tool) noexcept;
  ~ScopedMemoryTool();
  ScopedMemoryTool(const ScopedMemoryTool&) = delete;
  ScopedMemoryTool& operator=(const ScopedMemoryTool&) = delete;

 private:
  MemoryTool* const before_;
};

}  // namespace tern
