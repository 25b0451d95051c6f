// The names of the language: of types, functions, operators and other words of a kernel's text, and
// the rules of C for types. The parser looks names up here, and emitters write the same names.
//
// All functions are safe to call from several threads, allocate nothing, and return views of
// static text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "language/syntax.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::language {

// --- Types

/// Returns the C++ name, such as "uint32_t". The names of i32, u32 and u64 are "int", "unsigned"
/// and "uint64_t"; a text may also call them int32_t, uint32_t and size_t.
[[nodiscard]] std::string_view type_text(Scalar type) noexcept;
/// Returns the size of an element of an array. A boolean has one byte.
[[nodiscard]] TERN_EXPORT std::size_t bytes_of(Scalar type) noexcept;
[[nodiscard]] bool is_real(Scalar type) noexcept;
/// As in C, a boolean is an integer, and it is not signed.
[[nodiscard]] bool is_integer(Scalar type) noexcept;
/// Returns whether the type is an integer with a sign.
[[nodiscard]] bool is_signed(Scalar type) noexcept;
/// Returns the type with this name, or nullopt.
[[nodiscard]] std::optional<Scalar> find_type(std::string_view name) noexcept;

/// Returns the type in which C computes with a single operand: int for smaller integers.
[[nodiscard]] Scalar promoted(Scalar type) noexcept;
/// Returns the type in which C computes with two operands (the usual arithmetic conversions).
[[nodiscard]] Scalar common_type(Scalar left, Scalar right) noexcept;

// --- Words

/// Return the word of the text: "element", "inout" (empty for a value), "sqrt", "atomic_add" and
/// "block_size".
[[nodiscard]] std::string_view text(Form form) noexcept;
[[nodiscard]] std::string_view text(Intent intent) noexcept;
[[nodiscard]] std::string_view text(Function function) noexcept;
[[nodiscard]] std::string_view text(Atomic atomic) noexcept;
[[nodiscard]] std::string_view text(Coordinate coordinate) noexcept;
/// Returns the operator, such as "<<". `negate` and `subtract` are both "-"; `none` is empty.
[[nodiscard]] std::string_view text(Operator op) noexcept;

/// Return what the word means, or nullopt.
[[nodiscard]] std::optional<Form> find_form(std::string_view word) noexcept;
[[nodiscard]] std::optional<Intent> find_intent(std::string_view word) noexcept;
[[nodiscard]] std::optional<Function> find_function(std::string_view word) noexcept;
[[nodiscard]] std::optional<Atomic> find_atomic(std::string_view word) noexcept;
[[nodiscard]] std::optional<Coordinate> find_coordinate(std::string_view word) noexcept;

/// Returns the number of arguments of a call. For atomics, the array and the index count too.
[[nodiscard]] std::size_t argument_count(Function function) noexcept;
[[nodiscard]] std::size_t argument_count(Atomic atomic) noexcept;
/// Returns whether the function takes integers too: `abs`, `min` and `max`.
[[nodiscard]] bool takes_integers(Function function) noexcept;

// --- Names that a text cannot give

/// Returns whether the word is a keyword, or a name that is always defined, of C, C++, OpenCL C or
/// CUDA C++. A variable of this name would break the translation to that language.
[[nodiscard]] bool is_foreign_keyword(std::string_view word) noexcept;
/// Returns whether the word has a meaning inside of every kernel, such as `sqrt` or `block_size`.
[[nodiscard]] bool is_own_word(std::string_view word) noexcept;

/// Returns the word of this language for a word of C, OpenCL C or CUDA C++: "thread.x" for
/// "threadIdx", "unsigned" for "uint". Returns an empty text if there is none.
[[nodiscard]] std::string_view equivalent_of(std::string_view foreign_word) noexcept;

/// Finds the name that a misspelt word is meant to be: the candidate with the fewest differing
/// characters, at most two of them.
class NearestName {
 public:
  explicit NearestName(std::string_view word) noexcept : word_(word) {}
  void consider(std::string_view candidate) noexcept;
  void consider_types() noexcept;
  /// Considers all types, functions, atomics and coordinates.
  void consider_own_words() noexcept;
  /// Returns the best candidate so far, or an empty text.
  [[nodiscard]] std::string_view name() const noexcept { return best_; }

 private:
  std::string_view word_;
  std::string_view best_;
  std::size_t best_distance_ = 3;
};

}  // namespace tern::language
