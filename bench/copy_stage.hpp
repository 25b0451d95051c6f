// What the copy cases share: the device of the run, a stream, memory of each kind, and the
// baseline. On a CUDA device the baseline is the raw driver, and the figures have goals. On other
// devices it is the C library on heap memory, and the figures have no goals.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "bench/case.hpp"
#include "bench/host_buffers.hpp"
#include "bench/measure.hpp"
#include "bench/raw_driver.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {

/// The sizes of copies that are compared with the driver, and the share of the driver's rate that
/// each must reach.
inline constexpr std::size_t ladder_bytes[] = {4 * kib, 64 * kib, 256 * kib, 1 * mib,   2 * mib,
                                               4 * mib, 16 * mib, 64 * mib,  256 * mib, 1 * gib};
inline constexpr double goal_copy_ratio = 0.95;
/// Large copies of pageable memory are much faster than the driver's. Rates are in GB/s, for 1 GiB.
inline constexpr double goal_staged_to_device = 45, goal_staged_ratio_to_device = 6;
inline constexpr double goal_staged_to_host = 40, goal_staged_ratio_to_host = 2.5;

/// The name and the goals of a figure.
struct CopyFigure {
  std::string name = {};
  std::size_t bytes = 0;  // number of bytes that are moved
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

  /// Allocates memory of the device and writes all of it.
  [[nodiscard]] DeviceMemory memory(MemoryKind kind, std::size_t bytes) const;

  /// Measures `ours` and its baseline, and adds the rate of `ours`. The baseline is `raw`, or
  /// `plain` if there is no raw driver. Every body waits for the work that it submits.
  void compare(const CopyFigure& figure, const Body& ours, const Body& raw,
               const Body& plain) const;
  /// Compares a copy on the stream with the driver's copy, or with memcpy.
  void compare_copy(const CopyFigure& figure, void* to, const void* from) const;

  /// Returns a body that copies or fills this much heap memory with memcpy or memset.
  [[nodiscard]] Body plain_copy(std::size_t bytes) const;
  [[nodiscard]] Body plain_fill(std::size_t bytes) const;

 private:
  Context& context_;
  Device device_;
  Stream stream_;
  std::unique_ptr<RawDriver> raw_;
};

}  // namespace tern::bench
