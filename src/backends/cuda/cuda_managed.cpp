#include "backends/cuda/cuda_managed.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <new>
#include <vector>

#include "core/no_host_memory.hpp"

namespace tern::cuda {
namespace {

struct Opened {
  const Driver* driver = nullptr;
  DeviceId id;
  CUdevice device = 0;
};

/// Never destroyed, like the devices of the catalog.
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

/// Returns whether the driver uses the location of this advice.
bool has_place(Advice advice) noexcept {
  return advice == Advice::set_preferred_location || advice == Advice::set_accessed_by ||
         advice == Advice::unset_accessed_by;
}

/// Before CUDA 12.2 these calls take a device instead of a location.
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

bool has_batches(const Driver& driver) noexcept {
  const DriverTable& cu = driver.table;
  if (cu.cuMemPrefetchBatchAsync == nullptr || cu.cuMemDiscardBatchAsync == nullptr ||
      cu.cuMemDiscardAndPrefetchBatchAsync == nullptr) {
    return false;
  }
  for (int i = 0; i < driver.device_count; ++i) {
    CUdevice device = 0;
    int is_concurrent = 0;
    if (cu.cuDeviceGet(&device, i) != CUDA_SUCCESS ||
        cu.cuDeviceGetAttribute(&is_concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                device) != CUDA_SUCCESS ||
        is_concurrent == 0) {
      return false;
    }
  }
  return true;
}

Result<CUmemLocation> CudaManaged::location_of(Place place) noexcept {
  switch (place.kind()) {
    case Place::Kind::host:
      return CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0};
    case Place::Kind::host_numa:
    case Place::Kind::host_numa_current:
      if (context_.cu().cuMemPrefetchAsync == nullptr || context_.cu().cuMemAdvise == nullptr) {
        return Failure(ErrorCode::unsupported,
                       "{what} need CUDA driver 12.2, and the driver is {version}. Use the host as "
                       "the place.")
            .with("what", "NUMA nodes of the host")
            .with("version", static_cast<std::uint64_t>(context_.driver().version))
            .with("device", context_.spec());
      }
      if (place.kind() == Place::Kind::host_numa_current) {
        return CUmemLocation{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
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
                 "managed memory of '{device}' cannot be moved to {spec}. Use the host, a NUMA "
                 "node, or an open CUDA device.")
      .with("spec", place.kind() == Place::Kind::file ? "a file"
                                                      : "a device that is not an open CUDA device")
      .with("device", context_.spec());
}

std::optional<Place> CudaManaged::place_of(CUmemLocation location) noexcept {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
      return Place::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return Place::host_numa_current();
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

Result<void> CudaManaged::batch_by_driver(CUstream stream,
                                          std::span<const PrefetchRange> ranges) noexcept {
  // In pieces that fit on the stack.
  constexpr std::size_t most = 256;
  std::array<CUdeviceptr, most> addresses;
  std::array<std::size_t, most> bytes, starts;
  std::array<CUmemLocation, most> locations;
  for (std::size_t done = 0; done < ranges.size();) {
    const std::size_t count = std::min(most, ranges.size() - done);
    std::size_t places = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const PrefetchRange& one = ranges[done + i];
      addresses[i] = number(one.address);
      bytes[i] = one.bytes;
      if (i > 0 && one.destination == ranges[done + i - 1].destination) continue;
      const Result<CUmemLocation> location = location_of(one.destination);
      if (!location) return location.failure();
      locations[places] = *location;
      starts[places++] = i;
    }
    if (Result<void> queued =
            context_.check(context_.cu().cuMemPrefetchBatchAsync(addresses.data(), bytes.data(),
                                                                 count, locations.data(),
                                                                 starts.data(), places, 0, stream),
                           "cuMemPrefetchBatchAsync");
        !queued) {
      return queued;
    }
    done += count;
  }
  return {};
}

bool CudaManaged::takes_batches(CUstream stream) noexcept {
  if (!has_batches_ || reinterpret_cast<std::uintptr_t>(stream) == stream_legacy) return false;
  // Not into a graph either: unsupported operations were silently dropped from graphs in other
  // calls.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return context_.cu().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<void> CudaManaged::prefetch_batch(CUstream stream, std::span<const PrefetchRange> ranges,
                                         std::size_t& submitted) noexcept {
  submitted = 0;
  if (ranges.size() > 1 && takes_batches(stream) && batch_by_driver(stream, ranges)) {
    submitted = ranges.size();
    return {};
  }
  for (const PrefetchRange& one : ranges) {
    if (Result<void> queued = prefetch(stream, one.address, one.bytes, one.destination); !queued) {
      return queued;
    }
    ++submitted;
  }
  return {};
}

Result<void> CudaManaged::discard(CUstream stream, void* address, std::size_t bytes,
                                  std::optional<Place> destination) noexcept {
  // The capability only says that the driver has the calls. The legacy stream does not accept them.
  if (reinterpret_cast<std::uintptr_t>(stream) == stream_legacy) {
    return Failure(ErrorCode::unsupported,
                   "{what} does not work on the default stream of '{device}'. Use another stream.")
        .with("what", "discarding managed memory")
        .with("device", context_.spec());
  }
  const DriverTable& cu = context_.cu();
  CUdeviceptr from = number(address);
  if (!destination) {
    return context_.check(cu.cuMemDiscardBatchAsync(&from, &bytes, 1, 0, stream),
                          "cuMemDiscardBatchAsync", bytes);
  }
  Result<CUmemLocation> location = location_of(*destination);
  if (!location) return location.failure();
  std::size_t start = 0;
  return context_.check(
      cu.cuMemDiscardAndPrefetchBatchAsync(&from, &bytes, 1, &*location, &start, 1, 0, stream),
      "cuMemDiscardAndPrefetchBatchAsync", bytes);
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

Result<ManagedInfo> CudaManaged::info(const void* address, std::size_t bytes) noexcept try {
  const DriverTable& cu = context_.cu();
  int is_read_mostly = 0;
  // As many entries as a machine may have devices, plus the host. Unused entries are "invalid".
  std::array<int, 65> accessors;
  accessors.fill(device_invalid);
  CUmemLocation preferred, last;
  // Only pairs of type and number, which came with locations, can name a NUMA node.
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
  info.preferred = place_of(preferred);
  info.last_prefetch = place_of(last);
  for (const int accessor : accessors) {
    const std::optional<Place> place = place_of(location_of_device(accessor));
    if (place) info.accessed_by.push_back(*place);
  }
  return info;
} catch (const std::bad_alloc&) {
  return no_host_memory("a query of managed memory");
}

}  // namespace tern::cuda
