// A kernel for OpenCL devices: one function of a program in OpenCL C, compiled for the device.
//
// The declaration of the kernel decides how arguments are passed: pointers to global and constant
// memory as addresses, everything else by value. If an address is passed inside a value, for
// example in a struct, the argument also names its range, and the driver is told that the kernel
// may use the range. `shared_bytes` of a launch is the size of the last parameter, which must then
// be a pointer to local memory.
//
// OpenCL stores argument values in the kernel object, so launches of one kernel are serialized.
// Thread-safe.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/opencl/opencl_context.hpp"
#include "backends/opencl/opencl_memory.hpp"
#include "backends/opencl/opencl_stream.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::opencl {

class Kernel {
 public:
  /// Compiles the text. On failure, the message ends with the first lines about the error.
  [[nodiscard]] static Result<std::shared_ptr<Kernel>> load(std::shared_ptr<Context> context,
                                                            const KernelSource& source) noexcept;
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Returns all parameters except local memory, with the sizes of built-in types.
  [[nodiscard]] KernelInfo info() const;

  [[nodiscard]] Result<void> launch(Stream& stream, const Memory& memory, const LaunchSize& size,
                                    std::span<const KernelArgument> arguments) noexcept;

 private:
  enum class Parameter : std::uint8_t { value, address, local };

  Kernel(std::shared_ptr<Context> context, std::string entry) noexcept
      : context_(std::move(context)), entry_(std::move(entry)) {}

  [[nodiscard]] Result<void> build(const KernelSource& source);
  [[nodiscard]] Failure build_failure(cl_int code);
  [[nodiscard]] Result<cl_kernel> create() noexcept;
  [[nodiscard]] std::string names_in_program() const;
  [[nodiscard]] Result<void> read_parameters();
  [[nodiscard]] Result<void> check_arguments(const Memory& memory, const LaunchSize& size,
                                             std::span<const KernelArgument> arguments) noexcept;
  [[nodiscard]] Result<void> set_arguments(cl_kernel kernel, const LaunchSize& size,
                                           std::span<const KernelArgument> arguments) noexcept;

  const std::shared_ptr<Context> context_;
  const std::string entry_;
  std::vector<Parameter> parameters_;  // constant once loaded
  cl_program program_ = nullptr;
  std::mutex mutex_;
  cl_kernel kernel_ = nullptr;  // its argument values are guarded by mutex_
};

}  // namespace tern::opencl
