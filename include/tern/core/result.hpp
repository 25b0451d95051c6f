// A Result<T> is a T, or the Failure that says why there is none.
//
// It is what every try_x() returns: no exception is thrown and no heap memory is used to refuse.
// Asking a failed result for its value, by value(), `*` or `->`, throws the failure's exception, so
// a forgotten check is never undefined behaviour; after a check the compiler drops the second one.
// Result<void> is success or a failure. A Result is as thread-safe as its T.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"

namespace tern {

/// What Result::failure() does on a success.
[[noreturn]] TERN_EXPORT void raise_no_failure();

template <class T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T>, "a Result owns its value; return a pointer instead");
  static_assert(std::is_nothrow_move_constructible_v<T>, "assignment destroys before it moves");

 public:
  using value_type = T;

  Result(T value) noexcept : has_value_(true) { std::construct_at(&value_, std::move(value)); }
  Result(const Failure& failure) noexcept : failure_(failure), has_value_(false) {}

  Result(const Result& other) noexcept(
      std::is_nothrow_copy_constructible_v<T>) requires std::is_copy_constructible_v<T>
      : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, other.value_);
    } else {
      std::construct_at(&failure_, other.failure_);
    }
  }
  Result(Result&& other) noexcept : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, std::move(other.value_));
    } else {
      std::construct_at(&failure_, other.failure_);
    }
  }
  Result& operator=(Result other) noexcept {
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  ~Result() {
    if (has_value_) std::destroy_at(&value_);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }

  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T operator*() && { return std::move(*this).value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }

  /// The value, or throws what failure() describes.
  T& value() & {
    if (!has_value_) raise(failure_);
    return value_;
  }
  const T& value() const& {
    if (!has_value_) raise(failure_);
    return value_;
  }
  T value() && {
    if (!has_value_) raise(failure_);
    return std::move(value_);
  }

  /// The same; a failure that does not know its call is said to come from `site`.
  T& value(CallSite site) & {
    if (!has_value_) raise(failure_, site);
    return value_;
  }
  T value(CallSite site) && {
    if (!has_value_) raise(failure_, site);
    return std::move(value_);
  }

  /// Why there is no value. Of a success: throws InvalidArgument.
  [[nodiscard]] const Failure& failure() const {
    if (has_value_) raise_no_failure();
    return failure_;
  }

 private:
  union {
    T value_;
    Failure failure_;
  };
  bool has_value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() noexcept : has_value_(true) {}
  Result(const Failure& failure) noexcept : failure_(failure), has_value_(false) {}
  Result(const Result& other) noexcept : has_value_(other.has_value_) {
    if (!has_value_) std::construct_at(&failure_, other.failure_);
  }
  Result& operator=(const Result& other) noexcept {
    has_value_ = other.has_value_;
    if (!has_value_) std::construct_at(&failure_, other.failure_);
    return *this;
  }
  ~Result() = default;

  [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }

  /// Returns if this is a success, else throws what failure() describes.
  void value() const {
    if (!has_value_) raise(failure_);
  }
  /// The same; a failure that does not know its call is said to come from `site`.
  void value(CallSite site) const {
    if (!has_value_) raise(failure_, site);
  }

  /// Why there is no value. Of a success: throws InvalidArgument.
  [[nodiscard]] const Failure& failure() const {
    if (has_value_) raise_no_failure();
    return failure_;
  }

 private:
  union {
    Failure failure_;
  };
  bool has_value_;
};

}  // namespace tern
