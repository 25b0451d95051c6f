// The arithmetic of kernels for one type, as the Interpreter computes it. Where C++ has undefined
// behaviour, the functions have a defined result: integers wrap, and the smallest integer divided
// by -1 is itself. Callers must check for zero divisors, counts of shifts and ranges of conversions
// if they want to report them.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tern::language {

/// Functions of two numbers of one type.
struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a + b;
    else
      return static_cast<T>(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a - b;
    else
      return static_cast<T>(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b));
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a * b;
    else
      return static_cast<T>(std::make_unsigned_t<T>(a) * std::make_unsigned_t<T>(b));
  }
};
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a / b;
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return Subtract()(T{0}, a);
      }
      return a / b;
    }
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return a % b;
  }
};
/// As std::min and std::max: if a value is not a number, the result is `a`.
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

struct Negate {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return Subtract()(T{0}, a);
  }
};
struct Abs {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(a);
    else
      return a < T{0} ? Negate()(a) : a;
  }
};

/// The count is the number of bits modulo the width, as the translations of kernels compute it.
template <class T>
[[nodiscard]] T shifted_left(T a, std::uint64_t count) noexcept {
  using Unsigned = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<Unsigned>(a) << (count % (8 * sizeof(T))));
}
template <class T>
[[nodiscard]] T shifted_right(T a, std::uint64_t count) noexcept {
  return static_cast<T>(a >> (count % (8 * sizeof(T))));
}

/// Whether the integer type `To` has the value without its fraction.
template <class To>
[[nodiscard]] bool fits(double value) noexcept {
  const double whole = std::trunc(value);
  // 2^digits is a double for every type; the largest integer of 64 bits is not.
  return whole >= static_cast<double>(std::numeric_limits<To>::min()) &&
         whole < std::ldexp(1.0, std::numeric_limits<To>::digits);
}
/// The nearest value of `To`; 0 for a NaN.
template <class To>
[[nodiscard]] To saturated(double value) noexcept {
  if (std::isnan(value)) return 0;
  if (fits<To>(value)) return static_cast<To>(value);
  return value < 0 ? std::numeric_limits<To>::min() : std::numeric_limits<To>::max();
}

/// A value in a register of 64 bits (kernel_code.hpp).
template <class T>
[[nodiscard]] constexpr std::uint64_t to_register(T value) noexcept {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<std::uint32_t>(value);
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<std::uint64_t>(value);
  else if constexpr (std::is_signed_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<std::uint64_t>(value);
  }
}
template <class T>
[[nodiscard]] constexpr T from_register(std::uint64_t bits) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<double>(bits);
  } else {
    return static_cast<T>(bits);
  }
}

}  // namespace tern::language
