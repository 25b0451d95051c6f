// Names in expressions: variables, elements of arrays, positions and calls, and what a kernel may
// do with each.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "language/kernel_parser.hpp"
#include "language/names.hpp"

namespace tern::language {

Parsed KernelParser::name() {
  const Token word = current();
  if (word.is("true") || word.is("false")) {
    advance();
    Parsed made = node(Expression::Kind::integer, Scalar::boolean, word.at);
    made.tree.integer = word.is("true") ? 1 : 0;
    return made;
  }
  if (word.is("static_cast")) {
    advance();
    expect("<");
    const Scalar to = type();
    expect(">");
    return type_call(to, word.at);
  }
  if (is_type(0)) {
    const Scalar to = type();
    if (!current().is("(")) {
      fail(word,
           "{where}: the type '{value}' is not a value. Write '{value}(...)' to cast a value.");
    }
    return type_call(to, word.at);
  }
  if (const auto found = find_coordinate(word.text)) {
    advance();
    return coordinate(word, *found);
  }
  const auto function = find_function(word.text);
  const auto atomic = find_atomic(word.text);
  if (function || atomic || word.is("size")) {
    advance();
    if (!current().is("(")) {
      fail(word, "{where}: the function '{value}' is not a value. Write '(' after it to call it.");
    }
    if (function) return function_call(word, *function);
    return atomic ? atomic_call(word, *atomic) : size_call(word);
  }
  if (const std::uint32_t* const known = find(word.text)) {
    advance();
    return variable_use(word, *known);
  }
  if (word.is("threads") || word.is("shared")) {
    fail(word, "{where}: '{value}' is not a value. Use another name.");
  } else {
    fail_unknown(word);
  }
  return node(Expression::Kind::integer, Scalar::i32, word.at);
}

// --- Variables and elements

void KernelParser::check_reduction_name(const Token& name, const Variable& used) {
  if (used.kind == Variable::Kind::result) {
    if (part_ != Part::combine) {
      fail(name,
           "{where}: '{value}' is only known in 'combine'. Use an array or a parameter in 'map', "
           "and a number in 'identity'.");
    }
  } else if (part_ == Part::combine || part_ == Part::identity) {
    fail(name,
         "{where}: '{part}' cannot use the parameter '{value}', because the pass that combines the "
         "results of blocks has no parameters. Use it in 'map'.",
         {{"part", part_ == Part::combine ? "combine" : "identity"}});
  }
}

Parsed KernelParser::variable_use(const Token& name, std::uint32_t index) {
  const Variable& used = variable(index);
  if (program_.form == Form::reduction) check_reduction_name(name, used);
  if (declared_now_ == index) {
    fail(name, "{where}: '{value}' is used in its own initial value. Use another variable.");
  }
  if (current().is("(")) {
    fail(name, "{where}: '{value}' is not a function. Write an operator after it.");
  }
  if (used.kind == Variable::Kind::array || used.kind == Variable::Kind::shared) {
    return element(name, index);
  }
  if (current().is("[")) {
    fail(name, "{where}: '{value}' is one value and has no elements. Remove the '['.");
  }
  Parsed made = node(Expression::Kind::variable, used.type, name.at);
  made.tree.variable = index;
  return made;
}

Parsed KernelParser::element(const Token& name, std::uint32_t index) {
  const Variable& array = variable(index);
  Parsed made = node(Expression::Kind::element, array.type, name.at);
  made.tree.variable = index;
  const bool is_by_element = program_.form == Form::element || program_.form == Form::reduction;
  if (is_by_element && current().is("[")) {
    fail(name,
         "{where}: in this kernel, '{value}' is already the element at its own index. Remove the "
         "'[', or begin the kernel with 'kernel' to use other elements.");
  } else if (!is_by_element && !current().is("[")) {
    fail(name,
         "{where}: '{value}' is an array. Write '{value}[i]' for one element, or 'size({value})' "
         "for their number.");
  } else if (!is_by_element) {
    advance();
    Parsed at = array_index(name, variable(index));
    expect("]");
    adopt(made, std::move(at));
  }
  note_read(name, index);
  return made;
}

Parsed KernelParser::array_index(const Token& name, const Variable& array) {
  const Token first = current();
  Parsed index = expression();
  const Scalar type = index.tree.type;
  if (!is_integer(type)) {
    fail(first,
         "{where}: an index is an integer, and this one is '{type}'. Cast it, such as size_t(...).",
         {{"type", type_text(type)}});
  } else if (const auto known = constant(index.tree)) {
    const bool is_negative = is_signed(type) && (*known >> 63) != 0;
    if (is_negative || (array.kind == Variable::Kind::shared && *known >= array.elements)) {
      fail(first,
           "{where}: '{array}' has no element at this index. Use an index from 0 to its number of "
           "elements minus 1.",
           {{"array", name.text}});
    }
  }
  return convert(std::move(index), is_signed(type) ? Scalar::i64 : Scalar::u64);
}

void KernelParser::note_read(const Token& name, std::uint32_t index) {
  const Variable& read = variable(index);
  if (read.kind != Variable::Kind::array) return;
  ArrayUse& use = uses_[read.parameter];
  if (!use.first_read) use.first_read = name;
  if (!use.early_read && loop_depth_ == 0 && !use.is_assigned) use.early_read = name;
}

void KernelParser::undo_read(const Expression& target) {
  if (target.kind != Expression::Kind::element) return;
  const Variable& written = variable(target.variable);
  if (written.kind != Variable::Kind::array) return;
  const auto is_target = [&](const std::optional<Token>& read) {
    return read && read->at.line == target.at.line && read->at.column == target.at.column;
  };
  ArrayUse& use = uses_[written.parameter];
  if (is_target(use.first_read)) use.first_read.reset();
  if (is_target(use.early_read)) use.early_read.reset();
}

void KernelParser::note_write(const Expression& target, bool is_assignment) {
  if (target.kind != Expression::Kind::element) return;
  const Variable& written = variable(target.variable);
  if (written.kind != Variable::Kind::array) return;
  ArrayUse& use = uses_[written.parameter];
  use.is_written = true;
  use.is_assigned |= is_assignment;
}

// --- Writes

void KernelParser::check_memory_write(const Token& at) {
  if (program_.form != Form::block || is_in_threads_) return;
  fail(at,
       "{where}: '{value}' writes memory outside of a loop over threads, where one thread would be "
       "enough for the whole block. Write it inside of 'for (auto thread : threads)'.");
}

void KernelParser::check_target(const Token& at, const Expression& target) {
  if (program_.form == Form::reduction) {
    return fail(at,
                "{where}: '{value}' assigns a value, and a reduction only computes. Use the value "
                "directly.");
  }
  if (target.kind == Expression::Kind::element) {
    const Variable& array = variable(target.variable);
    if (array.kind == Variable::Kind::array &&
        program_.parameters[array.parameter].intent == Intent::in) {
      return fail({Token::Kind::name, target.at, array.name, nullptr},
                  "{where}: '{value}' is declared in<{type}>, so the kernel cannot write it. "
                  "Declare it inout<{type}>.",
                  {{"type", type_text(array.type)}});
    }
    return check_memory_write(at);
  }
  if (target.kind != Expression::Kind::variable) {
    return fail(at,
                "{where}: '{value}' assigns to something that is neither a variable nor an "
                "element. Write the name of a variable or an element.");
  }
  const Variable& written = variable(target.variable);
  const Token name = {Token::Kind::name, target.at, written.name, nullptr};
  if (written.is_const) {
    fail(name,
         "{where}: '{value}' is const, so the kernel cannot assign it. Declare it without const.");
  } else if (is_in_threads_ && !written.is_of_thread) {
    fail(name,
         "{where}: '{value}' belongs to the whole block, so a loop over threads cannot assign it. "
         "Declare it inside of the loop, or use a shared array.");
  }
}

// --- Positions

Parsed KernelParser::coordinate(const Token& name, Coordinate which) {
  const Form form = program_.form;
  if (form == Form::element || form == Form::reduction) {
    fail(name,
         "{where}: '{value}' is not known here, because an array is its element in this kernel. "
         "Begin the kernel with 'kernel' to use positions.");
  } else if (form == Form::block && which == Coordinate::index) {
    fail(name, "{where}: a block kernel has no 'index'. Write block.x * block_size.x + thread.x.");
  } else if (form == Form::block && which == Coordinate::thread && !is_in_threads_) {
    fail(name,
         "{where}: 'thread' is only known in a loop over threads. Write it inside of 'for (auto "
         "thread : threads)'.");
  }
  Parsed made = node(Expression::Kind::coordinate, Scalar::u64, name.at);
  made.tree.coordinate = which;
  if (!current().is(".")) {
    fail(name, "{where}: '{value}' has three parts. Write {value}.x, {value}.y or {value}.z.");
  }
  expect(".");
  const Token axis = current();
  if (!axis.is("x") && !axis.is("y") && !axis.is("z")) {
    fail(axis, "{where}: '{position}' has no part '{value}'. Its parts are x, y and z.",
         {{"position", name.text}});
    return made;
  }
  made.tree.axis = static_cast<std::uint8_t>(axis.text[0] - 'x');
  advance();
  return made;
}

// --- Calls

Parsed KernelParser::function_call(const Token& name, Function function) {
  expect("(");
  std::vector<Parsed> arguments;
  if (!accept(")")) {
    do {
      arguments.push_back(expression());
    } while (accept(","));
    expect(")");
  }
  const std::size_t expected = argument_count(function);
  if (arguments.size() != expected) {
    fail(name,
         "{where}: the number of arguments of '{value}' is {count} instead of {expected}. Pass "
         "{expected}.",
         {{"count", std::to_string(arguments.size())}, {"expected", std::to_string(expected)}});
  }
  if (failure_) return node(Expression::Kind::integer, Scalar::i32, name.at);
  Scalar type = promoted(arguments[0].tree.type);
  for (const Parsed& one : arguments) type = common_type(type, one.tree.type);
  if (is_integer(type) && !takes_integers(function)) {
    fail(name,
         "{where}: '{value}' takes float or double, and its argument is '{type}'. Cast it, such as "
         "float(...).",
         {{"type", type_text(arguments[0].tree.type)}});
  } else if (function == Function::abs && is_integer(type) && !is_signed(type)) {
    fail(name,
         "{where}: '{value}' takes a number with a sign, and its argument is '{type}'. Use the "
         "argument itself.",
         {{"type", type_text(type)}});
  }
  Parsed made = node(Expression::Kind::call, type, name.at);
  made.tree.function = function;
  for (Parsed& one : arguments) adopt(made, convert(std::move(one), type));
  return made;
}

std::optional<std::uint32_t> KernelParser::array_argument(const Token& call) {
  const Token name = current();
  const std::uint32_t* const known = is_name() ? find(name.text) : nullptr;
  const bool is_array = known != nullptr && (variable(*known).kind == Variable::Kind::array ||
                                             variable(*known).kind == Variable::Kind::shared);
  if (is_array) {
    advance();
    return *known;
  }
  if (is_name() && known == nullptr && !is_own_word(name.text)) {
    fail_unknown(name);
  } else {
    fail(name,
         "{where}: '{call}' needs the name of an array, and '{value}' is not one. Write its name.",
         {{"call", call.text}});
  }
  return std::nullopt;
}

Parsed KernelParser::size_call(const Token& name) {
  if (program_.form == Form::element || program_.form == Form::reduction) {
    fail(name,
         "{where}: 'size' is not known here, because an array is its element in this kernel. Begin "
         "the kernel with 'kernel', or pass the size as a value.");
  }
  expect("(");
  const auto index = array_argument(name);
  expect(")");
  Parsed made = node(Expression::Kind::size, Scalar::u64, name.at);
  if (!index) return made;
  Variable& array = variable(*index);
  made.tree.variable = *index;
  if (array.kind == Variable::Kind::shared) {
    made.tree.kind = Expression::Kind::integer;
    made.tree.integer = array.elements;
  } else {
    array.needs_size = true;
  }
  return made;
}

Parsed KernelParser::atomic_call(const Token& name, Atomic atomic) {
  if (program_.form == Form::element || program_.form == Form::reduction) {
    fail(name,
         "{where}: '{value}' needs an index, and in this kernel an array is its element. Begin the "
         "kernel with 'kernel'.");
  }
  check_memory_write(name);
  expect("(");
  const Token argument = current();
  const auto index = array_argument(name);
  Parsed made = node(Expression::Kind::atomic, Scalar::i32, name.at);
  if (!index) return made;
  const Variable& array = variable(*index);
  const Scalar type = array.type;
  made.tree.type = type;
  made.tree.atomic = atomic;
  made.tree.variable = *index;
  if (array.kind == Variable::Kind::array) {
    const Parameter& declared = program_.parameters[array.parameter];
    if (declared.intent != Intent::inout) {
      fail(argument,
           "{where}: '{value}' is declared {intent}<{type}>, and an atomic function reads and "
           "writes it. Declare it inout<{type}>.",
           {{"intent", text(declared.intent)}, {"type", type_text(type)}});
    }
  }
  const bool is_wide_integer = is_integer(type) && bytes_of(type) >= 4;
  if (!is_wide_integer && !(type == Scalar::f32 && atomic == Atomic::add)) {
    fail(argument,
         "{where}: '{call}' cannot work on '{value}', whose elements are '{type}'. Use int, "
         "unsigned, int64_t or uint64_t; atomic_add also takes float.",
         {{"call", name.text}, {"type", type_text(type)}});
  }
  std::size_t count = 1;
  while (accept(",")) {
    // The first one is the index.
    Parsed value = count == 1 ? array_index(argument, variable(*index)) : expression();
    adopt(made, count == 1 ? std::move(value) : convert(std::move(value), type));
    ++count;
  }
  expect(")");
  if (count != argument_count(atomic)) {
    fail(name,
         "{where}: the number of arguments of '{value}' is {count} instead of {expected}. Pass the "
         "array, the index, and then the values.",
         {{"count", std::to_string(count)}, {"expected", std::to_string(argument_count(atomic))}});
  }
  return made;
}

}  // namespace tern::language
