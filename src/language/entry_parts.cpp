#include "language/entry_parts.hpp"

#include <fmt/format.h>

#include <string_view>

namespace tern::language {
namespace {

/// Returns the variable of a parameter, or null: the parser may drop those that are not used.
const Variable* variable_of(const Program& program, std::uint32_t parameter) {
  for (const Variable& variable : program.variables) {
    const bool is_parameter =
        variable.kind == Variable::Kind::value || variable.kind == Variable::Kind::array;
    if (is_parameter && variable.parameter == parameter) return &variable;
  }
  return nullptr;
}

std::string name_of(const Program& program, const BodyWriter& writer, std::uint32_t parameter) {
  const Variable* variable = variable_of(program, parameter);
  if (variable == nullptr) return fmt::format("tern_unused_{}", parameter);
  return writer.name(static_cast<std::uint32_t>(variable - program.variables.data()));
}

}  // namespace

std::vector<EntryArgument> arguments_of(const Program& program, const BodyWriter& writer,
                                        Dialect dialect) {
  std::vector<EntryArgument> arguments;
  for (std::uint32_t i = 0; i < program.parameters.size(); ++i) {
    const Parameter& parameter = program.parameters[i];
    const std::string name = name_of(program, writer, i);
    const std::string_view type = argument_type_name(dialect, parameter.type);
    if (parameter.intent == Intent::value) {
      arguments.push_back({std::string(type), name});
      continue;
    }
    // No `restrict`: the caller may pass one buffer for two parameters.
    arguments.push_back({fmt::format("{}{}{}*", space_word(dialect, Space::global),
                                     parameter.intent == Intent::in ? "const " : "", type),
                         name});
    arguments.push_back({std::string(argument_type_name(dialect, Scalar::u64)), name + "_size"});
  }
  return arguments;
}

std::string first_size_name(const Program& program, const BodyWriter& writer) {
  for (std::uint32_t i = 0; i < program.parameters.size(); ++i) {
    if (program.parameters[i].intent != Intent::value) {
      return name_of(program, writer, i) + "_size";
    }
  }
  return "0";
}

std::string declared(const std::vector<EntryArgument>& arguments) {
  std::string text;
  for (const EntryArgument& argument : arguments) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", argument.type, argument.name);
  }
  return text;
}

std::string combine_function(const Program& program, BodyWriter& writer, Dialect dialect) {
  const std::string_view type = type_name(program.result);
  std::string parameters[2] = {fmt::format("{} tern_unused_a", type),
                               fmt::format("{} tern_unused_b", type)};
  for (std::uint32_t i = 0; i < program.variables.size(); ++i) {
    const Variable& variable = program.variables[i];
    if (variable.kind != Variable::Kind::result) continue;
    parameters[variable.name == "b" ? 1 : 0] = fmt::format("{} {}", type, writer.name(i));
  }
  return fmt::format("{}{} tern_combine({}, {}) {{\n{}  return {};\n}}\n", function_prefix(dialect),
                     type, parameters[0], parameters[1], writer.line(program.combine.at),
                     writer.expression(program.combine));
}

std::string with_prologue(const Program& program, const BodyWriter& writer, Dialect dialect,
                          std::string text) {
  return prologue(dialect, program.uses_float64, uses_of(program).atomics64) + writer.helpers() +
         std::move(text);
}

}  // namespace tern::language
