// The Python class Array.

#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include "support.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/detail/buffer/raw_array.hpp"

namespace tern::python {

/// A handle of elements that is released without the interpreter lock: it may have become the last
/// one.
class ArrayHandle {
 public:
  explicit ArrayHandle(RawArray raw) : raw_(std::move(raw)) {}
  ArrayHandle(const ArrayHandle&) = delete;
  ArrayHandle& operator=(const ArrayHandle&) = delete;
  ~ArrayHandle() { release(raw_); }

  [[nodiscard]] RawArray* operator->() noexcept { return &raw_; }
  [[nodiscard]] const RawArray& operator*() const noexcept { return raw_; }

 private:
  RawArray raw_;
};

class PyArray {
 public:
  PyArray(RawArray raw, DType dtype, Device device)
      : raw_(std::move(raw)), dtype_(dtype), device_(std::move(device)) {}

  PyArray(PyArray&&) = default;
  PyArray(const PyArray& other)
      : raw_(*other.raw()), dtype_(other.dtype_), device_(other.device_) {}

  /// A handle of the elements, which keeps their number if another thread resizes the array.
  [[nodiscard]] ArrayHandle raw() const {
    wait_for_resize();
    return ArrayHandle(raw_);
  }
  /// Resizes without the interpreter lock. Other threads wait for the end, as the handle is taken
  /// out meanwhile: a second handle would keep the array from growing in place.
  template <class Resize>
  auto resize(Resize&& call) {
    wait_for_resize();
    is_resizing_ = true;
    RawArray taken = std::move(raw_);
    auto result = released([&] { return call(taken); });
    raw_ = std::move(taken);
    is_resizing_ = false;
    return result;
  }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::size_t width() const noexcept { return size_bytes(dtype_); }
  [[nodiscard]] std::size_t size() const { return raw()->size_bytes() / width(); }
  /// The elements as a Buffer in the same memory.
  [[nodiscard]] Buffer buffer() const { return raw()->buffer(dtype_, width()); }

 private:
  void wait_for_resize() const {
    while (is_resizing_) {
      if (is_in_kernel)
        raise(Failure(ErrorCode::stream_misuse, "a kernel cannot wait for the end of a resize."),
              here());
      released([] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
    }
  }

  RawArray raw_;
  bool is_resizing_ = false;  // guarded by the interpreter lock
  DType dtype_;
  Device device_;
};

}  // namespace tern::python
