// A launch of a C++ kernel, kept until it runs. It copies the argument values, because the caller's
// may be destroyed by then.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tern/device/operations.hpp"

namespace tern {

struct KernelLaunch {
  /// Streams limit the total size of the values, so the sum cannot overflow. Each value is copied
  /// with the strictest alignment.
  KernelLaunch(KernelBody kernel_body, void* kernel_context, std::string kernel_name,
               const LaunchSize& launch_size, std::span<const KernelArgument> launch_arguments);

  void run() const { body({size, arguments, context}); }

  KernelBody body;
  void* context;
  std::string name;
  LaunchSize size;
  std::vector<KernelArgument> arguments;
  std::unique_ptr<std::byte[]> values;
};

}  // namespace tern
