// Reads foreign schemas without releasing them. Shared by the importers of arrays and schemas.

#pragma once

#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/interop/arrow_abi.h"
#include "tern/table/schema.hpp"

namespace tern {

/// An imported schema. `views` has true for each field with text views; it is empty if there is
/// none.
struct ArrowFields {
  Schema schema;
  std::vector<bool> views;
};

/// Reads a struct.
[[nodiscard]] Result<ArrowFields> try_read_arrow_schema(const ArrowSchema* schema,
                                                        CallSite site) noexcept;
/// Reads a single field.
struct ArrowField {
  Field field;
  bool is_view = false;
};
[[nodiscard]] Result<ArrowField> try_read_arrow_field(const ArrowSchema* schema,
                                                      CallSite site) noexcept;

}  // namespace tern
