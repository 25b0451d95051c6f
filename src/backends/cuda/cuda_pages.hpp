// Virtual memory of a CUDA device: reserved addresses, pages without an address, and mappings.
//
// The driver answers most errors with "invalid value" and does not detect others. This class
// records what is reserved and mapped, so a wrong range fails with the reason before the driver is
// called. Handles of pages are never reused, unlike the driver's handles. Peers with access can use
// mapped memory like the device itself. Thread-safe; one lock is held across the driver calls,
// which take tens of microseconds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaPages {
 public:
  /// `page_bytes` is the result of granularity().
  CudaPages(Context& context, std::size_t page_bytes) noexcept
      : context_(context), page_bytes_(page_bytes) {}

  /// Returns the unit of sizes and addresses, or 0 if the device has no virtual memory.
  [[nodiscard]] static Result<std::size_t> granularity(Context& context);

  [[nodiscard]] Result<void*> reserve(std::size_t bytes);
  [[nodiscard]] Result<void> unreserve(void* address, std::size_t bytes);
  [[nodiscard]] Result<NativePages> create(std::size_t bytes);
  /// Creates pages that export_file() can export. Needs
  /// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, like the next two functions.
  [[nodiscard]] Result<NativePages> create_shareable(std::size_t bytes);
  [[nodiscard]] Result<int> export_file(NativePages pages);
  /// The driver compares the size with that of the pages only when they are mapped.
  [[nodiscard]] Result<NativePages> import_file(int descriptor, std::size_t bytes);
  [[nodiscard]] Result<void> release(NativePages pages);
  [[nodiscard]] Result<void> map(void* address, NativePages pages);
  [[nodiscard]] Result<void> unmap(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> set_access(void* address, std::size_t bytes, PageAccess access);

  /// Returns the mapping that contains the address.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address);
  /// Allows another device to use memory that is mapped now or later.
  [[nodiscard]] Result<void> let_in(CUdevice peer);
  /// Undoes that, for all mappings or for none.
  [[nodiscard]] Result<void> shut_out(CUdevice peer);

 private:
  struct Pages {
    CUmemGenericAllocationHandle handle = 0;
    std::size_t bytes = 0;
    bool is_shareable = false;
  };
  struct Mapping {
    std::size_t bytes = 0;
    PageAccess access = PageAccess::none;
  };

  [[nodiscard]] Result<NativePages> create_as(CUmemAllocationHandleType type, std::size_t bytes);

  // Call with mutex_ held.
  /// Takes ownership of the handle, even on failure. The context is current.
  [[nodiscard]] Result<NativePages> add(const Pages& pages);
  [[nodiscard]] bool is_reserved(std::uintptr_t address, std::size_t bytes) const noexcept;
  [[nodiscard]] bool is_free(std::uintptr_t address, std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> grant(std::uintptr_t address, std::size_t bytes, PageAccess access,
                                   std::span<CUmemAccessDesc> to);
  /// Releases an object of the driver. Does nothing if the driver can no longer be called.
  template <class Call>
  [[nodiscard]] Result<void> give(Call call);

  Context& context_;
  const std::size_t page_bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> reservations_;  // guarded by mutex_, like all members below
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Pages> pages_;  // by handle
  std::uintptr_t last_number_ = 0;
  std::vector<CUmemAccessDesc> users_;  // the device itself and peers with access
};

}  // namespace tern::cuda
