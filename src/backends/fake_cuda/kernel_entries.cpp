// The entries that load modules, describe functions and launch them.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/fake_cuda.hpp"
#include "backends/fake_cuda/entry.hpp"
#include "language/emit.hpp"
#include "language/names.hpp"
#include "language/parser.hpp"

namespace tern::sim::entries {
namespace {

/// The buffer for error messages about an image.
struct ErrorLog {
  char* text = nullptr;
  std::size_t room_bytes = 0;

  void write(std::string_view why) const noexcept {
    if (text == nullptr || room_bytes == 0) return;
    const std::size_t length = std::min(why.size(), room_bytes - 1);
    std::memcpy(text, why.data(), length);
    text[length] = '\0';
  }
};

/// Returns nullopt for an option that Tern does not use.
std::optional<ErrorLog> log_of(unsigned count, const CUjit_option* options, void** values) {
  ErrorLog log;
  if (count != 0 && (options == nullptr || values == nullptr)) return std::nullopt;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
      log.text = static_cast<char*>(values[i]);
    } else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      log.room_bytes = as_number(values[i]);
    } else {
      return std::nullopt;
    }
  }
  return log;
}

std::uint64_t count_at(const void* value, std::size_t value_bytes) noexcept {
  std::uint64_t count = 0;
  std::memcpy(&count, value, std::min(value_bytes, sizeof count));
  return count;
}

/// Converts the arguments for the simulated device: with the range of each address. Returns nullopt
/// if the kernel would access memory that it may not use.
std::optional<std::vector<KernelArgument>> declare(const Here& here, const FakeFunction& function,
                                                   const LaunchSize& size, void** values) {
  const std::uint64_t blocks = std::uint64_t{size.grid[0]} * size.grid[1] * size.grid[2];
  const std::vector<KernelParameter>& parameters = function.kernel.parameters;
  std::vector<KernelArgument> arguments;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const KernelParameter& parameter = parameters[i];
    KernelArgument argument{values[i], parameter.value_bytes};
    if (parameter.access && parameter.value_bytes == sizeof(void*)) {
      void* address = nullptr;
      std::memcpy(&address, values[i], sizeof address);
      const FakeBlock block = here.state.block_at(address);
      std::size_t bytes = block.base + block.bytes - as_number(address);
      if (parameter.has_one_per_block) {
        bytes = blocks * parameter.element_bytes;
      } else if (parameter.count_parameter) {
        const std::size_t from = *parameter.count_parameter;
        bytes = count_at(values[from], parameters[from].value_bytes) * parameter.element_bytes;
      }
      if (block.bytes == 0 && bytes != 0 && address != nullptr) return std::nullopt;
      if (address != nullptr && bytes != 0) {
        if (!may_use(here, function.device, address, bytes, is_write(*parameter.access))) {
          return std::nullopt;
        }
        argument.range_address = address;
        argument.range_bytes = bytes;
        argument.access = *parameter.access;
      }
    }
    arguments.push_back(argument);
  }
  return arguments;
}

Access access_of(language::Intent intent) noexcept {
  return intent == language::Intent::in    ? Access::read
         : intent == language::Intent::out ? Access::discard
                                           : Access::read_write;
}

/// Describes the arguments of a translated kernel: two for each array.
std::vector<KernelParameter> parameters_of(const language::Program& program, bool is_combine) {
  constexpr std::size_t word = sizeof(std::uint64_t);
  const std::size_t result_bytes = language::bytes_of(program.result);
  const KernelParameter result{word, Access::discard, {}, result_bytes, true};
  if (is_combine) return {{word, Access::read, 1, result_bytes}, {word}, result};
  std::vector<KernelParameter> parameters;
  for (const language::Parameter& parameter : program.parameters) {
    const std::size_t bytes = language::bytes_of(parameter.type);
    if (parameter.intent == language::Intent::value) {
      parameters.push_back({bytes});
      continue;
    }
    const std::size_t count_parameter = parameters.size() + 1;
    parameters.push_back({word, access_of(parameter.intent), count_parameter, bytes});
    parameters.push_back({word});
  }
  if (program.form == language::Form::reduction) parameters.push_back(result);
  return parameters;
}

CUresult launch(DriverEntry entry, CUfunction function, const LaunchSize& size, CUstream handle,
                void** values, void** extra) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    const Working working = work_on(here, handle);
    if (!kernel || !working.stream) return CUDA_ERROR_INVALID_HANDLE;
    if (kernel->device != here.device || working.stream->device != here.device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!working) return working.result;
    std::uint64_t threads = 1;
    for (const unsigned extent : size.block) threads *= std::min(extent, 2048u);
    const bool is_empty = std::ranges::count(size.grid, 0u) != 0 || threads == 0;
    const auto most = static_cast<std::uint64_t>(
        here.state.attribute_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, here.device)
            .value_or(1024));
    if (is_empty || threads > most || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t count = kernel->kernel.parameters.size();
    if (count != 0 &&
        (values == nullptr || std::find(values, values + count, nullptr) != values + count)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto arguments = declare(here, *kernel, size, values);
    if (arguments) {
      return result_of(
          here.backend().launch(here.on(*working.stream), kernel->native, size, *arguments));
    }
    // The launch succeeds, and the kernel then accesses invalid memory.
    const Result<Entry> entered = here.state.world->enter("a driver call");
    if (!entered) return sim::result_of(entered.failure());
    here.state.world->lose(
        here.device, Failure(ErrorCode::device_lost)
                         .with("device", here.backend().info().spec)
                         .with("call", "cuLaunchKernel")
                         .with("name", "CUDA_ERROR_ILLEGAL_ADDRESS")
                         .with("code", static_cast<std::uint64_t>(CUDA_ERROR_ILLEGAL_ADDRESS)));
    return CUDA_SUCCESS;
  });
}

/// Loads the function of a portable text. The simulated device interprets it.
CUresult load_portable(const Here& here, std::string_view image, const ErrorLog& log,
                       FakeModule& module) {
  const std::size_t first_end = image.find('\n'), second_end = image.find('\n', first_end + 1);
  const std::string entry(image.substr(0, first_end));
  const std::string_view name = image.substr(first_end + 1, second_end - first_end - 1);
  const Result<language::Program> parsed = language::try_parse(image.substr(second_end + 1), name);
  if (!parsed) {
    log.write(parsed.failure().text());
    return CUDA_ERROR_INVALID_PTX;
  }
  const bool is_combine = entry == language::combine_entry_name(*parsed);
  const Result<NativeKernel> made = here.backend().load_kernel(
      {.entry = entry,
       .program = std::make_shared<const language::Program>(*parsed),
       .is_combine = is_combine});
  if (!made) return sim::result_of(made.failure());
  module.functions[entry] = here.state.functions.add(std::make_shared<FakeFunction>(
      here.backend(), here.device, *made,
      FakeKernel{.name = entry, .parameters = parameters_of(*parsed, is_combine)}));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned option_count,
                            CUjit_option* options, void** values) {
  return call(DriverEntry::cuModuleLoadDataEx, Demand::context, [&](const Here& here) -> CUresult {
    const std::optional<ErrorLog> log = log_of(option_count, options, values);
    if (module == nullptr || image == nullptr || !log) return CUDA_ERROR_INVALID_VALUE;
    // Images have no length. Read as far as the contents are valid.
    const char* text = static_cast<const char*>(image);
    if (std::strncmp(text, cuda::portable_image_magic.data(), cuda::portable_image_magic.size()) ==
        0) {
      auto portable = std::make_shared<FakeModule>();
      portable->device = here.device;
      const CUresult result =
          load_portable(here, text + cuda::portable_image_magic.size(), *log, *portable);
      if (result == CUDA_SUCCESS) {
        *module = as_handle<CUmodule>(here.state.modules.add(std::move(portable)));
      }
      return result;
    }
    if (std::strncmp(text, fake_image_magic.data(), fake_image_magic.size()) != 0) {
      log->write("fake driver: this is no image of mine");
      return CUDA_ERROR_INVALID_IMAGE;
    }
    auto loaded = std::make_shared<FakeModule>();
    loaded->device = here.device;
    CUresult result = CUDA_SUCCESS;
    std::istringstream lines(text + fake_image_magic.size());
    for (std::string name; result == CUDA_SUCCESS && std::getline(lines, name);) {
      const auto& known = here.state.options.kernels;
      const auto kernel = std::ranges::find(known, name, &FakeKernel::name);
      if (kernel == known.end()) {
        log->write("fake driver: there is no kernel '" + name + "'");
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
        break;
      }
      const Result<NativeKernel> made = here.backend().load_kernel(
          {.entry = kernel->name, .body = kernel->body, .context = kernel->context});
      if (!made) {
        result = sim::result_of(made.failure());
        break;
      }
      loaded->functions[name] = here.state.functions.add(
          std::make_shared<FakeFunction>(here.backend(), here.device, *made, *kernel));
    }
    if (result == CUDA_SUCCESS) {
      *module = as_handle<CUmodule>(here.state.modules.add(std::move(loaded)));
      return CUDA_SUCCESS;
    }
    for (const auto& [name, function] : loaded->functions) here.state.functions.remove(function);
    return result;
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return call(DriverEntry::cuModuleUnload, Demand::release, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeModule> gone = here.state.modules.remove(as_number(module));
    if (!gone) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [name, function] : gone->functions) here.state.functions.remove(function);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return call(DriverEntry::cuModuleGetFunction, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
    if (!from) return CUDA_ERROR_INVALID_HANDLE;
    if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto found = from->functions.find(std::string_view(name));
    if (found == from->functions.end()) return CUDA_ERROR_NOT_FOUND;
    *function = as_handle<CUfunction>(found->second);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  return call(DriverEntry::cuModuleGetFunctionCount, Demand::context,
              [&](const Here& here) -> CUresult {
                const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
                if (!from) return CUDA_ERROR_INVALID_HANDLE;
                if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
                *count = static_cast<unsigned>(from->functions.size());
                return CUDA_SUCCESS;
              });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  return call(DriverEntry::cuModuleEnumerateFunctions, Demand::context,
              [&](const Here& here) -> CUresult {
                const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
                if (!from) return CUDA_ERROR_INVALID_HANDLE;
                if (functions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
                for (const auto& [name, function] : from->functions) {
                  if (count-- == 0) break;
                  *functions++ = as_handle<CUfunction>(function);
                }
                return CUDA_SUCCESS;
              });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return call(DriverEntry::cuFuncGetName, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->kernel.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, std::size_t index, std::size_t* offset,
                            std::size_t* bytes) {
  return call(DriverEntry::cuFuncGetParamInfo, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    const std::vector<KernelParameter>& parameters = kernel->kernel.parameters;
    if (offset == nullptr || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    for (std::size_t i = 0; i <= index; ++i) {
      const std::size_t size = std::max<std::size_t>(parameters[i].value_bytes, 1);
      *offset = (*offset + size - 1) / size * size;  // aligned to its own size
      if (i < index) *offset += size;
    }
    if (bytes != nullptr) *bytes = parameters[index].value_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize, std::size_t, int block_limit) {
  return call(DriverEntry::cuOccupancyMaxPotentialBlockSize, Demand::context,
              [&](const Here& here) -> CUresult {
                if (!here.state.functions.find(as_number(function))) {
                  return CUDA_ERROR_INVALID_HANDLE;
                }
                if (min_grid == nullptr || block == nullptr || block_limit < 0) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                // The value for a kernel that needs few registers.
                *block = block_limit == 0 ? 768 : std::min(block_limit, 768);
                *min_grid =
                    2 *
                    here.state.attribute_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, here.device)
                        .value_or(1);
                return CUDA_SUCCESS;
              });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** arguments, void** extra) {
  const LaunchSize size{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  return launch(DriverEntry::cuLaunchKernel, function, size, stream, arguments, extra);
}

}  // namespace tern::sim::entries
