// DLPack: zero-copy exchange of tensors with other libraries.
//
// An export returns a structure whose deleter the consumer calls once, on any thread. Until then
// the memory stays in place (Export). Afterwards the memory is reused only after a device-wide
// wait, because DLPack does not say on which streams the consumer used it.
//
// An import always takes ownership of the structure. It returns a StridedBuffer and calls the
// deleter once: after the last recorded use, or immediately if the structure is rejected. A tensor
// that Tern exported itself is imported as the original buffer, with its identity.
//
// Every field is checked before it is used and read only once. An invalid field fails with
// dlpack_rejected, which names the field, its value and what is accepted. Pointers cannot be
// checked. Nothing is converted or copied; use contiguous() or a copy for that.
//
// Devices: (1, 0) host, (2, i) CUDA device i, (3, 0) and (13, 0) pinned and managed memory of CUDA,
// (12, i) simulated device i. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/strided_buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/interop/dlpack_abi.h"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/schema.hpp"
#include "tern/table/table.hpp"

namespace tern {

/// The version of exported structures.
inline constexpr abi::DLPackVersion dlpack_version = {1, 3};

/// try_dlpack_type(), try_dtype_of() and try_dlpack_device() convert dtypes and devices to and from
/// DLPack. They fail with dlpack_rejected if DLPack, or Tern, has no equivalent.
[[nodiscard]] TERN_EXPORT Result<abi::DLDataType> try_dlpack_type(
    DType dtype, CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<DType> try_dtype_of(abi::DLDataType type,
                                                     CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLDevice> try_dlpack_device(
    const Storage& storage, CallSite site = CallSite::here()) noexcept;

/// Options of exports and imports.
struct DlpackOptions {
  /// Export: the consumer's stream, of the same device (Stream::borrow). It waits for all pending
  /// writes. If empty, the host waits for them.
  /// Import: the producer's stream, which may still write the memory. Our uses are ordered after
  /// its current work.
  StreamRef stream = {};
  /// Export: neither a stream nor the host waits; the consumer waits itself, or needs no wait.
  bool is_unordered = false;
  /// Export: the consumer must not write. The unversioned structure cannot express this, so its
  /// export fails.
  bool is_read_only = false;
  /// Import: states that all writes are complete. The structure says nothing about pending writes:
  /// without this flag or a stream, readiness is unstated (foreign.hpp). Tensors of device type CPU
  /// are always complete, because the protocol has no streams for them.
  bool is_complete = false;
  /// Import: the unversioned structure does not say whether it is writable. It is imported as
  /// read-only unless this flag is set.
  bool legacy_is_writable = false;
  /// Import: the tag of the buffer.
  Tag tag = {};
  /// Import of a column: the required field; a mismatch fails with type_mismatch. If unset, the
  /// element type decides.
  std::optional<Field> field = {};
  /// Import of a column: which differences from `field` are accepted.
  SchemaMatch match = {};
  /// Import of a column: the required number of values; a mismatch fails with size_mismatch. If
  /// unset, any number.
  std::optional<std::size_t> rows = {};
  CallSite site = CallSite::here();
};

/// Exports a tensor. The caller owns the structure and passes it on, or calls its deleter. The
/// strides are never null or negative; a tensor without elements has a null address. Fails with
/// dlpack_rejected, with not_allocated, with read_only for read-only memory unless is_read_only is
/// set, with never_written for a read-only export of unwritten bytes, and like allocations and
/// waits.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const StridedBuffer& tensor, const DlpackOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const Buffer& tensor, const DlpackOptions& options = {}) noexcept;
/// Exports the unversioned structure.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensor*> try_export_dlpack_legacy(
    const StridedBuffer& tensor, const DlpackOptions& options = {}) noexcept;

/// Exports as a structure of the official header, whose layout is checked at compile time:
/// export_dlpack<::DLManagedTensorVersioned>(buffer).
template <class Managed, class Tensor>
[[nodiscard]] Managed* export_dlpack(const Tensor& tensor, const DlpackOptions& options = {}) {
  constexpr bool has_version = requires(Managed managed) { managed.version; };
  using Ours = std::conditional_t<has_version, abi::DLManagedTensorVersioned, abi::DLManagedTensor>;
  static_assert(sizeof(Managed) == sizeof(Ours) &&
                    offsetof(Managed, dl_tensor) == offsetof(Ours, dl_tensor) &&
                    offsetof(Managed, deleter) == offsetof(Ours, deleter) &&
                    offsetof(Managed, manager_ctx) == offsetof(Ours, manager_ctx),
                "not a structure of DLPack 1");
  if constexpr (has_version) {
    return reinterpret_cast<Managed*>(try_export_dlpack(tensor, options).value());
  } else {
    return reinterpret_cast<Managed*>(
        try_export_dlpack_legacy(StridedBuffer(tensor), options).value());
  }
}

/// Imports a tensor in memory of `device`; memory of another device fails with device_mismatch,
/// which names both. The result is read-only if elements may overlap (zero strides) or a stride is
/// negative. A tensor that Tern exported is imported as the original buffer, unless it is
/// read-only: then it is treated like a foreign tensor. Fails with dlpack_rejected, and like an
/// adoption (foreign.hpp).
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_dlpack(
    const Device& device, abi::DLManagedTensorVersioned* tensor,
    const DlpackOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_dlpack(
    const Device& device, abi::DLManagedTensor* tensor, const DlpackOptions& options = {}) noexcept;
template <class Managed>
[[nodiscard]] StridedBuffer import_dlpack(const Device& device, Managed* tensor,
                                          const DlpackOptions& options = {}) {
  if constexpr (requires { tensor->version; }) {
    static_assert(sizeof(Managed) == sizeof(abi::DLManagedTensorVersioned));
    return try_import_dlpack(device, reinterpret_cast<abi::DLManagedTensorVersioned*>(tensor),
                             options)
        .value();
  } else {
    static_assert(sizeof(Managed) == sizeof(abi::DLManagedTensor));
    return try_import_dlpack(device, reinterpret_cast<abi::DLManagedTensor*>(tensor), options)
        .value();
  }
}

// Columns and tables as DLPack tensors, and tensors as columns, without a copy.
//
// A column is exported as a one-dimensional tensor with as many elements as the table has rows.
// Many exports may share one table. The host waits in three cases:
// - Only the device knows the row count. The export reads the count (Table::try_rows_host).
// - A nullable column has an unknown number of nulls. The export counts them.
// - The options name no stream. The host then waits for pending writes.
// An unordered export never waits. In the first two cases it fails instead.
//
// A tensor cannot express nulls, texts or bits. A column that has them fails with dlpack_rejected,
// which names the column and the buffers that can be exported separately. A whole table is exported
// as {rows, columns} if its columns exactly fill one storage. It is never cut or padded.
//
// A tensor can be imported as a column if it has one dimension and contiguous elements. As in
// dlpack.hpp, an import always takes ownership and the deleter is called once. Thread-safe.

// --- Export

/// Exports a column. Fails with out_of_bounds for an invalid index, with not_found for an unknown
/// name, and like the export of a buffer. Fails with dlpack_rejected if a tensor cannot express the
/// column, if the row count exceeds the capacity, or if an unordered export would have to read the
/// row count.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::size_t column, const DlpackOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::string_view column, const DlpackOptions& options = {}) noexcept;
/// Exports the unversioned structure.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensor*> try_export_dlpack_column_legacy(
    const Table& table, std::size_t column, const DlpackOptions& options = {}) noexcept;

/// Exports a table as a tensor of shape {rows, columns}. Fails with dlpack_rejected unless all
/// columns have one type, follow each other in one storage without gaps, fill the storage, and have
/// no unused capacity. Also fails like the export of a column.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const Table& table, const DlpackOptions& options = {}) noexcept;

// --- Import

/// Imports a tensor as a column. Fails with dlpack_rejected if the tensor has not one dimension, if
/// its elements are not contiguous, or if they are booleans, which are bits in a column (use
/// Column::pack). Fails with type_mismatch for element types that columns do not have, with
/// misaligned, and like the import of a tensor.
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensorVersioned* tensor,
    const DlpackOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Column> try_import_dlpack_column(
    const Device& device, abi::DLManagedTensor* tensor, const DlpackOptions& options = {}) noexcept;

/// Imports one tensor per field (else shape_mismatch), all of one length. Takes ownership of every
/// tensor, even if one of them is rejected. `options.field` is ignored.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_dlpack_table(
    const Device& device, const Schema& schema,
    std::span<abi::DLManagedTensorVersioned* const> tensors,
    const DlpackOptions& options = {}) noexcept;

}  // namespace tern
