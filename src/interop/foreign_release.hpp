// Calls the release callback of a foreign structure. The callback is a C function and must not
// throw. If it throws nevertheless, the exception is swallowed, as in an adoption
// (buffer/foreign.hpp), and the structure counts as released.

#pragma once

namespace tern {

/// Releases an Arrow structure, unless it is already released.
template <class Structure>
void call_release(Structure& structure) noexcept {
  try {
    if (structure.release != nullptr) structure.release(&structure);
  } catch (...) {
  }
}

/// Deletes a DLPack tensor. A tensor without a deleter is not deleted.
template <class Managed>
void call_deleter(Managed& tensor) noexcept {
  try {
    if (tensor.deleter != nullptr) tensor.deleter(&tensor);
  } catch (...) {
  }
}

}  // namespace tern
