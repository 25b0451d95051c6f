#include "backends/shared_library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "core/dynamic_linker.hpp"

namespace tern {
namespace {

/// Descriptors for a library, its dependencies, and the configuration files that drivers read while
/// they load.
constexpr std::size_t needed_descriptors = 8;

bool has_descriptors() noexcept {
  std::array<int, needed_descriptors> opened;
  std::size_t count = 0;
  while (count < opened.size()) {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) break;
    opened[count++] = descriptor;
  }
  for (std::size_t i = 0; i < count; ++i) close(opened[i]);
  return count == opened.size();
}

}  // namespace

void* open_shared_library(const char* name) noexcept {
  if (why_no_libraries() != nullptr) return nullptr;
  return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

void* find_symbol(void* library, const char* name) noexcept { return dlsym(library, name); }

const char* why_no_libraries() noexcept {
  static const bool is_dynamic = has_dynamic_linker();
  if (!is_dynamic) {
    return "this program is statically linked (-static) and cannot load a driver, which is a "
           "shared library. Link it dynamically";
  }
  if (!has_descriptors()) {
    return "the process has no free file descriptor to load a driver. Close files, or raise the "
           "limit (ulimit -n)";
  }
  return nullptr;
}

}  // namespace tern
