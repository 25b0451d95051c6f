#include "language/body_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "language/names.hpp"

namespace tern::language {
namespace {

// How tightly operators bind in C. Parentheses stand only where they are needed: some compilers
// limit how deeply they nest, and a sum of hundreds of terms is one nested expression.
namespace binds {
constexpr int assignment = 1, conditional = 2, logical_or = 3, logical_and = 4, bit_or = 5,
              bit_xor = 6, bit_and = 7, equality = 8, order = 9, shift = 10, sum = 11, product = 12,
              unary = 13, operand = 14;
}  // namespace binds

int binding_of(Operator op) noexcept {
  switch (op) {
    case Operator::multiply:
    case Operator::divide:
    case Operator::remainder:
      return binds::product;
    case Operator::add:
    case Operator::subtract:
      return binds::sum;
    case Operator::shift_left:
    case Operator::shift_right:
      return binds::shift;
    case Operator::less:
    case Operator::less_equal:
    case Operator::greater:
    case Operator::greater_equal:
      return binds::order;
    case Operator::equal:
    case Operator::not_equal:
      return binds::equality;
    case Operator::bit_and:
      return binds::bit_and;
    case Operator::bit_xor:
      return binds::bit_xor;
    case Operator::bit_or:
      return binds::bit_or;
    case Operator::logical_and:
      return binds::logical_and;
    case Operator::logical_or:
      return binds::logical_or;
    default:
      return binds::unary;
  }
}

template <class Visit>
void visit_expressions(const Expression& e, const Visit& visit) {
  visit(e);
  for (const Expression& operand : e.operands) visit_expressions(operand, visit);
}

template <class Visit>
void visit_expressions(const Statement& s, const Visit& visit) {
  for (const Expression& e : s.expressions) visit_expressions(e, visit);
  for (const Statement& inner : s.statements) visit_expressions(inner, visit);
}

bool reads_memory(const Expression& e) {
  bool reads = false;
  visit_expressions(e, [&](const Expression& one) {
    reads |= one.kind == Expression::Kind::element || one.kind == Expression::Kind::atomic;
  });
  return reads;
}

/// Returns whether the code compares the place of a thread along the first axis with one value.
bool singles_out_threads(const Statement& body) {
  bool singles_out = false;
  visit_expressions(body, [&](const Expression& e) {
    if (e.kind != Expression::Kind::binary) return;
    if (e.op != Operator::equal && e.op != Operator::not_equal) return;
    visit_expressions(e, [&](const Expression& inner) {
      singles_out |= inner.kind == Expression::Kind::coordinate &&
                     inner.coordinate == Coordinate::thread && inner.axis == 0;
    });
  });
  return singles_out;
}

/// Returns whether code of the block reads memory; loops over threads do not count.
bool block_reads_memory(const Statement& s) {
  if (s.kind == Statement::Kind::threads) return false;
  return std::ranges::any_of(s.expressions, reads_memory) ||
         std::ranges::any_of(s.statements, block_reads_memory);
}

}  // namespace

std::string coordinate_name(Coordinate coordinate, unsigned axis) {
  return fmt::format("tern_{}_{}", text(coordinate), axis_names[axis]);
}

Uses uses_of(const Program& program) {
  Uses uses;
  const auto note = [&](const Expression& e) {
    if (e.kind == Expression::Kind::coordinate) {
      uses.coordinates[static_cast<std::size_t>(e.coordinate)][e.axis] = true;
    }
    if (e.kind == Expression::Kind::atomic) {
      uses.atomics = true;
      uses.atomics64 |= bytes_of(program.variables[e.variable].type) == 8;
    }
  };
  visit_expressions(program.body, note);
  for (const Expression* e : {&program.identity, &program.map, &program.combine}) {
    visit_expressions(*e, note);
  }
  return uses;
}

std::string BodyWriter::name(std::uint32_t variable) const {
  return fmt::format("{}_{}", program_.variables[variable].name, variable);
}

std::string BodyWriter::line(const Position& at) const {
  return fmt::format("#line {} \"kernel {}\"\n", at.line, program_.name);
}

std::string BodyWriter::helpers() const {
  std::string text;
  for (const auto& [name, definition] : helpers_) text += definition;
  return text;
}

const std::string& BodyWriter::use(Helper helper) {
  return helpers_.try_emplace(std::move(helper.name), std::move(helper.text)).first->first;
}

Space BodyWriter::space_of(std::uint32_t variable) const noexcept {
  switch (program_.variables[variable].kind) {
    case Variable::Kind::array:
      return Space::global;
    case Variable::Kind::shared:
      return Space::shared;
    default:
      return Space::local;
  }
}

std::string BodyWriter::operand(const Expression& e) { return at_least(binds::operand, e); }
std::string BodyWriter::expression(const Expression& e) { return piece(e).text; }

std::string BodyWriter::at_least(int binds, const Expression& e) {
  Piece written = piece(e);
  if (written.binds >= binds) return std::move(written.text);
  return fmt::format("({})", written.text);
}

BodyWriter::Piece BodyWriter::piece(const Expression& e) {
  switch (e.kind) {
    case Expression::Kind::integer:
      return {integer_literal(dialect_, e.type, e.integer), binds::operand};
    case Expression::Kind::real:
      return {real_literal(e.type, e.real), binds::operand};
    case Expression::Kind::variable:
      return {name(e.variable), binds::operand};
    case Expression::Kind::coordinate:
      return {coordinate_name(e.coordinate, e.axis), binds::operand};
    case Expression::Kind::element:
      return element(e, false);
    case Expression::Kind::size:
      return {name(e.variable) + "_size", binds::operand};
    case Expression::Kind::unary: {
      const std::string inner = at_least(binds::unary, e.operands[0]);
      // Without the blank, two minus signs would be another operator.
      const std::string_view blank = inner.starts_with(text(e.op)) ? " " : "";
      return {fmt::format("{}{}{}", text(e.op), blank, inner), binds::unary};
    }
    case Expression::Kind::binary:
      return binary(e);
    case Expression::Kind::conditional:
      return {fmt::format("{} ? {} : {}", at_least(binds::logical_or, e.operands[0]),
                          at_least(binds::conditional, e.operands[1]),
                          at_least(binds::conditional, e.operands[2])),
              binds::conditional};
    case Expression::Kind::cast:
      return cast(e);
    case Expression::Kind::assign:
      return assignment(e);
    case Expression::Kind::increment:
      return increment(e, true);
    case Expression::Kind::call:
    case Expression::Kind::atomic:
      return call(e);
  }
  return {};
}

BodyWriter::Piece BodyWriter::cast(const Expression& e) {
  // The parser converts literals by casts. A literal of the type is easier to read.
  const Expression& from = e.operands[0];
  if (from.kind == Expression::Kind::integer && from.type != Scalar::boolean &&
      e.type != Scalar::boolean) {
    constexpr std::uint64_t exact = std::uint64_t{1} << 53;  // larger ones would be rounded twice
    if (is_real(e.type) && from.integer <= exact) {
      return {real_literal(e.type, static_cast<double>(from.integer)), binds::operand};
    }
    if (is_integer(e.type) && from.integer <= (bytes_of(e.type) < 4 ? 0x7f : 0x7fffffff)) {
      return {integer_literal(dialect_, e.type, from.integer), binds::operand};
    }
  }
  return {fmt::format("({}){}", type_name(e.type), at_least(binds::unary, from)), binds::unary};
}

BodyWriter::Piece BodyWriter::element(const Expression& e, bool is_target) {
  const std::string index =
      e.operands.empty() ? coordinate_name(Coordinate::index, 0) : expression(e.operands[0]);
  std::string item = fmt::format("{}[{}]", name(e.variable), index);
  if (is_target || program_.variables[e.variable].type != Scalar::boolean) {
    return {std::move(item), binds::operand};
  }
  return {fmt::format("({} != 0)", item), binds::operand};
}

std::string BodyWriter::shift_amount(const Expression& amount, Scalar shifted) {
  const unsigned width = bytes_of(shifted) == 8 ? 64 : 32;  // smaller types are promoted
  if (amount.kind == Expression::Kind::integer && amount.integer < width) {
    return expression(amount);
  }
  // Devices differ in what a shift by the width or more does. The lowest bits of the amount count
  // in OpenCL C, and so on all devices.
  return fmt::format("({} & {})", at_least(binds::equality, amount), width - 1);
}

BodyWriter::Piece BodyWriter::binary(const Expression& e) {
  const int binding = binding_of(e.op);
  const std::string left = at_least(binding, e.operands[0]);
  const std::string right = is_shift(e.op) ? shift_amount(e.operands[1], e.operands[0].type)
                                           : at_least(binding + 1, e.operands[1]);
  return {fmt::format("{} {} {}", left, text(e.op), right), binding};
}

BodyWriter::Piece BodyWriter::assignment(const Expression& e) {
  const Expression& target = e.operands[0];
  const bool is_element = target.kind == Expression::Kind::element;
  const std::string left = is_element ? element(target, true).text : name(target.variable);
  const std::string right = is_shift(e.op) ? shift_amount(e.operands[1], target.type)
                                           : at_least(binds::assignment, e.operands[1]);
  if (e.op != Operator::none && target.type == Scalar::boolean && is_element) {
    // The element is a byte, which would keep more than one bit of the result.
    return {fmt::format("{0} = (bool)({0} {1} ({2}))", left, text(e.op), right), binds::assignment};
  }
  return {fmt::format("{} {}= {}", left, text(e.op), right), binds::assignment};
}

BodyWriter::Piece BodyWriter::increment(const Expression& e, bool is_used) {
  const Expression& target = e.operands[0];
  const bool is_element = target.kind == Expression::Kind::element;
  const std::string left = is_element ? element(target, true).text : name(target.variable);
  const std::string_view sign = text(e.op);
  if (dialect_ == Dialect::opencl && is_real(target.type)) {
    if (e.is_prefix || !is_used) {
      return {fmt::format("{} {}= {}", left, sign, real_literal(target.type, 1)),
              binds::assignment};
    }
    const std::string& helper =
        use(real_increment_helper(dialect_, e.op, target.type, space_of(target.variable)));
    return {fmt::format("{}(&{})", helper, left), binds::operand};
  }
  if (e.is_prefix) return {fmt::format("{0}{0}{1}", sign, left), binds::unary};
  return {fmt::format("{1}{0}{0}", sign, left), binds::operand};
}

BodyWriter::Piece BodyWriter::call(const Expression& e) {
  std::string text;
  std::string_view comma;
  if (e.kind == Expression::Kind::atomic) {
    const Scalar type = program_.variables[e.variable].type;
    const std::string& helper = use(atomic_helper(dialect_, e.atomic, type, space_of(e.variable)));
    text = fmt::format("{}(&{}[{}]", helper, name(e.variable), expression(e.operands[0]));
    for (std::size_t i = 1; i < e.operands.size(); ++i) {
      text += ", " + expression(e.operands[i]);
    }
  } else {
    text = needs_helper(dialect_, e.function) ? use(function_helper(dialect_, e.function, e.type))
                                              : function_name(dialect_, e.function, e.type);
    text += '(';
    for (const Expression& operand : e.operands) {
      text += std::exchange(comma, ", ");
      text += expression(operand);
    }
  }
  return {text + ')', binds::operand};
}

// ---------------------------------------------------------------------------------- statements

void BodyWriter::put(std::string_view text) {
  out_.append(2 * depth_, ' ');
  out_ += text;
  out_ += '\n';
}

void BodyWriter::put_line(const Position& at) { out_ += line(at); }

void BodyWriter::note_read(const Expression& e) {
  if (!in_threads_ && reads_memory(e)) has_unordered_read_ = true;
}

void BodyWriter::effect(const Expression& e) {
  note_read(e);
  const bool is_increment = e.kind == Expression::Kind::increment;
  put((is_increment ? increment(e, false).text : expression(e)) + ';');
}

std::string BodyWriter::body(unsigned depth) {
  out_.clear();
  depth_ = depth;
  block(program_.body, true);
  return std::move(out_);
}

void BodyWriter::inner(const Statement& s, bool is_last) {
  ++depth_;
  const bool has_braces = s.kind == Statement::Kind::block && !s.is_list;
  has_braces ? block(s, is_last) : statement(s, is_last);
  --depth_;
}

void BodyWriter::block(const Statement& s, bool is_last) {
  for (const Statement& inner : s.statements)
    statement(inner, is_last && &inner == &s.statements.back());
}

void BodyWriter::statement(const Statement& s, bool is_last) {
  if (s.kind != Statement::Kind::block) put_line(s.at);
  switch (s.kind) {
    case Statement::Kind::declare: {
      const Variable& variable = program_.variables[s.variable];
      std::string text = fmt::format("{} {}", type_name(variable.type), name(s.variable));
      if (!s.expressions.empty()) {
        note_read(s.expressions[0]);
        text += " = " + expression(s.expressions[0]);
      }
      return put(text + ';');
    }
    case Statement::Kind::expression:
      return effect(s.expressions[0]);
    case Statement::Kind::if_:
      return branch(s, is_last);
    case Statement::Kind::for_:
    case Statement::Kind::while_:
    case Statement::Kind::do_:
      return loop(s);
    case Statement::Kind::break_:
      return put("break;");
    case Statement::Kind::continue_:
      return put("continue;");
    case Statement::Kind::return_:
      if (!in_threads_) return put("return;");
      // Ends the turn of this thread. The thread must still reach the barrier after the loop.
      has_return_ = true;
      return put(fmt::format("goto tern_end_{};", loops_over_threads_));
    case Statement::Kind::block:
      if (s.is_list) return block(s, is_last);
      if (s.statements.empty()) return;
      put("{");
      inner(s, is_last);
      return put("}");
    case Statement::Kind::threads:
      return threads(s, is_last);
  }
}

void BodyWriter::branch(const Statement& s, bool is_last) {
  note_read(s.expressions[0]);
  const bool unordered_before = has_unordered_read_;
  put(fmt::format("if ({}) {{", expression(s.expressions[0])));
  inner(s.statements[0], is_last);
  const bool unordered_after_first = has_unordered_read_;
  has_unordered_read_ = unordered_before;
  if (s.statements.size() > 1) {
    put("} else {");
    inner(s.statements[1], is_last);
  }
  put("}");
  has_unordered_read_ |= unordered_after_first;
}

void BodyWriter::loop(const Statement& s) {
  const bool is_for = s.kind == Statement::Kind::for_;
  const bool is_do = s.kind == Statement::Kind::do_;
  if (is_for) {
    // What the first part declares lives in a block around the loop. A list of declarations of C
    // would have to be one statement.
    put("{");
    ++depth_;
    statement(s.statements[0], false);
    put_line(s.at);
  }
  // A read anywhere in the loop may come before every statement of its next round.
  if (!in_threads_ && block_reads_memory(s)) has_unordered_read_ = true;
  const bool unordered = has_unordered_read_;
  const std::string condition = s.expressions.empty() ? "true" : expression(s.expressions[0]);
  if (is_do) {
    put("do {");
  } else if (is_for) {
    put(fmt::format("for (; {}; {}) {{", condition,
                    !s.has_step ? ""
                    : s.expressions[1].kind == Expression::Kind::increment
                        ? increment(s.expressions[1], false).text
                        : expression(s.expressions[1])));
  } else {
    put(fmt::format("while ({}) {{", condition));
  }
  inner(s.statements[is_for ? 1 : 0], false);
  put(is_do ? fmt::format("}} while ({});", condition) : "}");
  has_unordered_read_ |= unordered;
  if (is_for) {
    --depth_;
    put("}");
  }
}

void BodyWriter::turn(const Statement& body) {
  ++loops_over_threads_;
  has_return_ = false;
  put("{");
  inner(body, false);
  put("}");
  if (has_return_) put(fmt::format("tern_end_{}:;", loops_over_threads_));
}

void BodyWriter::turns_on_host(const Statement& body) {
  const std::string x = coordinate_name(Coordinate::thread, 0);
  const std::string wide = coordinate_name(Coordinate::block_size, 0);
  const auto turn_of = [&](std::string_view begin) {
    put(begin);
    ++depth_;
    turn(body);
    --depth_;
    put("}");
  };
  for (const unsigned axis : {2u, 1u}) {
    put(fmt::format("for (tern_u64 {0} = 0; {0} < {1}; ++{0}) {{",
                    coordinate_name(Coordinate::thread, axis),
                    coordinate_name(Coordinate::block_size, axis)));
    ++depth_;
  }
  if (singles_out_threads(body)) {
    // The body is written three times: for the first thread, for the threads between, and for the
    // last. In the loop over the threads between, a compiler knows that `thread.x == 0` is false,
    // so it can vectorise the loop.
    turn_of(fmt::format("{{ const tern_u64 {} = 0;", x));
    turn_of(fmt::format("for (tern_u64 {0} = 1; {0} + 1 < {1}; ++{0}) {{", x, wide));
    turn_of(fmt::format("if ({1} > 1) {{ const tern_u64 {0} = {1} - 1;", x, wide));
  } else {
    turn_of(fmt::format("for (tern_u64 {0} = 0; {0} < {1}; ++{0}) {{", x, wide));
  }
  for (int axis = 0; axis < 2; ++axis) {
    --depth_;
    put("}");
  }
}

void BodyWriter::threads(const Statement& s, bool is_last) {
  const bool is_host = dialect_ == Dialect::cpp;
  const std::string_view barrier = dialect_ == Dialect::opencl
                                       ? "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
                                       : "__syncthreads();";
  if (has_unordered_read_ && !is_host) put(barrier);
  in_threads_ = true;
  if (is_host) {
    turns_on_host(s.statements[0]);
  } else {
    turn(s.statements[0]);
  }
  in_threads_ = false;
  if (!is_host && !is_last) put(barrier);
  has_unordered_read_ = false;
}

}  // namespace tern::language
