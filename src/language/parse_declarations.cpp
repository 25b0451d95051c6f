// Types, and names that a text declares.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "language/kernel_parser.hpp"
#include "language/names.hpp"
#include "language/parser.hpp"

namespace tern::language {

// --- Names

Token KernelParser::new_name(const char* what) {
  const Token name = current();
  if (!is_name()) {
    fail(name, "{where}: the name of {what} is missing before '{value}'. Add it.",
         {{"what", what}});
  } else if (is_foreign_keyword(name.text)) {
    fail(name,
         "{where}: {what} cannot be named '{value}', which is a word of C, C++, OpenCL C or CUDA "
         "C++. Use another name.",
         {{"what", what}});
  } else if (is_own_word(name.text)) {
    fail(name,
         "{where}: {what} cannot be named '{value}', which is a word of the language. Use another "
         "name.",
         {{"what", what}});
  } else if (name.text.starts_with("tern_") || name.text.starts_with("__") ||
             (name.text.size() > 1 && name.text[0] == '_' && name.text[1] >= 'A' &&
              name.text[1] <= 'Z')) {
    fail(name,
         "{where}: {what} cannot be named '{value}': names that begin with 'tern_', with two "
         "underscores, or with an underscore and a capital letter are reserved. Use another name.",
         {{"what", what}});
  }
  return advance();
}

std::uint32_t KernelParser::declare(const Token& name, Variable variable) {
  variable.name = std::string(name.text);
  variable.at = name.at;
  const auto index = static_cast<std::uint32_t>(program_.variables.size());
  if (!scopes_.back().emplace(name.text, index).second) {
    fail(name, "{where}: '{value}' is declared twice in one scope. Rename one of the two.");
  }
  program_.variables.push_back(std::move(variable));
  return index;
}

const std::uint32_t* KernelParser::find(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return &found->second;
  }
  return nullptr;
}

void KernelParser::fail_unknown(const Token& name) {
  if (name.is("__syncthreads") || name.is("barrier") || name.is("__syncwarp")) {
    return fail(name,
                "{where}: the language has no '{value}': all threads of a block finish a loop over "
                "threads before the next statement. End the loop, and begin another one.");
  }
  if (name.is("std")) {
    return fail(name, "{where}: 'std' is not known. Write the name without 'std::'.");
  }
  if (const std::string_view own = equivalent_of(name.text); !own.empty()) {
    return fail(name, "{where}: '{value}' is not known. Write '{nearest}'.", {{"nearest", own}});
  }
  NearestName nearest(name.text);
  for (const Scope& scope : scopes_) {
    for (const auto& [known, index] : scope) nearest.consider(known);
  }
  nearest.consider_own_words();
  if (!nearest.name().empty()) {
    return fail(name, "{where}: '{value}' is not declared. The nearest known name is '{nearest}'.",
                {{"nearest", nearest.name()}});
  }
  if (is_foreign_keyword(name.text)) {
    return fail(name, "{where}: the language has no '{value}'. Write the kernel without it.");
  }
  fail(name, "{where}: '{value}' is not declared. Declare it before its first use.");
}

// --- Types

bool KernelParser::is_type(std::size_t count) const noexcept {
  return ahead(count).kind == Token::Kind::name && find_type(ahead(count).text).has_value();
}

Scalar KernelParser::type() {
  const Token name = current();
  const std::optional<Scalar> found = find_type(name.text);
  if (!found) {
    fail_unknown_type(name);
    return Scalar::i32;
  }
  advance();
  if (name.is("unsigned") && !accept("int")) {
    const bool is_byte = current().is("char"), is_short = current().is("short");
    if (is_byte || is_short || current().is("long")) {
      fail(current(),
           "{where}: 'unsigned {value}' is not a type of the language. Write '{nearest}'.",
           {{"nearest", is_byte    ? "uint8_t"
                        : is_short ? "uint16_t"
                                   : "uint64_t"}});
    }
  }
  return *found;
}

void KernelParser::fail_unknown_type(const Token& name) {
  if (name.kind != Token::Kind::name) {
    return fail(
        name, "{where}: a type is missing before '{value}'. Write one, such as 'float' or 'int'.");
  }
  std::string_view meant = equivalent_of(name.text);
  NearestName nearest(name.text);
  if (meant.empty()) {
    nearest.consider_types();
    meant = nearest.name();
  }
  if (!meant.empty()) {
    return fail(name, "{where}: '{value}' is not a type of the language. Write '{nearest}'.",
                {{"nearest", meant}});
  }
  fail(name,
       "{where}: '{value}' is not a type of the language. The types are bool, int, unsigned, "
       "float, double, size_t, and int8_t to uint64_t.");
}

// --- Declarations

Statement KernelParser::declaration() {
  if (current().is("shared")) return shared_arrays();
  const bool is_const = accept("const");
  if (current().is("auto")) {
    fail(current(),
         "{where}: 'auto' is only known in 'for (auto thread : threads)'. Write the type of the "
         "variable.");
  }
  Statement list;
  list.at = current().at;
  list.is_list = true;
  const Scalar declared = type();
  do {
    list.statements.push_back(declarator(declared, is_const));
  } while (accept(","));
  expect(";");
  if (list.statements.size() > 1) return list;
  Statement only = std::move(list.statements.front());
  return only;
}

Statement KernelParser::declarator(Scalar declared, bool is_const) {
  if (current().is("*") || current().is("&")) {
    fail(current(), "{where}: the language has no pointers and no references. Declare a value.");
  }
  Statement made;
  made.kind = Statement::Kind::declare;
  made.at = current().at;
  const Token name = new_name("a variable");
  Variable local;
  local.type = declared;
  local.is_const = is_const;
  local.is_of_thread = program_.form != Form::block || is_in_threads_;
  made.variable = declare(name, std::move(local));
  if (current().is("[")) {
    fail(current(),
         "{where}: a variable is one value. Declare an array of a block as shared<{type}, 256>, or "
         "use several variables.",
         {{"type", type_text(declared)}});
  }
  if (accept("=")) {
    // The name is known in its own initial value, as in C++, where it has no value yet.
    declared_now_ = made.variable;
    Expression value = convert(expression(), declared).tree;
    declared_now_.reset();
    if (is_const && is_integer(declared)) {
      if (const auto known = constant(value)) constants_.emplace(made.variable, *known);
    }
    made.expressions.push_back(std::move(value));
  } else if (is_const) {
    fail(name, "{where}: the constant '{value}' has no value. Write '{value} = ...'.");
  }
  return made;
}

// --- Shared arrays

Statement KernelParser::shared_arrays() {
  const Token word = advance();
  if (program_.form != Form::block) {
    fail(word,
         "{where}: only a block kernel has shared arrays, and this kernel is '{form}'. Begin it "
         "with 'block'.",
         {{"form", text(program_.form)}});
  } else if (is_in_threads_) {
    fail(word,
         "{where}: a shared array belongs to the block, and a loop over threads runs for each "
         "thread. Declare the array before the loop.");
  }
  expect("<");
  const Scalar element_type = type();
  expect(",");
  const Token size = current();
  // Not a comparison, because '>' ends the list.
  const Parsed count = binary(additive_precedence);
  const std::optional<std::uint64_t> elements = constant(count.tree);
  const bool is_negative = elements && is_signed(count.tree.type) && (*elements >> 63) != 0;
  if (!elements || *elements == 0 || is_negative) {
    fail(size,
         "{where}: the number of elements of a shared array is a constant of at least 1. Write a "
         "number, or the name of a const variable with one.");
  }
  expect(">");
  do {
    shared_array(element_type, elements.value_or(1));
  } while (accept(","));
  if (current().is("=")) {
    fail(current(),
         "{where}: a shared array has no initial values. Assign the elements in a loop over "
         "threads.");
  }
  expect(";");
  return {};
}

void KernelParser::shared_array(Scalar element_type, std::uint64_t elements) {
  const Token name = new_name("a shared array");
  Variable array;
  array.kind = Variable::Kind::shared;
  array.type = element_type;
  array.elements = elements;
  declare(name, std::move(array));
  // Each array begins at a multiple of its elements. The first test avoids an overflow.
  const std::uint64_t bytes = bytes_of(element_type);
  if (elements <= max_shared_bytes) {
    shared_bytes_ = (shared_bytes_ + bytes - 1) / bytes * bytes + elements * bytes;
  }
  if (elements > max_shared_bytes || shared_bytes_ > max_shared_bytes) {
    fail(name,
         "{where}: with '{value}', the shared arrays of the kernel need more than {limit} bytes, "
         "which not every device has. Make them smaller.",
         {{"limit", std::to_string(max_shared_bytes)}});
  }
}

}  // namespace tern::language
