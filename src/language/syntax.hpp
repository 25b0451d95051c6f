// The tree of a portable kernel, as try_parse() (parser.hpp) builds it. emit() (emit.hpp) writes it
// as OpenCL C, CUDA C++ or C++, and Interpreter (interpreter.hpp) runs it.
//
// The parser has resolved every name, checked every type, and inserted a cast wherever C converts a
// value. So both operands of a binary operation have the type of the operation, and an assigned
// value has the type of its target. A program is plain data without pointers into the text.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tern::language {

/// A place in the text of the program, counted from 1.
struct Position {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

/// The types of values. Names in the text are those of C++: int32_t, or int, is i32; size_t is u64.
enum class Scalar : std::uint8_t { boolean, i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 };

/// What the body of a kernel is written for.
/// - `element`: one element. The names of array parameters are their elements at the same index.
/// - `thread`: one thread. `index`, `thread`, `block`, `block_size` and `grid_size` are known.
/// - `block`: one block. `for (auto thread : threads)` loops run once for each thread of the block.
///   All threads finish a loop before the statement after it begins. Statements outside of these
///   loops run once for the block and do not write memory.
/// - `reduction`: `map` is the value of one element. `combine` joins two values `a` and `b`.
enum class Form : std::uint8_t { element, thread, block, reduction };

/// What a kernel does to a parameter. `part` writes some elements and reads none.
enum class Intent : std::uint8_t { value, in, out, inout, part };

struct Parameter {
  std::string name;
  Scalar type = Scalar::f32;  // of the value, or of an element
  Intent intent = Intent::value;
  Position at;
};

/// Everything that has a name in the body.
struct Variable {
  enum class Kind : std::uint8_t {
    value,   // a parameter that is a value
    array,   // a parameter that is memory
    local,   // declared in the body. In a block kernel outside of a loop over threads, one for the
             // whole block; otherwise one for each thread
    shared,  // an array of one block: shared<float, 256> tile;
    result,  // `a` and `b` in `combine` of a reduction
  };
  std::string name;
  Kind kind = Kind::local;
  Scalar type = Scalar::f32;
  std::uint32_t parameter = 0;  // kind value or array: the index of the parameter
  std::uint64_t elements = 0;   // kind shared
  bool is_const = false;        // kind local
  bool is_of_thread = false;    // kind local: declared for one thread
  bool needs_size = false;      // kind array: the text uses size(name)
  Position at;
};

enum class Operator : std::uint8_t {
  none,
  add,
  subtract,
  multiply,
  divide,
  remainder,
  shift_left,
  shift_right,
  bit_and,
  bit_or,
  bit_xor,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  logical_and,
  logical_or,
  negate,
  complement,
  logical_not,
};

constexpr bool is_comparison(Operator op) noexcept {
  return op >= Operator::less && op <= Operator::not_equal;
}
constexpr bool is_shift(Operator op) noexcept {
  return op == Operator::shift_left || op == Operator::shift_right;
}

/// Functions that the text may call. All take and return the type of the expression, which is f32
/// or f64 for all but `abs`, `min` and `max`.
enum class Function : std::uint8_t {
  sqrt,
  rsqrt,
  fabs,
  exp,
  exp2,
  log,
  log2,
  sin,
  cos,
  tan,
  tanh,
  floor,
  ceil,
  round,
  pow,
  fmod,
  fma,
  abs,
  min,
  max,
};

/// atomic_add(array, index, value) and others return the old value. compare_exchange takes the
/// expected and the new value. Elements are i32, u32, i64 or u64; for `add` also f32.
enum class Atomic : std::uint8_t { add, min, max, exchange, compare_exchange };

/// The names of positions in the launch, each with an axis.
enum class Coordinate : std::uint8_t {
  index,       // of the thread in the whole launch: block * block_size + thread
  thread,      // of the thread in its block
  block,       // of the block in the grid
  block_size,  // in threads
  grid_size,   // in blocks
};

struct Expression {
  enum class Kind : std::uint8_t {
    integer,      // `integer` has the bits of the value; also booleans (0 or 1)
    real,         // `real`
    variable,     // a value, a local variable, or `a` or `b` of a reduction
    coordinate,   // u64: `coordinate` and `axis`
    element,      // `variable` is an array parameter or shared; operands[0] is the index (u64 or
                  // i64). In element kernels and `map`, an array has no operand: its element
    size,         // u64: the number of elements of the array parameter `variable`
    unary,        // `op` of operands[0]
    binary,       // `op` of operands[0] and operands[1], of one type. The type of a comparison is
                  // boolean. Shifts: operands[1] may have another integer type
    conditional,  // operands[0] ? operands[1] : operands[2]
    cast,         // operands[0] as `type`
    assign,       // operands[0] = operands[1]. With an `op`: operands[0] = operands[0] op
                  // operands[1], computed in the type of operands[1] and cast to that of the target
    increment,    // ++ and --: `op` is add or subtract; `is_prefix`
    call,         // `function` of the operands
    atomic,       // `atomic` on `variable`; operands[0] is the index, then the values
  };
  Kind kind = Kind::integer;
  Scalar type = Scalar::i32;
  Position at;
  Operator op = Operator::none;
  Function function = Function::sqrt;
  Atomic atomic = Atomic::add;
  Coordinate coordinate = Coordinate::index;
  std::uint8_t axis = 0;  // 0: x, 1: y, 2: z
  bool is_prefix = false;
  std::uint32_t variable = 0;  // an index into Program::variables
  std::uint64_t integer = 0;
  double real = 0;
  std::vector<Expression> operands;
};

struct Statement {
  enum class Kind : std::uint8_t {
    declare,     // the local variable `variable`, with the value expressions[0] if there is one.
                 // Shared arrays have no statement
    expression,  // expressions[0]
    if_,         // expressions[0]; statements[0], and statements[1] if there is an else
    for_,        // statements[0] is the first part (kind block without statements if there is
                 // none), statements[1] the body; expressions[0] is the condition; expressions[1]
                 // the step, if `has_step`
    while_,      // expressions[0]; statements[0]
    do_,         // statements[0] while expressions[0]
    break_,
    continue_,
    return_,  // ends the thread. In a block kernel: `continue` in a loop over threads
    block,    // statements, in a scope of their own
    threads,  // for (auto thread : threads) statements[0]
  };
  Kind kind = Kind::block;
  Position at;
  std::uint32_t variable = 0;
  bool has_step = false;
  bool is_list = false;  // kind block: `int i = 0, n = 4;` shares the scope around it
  std::vector<Expression> expressions;
  std::vector<Statement> statements;
};

struct Program {
  std::string name;
  Form form = Form::thread;
  std::vector<Parameter> parameters;
  std::vector<Variable> variables;
  Statement body;  // kind block; empty for a reduction
  // Reductions only:
  Scalar result = Scalar::f32;
  Expression identity, map, combine;
  bool uses_float64 = false;
  std::string text;  // what was parsed, for reports
};

/// The fixed sizes of a reduction, on every device: the threads of a block, and its elements.
inline constexpr std::uint64_t reduction_lanes = 256;
inline constexpr std::uint64_t reduction_block_elements = 4096;

}  // namespace tern::language
