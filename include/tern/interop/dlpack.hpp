// DLPack: a tensor handed to another library and taken from one, without a copy.
//
// Export gives a structure whose deleter the other side calls once, on any thread. Until then the
// memory stays where it is (Export), and afterwards it is not used again before the device was
// waited for, because nobody says on which streams they used it. Import takes a structure over
// whatever comes: it is described by a StridedBuffer, and its deleter is called once, behind the
// last recorded use, or at once if the structure is refused. A tensor that Tern exported itself
// comes back as the buffer it was, with its identity.
//
// Everything in a structure is checked before anything is made of it, and nothing is read twice;
// what is wrong is dlpack_rejected, with the field, its value and what may be there. Pointers
// cannot be checked. Nothing is converted and nothing copied: that is contiguous(), or a copy.
// Devices are (1, 0) for memory of the host, (2, i) for CUDA device i, (3, 0) and (13, 0) for its
// pinned and managed memory, (12, i) for simulated devices. Thread-safe.

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

/// The version that exports carry.
inline constexpr abi::DLPackVersion dlpack_version = {1, 3};

/// The words of DLPack for ours. Refused with dlpack_rejected for what it has no word for.
[[nodiscard]] TERN_EXPORT Result<abi::DLDataType> try_dlpack_type(
    DType dtype, CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<DType> try_dtype_of(abi::DLDataType type,
                                                     CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLDevice> try_dlpack_device(
    const Storage& storage, CallSite site = CallSite::here()) noexcept;

struct DlpackExport {
  /// Whose work comes behind what is pending now: the other side's stream, of the same device
  /// (Stream::borrow). None: the host waits for the writers.
  StreamRef consumer = {};
  /// Neither: the other side does it, or needs nothing.
  bool is_unordered = false;
  /// The other side must not write. (A structure without a version cannot say so, and is refused.)
  bool is_read_only = false;
  CallSite site = CallSite::here();
};

/// The caller's until somebody calls the deleter. The strides are never null and never negative; a
/// tensor of no elements has no address. Refused with dlpack_rejected, not_allocated, read_only
/// for memory that nobody may write unless that is said, never_written for a read-only export of
/// bytes that nobody wrote, as allocations and waits are.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const StridedBuffer& tensor, const DlpackExport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensorVersioned*> try_export_dlpack(
    const Buffer& tensor, const DlpackExport& options = {}) noexcept;
/// The form without a version.
[[nodiscard]] TERN_EXPORT Result<abi::DLManagedTensor*> try_export_dlpack_legacy(
    const StridedBuffer& tensor, const DlpackExport& options = {}) noexcept;

/// As the structure of an official header, whose layout is compared: export_dlpack<
/// ::DLManagedTensorVersioned>(buffer).
template <class Managed, class Tensor>
[[nodiscard]] Managed* export_dlpack(const Tensor& tensor, const DlpackExport& options = {}) {
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

struct DlpackImport {
  /// Who still writes it: our uses come behind what the stream has now.
  StreamRef producer = {};
  /// All writes are complete now. The structure itself says nothing about pending writes: without
  /// this or a producer, readiness is unstated (foreign.hpp). Tensors of device type CPU are
  /// complete, because the protocol has no streams for them.
  bool is_complete = false;
  /// A structure without a version does not say whether it may be written; unless this does, it
  /// may not.
  bool legacy_is_writable = false;
  Tag tag = {};
  CallSite site = CallSite::here();
};

/// Memory of `device` (device_mismatch, naming both). Elements that may share their bytes make it
/// read-only, as with zero strides, and so do negative strides, which few expect. A tensor of ours
/// that comes back is the buffer that went out, unless it may only be read: then it is held as
/// those of others are. Refused with dlpack_rejected, and as adoption is.
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_dlpack(
    const Device& device, abi::DLManagedTensorVersioned* tensor,
    const DlpackImport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_dlpack(
    const Device& device, abi::DLManagedTensor* tensor, const DlpackImport& options = {}) noexcept;
template <class Managed>
[[nodiscard]] StridedBuffer import_dlpack(const Device& device, Managed* tensor,
                                          const DlpackImport& options = {}) {
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
