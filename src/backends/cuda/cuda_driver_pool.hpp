// The driver pool from which a CUDA device allocates stream-ordered memory.
//
// The pool belongs to Tern and is created on first use. The default pool of the device is shared
// with the whole process, so memory kept in it would be missing elsewhere. The maximum size is
// fixed at creation; all other settings can be changed at any time. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"
#include "tern/device/device_info.hpp"

namespace tern::cuda {

class CudaDriverPool {
 public:
  explicit CudaDriverPool(Context& context) noexcept : context_(context) {}
  CudaDriverPool(const CudaDriverPool&) = delete;
  CudaDriverPool& operator=(const CudaDriverPool&) = delete;
  ~CudaDriverPool();

  /// Call in a scope of the context.
  [[nodiscard]] Result<CUmemoryPool> get();

  /// Returns whether `pool` is this pool.
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
  CUmemoryPool pool_ = nullptr;  // guarded by mutex_, like the next member
  std::size_t max_bytes_ = 0;
};

}  // namespace tern::cuda
