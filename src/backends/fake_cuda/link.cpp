// Connects the CUDA backend with the fake driver in a program that links both.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "backends/cuda/fake_cuda.hpp"
#include "backends/fake_cuda/fake_driver.hpp"
#include "backends/fake_cuda/fake_driver_state.hpp"
#include "backends/sim/sim_options.hpp"
#include "tern/core/error.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::sim {
namespace {

/// The driver is never destroyed, so its trace is completed here.
void end_trace_at_exit() {
  static const int registered = std::atexit([] {
    const std::shared_ptr<FakeDriverState> state = FakeDriverState::installed();
    if (state) state->world->end_at_exit(World::HostMemory::ignore);
  });
  static_cast<void>(registered);
}

Result<void> install(unsigned device_count) try {
  const Result<Options> options = try_read_options({});
  if (!options) return options.failure();
  // Never destroyed, like the devices of the catalog. In static storage, so that leak checkers
  // find what the driver owns.
  alignas(FakeDriver) static std::byte storage[sizeof(FakeDriver)];
  static const FakeDriver& driver =
      *::new (storage) FakeDriver({.sim = *options, .device_count = device_count});
  static_cast<void>(driver);
  if (!options->trace.empty()) end_trace_at_exit();
  return {};
} catch (const FileError& error) {
  return error.failure();
}

constexpr cuda::FakeCuda fake_cuda = {
    .install = install,
    .get_proc_address =
        [](const char* name, void** function, int version, std::uint64_t flags,
           cuda::CUdriverProcAddressQueryResult* status) {
          return FakeDriver::get_proc_address()(name, function, version, flags, status);
        },
    .world = []() -> World* {
      const std::shared_ptr<FakeDriverState> state = FakeDriverState::installed();
      return state ? state->world.get() : nullptr;
    },
    .native_stream =
        [](cuda::CUstream handle, std::uint32_t device) {
          return FakeDriverState::installed()->find_stream(handle, device)->native;
        },
};

}  // namespace
}  // namespace tern::sim

extern "C" TERN_EXPORT const tern::cuda::FakeCuda* tern_fake_cuda() noexcept {
  return &tern::sim::fake_cuda;
}
