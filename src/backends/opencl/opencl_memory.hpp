// The memory of an OpenCL device: blocks of shared virtual memory, known by their address.
//
// Knowing them is what makes a double free an error with a name, tells kernels' arguments from
// other addresses, and counts what is in use, which OpenCL does not. A block is fine-grained where
// the device can, so that the host may use it too. After the device was lost a release changes the
// books only; the memory itself goes in the end. Ends with whoever needs it last: a release in
// stream order may outlive the device. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "backends/opencl/opencl_context.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::opencl {

class Memory {
 public:
  /// What every block has without being asked: the size of the largest type of OpenCL C.
  static constexpr std::size_t alignment = 128;
  /// Above the first, alignment costs as much memory: OpenCL has no call for it.
  static constexpr std::size_t max_alignment = 4 * mib;

  explicit Memory(std::shared_ptr<Context> context) noexcept : context_(std::move(context)) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] Result<void*> allocate(MemoryKind kind, std::size_t bytes,
                                       std::size_t alignment) noexcept;
  [[nodiscard]] Result<void> release(void* address) noexcept;
  /// The two halves of a stream-ordered release: from the first on the address is dead to callers,
  /// with the second its memory goes. Cancelling takes the first half back.
  [[nodiscard]] Result<void> begin_release(void* address) noexcept;
  void finish_release(void* address) noexcept;
  void cancel_release(void* address) noexcept;

  /// The allocation that holds the address, if one does.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address) const noexcept;
  [[nodiscard]] std::size_t free_bytes() const noexcept;
  [[nodiscard]] std::size_t live_blocks() const noexcept;

 private:
  struct Block {
    std::size_t bytes;          // as asked for
    std::size_t granted_bytes;  // as taken from OpenCL
    void* start;                // as OpenCL gave it
    MemoryKind kind;
    bool is_releasing;
  };

  [[nodiscard]] bool charge(std::size_t bytes) noexcept;
  void discharge(std::size_t bytes) noexcept;
  void give(const Block& block) noexcept;
  [[nodiscard]] Failure out_of_memory(std::size_t bytes) const noexcept;
  [[nodiscard]] Failure not_live(const void* address) const noexcept;

  const std::shared_ptr<Context> context_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  // guarded by mutex_
  std::size_t used_bytes_ = 0;              // guarded by mutex_
};

}  // namespace tern::opencl
