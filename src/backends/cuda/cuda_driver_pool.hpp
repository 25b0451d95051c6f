// The driver's pool that a CUDA device takes its stream-ordered memory from.
//
// It is a pool of Tern's own, made when it is first needed: the device's default pool belongs to
// everybody, and keeping memory there would take it from them. Its maximum is fixed when it is
// made; everything else can be set at any time. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device_info.hpp"

namespace tern::cuda {

class CudaDriverPool {
 public:
  explicit CudaDriverPool(Context& context) noexcept : context_(context) {}
  CudaDriverPool(const CudaDriverPool&) = delete;
  CudaDriverPool& operator=(const CudaDriverPool&) = delete;
  ~CudaDriverPool();

  /// Inside of a scope to the context.
  [[nodiscard]] Result<CUmemoryPool> get();

  /// Is it this one?
  [[nodiscard]] bool is(CUmemoryPool pool);

  [[nodiscard]] Result<DriverPoolInfo> info();
  [[nodiscard]] Result<void> set(const DriverPoolSettings& settings);
  [[nodiscard]] Result<void> reset_peaks();
  [[nodiscard]] Result<void> set_access(Context& peer, bool is_allowed);

 private:
  [[nodiscard]] Result<CUmemoryPool> get_locked(std::size_t max_bytes);
  [[nodiscard]] Result<void> set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           std::uint64_t value);

  Context& context_;
  std::mutex mutex_;
  CUmemoryPool pool_ = nullptr;  // guarded by mutex_, as the next
  std::size_t max_bytes_ = 0;
};

}  // namespace tern::cuda
