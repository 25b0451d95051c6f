// Not part of the interface.
//
// FunctionKernel calls a C++ function, whose parameters are views and values, with the arguments of
// a launch. Kernel::from_function() uses it.

#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tern/buffer/view.hpp"
#include "tern/device/operations.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

/// A parameter of a kernel that is a typed C++ function.
struct DeclaredParameter {
  ArgumentType type = {};
  bool is_memory = false;
  bool is_written = false;
};

/// Calls a C++ function, whose parameters are views and values, with the arguments of a launch.
template <class Function>
struct FunctionKernel;
template <class... Parameters>
struct FunctionKernel<void (*)(Parameters...)> {
  using Pointer = void (*)(Parameters...);

  /// Describes a parameter, so that a launch can check its argument.
  template <class P>
  static constexpr DeclaredParameter declare() noexcept {
    using T = std::remove_cvref_t<P>;
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "the parameters of a kernel are views and values");
    static_assert(alignof(T) <= alignof(std::max_align_t),
                  "a value must fit the storage of a scalar argument");
    if constexpr (is_view<T>) {
      using Element = std::remove_reference_t<decltype(*std::declval<T>().data())>;
      return {ArgumentType::of<std::remove_const_t<Element>>(), true, !std::is_const_v<Element>};
    } else {
      return {ArgumentType::of<T>(), false, false};
    }
  }
  /// Returns an argument of a launch as the type of the parameter.
  template <class P>
  static std::remove_cvref_t<P> read(const KernelCall& call, std::size_t index) noexcept {
    using T = std::remove_cvref_t<P>;
    if constexpr (is_view<T>) {
      using Data = decltype(std::declval<T>().data());
      return T(call.argument<Data>(index),
               call.arguments[index].range_bytes / sizeof(typename T::value_type));
    } else {
      return call.argument<T>(index);
    }
  }
  static void run(const KernelCall& call) {
    [&]<std::size_t... index>(std::index_sequence<index...>) {
      reinterpret_cast<Pointer>(call.context)(read<Parameters>(call, index)...);
    }
    (std::index_sequence_for<Parameters...>());
  }
};
template <class... Parameters>
struct FunctionKernel<void (*)(Parameters...) noexcept> : FunctionKernel<void (*)(Parameters...)> {
};

}  // namespace tern
