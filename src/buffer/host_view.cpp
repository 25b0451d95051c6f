// Index arithmetic of host views.

#include <span>

#include "tern/buffer/use.hpp"

namespace tern {

std::size_t element_offset(const Shape& shape, std::span<const std::size_t> indices) {
  if (indices.size() != shape.rank()) {
    raise(
        Failure(
            ErrorCode::shape_mismatch,
            "an element of an array with {expected} dimensions was accessed with {actual} indices.")
            .with("expected", shape.rank())
            .with("actual", indices.size()));
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t extent = shape.extents()[i];
    if (indices[i] >= extent) {
      raise(Failure(ErrorCode::out_of_bounds,
                    "index {index} of dimension {dimension} is not below the extent, {extent}.")
                .with("index", indices[i])
                .with("dimension", i)
                .with("extent", extent));
    }
    offset = offset * extent + indices[i];
  }
  return offset;
}

}  // namespace tern
