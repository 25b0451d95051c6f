// A View is an address and a number of elements: what a kernel gets of an array.
//
// It owns nothing, checks nothing and costs nothing: two words that are copied into a launch, and
// access through it is access through a pointer. It is valid for the work it was made for; who
// makes one (Array::view) names the stream and what is done there.

#pragma once

#include <cstddef>
#include <type_traits>

#include "tern/core/host_device.hpp"

namespace tern {

template <class T>
class View {
 public:
  using value_type = std::remove_cv_t<T>;

  View() noexcept = default;
  TERN_HOST_DEVICE constexpr View(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  /// Who may write may read.
  template <class U>
  requires(std::is_same_v<const U, T>) TERN_HOST_DEVICE constexpr View(View<U> other) noexcept
      : data_(other.data()), size_(other.size()) {}

  [[nodiscard]] TERN_HOST_DEVICE constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr T& operator[](std::size_t index) const noexcept {
    return data_[index];
  }
  [[nodiscard]] TERN_HOST_DEVICE constexpr T* begin() const noexcept { return data_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr T* end() const noexcept { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// What a kernel's side relies on: two words, in this order, moved as bytes.
template <class T>
inline constexpr bool view_has_fixed_layout =
    std::is_standard_layout_v<View<T>>&& std::is_trivially_copyable_v<View<T>> &&
    sizeof(View<T>) == sizeof(T*) + sizeof(std::size_t) && alignof(View<T>) == alignof(T*);
static_assert(view_has_fixed_layout<float> && view_has_fixed_layout<const std::byte>);

}  // namespace tern
