// The Python class ManagedBuffer.

#pragma once

#include <utility>

#include "support.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/detail/coherence/managed_memory.hpp"

namespace tern::python {

class PyManaged {
 public:
  explicit PyManaged(ManagedMemory memory) : memory_(std::move(memory)) {}

  [[nodiscard]] const ManagedMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] const Buffer& buffer() const noexcept { return memory_.buffer(); }

 private:
  ManagedMemory memory_;
};

/// Returns the memory of a ManagedBuffer or of a Buffer. Raises TypeError for other objects.
[[nodiscard]] Buffer managed_of_object(nb::handle object);

}  // namespace tern::python
