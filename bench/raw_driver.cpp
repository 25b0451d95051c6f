#include "bench/raw_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tern::bench {
namespace {

using namespace cuda;

struct Loaded {
  DriverTable calls;
  SharedPoolCalls pool_calls;
  std::string absence;
};

Loaded load() {
  Loaded loaded;
  // Never closed, because the driver cannot be unloaded.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.absence = "libcuda.so.1 was not found";
    return loaded;
  }
  auto* get = reinterpret_cast<cuGetProcAddress_type*>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    loaded.absence = "the driver is older than 12.0";
    return loaded;
  }
  const auto find = [&](const DriverEntryInfo& entry, auto& slot) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    static_cast<void>(
        get(entry.name, &function, entry.version, get_proc_address_legacy_stream, &status));
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(function);
    if (function == nullptr && entry.need == Need::required) {
      loaded.absence = fmt::format("the driver has no {}", entry.name);
    }
  };
  std::size_t i = 0;
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  find(driver_entries[i++], loaded.calls.slot);
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  constexpr int pool_version = 11020;
  SharedPoolCalls& pool = loaded.pool_calls;
  find({"", "cuDeviceGetDefaultMemPool", pool_version, Need::required},
       pool.cuDeviceGetDefaultMemPool);
  find({"", "cuMemAllocAsync", pool_version, Need::required}, pool.cuMemAllocAsync);
  find({"", "cuMemPoolTrimTo", pool_version, Need::required}, pool.cuMemPoolTrimTo);
  if (loaded.absence.empty() && loaded.calls.cuInit(0) != CUDA_SUCCESS) {
    loaded.absence = "cuInit failed";
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

/// Returns the number in a spec such as "cuda:1".
std::optional<int> ordinal_of(std::string_view spec) {
  const std::size_t colon = spec.find(':');
  int ordinal = 0;
  if (colon == spec.npos) return ordinal;
  const char* first = spec.data() + colon + 1;
  if (std::from_chars(first, spec.data() + spec.size(), ordinal).ec != std::errc{}) return {};
  return ordinal;
}

}  // namespace

std::unique_ptr<RawDriver> RawDriver::make(Context& context, const Device& device) {
  if (device.info().backend != "cuda") return nullptr;
  const std::optional<int> ordinal = ordinal_of(device.spec());
  const bool is_simulated = device.spec().find("driver=sim") != std::string_view::npos;
  const std::string absence = is_simulated ? "the driver is simulated"
                              : !ordinal   ? "the device has no number"
                                           : loaded().absence;
  if (!absence.empty()) {
    context.note(fmt::format("without the raw driver to compare with: {}.", absence));
    return nullptr;
  }
  return std::unique_ptr<RawDriver>(new RawDriver(loaded().calls, loaded().pool_calls, *ordinal));
}

RawDriver::RawDriver(const DriverTable& calls, const SharedPoolCalls& pool_calls, int ordinal)
    : calls_(calls), pool_calls_(pool_calls) {
  check(calls_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  check(calls_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  enter();
  check(calls_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority");
}

// Does not release the context: the last release would reset the device for other users.
RawDriver::~RawDriver() {
  static_cast<void>(calls_.cuStreamSynchronize(stream_));
  static_cast<void>(calls_.cuStreamDestroy(stream_));
}

void RawDriver::check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(
        fmt::format("the raw driver failed: {} returned {}.", call, static_cast<int>(result)));
  }
}

}  // namespace tern::bench
