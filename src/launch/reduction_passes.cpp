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

/// The memory for the results of chunks. Each launch reads the results of the one before, so two
/// areas are enough.
struct Areas {
  Areas(std::uint64_t chunks, std::size_t value_bytes) noexcept
      : first_bytes(chunks * value_bytes), second_bytes(chunks_of(chunks) * value_bytes) {}
  [[nodiscard]] std::size_t all_bytes() const noexcept { return second_offset + second_bytes; }

  std::size_t first_bytes, second_bytes;
  std::size_t second_offset = (first_bytes + 255) / 256 * 256;
};

}  // namespace

Result<LaunchSize> reduction_size(std::uint64_t elements, CallSite site) noexcept {
  return LaunchSize::try_for_elements(chunks_of(elements) * forms::reduction_lanes,
                                      forms::reduction_lanes, site);
}

Result<void> ReductionPasses::try_allocate(const LaunchSize& size, CallSite site) noexcept {
  const std::uint64_t chunks = size.grid[0];
  if (chunks == 1) return {};
  const Result<bool> is_captured = stream_.try_is_capturing();
  if (!is_captured) return Failure(is_captured.failure()).at(site);
  if (*is_captured) {
    return Failure(ErrorCode::stream_misuse,
                   "reduction '{kernel}' cannot be captured with more than {max} elements: {why}. "
                   "Launch it outside of the graph.",
                   site)
        .with("stream", std::uint64_t{0})
        .with("why", "the memory for its partial results is freed after the launch")
        .with("max", forms::reduction_chunk)
        .with("kernel", kernel_.name);
  }
  const Result<ResourceHandle> resource = try_default_resource(kernel_.device);
  if (!resource) return Failure(resource.failure()).at(site);
  const Areas areas(chunks, kernel_.declared.back().type.bytes);
  Result<OwnedBlock> scratch = OwnedBlock::try_allocate(
      *resource, {.bytes = areas.all_bytes(), .stream = stream_, .site = site});
  if (!scratch) return scratch.failure();
  scratch_ = *std::move(scratch);
  return {};
}

Result<void> ReductionPasses::try_launch(const LaunchSize& size,
                                         std::span<const KernelArgument> arguments,
                                         CallSite site) noexcept {
  const auto submit = [&](NativeKernel kernel, const LaunchSize& pass_size,
                          std::span<const KernelArgument> pass) {
    Result<void> launched = stream_.try_launch(kernel, pass_size, pass, site);
    if (launched) has_submitted_ = true;
    return launched;
  };
  std::uint64_t chunks = size.grid[0];
  if (chunks == 1) return submit(kernel_.native, size, arguments);

  const std::size_t value_bytes = kernel_.declared.back().type.bytes;
  const Areas bytes(chunks, value_bytes);
  auto* const memory = static_cast<std::byte*>(scratch_.try_block()->address);
  void* areas[] = {memory, memory + bytes.second_offset};
  const std::size_t area_bytes[] = {bytes.first_bytes, bytes.second_bytes};

  InlineVector<KernelArgument, KernelInfo::max_parameters> first;
  for (const KernelArgument& argument : arguments.first(arguments.size() - 1)) {
    first.emplace_back(argument);
  }
  first.emplace_back(memory_argument(areas[0], area_bytes[0], Access::discard));
  Result<void> launched = submit(kernel_.native, size, {first.data(), first.size()});
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
    launched = submit(kernel_.combine, *pass_size, pass);
  }
  return launched;
}

}  // namespace tern
