// A HostView is the host's access to a buffer's bytes in place: a span, for as long as it lives.
//
// It is made by Buffer::read_host, rw_host and discard_host, which wait for the streams that use
// the buffer, and for no others. While it lives the buffer is kept, and where accesses are checked,
// others that collide with it are refused. It has the buffer's shape, so elements are found by one
// index or by one for each dimension. Moves, does not copy; one object belongs to one thread.

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "tern/buffer/storage.hpp"
#include "tern/core/export.hpp"
#include "tern/core/shape.hpp"

namespace tern {

/// The part that does not depend on the type: it keeps the storage, and ends the access.
class TERN_EXPORT HostAccess {
 public:
  HostAccess() noexcept = default;
  HostAccess(StorageHandle storage, std::uint64_t ticket) noexcept
      : storage_(std::move(storage)), ticket_(ticket) {}
  HostAccess(HostAccess&& other) noexcept
      : storage_(std::move(other.storage_)), ticket_(std::exchange(other.ticket_, 0)) {}
  HostAccess& operator=(HostAccess&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(ticket_, other.ticket_);
    return *this;
  }
  ~HostAccess() {
    if (ticket_ != 0) storage_->end_host_access(ticket_);
  }

 private:
  StorageHandle storage_;
  std::uint64_t ticket_ = 0;
};

/// Where an element of a dense row-major array is. Throws ShapeMismatch for another number of
/// indices than dimensions, OutOfBounds for one that is too large.
[[nodiscard]] TERN_EXPORT std::size_t element_offset(const Shape& shape,
                                                     std::span<const std::size_t> indices);

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
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// Being a range, it is one too wherever a span is taken.
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }

  /// Unchecked, as in a span.
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return elements_[index]; }
  /// By one index for each dimension; checked.
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

}  // namespace tern
