// Virtual memory of a CUDA device: reserved addresses, pages without an address, and what is mapped
// where.
//
// The driver answers most mistakes with "invalid value", and some not at all; here what is reserved
// and mapped is known, so a wrong range is refused with the reason before the driver is asked. The
// numbers given out for pages are never used again, unlike the driver's handles. Peers that were
// let in can use what is mapped as the device itself can. Thread-safe; the driver's calls here take
// tens of microseconds, so one lock is held across them.

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
  /// `page_bytes` is what granularity() says.
  CudaPages(Context& context, std::size_t page_bytes) noexcept
      : context_(context), page_bytes_(page_bytes) {}

  /// What sizes and addresses are multiples of; zero if the device has no virtual memory.
  [[nodiscard]] static Result<std::size_t> granularity(Context& context);

  [[nodiscard]] Result<void*> reserve(std::size_t bytes);
  [[nodiscard]] Result<void> unreserve(void* address, std::size_t bytes);
  [[nodiscard]] Result<NativePages> create(std::size_t bytes);
  [[nodiscard]] Result<void> release(NativePages pages);
  [[nodiscard]] Result<void> map(void* address, NativePages pages);
  [[nodiscard]] Result<void> unmap(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> set_access(void* address, std::size_t bytes, PageAccess access);

  /// The mapping that holds the address.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address);
  /// Lets another device use what is mapped here, now and later.
  [[nodiscard]] Result<void> let_in(CUdevice peer);
  /// Takes that back, for all of it or for nothing.
  [[nodiscard]] Result<void> shut_out(CUdevice peer);

 private:
  struct Pages {
    CUmemGenericAllocationHandle handle = 0;
    std::size_t bytes = 0;
  };
  struct Mapping {
    std::size_t bytes = 0;
    PageAccess access = PageAccess::none;
  };

  // With mutex_ held.
  [[nodiscard]] bool is_reserved(std::uintptr_t address, std::size_t bytes) const noexcept;
  [[nodiscard]] bool is_free(std::uintptr_t address, std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> grant(std::uintptr_t address, std::size_t bytes, PageAccess access,
                                   std::span<CUmemAccessDesc> to);
  /// Gives something back to the driver; where that cannot be called any more there is nothing to.
  template <class Call>
  [[nodiscard]] Result<void> give(Call call);

  Context& context_;
  const std::size_t page_bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> reservations_;  // guarded by mutex_, as all that follows
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Pages> pages_;  // by the number given out
  std::uintptr_t last_number_ = 0;
  std::vector<CUmemAccessDesc> users_;  // the device itself, and the peers that were let in
};

}  // namespace tern::cuda
