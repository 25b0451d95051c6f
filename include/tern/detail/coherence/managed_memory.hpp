// Not part of the interface.

#pragma once

#include <cstddef>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The part of a managed buffer that does not depend on the element type.
class TERN_EXPORT ManagedMemory {
 public:
  /// The alignment of buffers of at least 2 MiB, and of smaller buffers.
  static constexpr std::size_t usual_alignment = std::size_t{2} << 20;
  static constexpr std::size_t small_alignment = std::size_t{64} << 10;

  /// Creates an empty handle.
  ManagedMemory() noexcept = default;
  /// Creates a buffer without memory. Fails with unsupported if the device has no managed memory,
  /// with invalid_argument for a resource of another kind of memory, and with the failures of
  /// Storage::try_make.
  [[nodiscard]] static Result<ManagedMemory> try_make(const Device& device, Shape shape,
                                                      DType dtype,
                                                      const StorageOptions& options) noexcept;
  /// Returns elements [first, first + count). Fails with invalid_view.
  [[nodiscard]] Result<ManagedMemory> try_slice(std::size_t first, std::size_t count,
                                                CallSite site) const noexcept;

  [[nodiscard]] const Buffer& buffer() const noexcept { return buffer_; }
  [[nodiscard]] bool host_waits_for_device() const noexcept;

  /// Begins a use of the whole buffer on a stream of its device, or of another device that can use
  /// the memory.
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site) const noexcept;

 private:
  explicit ManagedMemory(Buffer buffer) noexcept : buffer_(std::move(buffer)) {}

  Buffer buffer_;
};

}  // namespace tern
