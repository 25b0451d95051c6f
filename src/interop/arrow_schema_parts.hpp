// Schemas of others, read and not released: what the importers of arrays share.

#pragma once

#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/interop/arrow_abi.h"
#include "tern/table/schema.hpp"

namespace tern {

/// A schema as somebody else wrote it. `views` has a one for each field whose texts are views.
struct ArrowFields {
  Schema schema;
  std::vector<bool> views;
};

/// Of a struct.
[[nodiscard]] Result<ArrowFields> try_read_arrow_schema(const ArrowSchema* schema,
                                                        CallSite site) noexcept;
/// Of anything else.
struct ArrowField {
  Field field;
  bool is_view = false;
};
[[nodiscard]] Result<ArrowField> try_read_arrow_field(const ArrowSchema* schema,
                                                      CallSite site) noexcept;

}  // namespace tern
