// Not part of the interface.
//
// DriverResource is the common base of the resources that keep nothing. It checks requests, assigns
// generations, lets exactly one caller free a block, and counts. The granted size is the requested
// size. Thread-safe; keeps its device open.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/memory/live_counters.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

struct RecordedResource;

class TERN_EXPORT DriverResource : public Resource {
 public:
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  [[nodiscard]] Statistics statistics() const noexcept override;
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return request.bytes;
  }
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

 protected:
  /// In whose order the driver allocates and frees.
  enum class Order : std::uint8_t { host, stream };

  /// `not_recycled` is the sentence for requests that want what their stream has freed: a driver
  /// cannot promise that. Throws InvalidArgument if the device is not open.
  DriverResource(Device device, Order order, const char* not_recycled);

  /// What was taken: some drivers want to hear again what they were asked for.
  struct Piece {
    void* address = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;  // as in the request
  };

  /// Returns when the stream has passed everything submitted to it, or can no longer: for drivers
  /// that free in the order of the host.
  [[nodiscard]] Result<void> wait_for(StreamRef stream) const noexcept;

 private:
  /// Here and below, where the driver has the order of streams, a call that names none is on the
  /// default stream.
  [[nodiscard]] virtual Result<void*> take(const Request& request, StreamRef stream) noexcept = 0;
  /// Gives back what was taken and never used.
  virtual void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept = 0;
  /// Gives back what the stream may still use. The mark is the one the memory is gone with; none if
  /// it is gone already.
  [[nodiscard]] virtual Result<Mark> give(const Piece& piece, StreamRef stream,
                                          const CallSite& site) noexcept = 0;

  [[nodiscard]] RecordedResource recorded() const noexcept;
  [[nodiscard]] Result<Block> begin(const Request& request) noexcept;
  [[nodiscard]] StreamRef ordered_by(StreamRef stream) const noexcept;

  const Device device_;
  const Order order_;
  const char* const not_recycled_;
  const std::uint32_t number_;  // in recordings
  LiveCounters counters_;
};

}  // namespace tern
