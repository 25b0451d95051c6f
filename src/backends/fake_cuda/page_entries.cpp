// The entries for virtual memory: reserved addresses, pages, mappings and access.

#include <sys/stat.h>

#include <memory>
#include <mutex>
#include <optional>

#include "backends/fake_cuda/entry.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim::entries {
namespace {

bool is_paged(const Here& here, std::size_t value) {
  return value != 0 && value <= max_request_bytes && value % here.backend().info().page_bytes == 0;
}

/// Addresses belong to no context, so a thread without a context may call these entries too.
void choose_device(Here& here) {
  const FakeContexts& stack = here.state.thread().contexts;
  here.device = stack.empty() ? 0 : stack.back();
}

/// Checks the properties of pages. Unsupported values have a different result than invalid ones.
CUresult check(Here& here, const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return properties->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                     : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!here.state.has_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  here.device = static_cast<std::uint32_t>(properties->location.id);
  return CUDA_SUCCESS;
}

/// Returns the device that owns the addresses.
std::optional<std::uint32_t> device_at(const Here& here, CUdeviceptr address) {
  const auto place = here.state.world->locate(pointer(address));
  return place ? std::optional(place->first) : std::nullopt;
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long flags) {
  return call(DriverEntry::cuMemAddressReserve, Demand::initialised, [&](Here& here) -> CUresult {
    choose_device(here);
    if (address == nullptr || flags != 0 || !is_paged(here, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (alignment != 0 && !is_power_of_two(alignment)) return CUDA_ERROR_INVALID_VALUE;
    if (alignment > here.backend().info().page_bytes) return CUDA_ERROR_NOT_SUPPORTED;
    const Result<void*> reserved = here.backend().reserve(bytes);
    if (!reserved) return sim::result_of(reserved.failure());
    *address = address_of(*reserved);
    const std::lock_guard lock(here.state.mutex);
    here.state.reservations[as_number(*reserved)] = {here.device, bytes};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  return call(DriverEntry::cuMemAddressFree, Demand::initialised, [&](Here& here) -> CUresult {
    {
      const std::lock_guard lock(here.state.mutex);
      const auto found = here.state.reservations.find(address);
      if (found == here.state.reservations.end() || found->second.second != bytes) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      here.device = found->second.first;
    }
    const Result<void> freed = here.backend().unreserve(pointer(address), bytes);
    if (!freed) return sim::result_of(freed.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.reservations.erase(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* pages, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  return call(DriverEntry::cuMemCreate, Demand::initialised, [&](Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    if (const CUresult checked = check(here, properties); checked != CUDA_SUCCESS) return checked;
    if (pages == nullptr || flags != 0 || !is_paged(here, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const bool is_shareable = properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    const Result<NativePages> made = is_shareable ? here.backend().create_shareable_pages(bytes)
                                                  : here.backend().create_pages(bytes);
    if (!made) return sim::result_of(made.failure());
    *pages =
        here.state.pages.add(std::make_shared<FakePages>(FakePages{here.device, *made, bytes}));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle pages) {
  return call(DriverEntry::cuMemRelease, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::shared_ptr<FakePages> found = here.state.pages.find(pages);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    const Result<void> released = here.state.backend(found->device).release_pages(found->native);
    if (!released) return sim::result_of(released.failure());
    here.state.pages.remove(pages);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle pages,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return call(DriverEntry::cuMemExportToShareableHandle, Demand::initialised,
              [&](const Here& here) -> CUresult {
                if (shared == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                  return CUDA_ERROR_NOT_SUPPORTED;
                const std::shared_ptr<FakePages> found = here.state.pages.find(pages);
                if (!found) return CUDA_ERROR_INVALID_VALUE;
                const Result<int> file =
                    here.state.backend(found->device).export_pages(found->native);
                // The handle types of pages are fixed when the pages are created.
                if (!file && file.failure().code() == ErrorCode::invalid_argument) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                if (!file) return sim::result_of(file.failure());
                *static_cast<int*>(shared) = *file;
                return CUDA_SUCCESS;
              });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* pages, void* shared,
                                        CUmemAllocationHandleType type) {
  return call(DriverEntry::cuMemImportFromShareableHandle, Demand::initialised,
              [&](Here& here) -> CUresult {
                choose_device(here);
                if (pages == nullptr) return CUDA_ERROR_INVALID_VALUE;
                if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                  return CUDA_ERROR_NOT_SUPPORTED;
                const int file = static_cast<int>(as_number(shared));
                struct stat about = {};
                if (fstat(file, &about) != 0) return CUDA_ERROR_INVALID_VALUE;
                // Like the driver, the descriptor alone says how large the pages are.
                const auto bytes = static_cast<std::size_t>(about.st_size);
                if (!is_paged(here, bytes)) return CUDA_ERROR_INVALID_VALUE;
                const Result<NativePages> made = here.backend().import_pages(file, bytes);
                if (!made && made.failure().code() == ErrorCode::bad_format) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                if (!made) return sim::result_of(made.failure());
                *pages = here.state.pages.add(
                    std::make_shared<FakePages>(FakePages{here.device, *made, bytes}));
                return CUDA_SUCCESS;
              });
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle pages, unsigned long long flags) {
  return call(DriverEntry::cuMemMap, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::shared_ptr<FakePages> found = here.state.pages.find(pages);
    if (!found || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || bytes != found->bytes) return CUDA_ERROR_NOT_SUPPORTED;
    if (address % here.state.backend(found->device).info().page_bytes != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<std::uint32_t> device = device_at(here, address);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (*device != found->device) return CUDA_ERROR_NOT_SUPPORTED;
    const Result<void> mapped = here.state.backend(*device).map(pointer(address), found->native);
    if (!mapped) return sim::result_of(mapped.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.mappings[address] = {bytes, {}};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  return call(DriverEntry::cuMemUnmap, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::optional<std::uint32_t> device = device_at(here, address);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    const Result<void> unmapped = here.state.backend(*device).unmap(pointer(address), bytes);
    if (!unmapped) return sim::result_of(unmapped.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.mappings.erase(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses,
                        std::size_t count) {
  return call(DriverEntry::cuMemSetAccess, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::optional<std::uint32_t> owner = device_at(here, address);
    if (accesses == nullptr || count == 0 || !owner) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemLocation location = accesses[i].location;
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (!here.state.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
      const bool is_peer = static_cast<std::uint32_t>(location.id) != *owner;
      if (is_peer && !here.state.options.has_peer_access) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemAccess_flags flags = accesses[i].flags;
      const PageAccess access = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PageAccess::none
                                : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PageAccess::read
                                                                         : PageAccess::read_write;
      Backend& backend = here.state.backend(*owner);
      const auto device = static_cast<std::uint32_t>(accesses[i].location.id);
      // Removing the access of a peer does not change the access of the owner.
      if (device == *owner || access != PageAccess::none) {
        const Result<void> set = backend.set_access(pointer(address), bytes, access);
        if (!set) return sim::result_of(set.failure());
      }
      if (device != *owner && access != PageAccess::none) {
        // The simulated device grants peers all of its memory or none.
        const Result<bool> granted = here.state.backend(device).enable_peer_access(backend);
        if (!granted) return sim::result_of(granted.failure());
      }
      const std::lock_guard lock(here.state.mutex);
      for (auto it = here.state.mappings.lower_bound(address);
           it != here.state.mappings.end() && it->first < address + bytes; ++it) {
        it->second.access[static_cast<int>(device)] = flags;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return call(DriverEntry::cuMemGetAllocationGranularity, Demand::initialised,
              [&](Here& here) -> CUresult {
                if (const CUresult checked = check(here, properties); checked != CUDA_SUCCESS) {
                  return checked;
                }
                if (bytes == nullptr || option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
                    option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                *bytes = here.backend().info().page_bytes;
                return CUDA_SUCCESS;
              });
}

}  // namespace tern::sim::entries
