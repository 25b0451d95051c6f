#include "language/emit.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "language/body_writer.hpp"
#include "language/entry_parts.hpp"

namespace tern::language {
namespace {

std::string entry_prefix(Dialect dialect) {
  return dialect == Dialect::opencl ? "__kernel void " : "extern \"C\" __global__ void ";
}

std::string_view barrier_call(Dialect dialect) {
  return dialect == Dialect::opencl ? "barrier(CLK_LOCAL_MEM_FENCE);" : "__syncthreads();";
}

std::string_view shared_word(Dialect dialect) {
  return dialect == Dialect::opencl ? "__local " : "__shared__ ";
}

/// The value of a coordinate. OpenCL has global ids too, but an offset of the launch counts there.
std::string coordinate_value(Dialect dialect, Coordinate coordinate, unsigned axis) {
  const auto both = [&](std::string_view opencl, std::string_view cuda) {
    return dialect == Dialect::opencl ? fmt::format("(tern_u64){}({})", opencl, axis)
                                      : fmt::format("(tern_u64){}.{}", cuda, axis_names[axis]);
  };
  switch (coordinate) {
    case Coordinate::thread:
      return both("get_local_id", "threadIdx");
    case Coordinate::block:
      return both("get_group_id", "blockIdx");
    case Coordinate::block_size:
      return both("get_local_size", "blockDim");
    case Coordinate::grid_size:
      return both("get_num_groups", "gridDim");
    case Coordinate::index:
      break;
  }
  return fmt::format("{} * {} + {}", coordinate_value(dialect, Coordinate::block, axis),
                     coordinate_value(dialect, Coordinate::block_size, axis),
                     coordinate_value(dialect, Coordinate::thread, axis));
}

std::string coordinate_definitions(const Program& program, Dialect dialect) {
  const Uses uses = uses_of(program);
  std::string text;
  for (const Coordinate coordinate : all_coordinates) {
    for (unsigned axis = 0; axis < 3; ++axis) {
      const bool is_element_index =
          program.form == Form::element && coordinate == Coordinate::index && axis == 0;
      if (!is_element_index && !uses.has(coordinate, axis)) continue;
      text += fmt::format("  const tern_u64 {} = {};\n", coordinate_name(coordinate, axis),
                          coordinate_value(dialect, coordinate, axis));
    }
  }
  return text;
}

std::string shared_arrays(const Program& program, const BodyWriter& writer, Dialect dialect) {
  std::string text;
  for (std::uint32_t i = 0; i < program.variables.size(); ++i) {
    const Variable& variable = program.variables[i];
    if (variable.kind != Variable::Kind::shared) continue;
    text += fmt::format("  {}{} {}[{}];\n", shared_word(dialect), stored_type_name(variable.type),
                        writer.name(i), variable.elements);
  }
  return text;
}

std::string emit_kernel(const Program& program, Dialect dialect) {
  BodyWriter writer(program, dialect);
  std::string text = fmt::format("{}{}({}) {{\n", entry_prefix(dialect), entry_name(program),
                                 declared(arguments_of(program, writer, dialect)));
  text += shared_arrays(program, writer, dialect);
  text += coordinate_definitions(program, dialect);
  if (program.form == Form::element) {
    text += fmt::format("  if ({} >= {}) return;\n", coordinate_name(Coordinate::index, 0),
                        first_size_name(program, writer));
  }
  text += writer.body(1);
  text += "}\n";
  return with_prologue(program, writer, dialect, std::move(text));
}

/// An entry of a reduction. `value` is the value of the element tern_index_x.
std::string reduction_entry(const Program& program, BodyWriter& writer, Dialect dialect,
                            const std::string& name, std::vector<EntryArgument> arguments,
                            const std::string& count, const std::string& value) {
  arguments.push_back(
      {fmt::format("{}{}*", space_word(dialect, Space::global), stored_type_name(program.result)),
       "tern_results"});
  const bool is_opencl = dialect == Dialect::opencl;
  const std::string bounds =
      is_opencl
          ? fmt::format("__kernel __attribute__((reqd_work_group_size({}, 1, 1))) void ",
                        reduction_lanes)
          : fmt::format("extern \"C\" __global__ void __launch_bounds__({}) ", reduction_lanes);
  return fmt::format(
      "{head}({arguments}) {{\n"
      "  {shared}{stored} tern_part[{threads}];\n"
      "  const tern_u32 tern_t = {thread};\n"
      "  const tern_u64 tern_b = {block};\n"
      "  {type} tern_sum = {identity};\n"
      "  for (tern_u32 tern_k = 0; tern_k < {elements}; tern_k += {threads}) {{\n"
      "    const tern_u64 tern_index_x = tern_b * {elements} + tern_k + tern_t;\n"
      "    if (tern_index_x < {count}) {{\n"
      "{value}"
      "      tern_sum = tern_combine(tern_sum, tern_value);\n"
      "    }}\n"
      "  }}\n"
      "  tern_part[tern_t] = tern_sum;\n"
      "  {barrier}\n"
      "  for (tern_u32 tern_s = {threads} / 2; tern_s > 0; tern_s /= 2) {{\n"
      "    if (tern_t < tern_s) {{\n"
      "      tern_part[tern_t] = tern_combine(tern_part[tern_t], tern_part[tern_t + tern_s]);\n"
      "    }}\n"
      "    {barrier}\n"
      "  }}\n"
      "  if (tern_t == 0) tern_results[tern_b] = tern_part[0];\n"
      "}}\n",
      fmt::arg("head", bounds + name), fmt::arg("arguments", declared(arguments)),
      fmt::arg("shared", shared_word(dialect)),
      fmt::arg("stored", stored_type_name(program.result)),
      fmt::arg("type", type_name(program.result)), fmt::arg("threads", reduction_lanes),
      fmt::arg("elements", reduction_block_elements),
      fmt::arg("thread", coordinate_value(dialect, Coordinate::thread, 0)),
      fmt::arg("block", coordinate_value(dialect, Coordinate::block, 0)),
      fmt::arg("identity", writer.expression(program.identity)), fmt::arg("count", count),
      fmt::arg("value", value), fmt::arg("barrier", barrier_call(dialect)));
}

std::string emit_reduction(const Program& program, Dialect dialect) {
  BodyWriter writer(program, dialect);
  const std::string_view type = type_name(program.result);
  std::string text = combine_function(program, writer, dialect);
  text += reduction_entry(
      program, writer, dialect, entry_name(program), arguments_of(program, writer, dialect),
      first_size_name(program, writer),
      fmt::format("{}      const {} tern_value = {};\n", writer.line(program.map.at), type,
                  writer.expression(program.map)));
  const std::string pointer = fmt::format("{}const {}*", space_word(dialect, Space::global),
                                          argument_type_name(dialect, program.result));
  const std::string count(argument_type_name(dialect, Scalar::u64));
  text += reduction_entry(
      program, writer, dialect, combine_entry_name(program),
      {{pointer, "tern_values"}, {count, "tern_count"}}, "tern_count",
      fmt::format("      const {} tern_value = tern_values[tern_index_x];\n", type));
  return with_prologue(program, writer, dialect, std::move(text));
}

}  // namespace

std::string entry_name(const Program& program) { return program.name + "_kernel"; }
std::string combine_entry_name(const Program& program) { return program.name + "_combine"; }

std::string emit_for_device(const Program& program, Dialect dialect) {
  return program.form == Form::reduction ? emit_reduction(program, dialect)
                                         : emit_kernel(program, dialect);
}

std::string emit(const Program& program, Dialect dialect) {
  return dialect == Dialect::cpp ? emit_for_host(program) : emit_for_device(program, dialect);
}

}  // namespace tern::language
