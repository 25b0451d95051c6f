// Objects that refer to Python objects and may be part of reference cycles, for the garbage
// collector of Python.

#pragma once

#include "support.hpp"

namespace tern::python {

/// Slots for such a type: visit_objects(object, visit) calls visit() with each nb::object. An
/// object that several C++ owners share must not be visited, because the collector counts
/// references. There is no tp_clear: every cycle also has a dict, a list or a cell, which Python
/// clears, and an object with cleared members could still be called.
template <class Type>
struct Collected {
  static int traverse(PyObject* self, visitproc visit, void* arg) {  // Py_VISIT needs these names
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    int result = 0;
    visit_objects(*nb::inst_ptr<Type>(self), [&](const nb::object& one) {
      if (result == 0 && one.is_valid()) result = visit(one.ptr(), arg);
    });
    return result;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                       {0, nullptr}};
};

}  // namespace tern::python
