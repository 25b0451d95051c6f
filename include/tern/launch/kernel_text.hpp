// A KernelText is a kernel that is written once, and runs on every device.
//
//   TERN_ELEMENT_KERNEL(saxpy, (in<float> x, inout<float> y, float a), { y += a * x; })
//
//   const Kernel kernel = Kernel::from_text(device, saxpy);
//   kernel.launch(stream, elements(), x, y, 2.0f);
//
// The text declares what the kernel does to its arguments, so a launch does not repeat in(), out()
// or inout(). The host runs the macro's text as C++. OpenCL and CUDA devices compile a translation.
// The simulated device interprets the text, and finds wrong indices, races, and uses that the
// parameters do not declare, with the line of the text.
//
// There is one macro for each form of kernel:
// - TERN_ELEMENT_KERNEL: the body computes one element. The name of an array is its element.
// - TERN_KERNEL: the body is one thread, with its position `index`, and others as in CUDA.
// - TERN_BLOCK_KERNEL: the body is one block. It has shared arrays, and loops over its threads.
// - TERN_REDUCTION: a value of each element, and how two values are combined.
//
// Parameters are values of a C++ arithmetic type, or arrays: in<T> is read, out<T> is written
// completely, inout<T> is both, and part<T> is written in part and not read.
// docs/guide/portable-kernels.md describes the language, which is a part of C.
//
// A KernelText is a constant that refers to its text. A text that is not in a macro works too, and
// then host devices compile it with the compiler of the system:
//
//   constexpr KernelText twice{.text = "element twice(inout<float> x) { x *= 2; }"};

#pragma once

#include <cstdint>
#include <string_view>

#include "tern/detail/launch/kernel_forms.hpp"
#include "tern/device/operations.hpp"

namespace tern {

struct KernelText {
  /// One or more kernels in the language.
  std::string_view text;
  /// The name of the kernel. May be empty if the text has one kernel.
  std::string_view entry = {};
  /// The kernel as C++, and the second pass if the kernel is a reduction. Null: host devices
  /// compile the text.
  KernelBody body = nullptr;
  KernelBody combine = nullptr;
  /// Where the text is, for messages about one of its lines. Empty: lines are counted in the text.
  std::string_view file = {};
  std::uint32_t line = 0;
};

}  // namespace tern

/// Removes the parentheses around the parameters.
#define TERN_DETAIL_LIST(...) __VA_ARGS__

/// Declares an element kernel as a constant KernelText:
/// TERN_ELEMENT_KERNEL(name, (parameters), { body })
#define TERN_ELEMENT_KERNEL(name, parameters, ...)                      \
  struct tern_kernel_of_##name : ::tern::forms::ElementForm {           \
    static void body(TERN_DETAIL_LIST parameters) __VA_ARGS__           \
  };                                                                    \
  [[maybe_unused]] static constexpr ::tern::KernelText name{            \
      "element " #name #parameters " " #__VA_ARGS__,                    \
      #name,                                                            \
      &::tern::forms::ElementRunner<&tern_kernel_of_##name::body>::run, \
      nullptr,                                                          \
      __FILE__,                                                         \
      __LINE__};

/// Declares a kernel for one thread: TERN_KERNEL(name, (parameters), { body })
#define TERN_KERNEL(name, parameters, ...)                                   \
  struct tern_kernel_of_##name : ::tern::forms::ThreadForm {                 \
    static void body([[maybe_unused]] ::tern::forms::Coordinates index,      \
                     [[maybe_unused]] ::tern::forms::Coordinates thread,     \
                     [[maybe_unused]] ::tern::forms::Coordinates block,      \
                     [[maybe_unused]] ::tern::forms::Coordinates block_size, \
                     [[maybe_unused]] ::tern::forms::Coordinates grid_size,  \
                     TERN_DETAIL_LIST parameters) __VA_ARGS__                \
  };                                                                         \
  [[maybe_unused]] static constexpr ::tern::KernelText name{                 \
      "kernel " #name #parameters " " #__VA_ARGS__,                          \
      #name,                                                                 \
      &::tern::forms::ThreadRunner<&tern_kernel_of_##name::body>::run,       \
      nullptr,                                                               \
      __FILE__,                                                              \
      __LINE__};

/// Declares a kernel for one block: TERN_BLOCK_KERNEL(name, (parameters), { body }). Not inside of
/// a function.
#define TERN_BLOCK_KERNEL(name, parameters, ...)                                         \
  struct tern_kernel_of_##name : ::tern::forms::BlockForm {                              \
    template <class Threads>                                                             \
    static void body(Threads threads, [[maybe_unused]] ::tern::forms::Coordinates block, \
                     [[maybe_unused]] ::tern::forms::Coordinates block_size,             \
                     [[maybe_unused]] ::tern::forms::Coordinates grid_size,              \
                     TERN_DETAIL_LIST parameters) __VA_ARGS__                            \
  };                                                                                     \
  [[maybe_unused]] static constexpr ::tern::KernelText name{                             \
      "block " #name #parameters " " #__VA_ARGS__,                                       \
      #name,                                                                             \
      &::tern::forms::BlockRunner<                                                       \
          &tern_kernel_of_##name::template body<::tern::forms::ThreadsAlongX>,           \
          &tern_kernel_of_##name::template body<::tern::forms::Threads>>::run,           \
      nullptr,                                                                           \
      __FILE__,                                                                          \
      __LINE__};

/// Declares a reduction to one value: TERN_REDUCTION(name, type, (parameters), identity, map,
/// combine). `map` is the value of an element; `combine` joins the values `a` and `b`.
#define TERN_REDUCTION(name, type, parameters, identity_value, map_value, combine_value)        \
  struct tern_kernel_of_##name : ::tern::forms::ElementForm {                                   \
    static type identity() { return static_cast<type>(identity_value); }                        \
    static type map(TERN_DETAIL_LIST parameters) { return static_cast<type>(map_value); }       \
    static type combine(type a, type b) { return static_cast<type>(combine_value); }            \
  };                                                                                            \
  [[maybe_unused]] static constexpr ::tern::KernelText name{                                    \
      "reduction<" #type "> " #name #parameters " { identity = " #identity_value                \
      "; map = " #map_value "; combine = " #combine_value "; }",                                \
      #name,                                                                                    \
      &::tern::forms::ReductionRunner<tern_kernel_of_##name, &tern_kernel_of_##name::map>::run, \
      &::tern::forms::ReductionRunner<tern_kernel_of_##name,                                    \
                                      &tern_kernel_of_##name::map>::combine,                    \
      __FILE__,                                                                                 \
      __LINE__};
