// The words in which the three dialects differ: names of types and functions, literals, and the
// small functions that a translated kernel needs because its dialect lacks them or names them
// differently.
//
// All dialects use one set of names for types (tern_u64 and others), which prologue() defines, so
// that the translation of expressions and statements is nearly the same for all of them. Names that
// begin with `tern_` cannot collide with names of the user, which body_writer.hpp changes.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "language/syntax.hpp"

namespace tern::language {

/// OpenCL C 1.2; CUDA C++ that needs no header, for NVRTC; C++17 that needs no header.
enum class Dialect : std::uint8_t { opencl, cuda, cpp };

/// Where an array is. It is part of every type of a pointer in OpenCL C.
enum class Space : std::uint8_t { local, global, shared };

[[nodiscard]] std::string_view type_name(Scalar type) noexcept;
/// The type of an element in memory, and of an argument. Booleans are bytes there: OpenCL C does
/// not allow them as arguments of kernels.
[[nodiscard]] std::string_view stored_type_name(Scalar type) noexcept;
/// stored_type_name() as an argument of an entry has it. An implementation of OpenCL reports these
/// names to the program that launches the kernel, so they are those of OpenCL C there.
[[nodiscard]] std::string_view argument_type_name(Dialect dialect, Scalar type) noexcept;
/// A short name of a type for the names of helpers: f32.
[[nodiscard]] std::string_view short_name(Scalar type) noexcept;
/// The name of the space before the type of a pointer, with a blank after it. Empty except in
/// OpenCL C.
[[nodiscard]] std::string_view space_word(Dialect dialect, Space space) noexcept;

/// A literal that can stand wherever an operand can. Real literals have the fewest digits that read
/// back as the same value.
[[nodiscard]] std::string integer_literal(Dialect dialect, Scalar type, std::uint64_t bits);
[[nodiscard]] std::string real_literal(Scalar type, double value);

/// Whether a call is one of function_helper(), and not of function_name().
[[nodiscard]] bool needs_helper(Dialect dialect, Function function) noexcept;
/// The name of a function on real numbers that the dialect has.
[[nodiscard]] std::string function_name(Dialect dialect, Function function, Scalar type);

/// A function that a translated kernel defines.
struct Helper {
  std::string name;
  std::string text;
};
/// min, max and abs are helpers, because the built-in functions of the dialects differ in what they
/// return for a NaN and for the smallest integer. C++ has no rsqrt.
[[nodiscard]] Helper function_helper(Dialect dialect, Function function, Scalar type);
/// Its first parameter is the address of the element.
[[nodiscard]] Helper atomic_helper(Dialect dialect, Atomic atomic, Scalar type, Space space);
/// x++ and x-- of a real number, which OpenCL C does not have.
[[nodiscard]] Helper real_increment_helper(Dialect dialect, Operator op, Scalar type, Space space);

/// What stands before the result type of a function that is not an entry.
[[nodiscard]] std::string_view function_prefix(Dialect dialect) noexcept;

/// What stands at the top of a translated kernel: the types, and the extensions it needs.
[[nodiscard]] std::string prologue(Dialect dialect, bool uses_float64, bool uses_atomics64);

}  // namespace tern::language
