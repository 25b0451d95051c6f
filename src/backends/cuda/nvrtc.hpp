// NVIDIA's run-time compiler (CUDA C++ to PTX), or a sentence that says why there is none.
//
// The library is part of the toolkit and not of the driver, so most machines do not have it. It is
// loaded when the first text is compiled, never linked, and never unloaded. It needs no GPU.
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backends/cuda/driver.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
};
// Defined, because clang's check of calls through pointers cannot compare types with an incomplete
// one across source files.
struct _nvrtcProgram {};
using nvrtcProgram = _nvrtcProgram*;

// One line per entry: name and parameters. All exist since 11.2.
#define TERN_FOR_EACH_NVRTC_ENTRY(TERN_NVRTC_ENTRY)                                               \
  TERN_NVRTC_ENTRY(nvrtcVersion, (int* major, int* minor))                                        \
  TERN_NVRTC_ENTRY(nvrtcGetNumSupportedArchs, (int* count))                                       \
  TERN_NVRTC_ENTRY(nvrtcGetSupportedArchs, (int* architectures))                                  \
  TERN_NVRTC_ENTRY(nvrtcCreateProgram,                                                            \
                   (nvrtcProgram * program, const char* text, const char* name, int header_count, \
                    const char* const* headers, const char* const* names))                        \
  TERN_NVRTC_ENTRY(nvrtcDestroyProgram, (nvrtcProgram * program))                                 \
  TERN_NVRTC_ENTRY(nvrtcCompileProgram,                                                           \
                   (nvrtcProgram program, int option_count, const char* const* options))          \
  TERN_NVRTC_ENTRY(nvrtcGetPTXSize, (nvrtcProgram program, std::size_t * bytes))                  \
  TERN_NVRTC_ENTRY(nvrtcGetPTX, (nvrtcProgram program, char* text))                               \
  TERN_NVRTC_ENTRY(nvrtcGetProgramLogSize, (nvrtcProgram program, std::size_t * bytes))           \
  TERN_NVRTC_ENTRY(nvrtcGetProgramLog, (nvrtcProgram program, char* text))

struct Nvrtc {
#define TERN_NVRTC_ENTRY(name, parameters) nvrtcResult(*name) parameters = nullptr;
  TERN_FOR_EACH_NVRTC_ENTRY(TERN_NVRTC_ENTRY)
#undef TERN_NVRTC_ENTRY
  int major = 0, minor = 0;
  /// What is missing and what to do; empty if the compiler is available.
  std::string absence = {};

  [[nodiscard]] bool is_present() const noexcept { return absence.empty(); }
};

/// Returns the compiler of a library, or an absent compiler.
[[nodiscard]] Nvrtc load_nvrtc(const DriverLibrary& library);
/// Loads the first available library of these names; the list ends with a null.
[[nodiscard]] Nvrtc find_nvrtc(const char* const* names);

/// Returns the compiler of the process, or the one that a test installed.
[[nodiscard]] const Nvrtc& nvrtc();

/// Replaces the compiler of the machine during its lifetime. For tests, one at a time.
class InstalledNvrtc {
 public:
  explicit InstalledNvrtc(Nvrtc nvrtc);
  ~InstalledNvrtc();
  InstalledNvrtc(const InstalledNvrtc&) = delete;
  InstalledNvrtc& operator=(const InstalledNvrtc&) = delete;
};

/// The device that a text is compiled for.
struct CompileTarget {
  std::string_view device;  // its spec, for errors
  std::uint32_t compute_major = 0, compute_minor = 0;
};

/// Compiles to PTX for the newest architecture that compiler and GPU have in common, so a compiler
/// that is older than the GPU works. Fails with unsupported without a compiler, and with
/// invalid_argument, which contains the first lines about the error, for an invalid text. May throw
/// std::bad_alloc.
[[nodiscard]] Result<std::string> try_compile(const Nvrtc& nvrtc, const KernelSource& source,
                                              const CompileTarget& target);

}  // namespace tern::cuda
