#include "backends/cuda/cuda_opener.hpp"

#include <fmt/format.h>

#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/driver.hpp"
#include "backends/cuda/fake_cuda.hpp"
#include "tern/core/config.hpp"

namespace tern::cuda {
namespace {

constexpr unsigned simulated_devices = 2;

bool wants_simulated(const DeviceSpec& spec) { return spec.option("driver") == "sim"; }

/// The fake driver, for `cuda:0?driver=sim`. Immortal, like the devices of the catalog.
const Driver& simulated_driver() {
  static const Driver& driver =
      *new Driver(load_fake_driver(linked_fake_cuda(), simulated_devices));
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
