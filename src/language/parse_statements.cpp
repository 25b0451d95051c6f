// Statements.

#include <utility>

#include "language/kernel_parser.hpp"
#include "language/names.hpp"

namespace tern::language {

Statement KernelParser::inner_statement() {
  scopes_.emplace_back();
  Statement inner = statement();
  scopes_.pop_back();
  return inner;
}

Statement KernelParser::statement() {
  const Level level(*this);
  const Position at = current().at;
  Statement made = simple_statement();
  // A declaration has its place at the name.
  if (made.kind != Statement::Kind::declare) made.at = at;
  return made;
}

Statement KernelParser::simple_statement() {
  const Token& first = current();
  if (first.is("{")) return braces();
  if (accept(";")) return {};
  if (first.is("if")) return if_statement();
  if (first.is("for")) return for_statement();
  if (first.is("while")) return while_statement();
  if (first.is("do")) return do_statement();
  if (first.is("break")) return jump_statement(Statement::Kind::break_);
  if (first.is("continue")) return jump_statement(Statement::Kind::continue_);
  if (first.is("return")) return return_statement();
  if (first.is("const") || first.is("auto") || first.is("shared") || is_type(0)) {
    return declaration();
  }
  // Two names, as in `uint n = 3;`, are a declaration with an unknown type.
  if (is_name() && ahead(1).kind == Token::Kind::name) {
    const std::uint32_t* const known = find(first.text);
    if (known == nullptr) fail_unknown_type(first);
  }
  Statement made;
  made.kind = Statement::Kind::expression;
  made.expressions.push_back(expression().tree);
  expect(";");
  return made;
}

Statement KernelParser::braces() {
  Statement made;
  expect("{");
  scopes_.emplace_back();
  while (!is_at_end() && !current().is("}")) made.statements.push_back(statement());
  scopes_.pop_back();
  expect("}");
  return made;
}

Statement KernelParser::if_statement() {
  advance();
  Statement made;
  made.kind = Statement::Kind::if_;
  expect("(");
  made.expressions.push_back(condition().tree);
  expect(")");
  made.statements.push_back(inner_statement());
  if (accept("else")) made.statements.push_back(inner_statement());
  return made;
}

// --- Loops

Statement KernelParser::loop_body() {
  // As in C++, the braces of a body do not begin another scope than that of the loop: its variables
  // cannot be declared again.
  const Level level(*this);
  if (!current().is("{")) return inner_statement();
  Statement body;
  body.at = advance().at;
  while (!is_at_end() && !current().is("}")) body.statements.push_back(statement());
  expect("}");
  return body;
}

Statement KernelParser::for_statement() {
  const Position at = advance().at;
  expect("(");
  const std::size_t word = current().is("const") ? 1 : 0;
  if (ahead(word).is("auto") && ahead(word + 2).is(":")) return threads_statement(at);
  Statement made;
  made.kind = Statement::Kind::for_;
  scopes_.emplace_back();
  if (current().is("const") || current().is("auto") || is_type(0)) {
    made.statements.push_back(declaration());
  } else if (accept(";")) {
    made.statements.emplace_back();
  } else {
    if (is_name() && ahead(1).kind == Token::Kind::name) fail_unknown_type(current());
    Statement first;
    first.kind = Statement::Kind::expression;
    first.at = current().at;
    first.expressions.push_back(expression().tree);
    made.statements.push_back(std::move(first));
    expect(";");
  }
  ++loop_depth_;
  if (current().is(";")) {
    Parsed always = node(Expression::Kind::integer, Scalar::boolean, current().at);
    always.tree.integer = 1;
    made.expressions.push_back(std::move(always.tree));
  } else {
    made.expressions.push_back(condition().tree);
  }
  expect(";");
  if (!current().is(")")) {
    made.has_step = true;
    made.expressions.push_back(expression().tree);
  }
  expect(")");
  made.statements.push_back(loop_body());
  --loop_depth_;
  scopes_.pop_back();
  return made;
}

Statement KernelParser::threads_statement(Position at) {
  const Token word = {Token::Kind::name, at, "for", nullptr};
  if (program_.form != Form::block) {
    fail(word,
         "{where}: only a block kernel has loops over threads, and this kernel is '{form}', whose "
         "text runs for each thread. Remove the loop, or begin the kernel with 'block'.",
         {{"form", text(program_.form)}});
  } else if (is_in_threads_) {
    fail(word,
         "{where}: a loop over threads is inside of another one. End the first loop before the "
         "second.");
  }
  accept("const");
  expect("auto");
  expect("thread");
  expect(":");
  expect("threads");
  expect(")");
  Statement made;
  made.kind = Statement::Kind::threads;
  // `break` and `continue` end loops of the thread, and not a loop around all threads.
  const unsigned outer_depth = std::exchange(loop_depth_, 0u);
  is_in_threads_ = true;
  made.statements.push_back(inner_statement());
  is_in_threads_ = false;
  loop_depth_ = outer_depth;
  return made;
}

Statement KernelParser::while_statement() {
  advance();
  Statement made;
  made.kind = Statement::Kind::while_;
  ++loop_depth_;
  expect("(");
  made.expressions.push_back(condition().tree);
  expect(")");
  made.statements.push_back(inner_statement());
  --loop_depth_;
  return made;
}

Statement KernelParser::do_statement() {
  advance();
  Statement made;
  made.kind = Statement::Kind::do_;
  ++loop_depth_;
  made.statements.push_back(inner_statement());
  expect("while");
  expect("(");
  made.expressions.push_back(condition().tree);
  expect(")");
  expect(";");
  --loop_depth_;
  return made;
}

// --- Jumps

Statement KernelParser::jump_statement(Statement::Kind kind) {
  const Token word = advance();
  Statement made;
  made.kind = kind;
  if (loop_depth_ == 0 && is_in_threads_ && kind == Statement::Kind::continue_) {
    made.kind = Statement::Kind::return_;  // ends the turn of this thread, as in C++
  } else if (loop_depth_ == 0) {
    fail(word, is_in_threads_
                   ? "{where}: '{value}' is in no loop of the thread. A loop over threads runs for "
                     "every thread: use 'continue' to end the turn of one thread in it."
                   : "{where}: '{value}' is in no loop. Remove it.");
  }
  expect(";");
  return made;
}

Statement KernelParser::return_statement() {
  const Token word = advance();
  if (program_.form == Form::block) {
    fail(word,
         is_in_threads_
             ? "{where}: 'return' would end the whole block. Use 'continue' to end the turn of "
               "one thread."
             : "{where}: 'return' would end the whole block. Use 'if' around the rest.");
  }
  if (!current().is(";")) {
    fail(current(),
         "{where}: a kernel returns no value. Assign '{value}' to an element of an array, and "
         "write 'return;'.");
  }
  expect(";");
  Statement made;
  made.kind = Statement::Kind::return_;
  return made;
}

}  // namespace tern::language
