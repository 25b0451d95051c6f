// A kernel that reads and writes all of a memory range on the device, for cases about the location
// of pages. If the device cannot run such a kernel, a fill is used instead.

#pragma once

#include <cstddef>
#include <optional>

#include "bench/copy_stage.hpp"
#include "bench/measure.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {

class TouchKernel {
 public:
  explicit TouchKernel(const CopyStage& stage);
  ~TouchKernel();
  TouchKernel(const TouchKernel&) = delete;
  TouchKernel& operator=(const TouchKernel&) = delete;

  /// Adds one to every word of the memory.
  void launch(StreamRef stream, std::byte* memory, std::size_t bytes) const;

 private:
  const Device device_;
  std::optional<NativeKernel> kernel_;
};

/// Returns the wall-clock time of the body.
[[nodiscard]] double seconds_of(const Body& body);

}  // namespace tern::bench
