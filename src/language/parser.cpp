#include "language/parser.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "language/kernel_parser.hpp"
#include "language/names.hpp"

namespace tern::language {
namespace {

/// A failure has few bytes for its texts, and a name may be long.
std::string clipped(std::string_view text) {
  constexpr std::size_t max_length = 36;
  if (text.size() <= max_length) return std::string(text);
  return std::string(text.substr(0, max_length - 3)) + "...";
}

std::string shown(const Token& token) {
  if (token.kind == Token::Kind::end) return "end of the text";
  if (token.text.empty()) return {};
  const unsigned char first = static_cast<unsigned char>(token.text[0]);
  if (first >= 0x20 && first < 0x7f) return clipped(token.text);
  constexpr std::string_view digits = "0123456789abcdef";
  return std::string("byte 0x") + digits[first / 16] + digits[first % 16];
}

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    // The failure would cut the list anyway.
    if (list.size() > 160) return list + ", ...";
    list += (list.empty() ? "" : ", ") + name;
  }
  return list;
}

Failure no_entry(std::string_view entry, const std::vector<std::string>& names) {
  if (entry.empty()) {
    return Failure(ErrorCode::not_found,
                   "the text has {count} kernels, and none is selected. Name one of: {names}.")
        .with("name", "entry")
        .with("count", names.size())
        .with("names", list_of(names));
  }
  return Failure(ErrorCode::not_found,
                 "the text has no kernel '{value}'. Name one of its kernels: {names}.")
      .with("name", "entry")
      .with("value", clipped(entry))
      .with("names", list_of(names));
}

bool uses_float64(const Expression& expression) noexcept {
  return expression.type == Scalar::f64 ||
         std::any_of(expression.operands.begin(), expression.operands.end(),
                     [](const Expression& one) { return uses_float64(one); });
}

bool uses_float64(const Statement& statement) noexcept {
  return std::any_of(statement.expressions.begin(), statement.expressions.end(),
                     [](const Expression& one) { return uses_float64(one); }) ||
         std::any_of(statement.statements.begin(), statement.statements.end(),
                     [](const Statement& one) { return uses_float64(one); });
}

/// Looks at the finished tree, because `float x = 0.5;` has a double in the text only.
bool uses_float64(const Program& program) noexcept {
  const auto is_float64 = [](const Variable& one) { return one.type == Scalar::f64; };
  if (std::any_of(program.variables.begin(), program.variables.end(), is_float64)) return true;
  if (program.form != Form::reduction) return uses_float64(program.body);
  return uses_float64(program.identity) || uses_float64(program.map) ||
         uses_float64(program.combine);
}

}  // namespace

Result<Program> try_parse(std::string_view text, std::string_view entry) {
  if (text.size() > max_text_bytes) {
    return Failure(ErrorCode::invalid_argument,
                   "the text of a kernel has {actual}, and at most {limit} are allowed. Split it "
                   "into several texts.")
        .with("name", "text")
        .with_bytes("actual", text.size())
        .with_bytes("limit", max_text_bytes);
  }
  KernelParser parser(text);
  if (parser.is_at_end()) {
    parser.fail(parser.current(),
                "{where}: the text has no kernel. Begin one with 'element', 'kernel', 'block' or "
                "'reduction<type>'.");
  }
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  std::optional<Program> wanted;
  while (!parser.is_at_end()) {
    const Token first = parser.current();
    Program program = parser.kernel();
    if (parser.failure()) break;
    if (!known.insert(program.name).second) {
      parser.fail(first,
                  "{where}: the text has a second kernel named '{other}'. Rename one of them.",
                  {{"other", program.name}});
      break;
    }
    names.push_back(program.name);
    if (!wanted && (entry.empty() || entry == program.name)) wanted = std::move(program);
  }
  if (parser.failure()) return *parser.failure();
  if (!wanted || (entry.empty() && names.size() > 1)) return no_entry(entry, names);
  wanted->text = std::string(text);
  return *std::move(wanted);
}

// --- Tokens

KernelParser::KernelParser(std::string_view text) : tokens_(tokens_of(text)) {
  if (current().kind == Token::Kind::bad) fail(current(), current().problem);
}

void KernelParser::fail(const Token& at, const char* sentence,
                        std::initializer_list<Detail> details) {
  position_ = tokens_.size() - 1;
  if (failure_) return;
  std::string where =
      "line " + std::to_string(at.at.line) + ", column " + std::to_string(at.at.column);
  if (!program_.name.empty()) where += " of kernel '" + clipped(program_.name) + "'";
  failure_.emplace(ErrorCode::invalid_argument, sentence);
  failure_->with("where", where).with("value", shown(at));
  for (const Detail& detail : details) failure_->with(detail.name, clipped(detail.text));
  failure_->with("line", at.at.line).with("column", at.at.column);
  failure_->with("kernel", clipped(program_.name)).with("name", "text");
}

KernelParser::Level::Level(KernelParser& parser) : parser_(parser) {
  if (++parser_.nesting_ <= max_nesting) return;
  parser_.fail(parser_.current(),
               "{where}: the text is nested more than {limit} levels deep. Compute a part of it "
               "before, in a variable.",
               {{"limit", std::to_string(max_nesting)}});
}

const Token& KernelParser::ahead(std::size_t count) const noexcept {
  return tokens_[std::min(position_ + count, tokens_.size() - 1)];
}

Token KernelParser::advance() {
  const Token token = current();
  if (position_ + 1 < tokens_.size()) ++position_;
  if (current().kind == Token::Kind::bad) fail(current(), current().problem);
  return token;
}

bool KernelParser::accept(std::string_view text) {
  if (!current().is(text)) return false;
  advance();
  return true;
}

bool KernelParser::expect(std::string_view text) {
  if (accept(text)) return true;
  if (is_at_end()) {
    fail(current(), "{where}: the text ends where '{expected}' is missing. Add it.",
         {{"expected", text}});
  } else if (current().is(",")) {
    fail(current(),
         "{where}: '{expected}' is missing before ','. The language has no operator ','. Write two "
         "statements.",
         {{"expected", text}});
  } else {
    fail(current(), "{where}: '{expected}' is missing before '{value}'. Add it.",
         {{"expected", text}});
  }
  return false;
}

// --- Kernels

Program KernelParser::kernel() {
  program_ = Program();
  scopes_.assign(1, Scope());
  uses_.clear();
  constants_.clear();
  declared_now_.reset();
  part_ = Part::none;
  is_in_threads_ = false;
  loop_depth_ = 0;
  shared_bytes_ = 0;

  const Token first = current();
  const std::optional<Form> form = find_form(first.text);
  if (!form) {
    fail(first,
         "{where}: '{value}' cannot begin a kernel. Begin it with 'element', 'kernel', 'block' or "
         "'reduction<type>', and a name.");
    return {};
  }
  advance();
  program_.form = *form;
  if (program_.form == Form::reduction) {
    if (!current().is("<")) {
      fail(current(),
           "{where}: a reduction names the type of its result. Write, for example, "
           "'reduction<double>' before the name.");
    }
    expect("<");
    program_.result = type();
    expect(">");
  }
  name_token_ = new_name("a kernel");
  program_.name = std::string(name_token_.text);
  parameters();
  const Token body = current();
  if (program_.form == Form::reduction) {
    reduction_parts();
  } else {
    program_.body = Statement();
    program_.body.at = body.at;
    expect("{");
    // The body shares the scope of the parameters: it cannot declare their names again.
    while (!is_at_end() && !current().is("}")) program_.body.statements.push_back(statement());
    expect("}");
  }
  if (!failure_) check_uses();
  program_.uses_float64 = uses_float64(program_);
  return std::exchange(program_, Program());
}

void KernelParser::parameters() {
  expect("(");
  if (!accept(")")) {
    do {
      parameter();
    } while (accept(","));
    expect(")");
  }
  check_argument_count(name_token_);
}

void KernelParser::parameter() {
  Parameter added;
  added.at = current().at;
  const Token word = current();
  const bool is_const = accept("const");
  const std::optional<Intent> intent = find_intent(current().text);
  Variable named;
  if (intent && !is_const) {
    advance();
    if (!current().is("<")) {
      fail(current(),
           "{where}: '{intent}' needs the type of the elements. Write, for example, "
           "'{intent}<float>'.",
           {{"intent", text(*intent)}});
    }
    expect("<");
    accept("const");
    added.intent = *intent;
    added.type = type();
    expect(">");
    named.kind = Variable::Kind::array;
  } else {
    added.type = type();
    named.kind = Variable::Kind::value;
    named.is_const = is_const;
  }
  refuse_pointer(added.type);
  if (program_.form == Form::reduction && added.intent != Intent::in &&
      added.intent != Intent::value) {
    fail(word, "{where}: a reduction only reads its arrays. Declare the array in<{type}>.",
         {{"type", type_text(added.type)}});
  }
  const Token name = new_name("a parameter");
  refuse_pointer(added.type);  // `float x[]`
  if (program_.form == Form::reduction && (name.is("a") || name.is("b"))) {
    fail(name,
         "{where}: in a reduction, 'a' and 'b' are the values that 'combine' joins. Rename the "
         "parameter '{value}'.");
  }
  named.type = added.type;
  named.parameter = static_cast<std::uint32_t>(program_.parameters.size());
  added.name = std::string(name.text);
  declare(name, std::move(named));
  program_.parameters.push_back(std::move(added));
  uses_.emplace_back();
}

void KernelParser::refuse_pointer(Scalar type) {
  if (!current().is("*") && !current().is("&") && !current().is("[")) return;
  fail(current(),
       "{where}: a kernel has no pointers and no references. Declare an array as in<{type}>, "
       "out<{type}>, inout<{type}> or part<{type}>.",
       {{"type", type_text(type)}});
}

void KernelParser::check_argument_count(const Token& at) {
  std::size_t count = program_.form == Form::reduction ? 1 : 0;
  for (const Parameter& one : program_.parameters) count += one.intent == Intent::value ? 1 : 2;
  if (count <= max_arguments) return;
  fail(at,
       "{where}: the parameters of the kernel are {count} arguments, because an array is two. At "
       "most {limit} are possible. Join some of the arrays.",
       {{"count", std::to_string(count)}, {"limit", std::to_string(max_arguments)}});
}

// --- Reductions

void KernelParser::reduction_parts() {
  Variable joined;
  joined.kind = Variable::Kind::result;
  joined.type = program_.result;
  const Token at = name_token_;
  for (const std::string_view name : {std::string_view("a"), std::string_view("b")}) {
    declare({Token::Kind::name, at.at, name, nullptr}, joined);
  }
  struct Row {
    std::string_view name;
    Part part;
    Expression* target;
    bool is_known;
  };
  std::array<Row, 3> rows = {{{"identity", Part::identity, &program_.identity, false},
                              {"map", Part::map, &program_.map, false},
                              {"combine", Part::combine, &program_.combine, false}}};
  expect("{");
  while (!is_at_end() && !current().is("}")) {
    const Token name = current();
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const Row& one) { return one.name == name.text; });
    if (row == rows.end()) {
      fail(name,
           "{where}: '{value}' is not a part of a reduction. Write 'identity = ...;', 'map = ...;' "
           "and 'combine = ...;'.");
      return;
    }
    if (row->is_known) {
      fail(name, "{where}: '{value}' has a value already. Remove one of the two.");
    }
    advance();
    expect("=");
    part_ = row->part;
    row->is_known = true;
    *row->target = convert(expression(), program_.result).tree;
    part_ = Part::none;
    expect(";");
  }
  for (const Row& row : rows) {
    if (row.is_known) continue;
    fail(current(),
         "{where}: the reduction has no '{part}'. Write '{part} = ...;' at the end of its body.",
         {{"part", row.name}});
  }
  expect("}");
}

// --- What the whole kernel did

void KernelParser::check_uses() {
  bool has_array = false, may_write = false;
  for (const Parameter& one : program_.parameters) {
    has_array |= one.intent != Intent::value;
    may_write |=
        one.intent == Intent::out || one.intent == Intent::inout || one.intent == Intent::part;
  }
  if (!has_array && (program_.form == Form::element || program_.form == Form::reduction)) {
    fail(name_token_,
         "{where}: the kernel has no array, so it has no elements. Declare one, such as in<float> "
         "x, or write 'kernel' for a kernel that counts its threads.");
  }
  if (!may_write && program_.form != Form::reduction) {
    fail(name_token_,
         "{where}: the kernel writes nothing. Declare the array with its results out, inout or "
         "part.");
  }
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
    const Parameter& one = program_.parameters[i];
    const ArrayUse& use = uses_[i];
    if (one.intent != Intent::out && one.intent != Intent::part) continue;
    const std::optional<Token>& unwritten =
        use.is_assigned && program_.form == Form::element ? use.early_read : use.first_read;
    if (unwritten && (!use.is_assigned || program_.form == Form::element)) {
      fail(*unwritten,
           "{where}: '{value}' is declared {intent}<{type}>, and the kernel reads it before it "
           "assigns it. Declare it inout<{type}>.",
           {{"intent", text(one.intent)}, {"type", type_text(one.type)}});
    }
    if (one.intent == Intent::out && !use.is_written) {
      fail({Token::Kind::name, one.at, one.name, nullptr},
           "{where}: '{value}' is declared out<{type}>, and the kernel never assigns it. Assign "
           "it, or declare it in<{type}>.",
           {{"type", type_text(one.type)}});
    }
  }
}

}  // namespace tern::language
