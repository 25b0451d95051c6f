// An AsyncResource hands every request to the driver's own stream-ordered allocator.
//
// A block is ready for the work of its stream that follows, and free in the order of the stream
// that frees it: neither waits. Requests without a stream go to the default stream. Thread-safe;
// keeps its device open.

#pragma once

#include "tern/memory/driver_resource.hpp"

namespace tern {

class TERN_EXPORT AsyncResource final : public DriverResource {
 public:
  /// Throws Unsupported if the device allocates in the order of the host only.
  explicit AsyncResource(Device device);

  [[nodiscard]] const char* name() const noexcept override { return "async"; }

 private:
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;
};

}  // namespace tern
