#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "language/arithmetic.hpp"
#include "language/kernel_run.hpp"
#include "language/names.hpp"

namespace tern::language {
namespace {

template <class T>
[[nodiscard]] T get(std::uint64_t* r, std::uint32_t from) {
  return from_register<T>(r[from]);
}
template <class T>
void set(std::uint64_t* r, std::uint32_t to, T value) {
  r[to] = to_register(value);
}
template <class T, class F>
void unary(std::uint64_t* r, const Instruction& i, F function) {
  set<T>(r, i.to, function(get<T>(r, i.a)));
}
template <class T, class F>
void binary(std::uint64_t* r, const Instruction& i, F function) {
  set<T>(r, i.to, function(get<T>(r, i.a), get<T>(r, i.b)));
}
template <class T, class F>
void compare(std::uint64_t* r, const Instruction& i, F function) {
  r[i.to] = function(get<T>(r, i.a), get<T>(r, i.b)) ? 1 : 0;
}

}  // namespace

template <class T, class F>
void KernelRun::division(Registers r, const Instruction& i, F function) {
  if (get<T>(r, i.b) == 0) [[unlikely]]
    note(Mistake::Kind::divide_by_zero, i.place);
  binary<T>(r, i, function);
}
template <class T>
std::uint64_t KernelRun::shift_count(Registers r, const Instruction& i) {
  const std::uint64_t count = r[i.b];
  if (count >= 8 * sizeof(T)) [[unlikely]] {
    if (Mistake* mistake = note(Mistake::Kind::shift_too_far, i.place)) {
      // A negative count is a huge one in a register.
      mistake->value = fmt::format("{}", static_cast<std::int64_t>(count));
      mistake->type = type_text(code_.places[i.place].type);
    }
  }
  return count;
}
template <class To, class From>
void KernelRun::integer_of(Registers r, const Instruction& i, From from) {
  const auto value = static_cast<double>(from);
  if (!fits<To>(value)) [[unlikely]] {
    if (Mistake* mistake = note(Mistake::Kind::conversion, i.place)) {
      mistake->value = fmt::format("{}", from);
      mistake->type = type_text(code_.places[i.place].type);
    }
  }
  set<To>(r, i.to, saturated<To>(value));
}
template <class From>
void KernelRun::integer_of(Registers r, const Instruction& i) {
  const From value = get<From>(r, i.a);
  switch (static_cast<Scalar>(i.detail)) {
    case Scalar::i8:
      return integer_of<std::int8_t>(r, i, value);
    case Scalar::u8:
      return integer_of<std::uint8_t>(r, i, value);
    case Scalar::i16:
      return integer_of<std::int16_t>(r, i, value);
    case Scalar::u16:
      return integer_of<std::uint16_t>(r, i, value);
    case Scalar::i32:
      return integer_of<std::int32_t>(r, i, value);
    case Scalar::u32:
      return integer_of<std::uint32_t>(r, i, value);
    case Scalar::i64:
      return integer_of<std::int64_t>(r, i, value);
    default:
      return integer_of<std::uint64_t>(r, i, value);
  }
}

template <class T>
void KernelRun::load(Registers r, const Instruction& i) {
  Array& array = arrays_[i.c];
  const std::uint64_t index = r[i.a];
  if (index >= array.elements) [[unlikely]] {
    note_access(Mistake::Kind::out_of_range, i, index);
    r[i.to] = 0;
    return;
  }
  if (array.stamps.write != nullptr) {
    const AccessStamp found = table_.read(array.stamps, index, i.place);
    if (found != 0) [[unlikely]] {
      note_race(i, index, found);
    } else if (array.begins_unwritten) {
      check_written(array, i, index);
    }
  }
  T value;
  std::memcpy(&value, array.address + index * sizeof(T), sizeof(T));
  set<T>(r, i.to, value);
}
template <class T>
void KernelRun::store(Registers r, const Instruction& i) {
  Array& array = arrays_[i.c];
  const std::uint64_t index = r[i.a];
  if (!may_write(array, i, index)) [[unlikely]]
    return;
  if (array.stamps.write != nullptr) {
    const AccessStamp found = table_.write(array.stamps, index, i.place);
    if (found != 0) [[unlikely]]
      note_race(i, index, found);
  }
  const T value = get<T>(r, i.b);
  std::memcpy(array.address + index * sizeof(T), &value, sizeof(T));
}
template <class T>
void KernelRun::atomic(Registers r, const Instruction& i) {
  Array& array = arrays_[i.c];
  const std::uint64_t index = r[i.a];
  const T value = get<T>(r, i.b);
  const T second =
      static_cast<Atomic>(i.detail) == Atomic::compare_exchange ? get<T>(r, i.b + 1) : T{};
  r[i.to] = 0;
  if (!may_write(array, i, index)) [[unlikely]]
    return;
  if (array.stamps.write != nullptr) {
    // First, because the access itself writes the element.
    if (array.begins_unwritten) check_written(array, i, index);
    const AccessStamp found = table_.atomic(array.stamps, index, i.place);
    if (found != 0) [[unlikely]]
      note_race(i, index, found);
  }
  std::byte* const at = array.address + index * sizeof(T);
  T old;
  std::memcpy(&old, at, sizeof(T));
  T made = old;
  switch (static_cast<Atomic>(i.detail)) {
    case Atomic::add:
      made = Add()(old, value);
      break;
    case Atomic::min:
      made = Min()(old, value);
      break;
    case Atomic::max:
      made = Max()(old, value);
      break;
    case Atomic::exchange:
      made = value;
      break;
    case Atomic::compare_exchange:
      made = old == value ? second : old;
      break;
  }
  std::memcpy(at, &made, sizeof(T));
  set<T>(r, i.to, old);
}

/// The cases of an operation, with a statement in which N is the type.
#define TERN_CASE(name, type, ...) \
  case Code::name: {               \
    using N = type;                \
    __VA_ARGS__;                   \
    break;                         \
  }
#define TERN_INTEGER_CASES(name, ...)               \
  TERN_CASE(name##_i32, std::int32_t, __VA_ARGS__)  \
  TERN_CASE(name##_u32, std::uint32_t, __VA_ARGS__) \
  TERN_CASE(name##_i64, std::int64_t, __VA_ARGS__)  \
  TERN_CASE(name##_u64, std::uint64_t, __VA_ARGS__)
#define TERN_REAL_CASES(name, ...)          \
  TERN_CASE(name##_f32, float, __VA_ARGS__) \
  TERN_CASE(name##_f64, double, __VA_ARGS__)
#define TERN_NUMBER_CASES(name, ...)    \
  TERN_INTEGER_CASES(name, __VA_ARGS__) \
  TERN_REAL_CASES(name, __VA_ARGS__)
/// A function of std:: with one operand.
#define TERN_FUNCTION_CASES(name) \
  TERN_REAL_CASES(name, unary<N>(r, i, [](N a) { return std::name(a); }))

void KernelRun::execute(std::uint32_t begin) {
  const Instruction* const first = code_.instructions.data();
  const Instruction* at = first + begin;
  std::uint64_t* const r = registers_.data();
  std::uint64_t steps_left = options_.max_steps;
  const auto jump_back = [&](const Instruction& i) {
    const auto length = static_cast<std::uint64_t>(&i - first) - i.to + 1;
    if (length > steps_left) [[unlikely]]
      return stop_as_endless(i.place, options_.max_steps);
    steps_left -= length;
    at = first + i.to;
  };
  while (true) {
    const Instruction& i = *at++;
    switch (i.code) {
      case Code::end:
        return;
      case Code::jump:
        at = first + i.to;
        break;
      case Code::jump_if_false:
        if (r[i.a] == 0) at = first + i.to;
        break;
      case Code::jump_if_true:
        if (r[i.a] != 0) at = first + i.to;
        break;
      case Code::jump_back:
        jump_back(i);
        if (is_stopped_) return;
        break;
      case Code::jump_back_if_true:
        if (r[i.a] == 0) break;
        jump_back(i);
        if (is_stopped_) return;
        break;
      case Code::threads:
        run_threads(static_cast<std::uint32_t>(at - first), i.place);
        if (is_stopped_) return;
        at = first + i.to;
        break;
      case Code::check_value:
        if (r[i.a] == 0) [[unlikely]] {
          if (Mistake* mistake = note(Mistake::Kind::uninitialised_read, i.place)) {
            mistake->name = program_.variables[code_.places[i.place].variable].name;
          }
        }
        break;

      case Code::move:
        r[i.to] = r[i.a];
        break;
        TERN_NUMBER_CASES(add, binary<N>(r, i, Add()))
        TERN_NUMBER_CASES(subtract, binary<N>(r, i, Subtract()))
        TERN_NUMBER_CASES(multiply, binary<N>(r, i, Multiply()))
        TERN_INTEGER_CASES(divide, division<N>(r, i, Divide()))
        TERN_REAL_CASES(divide, binary<N>(r, i, Divide()))
        TERN_INTEGER_CASES(remainder, division<N>(r, i, Remainder()))
        TERN_INTEGER_CASES(shift_left,
                           set(r, i.to, shifted_left(get<N>(r, i.a), shift_count<N>(r, i))))
        TERN_INTEGER_CASES(shift_right,
                           set(r, i.to, shifted_right(get<N>(r, i.a), shift_count<N>(r, i))))
      case Code::bit_and:
        r[i.to] = r[i.a] & r[i.b];
        break;
      case Code::bit_or:
        r[i.to] = r[i.a] | r[i.b];
        break;
      case Code::bit_xor:
        r[i.to] = r[i.a] ^ r[i.b];
        break;
      case Code::bit_complement:
        r[i.to] = ~r[i.a];
        break;
      case Code::equal_bits:
        r[i.to] = r[i.a] == r[i.b];
        break;
      case Code::not_equal_bits:
        r[i.to] = r[i.a] != r[i.b];
        break;
        TERN_REAL_CASES(equal, compare<N>(r, i, std::equal_to<N>()))
        TERN_REAL_CASES(not_equal, compare<N>(r, i, std::not_equal_to<N>()))
        TERN_NUMBER_CASES(less, compare<N>(r, i, std::less<N>()))
        TERN_NUMBER_CASES(less_equal, compare<N>(r, i, std::less_equal<N>()))
        TERN_NUMBER_CASES(negate, unary<N>(r, i, Negate()))
        TERN_NUMBER_CASES(min, binary<N>(r, i, Min()))
        TERN_NUMBER_CASES(max, binary<N>(r, i, Max()))
        TERN_NUMBER_CASES(abs, unary<N>(r, i, Abs()))
      case Code::logical_not:
        r[i.to] = r[i.a] == 0;
        break;

      case Code::low_i8:
        set(r, i.to, get<std::int8_t>(r, i.a));
        break;
      case Code::low_u8:
        set(r, i.to, get<std::uint8_t>(r, i.a));
        break;
      case Code::low_i16:
        set(r, i.to, get<std::int16_t>(r, i.a));
        break;
      case Code::low_u16:
        set(r, i.to, get<std::uint16_t>(r, i.a));
        break;
      case Code::low_i32:
        set(r, i.to, get<std::int32_t>(r, i.a));
        break;
      case Code::low_u32:
        set(r, i.to, get<std::uint32_t>(r, i.a));
        break;
      case Code::boolean_of_integer:
        r[i.to] = r[i.a] != 0;
        break;
        TERN_REAL_CASES(boolean_of, r[i.to] = get<N>(r, i.a) != N{0})
      case Code::f32_of_signed:
        set(r, i.to, static_cast<float>(get<std::int64_t>(r, i.a)));
        break;
      case Code::f32_of_unsigned:
        set(r, i.to, static_cast<float>(r[i.a]));
        break;
      case Code::f64_of_signed:
        set(r, i.to, static_cast<double>(get<std::int64_t>(r, i.a)));
        break;
      case Code::f64_of_unsigned:
        set(r, i.to, static_cast<double>(r[i.a]));
        break;
      case Code::f32_of_f64:
        set(r, i.to, static_cast<float>(get<double>(r, i.a)));
        break;
      case Code::f64_of_f32:
        set(r, i.to, static_cast<double>(get<float>(r, i.a)));
        break;
      case Code::integer_of_f32:
        integer_of<float>(r, i);
        break;
      case Code::integer_of_f64:
        integer_of<double>(r, i);
        break;

        TERN_FUNCTION_CASES(sqrt)
        TERN_FUNCTION_CASES(exp)
        TERN_FUNCTION_CASES(exp2)
        TERN_FUNCTION_CASES(log)
        TERN_FUNCTION_CASES(log2)
        TERN_FUNCTION_CASES(sin)
        TERN_FUNCTION_CASES(cos)
        TERN_FUNCTION_CASES(tan)
        TERN_FUNCTION_CASES(tanh)
        TERN_FUNCTION_CASES(floor)
        TERN_FUNCTION_CASES(ceil)
        TERN_FUNCTION_CASES(round)
        TERN_REAL_CASES(rsqrt, set(r, i.to, N{1} / std::sqrt(get<N>(r, i.a))))
        TERN_REAL_CASES(pow, set(r, i.to, std::pow(get<N>(r, i.a), get<N>(r, i.b))))
        TERN_REAL_CASES(fmod, set(r, i.to, std::fmod(get<N>(r, i.a), get<N>(r, i.b))))
        TERN_REAL_CASES(fma, set(r, i.to, std::fma(get<N>(r, i.a), get<N>(r, i.b), get<N>(r, i.c))))

      case Code::load_boolean:
        load<std::uint8_t>(r, i);
        r[i.to] = r[i.to] != 0;
        break;
      case Code::load_i8:
        load<std::int8_t>(r, i);
        break;
      case Code::load_u8:
        load<std::uint8_t>(r, i);
        break;
      case Code::load_i16:
        load<std::int16_t>(r, i);
        break;
      case Code::load_u16:
        load<std::uint16_t>(r, i);
        break;
        TERN_NUMBER_CASES(load, load<N>(r, i))
      case Code::store_boolean:
      case Code::store_i8:
      case Code::store_u8:
        store<std::uint8_t>(r, i);
        break;
      case Code::store_i16:
      case Code::store_u16:
        store<std::uint16_t>(r, i);
        break;
        TERN_NUMBER_CASES(store, store<N>(r, i))
        TERN_INTEGER_CASES(atomic, atomic<N>(r, i))
      case Code::atomic_f32:
        atomic<float>(r, i);
        break;
    }
  }
}

#undef TERN_CASE
#undef TERN_INTEGER_CASES
#undef TERN_REAL_CASES
#undef TERN_NUMBER_CASES
#undef TERN_FUNCTION_CASES

}  // namespace tern::language
