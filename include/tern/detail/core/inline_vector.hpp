// Not part of the interface.
//
// An InlineVector keeps up to N elements inside itself, and all of them on the heap if there are
// more.
//
//   InlineVector<Mark, 8> marks;
//   if (!marks.try_reserve(marks.size() + 1)) return no_host_memory("a list of marks");
//   marks.emplace_back(mark);
//
// Only try_reserve() allocates, and it fails without a change. A caller can therefore reserve
// first, and no later step fails. Elements are constructed one by one: unused capacity costs
// nothing. Moving an element must not throw. Not synchronized.
//
// InlineStorage is the part without the counts, for a class that packs the counts itself.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace tern {

/// Room for N elements, or for more on the heap. The owner counts the elements and destroys them.
template <class T, std::size_t N>
class InlineStorage {
 public:
  InlineStorage() noexcept {}
  InlineStorage(const InlineStorage&) = delete;
  InlineStorage& operator=(const InlineStorage&) = delete;
  ~InlineStorage() { free(); }

  [[nodiscard]] T* data() noexcept { return more_ != nullptr ? more_ : inline_; }
  [[nodiscard]] const T* data() const noexcept { return more_ != nullptr ? more_ : inline_; }
  /// Returns data(), for an owner that knows that it has never grown.
  [[nodiscard]] T* inline_data() noexcept { return inline_; }

  /// Moves `count` elements to heap memory for `capacity` of them. Returns false and changes
  /// nothing if the host has no memory.
  [[nodiscard, gnu::noinline]] bool try_grow(std::size_t count, std::size_t capacity) noexcept {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    T* const larger = static_cast<T*>(::operator new(capacity * sizeof(T), std::nothrow));
    if (larger == nullptr) return false;
    std::uninitialized_move_n(data(), count, larger);
    std::destroy_n(data(), count);
    free();
    more_ = larger;
    return true;
  }
  /// Takes the `count` elements of another storage, which has none afterwards. This storage has
  /// none before.
  void take(InlineStorage& other, std::size_t count) noexcept {
    free();
    more_ = std::exchange(other.more_, nullptr);
    if (more_ != nullptr) return;
    std::uninitialized_move_n(other.inline_, count, inline_);
    std::destroy_n(other.inline_, count);
  }

 private:
  void free() noexcept {
    if (more_ != nullptr) [[unlikely]]
      ::operator delete(more_);
  }

  T* more_ = nullptr;
  union {
    T inline_[N];
  };
};

template <class T, std::size_t N>
class InlineVector {
 public:
  InlineVector() noexcept = default;
  /// The moved-from vector is empty.
  InlineVector(InlineVector&& other) noexcept { *this = std::move(other); }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this == &other) return *this;
    truncate(0);
    storage_.take(other.storage_, other.count_);
    count_ = std::exchange(other.count_, 0);
    capacity_ = std::exchange(other.capacity_, std::uint32_t{N});
    return *this;
  }
  ~InlineVector() { std::destroy_n(data(), count_); }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] T* data() noexcept { return storage_.data(); }
  [[nodiscard]] const T* data() const noexcept { return storage_.data(); }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + count_; }
  [[nodiscard]] const T* end() const noexcept { return data() + count_; }
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data()[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  /// Makes room for `capacity` elements, and for twice as many as before if the vector grows.
  /// Returns false and changes nothing if the host has no memory.
  [[nodiscard]] bool try_reserve(std::size_t capacity) noexcept {
    return capacity <= capacity_ || try_grow(capacity);
  }
  /// Appends an element. Requires room, see try_reserve().
  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) noexcept {
    static_assert(std::is_nothrow_constructible_v<T, Arguments...>);
    return *std::construct_at(data() + count_++, std::forward<Arguments>(arguments)...);
  }
  /// Destroys all but the first `count` elements.
  void truncate(std::size_t count) noexcept {
    std::destroy_n(data() + count, count_ - count);
    count_ = static_cast<std::uint32_t>(count);
  }

 private:
  [[nodiscard, gnu::noinline]] bool try_grow(std::size_t capacity) noexcept {
    if (capacity < std::size_t{2} * capacity_) capacity = std::size_t{2} * capacity_;
    if (capacity > std::numeric_limits<std::uint32_t>::max()) return false;
    if (!storage_.try_grow(count_, capacity)) return false;
    capacity_ = static_cast<std::uint32_t>(capacity);
    return true;
  }

  std::uint32_t count_ = 0, capacity_ = N;
  InlineStorage<T, N> storage_;
};

}  // namespace tern
