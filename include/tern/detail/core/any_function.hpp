// Not part of the interface.
//
// AnyFunction<R(A...)> holds any copyable function object with that signature, like std::function.
//
// Public headers use it because <functional> costs every program that includes them a seventh of
// its compile time. A std::function converts to an AnyFunction, and an AnyFunction to a
// std::function. Function objects of up to two words that are trivially copyable need no heap
// memory. Calling an empty AnyFunction is undefined. One object belongs to one thread at a time.

#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace tern {

template <class Signature>
class AnyFunction;

template <class R, class... Arguments>
class AnyFunction<R(Arguments...)> {
 public:
  constexpr AnyFunction() noexcept = default;
  constexpr AnyFunction(std::nullptr_t) noexcept {}
  /// Holds a copy of `function`. A null function pointer and an empty std::function make an empty
  /// AnyFunction.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, AnyFunction> &&
           std::is_copy_constructible_v<std::decay_t<F>> &&
           std::is_invocable_r_v<R, std::decay_t<F>&, Arguments...>) AnyFunction(F&& function) {
    using T = std::decay_t<F>;
    // A reference to a function is never null.
    if constexpr (!std::is_function_v<std::remove_reference_t<F>> &&
                  requires { function == nullptr; }) {
      if (function == nullptr) return;
    }
    if constexpr (is_small<T>) {
      ::new (static_cast<void*>(storage_)) T(std::forward<F>(function));
    } else {
      T* const object = new T(std::forward<F>(function));
      std::memcpy(storage_, &object, sizeof(object));
    }
    call_ = &call<T>;
    manage_ = is_small<T> ? nullptr : &manage<T>;
  }
  AnyFunction(const AnyFunction& other) : call_(other.call_), manage_(other.manage_) {
    if (manage_ != nullptr) {
      manage_(storage_, other.storage_);
    } else {
      std::memcpy(storage_, other.storage_, sizeof(storage_));
    }
  }
  AnyFunction(AnyFunction&& other) noexcept { swap(other); }
  AnyFunction& operator=(AnyFunction other) noexcept {
    swap(other);
    return *this;
  }
  ~AnyFunction() {
    if (manage_ != nullptr) manage_(storage_, nullptr);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return call_ != nullptr; }
  R operator()(Arguments... arguments) const {
    return call_(storage_, std::forward<Arguments>(arguments)...);
  }
  friend bool operator==(const AnyFunction& function, std::nullptr_t) noexcept {
    return function.call_ == nullptr;
  }

 private:
  template <class T>
  static constexpr bool is_small = sizeof(T) <= 2 * sizeof(void*) &&
                                   alignof(T) <= alignof(void*) && std::is_trivially_copyable_v<T>;

  template <class T>
  static T& object(const std::byte* storage) noexcept {
    if constexpr (is_small<T>) {
      // Calls may change the object, as those of a std::function may.
      return *std::launder(reinterpret_cast<T*>(const_cast<std::byte*>(storage)));
    } else {
      T* one = nullptr;
      std::memcpy(&one, storage, sizeof(one));
      return *one;
    }
  }
  template <class T>
  static R call(const std::byte* storage, Arguments... arguments) {
    if constexpr (std::is_void_v<R>) {
      object<T>(storage)(std::forward<Arguments>(arguments)...);
    } else {
      return object<T>(storage)(std::forward<Arguments>(arguments)...);
    }
  }
  /// Copies the object behind `from` to the heap, or deletes the object of `to` if `from` is null.
  template <class T>
  static void manage(std::byte* to, const std::byte* from) {
    if (from == nullptr) {
      delete &object<T>(to);
    } else {
      T* const copy = new T(object<T>(from));
      std::memcpy(to, &copy, sizeof(copy));
    }
  }
  void swap(AnyFunction& other) noexcept {
    std::byte kept[sizeof(storage_)];
    std::memcpy(kept, storage_, sizeof(kept));
    std::memcpy(storage_, other.storage_, sizeof(kept));
    std::memcpy(other.storage_, kept, sizeof(kept));
    std::swap(call_, other.call_);
    std::swap(manage_, other.manage_);
  }

  alignas(void*) std::byte storage_[2 * sizeof(void*)] = {};
  R (*call_)(const std::byte*, Arguments...) = nullptr;
  void (*manage_)(std::byte*, const std::byte*) = nullptr;  // null if the object is in storage_
};

}  // namespace tern
