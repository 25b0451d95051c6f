// The CUDA Array Interface, version 3, as a plain structure. Python libraries use it to describe
// arrays in memory of a CUDA device; the Python module converts the structure from and to a
// dictionary.
//
// An export describes where the elements are and on which stream they are complete. Its Export
// keeps the memory in place for as long as the consumer may use it. An import returns a
// StridedBuffer over the described memory, ordered after the producer's stream, and keeps the owner
// alive until the last recorded use is done. An invalid description fails with invalid_argument,
// which names the key and its value; so do foreign byte orders and element types without a dtype.
// Masks fail with unsupported.
//
// Works for all kinds of memory of CUDA devices. Use DLPack for host arrays. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/buffer/foreign.hpp"
#include "tern/buffer/strided_buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// One array as its owner describes it. The fields are the keys of the interface.
struct CudaArrayInterface {
  /// Stream values of the driver's default streams, which have no handle.
  static constexpr std::uintptr_t legacy_stream = 1, per_thread_stream = 2;

  std::vector<std::int64_t> shape = {};  // the extents; empty for a single element
  std::string typestr = {};              // the byte order and the type, such as "<f4"
  std::uintptr_t data = 0;    // address of element (0, ..., 0); 0 if there are no elements
  bool is_read_only = false;  // the consumer must not write
  /// Strides in bytes. If unset, the elements are contiguous in row-major order.
  std::optional<std::vector<std::int64_t>> strides = {};
  /// The stream on which the data is complete: 1, 2 or a handle, never 0. If unset, it is complete.
  std::optional<std::uintptr_t> stream = {};
  bool has_mask = false;  // some elements are missing; Tern does not import such arrays
  int version = 3;        // of the interface
};

/// Returns the type string of a dtype, such as "<f4" or "|b1". Fails with unsupported if the
/// interface has no such type (void, bf16, 8-bit floats).
[[nodiscard]] TERN_EXPORT Result<std::string> try_typestr(
    DType dtype, CallSite site = CallSite::here()) noexcept;
/// Returns the dtype of a type string. Fails with invalid_argument if Tern has no such dtype.
[[nodiscard]] TERN_EXPORT Result<DType> try_dtype_of_typestr(
    std::string_view typestr, CallSite site = CallSite::here()) noexcept;

/// An exported array.
struct CudaArrayExport {
  CudaArrayInterface description;  // what the consumer reads
  /// Keep it for as long as the consumer may use the address.
  Export hold;
};

/// Options of exports and imports.
struct CudaArrayOptions {
  /// Import: kept alive until all recorded uses are done.
  std::shared_ptr<void> owner = {};
  /// Export: the stream that the description names. It waits for all pending writes of the
  /// elements, and must live as long as the consumer may use it. If empty, Tern creates a stream
  /// and destroys it with the device. Import: the producer's stream, which may still write the
  /// memory, if the description names none. Versions below 3 have no stream.
  StreamRef stream = {};
  /// Export: the consumer must not write.
  bool is_read_only = false;
  /// Import: states that all writes are complete. A description of version 3 without a stream means
  /// that already. For an older one, readiness is unstated without this flag or a stream
  /// (foreign.hpp).
  bool is_complete = false;
  /// Import: the tag of the buffer.
  Tag tag = {};
  CallSite site = CallSite::here();
};
/// Fails with unsupported if the memory is not memory of a CUDA device, with read_only, with
/// never_written for a read-only export of unwritten bytes, with device_mismatch, and like
/// allocations and waits.
[[nodiscard]] TERN_EXPORT Result<CudaArrayExport> try_export_cuda_array(
    const StridedBuffer& array, const CudaArrayOptions& options = {}) noexcept;

/// Imports versions 0 to 3. The result is read-only if elements may overlap or a stride is
/// negative, as in an import through DLPack. Also fails like an adoption (foreign.hpp).
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_cuda_array(
    const Device& device, const CudaArrayInterface& description,
    const CudaArrayOptions& options = {}) noexcept;

}  // namespace tern
