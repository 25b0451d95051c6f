// Host memory as a Python object, and NumPy arrays over it.
//
// A HostMemory owns a share of the storage, so an array made of it stays valid memory after its
// lease has ended and after its buffer is gone. It exports the buffer protocol, and nothing else.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "support.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern::python {

struct HostMemory {
  StorageHandle storage;
  void* address = nullptr;
  Shape shape;
  DType dtype = DType::void_;
  bool is_read_only = false;
  std::vector<Py_ssize_t> extents = {}, strides = {};  // in bytes, made for the buffer protocol
  std::shared_ptr<void> owner = {};                    // of the memory, if it is not the storage
};

void add_host_memory(nb::module_& module);

/// Returns a NumPy array over the memory, without a copy.
[[nodiscard]] nb::object array_over(HostMemory memory);

/// Sets the flag of a NumPy array that forbids writing.
void forbid_writing(nb::handle array);

/// The elements of an object as a C-contiguous NumPy array of this dtype, for a copy. Accepts
/// arrays, sequences and objects with __dlpack__. Raises TypeError unless NumPy casts the elements
/// by the rule `same_kind`, and ValueError unless the shape is `shape`; a null shape accepts any.
[[nodiscard]] nb::object elements_of(nb::handle object, DType dtype, const Shape* shape);
/// The address of the first element of a C-contiguous NumPy array.
[[nodiscard]] void* address_of(nb::handle array);

}  // namespace tern::python
