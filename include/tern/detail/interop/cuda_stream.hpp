// Not part of the interface.
//
// Stream types of CUDA C++ libraries, without their headers: cudaStream_t, CUstream,
// cuda::stream_ref, cuda::stream, rmm::cuda_stream_view and classes like them.

#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tern/device/operations.hpp"

// The driver's structure. cudaStream_t and CUstream are pointers to it.
struct CUstream_st;

namespace tern::detail {

template <class T>
concept HasCudaStream = requires(const T& stream) {
  { stream.get() } -> std::same_as<CUstream_st*>;
};

/// A class with a member get(), or anything that converts to the driver's handle. Not nullptr,
/// which CUDA libraries reject too.
template <class T>
concept CudaStream = !std::same_as<T, std::nullptr_t> &&
                     (HasCudaStream<T> || std::convertible_to<const T&, CUstream_st*>);

template <CudaStream T>
[[nodiscard]] NativeStream native_of(const T& stream) noexcept {
  CUstream_st* handle = nullptr;
  if constexpr (HasCudaStream<T>) {
    handle = stream.get();
  } else {
    handle = stream;
  }
  return {reinterpret_cast<std::uintptr_t>(handle)};
}

[[nodiscard]] inline CUstream_st* cuda_handle(NativeStream stream) noexcept {
  return reinterpret_cast<CUstream_st*>(stream.value);
}

/// A stream as an argument of a function of another library: converts to the library's stream type.
class CudaStreamArgument {
 public:
  explicit CudaStreamArgument(NativeStream stream) noexcept : handle_(cuda_handle(stream)) {}

  template <class T>
  requires std::same_as<T, CUstream_st*> ||
      (std::is_class_v<T>&& std::convertible_to<CUstream_st*, T>)
      operator T() const noexcept {
    return handle_;
  }

 private:
  CUstream_st* handle_;
};

}  // namespace tern::detail
