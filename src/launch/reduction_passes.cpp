#include "launch/reduction_passes.hpp"

#include <algorithm>
#include <cstddef>

#include "language/syntax.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/detail/launch/kernel_forms.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {
namespace {

static_assert(forms::reduction_chunk == language::reduction_block_elements &&
                  forms::reduction_lanes == language::reduction_lanes,
              "the macros and the translations reduce in the same order");

std::uint64_t chunks_of(std::uint64_t elements) noexcept {
  const std::uint64_t whole = elements / forms::reduction_chunk;
  return std::max<std::uint64_t>(1, whole + (elements % forms::reduction_chunk != 0 ? 1 : 0));
}

/// An argument that is an address in memory of the device.
KernelArgument memory_argument(void* const& address, std::size_t bytes, Access access) noexcept {
  return {&address, sizeof address, address, bytes, access};
}

}  // namespace

Result<LaunchSize> reduction_size(std::uint64_t elements, CallSite site) noexcept {
  return LaunchSize::try_for_elements(chunks_of(elements) * forms::reduction_lanes,
                                      forms::reduction_lanes, site);
}

Result<void> try_reduce(const KernelState& kernel, StreamRef stream, const LaunchSize& size,
                        std::span<const KernelArgument> arguments, CallSite site) noexcept {
  std::uint64_t chunks = size.grid[0];
  if (chunks == 1) return stream.try_launch(kernel.native, size, arguments, site);

  const std::size_t value_bytes = kernel.declared.back().type.bytes;
  // Each launch reads the results of the one before, so two areas are enough.
  const std::size_t first_bytes = chunks * value_bytes;
  const std::size_t second_bytes = chunks_of(chunks) * value_bytes;
  const std::size_t second_offset = (first_bytes + 255) / 256 * 256;
  const Result<ResourceHandle> resource = try_default_resource(kernel.device);
  if (!resource) return Failure(resource.failure()).at(site);
  Result<OwnedBlock> scratch = OwnedBlock::try_allocate(
      *resource, {.bytes = second_offset + second_bytes, .stream = stream, .site = site});
  if (!scratch) return scratch.failure();
  auto* const memory = static_cast<std::byte*>(scratch->try_block()->address);
  void* areas[] = {memory, memory + second_offset};
  const std::size_t area_bytes[] = {first_bytes, second_bytes};

  InlineVector<KernelArgument, KernelInfo::max_parameters> first;
  for (const KernelArgument& argument : arguments.first(arguments.size() - 1)) {
    first.emplace_back(argument);
  }
  first.emplace_back(memory_argument(areas[0], area_bytes[0], Access::discard));
  Result<void> launched = stream.try_launch(kernel.native, size, first, site);
  // After a failure, launches that were made still use the scratch memory, which is freed behind
  // them.
  for (std::size_t from = 0; launched && chunks > 1; from = 1 - from) {
    const std::uint64_t values = chunks;
    chunks = chunks_of(values);
    const KernelArgument result =
        chunks == 1 ? arguments.back()
                    : memory_argument(areas[1 - from], area_bytes[1 - from], Access::discard);
    const KernelArgument pass[] = {
        memory_argument(areas[from], values * value_bytes, Access::read),
        {&values, sizeof values},
        result,
    };
    const Result<LaunchSize> pass_size = reduction_size(values, site);
    if (!pass_size) return pass_size.failure();
    launched = stream.try_launch(kernel.combine, *pass_size, pass, site);
  }
  return launched;
}

}  // namespace tern
