// The CUDA driver without Tern around it: what a CUDA device is compared with.
//
// It is loaded here, and not taken from the library, so that nothing of Tern's stands between a
// case and the driver, and the command needs no more of the library than its public face.

#pragma once

#include <cstddef>
#include <memory>

#include "backends/cuda/driver_table.hpp"
#include "bench/case.hpp"
#include "tern/device/device.hpp"

namespace tern::bench {

/// The entries of the pool that all programs share, which Tern itself does not call.
struct SharedPoolCalls {
  cuda::CUresult (*cuDeviceGetDefaultMemPool)(cuda::CUmemoryPool* pool,
                                              cuda::CUdevice device) = nullptr;
  cuda::CUresult (*cuMemAllocAsync)(cuda::CUdeviceptr* address, std::size_t bytes,
                                    cuda::CUstream stream) = nullptr;
  cuda::CUresult (*cuMemPoolTrimTo)(cuda::CUmemoryPool pool, std::size_t bytes_to_keep) = nullptr;
};

/// The driver with the primary context of one device, which is the one that Tern uses too. Current
/// on the thread that made it.
class RawDriver {
 public:
  /// Null if the device is no CUDA device; null too, with a note, if its driver cannot be had.
  [[nodiscard]] static std::unique_ptr<RawDriver> make(Context& context, const Device& device);
  ~RawDriver();
  RawDriver(const RawDriver&) = delete;
  RawDriver& operator=(const RawDriver&) = delete;

  [[nodiscard]] const cuda::DriverTable& calls() const { return calls_; }
  [[nodiscard]] const SharedPoolCalls& pool_calls() const { return pool_calls_; }
  [[nodiscard]] cuda::CUdevice device() const { return device_; }
  /// Non-blocking, and nobody else's.
  [[nodiscard]] cuda::CUstream stream() const { return stream_; }
  void synchronize() const { check(calls_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  /// Makes the context current on a further thread.
  void enter() const { check(calls_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }
  /// Throws std::runtime_error for anything but success.
  static void check(cuda::CUresult result, const char* call);

  [[nodiscard]] static cuda::CUdeviceptr address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    check(calls_.cuMemcpyAsync(address(to), address(from), bytes, stream_), "cuMemcpyAsync");
  }

 private:
  RawDriver(const cuda::DriverTable& calls, const SharedPoolCalls& pool_calls, int ordinal);

  const cuda::DriverTable& calls_;
  const SharedPoolCalls& pool_calls_;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  cuda::CUstream stream_ = nullptr;
};

}  // namespace tern::bench
