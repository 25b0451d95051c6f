// NVIDIA's run-time compiler: CUDA C++ in, PTX out; or a sentence that says why there is none.
//
// It is a library of the toolkit and not of the driver, so most machines that run programs lack it.
// It is looked for when a text is first to be compiled, never linked, and never unloaded. Nothing
// of it needs a GPU. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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
using nvrtcProgram = struct _nvrtcProgram*;

// One line per entry: its name and its parameters. All are there since 11.2.
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
  /// What is missing, and what to do about it; empty if the compiler is there.
  std::string absence = {};

  [[nodiscard]] bool is_present() const noexcept { return absence.empty(); }
};

/// The compiler in a library, or that it is none.
[[nodiscard]] Nvrtc load_nvrtc(const DriverLibrary& library);
/// The first library there is of these names, which end with a null.
[[nodiscard]] Nvrtc find_nvrtc(const char* const* names);

/// The compiler of the process, or of a test that installed one.
[[nodiscard]] const Nvrtc& nvrtc();

/// Puts another compiler in the place of the machine's, until it ends. For tests: one at a time.
class InstalledNvrtc {
 public:
  explicit InstalledNvrtc(Nvrtc nvrtc);
  ~InstalledNvrtc();
  InstalledNvrtc(const InstalledNvrtc&) = delete;
  InstalledNvrtc& operator=(const InstalledNvrtc&) = delete;
};

/// For whom a text is compiled.
struct CompileTarget {
  std::string_view device;  // its spec, for errors
  std::uint32_t compute_major = 0, compute_minor = 0;
};

/// PTX. For the newest architecture that both know, so that a compiler that is older than the GPU
/// will do. Refused with unsupported where there is no compiler; with invalid_argument, and the
/// first lines about the error, for a text that is not right. May throw std::bad_alloc.
[[nodiscard]] Result<std::string> try_compile(const Nvrtc& nvrtc, const KernelSource& source,
                                              const CompileTarget& target);

}  // namespace tern::cuda
