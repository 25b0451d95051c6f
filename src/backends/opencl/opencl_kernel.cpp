#include "backends/opencl/opencl_kernel.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "backends/opencl/opencl_errors.hpp"
#include "core/no_host_memory.hpp"
#include "language/emit.hpp"

namespace tern::opencl {
namespace {

void* address_in(const KernelArgument& argument) noexcept {
  void* address = nullptr;
  std::memcpy(&address, argument.value, sizeof address);
  return address;
}

/// Returns the line of the first error and the lines after it.
std::string_view first_error(std::string_view log) noexcept {
  const std::size_t error = log.find("error");
  if (error == log.npos) return log;
  const std::size_t line = log.rfind('\n', error);
  return log.substr(line == log.npos ? 0 : line + 1);
}

/// Returns the size of a built-in type, or 0 for other types.
std::uint32_t bytes_of(std::string_view type) noexcept {
  struct Scalar {
    std::string_view name;
    std::uint32_t bytes;
  };
  constexpr Scalar scalars[] = {{"char", 1}, {"uchar", 1}, {"short", 2}, {"ushort", 2},
                                {"int", 4},  {"uint", 4},  {"long", 8},  {"ulong", 8},
                                {"half", 2}, {"float", 4}, {"double", 8}};
  const auto* const found = std::ranges::find(scalars, type, &Scalar::name);
  return found == std::end(scalars) ? 0 : found->bytes;
}

}  // namespace

Result<std::shared_ptr<Kernel>> Kernel::load(std::shared_ptr<Context> context,
                                             const KernelSource& source) noexcept {
  if (Result<void> alive = context->check_alive(); !alive) return alive.failure();
  if (source.program) {
    try {
      const std::string entry = source.is_combine ? language::combine_entry_name(*source.program)
                                                  : language::entry_name(*source.program);
      const std::string text = language::emit(*source.program, language::Dialect::opencl);
      // The warnings of the compiler are about a text that the user has not written.
      std::string options = "-w ";
      if (context->facts().rounds_divisions) {
        options += "-cl-fp32-correctly-rounded-divide-sqrt ";
      }
      options += source.options;
      return load(std::move(context), {.entry = entry, .text = text, .options = options});
    } catch (const std::bad_alloc&) {
      return no_host_memory(source.program->text.size(), "the text of a kernel");
    }
  }
  if (source.text.empty()) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' runs {what} only, and kernel '{kernel}' has no source text. Set the "
                   "text of the kernel.")
        .with("what", "kernels written in OpenCL C")
        .with("device", context->spec())
        .with("kernel", source.entry);
  }
  try {
    const std::shared_ptr<Kernel> kernel(new Kernel(std::move(context), std::string(source.entry)));
    if (Result<void> built = kernel->build(source); !built) return built.failure();
    Result<cl_kernel> created = kernel->create();
    if (!created) return created.failure();
    kernel->kernel_ = *created;
    if (Result<void> read = kernel->read_parameters(); !read) return read.failure();
    return kernel;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Kernel), "a kernel");
  }
}

Kernel::~Kernel() {
  const Table& table = context_->table();
  if (kernel_ != nullptr) table.clReleaseKernel(kernel_);
  if (program_ != nullptr) table.clReleaseProgram(program_);
}

Result<void> Kernel::build(const KernelSource& source) {
  const std::string_view text = source.text;
  const char* begin = text.data();
  const std::size_t length = text.size();
  constexpr const char* call = "clCreateProgramWithSource";
  cl_int code = result::success;
  const Table& table = context_->table();
  program_ = table.clCreateProgramWithSource(context_->handle(), 1, &begin, &length, &code);
  if (program_ == nullptr) {
    const Result<void> made = context_->check(call, code);
    return made ? call_failed(context_->spec(), call, code) : made;
  }
  // Without this option, an implementation may not report which parameters are addresses.
  const std::string options = std::string("-cl-kernel-arg-info ").append(source.options);
  code =
      table.clBuildProgram(program_, 1, &context_->facts().id, options.c_str(), nullptr, nullptr);
  if (code == result::invalid_build_options) {
    return Failure(ErrorCode::invalid_argument,
                   "the compiler of '{device}' rejects the options '{value}' of kernel '{kernel}' "
                   "({call} returned {result}).")
        .with("name", "options")
        .with("call", "clBuildProgram")
        .with("result", name_of(code))
        .with("device", context_->spec())
        .with("kernel", std::string_view(entry_).substr(0, 40))
        .with("value", source.options);
  }
  if (code == result::build_program_failure) return build_failure(code);
  return context_->check("clBuildProgram", code);
}

Failure Kernel::build_failure(cl_int code) {
  const Table& table = context_->table();
  const cl_device_id device = context_->facts().id;
  std::string log;
  std::size_t bytes = 0;
  if (table.clGetProgramBuildInfo(program_, device, program_build_log, 0, nullptr, &bytes) ==
      result::success) {
    log.resize(bytes);
    if (table.clGetProgramBuildInfo(program_, device, program_build_log, bytes, log.data(),
                                    nullptr) != result::success) {
      log.clear();
    }
    log.resize(std::min(log.find('\0'), log.size()));
  }
  if (log.empty()) log = "the compiler gave no reason";
  std::string_view shown = first_error(log);
  shown.remove_suffix(shown.size() - (shown.find_last_not_of(" \n") + 1));
  // The log is the last field: it is cut to the space that is left.
  return Failure(ErrorCode::invalid_argument,
                 "the text of kernel '{kernel}' could not be compiled for '{device}' ({call} "
                 "returned {result}, {code}): {value}")
      .with("name", "text")
      .with("call", "clBuildProgram")
      .with("result", name_of(code))
      .with_signed("code", code)
      .with("device", context_->spec())
      .with("kernel", std::string_view(entry_).substr(0, 40))
      .with("value", shown);
}

Result<cl_kernel> Kernel::create() noexcept {
  constexpr const char* call = "clCreateKernel";
  cl_int code = result::success;
  cl_kernel kernel = context_->table().clCreateKernel(program_, entry_.c_str(), &code);
  if (kernel != nullptr) return kernel;
  if (code == result::invalid_kernel_name) {
    std::string names;
    try {
      names = names_in_program();
    } catch (const std::bad_alloc&) {
      // The error is complete without the list of names.
    }
    return Failure(ErrorCode::not_found,
                   "the source text for '{device}' has no kernel '{id}'. Its kernels: {names}. Use "
                   "a name that the text declares with __kernel.")
        .with("device", context_->spec())
        .with("id", std::string_view(entry_).substr(0, 60))
        .with("names", names.empty() ? "none could be listed" : names);
  }
  const Result<void> made = context_->check(call, code);
  return made ? call_failed(context_->spec(), call, code) : made.failure();
}

std::string Kernel::names_in_program() const {
  const Table& table = context_->table();
  std::size_t bytes = 0;
  if (table.clGetProgramInfo(program_, program_kernel_names, 0, nullptr, &bytes) !=
      result::success) {
    return {};
  }
  std::string listed(bytes, '\0');
  if (table.clGetProgramInfo(program_, program_kernel_names, bytes, listed.data(), nullptr) !=
      result::success) {
    return {};
  }
  listed.resize(std::min(listed.find('\0'), listed.size()));
  std::string names;
  for (std::string_view rest = listed; !rest.empty();) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    names.append(names.empty() ? "'" : ", '").append(rest.substr(0, end)).append("'");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return names;
}

KernelInfo Kernel::info() const {
  const bool has_local = !parameters_.empty() && parameters_.back() == Parameter::local;
  const std::size_t count = parameters_.size() - (has_local ? 1 : 0);
  KernelInfo info;
  info.parameter_count = static_cast<std::uint32_t>(count);
  for (std::size_t i = 0; i < std::min(count, info.parameters.size()); ++i) {
    KernelInfo::Parameter& parameter = info.parameters[i];
    if (parameters_[i] == Parameter::address) {
      parameter = {sizeof(void*), KernelInfo::Kind::address};
      continue;
    }
    parameter.kind = KernelInfo::Kind::value;
    char type[64] = {};
    if (context_->table().clGetKernelArgInfo(kernel_, static_cast<cl_uint>(i), kernel_arg_type_name,
                                             sizeof type - 1, type, nullptr) == result::success) {
      parameter.value_bytes = bytes_of(type);
    }
  }
  return info;
}

Result<void> Kernel::read_parameters() {
  const Table& table = context_->table();
  cl_uint count = 0;
  cl_int code = table.clGetKernelInfo(kernel_, kernel_num_args, sizeof count, &count, nullptr);
  if (Result<void> asked = context_->check("clGetKernelInfo", code); !asked) return asked;
  for (cl_uint i = 0; i < count; ++i) {
    cl_uint qualifier = 0;
    code = table.clGetKernelArgInfo(kernel_, i, kernel_arg_address_qualifier, sizeof qualifier,
                                    &qualifier, nullptr);
    if (Result<void> asked = context_->check("clGetKernelArgInfo", code); !asked) return asked;
    parameters_.push_back(qualifier == kernel_arg_address_private ? Parameter::value
                          : qualifier == kernel_arg_address_local ? Parameter::local
                                                                  : Parameter::address);
  }
  return {};
}

Result<void> Kernel::check_arguments(const Memory& memory, const LaunchSize& size,
                                     std::span<const KernelArgument> arguments) noexcept {
  const bool has_local = !parameters_.empty() && parameters_.back() == Parameter::local;
  const std::size_t expected = parameters_.size() - (has_local ? 1 : 0);
  const auto refuse = [&](const char* sentence, std::size_t index, const char* value) {
    return Failure(ErrorCode::invalid_argument, sentence)
        .with("name", "arguments")
        .with("value", value)
        .with("index", index)
        .with("kernel", entry_);
  };
  if (arguments.size() != expected) {
    return Failure(ErrorCode::invalid_argument,
                   "kernel '{kernel}' has {expected} parameters and was launched with {value} "
                   "arguments.")
        .with("name", "arguments")
        .with("value", arguments.size())
        .with("expected", expected)
        .with("kernel", entry_);
  }
  if (has_local != (size.shared_bytes > 0)) {
    return Failure(
               ErrorCode::invalid_argument,
               has_local
                   ? "the last parameter of kernel '{kernel}' is a pointer to local memory. Set "
                     "shared_bytes to its size."
                   : "kernel '{kernel}' was launched with {value} bytes of shared memory, but its "
                     "last parameter is not a pointer to local memory. Add such a parameter.")
        .with("name", "shared_bytes")
        .with("value", size.shared_bytes)
        .with("kernel", entry_);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const KernelArgument& argument = arguments[i];
    if (parameters_[i] == Parameter::local) {
      return refuse(
          "parameter {index} of kernel '{kernel}' is a pointer to local memory. Only the last "
          "parameter can be one.",
          i, "local memory");
    }
    if (parameters_[i] == Parameter::value) {
      if (argument.range_address != nullptr && !memory.find(argument.range_address)) {
        return refuse(
            "argument {index} of kernel '{kernel}' refers to memory that is not a live allocation "
            "of the device.",
            i, "a foreign address");
      }
      continue;
    }
    if (argument.value_bytes != sizeof(void*)) {
      return refuse("argument {index} of kernel '{kernel}' must be an address.", i,
                    "not an address");
    }
    // OpenCL does not define the effect of an unknown address, and some drivers use it unchecked.
    if (void* address = address_in(argument); address != nullptr && !memory.find(address)) {
      return refuse(
          "argument {index} of kernel '{kernel}' is not in a live allocation of the "
          "device.",
          i, "a foreign address");
    }
  }
  return {};
}

Result<void> Kernel::set_arguments(cl_kernel kernel, const LaunchSize& size,
                                   std::span<const KernelArgument> arguments) noexcept {
  const Table& table = context_->table();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto index = static_cast<cl_uint>(i);
    const KernelArgument& argument = arguments[i];
    const bool is_address = parameters_[i] == Parameter::address;
    const cl_int code =
        is_address ? table.clSetKernelArgSVMPointer(kernel, index, address_in(argument))
                   : table.clSetKernelArg(kernel, index, argument.value_bytes, argument.value);
    const char* call = is_address ? "clSetKernelArgSVMPointer" : "clSetKernelArg";
    if (Result<void> set = context_->check(call, code); !set) return set;
  }
  if (size.shared_bytes == 0) return {};
  const auto last = static_cast<cl_uint>(arguments.size());
  return context_->check("clSetKernelArg",
                         table.clSetKernelArg(kernel, last, size.shared_bytes, nullptr));
}

Result<void> Kernel::launch(Stream& stream, const Memory& memory, const LaunchSize& size,
                            std::span<const KernelArgument> arguments) noexcept {
  if (Result<void> alive = context_->check_alive(); !alive) return alive;
  if (Result<void> right = check_arguments(memory, size, arguments); !right) return right;

  std::vector<void*> hidden;  // addresses inside values, which the driver cannot see
  try {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (parameters_[i] == Parameter::value && arguments[i].range_address != nullptr) {
        hidden.push_back(memory.find(arguments[i].range_address).value_or(PointerInfo{}).base);
      }
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(void*) * arguments.size(), "a launch");
  }
  if (hidden.empty()) {
    const std::lock_guard lock(mutex_);
    if (Result<void> set = set_arguments(kernel_, size, arguments); !set) return set;
    return stream.launch(kernel_, size);
  }
  // The list of additional memory cannot be removed from a kernel object, so such a launch gets its
  // own kernel object.
  const Result<cl_kernel> own = create();
  if (!own) return own.failure();
  const Table& table = context_->table();
  Result<void> launched =
      context_->check("clSetKernelExecInfo",
                      table.clSetKernelExecInfo(*own, kernel_exec_info_svm_ptrs,
                                                hidden.size() * sizeof(void*), hidden.data()));
  if (launched) launched = set_arguments(*own, size, arguments);
  if (launched) launched = stream.launch(*own, size);
  table.clReleaseKernel(*own);  // the queued launch retains it
  return launched;
}

}  // namespace tern::opencl
