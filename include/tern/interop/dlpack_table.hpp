// Columns and tables as DLPack tensors, and tensors as columns, without a copy.
//
// A column is exported as a one-dimensional tensor with as many elements as the table has rows.
// Many exports may share one table. The host must know the row count: if the count is on the
// device, the export reads it (Table::try_rows_host), which is its only wait; an unordered export
// fails instead.
//
// A tensor cannot express nulls, texts or bits. A column that has them fails with dlpack_rejected,
// which names the column and the buffers that can be exported separately. A whole table is exported
// as {rows, columns} if its columns exactly fill one storage. It is never cut or padded.
//
// A tensor can be imported as a column if it has one dimension and contiguous elements. As in
// dlpack.hpp, an import always takes ownership and the deleter is called once. Thread-safe.

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/interop/dlpack.hpp"
#include "tern/table/column.hpp"
#include "tern/table/schema.hpp"
#include "tern/table/table.hpp"

namespace tern {

// --- Export

/// Exports a column. Fails with out_of_bounds for an invalid index, with not_found for an unknown
/// name, and like the export of a buffer. Fails with dlpack_rejected if a tensor cannot express the
/// column, if the row count exceeds the capacity, or if an unordered export would have to read the
/// row count.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::size_t column, const DlpackExport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::string_view column, const DlpackExport& options = {}) noexcept;
/// Exports the unversioned structure.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensor*> try_export_dlpack_column_legacy(
    const Table& table, std::size_t column, const DlpackExport& options = {}) noexcept;

/// Exports a table as a tensor of shape {rows, columns}. Fails with dlpack_rejected unless all
/// columns have one type, follow each other in one storage without gaps, fill the storage, and have
/// no unused capacity. Also fails like the export of a column.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const Table& table, const DlpackExport& options = {}) noexcept;

// --- Import

struct DlpackColumn {
  DlpackImport tensor = {};
  /// The required field; a mismatch fails with type_mismatch. If unset, the element type decides.
  std::optional<Field> field = {};
  /// Which differences from `field` are accepted.
  SchemaMatch match = {};
  /// The required number of values; a mismatch fails with size_mismatch. If unset, any number.
  std::optional<std::size_t> rows = {};
};

/// Imports a tensor as a column. Fails with dlpack_rejected if the tensor has not one dimension, if
/// its elements are not contiguous, or if they are booleans, which are bits in a column (use
/// Column::pack). Fails with type_mismatch for element types that columns do not have, with
/// misaligned, and like the import of a tensor.
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensorVersioned* tensor,
    const DlpackColumn& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensor* tensor, const DlpackColumn& options = {}) noexcept;

/// Imports one tensor per field (else shape_mismatch), all of one length. Takes ownership of every
/// tensor, even if one of them is rejected. `options.field` is ignored.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_dlpack_table(
    const Device& device, const Schema& schema,
    std::span<abi::DLManagedTensorVersioned* const> tensors,
    const DlpackColumn& options = {}) noexcept;

}  // namespace tern
