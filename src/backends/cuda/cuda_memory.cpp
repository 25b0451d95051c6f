// try_make_pinned(): page-locked memory comes from cuMemHostAlloc, or from 16 MiB up from huge
// pages that several threads touch and the driver registers (try_make_slab).

#include "backends/cuda/cuda_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "backends/host/aligned_mapping.hpp"
#include "backends/host/machine.hpp"
#include "backends/host/transfer.hpp"
#include "core/no_host_memory.hpp"
#include "core/worker_team.hpp"
#include "tern/core/bytes.hpp"

namespace tern::cuda {
namespace {

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}
void* pointer(std::uintptr_t address) noexcept { return reinterpret_cast<void*>(address); }

/// Returns the size to allocate so that an aligned address fits.
std::size_t padded(std::size_t bytes, std::size_t alignment) noexcept {
  return alignment <= CudaMemory::min_alignment ? bytes
                                                : bytes + alignment - CudaMemory::min_alignment;
}
std::uintptr_t aligned(std::uintptr_t address, std::size_t alignment) noexcept {
  return (address + alignment - 1) & ~(static_cast<std::uintptr_t>(alignment) - 1);
}

/// From this size on, page-locked memory is mapped in huge pages, touched by several threads and
/// registered.
constexpr std::size_t min_slab_bytes = 16 * mib;
/// Each thread touches at least `slab_share` bytes.
constexpr std::size_t max_slab_threads = 16, slab_share = 4 * mib;

/// Returns the size of the mapping for a block.
std::size_t slab_bytes(std::size_t bytes) noexcept {
  return (bytes + host::huge_page_bytes - 1) / host::huge_page_bytes * host::huge_page_bytes;
}

MemoryKind kind_of(bool is_managed, bool is_host) noexcept {
  if (is_managed) return MemoryKind::managed;
  return is_host ? MemoryKind::pinned : MemoryKind::device;
}

/// Without this, a forked child that writes to these pages first would take them from the parent,
/// and the device would access the wrong pages. Only whole pages, because the neighbours are not
/// ours.
void keep_from_children(void* address, std::size_t bytes, int advice) noexcept {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = aligned(number(address), page);
  const std::uintptr_t last = (number(address) + bytes) & ~(page - 1);
  if (first < last) static_cast<void>(madvise(pointer(first), last - first, advice));
}

}  // namespace

Result<void> CudaMemory::add(std::uintptr_t address, const Block& block) {
  try {
    const std::lock_guard lock(mutex_);
    blocks_[address] = block;
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Block), "the record of a block of the device");
  }
}

CudaMemory::Blocks::node_type CudaMemory::take(const void* address) {
  const std::lock_guard lock(mutex_);
  return blocks_.extract(number(address));
}

void CudaMemory::put_back(Blocks::node_type block) {
  const std::lock_guard lock(mutex_);
  blocks_.insert(std::move(block));
}

Result<void> CudaMemory::keep(Blocks::node_type block, const Failure& failure) {
  if (context_.can_call()) {
    put_back(std::move(block));
    return failure;
  }
  if (block.mapped().origin == Origin::registered) {
    keep_from_children(pointer(block.key()), block.mapped().bytes, MADV_DOFORK);
  }
  // The pages of a slab are ours. The driver keeps those that a lost device may still access.
  if (block.mapped().origin == Origin::slab && is_same_process(process_)) {
    munmap(pointer(block.mapped().base), slab_bytes(block.mapped().bytes));
  }
  return {};
}

Result<void*> CudaMemory::allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const DriverTable& cu = context_.cu();
  const std::size_t taken = padded(bytes, alignment);
  Block block{0, bytes, Origin::plain};
  Result<void> made;
  switch (kind) {
    case MemoryKind::pinned:
      made = try_make_pinned(block, alignment);
      break;
    case MemoryKind::managed:
      block.origin = Origin::managed;
      made = context_.check(cu.cuMemAllocManaged(&block.base, taken, CU_MEM_ATTACH_GLOBAL),
                            "cuMemAllocManaged", bytes);
      break;
    default:
      made = context_.check(cu.cuMemAlloc(&block.base, taken), "cuMemAlloc", bytes);
      break;
  }
  if (!made) return made.failure();
  const std::uintptr_t address = aligned(block.base, alignment);
  if (Result<void> added = add(address, block); !added) {
    const char* call = nullptr;
    static_cast<void>(give(block, call));
    return added.failure();
  }
  return pointer(address);
}

Result<void> CudaMemory::try_make_pinned(Block& block, std::size_t alignment) noexcept {
  if (block.bytes >= min_slab_bytes && try_make_slab(block, alignment)) return {};
  void* address = nullptr;
  block.origin = Origin::pinned;
  Result<void> made =
      context_.check(context_.cu().cuMemHostAlloc(&address, padded(block.bytes, alignment),
                                                  host_alloc_portable | host_alloc_device_map),
                     "cuMemHostAlloc", block.bytes);
  block.base = number(address);
  return made;
}

// cuMemHostAlloc touches the memory with one thread, in pages of 4 KiB.
bool CudaMemory::try_make_slab(Block& block, std::size_t alignment) noexcept {
  // The system would end the process if it had too little memory for the pages. The driver returns
  // an error instead.
  if (block.bytes > context_.driver().available_host_bytes() / 2) return false;
  const std::size_t bytes = slab_bytes(block.bytes);
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) == 0) {
    return false;
  }
  void* const address = host::map_aligned(bytes, std::max(alignment, host::huge_page_bytes));
  if (address == nullptr) return false;
  keep_from_children(address, bytes, MADV_DONTFORK);
  static_cast<void>(madvise(address, bytes, MADV_HUGEPAGE));
  {
    WorkerTeam team(std::min({usable_cores(), max_slab_threads, bytes / slab_share}));
    host::touch(team, address, bytes, host::system_page_bytes());
  }
  if (context_.cu().cuMemHostRegister(
          address, bytes, host_register_portable | host_register_device_map) != CUDA_SUCCESS) {
    munmap(address, bytes);
    return false;
  }
  block.base = number(address);
  block.origin = Origin::slab;
  return true;
}

CUresult CudaMemory::give(const Block& block, const char*& call) noexcept {
  if (block.origin == Origin::slab) {
    call = "cuMemHostUnregister";
    const CUresult result = context_.cu().cuMemHostUnregister(pointer(block.base));
    if (result == CUDA_SUCCESS) munmap(pointer(block.base), slab_bytes(block.bytes));
    return result;
  }
  if (block.origin == Origin::pinned) {
    call = "cuMemFreeHost";
    return context_.cu().cuMemFreeHost(pointer(block.base));
  }
  call = "cuMemFree";
  return context_.cu().cuMemFree(block.base);
}

Result<void> CudaMemory::release(void* address) {
  Blocks::node_type block = take(address);
  if (block.empty()) return not_live(address);
  if (block.mapped().origin == Origin::registered) {
    put_back(std::move(block));
    return not_live(address);
  }
  const ContextScope scope(context_);
  if (!scope) return keep(std::move(block), scope.failure());
  const char* call = nullptr;
  const CUresult result = give(block.mapped(), call);
  Result<void> given = context_.check(result, call);
  return given ? given : keep(std::move(block), given.failure());
}

Result<void*> CudaMemory::allocate_async(CUstream stream, std::size_t bytes,
                                         std::size_t alignment) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUmemoryPool> from = pool_.get();
  if (!from) return from.failure();
  const DriverTable& cu = context_.cu();
  Block block{0, bytes, Origin::pool};
  const std::size_t taken = padded(bytes, alignment);
  if (Result<void> made =
          context_.check(cu.cuMemAllocFromPoolAsync(&block.base, taken, *from, stream),
                         "cuMemAllocFromPoolAsync", bytes);
      !made) {
    return made.failure();
  }
  const std::uintptr_t address = aligned(block.base, alignment);
  if (Result<void> added = add(address, block); !added) {
    static_cast<void>(cu.cuMemFreeAsync(block.base, stream));
    return added.failure();
  }
  return pointer(address);
}

Result<void> CudaMemory::release_async(CUstream stream, void* address) {
  Blocks::node_type block = take(address);
  if (block.empty()) return not_live(address);
  if (block.mapped().origin != Origin::pool) {
    put_back(std::move(block));
    return Failure(ErrorCode::invalid_argument,
                   "the block at {value} was not allocated in stream order, so '{device}' cannot "
                   "free it in stream order. Synchronise, and free it through the device.")
        .with("name", "address")
        .with("value", number(address), Unit::hex)
        .with("device", context_.spec());
  }
  const ContextScope scope(context_);
  if (!scope) return keep(std::move(block), scope.failure());
  Result<void> given =
      context_.check(context_.cu().cuMemFreeAsync(block.mapped().base, stream), "cuMemFreeAsync");
  return given ? given : keep(std::move(block), given.failure());
}

Result<void*> CudaMemory::register_host(void* address, std::size_t bytes) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const DriverTable& cu = context_.cu();
  const CUresult result =
      cu.cuMemHostRegister(address, bytes, host_register_portable | host_register_device_map);
  if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    return Failure(ErrorCode::invalid_argument,
                   "{bytes} at {value} are already registered, at least in part. Unregister them "
                   "first.")
        .with("name", "address")
        .with("value", number(address), Unit::hex)
        .with_bytes("bytes", bytes);
  }
  if (Result<void> made = context_.check(result, "cuMemHostRegister", bytes); !made) {
    return made.failure();
  }
  CUdeviceptr on_device = 0;
  Result<void> known = context_.check(cu.cuMemHostGetDevicePointer(&on_device, address, 0),
                                      "cuMemHostGetDevicePointer");
  if (known) known = add(number(address), {number(address), bytes, Origin::registered});
  if (!known) {
    static_cast<void>(cu.cuMemHostUnregister(address));
    return known.failure();
  }
  keep_from_children(address, bytes, MADV_DONTFORK);
  return pointer(on_device);
}

Result<void> CudaMemory::unregister_host(void* address) {
  Blocks::node_type block = take(address);
  if (block.empty()) return not_live(address);
  if (block.mapped().origin != Origin::registered) {
    put_back(std::move(block));
    return not_live(address);
  }
  {
    const ContextScope scope(context_);
    if (!scope) return keep(std::move(block), scope.failure());
    Result<void> given =
        context_.check(context_.cu().cuMemHostUnregister(address), "cuMemHostUnregister");
    if (!given) return keep(std::move(block), given.failure());
  }
  keep_from_children(address, block.mapped().bytes, MADV_DOFORK);
  return {};
}

std::optional<PointerInfo> CudaMemory::find_own(const void* address) {
  const std::lock_guard lock(mutex_);
  auto next = blocks_.upper_bound(number(address));
  if (next == blocks_.begin()) return std::nullopt;
  const auto& [begin, block] = *--next;
  if (number(address) - begin >= block.bytes) return std::nullopt;
  switch (block.origin) {
    case Origin::pinned:
    case Origin::slab:
      return PointerInfo{MemoryKind::pinned, pointer(begin), block.bytes};
    case Origin::managed:
      return PointerInfo{MemoryKind::managed, pointer(begin), block.bytes};
    case Origin::registered:
      return PointerInfo{MemoryKind::registered, pointer(begin), block.bytes};
    case Origin::plain:
    case Origin::pool:
      break;
  }
  return PointerInfo{MemoryKind::device, pointer(begin), block.bytes};
}

Result<PointerInfo> CudaMemory::find(const void* address) {
  if (const std::optional<PointerInfo> own = find_own(address)) return *own;
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  unsigned type = 0, is_managed = 0;
  int ordinal = 0;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&type, &is_managed, &base, &bytes, &pool, &ordinal};
  // For ordinary host memory the call succeeds and returns zeros.
  if (Result<void> asked =
          context_.check(context_.cu().cuPointerGetAttributes(6, attributes, data, number(address)),
                         "cuPointerGetAttributes");
      !asked) {
    return asked.failure();
  }
  // Memory of our own pool without a record was freed, although its stream may not have reached the
  // free. A range elsewhere is a remainder of freed memory.
  if (pool != nullptr && pool_.is(pool)) return PointerInfo{};
  if (type == 0 || number(address) < base || number(address) - base >= bytes) return PointerInfo{};
  // The driver knows the memory of all its devices. Memory of another device does not count.
  const bool is_of_a_device = type != CU_MEMORYTYPE_HOST && is_managed == 0;
  if (is_of_a_device && ordinal != context_.device()) return PointerInfo{};
  return PointerInfo{kind_of(is_managed != 0, type == CU_MEMORYTYPE_HOST), pointer(base), bytes};
}

Failure CudaMemory::not_live(const void* address) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "{address} is not the address of a live allocation of '{device}'. The block was "
                 "freed before, or has another owner. Free each block once, by the address that "
                 "allocate returned.")
      .with("address", number(address), Unit::hex)
      .with("device", context_.spec());
}

}  // namespace tern::cuda
