// The module exports the C API, so that plug-ins of other libraries share its devices, pools and
// budgets. They find the functions with ctypes.CDLL(ternmem._core.__file__).

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "support.hpp"
#include "tern/c/handle.hpp"
#include "tern/c/tern.h"

namespace tern::python {
namespace {

template <class Function>
const void* entry(Function* function) noexcept {
  return reinterpret_cast<const void*>(function);
}

/// Nothing else in the module calls these functions. Without the table, the linker would leave them
/// out.
[[gnu::used]] const void* const entries[] = {
    entry(&tern_abi_version),
    entry(&tern_version),
    entry(&tern_last_error),
    entry(&tern_status_name),
    entry(&tern_open_device),
    entry(&tern_release_device),
    entry(&tern_device_memory),
    entry(&tern_synchronize),
    entry(&tern_make_pool),
    entry(&tern_default_resource),
    entry(&tern_make_budget),
    entry(&tern_set_budget_limit),
    entry(&tern_release_budget),
    entry(&tern_make_budget_resource),
    entry(&tern_set_tag),
    entry(&tern_release_resource),
    entry(&tern_allocate),
    entry(&tern_free),
    entry(&tern_free_in_order),
    entry(&tern_record_use),
    entry(&tern_find_block),
    entry(&tern_get_statistics),
    entry(&tern_reset_peak),
    entry(&tern_get_budget_statistics),
    entry(&tern_trim),
    entry(&tern_snapshot),
    entry(&tern_begin_arena),
    entry(&tern_end_arena),
    entry(&tern_release_arena),
    entry(&tern_get_arena),
    entry(&tern_reserve_arena),
    entry(&tern_begin_rehearsal),
    entry(&tern_end_rehearsal),
    entry(&tern_set_plugin),
    entry(&tern_get_plugin),
    entry(&tern_plugin_allocate),
    entry(&tern_cupy_malloc),
    entry(&tern_cupy_free),
    entry(&tern_torch_malloc),
    entry(&tern_torch_free),
    entry(&tern_torch_malloc_or_throw),
    entry(&tern_torch_record_stream),
    entry(&tern_torch_base),
    entry(&tern_torch_empty_cache),
    entry(&tern_torch_set_fraction)};

}  // namespace

void add_c_api(nb::module_& module) {
  module.def(
      "c_handle",
      [](std::shared_ptr<Resource> resource, const std::string& tag) {
        return without_gil([&] {
          return reinterpret_cast<std::uintptr_t>(make_c_handle(std::move(resource), Tag(tag)));
        });
      },
      nb::arg("resource"), nb::arg("tag") = "",
      "Return a handle of the C API for a resource, as an address. Release it with "
      "``tern_release_resource``. The module ``ternmem.c`` calls the functions of the C API.");
}

}  // namespace tern::python
