// The entries for device, pinned and registered memory, and for queries about addresses.

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "backends/fake_cuda/entry.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim::entries {
namespace {

/// Frees a block of one of two kinds. The device rejects any address except the first of the block.
CUresult release(const Here& here, void* address, MemoryKind kind, MemoryKind other) {
  if (!here.state.may_disturb()) return disturbs_capture;
  const FakeBlock block = here.state.block_at(address);
  if (block.kind != kind && block.kind != other) return CUDA_ERROR_INVALID_VALUE;
  const Result<void> released = here.state.backend(block.device).release(address, here.site);
  if (!released) return sim::result_of(released.failure());
  const std::lock_guard lock(here.state.mutex);
  here.state.host_blocks.erase(block.base);
  forget_pooled(here, block.base);
  return CUDA_SUCCESS;
}

/// Returns whether the address is in pinned or registered memory.
bool is_locked(const Here& here, const void* address) {
  if (here.state.block_at(address).kind == MemoryKind::pinned) return true;
  const std::lock_guard lock(here.state.mutex);
  auto next = here.state.registrations.upper_bound(as_number(address));
  if (next == here.state.registrations.begin()) return false;
  --next;
  return as_number(address) - next->first < next->second.bytes;
}

/// Returns false for an unknown attribute. If there is no block, the answer is zero or is not
/// written, as in the driver's query for several attributes.
bool answer_pointer(const Here& here, CUpointer_attribute attribute, const FakeBlock& block,
                    void* data) {
  const bool is_known = block.bytes != 0;
  std::optional<std::uint32_t> pool;
  {
    const std::lock_guard lock(here.state.mutex);
    const auto found = here.state.pool_blocks.find(block.base);
    if (found != here.state.pool_blocks.end()) pool = found->second.first;
  }
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      store(data, !is_known                          ? 0u
                  : block.kind == MemoryKind::pinned ? unsigned{CU_MEMORYTYPE_HOST}
                                                     : unsigned{CU_MEMORYTYPE_DEVICE});
      return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      store(data, block.kind == MemoryKind::managed ? 1u : 0u);
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      store(data, is_known ? static_cast<int>(block.device) : device_invalid);
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (is_known) store(data, CUdeviceptr{block.base});
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (is_known) store(data, block.bytes);
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      store(data, pool ? pool_of(*pool) : nullptr);
      return true;
  }
  return false;
}

FakeBlock known_block_at(const Here& here, CUdeviceptr address) {
  FakeBlock block = here.state.block_at(pointer(address));
  if (block.bytes != 0) return block;
  const std::lock_guard lock(here.state.mutex);
  auto next = here.state.registrations.upper_bound(address);
  if (next == here.state.registrations.begin()) return block;
  --next;
  if (address - next->first >= next->second.bytes) return block;
  return {MemoryKind::pinned, next->second.device, next->first, next->second.bytes};
}

}  // namespace

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call(DriverEntry::cuMemGetInfo, Demand::context, [&](const Here& here) -> CUresult {
    if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Result<MemoryInfo> info = here.backend().memory();
    if (!info) return sim::result_of(info.failure());
    *free_bytes =
        info->free_bytes - std::min(info->free_bytes, here.state.options.cached_file_bytes);
    *total_bytes = info->total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  return call(DriverEntry::cuMemAlloc, Demand::context, [&](const Here& here) -> CUresult {
    void* made = nullptr;
    const CUresult result =
        allocate(here, MemoryKind::device, bytes, address == nullptr ? nullptr : &made);
    if (result == CUDA_SUCCESS) *address = address_of(made);
    return result;
  });
}

CUresult cuMemFree(CUdeviceptr address) {
  return call(DriverEntry::cuMemFree, Demand::release, [&](const Here& here) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    return release(here, pointer(address), MemoryKind::device, MemoryKind::managed);
  });
}

CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemHostAlloc, Demand::context, [&](const Here& here) -> CUresult {
    constexpr unsigned known =
        host_alloc_portable | host_alloc_device_map | host_alloc_write_combined;
    if ((flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(here, MemoryKind::pinned, bytes, address);
  });
}

CUresult cuMemFreeHost(void* address) {
  return call(DriverEntry::cuMemFreeHost, Demand::release, [&](const Here& here) {
    return release(here, address, MemoryKind::pinned, MemoryKind::pinned);
  });
}

CUresult cuMemHostRegister(void* address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemHostRegister, Demand::context, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    constexpr unsigned known = host_register_portable | host_register_device_map |
                               host_register_io_memory | host_register_read_only;
    if (bytes == 0 || !is_range(address, bytes) || (flags & ~known) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uintptr_t first = as_number(address);
    // Memory that the driver allocated counts as registered.
    if (here.state.block_at(address).bytes != 0) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    const Result<Entry> entry = here.state.world->enter("cuMemHostRegister", here.site);
    if (!entry) return CUDA_ERROR_NOT_PERMITTED;
    const std::lock_guard lock(here.state.mutex);
    std::map<std::uintptr_t, FakeHostBlock>& known_ranges = here.state.registrations;
    const auto next = known_ranges.lower_bound(first);
    const bool meets_next = next != known_ranges.end() && next->first < first + bytes;
    const auto before = next == known_ranges.begin() ? known_ranges.end() : std::prev(next);
    const bool meets_before =
        before != known_ranges.end() && before->first + before->second.bytes > first;
    if (meets_next || meets_before) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    known_ranges.emplace(first, FakeHostBlock{here.device, bytes});
    here.state.world->host().begin_registration(address, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* address) {
  return call(DriverEntry::cuMemHostUnregister, Demand::release, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Result<Entry> entry = here.state.world->enter("cuMemHostUnregister", here.site);
    if (!entry) return CUDA_ERROR_NOT_PERMITTED;
    const std::lock_guard lock(here.state.mutex);
    if (here.state.registrations.erase(as_number(address)) == 0) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    here.state.world->host().end_registration(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* address, unsigned flags) {
  return call(DriverEntry::cuMemHostGetDevicePointer, Demand::context,
              [&](const Here& here) -> CUresult {
                if (device_address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                if (!is_locked(here, address)) return CUDA_ERROR_INVALID_VALUE;
                *device_address = address_of(address);
                return CUDA_SUCCESS;
              });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  return call(DriverEntry::cuPointerGetAttributes, Demand::context,
              [&](const Here& here) -> CUresult {
                if (count == 0 || attributes == nullptr || data == nullptr) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                const FakeBlock block = known_block_at(here, address);
                for (unsigned i = 0; i < count; ++i) {
                  if (data[i] == nullptr || !answer_pointer(here, attributes[i], block, data[i])) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                }
                return CUDA_SUCCESS;
              });
}

}  // namespace tern::sim::entries
