// Recognises Arrow structures that Tern exported when they are imported again.

#pragma once

#include <cstddef>
#include <optional>

#include "tern/detail/interop/arrow_abi.h"
#include "tern/table/table.hpp"

namespace tern {

/// Returns the table, or null if other code made the structure or changed it.
[[nodiscard]] const Table* exported_table(const ArrowArray& array) noexcept;
/// Returns a column that was exported alone or moved out of a table, and its number of values.
struct ExportedColumn {
  std::optional<Column> column = {};
  std::size_t rows = 0;
};
[[nodiscard]] ExportedColumn exported_column(const ArrowArray& array) noexcept;

}  // namespace tern
