// The module exports the C API, so that plug-ins of other libraries share its devices, pools and
// budgets. They find the functions with ctypes.CDLL(ternmem._core.__file__).

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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
[[gnu::used]] const void* const entries[] = {entry(&tern_abi_version),
                                             entry(&tern_version),
                                             entry(&tern_last_error),
                                             entry(&tern_last_status),
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

// --- CuPy. A CFunctionAllocator calls C functions, which cost a fifth of Python functions. It
// passes no stream, and it checks for an exception if the result is -1.

/// CuPy's C function for the current stream of the calling thread.
std::intptr_t (*current_cupy_stream)() = nullptr;
/// Raises the exception for a request that failed. Never released: CuPy may allocate at exit.
PyObject* refuse_cupy_request = nullptr;

/// Called with the interpreter lock, which a request must not hold: it may wait for other threads.
void* allocate_for_cupy(void*, std::size_t bytes, int ordinal) {
  void* const raised = reinterpret_cast<void*>(std::intptr_t{-1});
  const std::intptr_t stream = current_cupy_stream();
  if (stream == -1 && PyErr_Occurred() != nullptr) return raised;
  void* address = nullptr;
  const tern_status status = released([&] {
    return tern_plugin_allocate(TERN_CUPY, ordinal, bytes, reinterpret_cast<void*>(stream),
                                &address);
  });
  if (status == TERN_OK) return address;
  try {
    const nb::handle refuse(refuse_cupy_request);
    refuse(bytes, ordinal, status, std::string(tern_last_error()));
    PyErr_SetString(PyExc_MemoryError, tern_last_error());
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  }
  return raised;
}

nb::tuple cupy_functions(nb::handle current_stream, nb::object refuse) {
  const char* const signature = PyCapsule_GetName(current_stream.ptr());
  if (signature == nullptr || std::string_view(signature).rfind("intptr_t (void)", 0) != 0) {
    PyErr_Clear();
    throw nb::type_error("current_stream must be the C function of CuPy for the current stream.");
  }
  current_cupy_stream =
      reinterpret_cast<std::intptr_t (*)()>(PyCapsule_GetPointer(current_stream.ptr(), signature));
  if (refuse_cupy_request == nullptr) refuse_cupy_request = refuse.release().ptr();
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(&allocate_for_cupy),
                        reinterpret_cast<std::uintptr_t>(&tern_cupy_free));
}

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
  module.def("cupy_functions", &cupy_functions, nb::arg("current_stream"), nb::arg("refuse"),
             "Return the addresses of the functions for ``cupy.cuda.CFunctionAllocator``.\n\n"
             "``current_stream`` is the capsule of CuPy's C function, and ``refuse(bytes, ordinal, "
             "status, message)`` raises the exception. It is kept from the first call on.");
}

}  // namespace tern::python
