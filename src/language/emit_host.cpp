// The translation to C++ for the host. The entry runs a range of blocks; what a compiler shall
// vectorise is a loop without calls over threads or elements, in a function that is inlined.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "language/body_writer.hpp"
#include "language/emit.hpp"
#include "language/entry_parts.hpp"

namespace tern::language {
namespace {

constexpr Dialect cpp = Dialect::cpp;

/// The structure is HostCall. TERN_UNORDERED stands before a loop whose rounds access only their
/// own element of every array: without it, a compiler would check at run time whether arrays
/// overlap, and run a slow loop for an operation in place. Loops over threads do not have it:
/// threads do not depend on each other either, but the accesses of one thread may depend on earlier
/// ones of the same thread, and compilers do not always keep their order in such a loop.
constexpr std::string_view declarations =
    "struct tern_call {\n"
    "  tern_u64 grid[3], block[3], first_block, block_count;\n"
    "  void* const* values;\n"
    "};\n"
    "#if defined(__clang__)\n"
    "#define TERN_UNORDERED _Pragma(\"clang loop vectorize(assume_safety)\")\n"
    "#else\n"
    "#define TERN_UNORDERED _Pragma(\"GCC ivdep\")\n"
    "#endif\n";

std::string entry_head(const std::string& name) {
  return fmt::format(
      "extern \"C\" __attribute__((visibility(\"default\")))\n"
      "void {}(const tern_call* tern_c) {{\n",
      name);
}

/// Loads the arguments from the addresses in the call.
std::string loaded(const std::vector<EntryArgument>& arguments) {
  std::string text;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    text += fmt::format("  {0} {1} = *({0} const*)tern_c->values[{2}];\n", arguments[i].type,
                        arguments[i].name, i);
  }
  return text;
}

std::string names_of(const std::vector<EntryArgument>& arguments) {
  std::string text;
  for (const EntryArgument& argument : arguments) {
    if (!text.empty()) text += ", ";
    text += argument.name;
  }
  return text;
}

/// Defines coordinates of the launch, which the call has as arrays.
std::string sizes_of_launch() {
  std::string text;
  for (unsigned axis = 0; axis < 3; ++axis) {
    text += fmt::format("  const tern_u64 {} = tern_c->grid[{}], {} = tern_c->block[{}];\n",
                        coordinate_name(Coordinate::grid_size, axis), axis,
                        coordinate_name(Coordinate::block_size, axis), axis);
  }
  return text;
}

constexpr std::string_view loop_over_blocks =
    "  for (tern_u64 tern_b = tern_c->first_block, tern_left = tern_c->block_count; tern_left > "
    "0;\n"
    "       ++tern_b, --tern_left) {\n"
    "    const tern_u64 tern_block_x = tern_b % tern_grid_size_x;\n"
    "    const tern_u64 tern_block_y = tern_b / tern_grid_size_x % tern_grid_size_y;\n"
    "    const tern_u64 tern_block_z = tern_b / tern_grid_size_x / tern_grid_size_y;\n";

/// Where a generated part begins after text of the user.
std::string generated_line(const Program& program) {
  return fmt::format("#line 1 \"entry of {}\"\n", program.name);
}

/// The coordinates that the function of the body has as parameters.
std::vector<EntryArgument> coordinate_arguments(const Program& program) {
  const Uses uses = uses_of(program);
  std::vector<EntryArgument> arguments;
  for (const Coordinate coordinate : all_coordinates) {
    for (unsigned axis = 0; axis < 3; ++axis) {
      // The loops over threads of a block kernel begin inside of the function.
      const bool is_needed = program.form == Form::block ? coordinate != Coordinate::thread &&
                                                               coordinate != Coordinate::index
                                                         : uses.has(coordinate, axis);
      const bool is_element_index =
          program.form == Form::element && coordinate == Coordinate::index && axis == 0;
      if (!is_needed && !is_element_index) continue;
      arguments.push_back({"tern_u64", coordinate_name(coordinate, axis)});
    }
  }
  return arguments;
}

std::string shared_arrays(const Program& program, const BodyWriter& writer) {
  std::string text;
  for (std::uint32_t i = 0; i < program.variables.size(); ++i) {
    const Variable& variable = program.variables[i];
    if (variable.kind != Variable::Kind::shared) continue;
    text += fmt::format("  alignas(64) {} {}[{}];\n", stored_type_name(variable.type),
                        writer.name(i), variable.elements);
  }
  return text;
}

std::string body_function(const Program& program, BodyWriter& writer,
                          std::vector<EntryArgument> parameters) {
  for (EntryArgument& coordinate : coordinate_arguments(program)) {
    parameters.push_back(std::move(coordinate));
  }
  return fmt::format("{}void tern_body({}) {{\n{}{}}}\n{}", function_prefix(cpp),
                     declared(parameters), shared_arrays(program, writer), writer.body(1),
                     generated_line(program));
}

std::string body_call(const Program& program, std::vector<EntryArgument> arguments) {
  for (EntryArgument& coordinate : coordinate_arguments(program)) {
    arguments.push_back(std::move(coordinate));
  }
  return fmt::format("tern_body({});\n", names_of(arguments));
}

/// One flat loop over the elements of the blocks. Elements do not depend on each other, since each
/// thread sees only its element of every array, except through atomic operations.
std::string element_loop(const Program& program, const std::string& size, const std::string& call) {
  return fmt::format(
      "  const tern_u64 tern_end = (tern_c->first_block + tern_c->block_count) * "
      "tern_block_size_x;\n"
      "  const tern_u64 tern_stop = tern_end < {0} ? tern_end : {0};\n"
      "{1}"
      "  for (tern_u64 tern_index_x = tern_c->first_block * tern_block_size_x;\n"
      "       tern_index_x < tern_stop; ++tern_index_x) {{\n"
      "    {2}"
      "  }}\n",
      size, uses_of(program).atomics ? "" : "  TERN_UNORDERED\n", call);
}

std::string thread_loops(const std::string& call) {
  std::string text(loop_over_blocks);
  std::string indent = "    ";
  for (const unsigned axis : {2u, 1u, 0u}) {
    text += fmt::format("{0}for (tern_u64 {1} = 0; {1} < {2}; ++{1}) {{\n", indent,
                        coordinate_name(Coordinate::thread, axis),
                        coordinate_name(Coordinate::block_size, axis));
    indent += "  ";
  }
  for (unsigned axis = 0; axis < 3; ++axis) {
    text += fmt::format(
        "{}const tern_u64 {} = {} * {} + {};\n", indent, coordinate_name(Coordinate::index, axis),
        coordinate_name(Coordinate::block, axis), coordinate_name(Coordinate::block_size, axis),
        coordinate_name(Coordinate::thread, axis));
  }
  return fmt::format("{}{}{}    }}}}}}\n  }}\n", text, indent, call);
}

std::string emit_kernel(const Program& program) {
  BodyWriter writer(program, cpp);
  const std::vector<EntryArgument> arguments = arguments_of(program, writer, cpp);
  std::string text(declarations);
  std::string body = body_function(program, writer, arguments);
  const std::string call = body_call(program, arguments);
  text += std::move(body);
  text += entry_head(entry_name(program)) + loaded(arguments) + sizes_of_launch();
  switch (program.form) {
    case Form::element:
      text += element_loop(program, first_size_name(program, writer), call);
      break;
    case Form::block:
      text += fmt::format("{}    {}  }}\n", loop_over_blocks, call);
      break;
    default:
      text += thread_loops(call);
      break;
  }
  text += "}\n";
  return with_prologue(program, writer, cpp, std::move(text));
}

/// An entry of a reduction. `value` computes tern_value for the element tern_index_x. One
/// accumulator for each thread of a device: the sums have the same order, and the loops over the
/// accumulators vectorise although additions of real numbers may not be reordered.
std::string reduction_entry(const Program& program, BodyWriter& writer, const std::string& name,
                            std::vector<EntryArgument> arguments, const std::string& count,
                            const std::string& value) {
  arguments.push_back({fmt::format("{}*", stored_type_name(program.result)), "tern_results"});
  return fmt::format(
      "{head}{loaded}"
      "  for (tern_u64 tern_b = tern_c->first_block, tern_left = tern_c->block_count;\n"
      "       tern_left > 0; ++tern_b, --tern_left) {{\n"
      "    alignas(64) {type} tern_part[{threads}];\n"
      "    for (tern_u64 tern_t = 0; tern_t < {threads}; ++tern_t) tern_part[tern_t] = "
      "{identity};\n"
      "    const tern_u64 tern_begin = tern_b * {elements};\n"
      "    tern_u64 tern_rest = {count} > tern_begin ? {count} - tern_begin : 0;\n"
      "    if (tern_rest > {elements}) tern_rest = {elements};\n"
      "    for (tern_u64 tern_k = 0; tern_k < tern_rest; tern_k += {threads}) {{\n"
      "      const tern_u64 tern_n = tern_rest - tern_k < {threads} ? tern_rest - tern_k : "
      "{threads};\n"
      "      TERN_UNORDERED\n"
      "      for (tern_u64 tern_t = 0; tern_t < tern_n; ++tern_t) {{\n"
      "        const tern_u64 tern_index_x = tern_begin + tern_k + tern_t;\n"
      "{value}"
      "        tern_part[tern_t] = tern_combine(tern_part[tern_t], tern_value);\n"
      "      }}\n"
      "    }}\n"
      "    for (tern_u64 tern_s = {threads} / 2; tern_s > 0; tern_s /= 2) {{\n"
      "      TERN_UNORDERED\n"
      "      for (tern_u64 tern_t = 0; tern_t < tern_s; ++tern_t) {{\n"
      "        tern_part[tern_t] = tern_combine(tern_part[tern_t], tern_part[tern_t + tern_s]);\n"
      "      }}\n"
      "    }}\n"
      "    tern_results[tern_b] = tern_part[0];\n"
      "  }}\n"
      "}}\n",
      fmt::arg("head", entry_head(name)), fmt::arg("loaded", loaded(arguments)),
      fmt::arg("type", type_name(program.result)), fmt::arg("threads", reduction_lanes),
      fmt::arg("elements", reduction_block_elements),
      fmt::arg("identity", writer.operand(program.identity)), fmt::arg("count", count),
      fmt::arg("value", value));
}

std::string emit_reduction(const Program& program) {
  BodyWriter writer(program, cpp);
  const std::string_view type = type_name(program.result);
  std::string text(declarations);
  text += combine_function(program, writer, cpp);
  const std::string map =
      fmt::format("{}        const {} tern_value = {};\n{}", writer.line(program.map.at), type,
                  writer.expression(program.map), generated_line(program));
  text += generated_line(program);
  text += reduction_entry(program, writer, entry_name(program), arguments_of(program, writer, cpp),
                          first_size_name(program, writer), map);
  text += reduction_entry(
      program, writer, combine_entry_name(program),
      {{fmt::format("const {}*", stored_type_name(program.result)), "tern_values"},
       {"tern_u64", "tern_count"}},
      "tern_count",
      fmt::format("        const {} tern_value = tern_values[tern_index_x];\n", type));
  return with_prologue(program, writer, cpp, std::move(text));
}

}  // namespace

std::string emit_for_host(const Program& program) {
  return program.form == Form::reduction ? emit_reduction(program) : emit_kernel(program);
}

}  // namespace tern::language
