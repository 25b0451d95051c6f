// A fake run-time compiler. It compiles nothing, records its input, and returns the results that
// the test has set.

#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/nvrtc.hpp"

namespace tern::test {

struct FakeNvrtc {
  struct State {
    std::vector<int> architectures = {75, 80, 90};
    std::string ptx = "ptx";
    std::string log = {};
    std::string missing = {};  // an entry that the library does not have
    std::string failing = {};  // the entry that returns `result`
    cuda::nvrtcResult result = cuda::NVRTC_SUCCESS;
    std::string text = {};
    std::vector<std::string> options = {};
    int live = 0;  // number of programs
  };
  static State& state() {
    static State state;
    return state;
  }
  static cuda::nvrtcResult answer(std::string_view entry) {
    return state().failing == entry ? state().result : cuda::NVRTC_SUCCESS;
  }

  static cuda::nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return answer("nvrtcVersion");
  }
  static cuda::nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = static_cast<int>(state().architectures.size());
    return answer("nvrtcGetNumSupportedArchs");
  }
  static cuda::nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
    for (const int one : state().architectures) *architectures++ = one;
    return answer("nvrtcGetSupportedArchs");
  }
  static cuda::nvrtcResult nvrtcCreateProgram(cuda::nvrtcProgram* program, const char* text,
                                              const char*, int, const char* const*,
                                              const char* const*) {
    const cuda::nvrtcResult result = answer("nvrtcCreateProgram");
    if (result != cuda::NVRTC_SUCCESS) return result;
    state().text = text;
    ++state().live;
    *program = reinterpret_cast<cuda::nvrtcProgram>(&state());
    return result;
  }
  static cuda::nvrtcResult nvrtcDestroyProgram(cuda::nvrtcProgram* program) {
    --state().live;
    *program = nullptr;
    return cuda::NVRTC_SUCCESS;
  }
  static cuda::nvrtcResult nvrtcCompileProgram(cuda::nvrtcProgram, int count,
                                               const char* const* options) {
    state().options.assign(options, options + count);
    return answer("nvrtcCompileProgram");
  }
  static cuda::nvrtcResult nvrtcGetPTXSize(cuda::nvrtcProgram, std::size_t* bytes) {
    *bytes = state().ptx.size() + 1;
    return answer("nvrtcGetPTXSize");
  }
  static cuda::nvrtcResult nvrtcGetPTX(cuda::nvrtcProgram, char* text) {
    std::memcpy(text, state().ptx.c_str(), state().ptx.size() + 1);
    return answer("nvrtcGetPTX");
  }
  static cuda::nvrtcResult nvrtcGetProgramLogSize(cuda::nvrtcProgram, std::size_t* bytes) {
    *bytes = state().log.size() + 1;
    return answer("nvrtcGetProgramLogSize");
  }
  static cuda::nvrtcResult nvrtcGetProgramLog(cuda::nvrtcProgram, char* text) {
    std::memcpy(text, state().log.c_str(), state().log.size() + 1);
    return answer("nvrtcGetProgramLog");
  }
};

/// Returns the library of the fake compiler.
inline cuda::DriverLibrary fake_nvrtc() {
  return {[](void*, const char* name) -> void* {
            if (FakeNvrtc::state().missing == name) return nullptr;
#define TERN_NVRTC_ENTRY(entry, parameters) \
  if (std::strcmp(name, #entry) == 0) return reinterpret_cast<void*>(FakeNvrtc::entry);
            TERN_FOR_EACH_NVRTC_ENTRY(TERN_NVRTC_ENTRY)
#undef TERN_NVRTC_ENTRY
            return nullptr;
          },
          nullptr};
}

}  // namespace tern::test
