// load() compiles source text (image_of, nvrtc.cpp) and loads the image. The PTX of portable texts
// is kept on disk; loading CUDA C++ twice compiles it twice.
//
// launch() gives the driver the addresses of the argument values. Kernel::try_launch_with in
// launch/kernel.cpp has already turned buffers into device addresses.

#include "backends/cuda/cuda_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "backends/cuda/fake_cuda.hpp"
#include "core/no_host_memory.hpp"
#include "language/code_cache.hpp"
#include "language/emit.hpp"
#include "tern/detail/core/inline_vector.hpp"

namespace tern::cuda {
namespace {

/// Returns the first non-empty line of a compiler's log.
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

/// Upper bound for the search of parameters: no launch can have more than 32 KiB of arguments.
constexpr std::uint32_t max_parameters = 32 * 1024;

void add_name(std::string& names, std::string_view name) {
  names.append(names.empty() ? "'" : ", '").append(name).append("'");
}

/// Returns the kernels that PTX declares, or nothing for a binary image.
std::string entries_in(std::string_view ptx) {
  constexpr std::string_view directive = ".entry";
  std::string names;
  for (std::size_t at = ptx.find(directive); at != ptx.npos; at = ptx.find(directive, at)) {
    at += directive.size();
    const std::size_t begin = std::min(ptx.find_first_not_of(" \t\r\n", at), ptx.size());
    std::size_t end = begin;
    while (end < ptx.size() && (std::isalnum(static_cast<unsigned char>(ptx[end])) != 0 ||
                                ptx[end] == '_' || ptx[end] == '$')) {
      ++end;
    }
    if (begin > at && end > begin) add_name(names, ptx.substr(begin, end - begin));
  }
  return names;
}

Failure dead_kernel() noexcept {
  return Failure(ErrorCode::use_after_free,
                 "the kernel was unloaded, or was loaded on another device. Keep the kernel loaded "
                 "until its last launch.");
}

}  // namespace

CudaKernels::Kernel::Kernel(Kernel&& other) noexcept
    : context(other.context),
      module(std::exchange(other.module, nullptr)),
      function(other.function),
      name(std::move(other.name)) {}

CudaKernels::Kernel::~Kernel() {
  if (module == nullptr) return;
  const ContextScope scope(*context);
  if (!scope) return;
  static_cast<void>(context->cu().cuModuleUnload(module));
}

CompileTarget CudaKernels::compile_target() const noexcept {
  return {
      context_.spec(),
      static_cast<std::uint32_t>(context_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)),
      static_cast<std::uint32_t>(context_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))};
}

Result<std::string> CudaKernels::ptx_of(const language::Program& program, std::string_view entry,
                                        std::string_view wanted_options) {
  const std::string text = language::emit(program, language::Dialect::cuda);
  const std::string options = "--fmad=false " + std::string(wanted_options);
  const CompileTarget target = compile_target();
  const Nvrtc& compiler = nvrtc();
  const std::string device = fmt::format("{}.{}", target.compute_major, target.compute_minor);
  const std::string version = fmt::format("{}.{}", compiler.major, compiler.minor);
  const language::CodeKey key = {
      .kind = "ptx", .text = text, .options = options, .device = device, .compiler = version};
  const language::CodeCache& cache = language::CodeCache::of_process();
  if (compiler.is_present()) {
    if (const auto kept = cache.find(key)) {
      return std::string(reinterpret_cast<const char*>(kept->data()), kept->size());
    }
  }
  Result<std::string> ptx =
      try_compile(compiler, {.entry = entry, .text = text, .options = options}, target);
  if (ptx) cache.store(key, std::as_bytes(std::span(*ptx)));
  return ptx;
}

Result<std::string> CudaKernels::image_of(const KernelSource& source, std::string_view entry) {
  if (source.program) {
    if (context_.driver().takes_portable_texts) {
      return std::string(portable_image_magic)
          .append(entry)
          .append("\n")
          .append(source.program->name)
          .append("\n")
          .append(source.program->text);
    }
    return ptx_of(*source.program, entry, source.options);
  }
  if (!source.image.empty()) {
    // PTX must end with a zero, which the view may not include.
    return std::string(reinterpret_cast<const char*>(source.image.data()), source.image.size());
  }
  if (!source.text.empty()) {
    return try_compile(nvrtc(), source, compile_target());
  }
  return Failure(ErrorCode::unsupported,
                 "'{device}' runs {what}, and kernel '{kernel}' has neither an image nor source "
                 "text. Provide one of them.")
      .with("what", "PTX, cubins and CUDA C++ only")
      .with("device", context_.spec())
      .with("kernel", source.entry);
}

std::string CudaKernels::names_in(CUmodule module, std::string_view image) {
  const DriverTable& cu = context_.cu();
  if (cu.cuModuleGetFunctionCount == nullptr || cu.cuModuleEnumerateFunctions == nullptr ||
      cu.cuFuncGetName == nullptr) {
    return entries_in(image);
  }
  constexpr unsigned most = 16;  // more names do not fit in a failure
  std::array<CUfunction, most> functions = {};
  unsigned count = 0;
  if (cu.cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS) return entries_in(image);
  count = std::min(count, most);
  if (count == 0 ||
      cu.cuModuleEnumerateFunctions(functions.data(), count, module) != CUDA_SUCCESS) {
    return entries_in(image);
  }
  std::string names;
  for (unsigned i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (cu.cuFuncGetName(&name, functions[i]) == CUDA_SUCCESS && name != nullptr) {
      add_name(names, name);
    }
  }
  return names;
}

Result<NativeKernel> CudaKernels::load(const KernelSource& source) noexcept {
  try {
    const DriverTable& cu = context_.cu();
    std::string entry(source.entry);
    if (source.program) {
      entry = source.is_combine ? language::combine_entry_name(*source.program)
                                : language::entry_name(*source.program);
    }
    const Result<std::string> made = image_of(source, entry);
    if (!made) return made.failure();
    const std::string& image = *made;
    std::array<char, 2048> log = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
    CUmodule module = nullptr;
    const CUresult loaded = cu.cuModuleLoadDataEx(&module, image.c_str(), 2, options, values);
    if (is_about_image(loaded)) {
      return Failure(ErrorCode::invalid_argument,
                     "'{device}' cannot load the image of kernel '{kernel}' ({call} returned "
                     "{result}, {code}): {value}")
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
      const std::string names = names_in(module, image);
      return Failure(ErrorCode::not_found,
                     "the image has no kernel '{id}'. Its kernels: {names}. C++ compilers mangle "
                     "names: declare the kernel extern \"C\", or use the mangled name.")
          .with("id", source.entry.substr(0, 60))
          .with("names", names.empty() ? "none could be listed" : names);
    }
    if (Result<void> done = context_.check(found, "cuModuleGetFunction"); !done) {
      return done.failure();
    }
    const NativeKernel native{kernels_.add(std::move(kernel))};
    if (native.value == 0) return no_host_memory(sizeof(Kernel), "a kernel");
    return native;
  } catch (const std::bad_alloc&) {
    return no_host_memory(source.image.size() + source.text.size(), "a kernel");
  }
}

Result<KernelInfo> CudaKernels::info(NativeKernel native) noexcept {
  const std::shared_ptr<const Kernel> kernel = kernels_.find(native.value);
  if (!kernel) return dead_kernel();
  const DriverTable& cu = context_.cu();
  KernelInfo info;
  if (cu.cuFuncGetParamInfo != nullptr) {
    CUresult result = CUDA_SUCCESS;
    std::uint32_t count = 0;
    // The driver does not return the number of parameters, only that an index is invalid.
    for (; count < max_parameters; ++count) {
      std::size_t offset = 0, bytes = 0;
      result = cu.cuFuncGetParamInfo(kernel->function, count, &offset, &bytes);
      if (result != CUDA_SUCCESS) break;
      if (count < KernelInfo::max_parameters) {
        info.parameters[count].value_bytes = static_cast<std::uint32_t>(bytes);
      }
    }
    if (result == CUDA_ERROR_INVALID_VALUE) {
      info.parameter_count = count;
    } else if (Result<void> known = context_.check(result, "cuFuncGetParamInfo");
               !known && context_.is_lost()) {
      return known.failure();
    }
  }
  // Larger blocks have the same occupancy, and memory-bound kernels run slower with them: a
  // multiprocessor is not refilled before all threads of a block have ended.
  constexpr int block_limit = LaunchSize::usual_block;
  int min_grid = 0, block = 0;
  if (Result<void> known =
          context_.check(cu.cuOccupancyMaxPotentialBlockSize(&min_grid, &block, kernel->function,
                                                             nullptr, 0, block_limit),
                         "cuOccupancyMaxPotentialBlockSize");
      !known && context_.is_lost()) {
    return known.failure();
  }
  // Facts that cannot be queried are left unknown; the kernel works without them.
  info.block_threads = static_cast<std::uint32_t>(std::max(block, 0));
  return info;
}

Result<void> CudaKernels::launch(CUstream stream, NativeKernel native, const LaunchSize& size,
                                 std::span<const KernelArgument> arguments) noexcept {
  const std::shared_ptr<const Kernel> kernel = kernels_.find(native.value);
  if (!kernel) return dead_kernel();
  InlineVector<void*, 64> values;  // has room for the usual number of arguments
  if (!values.try_reserve(arguments.size())) {
    return no_host_memory(arguments.size() * sizeof(void*), "the arguments of a launch");
  }
  for (const KernelArgument& argument : arguments) {
    values.emplace_back(const_cast<void*>(argument.value));
  }
  return context_.check(
      context_.cu().cuLaunchKernel(kernel->function, size.grid[0], size.grid[1], size.grid[2],
                                   size.block[0], size.block[1], size.block[2], size.shared_bytes,
                                   stream, values.data(), nullptr),
      "cuLaunchKernel");
}

}  // namespace tern::cuda
