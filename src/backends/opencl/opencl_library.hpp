// Loads the OpenCL loader library and looks up every entry of the table. Nothing is loaded before
// it is needed, and nothing is linked.

#pragma once

#include <functional>
#include <string>

#include "backends/opencl/opencl_table.hpp"

namespace tern::opencl {

/// How the library is opened and searched. Tests provide their own.
struct Linker {
  /// Returns null if there is no library of this name.
  std::function<void*(const char* name)> open;
  /// Returns null if the library has no such symbol.
  std::function<void*(void* library, const char* symbol)> find;
};
[[nodiscard]] const Linker& system_linker();

struct Library {
  Table table;
  /// Why the table cannot be used, as the end of a sentence; empty if it is complete.
  std::string absence;
};

/// Opens the first available library and fills the table.
[[nodiscard]] Library load_library(const Linker& linker);

}  // namespace tern::opencl
