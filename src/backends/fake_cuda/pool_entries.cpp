// The entries of the driver's pools, which allocate in stream order.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "backends/fake_cuda/entry.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim::entries {
namespace {

/// Runs an entry about a pool. `value` must not be null.
template <class Body>
CUresult about(DriverEntry entry, CUmemoryPool handle, const void* value, Body body) noexcept {
  return call(entry, Demand::initialised, [&](const Here& here) -> CUresult {
    const std::lock_guard lock(here.state.mutex);
    FakePool* pool = here.state.find_pool(handle);
    if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return body(*pool);
  });
}

std::optional<std::size_t> reuse_flag(CUmemPool_attribute attribute) noexcept {
  if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
      attribute > CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(attribute) - 1;
}

}  // namespace

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                                 CUstream on) {
  return call(
      DriverEntry::cuMemAllocFromPoolAsync, Demand::context, [&](const Here& here) -> CUresult {
        std::size_t index = 0;
        {
          const std::lock_guard lock(here.state.mutex);
          const FakePool* pool = here.state.find_pool(handle);
          // A pool belongs to one device, and so does the memory of a simulated stream.
          if (pool == nullptr || pool->device != here.device) return CUDA_ERROR_INVALID_VALUE;
          index = static_cast<std::size_t>(pool - here.state.pools.data());
        }
        const Working working = work_on(here, on);
        if (!working) return working.result;
        if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        if (bytes > max_request_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
        {
          const std::lock_guard lock(here.state.mutex);
          const FakePool& pool = here.state.pools[index];
          if (pool.max_bytes != 0 && !is_within(pool.used_bytes, bytes, pool.max_bytes)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
          }
        }
        constexpr std::size_t alignment = 512;
        const FakeStream& stream = *working.stream;
        const Result<void*> made =
            here.backend(stream).allocate_async(here.on(stream), bytes, alignment);
        if (!made) return sim::result_of(made.failure());
        *address = address_of(*made);
        const std::lock_guard lock(here.state.mutex);
        here.state.pool_blocks[as_number(*made)] = {static_cast<std::uint32_t>(index), bytes};
        FakePool& pool = here.state.pools[index];
        pool.used_bytes += bytes;
        pool.used_high_bytes = std::max(pool.used_high_bytes, pool.used_bytes);
        pool.reserved_high_bytes = std::max(pool.reserved_high_bytes, pool.used_bytes);
        return CUDA_SUCCESS;
      });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return call(DriverEntry::cuMemPoolCreate, Demand::initialised, [&](const Here& here) -> CUresult {
    if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!here.state.may_disturb()) return disturbs_capture;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!here.state.has_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(here.state.mutex);
    *pool = pool_of(static_cast<std::uint32_t>(here.state.pools.size()));
    FakePool made;
    made.device = static_cast<std::uint32_t>(properties->location.id);
    made.max_bytes = properties->maxSize;
    here.state.pools.push_back(made);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return call(DriverEntry::cuMemFreeAsync, Demand::release, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const FakeBlock block = here.state.block_at(pointer(address));
    if (block.kind != MemoryKind::device || block.base != address) return CUDA_ERROR_INVALID_VALUE;
    const FakeStream& stream = *working.stream;
    const Result<void> released =
        here.backend(stream).release_async(here.on(stream), pointer(address));
    if (!released) return sim::result_of(released.failure());
    const std::lock_guard lock(here.state.mutex);
    forget_pooled(here, block.base);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return call(DriverEntry::cuMemPoolDestroy, Demand::initialised, [&](const Here& here) {
    const std::lock_guard lock(here.state.mutex);
    FakePool* pool = here.state.find_pool(handle);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    pool->is_alive = false;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return about(DriverEntry::cuMemPoolSetAttribute, handle, value, [&](FakePool& pool) {
    if (const std::optional<std::size_t> flag = reuse_flag(attribute)) {
      std::memcpy(&pool.reuse[*flag], value, sizeof(int));
      return CUDA_SUCCESS;
    }
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, value, sizeof bytes);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.release_threshold_bytes = bytes;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        // A high-water mark can only be reset, and each one separately.
        if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
        const bool is_used = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        (is_used ? pool.used_high_bytes : pool.reserved_high_bytes) = pool.used_bytes;
        return CUDA_SUCCESS;
      }
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return about(DriverEntry::cuMemPoolGetAttribute, handle, value, [&](const FakePool& pool) {
    if (const std::optional<std::size_t> flag = reuse_flag(attribute)) {
      store(value, pool.reuse[*flag]);
      return CUDA_SUCCESS;
    }
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        store(value, pool.release_threshold_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        store(value, pool.used_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        store(value, pool.reserved_high_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        store(value, pool.used_high_bytes);
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* accesses,
                            std::size_t count) {
  return call(DriverEntry::cuMemPoolSetAccess, Demand::initialised,
              [&](const Here& here) -> CUresult {
                std::uint32_t owner = 0;
                {
                  const std::lock_guard lock(here.state.mutex);
                  const FakePool* const pool = here.state.find_pool(handle);
                  if (pool == nullptr || accesses == nullptr || count == 0) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                  owner = pool->device;
                }
                for (std::size_t i = 0; i < count; ++i) {
                  const CUmemLocation location = accesses[i].location;
                  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
                  if (!here.state.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
                  const bool is_owner = static_cast<std::uint32_t>(location.id) == owner;
                  // The owner of the memory keeps its access.
                  if (is_owner && accesses[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                  if (!is_owner && !here.state.options.has_peer_access) {
                    return CUDA_ERROR_INVALID_DEVICE;
                  }
                }
                for (std::size_t i = 0; i < count; ++i) {
                  const auto device = static_cast<std::uint32_t>(accesses[i].location.id);
                  if (device == owner || accesses[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
                    continue;
                  }
                  // The simulated device grants peers all of its memory or none.
                  const Result<bool> granted =
                      here.state.backend(device).enable_peer_access(here.state.backend(owner));
                  if (!granted) return sim::result_of(granted.failure());
                }
                return CUDA_SUCCESS;
              });
}

}  // namespace tern::sim::entries
