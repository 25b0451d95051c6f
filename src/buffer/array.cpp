// The untyped functions behind Array<T>.

#include "tern/buffer/array.hpp"

#include <algorithm>
#include <optional>

#include "buffer/copy_route.hpp"
#include "buffer/sure_wait.hpp"
#include "buffer/transfer_counts.hpp"
#include "device/captures.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

[[gnu::cold]] Failure too_many(std::size_t count, std::size_t element_bytes,
                               CallSite site) noexcept {
  return Failure(
             ErrorCode::size_overflow,
             "{count} elements of {width} bytes overflow a 64-bit size. Allocate fewer elements.",
             site)
      .with("what", "an array")
      .with("count", count)
      .with("width", element_bytes);
}

Failure sizes_differ(std::size_t expected, std::size_t actual, CallSite site) noexcept {
  return Failure(ErrorCode::size_mismatch,
                 "an array of {expected} bytes cannot be copied to or from {actual} bytes. Use a "
                 "slice, or a span of the same size.",
                 site)
      .with("expected", expected)
      .with("actual", actual);
}

}  // namespace

Result<RawArray> RawArray::try_allocate(const ResourceHandle& resource, std::size_t count,
                                        std::size_t element_bytes,
                                        const StorageOptions& options) noexcept {
  const std::optional<std::size_t> bytes = checked_multiply(count, element_bytes);
  if (!bytes) return too_many(count, element_bytes, options.site);
  Result<StorageHandle> storage = Storage::try_allocate(resource, *bytes, options);
  if (!storage) return storage.failure();
  std::byte* const address = (*storage)->first_byte();
  return RawArray(*std::move(storage), address, *bytes);
}

RawArray RawArray::allocate(const ResourceHandle& resource, std::size_t count,
                            std::size_t element_bytes, const StorageOptions& options) {
  const std::optional<std::size_t> bytes = checked_multiply(count, element_bytes);
  if (!bytes) raise(too_many(count, element_bytes, options.site));
  StorageHandle storage = Storage::allocate(resource, *bytes, options);
  std::byte* const address = storage->first_byte();
  return RawArray(std::move(storage), address, *bytes);
}

Result<RawArray> RawArray::try_allocate(const Device& device, std::size_t count,
                                        std::size_t element_bytes,
                                        const StorageOptions& options) noexcept {
  if (options.resource) {
    if (!device.is_open() || options.resource->device() == device) {
      return try_allocate(options.resource, count, element_bytes, options);
    }
    // Storage::try_make() makes the same check and has the error message.
    return Storage::try_make(device, 0, options).failure();
  }
  const Result<ResourceHandle> resource = try_default_resource(device, options.kind);
  if (!resource) return Failure(resource.failure()).at(options.site);
  return try_allocate(*resource, count, element_bytes, options);
}

Result<RawArray> RawArray::try_over(const Buffer& buffer, std::size_t alignment,
                                    std::size_t element_bytes, CallSite site) noexcept {
  if (Result<void> there = buffer.try_ensure_allocated({}, site); !there) return there.failure();
  const Result<std::uintptr_t> address = buffer.try_address();
  if (!address) return Failure(address.failure()).at(site);
  if (*address % alignment != 0) {
    return Failure(ErrorCode::misaligned,
                   "elements with an alignment of {required} bytes cannot be placed at {address}. "
                   "Copy the bytes to an aligned address.",
                   site)
        .with("address", *address, Unit::hex)
        .with("required", alignment);
  }
  if (buffer.size_bytes() % element_bytes != 0) {
    return Failure(ErrorCode::size_mismatch,
                   "{actual} bytes are not a whole number of elements of {expected} bytes.", site)
        .with("expected", element_bytes)
        .with("actual", buffer.size_bytes());
  }
  return RawArray(buffer.storage(), reinterpret_cast<std::byte*>(*address), buffer.size_bytes());
}

std::size_t RawArray::offset() const noexcept {
  if (address_ == nullptr) return 0;
  return static_cast<std::size_t>(address_ - storage_->first_byte());
}

// In-place growth needs all bytes behind the array to be unowned: the array must start at the
// storage's first byte, and end at its last byte or be the only handle.
std::size_t RawArray::capacity_bytes() const noexcept {
  if (!storage_ || bytes_ == 0 || offset() != 0) return bytes_;
  if (bytes_ != storage_->bytes() && storage_->shares() != 1) return bytes_;
  const Result<Block> block = storage_->try_block();
  return block && *block ? block->bytes : bytes_;
}

Result<RawArray> RawArray::try_slice(std::size_t first, std::size_t count,
                                     std::size_t element_bytes, CallSite site) const noexcept {
  const std::size_t there = bytes_ / element_bytes;
  if (!is_within(first, count, there)) {
    return Failure(ErrorCode::invalid_view,
                   "a slice of {size} elements at offset {offset} exceeds an array of {extent} "
                   "elements.",
                   site)
        .with("offset", first)
        .with("size", count)
        .with("extent", there);
  }
  return inner(first * element_bytes, count * element_bytes);
}

// Shrinking only changes the size. Growing first tries the granted block, then copies to new
// memory.
Result<void> RawArray::try_resize(std::size_t count, std::size_t element_bytes, StreamRef stream,
                                  CallSite site) noexcept {
  const std::optional<std::size_t> bytes = checked_multiply(count, element_bytes);
  if (!bytes) return too_many(count, element_bytes, site);
  if (!storage_) {
    return Failure(
               ErrorCode::not_allocated,
               "an array without a device cannot grow. Create it with a device and zero elements.",
               site)
        .with("id", std::uint64_t{0});
  }
  if (offset() != 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a slice that begins at byte {value} cannot be resized. Resize the whole array.",
                   site)
        .with("name", "slice")
        .with("value", offset());
  }
  if (*bytes <= bytes_ || storage_->try_grow(bytes_, *bytes)) {
    bytes_ = *bytes;
    if (*bytes > 0 && address_ == nullptr) {
      address_ = storage_->first_byte();
    }
    return {};
  }
  if (storage_->origin() != nullptr) {
    return Failure(ErrorCode::unsupported, "{what} cannot grow. Copy its bytes to an array.", site)
        .with("what", storage_->origin()->what());
  }
  if (Result<void> own = check_stream_of(*storage_, stream, site); !own) return own;
  // New elements have no values after a resize, so the new memory is not zeroed.
  const Contents contents =
      storage_->contents() == Contents::zero ? Contents::uninitialized : storage_->contents();
  const auto try_make = [&](std::size_t capacity) {
    return try_allocate(storage_->resource(), capacity, element_bytes,
                        {.contents = contents,
                         .alignment = storage_->alignment(),
                         .stream = stream,
                         .tag = storage_->tag(),
                         .checked = storage_->is_checked(),
                         .site = site});
  };
  // Grow by at least half, so that repeated small steps copy each element only a few times. If
  // there is not enough memory for that, allocate exactly what is needed.
  const std::size_t before = bytes_ / element_bytes;
  const std::size_t capacity = std::max(count, before + before / 2);
  Result<RawArray> larger = try_make(capacity);
  if (!larger && capacity != count) larger = try_make(count);
  if (!larger) return larger.failure();
  larger->bytes_ = *bytes;
  // Copy only written ranges; the rest stays unwritten.
  const Result<std::vector<ByteRange>> written = storage_->try_written_ranges(0, bytes_);
  if (!written) return Failure(written.failure()).at(site);
  for (const ByteRange& range : *written) {
    const std::size_t size = range.end - range.begin;
    const Result<Mark> copied =
        try_copy(larger->try_slice(range.begin, size, 1, site)->buffer(DType::byte, 1),
                 try_slice(range.begin, size, 1, site)->buffer(DType::byte, 1), stream, site);
    if (!copied) return copied.failure();
  }
  *this = *std::move(larger);
  return {};
}

Result<StorageUse> RawArray::try_use(StreamRef stream, Access access,
                                     CallSite site) const noexcept {
  if (!storage_ || bytes_ == 0) return StorageUse();
  return storage_->try_use(stream, access, offset(), bytes_, site);
}

Result<void> RawArray::try_kernel_view(StreamRef stream, Access access,
                                       CallSite site) const noexcept {
  Result<StorageUse> use = try_use(stream, access, site);
  if (!use) return use.failure();
  use->end_deferred();
  return {};
}

Result<Mark> RawArray::try_fill(const Pattern& pattern, StreamRef stream, CallSite site) noexcept {
  if (bytes_ == 0) return stream.next_mark();
  Result<StorageUse> use = try_use(stream, Access::discard, site);
  if (!use) return use.failure();
  if (Result<void> queued = stream.try_fill_bytes(address_, bytes_, pattern, site); !queued) {
    return queued.failure();
  }
  use->end();
  return stream.try_mark();
}

Result<Mark> RawArray::try_put(const void* value, std::size_t bytes, StreamRef stream,
                               CallSite site) noexcept {
  if (bytes != bytes_) return sizes_differ(bytes_, bytes, site);
  Result<StorageUse> use = try_use(stream, Access::discard, site);
  if (!use) return use.failure();
  Result<void> put;
  for (std::size_t done = 0; put && done < bytes_;) {
    Pattern pattern;
    const std::size_t part = std::min(bytes_ - done, Pattern::max_bytes);
    pattern.width_bytes = part;
    std::memcpy(pattern.bytes, static_cast<const std::byte*>(value) + done, part);
    put = stream.try_fill_bytes(address_ + done, part, pattern, site);
    // Without a first fill there was no use.
    if (!put && done == 0) return put.failure();
    done += part;
  }
  use->end();
  if (!put) return put.failure();
  return stream.try_mark();
}

Result<void> RawArray::try_get(void* to, std::size_t bytes, StreamRef stream,
                               CallSite site) const noexcept {
  if (Result<void> free = check_not_captured(stream, site); !free) return free;
  const Result<Mark> copied = try_read(to, bytes, stream, site);
  if (!copied) return copied.failure();
  // The caller's memory must not be written after the call returns.
  return try_wait_surely(stream, *copied, site);
}

Buffer RawArray::buffer(DType dtype, std::size_t element_bytes) const {
  if (!storage_) return {};
  return Buffer::try_over(storage_, offset(), Shape{bytes_ / element_bytes}, dtype).value();
}

Result<void> RawArray::check_download(CallSite site) const noexcept {
  if (transfer_rule() == nullptr || !storage_ || is_host_memory(*storage_)) return {};
  return tern::check_download(storage_->tag(), bytes_, site);
}

Result<Mark> RawArray::try_read(void* to, std::size_t bytes, StreamRef stream,
                                CallSite site) const noexcept {
  if (bytes != bytes_) return sizes_differ(bytes_, bytes, site);
  if (bytes == 0) return Mark{};
  const Buffer all = buffer(DType::byte, 1);
  if (stream.id()) return all.try_copy_to(to, bytes, stream, site);
  const Result<void> copied = all.try_copy_to(to, bytes, site);
  return copied ? Result<Mark>(Mark{}) : Result<Mark>(copied.failure());
}

Result<Mark> RawArray::try_write(const void* from, std::size_t bytes, StreamRef stream,
                                 CallSite site) noexcept {
  if (bytes != bytes_) return sizes_differ(bytes_, bytes, site);
  if (bytes == 0) return Mark{};
  Buffer all = buffer(DType::byte, 1);
  if (stream.id()) return all.try_copy_from(from, bytes, stream, site);
  const Result<void> copied = all.try_copy_from(from, bytes, site);
  return copied ? Result<Mark>(Mark{}) : Result<Mark>(copied.failure());
}

}  // namespace tern
