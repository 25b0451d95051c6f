// The memory that a CUDA device has allocated: device, page-locked and managed memory, and
// stream-ordered memory of the driver's pool.
//
// The driver frees whatever address it is given, or returns "invalid value". This class records
// every block by its address, so a double free or a free of an interior address fails with a reason
// and never reaches the driver. An alignment above the driver's own is implemented by allocating
// more. A block leaves the record when its free is submitted. When the driver can no longer be
// called, a free only updates the record. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "backends/cuda/context.hpp"
#include "backends/cuda/cuda_driver_pool.hpp"
#include "core/fork_count.hpp"
#include "core/process.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::cuda {

class CudaMemory {
 public:
  /// The minimum alignment of the driver.
  static constexpr std::size_t min_alignment = 256;

  explicit CudaMemory(Context& context) noexcept : context_(context), pool_(context) {}

  [[nodiscard]] Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] Result<void> release(void* address);

  [[nodiscard]] Result<void*> allocate_async(CUstream stream, std::size_t bytes,
                                             std::size_t alignment);
  [[nodiscard]] Result<void> release_async(CUstream stream, void* address);

  /// The pool for stream-ordered memory.
  [[nodiscard]] CudaDriverPool& driver_pool() noexcept { return pool_; }

  [[nodiscard]] Result<void*> register_host(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> unregister_host(void* address);

  /// Returns the block that contains the address. For an address that Tern did not allocate,
  /// returns what the driver knows about it.
  [[nodiscard]] Result<PointerInfo> find(const void* address);
  /// Only finds memory that this object allocated.
  [[nodiscard]] std::optional<PointerInfo> find_own(const void* address);

 private:
  /// `slab` is page-locked memory that was mapped here and registered.
  enum class Origin : std::uint8_t { plain, pinned, slab, managed, pool, registered };
  struct Block {
    CUdeviceptr base = 0;  // the driver's address, at or before ours
    std::size_t bytes = 0;
    Origin origin = Origin::plain;
  };

  using Blocks = std::map<std::uintptr_t, Block>;

  [[nodiscard]] Result<void> add(std::uintptr_t address, const Block& block);
  /// Removes the block that begins at the address from the record; empty if there is none.
  [[nodiscard]] Blocks::node_type take(const void* address);
  void put_back(Blocks::node_type block);
  /// Handles a failed free: returns success if the driver can no longer be called, else restores
  /// the record and returns the failure.
  [[nodiscard]] Result<void> keep(Blocks::node_type block, const Failure& failure);
  /// Allocates page-locked memory. The block has its bytes.
  [[nodiscard]] Result<void> try_make_pinned(Block& block, std::size_t alignment) noexcept;
  [[nodiscard]] bool try_make_slab(Block& block, std::size_t alignment) noexcept;
  [[nodiscard]] CUresult give(const Block& block, const char*& call) noexcept;
  [[nodiscard]] Failure not_live(const void* address) noexcept;

  Context& context_;
  const std::uint64_t process_ = process_generation();
  std::mutex mutex_;
  Blocks blocks_;  // guarded by mutex_
  CudaDriverPool pool_;
};

}  // namespace tern::cuda
