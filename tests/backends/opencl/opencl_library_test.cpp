#include "backends/opencl/opencl_library.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tern::opencl {
namespace {

int a_library = 0;
int a_function = 0;

/// A machine that has one library, which has every symbol but one.
Linker machine_with(std::string_view library, std::string_view missing = {}) {
  return {[=](const char* name) { return name == library ? &a_library : nullptr; },
          [=](void* opened, const char* symbol) -> void* {
            EXPECT_EQ(opened, &a_library);
            return symbol == missing ? nullptr : &a_function;
          }};
}

TEST(OpenClLibrary, HasNothingBeforeItIsLoaded) {
  const Table table;
#define TERN_OPENCL_ENTRY(returned, name, parameters) EXPECT_EQ(table.name, nullptr);
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
}

TEST(OpenClLibrary, IsFoundByEitherName) {
  for (const std::string_view name : {"libOpenCL.so.1", "libOpenCL.so"}) {
    const Library library = load_library(machine_with(name));
    EXPECT_EQ(library.absence, "");
#define TERN_OPENCL_ENTRY(returned, name, parameters) EXPECT_NE(library.table.name, nullptr);
    TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
  }
}

TEST(OpenClLibrary, IsLookedForByTheNameThatRunsProgramsFirst) {
  std::vector<std::string> asked;
  const Linker linker{[&](const char* name) -> void* {
                        asked.emplace_back(name);
                        return nullptr;
                      },
                      [](void*, const char*) -> void* { return nullptr; }};
  EXPECT_EQ(load_library(linker).absence,
            "libOpenCL.so.1 was not found. Install an OpenCL loader and the driver of a device, "
            "for example ocl-icd-libopencl1 and pocl-opencl-icd");
  EXPECT_EQ(asked, (std::vector<std::string>{"libOpenCL.so.1", "libOpenCL.so"}));
}

TEST(OpenClLibrary, IsOfNoUseWithoutAnyOneEntryAndSaysWhich) {
#define TERN_OPENCL_ENTRY(returned, name, parameters)                    \
  EXPECT_EQ(load_library(machine_with("libOpenCL.so.1", #name)).absence, \
            "libOpenCL.so.1 has no " #name                               \
            ", which is part of OpenCL 2.0. Install a newer OpenCL "     \
            "loader");
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
}

TEST(OpenClLibrary, MayLackWhatCameLater) {
  const Library library = load_library(machine_with("libOpenCL.so.1", "clEnqueueSVMMigrateMem"));
  EXPECT_EQ(library.absence, "");
  EXPECT_EQ(library.table.clEnqueueSVMMigrateMem, nullptr);
  EXPECT_NE(load_library(machine_with("libOpenCL.so.1")).table.clEnqueueSVMMigrateMem, nullptr);
}

TEST(OpenClLibrary, IsOneThatTheSystemKnowsOrNone) {
  EXPECT_EQ(system_linker().open("libtern_there_is_no_such_library.so"), nullptr);
}

}  // namespace
}  // namespace tern::opencl
