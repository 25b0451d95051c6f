#include "backends/cuda/cuda_opener.hpp"

#include <memory>
#include <string>
#include <string_view>

#include "backends/cuda/cuda_backend.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::cuda {
namespace {

constexpr unsigned simulated_devices = 2;

bool wants_simulated(const DeviceSpec& spec) { return spec.option("driver") == "sim"; }

const Driver& simulated_driver() {
  // Immortal, like the devices of the catalog.
  static const Driver& driver = *new Driver(load_fake_driver(linked_fake_cuda()));
  return driver;
}

/// With invalid options, opening reports the option instead of a missing driver.
bool is_understood(const DeviceSpec& spec) {
  return spec.options.empty() || (spec.options.size() == 1 && wants_simulated(spec));
}

const Driver& driver_of(const DeviceSpec& spec) {
  return wants_simulated(spec) ? simulated_driver() : driver();
}

Result<std::unique_ptr<Backend>> open(const DeviceSpec& spec) {
  for (const auto& [key, value] : spec.options) {
    if (key != "driver") {
      return Failure(ErrorCode::invalid_device,
                     "'{spec}' cannot be opened: a CUDA device has no option '{key}'. The only "
                     "option is 'driver'.")
          .with("key", key)
          .with("spec", spec.text());
    }
    if (!wants_simulated(spec)) {
      return Failure(
                 ErrorCode::invalid_device,
                 "'{spec}' cannot be opened: {key}='{value}' is not accepted. Accepted: {accepts}.")
          .with("key", key)
          .with("accepts", "sim, for simulated devices behind the CUDA driver's entry points")
          .with("value", value)
          .with("spec", spec.text());
    }
  }
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  return open_backend(driver_of(spec), {.spec = spec.text(),
                                        .ordinal = static_cast<int>(spec.index),
                                        .staging = staging_options(**config),
                                        .nvtx_injection = (*config)->nvtx_injection});
}

}  // namespace

Driver load_fake_driver(const FakeCuda* fake) {
  if (fake == nullptr) {
    Driver driver;
    driver.absence =
        "backend 'cuda' is not available with driver=sim: this program is linked without the fake "
        "CUDA driver. Link the CMake target tern::fake_cuda (libtern_fake_cuda.a), or open 'sim' "
        "instead.";
    return driver;
  }
  if (const Result<void> installed = fake->install(simulated_devices); !installed) {
    Driver driver;
    driver.absence =
        "backend 'cuda' is not available with driver=sim: " + installed.failure().text();
    return driver;
  }
  const auto symbol = [](void* context, const char* name) -> void* {
    if (std::string_view(name) != "cuGetProcAddress_v2") return nullptr;
    return reinterpret_cast<void*>(static_cast<const FakeCuda*>(context)->get_proc_address);
  };
  Driver driver = load_driver({symbol, const_cast<FakeCuda*>(fake)});
  driver.takes_portable_texts = true;
  return driver;
}

Opener opener() {
  return {"cuda",
          [](const DeviceSpec& spec) {
            return is_understood(spec) ? driver_of(spec).absence : std::string();
          },
          [](const DeviceSpec& spec) {
            return is_understood(spec) ? static_cast<std::uint32_t>(driver_of(spec).device_count)
                                       : spec.index + 1;
          },
          {"driver=sim"},
          open};
}

}  // namespace tern::cuda
