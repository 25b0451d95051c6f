// The end of a structure that somebody else made: his callback, which is C and must not throw.
//
// One that throws all the same has let go as far as anybody can tell. There is nobody to tell, so
// the exception ends here, as that of an adoption does (buffer/foreign.hpp).

#pragma once

namespace tern {

/// Of an Arrow structure, unless it is released already.
template <class Structure>
void call_release(Structure& structure) noexcept {
  try {
    if (structure.release != nullptr) structure.release(&structure);
  } catch (...) {
  }
}

/// Of a DLPack tensor; without a deleter it stays.
template <class Managed>
void call_deleter(Managed& tensor) noexcept {
  try {
    if (tensor.deleter != nullptr) tensor.deleter(&tensor);
  } catch (...) {
  }
}

}  // namespace tern
