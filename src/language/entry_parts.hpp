// The parts of an entry that its forms and dialects have in common: the arguments, and the
// functions of a reduction.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "language/body_writer.hpp"
#include "language/dialect.hpp"
#include "language/syntax.hpp"

namespace tern::language {

/// One argument of an entry, in the form of C.
struct EntryArgument {
  std::string type;  // with the space of a pointer
  std::string name;
};

/// The arguments of the entry in the order of the ABI, without the results of a reduction.
[[nodiscard]] std::vector<EntryArgument> arguments_of(const Program& program,
                                                      const BodyWriter& writer, Dialect dialect);
/// The name of the variable with the number of elements of the first array.
[[nodiscard]] std::string first_size_name(const Program& program, const BodyWriter& writer);

/// "float* x_0, tern_u64 x_0_size".
[[nodiscard]] std::string declared(const std::vector<EntryArgument>& arguments);

/// The function `tern_combine` of a reduction.
[[nodiscard]] std::string combine_function(const Program& program, BodyWriter& writer,
                                           Dialect dialect);

/// The types and helpers, and then the text that uses them.
[[nodiscard]] std::string with_prologue(const Program& program, const BodyWriter& writer,
                                        Dialect dialect, std::string text);

/// The two halves of emit(), which calls one of them.
[[nodiscard]] std::string emit_for_device(const Program& program, Dialect dialect);
[[nodiscard]] std::string emit_for_host(const Program& program);

}  // namespace tern::language
