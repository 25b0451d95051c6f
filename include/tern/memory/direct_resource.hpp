// A DirectResource asks the driver for every block: one call to allocate it, one to free it.
//
// Slow, and exact: what a sanitizer wants to see, and what pools stand on. Drivers free in the
// order of the host, so freeing waits for the block's stream. The memory is device, pinned or
// managed. Thread-safe; keeps its device open.

#pragma once

#include "tern/device/memory_kind.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {

class TERN_EXPORT DirectResource final : public DriverResource {
 public:
  /// Throws InvalidArgument, and Unsupported if the device has no such memory.
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
