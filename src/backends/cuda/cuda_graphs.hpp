// The graphs of a CUDA device: captures of streams, and the executable graphs made of them.
//
// Captures are relaxed: Tern keeps a capture valid by the rules of its own interface, and other
// threads may allocate meanwhile. Call all functions in a ContextScope, except destroy(). The
// driver may be too old for graphs (are_in); the device does not declare the capability then.
//
// Thread-safe.

#pragma once

#include <mutex>
#include <vector>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaGraphs {
 public:
  /// Returns whether the driver has all entries: since 11.4.
  [[nodiscard]] static bool are_in(const DriverTable& table) noexcept;

  explicit CudaGraphs(Context& context) noexcept : context_(context) {}
  /// Destroys the graphs that the program has left.
  ~CudaGraphs();
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  [[nodiscard]] Result<void> begin(CUstream stream) noexcept;
  [[nodiscard]] Result<NativeGraph> end(CUstream stream) noexcept;
  void discard(CUstream stream) noexcept;
  [[nodiscard]] Result<void> launch(CUstream stream, NativeGraph graph) noexcept;
  void destroy(NativeGraph graph) noexcept;

 private:
  /// `why` replaces the explanation of the result.
  [[nodiscard]] Failure misuse(CUresult result, const char* call,
                               const char* why = nullptr) const noexcept;
  [[nodiscard]] CUstreamCaptureStatus status_of(CUstream stream) const noexcept;
  [[nodiscard]] Result<NativeGraph> instantiate(CUgraph graph) noexcept;

  Context& context_;
  std::mutex mutex_;
  std::vector<CUgraphExec> graphs_;  // guarded by mutex_
};

}  // namespace tern::cuda
