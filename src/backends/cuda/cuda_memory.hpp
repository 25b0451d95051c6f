// What a CUDA device has allocated and not given back: device, page-locked and managed memory, and
// memory of the driver's pool in stream order.
//
// The driver frees what it is told, or says "invalid value"; here every block is known by its
// address, so that freeing one twice, or by an address inside of it, is refused with a reason and
// never reaches the driver. An alignment beyond the driver's own is made by taking more. Freed
// memory is forgotten when the free is submitted. When the driver cannot be called any more, giving
// back is bookkeeping. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "backends/cuda/context.hpp"
#include "backends/cuda/cuda_driver_pool.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::cuda {

class CudaMemory {
 public:
  /// What the driver aligns at least.
  static constexpr std::size_t min_alignment = 256;

  explicit CudaMemory(Context& context) noexcept : context_(context), pool_(context) {}

  [[nodiscard]] Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] Result<void> release(void* address);

  [[nodiscard]] Result<void*> allocate_async(CUstream stream, std::size_t bytes,
                                             std::size_t alignment);
  [[nodiscard]] Result<void> release_async(CUstream stream, void* address);

  /// Where stream-ordered memory comes from.
  [[nodiscard]] CudaDriverPool& driver_pool() noexcept { return pool_; }

  [[nodiscard]] Result<void*> register_host(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> unregister_host(void* address);

  /// The block that holds the address; of an address that Tern did not allocate, what the driver
  /// knows of it.
  [[nodiscard]] Result<PointerInfo> find(const void* address);
  /// Only what was allocated here.
  [[nodiscard]] std::optional<PointerInfo> find_own(const void* address);

 private:
  enum class Origin : std::uint8_t { plain, pinned, managed, pool, registered };
  struct Block {
    CUdeviceptr base = 0;  // the driver's address, at or before ours
    std::size_t bytes = 0;
    Origin origin = Origin::plain;
  };

  using Blocks = std::map<std::uintptr_t, Block>;

  [[nodiscard]] Result<void> add(std::uintptr_t address, const Block& block);
  /// Takes the block that begins there out of the books; empty if there is none.
  [[nodiscard]] Blocks::node_type take(const void* address);
  void put_back(Blocks::node_type block);
  /// What giving back comes to, where the driver did not take it: nothing if it cannot be called
  /// any more, else the failure, and the block is as it was.
  [[nodiscard]] Result<void> keep(Blocks::node_type block, const Failure& failure);
  [[nodiscard]] CUresult give(const Block& block, const char*& call) noexcept;
  [[nodiscard]] Failure not_live(const void* address) noexcept;

  Context& context_;
  std::mutex mutex_;
  Blocks blocks_;  // guarded by mutex_
  CudaDriverPool pool_;
};

}  // namespace tern::cuda
