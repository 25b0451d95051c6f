// The parser of one text, for try_parse(): a recursive descent over the tokens. Each function reads
// one construct of the grammar and builds its part of the tree.
//
// After the first mistake, the parser jumps to the end of the text. So every loop and every
// recursion ends, functions need not check whether a part of theirs failed, and later mistakes,
// which would only be consequences, are dropped.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "language/lexer.hpp"
#include "language/syntax.hpp"
#include "tern/core/error.hpp"

namespace tern::language {

/// An expression, and the height of its tree.
struct Parsed {
  Expression tree;
  unsigned height = 1;
};

/// The precedence of + and -. Operators that bind weaker include '>', which ends a list of types.
inline constexpr int additive_precedence = 9;

class KernelParser {
 public:
  explicit KernelParser(std::string_view text);

  [[nodiscard]] bool is_at_end() const noexcept { return current().kind == Token::Kind::end; }
  /// Reads the next kernel. After a failure, what it returns is not usable.
  [[nodiscard]] Program kernel();
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// Records a mistake at a token. The first one counts. The sentence follows the place and has
  /// static storage; its placeholders are {value}, the token, and the names of the details.
  struct Detail {
    const char* name;
    std::string_view text;
  };
  void fail(const Token& at, const char* sentence, std::initializer_list<Detail> details = {});
  [[nodiscard]] const Token& current() const noexcept { return tokens_[position_]; }

 private:
  /// Counts the nesting while a recursive function runs.
  class Level {
   public:
    explicit Level(KernelParser& parser);
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --parser_.nesting_; }

   private:
    KernelParser& parser_;
  };
  friend class Level;

  /// The names of one scope. Views of the text.
  using Scope = std::unordered_map<std::string_view, std::uint32_t>;

  /// What the kernel did so far with an array parameter.
  struct ArrayUse {
    std::optional<Token> first_read;
    std::optional<Token> early_read;  // the first read that no `=` can have come before
    bool is_assigned = false;         // by `=`
    bool is_written = false;          // by any means
  };

  /// The part of a reduction that is read.
  enum class Part : std::uint8_t { none, identity, map, combine };

  // --- Tokens

  [[nodiscard]] const Token& ahead(std::size_t count) const noexcept;
  Token advance();
  /// Reads this token if it is next.
  bool accept(std::string_view text);
  bool expect(std::string_view text);
  [[nodiscard]] bool is_name() const noexcept { return current().kind == Token::Kind::name; }

  // --- Kernels: parser.cpp

  void parameters();
  void parameter();
  void refuse_pointer(Scalar type);
  void reduction_parts();
  void check_uses();
  void check_argument_count(const Token& at);

  // --- Names: parse_declarations.cpp

  /// Reads the name of something new. Fails if the name is a keyword of any language.
  Token new_name(const char* what);
  /// Adds a variable to the innermost scope.
  std::uint32_t declare(const Token& name, Variable variable);
  [[nodiscard]] const std::uint32_t* find(std::string_view name) const;
  [[nodiscard]] Variable& variable(std::uint32_t index) { return program_.variables[index]; }
  void fail_unknown(const Token& name);
  void fail_unknown_type(const Token& name);
  Scalar type();
  [[nodiscard]] bool is_type(std::size_t count) const noexcept;
  Statement declaration();
  Statement declarator(Scalar type, bool is_const);
  Statement shared_arrays();
  void shared_array(Scalar type, std::uint64_t elements);

  // --- Statements: parse_statements.cpp

  Statement statement();
  /// A statement with a scope of its own, such as the body of an `if`.
  Statement inner_statement();
  Statement simple_statement();
  Statement braces();
  Statement if_statement();
  Statement for_statement();
  Statement threads_statement(Position at);
  Statement while_statement();
  Statement do_statement();
  Statement jump_statement(Statement::Kind kind);
  Statement return_statement();
  Statement loop_body();

  // --- Expressions: parse_expressions.cpp

  Parsed expression() { return assignment(); }
  Parsed condition();
  Parsed assignment();
  Parsed conditional();
  Parsed binary(int min_precedence);
  Parsed unary();
  Parsed postfix();
  Parsed primary();
  Parsed number();
  Parsed name();
  Parsed parenthesised();
  Parsed increment(const Token& at, Operator op, bool is_prefix, Parsed target);
  Parsed assigned(const Token& at, Operator op, Parsed target, Parsed value);
  Parsed join(const Token& at, Operator op, Parsed left, Parsed right);

  Parsed node(Expression::Kind kind, Scalar type, Position at);
  void adopt(Parsed& parent, Parsed child);
  Parsed convert(Parsed value, Scalar type);
  Parsed cast(Parsed value, Scalar type, Position at);
  /// Returns the literal as a literal of the other type, or nullopt if that is another value.
  std::optional<Parsed> literal_as(const Parsed& value, Scalar type);
  void check_operands(const Token& at, Operator op, const Expression& left,
                      const Expression& right);
  [[nodiscard]] std::optional<std::uint64_t> constant(const Expression& expression) const;

  // --- Names in expressions: parse_names.cpp

  Parsed variable_use(const Token& name, std::uint32_t index);
  Parsed element(const Token& name, std::uint32_t index);
  Parsed array_index(const Token& name, const Variable& array);
  Parsed coordinate(const Token& name, Coordinate coordinate);
  Parsed function_call(const Token& name, Function function);
  Parsed atomic_call(const Token& name, Atomic atomic);
  Parsed size_call(const Token& name);
  Parsed type_call(Scalar type, Position at);
  /// Reads the name of an array as an argument of a call.
  std::optional<std::uint32_t> array_argument(const Token& call);
  void check_reduction_name(const Token& name, const Variable& used);
  void check_target(const Token& at, const Expression& target);
  void check_memory_write(const Token& at);
  void note_read(const Token& name, std::uint32_t index);
  void undo_read(const Expression& target);
  void note_write(const Expression& target, bool is_assignment);

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  std::optional<Failure> failure_;

  // The kernel that is read.
  Program program_;
  std::vector<Scope> scopes_;
  std::vector<ArrayUse> uses_;                                  // as the parameters
  std::unordered_map<std::uint32_t, std::uint64_t> constants_;  // values of const integers
  std::optional<std::uint32_t> declared_now_;  // the variable whose initial value is read
  Token name_token_;
  Part part_ = Part::none;
  bool is_in_threads_ = false;
  unsigned loop_depth_ = 0;
  unsigned nesting_ = 0;
  std::uint64_t shared_bytes_ = 0;
};

}  // namespace tern::language
