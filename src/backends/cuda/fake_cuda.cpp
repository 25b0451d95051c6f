#include "backends/cuda/fake_cuda.hpp"

#include "tern/detail/core/visibility.hpp"

// Defined in src/backends/fake_cuda/link.cpp. Weak, so that a program without the fake driver links
// too.
extern "C" TERN_EXPORT __attribute__((weak)) const tern::cuda::FakeCuda* tern_fake_cuda() noexcept;

namespace tern::cuda {

const FakeCuda* linked_fake_cuda() noexcept {
  return tern_fake_cuda == nullptr ? nullptr : tern_fake_cuda();
}

}  // namespace tern::cuda
