// Kernels of a CUDA device: loaded from PTX or a cubin, or compiled from CUDA C++ where there is a
// run-time compiler; launched by the driver.
//
// What is given out for a kernel is a number that is never used again, so a launch of one that was
// unloaded is refused instead of followed. Whoever launches keeps the module loaded until the call
// has returned; work that was queued keeps it in the driver. All calls are in a scope. Thread-safe.

#pragma once

#include <memory>
#include <span>
#include <string>

#include "backends/cuda/context.hpp"
#include "backends/handle_table.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaKernels {
 public:
  explicit CudaKernels(Context& context) noexcept : context_(context) {}

  [[nodiscard]] Result<NativeKernel> load(const KernelSource& source) noexcept;
  void unload(NativeKernel kernel) noexcept { kernels_.remove(kernel.value); }
  /// Parameters where the driver tells them (12.4), and the block that fills the device best.
  [[nodiscard]] Result<KernelInfo> info(NativeKernel kernel) noexcept;
  [[nodiscard]] Result<void> launch(CUstream stream, NativeKernel kernel, const LaunchSize& size,
                                    std::span<const KernelArgument> arguments) noexcept;

 private:
  [[nodiscard]] Result<std::string> image_of(const KernelSource& source);
  /// The kernels in a module, with commas between them.
  [[nodiscard]] std::string names_in(CUmodule module, std::string_view image);

  /// Unloads its module when the last user lets go of it.
  struct Kernel {
    Kernel(Context& of, CUmodule from, CUfunction found, std::string_view called)
        : context(&of), module(from), function(found), name(called) {}
    Kernel(Kernel&& other) noexcept;
    Kernel& operator=(Kernel&&) = delete;
    ~Kernel();

    Context* context;
    CUmodule module;
    CUfunction function;
    std::string name;
  };

  Context& context_;
  HandleTable<Kernel> kernels_;
};

}  // namespace tern::cuda
