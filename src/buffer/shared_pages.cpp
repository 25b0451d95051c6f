#include "buffer/shared_pages.hpp"

#include <algorithm>
#include <optional>

#include "tern/core/bytes.hpp"

namespace tern::share {
namespace {

/// How often a handle is released again if the driver refuses. A driver that always refuses keeps
/// the memory until the device is closed.
constexpr int release_attempts = 3;

void release(const Device& device, NativePages pages) noexcept {
  for (int i = 0; i < release_attempts; ++i) {
    if (device.try_release_pages(pages)) return;
  }
}

}  // namespace

Result<std::size_t> SharedPages::try_page_bytes(const Device& device, std::size_t bytes,
                                                CallSite site) noexcept {
  if (device.is_open() && !device.can(Capability::shareable_memory)) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' cannot share memory with other processes ({what}). Share memory of "
                   "the host, of a simulated device or of a CUDA device, and copy.",
                   site)
        .with("what", name(Capability::shareable_memory))
        .with("device", device.spec());
  }
  if (!device.is_open()) {
    return Failure(ErrorCode::invalid_device,
                   "{what} needs an open device, and the Device is empty. Open one with "
                   "open_device().",
                   site)
        .with("spec", "")
        .with("what", "a shared array");
  }
  const std::optional<std::size_t> rounded =
      checked_round_up(std::max<std::size_t>(bytes, 1), device.info().page_bytes);
  if (rounded && *rounded <= max_request_bytes) return *rounded;
  return Failure(ErrorCode::size_overflow,
                 "{what} of {bytes} bytes is larger than any memory. Share less.", site)
      .with("what", "a shared array")
      .with("bytes", bytes);
}

Result<SharedPages> SharedPages::try_create(const Device& device, std::size_t bytes,
                                            Descriptor& exported) noexcept {
  const Result<NativePages> pages = device.try_create_shareable_pages(bytes);
  if (!pages) return pages.failure();
  const Result<int> descriptor = device.try_export_pages(*pages);
  if (!descriptor) {
    release(device, *pages);
    return descriptor.failure();
  }
  exported = Descriptor(*descriptor);
  return try_map(device, *pages, bytes);
}

Result<SharedPages> SharedPages::try_import(const Device& device, int descriptor,
                                            std::size_t bytes) noexcept {
  const Result<NativePages> pages = device.try_import_pages(descriptor, bytes);
  if (!pages) return pages.failure();
  return try_map(device, *pages, bytes);
}

Result<SharedPages> SharedPages::try_map(const Device& device, NativePages pages,
                                         std::size_t bytes) noexcept {
  SharedPages mapped;
  mapped.device_ = device;
  mapped.bytes_ = bytes;
  const Result<void*> address = device.try_reserve(bytes);
  Result<void> done = address ? Result<void>() : Result<void>(address.failure());
  if (done) {
    mapped.address_ = *address;
    done = device.try_map(mapped.address_, pages);
    mapped.is_mapped_ = bool(done);
  }
  if (done) done = device.try_set_access(mapped.address_, bytes, PageAccess::read_write);
  release(device, pages);
  if (done) return mapped;
  for (int i = 0; i < release_attempts && !mapped.try_unmap(); ++i) {
  }
  return done.failure();
}

Result<void> SharedPages::try_unmap() noexcept {
  if (is_mapped_) {
    if (Result<void> unmapped = device_.try_unmap(address_, bytes_); !unmapped) return unmapped;
    is_mapped_ = false;
  }
  if (address_ != nullptr) {
    if (Result<void> freed = device_.try_unreserve(address_, bytes_); !freed) return freed;
    address_ = nullptr;
  }
  return {};
}

}  // namespace tern::share
