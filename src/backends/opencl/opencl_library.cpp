#include "backends/opencl/opencl_library.hpp"

#include <fmt/format.h>

#include <bit>

#include "backends/shared_library.hpp"

namespace tern::opencl {

const Linker& system_linker() {
  static const Linker& linker = *new Linker{open_shared_library, find_symbol};
  return linker;
}

Library load_library(const Linker& linker) {
  Library library;
  void* opened = nullptr;
  const char* opened_name = nullptr;
  for (const char* name : {"libOpenCL.so.1", "libOpenCL.so"}) {
    opened_name = name;
    if ((opened = linker.open(name)) != nullptr) break;
  }
  if (opened == nullptr) {
    library.absence =
        "libOpenCL.so.1 was not found. Install an OpenCL loader and the driver of a device, for "
        "example ocl-icd-libopencl1 and pocl-opencl-icd";
    return library;
  }
#define TERN_OPENCL_ENTRY(returned, name, parameters)                                           \
  library.table.name = std::bit_cast<decltype(library.table.name)>(linker.find(opened, #name)); \
  if (library.table.name == nullptr && library.absence.empty()) {                               \
    library.absence =                                                                           \
        fmt::format("{} has no {}, which is part of OpenCL 2.0. Install a newer OpenCL loader", \
                    opened_name, #name);                                                        \
  }
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
#define TERN_OPENCL_ENTRY(returned, name, parameters) \
  library.table.name = std::bit_cast<decltype(library.table.name)>(linker.find(opened, #name));
  TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
  return library;
}

}  // namespace tern::opencl
