// A Result<T> holds either a T or the Failure that explains why there is none.
//
//   Result<void*> address = device.try_allocate(MemoryKind::device, 1 * mib);
//   if (!address) return address.failure();
//   use(*address);
//
// Every try_x() returns a Result. A failing try_x() throws nothing and allocates no heap memory.
// Reading the value of a failed Result with value(), `*` or `->` throws the exception of the
// failure, so a missing check is never undefined behaviour. If the code checks first, the compiler
// removes the second check. Result<void> holds success or a failure. A Result is as thread-safe as
// its T.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"

namespace tern {

/// Throws InvalidArgument. Result::failure() calls this function on a success.
[[noreturn]] TERN_EXPORT void raise_no_failure();

template <class T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T>, "a Result owns its value; return a pointer instead");
  static_assert(std::is_nothrow_move_constructible_v<T>, "assignment destroys before it moves");

 public:
  using value_type = T;

  /// A success. Implicit, so that a function can `return value;`.
  Result(T value) noexcept : has_value_(true) { std::construct_at(&value_, std::move(value)); }
  /// A failure. Implicit, so that a function can `return failure;`.
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

  /// Returns true for a success.
  [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }

  /// These operators return the value, like value() below. They throw if there is none.
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T operator*() && { return std::move(*this).value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }

  /// Returns the value. Throws the exception of the failure if there is no value.
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

  /// Like value(). If the failure has no call site, the exception gets `site`.
  T& value(CallSite site) & {
    if (!has_value_) raise(failure_, site);
    return value_;
  }
  T value(CallSite site) && {
    if (!has_value_) raise(failure_, site);
    return std::move(value_);
  }

  /// Returns the failure. Throws InvalidArgument if this is a success.
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

  /// Returns true for a success.
  [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }

  /// Returns if this is a success. Throws the exception of the failure otherwise.
  void value() const {
    if (!has_value_) raise(failure_);
  }
  /// Like value(). If the failure has no call site, the exception gets `site`.
  void value(CallSite site) const {
    if (!has_value_) raise(failure_, site);
  }

  /// Returns the failure. Throws InvalidArgument if this is a success.
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
