// Double buffering through host memory.

#include "buffer/staged_transfer.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "buffer/copy_route.hpp"
#include "buffer/copy_turns.hpp"
#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

/// Host memory from the heap, for devices without pinned memory.
class HeapMemory final : public StorageOrigin {
 public:
  explicit HeapMemory(std::size_t bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] const char* what() const noexcept override { return "memory of the host"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    memory_.reset(new (std::nothrow) std::byte[bytes_]);
    if (memory_) return Memory{nullptr, memory_.get(), bytes_};
    return no_host_memory(bytes_, "a staged copy", site);
  }
  [[nodiscard]] bool try_end() noexcept override {
    memory_.reset();
    return true;
  }

 private:
  const std::size_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

StorageOptions options_for_chunk(CallSite site) noexcept {
  return {.contents = Contents::unspecified, .checked = false, .site = site};
}

}  // namespace

StagedTransfer::~StagedTransfer() {
  // Not finished: no stream is ordered after both streams, so each one records the use of its own
  // side.
  if (has_read_) from_use_.end();
  if (has_written_) to_use_.end();
}

Result<StorageHandle> StagedTransfer::try_make_chunk() noexcept {
  if (between_ == Between::pinned) {
    for (const Device* device : {&to_.device(), &from_.device()}) {
      if (!device->can(Capability::pinned_memory)) continue;
      const Result<ResourceHandle> resource = try_default_resource(*device, MemoryKind::pinned);
      if (!resource) continue;
      // Pinned memory is scarce and only faster. Without it, other memory will do.
      Result<StorageHandle> chunk =
          Storage::try_allocate(*resource, size_, options_for_chunk(site_));
      if (chunk) return chunk;
    }
  }
  std::unique_ptr<StorageOrigin> heap(new (std::nothrow) HeapMemory(size_));
  if (!heap) return no_host_memory("a staged copy", site_);
  Result<StorageHandle> chunk = Storage::try_make(to_.device(), size_, MemoryKind::host,
                                                  std::move(heap), options_for_chunk(site_));
  if (!chunk) return chunk;
  if (Result<void> there = (*chunk)->try_ensure({}, site_); !there) return there.failure();
  return chunk;
}

Result<void> StagedTransfer::try_begin(std::size_t max_bytes, std::size_t total_bytes) noexcept {
  size_ = std::min(max_bytes, chunk_bytes);
  count_ = total_bytes > size_ ? 2 : 1;
  for (std::size_t i = 0; i < count_; ++i) {
    Result<StorageHandle> chunk = try_make_chunk();
    if (!chunk) return chunk.failure();
    chunks_[i] = *std::move(chunk);
  }
  // The ranges were checked before, and written pieces are noted one by one. These uses only order
  // the copy.
  if (reader_.id()) {
    return try_use_both({to_, writer_, to_use_}, {from_, reader_, from_use_}, site_);
  }
  Result<StorageUse> to_use =
      to_.try_use(writer_, Access::discard, 0, 0, site_, Storage::Streams::any_device);
  if (!to_use) return to_use.failure();
  to_use_ = *std::move(to_use);
  return {};
}

Result<void> StagedTransfer::try_read(Storage& chunk, std::size_t offset,
                                      std::size_t bytes) noexcept {
  if (!reader_.id()) {
    if (Result<void> free = chunk.try_wait_host(Access::discard, 0, bytes, site_); !free) {
      return free;
    }
    return from_.origin()->try_read(offset, bytes, address_for(chunk, DeviceId{}), site_);
  }
  Result<StorageUse> use =
      chunk.try_use(reader_, Access::discard, 0, bytes, site_, Storage::Streams::any_device);
  if (!use) return use.failure();
  if (Result<void> noted = note_foreign_use(chunk, reader_, Access::discard, 0, bytes, site_);
      !noted) {
    return noted;
  }
  const DeviceId device = reader_.device_id();
  Result<void> queued = reader_.try_copy(address_for(chunk, device),
                                         address_for(from_, device) + offset, bytes, site_);
  if (!queued) return queued;
  use->end();
  has_read_ = true;
  return {};
}

Result<void> StagedTransfer::try_write_last() noexcept {
  const Piece piece = std::exchange(last_, {});
  if (piece.bytes == 0) return {};
  Storage& chunk = *chunks_[piece.chunk];
  Result<StorageUse> use =
      chunk.try_use(writer_, Access::read, 0, piece.bytes, site_, Storage::Streams::any_device);
  if (!use) return use.failure();
  if (Result<void> noted = note_foreign_use(chunk, writer_, Access::read, 0, piece.bytes, site_);
      !noted) {
    return noted;
  }
  const DeviceId device = writer_.device_id();
  Result<void> queued = writer_.try_copy(address_for(to_, device) + piece.offset,
                                         address_for(chunk, device), piece.bytes, site_);
  if (!queued) return queued;
  use->end();
  to_.note_written(piece.offset, piece.bytes);
  has_written_ = true;
  return {};
}

Result<void> StagedTransfer::try_add(std::size_t to_offset, std::size_t from_offset,
                                     std::size_t bytes) noexcept {
  while (bytes > 0) {
    const std::size_t now = std::min(bytes, size_);
    const std::size_t chunk = next_;
    // Read the next piece before the last one is written, so that both halves overlap.
    if (Result<void> read = try_read(*chunks_[chunk], from_offset, now); !read) return read;
    if (Result<void> written = try_write_last(); !written) return written;
    last_ = {chunk, to_offset, now};
    next_ = (next_ + 1) % count_;
    to_offset += now;
    from_offset += now;
    bytes -= now;
  }
  return {};
}

Result<void> StagedTransfer::try_finish(StreamRef stream) noexcept {
  if (Result<void> written = try_write_last(); !written) return written;
  // The writer is ordered after the reader, piece by piece, so waiting for the writer is enough.
  if (writer_ != stream) {
    if (Result<void> behind = order_behind(stream, writer_.next_mark(), site_); !behind) {
      return behind;
    }
  }
  from_use_.end_on(stream);
  to_use_.end_on(stream);
  has_read_ = has_written_ = false;
  return {};
}

}  // namespace tern
