#include "core/dynamic_linker.hpp"

#include <link.h>

#include <cstddef>

namespace tern {

bool has_dynamic_linker() noexcept {
  bool has = false;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* found) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          if (object->dlpi_phdr[i].p_type == PT_INTERP) *static_cast<bool*>(found) = true;
        }
        return 1;  // the first object is the program
      },
      &has);
  return has;
}

}  // namespace tern
