// DLPack and the CUDA Array Interface, shared by Buffer and DeviceArray.

#pragma once

#include "support.hpp"
#include "tern/buffer/buffer.hpp"

namespace tern::python {

/// What is exported: the elements, who may write them, and the work that must come first.
struct Exported {
  Buffer buffer;
  bool is_read_only = false;
  /// If set, the consumer is ordered after this stream and not after the uses that the storage
  /// knows.
  StreamRef after = {};
  bool is_ordered_by_stream = false;
};

/// Implements __dlpack__.
[[nodiscard]] nb::object export_dlpack(const Exported& exported, nb::handle stream,
                                       nb::handle max_version, nb::handle dl_device,
                                       nb::handle copy);
/// Implements __dlpack_device__.
[[nodiscard]] nb::tuple dlpack_device(const Buffer& buffer);
/// Implements __cuda_array_interface__. Raises AttributeError if the memory is not CUDA's or the
/// dtype has no typestr.
[[nodiscard]] nb::dict cuda_array_interface(const Exported& exported);

}  // namespace tern::python
