// Reads the text of portable kernels and builds the tree of one of them (syntax.hpp).
//
// The parser accepts what C accepts, within the language, and has the types of C: it inserts a cast
// wherever C converts a value. It refuses a text with a mistake, and says where the mistake is and
// what to write instead. It is safe for any text: nesting, names, and the text itself have limits.
//
// What the language decides where C leaves a choice, or has no answer:
// - A parameter that is a value may be written. It is a copy, of the thread or, in a block kernel,
//   of the block. A `const` parameter may not.
// - In a block kernel, a variable declared outside of the loops over threads belongs to the block,
//   so the loops may read it and not write it.
// - A kernel may read an `out` or `part` array that it also assigns; whether the element was
// written
//   before is known only when the kernel runs. A read that no assignment can precede is a mistake.
// - Functions such as sqrt() need a float or a double. pow(x, 2) computes in the type of x.
// - An element kernel and a reduction know no positions and no elements at other indices.
// - `identity` and `combine` of a reduction use no parameters: the pass that combines the results
//   of blocks has none.
// - A division of an integer by a constant zero, and a shift by a constant that is not smaller than
//   the number of bits, are mistakes. A real number may be divided by zero.

#pragma once

#include <cstddef>
#include <string_view>

#include "language/syntax.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::language {

/// Upper bounds. The first two keep the recursion of the parser, and of everything that walks a
/// tree, within a small stack: the nesting of statements and parentheses, and the height of the
/// tree of an expression.
inline constexpr unsigned max_nesting = 200;
inline constexpr unsigned max_expression_height = 500;
/// Arguments of a translated kernel: an array is two, and the results of a reduction one.
inline constexpr std::size_t max_arguments = 64;
/// Bytes of the shared arrays of a kernel. Every device has this much.
inline constexpr std::size_t max_shared_bytes = 48 * 1024;

/// Returns the kernel named `entry`, or the only kernel if `entry` is empty. All kernels of the
/// text are checked. Throws std::bad_alloc. Fails with:
/// - invalid_argument: the text has a mistake. The fields are `line`, `column`, `kernel` (empty for
///   a mistake outside of a kernel), and `value`, the word at this place.
/// - not_found: the text has no kernel of this name, or several kernels and `entry` is empty. The
///   field `names` lists the kernels.
[[nodiscard]] TERN_EXPORT Result<Program> try_parse(std::string_view text,
                                                    std::string_view entry = {});

}  // namespace tern::language
