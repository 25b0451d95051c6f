// The arguments of one launch of a kernel that declares what it does to its parameters.
//
// The device gets two arguments for each array of a portable kernel: the memory, and the number of
// elements. DeclaredAccesses is for other kernels, typed C++ functions: it only adds the declared
// access to arguments that have none. Both refer to the arguments of the caller, and belong to one
// thread.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "language/syntax.hpp"
#include "launch/kernel_state.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/detail/launch/function_kernel.hpp"
#include "tern/detail/launch/launch_extent.hpp"
#include "tern/device/operations.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

/// Returns what a launch passes for each parameter of the text. A reduction has one more, for its
/// result. May throw std::bad_alloc.
[[nodiscard]] std::vector<DeclaredParameter> declared_parameters(const language::Program& program);

class PortableArguments {
 public:
  explicit PortableArguments(const KernelState& kernel) noexcept : kernel_(kernel) {}

  /// Checks the accesses and the numbers of elements, and returns the size of the launch. The
  /// number and the types of the arguments were checked before.
  [[nodiscard]] Result<LaunchSize> try_prepare(const LaunchExtent& extent,
                                               std::span<const LaunchArgument> arguments,
                                               CallSite site) noexcept;
  /// Returns the arguments for the device.
  [[nodiscard]] std::span<const LaunchArgument> arguments() const noexcept {
    return {packed_.data(), packed_.size()};
  }

 private:
  [[nodiscard]] Result<void> try_add_array(std::size_t index, const LaunchArgument& argument,
                                           CallSite site) noexcept;
  [[nodiscard]] Result<LaunchSize> try_size(const LaunchExtent& extent,
                                            CallSite site) const noexcept;

  // The parser allows no more parameters, so neither list grows.
  static constexpr std::size_t max_arguments = KernelInfo::max_parameters;
  const KernelState& kernel_;
  InlineVector<LaunchArgument, max_arguments> packed_;
  InlineVector<std::uint64_t, max_arguments> counts_;  // of the arrays, in order
};

class DeclaredAccesses {
 public:
  DeclaredAccesses(const KernelState& kernel, std::span<const LaunchArgument> arguments) noexcept;
  [[nodiscard]] std::span<const LaunchArgument> arguments() const noexcept {
    return {packed_.data(), packed_.size()};
  }

 private:
  InlineVector<LaunchArgument, KernelInfo::max_parameters> packed_;
};

}  // namespace tern
