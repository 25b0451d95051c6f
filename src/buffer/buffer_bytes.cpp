// The functions of Buffer that move bytes: copies in and out, clone, fill.

#include <cstring>

#include "buffer/copy_engine.hpp"
#include "buffer/copy_route.hpp"
#include "buffer/copy_turns.hpp"
#include "buffer/sure_wait.hpp"
#include "buffer/transfer_counts.hpp"
#include "device/request_checks.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"

namespace tern {
namespace {

Failure not_as_many(std::size_t expected, std::size_t actual, CallSite site) noexcept {
  return Failure(ErrorCode::size_mismatch,
                 "a copy covers the whole buffer of {expected} bytes, and the span has {actual}. "
                 "Use a view of the part to copy.",
                 site)
      .with("expected", expected)
      .with("actual", actual);
}

Failure null_memory(const char* name, CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the {name} of a copy is null. Pass the address of allocated memory.", site)
      .with("name", name)
      .with("value", "null");
}

/// Copies between a storage and the caller's host memory on the library's copy stream, and waits.
Result<void> exchange(Storage& storage, std::size_t offset, std::size_t bytes, Access access,
                      void* memory, CallSite site) noexcept {
  const bool is_download = access == Access::read;
  if (is_download) {
    if (Result<void> may = try_download(storage.tag(), bytes, site); !may) return may;
  }
  const Result<StreamRef> stream = storage.device().try_copy_stream();
  if (!stream) return Failure(stream.failure()).at(site);
  // The host waits for earlier uses, not the stream: other copies are queued on the stream behind
  // this one.
  if (Result<void> ready = storage.uses().try_wait(access, site); !ready) {
    return Failure(ready.failure()).at(site);
  }
  Result<StorageUse> use = storage.try_use(*stream, access, offset, bytes, site);
  if (!use) return use.failure();
  std::byte* const inside = address_for(storage, stream->device_id()) + offset;
  Result<void> queued = is_download ? stream->try_copy(memory, inside, bytes, site)
                                    : stream->try_copy(inside, memory, bytes, site);
  const Mark mark = stream->next_mark();
  if (queued) use->end();
  // The caller may free its memory after the return, so wait even if the copy failed: part of it
  // may be in flight.
  const Result<void> done = try_wait_surely(*stream, mark, site);
  if (!queued) return queued;
  if (!done) return Failure(done.failure()).at(site);
  count_transfer(
      is_download ? TransferDirection::device_to_host : TransferDirection::host_to_device,
      storage.tag(), bytes);
  return {};
}

Failure read_only(const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::read_only, "{what} is read-only. Copy to writable memory.", site)
      .with("what", storage.origin()->what());
}

Failure no_file_on_stream(const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::unsupported,
                 "{what} cannot be used by a stream directly. Copy without a stream, or copy "
                 "between the file and another buffer with copy().",
                 site)
      .with("what", storage.origin()->what());
}

/// Copies between a storage and the caller's host memory, in the order of the caller's stream.
Result<Mark> enqueue_exchange(Storage& storage, std::size_t offset, std::size_t bytes,
                              Access access, void* memory, StreamRef stream,
                              CallSite site) noexcept {
  if (Result<void> own = check_stream_of(storage, stream, site); !own) return own.failure();
  const bool is_download = access == Access::read;
  const bool is_on_host = is_host_memory(storage);
  if (is_download && !is_on_host) {
    if (Result<void> may = try_download(storage.tag(), bytes, site); !may) return may.failure();
  }
  Result<StorageUse> use = storage.try_use(stream, access, offset, bytes, site);
  if (!use) return use.failure();
  std::byte* const inside = address_for(storage, stream.device_id()) + offset;
  Result<void> queued = is_download ? stream.try_copy(memory, inside, bytes, site)
                                    : stream.try_copy(inside, memory, bytes, site);
  if (!queued) return queued.failure();
  use->end();
  if (!is_on_host) {
    count_transfer(
        is_download ? TransferDirection::device_to_host : TransferDirection::host_to_device,
        storage.tag(), bytes);
  }
  return stream.try_mark();
}

}  // namespace

Result<void> Buffer::check_download(CallSite site) const noexcept {
  if (transfer_rule() == nullptr || !storage_) return {};
  if (is_host_memory(*storage_) || kind() == MemoryKind::file) return {};
  return tern::check_download(storage_->tag(), bytes_, site);
}

Result<void> Buffer::try_copy_to(void* destination, std::size_t bytes,
                                 CallSite site) const noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  if (bytes != bytes_) return not_as_many(bytes_, bytes, site);
  if (bytes == 0) return {};
  if (destination == nullptr) return null_memory("destination", site);
  HostTurn turn;
  if (kind() == MemoryKind::file) {
    if (Result<void> taken = turn.try_take(*storage_, Access::read, site); !taken) return taken;
    if (Result<void> there = storage_->check_arrived(offset_, bytes, site); !there) return there;
    return storage_->origin()->try_read(offset_, bytes, destination, site);
  }
  if (!is_host_memory(*storage_)) {
    return exchange(*storage_, offset_, bytes, Access::read, destination, site);
  }
  if (Result<void> taken = turn.try_take(*storage_, Access::read, site); !taken) return taken;
  const Result<HostMemory> memory = try_host_memory(Access::read, site);
  if (!memory) return memory.failure();
  std::memcpy(destination, memory->address, bytes);
  return {};
}

Result<void> Buffer::try_copy_from(const void* source, std::size_t bytes, CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  if (storage_->is_read_only()) return read_only(*storage_, site);
  if (bytes != bytes_) return not_as_many(bytes_, bytes, site);
  if (bytes == 0) return {};
  if (source == nullptr) return null_memory("source", site);
  if (!is_host_memory(*storage_) && kind() != MemoryKind::file) {
    return exchange(*storage_, offset_, bytes, Access::discard, const_cast<void*>(source), site);
  }
  HostTurn turn;
  if (Result<void> taken = turn.try_take(*storage_, Access::discard, site); !taken) return taken;
  const Result<HostMemory> memory = try_host_memory(Access::discard, site);
  if (!memory) return memory.failure();
  std::memcpy(memory->address, source, bytes);
  return {};
}

Result<Mark> Buffer::try_copy_to(void* destination, std::size_t bytes, StreamRef stream,
                                 CallSite site) const noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  if (bytes != bytes_) return not_as_many(bytes_, bytes, site);
  if (bytes == 0) return mark_of_nothing(stream);
  if (destination == nullptr) return null_memory("destination", site);
  if (kind() == MemoryKind::file) return no_file_on_stream(*storage_, site);
  return enqueue_exchange(*storage_, offset_, bytes, Access::read, destination, stream, site);
}

Result<Mark> Buffer::try_copy_from(const void* source, std::size_t bytes, StreamRef stream,
                                   CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  if (storage_->is_read_only()) return read_only(*storage_, site);
  if (bytes != bytes_) return not_as_many(bytes_, bytes, site);
  if (bytes == 0) return mark_of_nothing(stream);
  if (source == nullptr) return null_memory("source", site);
  if (kind() == MemoryKind::file) return no_file_on_stream(*storage_, site);
  return enqueue_exchange(*storage_, offset_, bytes, Access::discard, const_cast<void*>(source),
                          stream, site);
}

Result<Buffer> Buffer::try_clone(StreamRef stream, CallSite site) const noexcept try {
  if (Result<void> there = check_there(site); !there) return there.failure();
  const Storage& own = *storage_;
  if (own.kind() == MemoryKind::file) {
    return Failure(ErrorCode::unsupported,
                   "{what} cannot be cloned, because Tern does not create files. Copy its bytes to "
                   "a buffer.",
                   site)
        .with("what", own.origin()->what());
  }
  StorageOptions options{.resource = own.resource(),
                         .alignment = own.alignment(),
                         .tag = own.tag(),
                         .checked = own.is_checked(),
                         .site = site};
  // Memory that no resource allocated is cloned to the most similar kind that the device can
  // allocate.
  if (is_pinned()) options.kind = MemoryKind::pinned;
  if (own.kind() == MemoryKind::managed) options.kind = MemoryKind::managed;
  if (stream.device_id() == own.device().id()) options.stream = stream;
  if (bytes_ > 0) {
    if (Result<void> usable = check_stream(stream, site); !usable) return usable.failure();
  }
  Result<Buffer> clone = try_make(own.device(), shape_, dtype_, options);
  if (!clone) return clone;
  if (const Result<Mark> copied = try_copy(*clone, *this, stream, site); !copied) {
    return copied.failure();
  }
  return clone;
} catch (const Error& error) {
  return Failure(error.failure()).at(site);  // a Shape of many dimensions needs host memory
}

Result<Mark> Buffer::try_fill_bytes(const Pattern& pattern, StreamRef stream,
                                    CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  // Check the pattern before memory is allocated; the check of the stream would come too late.
  if (Result<void> whole = check_pattern(pattern, bytes_, site); !whole) return whole.failure();
  if (bytes_ == 0) return mark_of_nothing(stream);
  Result<StorageUse> use = storage_->try_use(stream, Access::discard, offset_, bytes_, site);
  if (!use) return use.failure();
  if (Result<void> queued = stream.try_fill_bytes(
          address_for(*storage_, stream.device_id()) + offset_, bytes_, pattern, site);
      !queued) {
    return queued.failure();
  }
  use->end();
  return stream.try_mark();
}

}  // namespace tern
