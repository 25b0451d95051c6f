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
#include <type_traits>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/strided_buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/interop/dlpack_abi.h"

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

}  // namespace tern
