// The untyped handle of unified buffers, and the part of UnifiedCore that answers queries.

#include "tern/detail/coherence/raw_unified.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "coherence/host_heap.hpp"
#include "coherence/unified_core.hpp"
#include "coherence/unified_options.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/coherence/unified_options.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/config.hpp"

namespace tern {

// --- Queries of the core

Shape UnifiedCore::shape() const {
  const std::lock_guard lock(mutex_);
  return shape_;
}

Failure UnifiedCore::outside(std::size_t offset, std::size_t bytes, std::size_t extent,
                             CallSite site) const noexcept {
  return Failure(ErrorCode::invalid_view,
                 "a range of {size} bytes at offset {offset} exceeds the {extent} bytes of buffer "
                 "'{tag}'. Choose a range inside the buffer.",
                 site)
      .with("offset", offset)
      .with("size", bytes)
      .with("extent", extent)
      .with("tag", options_.tag.name());
}

bool UnifiedCore::is_pinned() const noexcept {
  const std::lock_guard lock(mutex_);
  const Memory& memory = copies_.memory(host);
  return memory.storage && memory.storage->kind() == MemoryKind::pinned;
}

bool UnifiedCore::has_copy(Place place) const noexcept {
  const std::lock_guard lock(mutex_);
  const std::optional<unsigned> found = copies_.find(place);
  return found && copies_.has_copy(*found);
}

StorageHandle UnifiedCore::storage_of(Place place) const noexcept {
  const std::lock_guard lock(mutex_);
  const std::optional<unsigned> found = copies_.find(place);
  return found && copies_.has_copy(*found) ? copies_.memory_of(*found).storage : StorageHandle();
}

BufferState UnifiedCore::state(ByteRange range) const noexcept {
  const std::lock_guard lock(mutex_);
  return copies_.state({range.begin, std::min(range.end, bytes())});
}

std::vector<Place> UnifiedCore::valid_places(ByteRange range) const {
  const std::lock_guard lock(mutex_);
  return copies_.valid_places({range.begin, std::min(range.end, bytes())});
}

bool UnifiedCore::is_stale_on(ByteRange range, Place place) const noexcept {
  const std::lock_guard lock(mutex_);
  return copies_.is_stale_on({range.begin, std::min(range.end, bytes())}, place);
}

std::vector<RawUnified::Interval> UnifiedCore::intervals(ByteRange range) const {
  const std::lock_guard lock(mutex_);
  return copies_.intervals({range.begin, std::min(range.end, bytes())});
}

UnifiedStatistics UnifiedCore::statistics() const noexcept {
  const std::lock_guard lock(mutex_);
  return log_.statistics();
}

std::vector<Transfer> UnifiedCore::transfers() const {
  const std::lock_guard lock(mutex_);
  return log_.last();
}

Result<void> UnifiedCore::check() const noexcept {
  const std::lock_guard lock(mutex_);
  PlaceSet existing;
  for (unsigned place = 0; place < copies_.count(); ++place) {
    if (!copies_.has_copy(place)) continue;
    const bool is_in_file = place == host && !spilled_.empty();
    if (is_in_file != !copies_.memory_of(place).storage ||
        (!is_in_file && !copies_.memory_of(place).storage->is_allocated())) {
      return Failure(ErrorCode::violation,
                     "the directory of buffer '{tag}' lists a copy that has no memory.")
          .with("tag", options_.tag.name())
          .with("finding", "coherence");
    }
    existing = existing.with(place);
  }
  return copies_.directory().check(existing);
}

Failure no_pending_read(CallSite site) noexcept {
  return Failure(ErrorCode::not_allocated,
                 "there is no pending read to get: the handle is default-constructed, was moved "
                 "from, or get() was called before. Keep the lease that the first get() returned, "
                 "or start a new read.",
                 site)
      .with("id", std::uint64_t{0});
}

// --- The handle

RawUnified::RawUnified(const RawUnified& other) noexcept
    : core_(other.core_), offset_(other.offset_), bytes_(other.bytes_) {
  if (core_ != nullptr) core_->retain();
}

RawUnified RawUnified::whole_buffer() const noexcept {
  RawUnified all(*this);
  all.offset_ = 0;
  all.bytes_ = whole;
  return all;
}

RawUnified::~RawUnified() {
  if (core_ != nullptr) core_->release();
}

Result<RawUnified> RawUnified::try_make(Shape shape, DType dtype, std::size_t element_bytes,
                                        const UnifiedOptions& options) noexcept try {
  if (!options.device.is_open()) {
    return Failure(ErrorCode::invalid_device,
                   "unified buffer '{tag}' has no device. Set UnifiedOptions::device; the host "
                   "device is enough.",
                   options.site)
        .with("spec", "none")
        .with("tag", options.tag.name());
  }
  const Result<std::size_t> count = shape.try_element_count();
  if (!count) return Failure(count.failure()).at(options.site);
  const std::optional<std::size_t> bytes = checked_multiply(*count, element_bytes);
  if (!bytes || *bytes > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "{count} elements of {bytes} bytes exceed the address space. Ask for fewer.",
                   options.site)
        .with("what", "a unified buffer")
        .with("count", *count)
        .with("bytes", element_bytes);
  }
  // If the configuration cannot be read, opening a device reports it. The default is used here.
  static const Config unreadable;
  const Result<const Config*> config = try_config();
  const Result<UnifiedOptions> decided = try_decide(options, config ? **config : unreadable);
  if (!decided) return decided.failure();
  return RawUnified(new UnifiedCore(std::move(shape), dtype, element_bytes, *bytes, *decided));
} catch (const std::bad_alloc&) {
  return no_host_memory("a unified buffer", options.site);
}

Result<RawUnified> RawUnified::try_adopt_host(void* address, Shape shape, DType dtype,
                                              std::size_t element_bytes,
                                              AnyFunction<void()> release,
                                              const UnifiedOptions& options) noexcept {
  Result<RawUnified> made = try_make(std::move(shape), dtype, element_bytes, options);
  if (!made) return made;
  const std::size_t bytes = made->core_->bytes();
  if (address == nullptr && bytes != 0) {
    return Failure(ErrorCode::invalid_argument,
                   "the {name} of the {bytes} to adopt is null. Pass the address of the memory.",
                   options.site)
        .with("name", "address")
        .with("value", "null")
        .with_bytes("bytes", bytes);
  }
  AdoptedHost* const origin = new (std::nothrow) AdoptedHost(address, bytes, {});
  std::unique_ptr<StorageOrigin> owner(origin);
  const StorageOptions storage_options{.contents = Contents::unspecified,
                                       .tag = options.tag,
                                       .checked = false,
                                       .site = options.site};
  Result<StorageHandle> storage = owner ? Storage::try_make(options.device, bytes, MemoryKind::host,
                                                            std::move(owner), storage_options)
                                        : no_host_memory("adopted memory", options.site);
  if (!storage) return storage.failure();
  const StorageHandle kept = *storage;
  if (Result<void> adopted = made->core_->try_adopt(*std::move(storage)); !adopted) {
    return adopted.failure();
  }
  // From here on, the memory belongs to the buffer, which has to release it.
  origin->set_release(std::move(release));
  return made;
}

std::size_t RawUnified::size_bytes() const noexcept {
  if (bytes_ != whole) return bytes_;
  return core_ != nullptr ? core_->bytes() : 0;
}

Shape RawUnified::shape() const { return core_ != nullptr ? core_->shape() : Shape::flat(0); }

DType RawUnified::dtype() const noexcept {
  return core_ != nullptr ? core_->dtype() : DType::void_;
}

Tag RawUnified::tag() const noexcept { return core_ != nullptr ? core_->options().tag : Tag(); }

const Device& RawUnified::device() const noexcept {
  static const Device none;
  return core_ != nullptr ? core_->options().device : none;
}

bool RawUnified::is_pinned() const noexcept { return core_ != nullptr && core_->is_pinned(); }

bool RawUnified::is_guarded() const noexcept { return core_ != nullptr && core_->is_guarded(); }

bool RawUnified::is_checked() const noexcept { return core_ != nullptr && core_->is_checked(); }

StorageHandle RawUnified::storage_of(Place place) const noexcept {
  return core_ != nullptr ? core_->storage_of(place) : StorageHandle();
}

bool RawUnified::has_copy(Place place) const noexcept {
  return core_ != nullptr && core_->has_copy(place);
}

BufferState RawUnified::state(std::size_t offset, std::size_t bytes) const noexcept {
  if (core_ == nullptr || !is_within(offset, bytes, this->size_bytes())) {
    return BufferState::uninitialized;
  }
  return core_->state({offset_ + offset, offset_ + offset + bytes});
}

std::vector<Place> RawUnified::valid_places(std::size_t offset, std::size_t bytes) const {
  if (core_ == nullptr || !is_within(offset, bytes, this->size_bytes())) return {};
  return core_->valid_places({offset_ + offset, offset_ + offset + bytes});
}

bool RawUnified::is_stale_on(Place place) const noexcept {
  return core_ != nullptr && core_->is_stale_on({offset_, offset_ + size_bytes()}, place);
}

std::vector<RawUnified::Interval> RawUnified::intervals() const {
  if (core_ == nullptr) return {};
  std::vector<Interval> all = core_->intervals({offset_, offset_ + size_bytes()});
  for (Interval& one : all) {
    one.begin -= offset_;
    one.end -= offset_;
  }
  return all;
}

UnifiedStatistics RawUnified::statistics() const noexcept {
  return core_ != nullptr ? core_->statistics() : UnifiedStatistics();
}

std::vector<Transfer> RawUnified::transfers() const {
  return core_ != nullptr ? core_->transfers() : std::vector<Transfer>();
}

Result<void> RawUnified::check() const noexcept {
  return core_ != nullptr ? core_->check() : Result<void>();
}

Result<void> RawUnified::try_compare(CallSite site) const noexcept {
  if (core_ == nullptr) return {};
  return core_->try_compare({offset_, offset_ + size_bytes()}, site);
}

bool RawUnified::overlaps(const RawUnified& other) const noexcept {
  return core_ != nullptr && core_ == other.core_ && offset_ < other.offset_ + other.size_bytes() &&
         other.offset_ < offset_ + size_bytes();
}

LaunchMemory* RawUnified::launch_memory() const noexcept { return core_; }

Result<ByteRange> RawUnified::try_range(std::size_t offset, std::size_t bytes,
                                        CallSite site) const noexcept {
  if (core_ == nullptr) {
    return Failure(ErrorCode::not_allocated,
                   "the unified buffer is empty: it is default-constructed or was moved from. Make "
                   "one first.",
                   site)
        .with("id", std::uint64_t{0});
  }
  const std::size_t own = this->size_bytes();
  if (!is_within(offset, bytes, own)) return core_->outside(offset, bytes, own, site);
  return ByteRange{offset_ + offset, offset_ + offset + bytes};
}

Result<RawUnified> RawUnified::try_slice(std::size_t offset, std::size_t bytes,
                                         CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(offset, bytes, site);
  if (!range) return range.failure();
  RawUnified view(*this);
  view.offset_ = range->begin;
  view.bytes_ = bytes;
  return view;
}

// --- Operations on a range

Result<RawLease> RawUnified::try_host(Access access, LeaseWait wait, CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_open({.range = *range, .access = access, .wait = wait, .site = site});
}

Result<RawLease> RawUnified::try_host_async(CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_open({.range = *range, .is_async = true, .site = site});
}

Result<RawLease> RawUnified::try_device(Access access, StreamRef stream, LeaseWait wait,
                                        CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_open({.range = *range,
                          .access = access,
                          .is_host = false,
                          .stream = stream,
                          .wait = wait,
                          .site = site});
}

Result<RawLease> RawUnified::try_export_host(Access access, CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_open(
      {.range = *range, .access = access, .kind = UnifiedCore::Kind::exported, .site = site});
}

Result<RawLease> RawUnified::try_export_device(Access access, StreamRef stream,
                                               CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_open({.range = *range,
                          .access = access,
                          .kind = UnifiedCore::Kind::exported,
                          .is_host = false,
                          .stream = stream,
                          .site = site});
}

Result<void> RawUnified::try_load(std::size_t offset, void* to, std::size_t bytes,
                                  CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(offset, bytes, site);
  return range ? core_->try_load(*range, to, site) : Result<void>(range.failure());
}

Result<void> RawUnified::try_store(std::size_t offset, const void* from, std::size_t bytes,
                                   CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(offset, bytes, site);
  return range ? core_->try_store(*range, from, site) : Result<void>(range.failure());
}

Result<void> RawUnified::try_fill(const Pattern& pattern, StreamRef stream,
                                  CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  return range ? core_->try_fill(*range, pattern, stream, site) : Result<void>(range.failure());
}

Result<void> RawUnified::try_copy_from(const void* source, std::size_t bytes,
                                       CallSite site) const noexcept {
  if (bytes != this->size_bytes()) {
    return Failure(
               ErrorCode::size_mismatch,
               "{actual} bytes cannot be copied into buffer '{tag}', which has {expected} bytes. "
               "Pass {expected} bytes, or copy into a slice.",
               site)
        .with("expected", this->size_bytes())
        .with("actual", bytes)
        .with("tag", tag().name());
  }
  const Result<RawLease> lease = try_host(Access::discard, LeaseWait::never(), site);
  if (!lease) return lease.failure();
  if (bytes != 0) std::memcpy(lease->address(), source, bytes);
  return {};
}

Result<void> RawUnified::try_copy_to(void* destination, std::size_t bytes,
                                     CallSite site) const noexcept {
  if (bytes != this->size_bytes()) {
    return Failure(ErrorCode::size_mismatch,
                   "buffer '{tag}' has {expected} bytes and cannot be copied to memory of {actual} "
                   "bytes. Pass {expected} bytes, or copy a slice.",
                   site)
        .with("expected", this->size_bytes())
        .with("actual", bytes)
        .with("tag", tag().name());
  }
  const Result<RawLease> lease = try_host(Access::read, LeaseWait::never(), site);
  if (!lease) return lease.failure();
  if (bytes != 0) std::memcpy(destination, lease->address(), bytes);
  return {};
}

Result<void> RawUnified::try_prefetch(StreamRef stream, CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  if (!stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  const Device device = stream.device();
  // A prefetch is not worth writing back the bytes of another buffer.
  return core_->try_prefetch(*range, &device, stream, Eviction::clean, site);
}

Result<void> RawUnified::try_prefetch_host(CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  return core_->try_prefetch(*range, nullptr, {}, Eviction::clean, site);
}

Result<void> RawUnified::try_prefetch_to(Place place, StreamRef stream,
                                         CallSite site) const noexcept {
  if (place.is_host()) return try_prefetch_host(site);
  if (stream.id() && stream.device_id() == place.device_id()) return try_prefetch(stream, site);
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  Device device;
  {
    const DeviceScope scope(place.device_id());
    if (scope) device = scope->handle();
  }
  if (!device.is_open()) {
    return Failure(ErrorCode::invalid_device,
                   "{spec} is not open, so no bytes can be copied to it. Open the device first.",
                   site)
        .with("spec", place.text());
  }
  return core_->try_prefetch(*range, &device, {}, Eviction::clean, site);
}

Result<void> RawUnified::try_sync_to_device(CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  if (!range) return range.failure();
  if (Result<void> queued = core_->try_prefetch(*range, &device(), {}, Eviction::dirty, site);
      !queued) {
    return queued;
  }
  return core_->try_synchronize(site);
}

Result<void> RawUnified::try_mark_dirty(Place place, StreamRef stream,
                                        CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, size_bytes(), site);
  return range ? core_->try_mark_dirty(*range, place, stream, site) : Result<void>(range.failure());
}

Result<void> RawUnified::try_synchronize(CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_synchronize(site) : Result<void>();
}

// --- Operations on the whole buffer

Result<void> RawUnified::try_drop(Place place, Drop what, CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_drop(place, what, site) : Result<void>();
}

Result<void> RawUnified::try_free(CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_free(false, site) : Result<void>();
}

Result<void> RawUnified::try_invalidate(CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_free(true, site) : Result<void>();
}

Result<void> RawUnified::try_resize(std::size_t count, bool keep, StreamRef stream,
                                    CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, 0, site);
  return range ? core_->try_resize(count, keep, stream, site) : Result<void>(range.failure());
}

Result<void> RawUnified::try_set_write_through(std::optional<Place> place,
                                               CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_set_write_through(place, site) : Result<void>();
}

Result<void> RawUnified::try_pin_residency(Place place, bool keeps, CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_pin_residency(place, keeps, site) : Result<void>();
}

void RawUnified::set_unwanted() const noexcept {
  if (core_ != nullptr) core_->set_unwanted();
}

Result<void> RawUnified::try_flush_host(CallSite site) const noexcept {
  return core_ != nullptr ? core_->try_flush_host(site) : Result<void>();
}

Result<RawUnified> RawUnified::try_clone(StreamRef stream, CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, 0, site);
  if (!range) return range.failure();
  return core_->try_clone(stream, site);
}

Result<Buffer> RawUnified::try_release_host(CallSite site) const noexcept {
  const Result<ByteRange> range = try_range(0, 0, site);
  if (!range) return range.failure();
  return core_->try_release_host(site);
}

}  // namespace tern
