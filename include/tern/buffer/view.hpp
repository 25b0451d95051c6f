// A View is a pointer and a number of elements: the argument that a kernel gets for an array.
//
//   __global__ void scale(View<float> x) { x[threadIdx.x] *= 2; }
//   scale<<<1, 32, 0, cuda_stream>>>(x.view(stream, Access::read_write));
//
// A View owns nothing and checks nothing. It is two words that are copied into the launch, and
// access through it costs as much as access through a pointer. A View is valid only for the work it
// was made for: Array::kernel_view() names the stream and the access.

#pragma once

#include <cstddef>
#include <type_traits>

/// Marks functions that kernels may call as well as the host.
#if defined(__CUDACC__)
#define TERN_HOST_DEVICE __host__ __device__
#else
#define TERN_HOST_DEVICE
#endif

namespace tern {

/// A non-owning range of elements, usable on host and device. data(), size(), empty(), begin() and
/// end() are those of a range; they read only the view, never the elements.
template <class T>
class View {
 public:
  using value_type = std::remove_cv_t<T>;

  View() noexcept = default;
  TERN_HOST_DEVICE constexpr View(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  /// Converts a view for writing to a view for reading.
  template <class U>
  requires(std::is_same_v<const U, T>) TERN_HOST_DEVICE constexpr View(View<U> other) noexcept
      : data_(other.data()), size_(other.size()) {}

  [[nodiscard]] TERN_HOST_DEVICE constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr bool empty() const noexcept { return size_ == 0; }
  /// Returns an element. The index is not checked.
  [[nodiscard]] TERN_HOST_DEVICE constexpr T& operator[](std::size_t index) const noexcept {
    return data_[index];
  }
  [[nodiscard]] TERN_HOST_DEVICE constexpr T* begin() const noexcept { return data_; }
  [[nodiscard]] TERN_HOST_DEVICE constexpr T* end() const noexcept { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The layout that kernels rely on: a pointer, then a size, trivially copyable.
template <class T>
inline constexpr bool view_has_fixed_layout =
    std::is_standard_layout_v<View<T>>&& std::is_trivially_copyable_v<View<T>> &&
    sizeof(View<T>) == sizeof(T*) + sizeof(std::size_t) && alignof(View<T>) == alignof(T*);
static_assert(view_has_fixed_layout<float> && view_has_fixed_layout<const std::byte>);

}  // namespace tern
