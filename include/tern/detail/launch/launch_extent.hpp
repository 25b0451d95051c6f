// Not part of the interface.
//
// The parameters of Kernel::launch() that say where and how large a launch is.

#pragma once

#include <cstdint>
#include <optional>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// A size along three axes. An axis that is left out is 1.
struct Extent3 {
  constexpr Extent3(std::uint32_t along_x, std::uint32_t along_y = 1,
                    std::uint32_t along_z = 1) noexcept
      : x(along_x), y(along_y), z(along_z) {}
  std::uint32_t x, y, z;
};

/// One thread for each element. What elements() returns.
struct Elements {
  /// The number of elements of the arguments. Only portable element kernels and reductions know it.
  static constexpr std::uint64_t of_arguments = ~std::uint64_t{0};
  std::uint64_t count = 0;
  std::uint32_t block_threads = 0;
};
/// The size of a launch: a grid of blocks, or a number of elements.
class LaunchExtent {
 public:
  constexpr LaunchExtent(const LaunchSize& size) noexcept : size_(size) {}
  constexpr LaunchExtent(Elements count) noexcept : elements_(count), counts_elements_(true) {}

  /// Returns the requested number of elements, or nullopt if the extent is a grid.
  [[nodiscard]] std::optional<Elements> elements() const noexcept {
    return counts_elements_ ? std::optional(elements_) : std::nullopt;
  }
  /// Returns the grid, with blocks of `suitable` threads if no block size was given. Fails as
  /// LaunchSize::try_for_elements does.
  [[nodiscard]] Result<LaunchSize> try_size(std::uint32_t suitable, CallSite site) const noexcept {
    if (!counts_elements_) return size_;
    const std::uint32_t named = elements_.block_threads;
    return LaunchSize::try_for_elements(elements_.count, named != 0 ? named : suitable, site);
  }

 private:
  LaunchSize size_ = {};
  Elements elements_ = {};
  bool counts_elements_ = false;
};

/// The stream of a launch, and the source line of the launch.
struct LaunchStream {
  LaunchStream(StreamRef on, CallSite from = CallSite::here()) noexcept : stream(on), site(from) {}
  StreamRef stream;
  CallSite site;
};

}  // namespace tern
