// Finds OpenCL on this machine: the loader library, and in it every entry of the table.
//
// Nothing is loaded before somebody asks, and nothing is linked.

#pragma once

#include <functional>
#include <string>

#include "backends/opencl/opencl_table.hpp"

namespace tern::opencl {

/// How the library is opened and looked up; a test gives another.
struct Linker {
  /// Null if there is no library of that name.
  std::function<void*(const char* name)> open;
  /// Null if the library has no such symbol.
  std::function<void*(void* library, const char* symbol)> find;
};
[[nodiscard]] const Linker& system_linker();

struct Library {
  Table table;
  /// Why the table is of no use, as the end of a sentence; empty if it is complete.
  std::string absence;
};

/// The first library that can be opened, with its entries.
[[nodiscard]] Library load_library(const Linker& linker);

}  // namespace tern::opencl
