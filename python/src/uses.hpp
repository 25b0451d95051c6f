// Declared uses: memory together with what a kernel does to it.

#pragma once

#include "support.hpp"
#include "tern/core/access.hpp"

namespace tern::python {

/// The memory is a Buffer, a UnifiedBuffer or a ManagedBuffer.
struct Use {
  nb::object memory;
  Access access = Access::read;
};

template <class Visit>
void visit_objects(const Use& self, Visit visit) {
  visit(self.memory);
}

}  // namespace tern::python
