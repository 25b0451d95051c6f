#include "owner.hpp"
#include "support.hpp"
#include "tern/core/version.hpp"

NB_MODULE(_core, module) {
  using namespace tern::python;
  module.attr("__version__") = TERN_VERSION;
  nanobind::set_leak_warnings(false);
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
  add_recorder(module);
  add_owner(module);
}
