// The CUDA driver without Tern: the baseline of the cases on CUDA devices.
//
// This file loads the driver itself instead of using the library's table. So no code of Tern is
// between a case and the driver, and the command uses only the public interface of the library.

#pragma once

#include <cstddef>
#include <memory>

#include "backends/cuda/driver_table.hpp"
#include "bench/case.hpp"
#include "tern/device/device.hpp"

namespace tern::bench {

/// Entries for the default pool of a device, which Tern itself does not call.
struct SharedPoolCalls {
  cuda::CUresult (*cuDeviceGetDefaultMemPool)(cuda::CUmemoryPool* pool,
                                              cuda::CUdevice device) = nullptr;
  cuda::CUresult (*cuMemAllocAsync)(cuda::CUdeviceptr* address, std::size_t bytes,
                                    cuda::CUstream stream) = nullptr;
  cuda::CUresult (*cuMemPoolTrimTo)(cuda::CUmemoryPool pool, std::size_t bytes_to_keep) = nullptr;
};

/// The driver and the primary context of one device, which Tern uses too. The context is current on
/// the thread that created this object.
class RawDriver {
 public:
  /// Returns null if the device is not a CUDA device, or if its driver cannot be loaded; the latter
  /// adds a note.
  [[nodiscard]] static std::unique_ptr<RawDriver> make(Context& context, const Device& device);
  ~RawDriver();
  RawDriver(const RawDriver&) = delete;
  RawDriver& operator=(const RawDriver&) = delete;

  [[nodiscard]] const cuda::DriverTable& calls() const { return calls_; }
  [[nodiscard]] const SharedPoolCalls& pool_calls() const { return pool_calls_; }
  [[nodiscard]] cuda::CUdevice device() const { return device_; }
  /// A non-blocking stream that only this object uses.
  [[nodiscard]] cuda::CUstream stream() const { return stream_; }
  void synchronize() const { check(calls_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  /// Makes the context current on another thread.
  void enter() const { check(calls_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }
  /// Throws std::runtime_error unless the result is success.
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
