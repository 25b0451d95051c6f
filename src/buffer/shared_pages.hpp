// Pages that several processes map: created here and exported, or imported from a descriptor.
//
// The pages are mapped for reading and writing, in a reservation of their own, and never move. The
// handle is released after mapping, so the memory lives as long as a mapping or a descriptor of it,
// in any process. Used by one thread at a time.

#pragma once

#include <cstddef>
#include <utility>

#include "buffer/share_socket.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/operations.hpp"

namespace tern::share {

class SharedPages {
 public:
  SharedPages() noexcept = default;
  SharedPages(SharedPages&& other) noexcept
      : device_(std::move(other.device_)),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  SharedPages& operator=(SharedPages&&) = delete;
  ~SharedPages() { static_cast<void>(try_unmap()); }

  /// Returns the size of the pages for so many bytes, at least one page. Fails with unsupported for
  /// a device that cannot share memory, and with size_overflow.
  [[nodiscard]] static Result<std::size_t> try_page_bytes(const Device& device, std::size_t bytes,
                                                          CallSite site) noexcept;
  /// Creates pages. `exported` becomes a descriptor of them. Fails with out_of_memory, and like the
  /// device.
  [[nodiscard]] static Result<SharedPages> try_create(const Device& device, std::size_t bytes,
                                                      Descriptor& exported) noexcept;
  /// Maps the pages behind a descriptor, which the caller keeps. Fails with bad_format for another
  /// descriptor, and like the device.
  [[nodiscard]] static Result<SharedPages> try_import(const Device& device, int descriptor,
                                                      std::size_t bytes) noexcept;

  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Unmaps the pages. No submitted work may use them. After a failure, the rest is still there and
  /// the call can be repeated.
  [[nodiscard]] Result<void> try_unmap() noexcept;

 private:
  /// Maps the pages, and releases the handle in any case.
  [[nodiscard]] static Result<SharedPages> try_map(const Device& device, NativePages pages,
                                                   std::size_t bytes) noexcept;

  Device device_;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_mapped_ = false;
};

}  // namespace tern::share
