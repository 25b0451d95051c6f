// The Python classes GrowingArray and Scalar.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "support.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/detail/buffer/raw_array.hpp"
#include "tern/detail/buffer/raw_growing.hpp"

namespace tern::python {

/// A growing array that several threads may use: each call has it alone, without the interpreter
/// lock.
class PyGrowing {
 public:
  PyGrowing(RawGrowing array, DType dtype, Device device)
      : shared_(std::make_shared<Shared>()), dtype_(dtype), device_(std::move(device)) {
    shared_->array = std::move(array);
  }

  template <class Call>
  auto with(Call call) const {
    return without_gil([&] {
      const std::lock_guard lock(shared_->mutex);
      return call(shared_->array);
    });
  }
  [[nodiscard]] RawArray all() const {
    return with([](RawGrowing& array) { return array.all(); });
  }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::size_t width() const noexcept { return size_bytes(dtype_); }
  /// The elements of now as a Buffer in the same memory.
  [[nodiscard]] Buffer buffer() const { return all().buffer(dtype_, width()); }

 private:
  struct Shared {
    std::mutex mutex;
    RawGrowing array;  // guarded by mutex
  };
  std::shared_ptr<Shared> shared_;
  DType dtype_;
  Device device_;
};

/// One value in memory of a device.
class PyScalar {
 public:
  PyScalar(RawArray value, DType dtype, Device device)
      : value_(std::move(value)), dtype_(dtype), device_(std::move(device)) {}

  [[nodiscard]] RawArray value() const { return value_; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] Buffer buffer() const { return value_.buffer(dtype_, size_bytes(dtype_)); }

 private:
  RawArray value_;
  DType dtype_;
  Device device_;
};

}  // namespace tern::python
