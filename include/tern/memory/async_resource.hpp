// An AsyncResource hands every request to the driver's own stream-ordered allocator.
//
// A block is ready for the work of its stream that follows, and free in the order of the stream
// that frees it: neither waits. Requests without a stream go to the default stream. Thread-safe;
// keeps its device open.

#pragma once

#include "tern/memory/live_counters.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class TERN_EXPORT AsyncResource final : public Resource {
 public:
  /// Throws Unsupported if the device allocates in the order of the host only.
  explicit AsyncResource(Device device);

  [[nodiscard]] const char* name() const noexcept override { return "async"; }
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  [[nodiscard]] Statistics statistics() const noexcept override;
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef stream,
                                            CallSite site = CallSite::here()) noexcept override;

 private:
  const Device device_;
  LiveCounters counters_;
};

}  // namespace tern
