#include "backends/kernel_launch.hpp"

#include <cstring>
#include <utility>

namespace tern {
namespace {

std::size_t padded(std::size_t bytes) noexcept {
  constexpr std::size_t alignment = alignof(std::max_align_t);
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

KernelLaunch::KernelLaunch(KernelFunction kernel_function, std::string kernel_name,
                           const LaunchSize& launch_size,
                           std::span<const KernelArgument> launch_arguments)
    : function(std::move(kernel_function)),
      name(std::move(kernel_name)),
      size(launch_size),
      arguments(launch_arguments.begin(), launch_arguments.end()) {
  std::size_t bytes = 0;
  for (const KernelArgument& argument : arguments) bytes += padded(argument.value_bytes);
  values = std::make_unique<std::byte[]>(bytes);
  std::byte* next = values.get();
  for (KernelArgument& argument : arguments) {
    if (argument.value_bytes > 0) std::memcpy(next, argument.value, argument.value_bytes);
    argument.value = next;
    next += padded(argument.value_bytes);
  }
}

}  // namespace tern
