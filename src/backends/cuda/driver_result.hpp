// What a CUresult means to Tern: its name, whether the device is lost with it, and the failure that
// tells the user.

#pragma once

#include <cstddef>
#include <string_view>

#include "backends/cuda/driver_abi.hpp"
#include "tern/core/error.hpp"

namespace tern::cuda {

/// "CUDA_ERROR_INVALID_VALUE"; "unknown" for a number that is not in the list. Needs no driver.
[[nodiscard]] const char* name_of(CUresult result) noexcept;

/// Does every later call in the context return this too? Then the device is lost.
[[nodiscard]] bool has_untracked_writer(CUresult result) noexcept;

/// Is a stream being captured into a graph, and is that why the call was refused?
[[nodiscard]] bool is_about_capture(CUresult result) noexcept;

/// What a call was about, for its failure.
struct CallFacts {
  const char* call = "";  // "cuMemAlloc"
  /// The driver's own name for the result; null: name_of().
  const char* name = nullptr;
  std::string_view device = {};
  std::size_t requested_bytes = 0;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// Of a result that is not success.
[[nodiscard]] Failure failure_of(CUresult result, const CallFacts& facts) noexcept;

}  // namespace tern::cuda
