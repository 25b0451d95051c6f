// What a CUresult means: its name, whether the device is lost, and the failure for the user.

#pragma once

#include <cstddef>
#include <string_view>

#include "backends/cuda/driver_abi.hpp"
#include "tern/core/error.hpp"

namespace tern::cuda {

/// Returns the name, such as "CUDA_ERROR_INVALID_VALUE", or "unknown". Needs no driver.
[[nodiscard]] const char* name_of(CUresult result) noexcept;

/// Returns whether every later call in the context returns this result too, so that the device is
/// lost.
[[nodiscard]] bool has_untracked_writer(CUresult result) noexcept;

/// Returns whether the call failed because a stream is being captured into a graph.
[[nodiscard]] constexpr bool is_about_capture(CUresult result) noexcept {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/// The facts of a call for its failure.
struct CallFacts {
  const char* call = "";  // "cuMemAlloc"
  /// The driver's name for the result; null: name_of().
  const char* name = nullptr;
  std::string_view device = {};
  std::size_t requested_bytes = 0;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// Returns the failure for a result other than success.
[[nodiscard]] Failure failure_of(CUresult result, const CallFacts& facts) noexcept;

}  // namespace tern::cuda
