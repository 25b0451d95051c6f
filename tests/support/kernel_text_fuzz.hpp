// The fuzz target for the text of kernels: parses the text and checks the program or the failure.

#pragma once

#include <string_view>

#include "language/names.hpp"
#include "language/parser.hpp"
#include "support/fuzz_bytes.hpp"

namespace tern::test {

/// Walks a program and checks what its readers rely on: the indices are in range, and every node
/// has the operands of its kind and the types of C.
class ProgramRules {
 public:
  explicit ProgramRules(const language::Program& program) : program_(program) {}

  void check() {
    for (const language::Variable& one : program_.variables) {
      const bool is_parameter = one.kind == language::Variable::Kind::value ||
                                one.kind == language::Variable::Kind::array;
      require_in_fuzz(!is_parameter || one.parameter < program_.parameters.size());
      require_in_fuzz(one.kind != language::Variable::Kind::shared || one.elements > 0);
    }
    if (program_.form == language::Form::reduction) {
      for (const language::Expression* one :
           {&program_.identity, &program_.map, &program_.combine}) {
        check(*one);
        require_in_fuzz(one->type == program_.result);
      }
    } else {
      check(program_.body);
    }
  }

 private:
  using Expression = language::Expression;
  using Statement = language::Statement;

  static bool is_shift(language::Operator op) {
    return op == language::Operator::shift_left || op == language::Operator::shift_right;
  }
  static bool is_comparison(language::Operator op) {
    return op >= language::Operator::less && op <= language::Operator::not_equal;
  }

  void check_operand_count(const Expression& e, std::size_t least, std::size_t most) {
    require_in_fuzz(e.operands.size() >= least && e.operands.size() <= most);
  }

  void check(const Expression& e) {
    using Kind = Expression::Kind;
    require_in_fuzz(++depth_ <= language::max_expression_height);
    for (const Expression& one : e.operands) check(one);
    --depth_;
    const language::Scalar operand_type = e.operands.empty() ? e.type : e.operands.front().type;
    switch (e.kind) {
      case Kind::integer:
        require_in_fuzz(language::is_integer(e.type));
        return check_operand_count(e, 0, 0);
      case Kind::real:
        require_in_fuzz(language::is_real(e.type));
        return check_operand_count(e, 0, 0);
      case Kind::coordinate:
        return check_operand_count(e, 0, 0);
      case Kind::variable:
        require_in_fuzz(e.type == program_.variables.at(e.variable).type);
        return check_operand_count(e, 0, 0);
      case Kind::size:
        require_in_fuzz(program_.variables.at(e.variable).needs_size);
        return check_operand_count(e, 0, 0);
      case Kind::element: {
        const bool has_index =
            program_.form == language::Form::thread || program_.form == language::Form::block;
        require_in_fuzz(e.type == program_.variables.at(e.variable).type);
        require_in_fuzz(!has_index || operand_type == language::Scalar::i64 ||
                        operand_type == language::Scalar::u64);
        return check_operand_count(e, has_index, has_index);
      }
      case Kind::unary:
        require_in_fuzz(operand_type == e.type);
        return check_operand_count(e, 1, 1);
      case Kind::cast:
        return check_operand_count(e, 1, 1);
      case Kind::binary:
        check_operand_count(e, 2, 2);
        require_in_fuzz(is_shift(e.op) || operand_type == e.operands[1].type);
        require_in_fuzz(e.type == (is_comparison(e.op) ? language::Scalar::boolean : operand_type));
        return;
      case Kind::conditional:
        check_operand_count(e, 3, 3);
        require_in_fuzz(operand_type == language::Scalar::boolean);
        require_in_fuzz(e.operands[1].type == e.type && e.operands[2].type == e.type);
        return;
      case Kind::assign:
        check_operand_count(e, 2, 2);
        check_target(e.operands[0]);
        require_in_fuzz(operand_type == e.type);
        require_in_fuzz(e.op != language::Operator::none || e.operands[1].type == e.type);
        return;
      case Kind::increment:
        check_operand_count(e, 1, 1);
        return check_target(e.operands[0]);
      case Kind::call:
        for (const Expression& one : e.operands) require_in_fuzz(one.type == e.type);
        return check_operand_count(e, language::argument_count(e.function),
                                   language::argument_count(e.function));
      case Kind::atomic: {
        const std::size_t count = language::argument_count(e.atomic) - 1;
        require_in_fuzz(e.type == program_.variables.at(e.variable).type);
        return check_operand_count(e, count, count);
      }
    }
  }

  void check_target(const Expression& target) {
    const language::Variable& written = program_.variables.at(target.variable);
    require_in_fuzz(!written.is_const);
    if (target.kind == Expression::Kind::variable) return;
    require_in_fuzz(target.kind == Expression::Kind::element);
    require_in_fuzz(written.kind != language::Variable::Kind::array ||
                    program_.parameters.at(written.parameter).intent != language::Intent::in);
  }

  void check_parts(const Statement& s, std::size_t expressions, std::size_t statements) {
    require_in_fuzz(s.expressions.size() == expressions && s.statements.size() == statements);
  }

  void check(const Statement& s) {
    using Kind = Statement::Kind;
    for (const Expression& one : s.expressions) check(one);
    for (const Statement& one : s.statements) check(one);
    switch (s.kind) {
      case Kind::declare:
        require_in_fuzz(s.expressions.empty() ||
                        s.expressions[0].type == program_.variables.at(s.variable).type);
        return check_parts(s, s.expressions.empty() ? 0 : 1, 0);
      case Kind::expression:
        return check_parts(s, 1, 0);
      case Kind::if_:
        return check_parts(s, 1, s.statements.size() == 2 ? 2 : 1);
      case Kind::for_:
        return check_parts(s, s.has_step ? 2 : 1, 2);
      case Kind::while_:
      case Kind::do_:
        return check_parts(s, 1, 1);
      case Kind::break_:
      case Kind::continue_:
      case Kind::return_:
        return check_parts(s, 0, 0);
      case Kind::block:
        return check_parts(s, 0, s.statements.size());
      case Kind::threads:
        return check_parts(s, 0, 1);
    }
  }

  const language::Program& program_;
  std::size_t depth_ = 0;
};

/// Returns whether the text is a program.
inline bool fuzz_kernel_text(std::string_view text) {
  const Result<language::Program> made = language::try_parse(text);
  if (made) {
    ProgramRules(*made).check();
    return true;
  }
  const Failure& failure = made.failure();
  // A text of several kernels, none of which is selected, or one that is too long.
  if (failure.code() == ErrorCode::not_found || failure.number("limit")) return false;
  require_in_fuzz(failure.code() == ErrorCode::invalid_argument);
  require_in_fuzz(failure.number("line") && *failure.number("line") >= 1);
  require_in_fuzz(failure.number("column") && *failure.number("column") >= 1);
  require_in_fuzz(failure.string("value") && failure.string("kernel"));
  return false;
}

}  // namespace tern::test
