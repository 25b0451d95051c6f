// Tells AddressSanitizer or Valgrind which host memory nobody may touch at the moment.
//
// A tool is there if the program runs under it, however the library was compiled: a program that is
// built with -fsanitize=address brings the functions of AddressSanitizer, and Valgrind is asked.
// Without a tool memory_tool() is null, and nobody does anything.
//
// Memory is closed for the whole process, the library included: whoever moves bytes opens them
// first. Thread-safe.

#pragma once

#include <cstddef>

namespace tern {

class MemoryTool {
 public:
  virtual ~MemoryTool() = default;

  /// From here on the tool reports every access.
  virtual void close(const void* address, std::size_t bytes) noexcept = 0;
  /// From here on the memory may be read and written.
  virtual void open(const void* address, std::size_t bytes) noexcept = 0;
  /// May all of it be touched?
  [[nodiscard]] virtual bool is_open(const void* address, std::size_t bytes) const noexcept = 0;
  /// Was some of it freed, or did its stack frame end? False where the tool cannot tell.
  [[nodiscard]] virtual bool is_freed(const void* address, std::size_t bytes) const noexcept = 0;
  /// Reports an access to memory that is not open, and ends the process where the tool does so.
  /// For accesses of drivers and devices, which the tool does not see.
  virtual void report(const void* address, std::size_t bytes, bool is_written) noexcept = 0;

  /// Opens memory that was closed here. What was freed since then stays closed, so that whoever
  /// uses it next is reported.
  void open_unless_freed(const void* address, std::size_t bytes) noexcept {
    if (!is_freed(address, bytes)) open(address, bytes);
  }
};

/// The tool that the program runs under; null if there is none.
[[nodiscard]] MemoryTool* memory_tool() noexcept;

/// Replaces the tool while it lives. For tests, on one thread.
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
