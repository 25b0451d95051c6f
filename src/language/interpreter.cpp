#include "language/interpreter.hpp"

#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "language/kernel_run.hpp"

namespace tern::language {
namespace {

Failure wrong_arguments(const Program& program, std::size_t actual, std::size_t expected) {
  return Failure(ErrorCode::invalid_argument,
                 "kernel '{kernel}' has {expected} arguments, and the launch passes {actual}. Pass "
                 "one for each parameter.")
      .with("kernel", program.name)
      .with("expected", expected)
      .with("actual", actual);
}

Result<void> check_shape(const Program& program, const LaunchShape& shape) {
  if (volume(shape.block, Interpreter::max_block_threads) == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a block of kernel '{kernel}' has no threads, or more than the {limit} threads "
                   "that the interpreter can tell apart. Launch smaller blocks.")
        .with("kernel", program.name)
        .with("limit", Interpreter::max_block_threads);
  }
  if (volume(shape.grid, Interpreter::max_blocks) == 0) {
    return Failure(
               ErrorCode::invalid_argument,
               "a launch of kernel '{kernel}' has no blocks, or more than {limit}, the limit of "
               "the interpreter. Launch fewer blocks.")
        .with("kernel", program.name)
        .with("limit", Interpreter::max_blocks);
  }
  return {};
}

Result<void> check_results(const Program& program, std::uint64_t actual, std::uint64_t blocks) {
  if (actual >= blocks) return {};
  return Failure(ErrorCode::invalid_argument,
                 "reduction '{kernel}' writes a result for each of {blocks} blocks, and the array "
                 "of results has {actual} elements. Pass a longer one.")
      .with("kernel", program.name)
      .with("blocks", blocks)
      .with("actual", actual);
}

}  // namespace

Interpreter::Interpreter(Program program)
    : program_(std::move(program)), code_(compile(program_)) {}

Result<std::vector<Mistake>> Interpreter::try_run(const LaunchShape& shape,
                                                  std::span<const Argument> arguments,
                                                  const RunOptions& options) const noexcept {
  const bool is_reduction = program_.form == Form::reduction;
  const std::size_t expected = program_.parameters.size() + (is_reduction ? 1 : 0);
  if (arguments.size() != expected) return wrong_arguments(program_, arguments.size(), expected);
  LaunchShape used = shape;
  if (is_reduction) used = {{shape.grid[0], 1, 1}, {reduction_lanes, 1, 1}};
  if (const Result<void> checked = check_shape(program_, used); !checked) return checked.failure();
  if (is_reduction) {
    const Result<void> checked = check_results(program_, arguments.back().elements, used.grid[0]);
    if (!checked) return checked.failure();
  }
  try {
    KernelRun run(program_, code_, used, arguments, options);
    if (is_reduction) {
      const std::uint64_t elements =
          code_.arrays.empty() ? 0 : arguments[code_.arrays[0].argument].elements;
      run.run_map(elements, static_cast<std::byte*>(arguments.back().address));
    } else {
      run.run_body();
    }
    return run.take_mistakes();
  } catch (const std::bad_alloc&) {
    return no_host_memory("the checks of a kernel");
  }
}

Result<std::vector<Mistake>> Interpreter::try_combine(std::uint64_t blocks, const Argument& values,
                                                      const Argument& results,
                                                      const RunOptions& options) const noexcept {
  if (program_.form != Form::reduction) {
    return Failure(
               ErrorCode::invalid_argument,
               "kernel '{kernel}' is not a reduction, so it has no results of blocks to combine. "
               "Launch it once.")
        .with("kernel", program_.name);
  }
  const LaunchShape shape{{blocks, 1, 1}, {reduction_lanes, 1, 1}};
  if (const Result<void> checked = check_shape(program_, shape); !checked) return checked.failure();
  const Result<void> checked = check_results(program_, results.elements, blocks);
  if (!checked) return checked.failure();
  try {
    KernelRun run(program_, code_, shape, {}, options);
    run.run_combine(static_cast<const std::byte*>(values.address), values.elements,
                    static_cast<std::byte*>(results.address));
    return run.take_mistakes();
  } catch (const std::bad_alloc&) {
    return no_host_memory("the checks of a kernel");
  }
}

}  // namespace tern::language
