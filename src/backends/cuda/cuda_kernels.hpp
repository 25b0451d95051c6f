// Kernels of a CUDA device: loaded from PTX or a cubin, or compiled from CUDA C++ with the run-time
// compiler, and launched by the driver.
//
// A kernel handle is a number that is never reused, so launching an unloaded kernel fails. A launch
// keeps the module loaded until the call has returned; the driver keeps it for queued work. Call
// all functions in a scope. Thread-safe.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backends/cuda/context.hpp"
#include "backends/cuda/nvrtc.hpp"
#include "backends/handle_table.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaKernels {
 public:
  explicit CudaKernels(Context& context) noexcept : context_(context) {}

  [[nodiscard]] Result<NativeKernel> load(const KernelSource& source) noexcept;
  void unload(NativeKernel kernel) noexcept { kernels_.remove(kernel.value); }
  /// Returns the parameters, if the driver reports them (12.4), and the block size with the best
  /// occupancy.
  [[nodiscard]] Result<KernelInfo> info(NativeKernel kernel) noexcept;
  [[nodiscard]] Result<void> launch(CUstream stream, NativeKernel kernel, const LaunchSize& size,
                                    std::span<const KernelArgument> arguments) noexcept;

 private:
  /// Returns what the driver loads: the given image, or the compiled text.
  [[nodiscard]] Result<std::string> image_of(const KernelSource& source, std::string_view entry);
  [[nodiscard]] CompileTarget compile_target() const noexcept;
  /// Translates and compiles a portable text, or finds the result of an earlier run on disk.
  [[nodiscard]] Result<std::string> ptx_of(const language::Program& program, std::string_view entry,
                                           std::string_view wanted_options);
  /// Returns the names of the kernels in a module, separated by commas.
  [[nodiscard]] std::string names_in(CUmodule module, std::string_view image);

  /// Unloads the module when its last user releases it.
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
