#include "backends/cuda/fake_cuda.hpp"

#include <string_view>

#include "tern/core/visibility.hpp"

// Defined in src/backends/fake_cuda/link.cpp. Weak: a program without the fake links all the same.
extern "C" TERN_EXPORT [[gnu::weak]] const tern::cuda::FakeCuda* tern_fake_cuda() noexcept;

namespace tern::cuda {

const FakeCuda* linked_fake_cuda() noexcept {
  return tern_fake_cuda == nullptr ? nullptr : tern_fake_cuda();
}

Driver load_fake_driver(const FakeCuda* fake, unsigned device_count) {
  if (fake == nullptr) {
    Driver driver;
    driver.absence =
        "backend 'cuda' is not available with driver=sim: this program is linked without the fake "
        "CUDA driver. Link the CMake target tern::fake_cuda (libtern_fake_cuda.a), or open 'sim' "
        "instead.";
    return driver;
  }
  fake->install(device_count);
  const auto symbol = [](void* context, const char* name) -> void* {
    if (std::string_view(name) != "cuGetProcAddress_v2") return nullptr;
    return reinterpret_cast<void*>(static_cast<const FakeCuda*>(context)->get_proc_address);
  };
  return load_driver({symbol, const_cast<FakeCuda*>(fake)});
}

}  // namespace tern::cuda
