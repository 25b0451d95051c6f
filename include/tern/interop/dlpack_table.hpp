// Columns and tables as DLPack tensors, and tensors as columns.
//
// A column goes out as one dimension of as many elements as the table has rows, in the same memory;
// many exports may share one table. How many rows there are the host has to know: where only the
// device does it asks (Table::try_rows_host), which is the one wait for it, and an export that is
// to wait for nothing is refused. A tensor says nothing of missing values, has no texts and no
// bits; a column that has is refused with dlpack_rejected, which names the column and the buffers
// that can go alone. A whole table goes out as {rows, columns} if its columns cover one storage
// exactly, and never cut or padded.
//
// A tensor comes in as a column if it has one dimension and its elements are side by side. It is
// taken in any case and its deleter is called once, as dlpack.hpp says. Thread-safe.

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

// --- To others

/// Refused with out_of_bounds for a column that is not there, by name with not_found; with
/// dlpack_rejected for what a tensor cannot say, for more rows than there is room for, and for rows
/// that nobody has counted where the export is unordered; and as exports of buffers are.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::size_t column, const DlpackExport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::string_view column, const DlpackExport& options = {}) noexcept;
/// The form without a version.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensor*> try_export_dlpack_column_legacy(
    const Table& table, std::size_t column, const DlpackExport& options = {}) noexcept;

/// {rows, columns}, of which the rows are side by side. Refused with dlpack_rejected unless all
/// columns are of one type, lie behind each other in one storage, which has nothing else, and are
/// filled; and as single columns are.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const Table& table, const DlpackExport& options = {}) noexcept;

// --- From others

struct DlpackColumn {
  DlpackImport tensor = {};
  /// What the column is to be (type_mismatch). None: what the type of the elements means.
  std::optional<Field> field = {};
  /// What may differ from that.
  SchemaMatch match = {};
  /// How many values it is to have (size_mismatch). None: any.
  std::optional<std::size_t> rows = {};
};

/// Refused with dlpack_rejected for more dimensions than one, for elements that are not side by
/// side, for truth values, which are bits in a column (Column::pack makes them); with type_mismatch
/// for elements that no column has; with misaligned; and as imports of tensors are.
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensorVersioned* tensor,
    const DlpackColumn& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensor* tensor, const DlpackColumn& options = {}) noexcept;

/// A tensor for each field (shape_mismatch), all of one length unless the options say which. Every
/// one of them is taken or let go, also if another is refused. Their `field` is not looked at.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_dlpack_table(
    const Device& device, const Schema& schema,
    std::span<abi::DLManagedTensorVersioned* const> tensors,
    const DlpackColumn& options = {}) noexcept;

}  // namespace tern
