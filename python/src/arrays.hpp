// The Python class Array.

#pragma once

#include <utility>

#include "support.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/detail/buffer/raw_array.hpp"

namespace tern::python {

class PyArray {
 public:
  PyArray(RawArray raw, DType dtype, Device device) : raw_(std::move(raw)), dtype_(dtype), device_(std::move(device)) {}

  [[nodiscard]] RawArray& raw() noexcept { return raw_; }
  [[nodiscard]] const RawArray& raw() const noexcept { return raw_; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::size_t width() const noexcept { return size_bytes(dtype_); }
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / width(); }
  /// The elements as a Buffer in the same memory.
  [[nodiscard]] Buffer buffer() const { return raw_.buffer(dtype_, width()); }

 private:
  RawArray raw_;
  DType dtype_;
  Device device_;
};

}  // namespace tern::python
