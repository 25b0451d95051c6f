// Structures of Arrow's that Tern made, when they come back: what they were.

#pragma once

#include <cstddef>
#include <optional>

#include "tern/detail/interop/arrow_abi.h"
#include "tern/table/table.hpp"

namespace tern {

/// Null if somebody else made the structure, or it was changed since.
[[nodiscard]] const Table* exported_table(const ArrowArray& array) noexcept;
/// One column, exported alone or moved out of a table, and how many of its values. None likewise.
struct ExportedColumn {
  std::optional<Column> column = {};
  std::size_t rows = 0;
};
[[nodiscard]] ExportedColumn exported_column(const ArrowArray& array) noexcept;

}  // namespace tern
