// A DType names the type of one element of a buffer: its width, its name and its C++ type.
//
//   size_bytes(DType::f32)  // 4
//   dtype_of<double>()      // DType::f64
//   try_parse_dtype("f16")  // DType::f16
//
// A DType is a plain value of one byte. Tern copies and views elements and does not compute with
// them. f16, bf16 and the two fp8 formats are therefore storage types: any trivially copyable C++
// type of the right width can represent them, through a specialization of DTypeOf.
//
// - `byte`: untyped memory.
// - `boolean`: one byte that holds 0 or 1.
// - `index`: a 64-bit position.
// - `void_`: no element type. Its size is 0, so do not divide by it.

#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The list of all types, one line each: TERN_DTYPE(enumerator, name, bytes). The enum, the names
/// and the sizes below are generated from this list.
#define TERN_FOR_EACH_DTYPE(TERN_DTYPE)    \
  TERN_DTYPE(void_, "void", 0)             \
  TERN_DTYPE(byte, "byte", 1)              \
  TERN_DTYPE(boolean, "bool", 1)           \
  TERN_DTYPE(i8, "i8", 1)                  \
  TERN_DTYPE(i16, "i16", 2)                \
  TERN_DTYPE(i32, "i32", 4)                \
  TERN_DTYPE(i64, "i64", 8)                \
  TERN_DTYPE(u8, "u8", 1)                  \
  TERN_DTYPE(u16, "u16", 2)                \
  TERN_DTYPE(u32, "u32", 4)                \
  TERN_DTYPE(u64, "u64", 8)                \
  TERN_DTYPE(f8_e4m3fn, "f8_e4m3fn", 1)    \
  TERN_DTYPE(f8_e5m2, "f8_e5m2", 1)        \
  TERN_DTYPE(f16, "f16", 2)                \
  TERN_DTYPE(bf16, "bf16", 2)              \
  TERN_DTYPE(f32, "f32", 4)                \
  TERN_DTYPE(f64, "f64", 8)                \
  TERN_DTYPE(complex64, "complex64", 8)    \
  TERN_DTYPE(complex128, "complex128", 16) \
  TERN_DTYPE(index, "index", 8)

/// The types:
/// - `i8`, `i16`, `i32`, `i64` and `u8`, `u16`, `u32`, `u64` are integers with and without a sign;
/// - `f16`, `f32` and `f64` are IEEE floats, `bf16` is the upper half of an f32, `f8_e4m3fn` and
///   `f8_e5m2` have 4 and 5 bits of exponent;
/// - `complex64` and `complex128` are two floats, the real part first;
/// - `boolean` is one byte with 0 or 1, `byte` has no meaning, `index` is a std::size_t;
/// - `void_` is no type: a buffer of bytes.
enum class DType : std::uint8_t {
#define TERN_DTYPE(enumerator, name, bytes) enumerator,
  TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
};

/// Returns the number of bytes of one element. Returns 0 for `void_`.
[[nodiscard]] constexpr std::size_t size_bytes(DType dtype) noexcept {
  switch (dtype) {
#define TERN_DTYPE(enumerator, name, bytes) \
  case DType::enumerator:                   \
    return bytes;
    TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
  }
  return 0;
}

/// Returns the alignment that a typed view of such elements needs: the size of the widest scalar in
/// the type. A complex number is two scalars. Returns 1 for `void_`.
[[nodiscard]] constexpr std::size_t alignment_bytes(DType dtype) noexcept {
  const std::size_t size = size_bytes(dtype);
  if (size == 0) return 1;
  return dtype == DType::complex64 || dtype == DType::complex128 ? size / 2 : size;
}

/// Returns the name, such as "f32" or "bool".
[[nodiscard]] constexpr std::string_view name(DType dtype) noexcept {
  switch (dtype) {
#define TERN_DTYPE(enumerator, name, bytes) \
  case DType::enumerator:                   \
    return name;
    TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
  }
  return "unknown";
}

/// Returns the type with exactly this name. Accepts Tern's names and NumPy's names (float32, int64,
/// complex64, ...). Fails with invalid_argument for any other text.
[[nodiscard]] TERN_EXPORT Result<DType> try_parse_dtype(std::string_view text) noexcept;

/// Maps a C++ type to its DType. Specialize DTypeOf for your own half or fp8 types:
///
///   template <> struct tern::DTypeOf<my::half> { static constexpr DType value = DType::f16; };
template <class T>
struct DTypeOf {};

/// Satisfied if T, without const and volatile, has a DTypeOf, so that dtype_of<T>() compiles.
template <class T>
concept HasDType = requires {
  { DTypeOf<std::remove_cv_t<T>>::value } -> std::convertible_to<DType>;
};

/// Returns the DType of T. Does not compile if T is not trivially copyable or if its size differs
/// from the size of the DType.
template <class T>
[[nodiscard]] constexpr DType dtype_of() noexcept {
  using Plain = std::remove_cv_t<T>;
  constexpr DType value = DTypeOf<Plain>::value;
  static_assert(std::is_trivially_copyable_v<Plain>, "elements are moved as bytes");
  static_assert(sizeof(Plain) == size_bytes(value), "DTypeOf names a dtype of another width");
  return value;
}

template <>
struct DTypeOf<std::byte> {
  static constexpr DType value = DType::byte;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};

/// Satisfied by std::complex and by types like it: two floats or two doubles, returned by real()
/// and imag(). The concept tests for members instead of naming std::complex, so that this header
/// does not include <complex>.
template <class T>
concept ComplexLike = requires(const T& number) {
  requires std::same_as<typename T::value_type, float> ||
      std::same_as<typename T::value_type, double>;
  requires sizeof(T) == 2 * sizeof(typename T::value_type);
  { number.real() } -> std::same_as<typename T::value_type>;
  { number.imag() } -> std::same_as<typename T::value_type>;
};
template <ComplexLike T>
struct DTypeOf<T> {
  static constexpr DType value = sizeof(T) == 8 ? DType::complex64 : DType::complex128;
};

/// Maps an integer type by width and sign, so that long, long long and the fixed-width names agree.
/// char, wchar_t, char8_t, char16_t and char32_t are text rather than numbers and have no DType.
/// signed char and unsigned char are i8 and u8.
template <class T>
requires(std::is_integral_v<T>&& std::is_same_v<T, std::remove_cv_t<T>> &&
         !std::is_same_v<T, bool> && !std::is_same_v<T, char> && !std::is_same_v<T, wchar_t> &&
         !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
         !std::is_same_v<T, char32_t> && sizeof(T) <= 8) struct DTypeOf<T> {
  static constexpr DType value = [] {
    constexpr bool is_signed = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return is_signed ? DType::i8 : DType::u8;
      case 2:
        return is_signed ? DType::i16 : DType::u16;
      case 4:
        return is_signed ? DType::i32 : DType::u32;
      default:
        return is_signed ? DType::i64 : DType::u64;
    }
  }();
};

/// Returns a vector of `count` elements, filled by `copy(std::span<T>)`. Throws std::bad_alloc, and
/// whatever `copy` throws. For `bool`, the elements go through an array of bytes first, because
/// std::vector<bool> packs its elements into bits and has no span.
template <class T, class Copy>
[[nodiscard]] std::vector<T> make_vector(std::size_t count, Copy copy) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto elements = std::make_unique<bool[]>(count);
    copy(std::span<bool>(elements.get(), count));
    return std::vector<bool>(elements.get(), elements.get() + count);
  } else {
    std::vector<T> elements(count);
    copy(std::span<T>(elements));
    return elements;
  }
}

}  // namespace tern
