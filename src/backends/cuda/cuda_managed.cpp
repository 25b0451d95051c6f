#include "backends/cuda/cuda_managed.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <vector>

namespace tern::cuda {
namespace {

struct Opened {
  const Driver* driver = nullptr;
  DeviceId id;
  CUdevice device = 0;
};

/// Immortal, as the devices of the catalog are.
struct OpenedDevices {
  std::mutex mutex;
  std::vector<Opened> all;  // guarded by mutex
};

OpenedDevices& opened_devices() {
  static OpenedDevices& instance = *new OpenedDevices;
  return instance;
}

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

CUmem_advise advice_of(Advice advice) noexcept {
  switch (advice) {
    case Advice::set_read_mostly:
      return CU_MEM_ADVISE_SET_READ_MOSTLY;
    case Advice::unset_read_mostly:
      return CU_MEM_ADVISE_UNSET_READ_MOSTLY;
    case Advice::set_preferred_location:
      return CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    case Advice::unset_preferred_location:
      return CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    case Advice::set_accessed_by:
      return CU_MEM_ADVISE_SET_ACCESSED_BY;
    case Advice::unset_accessed_by:
      break;
  }
  return CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

/// Does the driver look at the place of this advice at all?
bool has_place(Advice advice) noexcept {
  return advice == Advice::set_preferred_location || advice == Advice::set_accessed_by ||
         advice == Advice::unset_accessed_by;
}

/// The shapes before 12.2 have a device in its place.
CUdevice device_of(CUmemLocation location) noexcept {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : device_cpu;
}
CUmemLocation location_of_device(int device) noexcept {
  if (device == device_invalid) return {};
  if (device == device_cpu) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

}  // namespace

void note_opened(const Driver& driver, DeviceId id, CUdevice device) {
  const std::lock_guard lock(opened_devices().mutex);
  opened_devices().all.push_back({&driver, id, device});
}

void note_closed(DeviceId id) noexcept {
  const std::lock_guard lock(opened_devices().mutex);
  std::erase_if(opened_devices().all, [&](const Opened& one) { return one.id == id; });
}

Result<CUmemLocation> CudaManaged::location_of(Place place) noexcept {
  switch (place.kind()) {
    case Place::Kind::host:
      return CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0};
    case Place::Kind::host_numa:
      if (context_.cu().cuMemPrefetchAsync == nullptr || context_.cu().cuMemAdvise == nullptr) {
        return Failure(ErrorCode::unsupported,
                       "{what} are not known to this driver ({version}), only to those from 12.2 "
                       "on. Name the host.")
            .with("what", "NUMA nodes of the host")
            .with("version", static_cast<std::uint64_t>(context_.driver().version))
            .with("device", context_.spec());
      }
      return CUmemLocation{CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(place.index())};
    case Place::Kind::device: {
      const std::lock_guard lock(opened_devices().mutex);
      for (const Opened& one : opened_devices().all) {
        if (one.driver == &context_.driver() && one.id == place.device_id()) {
          return CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, one.device};
        }
      }
      break;
    }
    case Place::Kind::file:
      break;
  }
  return Failure(ErrorCode::invalid_device,
                 "managed memory of '{device}' cannot be at that place ({spec}). Name the host, a "
                 "NUMA node of it, or an open CUDA device.")
      .with("spec", place.kind() == Place::Kind::file ? "a file" : "no CUDA device of this number")
      .with("device", context_.spec());
}

std::optional<Place> CudaManaged::place_of(CUmemLocation location) noexcept {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return Place::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return Place::host_numa(static_cast<std::uint32_t>(location.id));
    case CU_MEM_LOCATION_TYPE_DEVICE: {
      const std::lock_guard lock(opened_devices().mutex);
      for (const Opened& one : opened_devices().all) {
        if (one.driver == &context_.driver() && one.device == location.id) {
          return Place::device(one.id);
        }
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

Result<void> CudaManaged::prefetch(CUstream stream, void* address, std::size_t bytes,
                                   Place destination) noexcept {
  const Result<CUmemLocation> location = location_of(destination);
  if (!location) return location.failure();
  const DriverTable& cu = context_.cu();
  const CUresult result =
      cu.cuMemPrefetchAsync != nullptr
          ? cu.cuMemPrefetchAsync(number(address), bytes, *location, 0, stream)
          : cu.cuMemPrefetchAsync_8000(number(address), bytes, device_of(*location), stream);
  return context_.check(result, "cuMemPrefetchAsync", bytes);
}

Result<void> CudaManaged::advise(void* address, std::size_t bytes, Advice advice,
                                 Place place) noexcept {
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, context_.device()};
  if (has_place(advice)) {
    const Result<CUmemLocation> named = location_of(place);
    if (!named) return named.failure();
    location = *named;
  }
  const DriverTable& cu = context_.cu();
  const CUresult result =
      cu.cuMemAdvise != nullptr
          ? cu.cuMemAdvise(number(address), bytes, advice_of(advice), location)
          : cu.cuMemAdvise_8000(number(address), bytes, advice_of(advice), device_of(location));
  return context_.check(result, "cuMemAdvise", bytes);
}

Result<ManagedInfo> CudaManaged::info(const void* address, std::size_t bytes) noexcept {
  const DriverTable& cu = context_.cu();
  int is_read_mostly = 0;
  // As many devices as a machine may have, and the host; what is left over is "invalid".
  std::array<int, 65> accessors;
  accessors.fill(device_invalid);
  CUmemLocation preferred, last;
  // Only the pairs of type and number, which came with the locations, can name a NUMA node.
  const bool has_locations = cu.cuMemAdvise != nullptr;
  int preferred_device = device_invalid, last_device = device_invalid;
  void* data[] = {&is_read_mostly,
                  accessors.data(),
                  has_locations ? static_cast<void*>(&preferred.type) : &preferred_device,
                  has_locations ? static_cast<void*>(&last.type) : &last_device,
                  &preferred.id,
                  &last.id};
  std::size_t sizes[] = {sizeof(int), sizeof accessors, sizeof(int),
                         sizeof(int), sizeof(int),      sizeof(int)};
  CUmem_range_attribute attributes[] = {
      CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
      CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
      has_locations ? CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
                    : CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
      has_locations ? CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE
                    : CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
      CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID,
      CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID,
  };
  if (Result<void> asked =
          context_.check(cu.cuMemRangeGetAttributes(data, sizes, attributes, has_locations ? 6 : 4,
                                                    number(address), bytes),
                         "cuMemRangeGetAttributes");
      !asked) {
    return asked.failure();
  }
  if (!has_locations) {
    preferred = location_of_device(preferred_device);
    last = location_of_device(last_device);
  }
  ManagedInfo info;
  info.is_read_mostly = is_read_mostly != 0;
  info.is_accessed_by_device = std::ranges::find(accessors, context_.device()) != accessors.end();
  info.is_accessed_by_host = std::ranges::find(accessors, device_cpu) != accessors.end();
  info.preferred = place_of(preferred);
  info.last_prefetch = place_of(last);
  return info;
}

}  // namespace tern::cuda
