#include "backends/sim/interpreted_launch.hpp"

#include <cstdint>
#include <cstring>
#include <new>

#include "core/no_host_memory.hpp"

namespace tern::sim {
namespace {

void* address_in(const KernelArgument& argument) noexcept {
  void* address = nullptr;
  std::memcpy(&address, argument.value, sizeof address);
  return address;
}

std::uint64_t count_in(const KernelArgument& argument) noexcept {
  std::uint64_t count = 0;
  std::memcpy(&count, argument.value, sizeof count);
  return count;
}

}  // namespace

Result<std::vector<language::Mistake>> try_interpret(const KernelLaunch& launch,
                                                     const language::RunOptions& options) noexcept {
  const language::Interpreter& interpreter = *launch.function.interpreter;
  const language::Program& program = interpreter.program();
  const std::uint64_t blocks = launch.block_count();
  const auto array_at = [&](std::size_t index, std::uint64_t elements) {
    return language::Argument{.address = address_in(launch.arguments[index]), .elements = elements};
  };
  if (launch.function.is_combine) {
    return interpreter.try_combine(blocks, array_at(0, count_in(launch.arguments[1])),
                                   array_at(2, blocks), options);
  }
  try {
    std::vector<language::Argument> values;
    std::size_t next = 0;
    for (const language::Parameter& parameter : program.parameters) {
      if (parameter.intent == language::Intent::value) {
        values.push_back({.value = launch.arguments[next].value});
        next += 1;
      } else {
        values.push_back(array_at(next, count_in(launch.arguments[next + 1])));
        next += 2;
      }
    }
    if (program.form == language::Form::reduction) values.push_back(array_at(next, blocks));
    const auto& [grid, block, shared_bytes] = launch.size;
    return interpreter.try_run({{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}},
                               values, options);
  } catch (const std::bad_alloc&) {
    return no_host_memory(launch.arguments.size() * sizeof(language::Argument),
                          "the arguments of a kernel");
  }
}

bool is_written_in_part(const KernelFunction& function, std::size_t index) noexcept {
  if (!function.interpreter || function.is_combine) return false;
  std::size_t next = 0;
  for (const language::Parameter& parameter : function.interpreter->program().parameters) {
    if (next == index) return parameter.intent == language::Intent::part;
    next += parameter.intent == language::Intent::value ? 1 : 2;
  }
  return false;
}

const KernelArgument* find_array(const KernelLaunch& launch, std::string_view name) noexcept {
  const language::Interpreter& interpreter = *launch.function.interpreter;
  if (launch.function.is_combine) return nullptr;
  std::size_t next = 0;
  for (const language::Parameter& parameter : interpreter.program().parameters) {
    const bool is_array = parameter.intent != language::Intent::value;
    if (is_array && parameter.name == name) return &launch.arguments[next];
    next += is_array ? 2 : 1;
  }
  return nullptr;
}

FindingCode code_of(language::Mistake::Kind kind) noexcept {
  switch (kind) {
    case language::Mistake::Kind::out_of_range:
      return FindingCode::out_of_bounds;
    case language::Mistake::Kind::uninitialised_read:
    case language::Mistake::Kind::read_of_output:
      return FindingCode::uninitialised_read;
    case language::Mistake::Kind::write_to_input:
      return FindingCode::undeclared_access;
    case language::Mistake::Kind::thread_race:
    case language::Mistake::Kind::block_race:
      return FindingCode::kernel_race;
    case language::Mistake::Kind::divide_by_zero:
    case language::Mistake::Kind::shift_too_far:
    case language::Mistake::Kind::conversion:
      return FindingCode::kernel_arithmetic;
    case language::Mistake::Kind::endless:
      return FindingCode::endless_kernel;
    case language::Mistake::Kind::unwritten_output:
      return FindingCode::unwritten_output;
  }
  return FindingCode::kernel_race;
}

}  // namespace tern::sim
