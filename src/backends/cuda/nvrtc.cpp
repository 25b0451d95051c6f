#include "backends/cuda/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/shared_library.hpp"

namespace tern::cuda {
namespace {

constexpr const char* way_out =
    "Install libnvrtc.so (it is part of the CUDA toolkit and of pip's nvidia-cuda-nvrtc), or "
    "provide the kernel as PTX or a cubin.";

Nvrtc absent(const std::string& why) {
  Nvrtc nvrtc;
  nvrtc.absence = fmt::format("{} {}", why, way_out);
  return nvrtc;
}

std::atomic<const Nvrtc*> installed = nullptr;

/// Returns the line of the first error and the lines after it.
std::string_view first_error(std::string_view log) noexcept {
  if (const std::size_t error = log.find("error"); error != log.npos) {
    const std::size_t line = log.rfind('\n', error);
    log = log.substr(line == log.npos ? 0 : line + 1);
  }
  const std::size_t last = log.find_last_not_of(" \r\n");
  return last == log.npos ? "the compiler gave no reason" : log.substr(0, last + 1);
}

/// Destroys the program at the end of its scope.
struct Program {
  explicit Program(const Nvrtc& of) noexcept : nvrtc(of) {}
  ~Program() {
    if (handle != nullptr) nvrtc.nvrtcDestroyProgram(&handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Returns a text of the program without its terminating zero; empty if it cannot be read.
  std::string text(nvrtcResult (*size_of)(nvrtcProgram, std::size_t*),
                   nvrtcResult (*read)(nvrtcProgram, char*)) const {
    std::size_t bytes = 0;
    if (size_of(handle, &bytes) != NVRTC_SUCCESS || bytes == 0) return {};
    std::string made(bytes, '\0');
    if (read(handle, made.data()) != NVRTC_SUCCESS) return {};
    made.resize(std::min(made.find('\0'), made.size()));
    return made;
  }

  const Nvrtc& nvrtc;
  nvrtcProgram handle = nullptr;
};

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(" \t\n");
    if (begin == text.npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

/// PTX for an architecture runs on all later architectures.
int architecture_for(const Nvrtc& nvrtc, const CompileTarget& target) {
  const int wanted = static_cast<int>(target.compute_major * 10 + target.compute_minor);
  int count = 0;
  if (nvrtc.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count < 1) return wanted;
  std::vector<int> known(static_cast<std::size_t>(count));
  if (nvrtc.nvrtcGetSupportedArchs(known.data()) != NVRTC_SUCCESS) return wanted;
  int best = 0;
  for (const int architecture : known) {
    if (architecture <= wanted) best = std::max(best, architecture);
  }
  // The GPU is older than all supported architectures. The compiler's own error says so.
  return best == 0 ? wanted : best;
}

Failure failed(const char* call, nvrtcResult result, const KernelSource& source,
               const CompileTarget& target) {
  return Failure(result == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::driver,
                 "kernel '{kernel}' could not be compiled for '{device}': {call} returned {code}.")
      .with("call", call)
      .with("name", "nvrtcResult")
      .with("code", static_cast<std::uint64_t>(result))
      .with("device", target.device)
      .with("kernel", source.entry.substr(0, 40));
}

}  // namespace

Nvrtc load_nvrtc(const DriverLibrary& library) {
  Nvrtc nvrtc;
  const char* missing = nullptr;
#define TERN_NVRTC_ENTRY(entry, parameters)                                                       \
  nvrtc.entry = reinterpret_cast<decltype(nvrtc.entry)>(library.symbol(library.context, #entry)); \
  if (nvrtc.entry == nullptr && missing == nullptr) missing = #entry;
  TERN_FOR_EACH_NVRTC_ENTRY(TERN_NVRTC_ENTRY)
#undef TERN_NVRTC_ENTRY
  if (missing != nullptr) {
    return absent(fmt::format(
        "the installed run-time compiler has no {}, which came with version 11.2.", missing));
  }
  if (nvrtc.nvrtcVersion(&nvrtc.major, &nvrtc.minor) != NVRTC_SUCCESS) {
    return absent("the installed run-time compiler does not report its version.");
  }
  return nvrtc;
}

Nvrtc find_nvrtc(const char* const* names) {
  for (; *names != nullptr; ++names) {
    if (void* library = open_shared_library(*names)) return load_nvrtc({find_symbol, library});
  }
  return absent("no run-time compiler (libnvrtc.so) was found.");
}

const Nvrtc& nvrtc() {
  if (const Nvrtc* other = installed.load(std::memory_order_acquire)) return *other;
  if (const char* why = why_no_libraries()) {
    // Not cached: the next caller may have free descriptors again.
    thread_local Nvrtc now;
    now = absent(fmt::format("{}.", why));
    return now;
  }
  // Never destroyed, like the driver.
  static const Nvrtc& machines = *[] {
    constexpr const char* names[] = {"libnvrtc.so.13",
                                     "libnvrtc.so.12",
                                     "libnvrtc.so.11.2",
                                     "libnvrtc.so",
                                     "/usr/local/cuda/lib64/libnvrtc.so",
                                     nullptr};
    return new Nvrtc(find_nvrtc(names));
  }();
  return machines;
}

InstalledNvrtc::InstalledNvrtc(Nvrtc nvrtc) {
  // Never freed: another thread may be compiling.
  static std::list<Nvrtc>& kept = *new std::list<Nvrtc>;
  installed.store(&kept.emplace_back(std::move(nvrtc)), std::memory_order_release);
}
InstalledNvrtc::~InstalledNvrtc() { installed.store(nullptr, std::memory_order_release); }

Result<std::string> try_compile(const Nvrtc& nvrtc, const KernelSource& source,
                                const CompileTarget& target) {
  if (!nvrtc.is_present()) {
    return Failure(ErrorCode::unsupported,
                   "kernel '{kernel}' is source text, which '{device}' must compile: {what}")
        .with("kernel", source.entry.substr(0, 24))
        .with("device", target.device.substr(0, 24))
        .with("what", nvrtc.absence);
  }
  const std::string text(source.text);
  std::vector<std::string> options = {
      fmt::format("--gpu-architecture=compute_{}", architecture_for(nvrtc, target))};
  for (std::string& option : words_of(source.options)) options.push_back(std::move(option));
  std::vector<const char*> given;
  for (const std::string& option : options) given.push_back(option.c_str());

  Program program(nvrtc);
  if (const nvrtcResult made =
          nvrtc.nvrtcCreateProgram(&program.handle, text.c_str(), "kernel.cu", 0, nullptr, nullptr);
      made != NVRTC_SUCCESS) {
    return failed("nvrtcCreateProgram", made, source, target);
  }
  const nvrtcResult compiled =
      nvrtc.nvrtcCompileProgram(program.handle, static_cast<int>(given.size()), given.data());
  if (compiled == NVRTC_ERROR_COMPILATION || compiled == NVRTC_ERROR_INVALID_OPTION) {
    const std::string log = program.text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog);
    // The log is the last field: it is cut to the space that is left.
    return Failure(ErrorCode::invalid_argument,
                   "the text of kernel '{kernel}' could not be compiled for '{device}': {value}")
        .with("name", compiled == NVRTC_ERROR_COMPILATION ? "text" : "options")
        .with("call", "nvrtcCompileProgram")
        .with("code", static_cast<std::uint64_t>(compiled))
        .with("device", target.device)
        .with("kernel", source.entry.substr(0, 40))
        .with("value", first_error(log));
  }
  if (compiled != NVRTC_SUCCESS) return failed("nvrtcCompileProgram", compiled, source, target);
  std::string ptx = program.text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX);
  if (ptx.empty()) return failed("nvrtcGetPTX", NVRTC_SUCCESS, source, target);
  return ptx;
}

}  // namespace tern::cuda
