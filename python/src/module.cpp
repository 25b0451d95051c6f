#include <cstdlib>

#include "interrupts.hpp"
#include "owner.hpp"
#include "support.hpp"
#include "tern/core/version.hpp"

namespace {

/// Devices, streams and the current device belong to the process, and so do the classes of
/// nanobind.
void refuse_sub_interpreters() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return;
  throw nanobind::import_error(
      "ternmem runs in the main interpreter only, because devices belong to the process. "
      "Use threads or processes instead of sub-interpreters.");
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace tern::python;
  refuse_sub_interpreters();
  module.attr("__version__") = TERN_VERSION;
  // Objects that live at exit are ordinary in a program and mistakes in a test.
  nanobind::set_leak_warnings(std::getenv("TERNMEM_LEAK_WARNINGS") != nullptr);
  add_interpreter_lock(module);
  add_interrupts();
  add_errors(module);
  add_devices(module);
  add_exchange(module);
  add_resources(module);
  add_buffers(module);
  add_unified(module);
  add_simulation(module);
  add_managed(module);
  add_hints(module);
  add_kernels(module);
  add_tables(module);
  add_audit(module);
  add_arrays(module);
  add_files(module);
  add_growing(module);
  add_pausing(module);
  add_recorder(module);
  add_trace(module);
  add_shared(module);
  add_c_api(module);
  add_owner(module);
}
