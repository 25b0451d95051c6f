// A kernel that uses all of some memory on the device, for cases about where its pages are: by a
// kernel of the device's own kind, or by a fill where that cannot be had.

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

  /// Adds one to every word of it.
  void launch(StreamRef stream, std::byte* memory, std::size_t bytes) const;

 private:
  const Device device_;
  std::optional<NativeKernel> kernel_;
};

/// How long the body took, by the clock on the wall.
[[nodiscard]] double seconds_of(const Body& body);

}  // namespace tern::bench
