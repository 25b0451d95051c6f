// Allocates managed memory and begins its uses on streams. Host access is that of Buffer:
// Storage::try_wait_host (buffer/storage.cpp) waits, for the whole device if the device lacks
// concurrent_managed. Nothing is prefetched here: programs prefetch with hints (hints.cpp) and
// plans (prefetch_plan.cpp).

#include "tern/coherence/managed_buffer.hpp"

#include <algorithm>

#include "coherence/hint_checks.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Failure no_managed_memory(const Device& device, CallSite site) noexcept {
  return Failure(ErrorCode::unsupported,
                 "'{device}' has no managed memory. Use a UnifiedBuffer, which has a copy in each "
                 "place.",
                 site)
      .with("what", name(Capability::managed_memory))
      .with("device", device.spec());
}

/// Returns whether streams of both devices may use managed memory of either.
bool share_managed(const Device& a, const Device& b) noexcept {
  return a.info().backend == b.info().backend && a.can(Capability::concurrent_managed) &&
         b.can(Capability::concurrent_managed);
}

}  // namespace

Result<ManagedMemory> ManagedMemory::try_make(const Device& device, Shape shape, DType dtype,
                                              const StorageOptions& options) noexcept {
  if (device.is_open() && !device.can(Capability::managed_memory)) {
    return no_managed_memory(device, options.site);
  }
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(options.site);
  // Rounded up to whole pages, so that no other buffer shares the last page.
  const std::optional<std::size_t> whole = checked_round_up(*bytes, hint_page_bytes());
  if (!whole) {
    return Failure(ErrorCode::size_overflow,
                   "{requested} bytes in whole pages do not fit in 64 bits. Ask for less.",
                   options.site)
        .with("what", "a managed buffer")
        .with("requested", *bytes);
  }
  StorageOptions managed = options;
  managed.kind = MemoryKind::managed;
  managed.alignment =
      std::max(options.alignment, *bytes >= usual_alignment ? usual_alignment : small_alignment);
  Result<StorageHandle> storage = Storage::try_make(device, *whole, managed);
  if (!storage) return storage.failure();
  Result<Buffer> buffer =
      Buffer::try_over(*std::move(storage), 0, std::move(shape), dtype, options.site);
  if (!buffer) return buffer.failure();
  if (Result<void> sound = check_managed(*buffer, options.site); !sound) {
    return sound.failure();
  }
  return ManagedMemory(*std::move(buffer));
}

Result<ManagedMemory> ManagedMemory::try_slice(std::size_t first, std::size_t count,
                                               CallSite site) const noexcept {
  Result<Buffer> part = buffer_.try_slice(first, count, site);
  if (!part) return part.failure();
  return ManagedMemory(*std::move(part));
}

bool ManagedMemory::host_waits_for_device() const noexcept {
  return buffer_ && !buffer_.device().can(Capability::concurrent_managed);
}

Result<StorageUse> ManagedMemory::try_use(StreamRef stream, Access access,
                                          CallSite site) const noexcept {
  if (!buffer_) return buffer_.try_use(stream, access, site).failure();
  const bool is_shared = stream.is_usable() && share_managed(buffer_.device(), stream.device());
  return buffer_.storage()->try_use(
      stream, access, buffer_.offset_bytes(), buffer_.size_bytes(), site,
      is_shared ? Storage::Streams::any_device : Storage::Streams::own_device);
}

}  // namespace tern
