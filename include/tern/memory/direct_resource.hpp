// A DirectResource asks the driver for every block: one call to allocate it, one to free it.
//
// Slow, and exact: what a sanitizer wants to see, and what pools stand on. Drivers free in the
// order of the host, so freeing waits for the block's stream. The memory is device, pinned or
// managed. Thread-safe; keeps its device open.

#pragma once

#include "tern/device/memory_kind.hpp"
#include "tern/memory/live_counters.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class TERN_EXPORT DirectResource final : public Resource {
 public:
  /// Throws InvalidArgument, and Unsupported if the device has no such memory.
  explicit DirectResource(Device device, MemoryKind kind = MemoryKind::device);

  [[nodiscard]] const char* name() const noexcept override { return "direct"; }
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  [[nodiscard]] Statistics statistics() const noexcept override;
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef stream,
                                            CallSite site = CallSite::here()) noexcept override;

 private:
  const Device device_;
  const MemoryKind kind_;
  LiveCounters counters_;
};

}  // namespace tern
