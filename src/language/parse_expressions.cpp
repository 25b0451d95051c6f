// Expressions: operators, casts and numbers. The rules of C for types are in names.cpp; what a name
// means is in parse_names.cpp.

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "language/kernel_parser.hpp"
#include "language/names.hpp"
#include "language/parser.hpp"

namespace tern::language {
namespace {

struct BinaryRow {
  std::string_view text;
  Operator op;
  int precedence;
};

constexpr BinaryRow binary_operators[] = {
    {"||", Operator::logical_or, 1},
    {"&&", Operator::logical_and, 2},
    {"|", Operator::bit_or, 3},
    {"^", Operator::bit_xor, 4},
    {"&", Operator::bit_and, 5},
    {"==", Operator::equal, 6},
    {"!=", Operator::not_equal, 6},
    {"<", Operator::less, 7},
    {"<=", Operator::less_equal, 7},
    {">", Operator::greater, 7},
    {">=", Operator::greater_equal, 7},
    {"<<", Operator::shift_left, 8},
    {">>", Operator::shift_right, 8},
    {"+", Operator::add, additive_precedence},
    {"-", Operator::subtract, additive_precedence},
    {"*", Operator::multiply, 10},
    {"/", Operator::divide, 10},
    {"%", Operator::remainder, 10},
};

struct AssignmentRow {
  std::string_view text;
  Operator op;
};

constexpr AssignmentRow assignments[] = {
    {"=", Operator::none},         {"+=", Operator::add},          {"-=", Operator::subtract},
    {"*=", Operator::multiply},    {"/=", Operator::divide},       {"%=", Operator::remainder},
    {"<<=", Operator::shift_left}, {">>=", Operator::shift_right}, {"&=", Operator::bit_and},
    {"|=", Operator::bit_or},      {"^=", Operator::bit_xor},
};

template <class Row, std::size_t count>
const Row* find_row(const Row (&rows)[count], const Token& token) noexcept {
  if (token.kind != Token::Kind::symbol) return nullptr;
  for (const Row& row : rows) {
    if (row.text == token.text) return &row;
  }
  return nullptr;
}

bool is_logical(Operator op) noexcept {
  return op == Operator::logical_and || op == Operator::logical_or;
}

bool needs_integers(Operator op) noexcept {
  return is_shift(op) || op == Operator::remainder || op == Operator::bit_and ||
         op == Operator::bit_or || op == Operator::bit_xor;
}

/// Returns the bits of an integer of this type, extended to 64 bits by its sign.
std::uint64_t wrapped(std::uint64_t bits, Scalar type) noexcept {
  if (type == Scalar::boolean) return bits != 0 ? 1 : 0;
  const unsigned unused = 64 - 8 * static_cast<unsigned>(bytes_of(type));
  if (!is_signed(type)) return bits << unused >> unused;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
}

/// Computes with constants, in 64 bits. Returns nullopt where C has no answer.
std::optional<std::uint64_t> computed(Operator op, std::uint64_t left, std::uint64_t right,
                                      Scalar type) noexcept {
  const bool has_sign = is_signed(type);
  switch (op) {
    case Operator::add:
      return left + right;
    case Operator::subtract:
      return left - right;
    case Operator::multiply:
      return left * right;
    case Operator::bit_and:
      return left & right;
    case Operator::bit_or:
      return left | right;
    case Operator::bit_xor:
      return left ^ right;
    case Operator::divide:
    case Operator::remainder: {
      if (right == 0) return std::nullopt;
      const bool is_quotient = op == Operator::divide;
      if (!has_sign) return is_quotient ? left / right : left % right;
      // The smallest number divided by -1 does not fit.
      if (right == ~std::uint64_t{0}) return is_quotient ? 0 - left : 0;
      const auto dividend = static_cast<std::int64_t>(left);
      const auto divisor = static_cast<std::int64_t>(right);
      return static_cast<std::uint64_t>(is_quotient ? dividend / divisor : dividend % divisor);
    }
    case Operator::shift_left:
    case Operator::shift_right:
      if (right >= 8 * bytes_of(type)) return std::nullopt;
      if (op == Operator::shift_left) return left << right;
      return has_sign ? static_cast<std::uint64_t>(static_cast<std::int64_t>(left) >> right)
                      : left >> right;
    default:
      return std::nullopt;
  }
}

}  // namespace

// --- Trees

Parsed KernelParser::node(Expression::Kind kind, Scalar type, Position at) {
  Parsed made;
  made.tree.kind = kind;
  made.tree.type = type;
  made.tree.at = at;
  return made;
}

void KernelParser::adopt(Parsed& parent, Parsed child) {
  parent.height = std::max(parent.height, child.height + 1);
  if (parent.height > max_expression_height) {
    fail({Token::Kind::name, parent.tree.at, text(parent.tree.op), nullptr},
         "{where}: the expression has more than {limit} operators in a row. Compute a part of it "
         "before, in a variable.",
         {{"limit", std::to_string(max_expression_height)}});
  }
  parent.tree.operands.push_back(std::move(child.tree));
}

std::optional<Parsed> KernelParser::literal_as(const Parsed& value, Scalar to) {
  const Expression& from = value.tree;
  Parsed made = node(is_real(to) ? Expression::Kind::real : Expression::Kind::integer, to, from.at);
  if (from.kind == Expression::Kind::real && is_real(to)) {
    if (to == Scalar::f32 && from.real > static_cast<double>(std::numeric_limits<float>::max())) {
      fail({Token::Kind::name, from.at, "float", nullptr},
           "{where}: the number is too large for 'float'. Use a smaller one, or 'double'.");
      return made;
    }
    made.tree.real =
        to == Scalar::f32 ? static_cast<double>(static_cast<float>(from.real)) : from.real;
    return made;
  }
  if (from.kind != Expression::Kind::integer) return std::nullopt;
  if (to == Scalar::f32) {
    made.tree.real = static_cast<double>(static_cast<float>(from.integer));
  } else if (to == Scalar::f64) {
    made.tree.real = static_cast<double>(from.integer);
  } else {
    made.tree.integer = from.integer;
    const bool is_negative = is_signed(to) && (wrapped(from.integer, to) >> 63) != 0;
    if (wrapped(from.integer, to) != from.integer || is_negative) return std::nullopt;
  }
  return made;
}

Parsed KernelParser::cast(Parsed value, Scalar to, Position at) {
  if (std::optional<Parsed> literal = literal_as(value, to)) return *std::move(literal);
  Parsed made = node(Expression::Kind::cast, to, at);
  adopt(made, std::move(value));
  return made;
}

Parsed KernelParser::convert(Parsed value, Scalar to) {
  if (value.tree.type == to) return value;
  // `float x = -0.5;` needs no double: the nearest float of -0.5 is the negative one of 0.5.
  const bool is_negative_literal = value.tree.op == Operator::negate && is_real(to) &&
                                   value.tree.operands[0].kind == Expression::Kind::real;
  if (is_negative_literal) {
    Parsed made = node(Expression::Kind::unary, to, value.tree.at);
    made.tree.op = Operator::negate;
    adopt(made, convert({std::move(value.tree.operands[0]), 1}, to));
    return made;
  }
  const Position at = value.tree.at;
  return cast(std::move(value), to, at);
}

std::optional<std::uint64_t> KernelParser::constant(const Expression& expression) const {
  if (!is_integer(expression.type)) return std::nullopt;
  switch (expression.kind) {
    case Expression::Kind::integer:
      return expression.integer;
    case Expression::Kind::variable: {
      const auto known = constants_.find(expression.variable);
      if (known == constants_.end()) return std::nullopt;
      return known->second;
    }
    case Expression::Kind::cast:
    case Expression::Kind::unary: {
      const auto operand = constant(expression.operands[0]);
      if (!operand) return std::nullopt;
      if (expression.op == Operator::logical_not) return *operand == 0 ? 1 : 0;
      const std::uint64_t bits = expression.op == Operator::negate       ? 0 - *operand
                                 : expression.op == Operator::complement ? ~*operand
                                                                         : *operand;
      return wrapped(bits, expression.type);
    }
    case Expression::Kind::binary: {
      if (is_comparison(expression.op) || is_logical(expression.op)) return std::nullopt;
      const auto left = constant(expression.operands[0]);
      if (!left) return std::nullopt;
      const auto right = constant(expression.operands[1]);
      if (!right) return std::nullopt;
      const auto value = computed(expression.op, *left, *right, expression.type);
      if (!value) return std::nullopt;
      return wrapped(*value, expression.type);
    }
    default:
      return std::nullopt;
  }
}

// --- Operators

void KernelParser::check_operands(const Token& at, Operator op, const Expression& left,
                                  const Expression& right) {
  if (needs_integers(op) && (!is_integer(left.type) || !is_integer(right.type))) {
    fail(at,
         "{where}: '{value}' needs integers, and one of its operands is '{type}'. Cast it, or use "
         "another function, such as fmod().",
         {{"type", type_text(is_integer(left.type) ? right.type : left.type)}});
    return;
  }
  const Scalar computes_in =
      is_shift(op) ? promoted(left.type) : common_type(left.type, right.type);
  const bool is_division = op == Operator::divide || op == Operator::remainder;
  if (!is_integer(computes_in) || (!is_division && !is_shift(op))) return;
  const std::optional<std::uint64_t> known = constant(right);
  if (!known) return;
  if (is_division && *known == 0) {
    fail(at, "{where}: '{value}' divides an integer by zero. Use another divisor.");
  }
  if (is_shift(op) && *known >= 8 * bytes_of(computes_in)) {
    fail(at,
         "{where}: '{value}' shifts a number of {bits} bits by {bits} bits or more, or by a "
         "negative number. Shift by fewer.",
         {{"bits", std::to_string(8 * bytes_of(computes_in))}});
  }
}

Parsed KernelParser::join(const Token& at, Operator op, Parsed left, Parsed right) {
  check_operands(at, op, left.tree, right.tree);
  Scalar computes_in = common_type(left.tree.type, right.tree.type);
  if (is_logical(op)) computes_in = Scalar::boolean;
  if (is_shift(op)) computes_in = promoted(left.tree.type);
  Parsed made =
      node(Expression::Kind::binary, is_comparison(op) ? Scalar::boolean : computes_in, at.at);
  made.tree.op = op;
  adopt(made, convert(std::move(left), computes_in));
  const Scalar right_type = is_shift(op) ? promoted(right.tree.type) : computes_in;
  adopt(made, convert(std::move(right), right_type));
  return made;
}

Parsed KernelParser::condition() { return convert(expression(), Scalar::boolean); }

Parsed KernelParser::assignment() {
  const Level level(*this);
  Parsed target = conditional();
  const Token at = current();
  const AssignmentRow* const row = find_row(assignments, at);
  if (row == nullptr) return target;
  advance();
  check_target(at, target.tree);
  // What `=` writes is not read.
  if (row->op == Operator::none) undo_read(target.tree);
  return assigned(at, row->op, std::move(target), assignment());
}

Parsed KernelParser::assigned(const Token& at, Operator op, Parsed target, Parsed value) {
  note_write(target.tree, op == Operator::none);
  const Scalar type = target.tree.type;
  Scalar computes_in = type;
  if (op != Operator::none) {
    check_operands(at, op, target.tree, value.tree);
    // The count of a shift has no part in the type. Casting it to the type of the operation keeps
    // the rule that an assignment computes in the type of its second operand.
    computes_in = is_shift(op) ? promoted(type) : common_type(type, value.tree.type);
  }
  Parsed made = node(Expression::Kind::assign, type, at.at);
  made.tree.op = op;
  adopt(made, std::move(target));
  adopt(made, convert(std::move(value), computes_in));
  return made;
}

Parsed KernelParser::conditional() {
  Parsed decided = binary(1);
  const Token at = current();
  if (!at.is("?")) return decided;
  advance();
  Parsed chosen = expression();
  expect(":");
  Parsed other = assignment();
  const Scalar type = chosen.tree.type == other.tree.type
                          ? chosen.tree.type
                          : common_type(chosen.tree.type, other.tree.type);
  Parsed made = node(Expression::Kind::conditional, type, at.at);
  adopt(made, convert(std::move(decided), Scalar::boolean));
  adopt(made, convert(std::move(chosen), type));
  adopt(made, convert(std::move(other), type));
  return made;
}

Parsed KernelParser::binary(int min_precedence) {
  Parsed left = unary();
  for (;;) {
    const Token at = current();
    const BinaryRow* const row = find_row(binary_operators, at);
    if (row == nullptr || row->precedence < min_precedence) return left;
    advance();
    const Level level(*this);
    Parsed right = binary(row->precedence + 1);
    left = join(at, row->op, std::move(left), std::move(right));
  }
}

Parsed KernelParser::unary() {
  const Token at = current();
  const bool is_increment = at.is("++");
  if (is_increment || at.is("--")) {
    advance();
    const Level level(*this);
    return increment(at, is_increment ? Operator::add : Operator::subtract, true, unary());
  }
  if (at.is("&") || at.is("*")) {
    fail(at,
         "{where}: '{value}' before a value needs pointers, which the language does not have. Name "
         "the element of the array, such as x[i].");
  }
  const Operator op = at.is("-")   ? Operator::negate
                      : at.is("~") ? Operator::complement
                      : at.is("!") ? Operator::logical_not
                                   : Operator::none;
  if (op == Operator::none && !at.is("+")) return postfix();
  advance();
  const Level level(*this);
  Parsed operand = unary();
  if (op == Operator::complement && !is_integer(operand.tree.type)) {
    fail(at, "{where}: '~' needs an integer, and its operand is '{type}'. Cast it.",
         {{"type", type_text(operand.tree.type)}});
  }
  const Scalar type = op == Operator::logical_not ? Scalar::boolean : promoted(operand.tree.type);
  // A cast, so that `+x` is no variable that could be assigned.
  if (op == Operator::none) return cast(std::move(operand), type, at.at);
  Parsed made = node(Expression::Kind::unary, type, at.at);
  made.tree.op = op;
  adopt(made, convert(std::move(operand), type));
  return made;
}

Parsed KernelParser::increment(const Token& at, Operator op, bool is_prefix, Parsed target) {
  check_target(at, target.tree);
  note_write(target.tree, false);
  if (target.tree.type == Scalar::boolean) {
    fail(at, "{where}: '{value}' needs a number, and its operand is 'bool'. Assign true or false.");
  }
  Parsed made = node(Expression::Kind::increment, target.tree.type, at.at);
  made.tree.op = op;
  made.tree.is_prefix = is_prefix;
  adopt(made, std::move(target));
  return made;
}

Parsed KernelParser::postfix() {
  Parsed value = primary();
  for (;;) {
    const Token at = current();
    const bool is_increment = at.is("++");
    if (is_increment || at.is("--")) {
      advance();
      value =
          increment(at, is_increment ? Operator::add : Operator::subtract, false, std::move(value));
    } else if (at.is("[")) {
      fail(at, "{where}: only an array has elements. Write '[' after the name of an array.");
    } else if (at.is("(")) {
      fail(at, "{where}: only a function can be called. Write an operator before '('.");
    } else if (at.is(".") || at.is("->")) {
      fail(at,
           "{where}: only thread, block, index, block_size and grid_size have parts. Remove "
           "'{value}'.");
    } else {
      return value;
    }
  }
}

// --- Operands

Parsed KernelParser::primary() {
  if (current().kind == Token::Kind::number) return number();
  if (current().is("(")) return parenthesised();
  if (is_name()) return name();
  if (is_at_end()) {
    fail(current(), "{where}: the text ends where a value is missing. Add it.");
  } else {
    fail(current(), "{where}: a value is missing before '{value}'. Add it.");
  }
  return node(Expression::Kind::integer, Scalar::i32, current().at);
}

Parsed KernelParser::number() {
  const Token token = advance();
  const Number value = number_of(token.text);
  if (value.problem != nullptr) fail(token, value.problem);
  Parsed made = node(is_real(value.type) ? Expression::Kind::real : Expression::Kind::integer,
                     value.type, token.at);
  made.tree.integer = value.integer;
  made.tree.real = value.real;
  return made;
}

Parsed KernelParser::parenthesised() {
  const Position at = advance().at;
  const bool is_long_name = ahead(0).is("unsigned") && ahead(1).is("int");
  if (is_type(0) && ahead(is_long_name ? 2 : 1).is(")")) {
    const Scalar to = type();
    expect(")");
    const Level level(*this);
    return cast(unary(), to, at);
  }
  Parsed value = expression();
  expect(")");
  return value;
}

Parsed KernelParser::type_call(Scalar to, Position at) {
  expect("(");
  if (current().is(")")) {
    fail(current(), "{where}: the cast has no value. Write one between its parentheses.");
  }
  Parsed value = expression();
  expect(")");
  return cast(std::move(value), to, at);
}

}  // namespace tern::language
