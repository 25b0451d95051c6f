// The CUDA Array Interface, version 3: how Python libraries describe arrays in memory of a CUDA
// device, as a plain structure. What the Python module puts into a dictionary and takes out of one.
//
// Export says where the elements are and on which stream they are complete, and holds the memory in
// place (Export) for as long as the other side may use it. Import makes a StridedBuffer of somebody
// else's description, behind his stream, and keeps the owner until our last recorded use is done.
// What is wrong in a description is refused with invalid_argument, naming the key and what is
// there; masks, byte orders of other machines and elements without a name here are unsupported.
//
// For memory of CUDA devices, of any kind; arrays of the host have DLPack. Thread-safe.

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

struct CudaArrayInterface {
  /// The driver's default streams, which have no handle.
  static constexpr std::uintptr_t legacy_stream = 1, per_thread_stream = 2;

  std::vector<std::int64_t> shape = {};
  std::string typestr = {};  // "<f4"
  std::uintptr_t data = 0;   // of the element with all indices 0; 0 for no elements
  bool is_read_only = false;
  /// In bytes. None: side by side, in row-major order.
  std::optional<std::vector<std::int64_t>> strides = {};
  /// Where the data is complete: 1, 2 or a handle, never 0. None: it is.
  std::optional<std::uintptr_t> stream = {};
  bool has_mask = false;
  int version = 3;
};

/// "<f4", "|b1"; refused with unsupported for elements that have no name (bf16, 8-bit floats).
[[nodiscard]] TERN_EXPORT Result<std::string> try_typestr(
    DType dtype, CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<DType> try_dtype_of_typestr(
    std::string_view typestr, CallSite site = CallSite::here()) noexcept;

struct CudaArrayExport {
  CudaArrayInterface description;
  /// To be kept as long as somebody may use the address.
  Export hold;
};
struct CudaArrayExportOptions {
  /// Behind which all work is joined that the elements need; it must live as long as the other side
  /// may look at it. None: one of the library's own, which lives as long as the device.
  StreamRef stream = {};
  bool is_read_only = false;
  CallSite site = CallSite::here();
};
/// Refused with unsupported for other memory than that of a CUDA device, read_only, never_written
/// for a read-only export of bytes nobody wrote, device_mismatch, as allocations and waits are.
[[nodiscard]] TERN_EXPORT Result<CudaArrayExport> try_export_cuda_array(
    const StridedBuffer& array, const CudaArrayExportOptions& options = {}) noexcept;

struct CudaArrayImportOptions {
  /// Kept until our uses are done.
  std::shared_ptr<void> owner = {};
  /// Who still writes it, where the description names no stream: older versions have none.
  StreamRef producer = {};
  /// All writes are complete now. A description of version 3 without a stream says so itself; of an
  /// older one, readiness is unstated without this or a producer (foreign.hpp).
  bool is_complete = false;
  Tag tag = {};
  CallSite site = CallSite::here();
};
/// Versions 0 to 3. As adoption refuses, too.
[[nodiscard]] TERN_EXPORT Result<StridedBuffer> try_import_cuda_array(
    const Device& device, const CudaArrayInterface& description,
    const CudaArrayImportOptions& options = {}) noexcept;

}  // namespace tern
