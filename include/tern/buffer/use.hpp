// The two ways to use the memory of a buffer in place: a HostView for the host, a StorageUse for
// work on a stream.
//
// A HostView gives the host access to the elements of a buffer in place, for as long as it lives.
//
//   HostView<const float> x = buffer.read_host<float>();
//   float first = x[0], other = x.at(1, 2);
//
// Buffer::read_host(), rw_host() and discard_host() make HostViews. They wait for the streams that
// use the buffer, and for no others. A HostView keeps the storage alive. If accesses are checked
// (StorageOptions::checked), conflicting accesses fail while the HostView lives. The HostView has
// the buffer's shape, so elements are addressed by one index or by one index per dimension. It can
// be moved but not copied. Use one object from one thread at a time.

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "tern/core/access.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Returns the index of an element in a dense row-major array. Throws ShapeMismatch if the number
/// of indices is not the number of dimensions, OutOfBounds if an index is too large.
[[nodiscard]] TERN_EXPORT std::size_t element_offset(const Shape& shape,
                                                     std::span<const std::size_t> indices);

/// The typed access; a contiguous range of T. data(), size(), empty(), begin() and end() are those
/// of a range; a default-constructed view is empty.
template <class T>
class HostView {
 public:
  using value_type = std::remove_cv_t<T>;

  HostView() noexcept = default;
  HostView(HostAccess access, std::span<T> elements, Shape shape) noexcept
      : access_(std::move(access)), elements_(elements), shape_(std::move(shape)) {}

  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] bool empty() const noexcept { return elements_.empty(); }
  [[nodiscard]] T* begin() const noexcept { return data(); }
  [[nodiscard]] T* end() const noexcept { return data() + size(); }
  /// The shape of the buffer that was opened.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// The elements as a span. A HostView is a contiguous range, so it also converts to std::span
  /// implicitly.
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }

  /// Returns an element by its flat index. The index is not checked.
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return elements_[index]; }
  /// Returns an element by one index per dimension. Throws ShapeMismatch, OutOfBounds.
  template <class... Index>
  [[nodiscard]] T& at(Index... index) const {
    const std::array<std::size_t, sizeof...(Index)> indices = {static_cast<std::size_t>(index)...};
    return elements_[element_offset(shape_, indices)];
  }

 private:
  HostAccess access_;
  std::span<T> elements_;
  Shape shape_;
};

/// A use of a storage that has begun on a stream. Call end() after the work has been submitted. If
/// the object is destroyed without that, the use is cancelled, as if nothing had been submitted.
class TERN_EXPORT StorageUse {
 public:
  StorageUse() noexcept = default;
  StorageUse(StorageUse&& other) noexcept;
  StorageUse& operator=(StorageUse&& other) noexcept;
  ~StorageUse();

  /// The address of the storage's first byte, for kernels and copies on the stream.
  [[nodiscard]] void* address() const noexcept { return address_; }
  /// Ends the use: the work has been submitted.
  void end() noexcept { end_on(stream_); }
  /// Ends the use on behalf of another stream, which has queued a wait for the work. The use is
  /// then recorded for `stream`, and the stream that did the work may be destroyed.
  void end_on(StreamRef stream) noexcept;
  /// Ends the use before its work is submitted. The use covers all work that the stream has when
  /// another user first has to wait for it.
  void end_deferred() noexcept;

 private:
  friend class Storage;
  StorageHandle storage_;
  StreamRef stream_ = {};
  UseRecord::Ticket ticket_ = {};
  void* address_ = nullptr;
  std::size_t offset_ = 0, bytes_ = 0;
  Access access_ = Access::read;
};

}  // namespace tern
