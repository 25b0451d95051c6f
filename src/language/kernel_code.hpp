// KernelCode is a Program as a list of simple instructions for numbered registers, which the
// Interpreter runs. compile() translates each expression once, so that running a kernel neither
// walks the tree nor allocates memory.
//
// A register has 64 bits. It holds an integer extended to 64 bits according to its type, a boolean
// as 0 or 1, or the bits of a float or double. Extended integers of different types compare and
// convert with few instructions: a conversion to a type that has all values of the old type is no
// instruction at all. Constants, arguments and sizes are in registers of their own, set once per
// launch.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "language/mistake.hpp"
#include "language/syntax.hpp"

namespace tern::language {

/// The values of one operation for each type. They are consecutive, so that compile() adds the
/// number of the type to the first.
#define TERN_INTEGER_CODES(name) name##_i32, name##_u32, name##_i64, name##_u64
#define TERN_REAL_CODES(name) name##_f32, name##_f64
#define TERN_NUMBER_CODES(name) TERN_INTEGER_CODES(name), TERN_REAL_CODES(name)
#define TERN_NARROW_CODES(name) name##_boolean, name##_i8, name##_u8, name##_i16, name##_u16

enum class Code : std::uint16_t {
  // Flow. `to` is the next instruction; `a` is the condition.
  end,  // of the thread, or of a piece of code
  jump,
  jump_if_false,
  jump_if_true,
  jump_back,  // counts steps: these two end each round of a loop
  jump_back_if_true,
  threads,      // runs the next instruction up to `end` for each thread, then jumps
  check_value,  // the local variable of the place has a value if register `a` is 1

  // to = f(a, b, c)
  move,
  TERN_NUMBER_CODES(add),
  TERN_NUMBER_CODES(subtract),
  TERN_NUMBER_CODES(multiply),
  TERN_NUMBER_CODES(divide),
  TERN_INTEGER_CODES(remainder),
  TERN_INTEGER_CODES(shift_left),
  TERN_INTEGER_CODES(shift_right),
  bit_and,
  bit_or,
  bit_xor,
  bit_complement,
  equal_bits,  // of integers and booleans of any one type
  not_equal_bits,
  TERN_REAL_CODES(equal),
  TERN_REAL_CODES(not_equal),
  TERN_NUMBER_CODES(less),
  TERN_NUMBER_CODES(less_equal),
  TERN_NUMBER_CODES(negate),
  TERN_NUMBER_CODES(min),
  TERN_NUMBER_CODES(max),
  TERN_NUMBER_CODES(abs),
  logical_not,

  // Conversions. Those of integers keep the low bits.
  low_i8,
  low_u8,
  low_i16,
  low_u16,
  low_i32,
  low_u32,
  boolean_of_integer,
  TERN_REAL_CODES(boolean_of),
  f32_of_signed,
  f32_of_unsigned,
  f64_of_signed,
  f64_of_unsigned,
  f32_of_f64,
  f64_of_f32,
  integer_of_f32,  // `detail` is the type
  integer_of_f64,

  TERN_REAL_CODES(sqrt),
  TERN_REAL_CODES(rsqrt),
  TERN_REAL_CODES(exp),
  TERN_REAL_CODES(exp2),
  TERN_REAL_CODES(log),
  TERN_REAL_CODES(log2),
  TERN_REAL_CODES(sin),
  TERN_REAL_CODES(cos),
  TERN_REAL_CODES(tan),
  TERN_REAL_CODES(tanh),
  TERN_REAL_CODES(floor),
  TERN_REAL_CODES(ceil),
  TERN_REAL_CODES(round),
  TERN_REAL_CODES(pow),
  TERN_REAL_CODES(fmod),
  TERN_REAL_CODES(fma),

  // Memory: `c` is the array and register `a` the index.
  TERN_NARROW_CODES(load),
  TERN_NUMBER_CODES(load),  // to = element
  TERN_NARROW_CODES(store),
  TERN_NUMBER_CODES(store),    // element = b
  TERN_INTEGER_CODES(atomic),  // `detail` is the Atomic; b is the value, for compare_exchange the
  atomic_f32,                  // expected one, and the register after it the new one
};

struct Instruction {
  Code code = Code::end;
  std::uint16_t detail = 0;
  std::uint32_t to = 0, a = 0, b = 0, c = 0;
  std::uint32_t place = 0;  // an index into KernelCode::places, if the instruction can go wrong
};

/// Where in the text an instruction comes from, for mistakes.
struct CodePlace {
  Position at;
  AccessKind access = AccessKind::read;
  std::uint32_t variable = 0;  // of the access
  bool has_signed_index = false;
  Scalar type = Scalar::i32;  // of a shift
};

struct KernelCode {
  static constexpr std::uint32_t none = 0xffffffff;

  /// Array parameters in the order of the parameters, then shared arrays.
  struct Array {
    std::uint32_t variable = 0;
    Scalar type = Scalar::f32;
    Intent intent = Intent::inout;
    bool is_shared = false;
    std::uint32_t argument = 0;  // the index of the parameter; not if shared
    std::uint64_t elements = 0;  // only if shared
    std::uint32_t size_register = none;
    bool is_read = false, is_written = false, is_atomic = false;  // somewhere in the text
  };
  struct Value {
    std::uint32_t argument = 0;
    Scalar type = Scalar::f32;
    std::uint32_t target = 0;  // register
    bool is_changed = false;   // the text assigns it: each thread, or block, begins with a copy
  };

  std::vector<Instruction> instructions;
  std::vector<CodePlace> places;
  std::vector<Array> arrays;
  std::vector<Value> values;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> constants;  // register, bits
  std::uint32_t register_count = 0;

  /// Instructions where a run begins: the body, or the expressions of a reduction, whose values are
  /// in the register `result` afterwards. `combine` reads the registers `left` and `right`.
  std::uint32_t body = none;
  std::uint32_t identity = none, map = none, combine = none;
  std::uint32_t result = none, left = none, right = none;
};

/// Returns the register of a coordinate.
[[nodiscard]] constexpr std::uint32_t coordinate_register(Coordinate coordinate,
                                                          std::uint32_t axis) noexcept {
  return static_cast<std::uint32_t>(coordinate) * 3 + axis;
}
inline constexpr std::uint32_t coordinate_registers = 15;

/// Translates a program that try_parse() returned. Throws std::bad_alloc.
[[nodiscard]] KernelCode compile(const Program& program);

}  // namespace tern::language
