// A launch of a C++ kernel, kept until it runs: with its own copy of the argument values, because
// the caller's may be gone by then.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tern/device/operations.hpp"

namespace tern {

struct KernelLaunch {
  /// The values together are small enough that their sum cannot wrap; streams see to that. Each is
  /// copied to the strictest alignment.
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
