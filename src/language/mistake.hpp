// A Mistake is one thing that a kernel did wrong while the Interpreter ran it, such as an index
// outside of an array or a race of two threads.
//
// what() names the kernel, the line and column, the thread, the array, the index and the size, and
// fix() says what to change. The same facts are also fields, for tests, JSON and bindings. A
// Mistake owns its texts and does not refer to the program.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "language/syntax.hpp"

namespace tern::language {

/// What one thread does to one element. `update` reads and writes: `y[i] += 1`.
enum class AccessKind : std::uint8_t { read, write, update, atomic };

/// A thread of a launch. In a block kernel, code outside of the loops over threads belongs to the
/// whole block; `is_whole_block` is true for it.
struct ThreadId {
  std::array<std::uint64_t, 3> block{};
  std::array<std::uint64_t, 3> thread{};
  bool is_whole_block = false;
};

struct Mistake {
  /// What went wrong, and what the interpreter does then:
  /// - `out_of_range`: an index that is not less than the size. A read returns 0 and a write does
  ///   nothing, so no other memory is damaged.
  /// - `uninitialised_read`: of an element of a shared array that no thread of the block wrote, or
  ///   of a local variable without a value.
  /// - `read_of_output`: of an element of an `out` or `part` array that the launch has not written.
  ///   The launch says that it does not need the old bytes, so they may be anything.
  /// - `write_to_input`: of an `in` array. The write does nothing.
  /// - `thread_race`, `block_race`: two threads of one block, or of two blocks, use an element, at
  ///   least one writes, not both are atomic, and nothing orders them. Writing equal values is a
  ///   race too.
  /// - `divide_by_zero`, of integers. The result is 0.
  /// - `shift_too_far`: by a negative number or by the width of the type or more. The result is 0.
  /// - `conversion`: of a real number to an integer type that does not have the value. The result
  /// is
  ///   the nearest value of the type, or 0 for a NaN.
  /// - `endless`: a thread reached the limit of its steps. The launch stops.
  /// - `unwritten_output`: the launch did not write every element of an `out` array.
  enum class Kind : std::uint8_t {
    out_of_range,
    uninitialised_read,
    read_of_output,
    write_to_input,
    thread_race,
    block_race,
    divide_by_zero,
    shift_too_far,
    conversion,
    endless,
    unwritten_output,
  };

  Kind kind = Kind::out_of_range;
  std::string kernel;
  Form form = Form::thread;
  Position at;
  ThreadId who;             // except for unwritten_output
  std::uint64_t count = 1;  // occurrences in the launch of this kind at this place
  AccessKind access = AccessKind::read;

  // The name of the array or of the local variable; empty for arithmetic.
  std::string name;
  bool is_array = false;
  bool is_shared = false;
  std::uint64_t index = 0;  // the bits of an int64_t if `is_negative`
  bool is_negative = false;
  std::uint64_t elements = 0;  // of the array
  std::uint64_t missing = 0;   // unwritten_output: the number of elements not written
  std::string value;           // shift_too_far and conversion: the number as text
  std::string type;            // shift_too_far and conversion: the type
  std::uint64_t steps = 0;     // endless

  // The earlier access of a race. The array has another name there if two arguments share memory.
  Position other;
  ThreadId other_who;
  AccessKind other_access = AccessKind::read;
  std::string other_name;

  /// One sentence without a full stop: "kernel 'blur', line 4, column 9: thread (255,0,0) of block
  /// (3,0,0) reads x[1024], but x has 1024 elements".
  [[nodiscard]] std::string what() const;
  /// What to change, as a whole sentence.
  [[nodiscard]] std::string fix() const;
};

/// Returns the enumerator as text, such as "out_of_range".
[[nodiscard]] std::string_view name(Mistake::Kind kind) noexcept;

}  // namespace tern::language
