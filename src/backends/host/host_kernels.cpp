#include "backends/host/host_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "core/no_host_memory.hpp"
#include "language/emit.hpp"
#include "language/host_compiler.hpp"
#include "language/syntax.hpp"
#include "tern/detail/core/inline_vector.hpp"

namespace tern::host {
namespace {

/// Below this number of threads of the grid, one core finishes before a second has woken up.
constexpr std::uint64_t parallel_threads = 32 * 1024;
/// There are several parts per core, so that a core that is slow for a while does not delay the
/// others.
constexpr std::uint64_t parts_per_thread = 4;

/// A compiled kernel. The context of its KernelFunction.
struct CompiledKernel {
  language::HostCode code;  // keeps the entry loaded
  language::HostEntry entry = nullptr;
};

/// Calls the entry with the arguments in its own form.
void run_compiled(const KernelCall& call) {
  InlineVector<void*, KernelInfo::max_parameters + 1> values;  // never grows
  for (const KernelArgument& argument : call.arguments) {
    values.emplace_back(const_cast<void*>(argument.value));
  }
  const LaunchSize& size = call.size;
  const language::HostCall host_call = {{size.grid[0], size.grid[1], size.grid[2]},
                                        {size.block[0], size.block[1], size.block[2]},
                                        call.first_block,
                                        call.block_count,
                                        values.data()};
  static_cast<const CompiledKernel*>(call.context)->entry(&host_call);
}

}  // namespace

Result<KernelFunction> try_compile(const KernelSource& source) noexcept {
  const language::Program& program = *source.program;
  try {
    const std::string text = language::emit(program, language::Dialect::cpp);
    const Result<language::HostCode> code = language::try_host_code(program.name, text);
    if (!code) return code.failure();
    const std::string entry =
        source.is_combine ? language::combine_entry_name(program) : language::entry_name(program);
    const auto compiled = std::make_shared<CompiledKernel>();
    compiled->code = *code;
    compiled->entry = reinterpret_cast<language::HostEntry>(code->find(entry.c_str()));
    if (compiled->entry == nullptr) {
      return Failure(ErrorCode::not_found,
                     "the compiled code of kernel '{id}' has no function "
                     "'{names}'. Remove the folder of compiled code.")
          .with("id", program.name)
          .with("names", entry);
    }
    KernelFunction function;
    function.body = run_compiled;
    function.context = compiled.get();
    function.splits = true;
    function.owner = compiled;
    return function;
  } catch (const std::bad_alloc&) {
    return no_host_memory(program.text.size(), "a compiled kernel");
  }
}

std::uint32_t elements_per_thread(const language::Program& program) noexcept {
  if (program.form != language::Form::reduction) return 1;
  return static_cast<std::uint32_t>(language::reduction_block_elements / language::reduction_lanes);
}

void run_launch(WorkerTeam& team, const KernelLaunch& launch) noexcept {
  const std::uint64_t blocks = launch.block_count();
  const LaunchSize& size = launch.size;
  const std::uint64_t block = std::uint64_t{size.block[0]} * size.block[1] * size.block[2];
  const std::uint64_t work = blocks * block * launch.function.elements_per_thread;
  if (!launch.function.splits || team.threads() == 1 || work < parallel_threads) {
    return launch.run();
  }
  const std::uint64_t parts = std::min<std::uint64_t>(blocks, team.threads() * parts_per_thread);
  const std::uint64_t each = (blocks + parts - 1) / parts;
  team.for_each((blocks + each - 1) / each, [&](std::size_t part) {
    const std::uint64_t first = part * each;
    launch.run(first, std::min(each, blocks - first));
  });
}

}  // namespace tern::host
