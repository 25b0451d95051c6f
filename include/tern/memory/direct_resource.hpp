// A DirectResource calls the driver for every block: one call to allocate, one call to free.
//
// It is slow but exact: every block is an allocation that a sanitizer or profiler can see. Drivers
// free memory immediately, not in stream order, so freeing a block waits until the stream has
// finished its work. Blocks are device, pinned or managed memory. Thread-safe. Keeps its device
// open.

#pragma once

#include "tern/device/memory_kind.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {

/// Allocates and frees each block with one driver call.
class TERN_EXPORT DirectResource final : public DriverResource {
 public:
  /// Throws InvalidArgument if the device is not open or the kind is none of device, pinned and
  /// managed. Throws Unsupported if the device has no memory of that kind.
  explicit DirectResource(Device device, MemoryKind kind = MemoryKind::device);

  [[nodiscard]] const char* name() const noexcept override { return "direct"; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;

 private:
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;

  const MemoryKind kind_;
};

}  // namespace tern
