#include "backends/cuda/cuda_kernels.hpp"

#include <array>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/no_memory.hpp"

namespace tern::cuda {
namespace {

/// The first line of a compiler's log that is not empty.
std::string_view first_line(std::string_view log) noexcept {
  const std::size_t begin = log.find_first_not_of(" \t\r\n");
  if (begin == log.npos) return "the compiler gave no reason";
  const std::size_t end = log.find_first_of("\r\n", begin);
  return log.substr(begin, end == log.npos ? log.npos : end - begin);
}

bool is_about_image(CUresult result) noexcept {
  return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_INVALID_PTX ||
         result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

}  // namespace

CudaKernels::Kernel::Kernel(Kernel&& other) noexcept
    : context(other.context),
      module(std::exchange(other.module, nullptr)),
      function(other.function),
      name(std::move(other.name)) {}

CudaKernels::Kernel::~Kernel() {
  if (module == nullptr) return;
  const Context::Visit visit(*context);
  if (!visit) return;
  static_cast<void>(context->cu().cuModuleUnload(module));
}

Result<NativeKernel> CudaKernels::load(const KernelSource& source) noexcept {
  if (source.image.empty()) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' runs {what}, and kernel '{kernel}' has none. Give it an image.")
        .with("what", "PTX and cubin images only")
        .with("device", context_.spec())
        .with("kernel", source.entry);
  }
  try {
    const DriverTable& cu = context_.cu();
    // PTX ends with a zero that a view of it may not include.
    std::string image(reinterpret_cast<const char*>(source.image.data()), source.image.size());
    const std::string entry(source.entry);
    std::array<char, 2048> log = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
    CUmodule module = nullptr;
    const CUresult loaded = cu.cuModuleLoadDataEx(&module, image.c_str(), 2, options, values);
    if (is_about_image(loaded)) {
      return Failure(ErrorCode::invalid_argument,
                     "the image of kernel '{kernel}' is not one that '{device}' can run "
                     "({call} returned {result}, {code}): {value}")
          .with("name", "image")
          .with("kernel", source.entry)
          .with("device", context_.spec())
          .with("call", "cuModuleLoadDataEx")
          .with("result", name_of(loaded))
          .with("code", static_cast<std::uint64_t>(loaded))
          .with("value", first_line(log.data()));
    }
    if (Result<void> done = context_.check(loaded, "cuModuleLoadDataEx", image.size()); !done) {
      return done.failure();
    }
    Kernel kernel(context_, module, nullptr, source.entry);
    const CUresult found = cu.cuModuleGetFunction(&kernel.function, module, entry.c_str());
    if (found == CUDA_ERROR_NOT_FOUND) {
      return Failure(ErrorCode::not_found,
                     "the image has no kernel '{id}'. C++ compilers change names: declare it "
                     "extern \"C\", or use the name in the image.")
          .with("id", source.entry);
    }
    if (Result<void> done = context_.check(found, "cuModuleGetFunction"); !done) {
      return done.failure();
    }
    const NativeKernel native{kernels_.add(std::move(kernel))};
    if (native.value == 0) return no_memory_for("a kernel", sizeof(Kernel));
    return native;
  } catch (const std::bad_alloc&) {
    return no_memory_for("a kernel", source.image.size());
  }
}

Result<void> CudaKernels::launch(CUstream stream, NativeKernel native, const LaunchSize& size,
                                 std::span<const KernelArgument> arguments) noexcept {
  const std::shared_ptr<const Kernel> kernel = kernels_.find(native.value);
  if (!kernel) {
    return Failure(ErrorCode::use_after_free,
                   "the kernel was unloaded before, or never loaded here. Keep it until its last "
                   "launch.");
  }
  // As many as kernels usually have, without heap memory.
  std::array<void*, 64> few = {};
  std::vector<void*> many;
  void** values = few.data();
  if (arguments.size() > few.size()) {
    try {
      many.resize(arguments.size());
    } catch (const std::bad_alloc&) {
      return no_memory_for("the arguments of a launch", arguments.size() * sizeof(void*));
    }
    values = many.data();
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    values[i] = const_cast<void*>(arguments[i].value);
  }
  return context_.check(
      context_.cu().cuLaunchKernel(kernel->function, size.grid[0], size.grid[1], size.grid[2],
                                   size.block[0], size.block[1], size.block[2], size.shared_bytes,
                                   stream, values, nullptr),
      "cuLaunchKernel");
}

}  // namespace tern::cuda
