// What the copy cases have in common: the device that was asked for, a stream, memory of each kind,
// and the other side of the comparison. That is the raw driver on a CUDA device, where goals hold,
// and the C library on heap memory elsewhere, where they do not.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "bench/case.hpp"
#include "bench/host_buffers.hpp"
#include "bench/measure.hpp"
#include "bench/raw_driver.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {

/// What copies have to reach beside the driver's: those of page-locked memory lose nothing, and
/// those of ordinary memory are much faster. Rates are GB/s, of 1 GiB.
inline constexpr double goal_pinned_ratio = 0.95;
inline constexpr double goal_staged_to_device = 45, goal_staged_ratio_to_device = 6;
inline constexpr double goal_staged_to_host = 40, goal_staged_ratio_to_host = 2.5;

/// How a figure is called and what it has to reach.
struct CopyFigure {
  std::string name = {};
  std::size_t bytes = 0;  // that are moved
  std::string raw_name = {}, plain_name = {};
  std::optional<double> goal_ratio = {}, goal = {};
};

class CopyStage {
 public:
  explicit CopyStage(Context& context);

  [[nodiscard]] Context& context() const { return context_; }
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] StreamRef stream() const { return stream_; }
  /// Null unless the device is a CUDA device.
  [[nodiscard]] const RawDriver* raw() const { return raw_.get(); }

  /// Memory of the device, all of it written.
  [[nodiscard]] DeviceMemory memory(MemoryKind kind, std::size_t bytes) const;

  /// Measures our body beside that of the raw driver, or beside the plain one where there is none,
  /// and adds the rate of ours. The bodies wait for what they have begun.
  void compare(const CopyFigure& figure, const Body& ours, const Body& raw,
               const Body& plain) const;
  /// The same for a copy by the stream, beside the driver's and memcpy.
  void compare_copy(const CopyFigure& figure, void* to, const void* from) const;

  /// A memcpy or memset of so much heap memory.
  [[nodiscard]] Body plain_copy(std::size_t bytes) const;
  [[nodiscard]] Body plain_fill(std::size_t bytes) const;

 private:
  Context& context_;
  Device device_;
  Stream stream_;
  std::unique_ptr<RawDriver> raw_;
};

}  // namespace tern::bench
