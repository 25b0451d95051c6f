// Not part of the interface.
//
// What the language of portable kernels means in C++: the macros of launch/kernel_text.hpp declare
// a struct that derives from one of the forms below, so that the names of the language (in, shared,
// index, atomic_add, ...) are known inside the body of the kernel and nowhere else.
//
// The body is an ordinary function. A runner calls it for the blocks of one KernelCall. An array
// parameter takes two arguments of the call: the address and the number of elements.

#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tern/device/operations.hpp"

namespace tern::forms {

/// A position or a size along three axes.
struct Coordinates {
  std::size_t x = 0, y = 0, z = 0;
};

/// An array parameter: its first element and its size.
template <class T>
class Elements {
 public:
  using value_type = std::remove_const_t<T>;
  Elements(T* first, std::size_t count) noexcept : first_(first), count_(count) {}
  T& operator[](std::size_t index) const noexcept { return first_[index]; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  T* first_;
  std::size_t count_;
};

/// An array that the threads of one block share. One host thread runs a block.
template <class T, std::size_t count>
class Shared {
 public:
  using value_type = T;
  T& operator[](std::size_t index) noexcept { return elements_[index]; }

 private:
  alignas(64) std::array<T, count> elements_;
};

/// Functions of the language that C++ has under other names, or for other types.
struct Functions {
  template <class T>
  static T sqrt(T x) noexcept {
    return std::sqrt(x);
  }
  template <class T>
  static T rsqrt(T x) noexcept {
    return T(1) / std::sqrt(x);
  }
  template <class T>
  static T fabs(T x) noexcept {
    return std::fabs(x);
  }
  template <class T>
  static T exp(T x) noexcept {
    return std::exp(x);
  }
  template <class T>
  static T exp2(T x) noexcept {
    return std::exp2(x);
  }
  template <class T>
  static T log(T x) noexcept {
    return std::log(x);
  }
  template <class T>
  static T log2(T x) noexcept {
    return std::log2(x);
  }
  template <class T>
  static T sin(T x) noexcept {
    return std::sin(x);
  }
  template <class T>
  static T cos(T x) noexcept {
    return std::cos(x);
  }
  template <class T>
  static T tan(T x) noexcept {
    return std::tan(x);
  }
  template <class T>
  static T tanh(T x) noexcept {
    return std::tanh(x);
  }
  template <class T>
  static T floor(T x) noexcept {
    return std::floor(x);
  }
  template <class T>
  static T ceil(T x) noexcept {
    return std::ceil(x);
  }
  template <class T>
  static T round(T x) noexcept {
    return std::round(x);
  }
  template <class T, class U>
  static auto pow(T x, U y) noexcept {
    using Common = std::common_type_t<T, U>;
    return std::pow(Common(x), Common(y));
  }
  template <class T, class U>
  static auto fmod(T x, U y) noexcept {
    using Common = std::common_type_t<T, U>;
    return std::fmod(Common(x), Common(y));
  }
  template <class T, class U, class V>
  static auto fma(T x, U y, V z) noexcept {
    using Common = std::common_type_t<T, U, V>;
    return std::fma(Common(x), Common(y), Common(z));
  }
  template <class T>
  static auto abs(T x) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fabs(x);
    } else {
      using Promoted = decltype(+x);
      using Bits = std::make_unsigned_t<Promoted>;
      // Of the smallest integer: itself, as on devices.
      return x < 0 ? Promoted(Bits(0) - Bits(Promoted(x))) : Promoted(x);
    }
  }
  template <class T, class U>
  static auto min(T x, U y) noexcept {
    using Common = std::common_type_t<T, U>;
    return Common(y) < Common(x) ? Common(y) : Common(x);
  }
  template <class T, class U>
  static auto max(T x, U y) noexcept {
    using Common = std::common_type_t<T, U>;
    return Common(x) < Common(y) ? Common(y) : Common(x);
  }

  template <class T>
  static std::size_t size(const Elements<T>& array) noexcept {
    return array.size();
  }

  template <class T, std::size_t count>
  static std::size_t size(const Shared<T, count>&) noexcept {
    return count;
  }

  template <class Array>
  using Value = typename std::remove_reference_t<Array>::value_type;

  template <class Array>
  static auto atomic_add(Array&& array, std::size_t index, Value<Array> value) noexcept {
    return std::atomic_ref(array[index]).fetch_add(value, std::memory_order_relaxed);
  }
  template <class Array>
  static auto atomic_exchange(Array&& array, std::size_t index, Value<Array> value) noexcept {
    return std::atomic_ref(array[index]).exchange(value, std::memory_order_relaxed);
  }
  template <class Array>
  static auto atomic_compare_exchange(Array&& array, std::size_t index, Value<Array> expected,
                                      Value<Array> value) noexcept {
    std::atomic_ref(array[index])
        .compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
  }
  template <class Array>
  static auto atomic_min(Array&& array, std::size_t index, Value<Array> value) noexcept {
    return replace_while(array[index], value, [](auto old, auto other) { return other < old; });
  }
  template <class Array>
  static auto atomic_max(Array&& array, std::size_t index, Value<Array> value) noexcept {
    return replace_while(array[index], value, [](auto old, auto other) { return old < other; });
  }

 private:
  template <class T, class Condition>
  static T replace_while(T& element, T value, Condition condition) noexcept {
    const std::atomic_ref<T> atomic(element);
    T old = atomic.load(std::memory_order_relaxed);
    while (condition(old, value) &&
           !atomic.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
    }
    return old;
  }
};

/// In the body of an element kernel, the name of an array is its element.
struct ElementForm : Functions {
  template <class T>
  using in = const T&;
  template <class T>
  using out = T&;
  template <class T>
  using inout = T&;
  template <class T>
  using part = T&;
};

/// In the bodies of other kernels, the name of an array is the array.
struct ArrayForm : Functions {
  template <class T>
  using in = Elements<const T>;
  template <class T>
  using out = Elements<T>;
  template <class T>
  using inout = Elements<T>;
  template <class T>
  using part = Elements<T>;
};
struct ThreadForm : ArrayForm {};
struct BlockForm : ArrayForm {
  template <class T, std::size_t count>
  using shared = Shared<T, count>;
};

/// The number of arguments of a call that a parameter takes.
template <class P>
inline constexpr std::size_t slots = 1;
template <class T>
inline constexpr std::size_t slots<Elements<T>> = 2;
template <class T>
inline constexpr std::size_t slots<T&> = 2;

/// Returns the number of the first argument of each parameter.
template <class... P>
constexpr auto first_slots() noexcept {
  std::array<std::size_t, sizeof...(P) + 1> firsts = {};
  std::size_t next = 0, parameter = 0;
  ((firsts[parameter++] = next, next += slots<P>), ...);
  firsts[parameter] = next;
  return firsts;
}

/// Reads the value of a parameter from the arguments of a call.
template <class P>
struct Reader {
  static P read(const KernelCall& call, std::size_t slot) noexcept {
    return call.argument<P>(slot);
  }
};
template <class T>
struct Reader<Elements<T>> {
  static Elements<T> read(const KernelCall& call, std::size_t slot) noexcept {
    return {call.argument<T*>(slot),
            static_cast<std::size_t>(call.argument<std::uint64_t>(slot + 1))};
  }
};

/// Calls `body(block)` for each block of the call.
template <class Body>
void for_each_block(const KernelCall& call, Body body) {
  const std::size_t wide = call.size.grid[0], high = call.size.grid[1];
  Coordinates block{call.first_block % wide, call.first_block / wide % high,
                    call.first_block / wide / high};
  for (std::uint64_t left = call.block_count; left > 0; --left) {
    body(block);
    if (++block.x < wide) continue;
    block.x = 0;
    if (++block.y < high) continue;
    block.y = 0;
    ++block.z;
  }
}

inline Coordinates coordinates(const std::uint32_t (&extent)[3]) noexcept {
  return {extent[0], extent[1], extent[2]};
}
inline Coordinates coordinates(const std::array<std::uint32_t, 3>& extent) noexcept {
  return {extent[0], extent[1], extent[2]};
}

// --- Runners: each has run(), a KernelBody

template <auto body>
struct ThreadRunner;
template <class... P,
          void (*body)(Coordinates, Coordinates, Coordinates, Coordinates, Coordinates, P...)>
struct ThreadRunner<body> {
  static void run(const KernelCall& call) {
    constexpr auto firsts = first_slots<P...>();
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      run(call, Reader<P>::read(call, firsts[i])...);
    }
    (std::index_sequence_for<P...>());
  }

 private:
  static void run(const KernelCall& call, P... parameters) {
    const Coordinates grid = coordinates(call.size.grid), size = coordinates(call.size.block);
    for_each_block(call, [&](const Coordinates& block) {
      for (std::size_t z = 0; z < size.z; ++z) {
        for (std::size_t y = 0; y < size.y; ++y) {
          for (std::size_t x = 0; x < size.x; ++x) {
            body({block.x * size.x + x, block.y * size.y + y, block.z * size.z + z}, {x, y, z},
                 block, size, grid, parameters...);
          }
        }
      }
    });
  }
};

/// The threads of a block, as the range of a for loop. A block along one axis has a type of its
/// own, because only its loops are vectorised.
struct ThreadsAlongX {
  struct Iterator {
    std::size_t x;
    Coordinates operator*() const noexcept { return {x, 0, 0}; }
    Iterator& operator++() noexcept { return ++x, *this; }
    bool operator!=(const Iterator& other) const noexcept { return x < other.x; }
  };
  [[nodiscard]] Iterator begin() const noexcept { return {0}; }
  [[nodiscard]] Iterator end() const noexcept { return {wide}; }
  std::size_t wide;
};
struct Threads {
  struct Iterator {
    Coordinates at;
    const Coordinates* size;
    Coordinates operator*() const noexcept { return at; }
    Iterator& operator++() noexcept {
      if (++at.x < size->x) return *this;
      at.x = 0;
      if (++at.y < size->y) return *this;
      at.y = 0;
      ++at.z;
      return *this;
    }
    bool operator!=(const Iterator& other) const noexcept { return at.z != other.at.z; }
  };
  [[nodiscard]] Iterator begin() const noexcept { return {{}, &size}; }
  [[nodiscard]] Iterator end() const noexcept { return {{0, 0, size.z}, &size}; }
  Coordinates size;
};

template <auto body_along_x, auto body>
struct BlockRunner;
template <class... P, auto body_along_x,
          void (*body)(Threads, Coordinates, Coordinates, Coordinates, P...)>
struct BlockRunner<body_along_x, body> {
  static void run(const KernelCall& call) {
    constexpr auto firsts = first_slots<P...>();
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      run(call, Reader<P>::read(call, firsts[i])...);
    }
    (std::index_sequence_for<P...>());
  }

 private:
  static void run(const KernelCall& call, P... parameters) {
    const Coordinates grid = coordinates(call.size.grid), size = coordinates(call.size.block);
    const bool is_along_x = size.y == 1 && size.z == 1;
    for_each_block(call, [&](const Coordinates& block) {
      if (is_along_x) {
        body_along_x(ThreadsAlongX{size.x}, block, size, grid, parameters...);
      } else {
        body(Threads{size}, block, size, grid, parameters...);
      }
    });
  }
};

/// The elements that the blocks of a call have, of `count`.
struct ElementRange {
  ElementRange(const KernelCall& call, std::uint64_t count) noexcept {
    const std::uint64_t block =
        std::uint64_t{call.size.block[0]} * call.size.block[1] * call.size.block[2];
    first = call.first_block * block;
    last = (call.first_block + call.block_count) * block;
    if (first > count) first = count;
    if (last > count) last = count;
  }
  std::size_t first, last;
};

/// Returns the address of the elements of an array, or the value of another parameter.
template <class P>
auto address_or_value(const KernelCall& call, std::size_t slot) noexcept {
  if constexpr (std::is_reference_v<P>) {
    return call.argument<std::remove_reference_t<P>*>(slot);
  } else {
    return call.argument<P>(slot);
  }
}
template <class T>
T& at(T* array, std::size_t index) noexcept {
  return array[index];
}
template <class T>
requires(!std::is_pointer_v<T>) T at(T value, std::size_t)
noexcept { return value; }

/// Returns the number of elements of the first array.
template <class... P>
std::uint64_t element_count(const KernelCall& call) noexcept {
  constexpr auto firsts = first_slots<P...>();
  std::uint64_t count = 0;
  bool is_found = false;
  std::size_t parameter = 0;
  const auto look = [&](bool is_array) {
    if (is_array && !is_found) {
      count = call.argument<std::uint64_t>(firsts[parameter] + 1);
      is_found = true;
    }
    ++parameter;
  };
  (look(std::is_reference_v<P>), ...);
  return count;
}

template <auto body>
struct ElementRunner;
template <class... P, void (*body)(P...)>
struct ElementRunner<body> {
  static_assert((std::is_reference_v<P> || ...), "an element kernel has at least one array");

  static void run(const KernelCall& call) {
    constexpr auto firsts = first_slots<P...>();
    const ElementRange range(call, element_count<P...>(call));
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      run(range, address_or_value<P>(call, firsts[i])...);
    }
    (std::index_sequence_for<P...>());
  }

 private:
  template <class... Argument>
  static void run(ElementRange range, Argument... arguments) {
    // The elements of a correct kernel do not depend on each other.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (std::size_t i = range.first; i < range.last; ++i) body(at(arguments, i)...);
  }
};

/// The sizes of a reduction are the same on every device, and so is the order of its operations, so
/// that all devices compute the same bits.
inline constexpr std::size_t reduction_lanes = 256;
inline constexpr std::size_t reduction_chunk = 4096;

/// Reduces one chunk: `map(i)` is the value of element i.
template <class T, class Map, class Combine>
T reduce_chunk(std::size_t first, std::size_t last, T identity, Map map, Combine combine) {
  T lanes[reduction_lanes];
  for (T& lane : lanes) lane = identity;
  std::size_t i = first;
  for (; i + reduction_lanes <= last; i += reduction_lanes) {
    for (std::size_t t = 0; t < reduction_lanes; ++t) lanes[t] = combine(lanes[t], map(i + t));
  }
  for (std::size_t t = 0; i < last; ++i, ++t) lanes[t] = combine(lanes[t], map(i));
  for (std::size_t half = reduction_lanes / 2; half > 0; half /= 2) {
    for (std::size_t t = 0; t < half; ++t) lanes[t] = combine(lanes[t], lanes[t + half]);
  }
  return lanes[0];
}

/// `Reduction` has map(), combine() and identity().
template <class Reduction, auto map>
struct ReductionRunner;
template <class Reduction, class T, class... P, T (*map)(P...)>
struct ReductionRunner<Reduction, map> {
  /// The last argument is the address of the results of the chunks.
  static void run(const KernelCall& call) {
    constexpr auto firsts = first_slots<P...>();
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      run(call, element_count<P...>(call), call.argument<T*>(firsts[sizeof...(P)]),
          address_or_value<P>(call, firsts[i])...);
    }
    (std::index_sequence_for<P...>());
  }
  /// Reduces the results of run(): an address, a count, and the address of the results.
  static void combine(const KernelCall& call) {
    const T* const values = call.argument<const T*>(0);
    reduce(call, call.argument<std::uint64_t>(1), call.argument<T*>(2),
           [values](std::size_t i) { return values[i]; });
  }

 private:
  template <class... Argument>
  static void run(const KernelCall& call, std::uint64_t count, T* results, Argument... arguments) {
    reduce(call, count, results,
           [arguments...](std::size_t i) { return map(at(arguments, i)...); });
  }
  template <class Value>
  static void reduce(const KernelCall& call, std::uint64_t count, T* results, Value value) {
    for (std::uint64_t k = call.first_block; k < call.first_block + call.block_count; ++k) {
      const std::uint64_t first = k * reduction_chunk;
      const std::uint64_t last = first + reduction_chunk < count ? first + reduction_chunk : count;
      results[k] = reduce_chunk(first, last, Reduction::identity(), value, Reduction::combine);
    }
  }
};

}  // namespace tern::forms
