// A BodyWriter writes the statements and expressions of a kernel in a dialect. emit() puts what
// calls them around: the entry, its arguments, and on the host the loops over threads.
//
// Names. A variable `x` becomes x_3, where 3 is its index in Program::variables. So it collides
// neither with a word of a dialect (`global`, `float4`) nor with a variable of another scope that
// moves to the scope of the function, as shared arrays do. The number of elements of an array is
// x_3_size. A coordinate such as block.x is tern_block_x.
//
// Loops over threads. On a device every thread runs the whole body of a block kernel. After a loop
// over threads stands a barrier, except after the last one. Code outside of these loops runs in
// every thread and must compute the same values in all of them. If such code has read memory, a
// barrier stands before the next loop too: without it, a fast thread could change in the loop what
// a slow thread has still to read, and the two could take different branches. On the host a loop
// over threads is a loop, and needs no barrier.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "language/dialect.hpp"
#include "language/syntax.hpp"

namespace tern::language {

inline constexpr std::array<std::string_view, 3> axis_names = {"x", "y", "z"};
inline constexpr std::array<Coordinate, 5> all_coordinates = {
    Coordinate::grid_size, Coordinate::block_size, Coordinate::block, Coordinate::thread,
    Coordinate::index};

/// The name of a coordinate in the translation: tern_block_size_x.
[[nodiscard]] std::string coordinate_name(Coordinate coordinate, unsigned axis);

/// What a program uses, and what its translation therefore has to define.
struct Uses {
  std::array<std::array<bool, 3>, 5> coordinates = {};  // [coordinate][axis]
  bool atomics = false;
  bool atomics64 = false;

  [[nodiscard]] bool has(Coordinate coordinate, unsigned axis) const noexcept {
    return coordinates[static_cast<std::size_t>(coordinate)][axis];
  }
};
[[nodiscard]] Uses uses_of(const Program& program);

class BodyWriter {
 public:
  /// The program must outlive the writer.
  BodyWriter(const Program& program, Dialect dialect) noexcept
      : program_(program), dialect_(dialect) {}

  /// The name of Program::variables[variable].
  [[nodiscard]] std::string name(std::uint32_t variable) const;

  /// An expression, in parentheses unless it binds more tightly than every binary operator.
  [[nodiscard]] std::string operand(const Expression& expression);
  /// An expression for a place where a comma or a parenthesis ends it.
  [[nodiscard]] std::string expression(const Expression& expression);

  /// The statements of the body, with a `#line` before each.
  [[nodiscard]] std::string body(unsigned depth);
  /// A directive that says where the text after it comes from.
  [[nodiscard]] std::string line(const Position& at) const;

  /// The functions that what was written so far calls.
  [[nodiscard]] std::string helpers() const;

 private:
  struct Piece {
    std::string text;
    int binds = 0;  // how tightly its weakest operator binds
  };
  Piece piece(const Expression& e);
  std::string at_least(int binds, const Expression& e);
  Piece cast(const Expression& e);
  Piece element(const Expression& e, bool is_target);
  Piece binary(const Expression& e);
  Piece assignment(const Expression& e);
  Piece increment(const Expression& e, bool is_used);
  Piece call(const Expression& e);
  std::string shift_amount(const Expression& amount, Scalar shifted);
  std::string address(std::uint32_t variable, const Expression& index);
  Space space_of(std::uint32_t variable) const noexcept;
  const std::string& use(Helper helper);

  void statement(const Statement& s, bool is_last);
  /// The statement of an `if` or a loop, which has written the braces around it.
  void inner(const Statement& s, bool is_last);
  void block(const Statement& s, bool is_last);
  void branch(const Statement& s, bool is_last);
  void loop(const Statement& s);
  void threads(const Statement& s, bool is_last);
  void turns_on_host(const Statement& body);
  /// What one thread does in a loop over threads.
  void turn(const Statement& body);
  void effect(const Expression& e);
  void note_read(const Expression& e);
  void put(std::string_view text);
  void put_line(const Position& at);

  const Program& program_;
  const Dialect dialect_;
  std::string out_;
  unsigned depth_ = 0;
  bool in_threads_ = false;
  bool has_return_ = false;  // of the turn that is being written
  bool has_unordered_read_ =
      false;  // code of the block may have read memory since the last barrier
  unsigned loops_over_threads_ = 0;
  std::map<std::string, std::string> helpers_;
};

}  // namespace tern::language
