#include "backends/cuda/cuda_driver_pool.hpp"

#include <cstdint>

namespace tern::cuda {

CudaDriverPool::~CudaDriverPool() {
  if (pool_ == nullptr) return;
  const ContextScope scope(context_);
  if (!scope) return;
  static_cast<void>(context_.cu().cuMemPoolDestroy(pool_));
}

Result<void> CudaDriverPool::set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           std::uint64_t value) {
  return context_.check(context_.cu().cuMemPoolSetAttribute(pool, attribute, &value),
                        "cuMemPoolSetAttribute");
}

Result<CUmemoryPool> CudaDriverPool::get() {
  const std::lock_guard lock(mutex_);
  return pool_ != nullptr ? pool_ : get_locked(0);
}

bool CudaDriverPool::is(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  return pool_ == pool;
}

Result<CUmemoryPool> CudaDriverPool::get_locked(std::size_t max_bytes) {
  if (pool_ != nullptr) return pool_;
  const DriverTable& cu = context_.cu();
  CUmemPoolProps properties;
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, context_.device()};
  properties.maxSize = max_bytes;
  CUmemoryPool made = nullptr;
  if (Result<void> done = context_.check(cu.cuMemPoolCreate(&made, &properties), "cuMemPoolCreate");
      !done) {
    return done.failure();
  }
  // By default the driver returns all free memory to the system at the next synchronization.
  if (Result<void> done = set_attribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~std::uint64_t{0});
      !done) {
    static_cast<void>(cu.cuMemPoolDestroy(made));
    return done.failure();
  }
  pool_ = made;
  max_bytes_ = max_bytes;
  return made;
}

Result<DriverPoolInfo> CudaDriverPool::info() {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUmemoryPool> pool = get();
  if (!pool) return pool.failure();
  DriverPoolInfo info;
  {
    const std::lock_guard lock(mutex_);
    info.max_bytes = max_bytes_;
  }
  struct Figure {
    CUmemPool_attribute attribute;
    std::size_t& value;
  };
  for (const Figure& figure :
       {Figure{CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, info.release_threshold_bytes},
        Figure{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, info.reserved_bytes},
        Figure{CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, info.peak_reserved_bytes},
        Figure{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, info.used_bytes},
        Figure{CU_MEMPOOL_ATTR_USED_MEM_HIGH, info.peak_used_bytes}}) {
    std::uint64_t value = 0;
    if (Result<void> asked =
            context_.check(context_.cu().cuMemPoolGetAttribute(*pool, figure.attribute, &value),
                           "cuMemPoolGetAttribute");
        !asked) {
      return asked.failure();
    }
    figure.value = value;
  }
  return info;
}

Result<void> CudaDriverPool::set(const DriverPoolSettings& settings) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  if (settings.max_bytes && pool_ != nullptr && *settings.max_bytes != max_bytes_) {
    return Failure(
               ErrorCode::invalid_argument,
               "'{name}' cannot be changed to {value} on '{device}': the driver pool exists, and "
               "its maximum is fixed at creation. Set the maximum before the first allocation.")
        .with("name", "max_bytes")
        .with_bytes("value", *settings.max_bytes)
        .with("device", context_.spec());
  }
  const Result<CUmemoryPool> pool = get_locked(settings.max_bytes.value_or(0));
  if (!pool) return pool.failure();
  if (!settings.release_threshold_bytes) return {};
  return set_attribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, *settings.release_threshold_bytes);
}

Result<void> CudaDriverPool::reset_peaks() {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUmemoryPool> pool = get();
  if (!pool) return pool.failure();
  if (Result<void> done = set_attribute(*pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0); !done) {
    return done;
  }
  return set_attribute(*pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
}

Result<void> CudaDriverPool::set_access(Context& peer, bool is_allowed) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  // The driver may accept a device that has no access, and then fails the next allocation.
  int can = 0;
  if (Result<void> asked = context_.check(
          context_.cu().cuDeviceCanAccessPeer(&can, peer.device(), context_.device()),
          "cuDeviceCanAccessPeer");
      !asked) {
    return asked;
  }
  if (can == 0) {
    return Failure(ErrorCode::unsupported,
                   "{what} '{peer}' cannot access memory of '{device}'. Copy the memory between "
                   "the devices.")
        .with("what", "peer")
        .with("peer", peer.spec())
        .with("device", context_.spec());
  }
  const Result<CUmemoryPool> pool = get();
  if (!pool) return pool.failure();
  const CUmemAccessDesc access{
      {CU_MEM_LOCATION_TYPE_DEVICE, peer.device()},
      is_allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return context_.check(context_.cu().cuMemPoolSetAccess(*pool, &access, 1), "cuMemPoolSetAccess");
}

}  // namespace tern::cuda
