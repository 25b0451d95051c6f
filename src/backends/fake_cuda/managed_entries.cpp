// The entries for managed memory: advice, prefetches, discards and queries.

#include <algorithm>
#include <optional>
#include <vector>

#include "backends/fake_cuda/entry.hpp"
#include "device/device_state.hpp"

namespace tern::sim::entries {
namespace {

std::optional<Place> place_of(const FakeDriverState& state, CUmemLocation location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!state.has_device(location.id)) return std::nullopt;
      return Place::device(
          DeviceState::of(state.devices[static_cast<std::size_t>(location.id)])->id());
    case CU_MEM_LOCATION_TYPE_HOST:
      return Place::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return Place::host_numa_current();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (location.id < 0) return std::nullopt;
      return Place::host_numa(static_cast<std::uint32_t>(location.id));
    default:
      return std::nullopt;
  }
}

CUmemLocation location_of(const FakeDriverState& state, std::optional<Place> place) {
  if (!place) return {CU_MEM_LOCATION_TYPE_INVALID, 0};
  if (place->kind() == Place::Kind::host_numa) {
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(place->index())};
  }
  if (place->kind() == Place::Kind::host_numa_current) {
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  }
  for (std::size_t i = 0; i < state.devices.size(); ++i) {
    if (DeviceState::of(state.devices[i])->id() == place->device_id()) {
      return {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(i)};
    }
  }
  return {CU_MEM_LOCATION_TYPE_HOST, 0};
}

/// Converts the device argument of entries before 12.2, which have no CUmemLocation.
CUmemLocation location_of(CUdevice device) noexcept {
  if (device == device_cpu) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int device_of(CUmemLocation location) noexcept {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_HOST ? device_cpu : device_invalid;
}

CUresult advise(DriverEntry entry, CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                CUmemLocation location) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    static_assert(static_cast<int>(Advice::unset_accessed_by) + 1 ==
                  CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
        bytes == 0 || !is_range(pointer(address), bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool is_accessed_by =
        advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    const bool has_place = is_accessed_by || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    if (is_accessed_by && location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
        location.type != CU_MEM_LOCATION_TYPE_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<Place> place = has_place ? place_of(here.state, location) : Place::host();
    if (!place) {
      return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    return result_of(
        here.backend().advise(pointer(address), bytes, static_cast<Advice>(advice - 1), *place));
  });
}

CUresult prefetch(DriverEntry entry, CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                  unsigned flags, CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (flags != 0 || bytes == 0 || !is_range(pointer(address), bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<Place> place = place_of(here.state, location);
    if (!place) {
      return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    // The driver requires this of the target and of the stream's device. Here both are the same
    // kind of device.
    if (here.state
            .attribute_of(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, working.stream->device)
            .value_or(0) == 0) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return result_of(here.backend(*working.stream)
                         .prefetch(here.on(*working.stream), pointer(address), bytes, *place));
  });
}

/// The arguments of a batch: ranges, locations, and the first range of each location.
struct ManagedBatch {
  const CUdeviceptr* addresses = nullptr;
  const std::size_t* bytes = nullptr;
  std::size_t count = 0;
  const CUmemLocation* locations = nullptr;
  const std::size_t* location_starts = nullptr;
  std::size_t location_count = 0;
  bool discards = false;
};

bool is_batch(const ManagedBatch& batch, bool has_locations) noexcept {
  if (batch.addresses == nullptr || batch.bytes == nullptr || batch.count == 0) return false;
  if (!has_locations) return true;
  if (batch.locations == nullptr || batch.location_starts == nullptr || batch.location_count == 0 ||
      batch.location_count > batch.count || batch.location_starts[0] != 0) {
    return false;
  }
  for (std::size_t i = 1; i < batch.location_count; ++i) {
    if (batch.location_starts[i] <= batch.location_starts[i - 1] ||
        batch.location_starts[i] >= batch.count) {
      return false;
    }
  }
  return true;
}

CUresult managed_batch(DriverEntry entry, const ManagedBatch& batch, unsigned long long flags,
                       CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::uintptr_t number = as_number(handle);
    if (number == 0 || number == stream_legacy) return CUDA_ERROR_INVALID_VALUE;
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const bool has_locations = batch.location_count > 0 || !batch.discards;
    if (flags != 0 || !is_batch(batch, has_locations)) return CUDA_ERROR_INVALID_VALUE;
    for (std::uint32_t i = 0; i < here.state.device_count(); ++i) {
      if (here.state.attribute_of(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, i).value_or(0) ==
          0) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    std::size_t location = 0;
    for (std::size_t i = 0; i < batch.count; ++i) {
      void* const address = pointer(batch.addresses[i]);
      if (batch.bytes[i] == 0 || !is_range(address, batch.bytes[i])) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      std::optional<Place> place;
      if (has_locations) {
        if (location + 1 < batch.location_count && batch.location_starts[location + 1] == i) {
          ++location;
        }
        place = place_of(here.state, batch.locations[location]);
        if (!place) return CUDA_ERROR_INVALID_DEVICE;
      }
      Backend& backend = here.backend(*working.stream);
      const Submission submission = here.on(*working.stream);
      const Result<void> sent = batch.discards
                                    ? backend.discard(submission, address, batch.bytes[i], place)
                                    : backend.prefetch(submission, address, batch.bytes[i], *place);
      if (!sent) return sim::result_of(sent.failure());
    }
    return CUDA_SUCCESS;
  });
}

/// Writes the devices that have all of the range mapped, and the host, and fills the rest with "no
/// device".
CUresult answer_accessed_by(const Here& here, CUdeviceptr address, std::size_t bytes, int* data,
                            std::size_t places) {
  const Result<ManagedInfo> info = here.backend().managed_info(pointer(address), bytes);
  if (!info) return sim::result_of(info.failure());
  std::vector<int> accessors;
  for (const Place place : info->accessed_by) {
    accessors.push_back(device_of(location_of(here.state, place)));
  }
  std::ranges::sort(accessors);
  accessors.resize(std::max(places, accessors.size()), device_invalid);
  std::copy_n(accessors.begin(), places, data);
  return CUDA_SUCCESS;
}

CUresult answer_range(const Here& here, void* data, std::size_t data_bytes,
                      CUmem_range_attribute attribute, CUdeviceptr address, std::size_t bytes) {
  if (data == nullptr || bytes == 0 || data_bytes < sizeof(int) || data_bytes % sizeof(int) != 0 ||
      !is_range(pointer(address), bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    return answer_accessed_by(here, address, bytes, static_cast<int*>(data),
                              data_bytes / sizeof(int));
  }
  if (data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const Result<ManagedInfo> info = here.backend().managed_info(pointer(address), bytes);
  if (!info) return sim::result_of(info.failure());
  const CUmemLocation preferred = location_of(here.state, info->preferred);
  const CUmemLocation prefetched = location_of(here.state, info->last_prefetch);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      store(data, info->is_read_mostly ? 1 : 0);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      store(data, device_of(preferred));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      store(data, device_of(prefetched));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      store(data, static_cast<int>(preferred.type));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      store(data, preferred.id);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      store(data, static_cast<int>(prefetched.type));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      store(data, prefetched.id);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemAllocManaged, Demand::context, [&](const Here& here) -> CUresult {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (here.state.attribute_of(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, here.device).value_or(0) == 0) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    void* made = nullptr;
    const CUresult result =
        allocate(here, MemoryKind::managed, bytes, address == nullptr ? nullptr : &made);
    if (result == CUDA_SUCCESS) *address = address_of(made);
    return result;
  });
}

CUresult cuMemAdvise_8000(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                          CUdevice device) {
  return advise(DriverEntry::cuMemAdvise_8000, address, bytes, advice, location_of(device));
}

CUresult cuMemAdvise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                     CUmemLocation location) {
  return advise(DriverEntry::cuMemAdvise, address, bytes, advice, location);
}

CUresult cuMemPrefetchAsync_8000(CUdeviceptr address, std::size_t bytes, CUdevice device,
                                 CUstream stream) {
  return prefetch(DriverEntry::cuMemPrefetchAsync_8000, address, bytes, location_of(device), 0,
                  stream);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                            unsigned flags, CUstream stream) {
  return prefetch(DriverEntry::cuMemPrefetchAsync, address, bytes, location, flags, stream);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                 CUmemLocation* locations, std::size_t* location_starts,
                                 std::size_t location_count, unsigned long long flags,
                                 CUstream stream) {
  return managed_batch(DriverEntry::cuMemPrefetchBatchAsync,
                       {addresses, bytes, count, locations, location_starts, location_count, false},
                       flags, stream);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                unsigned long long flags, CUstream stream) {
  return managed_batch(DriverEntry::cuMemDiscardBatchAsync,
                       {addresses, bytes, count, nullptr, nullptr, 0, true}, flags, stream);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* bytes,
                                           std::size_t count, CUmemLocation* locations,
                                           std::size_t* location_starts, std::size_t location_count,
                                           unsigned long long flags, CUstream stream) {
  // Without a location this would be a plain discard, which has its own entry.
  if (location_count == 0) location_starts = nullptr;
  return managed_batch(DriverEntry::cuMemDiscardAndPrefetchBatchAsync,
                       {addresses, bytes, count, locations, location_starts,
                        std::max<std::size_t>(location_count, 1), true},
                       flags, stream);
}

CUresult cuMemRangeGetAttributes(void** data, std::size_t* data_bytes,
                                 CUmem_range_attribute* attributes, std::size_t count,
                                 CUdeviceptr address, std::size_t bytes) {
  return call(
      DriverEntry::cuMemRangeGetAttributes, Demand::context, [&](const Here& here) -> CUresult {
        if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        for (std::size_t i = 0; i < count; ++i) {
          const CUresult answered =
              answer_range(here, data[i], data_bytes[i], attributes[i], address, bytes);
          if (answered != CUDA_SUCCESS) return answered;
        }
        return CUDA_SUCCESS;
      });
}

}  // namespace tern::sim::entries
