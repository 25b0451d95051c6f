// The memory of an OpenCL device: blocks of shared virtual memory, recorded by address.
//
// The record turns a double free into an error, tells kernel arguments from other addresses, and
// counts the memory in use, which OpenCL does not report. Blocks are fine-grained if the device
// supports it, so the host can use them too. After the device was lost, a free only updates the
// record; the memory is freed at the end. The object is shared, because a stream-ordered free may
// outlive the device. Thread-safe.

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
  /// The default alignment of every block: the size of the largest type of OpenCL C.
  static constexpr std::size_t alignment = 128;
  /// A larger alignment costs that much extra memory, because OpenCL has no call for it.
  static constexpr std::size_t max_alignment = 4 * mib;

  explicit Memory(std::shared_ptr<Context> context) noexcept : context_(std::move(context)) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] Result<void*> allocate(MemoryKind kind, std::size_t bytes,
                                       std::size_t alignment) noexcept;
  [[nodiscard]] Result<void> release(void* address) noexcept;
  /// The two steps of a stream-ordered free. begin_release() makes the address invalid for callers,
  /// finish_release() frees the memory. cancel_release() undoes begin_release().
  [[nodiscard]] Result<void> begin_release(void* address) noexcept;
  void finish_release(void* address) noexcept;
  void cancel_release(void* address) noexcept;

  /// Returns the allocation that contains the address, if there is one.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address) const noexcept;
  [[nodiscard]] std::size_t free_bytes() const noexcept;
  [[nodiscard]] std::size_t live_blocks() const noexcept;

 private:
  struct Block {
    std::size_t bytes;          // requested size
    std::size_t granted_bytes;  // size allocated from OpenCL
    void* start;                // address returned by OpenCL
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
