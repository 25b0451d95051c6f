// try_use() begins a use on a stream, try_wait_host() makes the host wait before it accesses the
// memory, and try_end_block() decides when and on which stream the memory is freed.

#include "tern/detail/buffer/storage.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "buffer/deferred_frees.hpp"
#include "buffer/memory_users.hpp"
#include "buffer/storage_cold_state.hpp"
#include "core/no_host_memory.hpp"
#include "core/spare_records.hpp"
#include "device/device_state.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

constexpr std::size_t max_alignment = 256 * mib;
constexpr unsigned char poison_byte = 0xDD;
/// Counts nested destructions of storages on this thread's stack.
constexpr unsigned max_nested_ends = 16;

/// Threads reserve ids in small batches, so that they do not contend.
StorageId next_id() noexcept {
  constexpr std::uint64_t at_once = 256;
  static constinit std::atomic<std::uint64_t> taken = 0;
  static constinit thread_local std::uint64_t next = 0, end = 0;
  if (next == end) {
    next = taken.fetch_add(at_once, std::memory_order_relaxed);
    end = next + at_once;
  }
  return {++next};
}

thread_local SpareRecords<sizeof(Storage), alignof(Storage), 64> spare_records;

/// The configured default of checked accesses; -1: not read yet.
constinit std::atomic<signed char> known_checks = -1;

[[gnu::cold, gnu::noinline]] bool read_checks() noexcept {
  try {
    const Result<const Config*> config = try_config();
    const bool is_checked = config && (*config)->checked;
    known_checks.store(is_checked ? 1 : 0, std::memory_order_relaxed);
    return is_checked;
  } catch (const std::bad_alloc&) {
    return false;  // out of memory: the next call tries again
  }
}

inline bool is_checked_by_config() noexcept {
  const signed char known = known_checks.load(std::memory_order_relaxed);
  return known >= 0 ? known == 1 : read_checks();
}

/// Pages must not leave while the host uses them.
inline bool must_be_checked(const Resource& resource) noexcept {
  return resource.is_pausable() && resource.traits().is_host_accessible;
}

Result<void> check_options(std::size_t bytes, const StorageOptions& options) noexcept {
  if (bytes > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "a buffer of {bytes} bytes exceeds the largest possible size. Allocate less.",
                   options.site)
        .with("what", "a buffer")
        .with("bytes", bytes);
  }
  if (options.alignment != 0 &&
      (!is_power_of_two(options.alignment) || options.alignment > max_alignment)) {
    return Failure(ErrorCode::invalid_argument,
                   "an alignment of {value} bytes is not valid. Use a power of two up to {max}.",
                   options.site)
        .with("name", "alignment")
        .with("value", options.alignment)
        .with_bytes("max", max_alignment);
  }
  return {};
}

/// StreamRef::is_usable without the checks that every other call of a stream makes.
bool is_open(StreamRef stream) noexcept {
  const StreamState* const state = DeviceState::state_of(stream);
  return state != nullptr && state->is_open_as(stream.id());
}

/// Like DeviceState::load_words: a resource has just stored the reference.
[[gnu::always_inline]] inline Block load_words(const Block& block) noexcept {
  Block copy = block;
  asm("" : "+r"(copy.address), "+r"(copy.device.value));
  return copy;
}

Failure not_reachable(const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::not_host_accessible,
                 "the host cannot access {kind} memory of '{device}'. Copy it to the host, or use "
                 "a UnifiedBuffer.",
                 site)
      .with("kind", name(storage.kind()))
      .with("device", storage.device().spec());
}

Failure released(StorageId id, CallSite site) noexcept {
  return Failure(ErrorCode::not_allocated,
                 "buffer {id} has no memory: it was released to another owner.", site)
      .with("id", id.value);
}

Failure read_only(const StorageOrigin& origin, CallSite site) noexcept {
  return Failure(ErrorCode::read_only,
                 "{what} is read-only. Copy its bytes to writable memory first.", site)
      .with("what", origin.what());
}

/// Host and device must not use such managed memory at the same time.
bool must_be_idle_for_host(const Storage& storage) noexcept {
  return storage.kind() == MemoryKind::managed &&
         !storage.device().can(Capability::concurrent_managed);
}

/// Returns whether the device has been synchronized since the barrier was taken. 0 is no barrier.
bool has_passed(const Device& device, std::uint64_t barrier) noexcept {
  if (barrier == 0) return true;
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  return !state || state->has_passed(barrier);
}

}  // namespace

StorageOrigin::~StorageOrigin() = default;

Result<void> StorageOrigin::try_read(std::size_t, std::size_t, void*, CallSite site) noexcept {
  return Failure(ErrorCode::unsupported, "{what} is not a file and cannot be read as a file.", site)
      .with("what", what());
}

Result<StorageOrigin::FileRange> StorageOrigin::try_file(std::size_t, std::size_t,
                                                         CallSite site) noexcept {
  return Failure(ErrorCode::unsupported, "{what} has no bytes on a disk.", site)
      .with("what", what());
}

Result<void> StorageOrigin::try_flush(CallSite site) noexcept {
  return Failure(ErrorCode::unsupported,
                 "{what} is not a file and cannot be flushed. Copy its bytes to a file.", site)
      .with("what", what());
}

Storage::Storage(const ResourceHandle& resource, std::uint8_t kind, std::size_t bytes,
                 const StorageOptions& options) noexcept
    : kind_(kind),
      contents_(options.contents),
      tag_(options.tag),
      is_checked_((options.checked ? *options.checked : is_checked_by_config()) ||
                  must_be_checked(*resource)),
      bytes_and_written_(options.contents == Contents::zero ||
                                 options.contents == Contents::unspecified || bytes == 0
                             ? bytes | all_written_bit
                             : bytes),
      resource_(resource),
      id_(next_id()),
      alignment_(options.alignment),
      first_stream_(options.stream),
      site_(options.site) {}

// The path of arrays is inlined into two functions, one for the beginning and one for the end.
[[gnu::always_inline]] inline Storage::Storage(const ResourceHandle& resource, const Block& block,
                                               std::size_t bytes,
                                               const StorageOptions& options) noexcept
    : phase_(ready),
      kind_(unknown_kind),
      contents_(options.contents),
      tag_(options.tag),
      is_checked_((options.checked ? *options.checked : is_checked_by_config()) ||
                  must_be_checked(*resource)),
      bytes_and_written_(options.contents == Contents::unspecified ? bytes | all_written_bit
                                                                   : bytes),
      device_address_(block.address),
      host_address_(block.address),
      resource_(resource),
      id_(next_id()),
      memory_bytes_(block.bytes),
      block_(block),
      alignment_(options.alignment),
      first_stream_(options.stream),
      site_(options.site) {
  if (is_open(first_stream_)) {
    uses_.begin_with(first_stream_,
                     {first_stream_.id(), DeviceState::state_of(first_stream_)->promise_next()});
  }
}

[[gnu::always_inline]] inline Storage::Storage(const Device& device, StorageOrigin* origin,
                                               bool is_part, MemoryKind kind, std::size_t bytes,
                                               const StorageOptions& options) noexcept
    : kind_(static_cast<std::uint8_t>(kind)),
      contents_(options.contents),
      tag_(options.tag),
      is_checked_(options.checked ? *options.checked : is_checked_by_config()),
      bytes_and_written_(bytes | all_written_bit),
      id_(next_id()),
      alignment_(options.alignment),
      first_stream_(options.stream),
      site_(options.site),
      foreign_(origin, is_part, device) {}

inline Storage::Foreign::~Foreign() {
  if (!is_part) delete origin;
}

[[gnu::always_inline]] inline Storage::~Storage() {
  if (ColdState* const cold = this->cold()) {
    stop_being_found();
    delete cold;
  }
  if (!resource_) foreign_.~Foreign();
}

[[gnu::always_inline]] inline void Storage::destroy() noexcept {
  if (resource_ || !foreign_.is_part) {
    delete this;
    return;
  }
  StorageOrigin& origin = *foreign_.origin;
  // The origin may call the owner of the memory, who may still need the device.
  const Device device = std::move(foreign_.device);
  this->~Storage();
  origin.drop_part();
}

const Device& Storage::device() const noexcept {
  return resource_ ? resource_->device() : foreign_.device;
}

StorageOrigin* Storage::origin() const noexcept { return resource_ ? nullptr : foreign_.origin; }

[[gnu::always_inline]] inline void* Storage::operator new(std::size_t,
                                                          const std::nothrow_t&) noexcept {
  return spare_records.try_take();
}

[[gnu::always_inline]] inline void Storage::operator delete(void* record) noexcept {
  spare_records.give(record);
}

void Storage::operator delete(void* record, const std::nothrow_t&) noexcept {
  operator delete(record);
}

MemoryKind Storage::find_kind() const noexcept {
  const MemoryKind kind =
      storage_kind_of(resource_->traits().kind, resource_->device().info().is_host);
  kind_.store(static_cast<std::uint8_t>(kind), std::memory_order_relaxed);
  return kind;
}

Result<StorageHandle> Storage::try_make_from(const ResourceHandle& resource, std::size_t bytes,
                                             const StorageOptions& options) noexcept {
  if (Result<void> sound = check_options(bytes, options); !sound) return sound.failure();
  if (options.stream.id() && options.stream.device_id() != resource->device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "the first use of a buffer on '{a}' cannot be on a stream of device {b}. Use a "
                   "stream of its own device.",
                   options.site)
        .with("a", resource->device().spec())
        .with("b", options.stream.device_id().value);
  }
  if (DeferredFrees::has_any()) DeferredFrees::poll_some();
  Storage* const storage = new (std::nothrow) Storage(resource, unknown_kind, bytes, options);
  if (storage == nullptr) return no_host_memory("a buffer", options.site);
  return StorageHandle(storage);
}

Result<StorageHandle> Storage::try_make(const Device& device, std::size_t bytes,
                                        const StorageOptions& options) noexcept {
  if (options.reservation != nullptr) {
    return Failure(ErrorCode::invalid_argument,
                   "a buffer of {requested} cannot be charged to a reservation: its memory is "
                   "allocated at its first use, when the reservation may have ended. Use an Array.",
                   options.site)
        .with("name", "reservation")
        .with_bytes("requested", bytes);
  }
  if (options.resource) {
    if (device.is_open() && options.resource->device() != device) {
      return Failure(
                 ErrorCode::device_mismatch,
                 "a resource of '{a}' cannot allocate memory of '{b}'. Use a resource of '{b}'.",
                 options.site)
          .with("a", options.resource->device().spec())
          .with("b", device.spec());
    }
    return try_make_from(options.resource, bytes, options);
  }
  const Result<ResourceHandle> resource = try_default_resource(device, options.kind);
  if (!resource) return Failure(resource.failure()).at(options.site);
  return try_make_from(*resource, bytes, options);
}

Result<StorageHandle> Storage::try_make(const Device& device, std::size_t bytes, MemoryKind kind,
                                        std::unique_ptr<StorageOrigin> origin,
                                        const StorageOptions& options) noexcept {
  if (Result<void> sound = check_options(bytes, options); !sound) return sound.failure();
  if (DeferredFrees::has_any()) DeferredFrees::poll_some();
  Storage* const storage =
      new (std::nothrow) Storage(device, origin.get(), false, kind, bytes, options);
  if (storage == nullptr) return no_host_memory("a buffer", options.site);
  static_cast<void>(origin.release());
  return StorageHandle(storage);
}

StorageHandle Storage::make_part(void* record, const Part& part,
                                 const StorageOptions& options) noexcept {
  Storage* const storage = ::new (record)
      Storage(part.device, &part.origin, true, part.kind, part.memory.bytes, options);
  storage->set_memory(part.memory);
  storage->uses_.begin_with(part.stream, part.ready);
  if (part.owner_orders_writes && part.ready) storage->foreign_.owners_uses = 1;
  storage->phase_.store(ready, std::memory_order_relaxed);
  return StorageHandle(storage);
}

namespace {

/// Returns whether waiting for exported uses could free memory.
[[gnu::cold, gnu::noinline]] bool could_be_reclaimed(const Failure& failure) noexcept {
  return (failure.code() == ErrorCode::out_of_memory ||
          failure.code() == ErrorCode::out_of_budget) &&
         DeferredFrees::has_any() && DeferredFrees::device_of_exported().is_open();
}

}  // namespace

[[gnu::always_inline]] inline Storage* Storage::make_allocated(const ResourceHandle& resource,
                                                               std::size_t bytes,
                                                               const StorageOptions& options,
                                                               Result<void>& why) noexcept {
  if (DeferredFrees::has_any()) DeferredFrees::poll_some();
  const StreamRef stream = DeviceState::load_words(options.stream);
  // The resource checks the rest of the request.
  const Result<Block> block = resource->try_allocate({.bytes = bytes,
                                                      .alignment = options.alignment,
                                                      .stream = stream,
                                                      .tag = options.tag,
                                                      .site = options.site});
  if (!block) {
    if (could_be_reclaimed(block.failure())) {
      // The slow path reclaims deferred frees and retries.
      return make_prepared(resource, bytes, options, why);
    }
    why = Result<void>(block.failure());
    return nullptr;
  }
  Storage* const storage = new (std::nothrow) Storage(resource, load_words(*block), bytes, options);
  if (storage == nullptr) {
    resource->deallocate(*block, options.stream, options.site);
    why = no_host_memory("a buffer", options.site);
    return nullptr;
  }
  if (resource->is_pausable()) [[unlikely]] {
    why = storage->try_be_found();
    if (!why) {
      // Ends the storage, and thereby frees the block.
      static_cast<void>(StorageHandle(storage));
      return nullptr;
    }
  }
  if (options.contents == Contents::unspecified) {
    storage->note_unspecified(0, bytes);
  }
  return storage;
}

Storage* Storage::make_prepared(const ResourceHandle& resource, std::size_t bytes,
                                const StorageOptions& options, Result<void>& why) noexcept {
  if (!resource) {
    why = Failure(ErrorCode::invalid_argument,
                  "memory of {requested} cannot be allocated without a resource. Pass a resource.",
                  options.site)
              .with("name", "resource")
              .with_bytes("requested", bytes);
    return nullptr;
  }
  Result<StorageHandle> storage = try_make_from(resource, bytes, options);
  if (!storage) {
    why = Result<void>(storage.failure());
    return nullptr;
  }
  ColdState* const cold = options.reservation != nullptr ? (*storage)->make_cold() : nullptr;
  if (options.reservation != nullptr && cold == nullptr) {
    why = no_host_memory("an array", options.site);
    return nullptr;
  }
  if (cold != nullptr) cold->reservation = options.reservation;
  const Result<void> there = (*storage)->try_ensure(options.stream, options.site);
  if (cold != nullptr) cold->reservation = nullptr;
  if (!there) {
    why = there;
    return nullptr;
  }
  return std::exchange(storage->storage_, nullptr);
}

namespace {

/// The common case: nothing to fill, memory to allocate, and no reservation.
bool is_plain(const ResourceHandle& resource, std::size_t bytes,
              const StorageOptions& options) noexcept {
  return resource && bytes != 0 && options.reservation == nullptr &&
         (options.contents == Contents::uninitialized || options.contents == Contents::unspecified);
}

}  // namespace

Result<StorageHandle> Storage::try_allocate(const ResourceHandle& resource, std::size_t bytes,
                                            const StorageOptions& options) noexcept {
  Result<void> why;
  Storage* const storage = is_plain(resource, bytes, options)
                               ? make_allocated(resource, bytes, options, why)
                               : make_prepared(resource, bytes, options, why);
  if (storage == nullptr) return why.failure();
  return StorageHandle(storage);
}

StorageHandle Storage::allocate(const ResourceHandle& resource, std::size_t bytes,
                                const StorageOptions& options) {
  Result<void> why;
  Storage* const storage = is_plain(resource, bytes, options)
                               ? make_allocated(resource, bytes, options, why)
                               : make_prepared(resource, bytes, options, why);
  if (storage == nullptr) raise(why.failure());
  return StorageHandle(storage);
}

Reach Storage::reach() const noexcept {
  Reach reach = reach_of(kind(), device().info().capabilities);
  if (is_read_only()) {
    reach.host_writes = reach.kernels_write = false;
  } else if (kind() == MemoryKind::file) {
    reach.host_writes = true;
  }
  return reach;
}

// --- Memory

Result<void> Storage::try_ensure(StreamRef first_user, CallSite site) noexcept {
  for (;;) {
    std::uint32_t phase = phase_.load(std::memory_order_acquire);
    if (phase == ready) return {};
    if (phase == given_away) return released(id_, site);
    if (phase == busy) {
      phase_.wait(busy, std::memory_order_acquire);
      continue;
    }
    if (!phase_.compare_exchange_strong(phase, busy, std::memory_order_acquire)) continue;
    Result<void> taken = take_memory(first_user, site);
    phase_.store(taken ? ready : empty, std::memory_order_release);
    phase_.notify_all();
    return taken;
  }
}

void Storage::set_memory(const StorageOrigin::Memory& memory) noexcept {
  device_address_ = memory.device_address;
  host_address_ = memory.host_address;
  memory_bytes_ = memory.bytes;
}

Result<void> Storage::take_memory(StreamRef first_user, CallSite site) noexcept {
  if (StorageOrigin* const origin = this->origin()) {
    Result<StorageOrigin::Memory> memory = origin->try_begin(site);
    if (!memory) return memory.failure();
    set_memory(*memory);
    return {};
  }
  if (bytes() == 0) return {};
  Result<void> taken = take_block_for(first_user, site);
  if (!taken && could_be_reclaimed(taken.failure()) && try_reclaim_exported()) {
    taken = take_block_for(first_user, site);
  }
  return taken;
}

Result<void> Storage::take_block_for(StreamRef first_user, CallSite site) noexcept {
  const Device& device = resource_->device();
  const bool is_own = first_user.id() && first_user.device_id() == device.id();
  // A stream of another device may be the first to read the memory, but not the first to own it;
  // the same holds for the library's own copies.
  const auto is_for_others = [&] {
    const Result<StreamRef> copies = device.try_copy_stream();
    return copies && *copies == first_user;
  };
  if (is_own && (!first_stream_.id() || first_stream_ == first_user || !is_for_others())) {
    return take_block(first_user, site);
  }
  // This caller does not know the stream that was named before, whose owner may end it in another
  // thread.
  const StreamPin stay(first_stream_);
  const bool is_there = stay && first_stream_.is_usable();
  return take_block(is_there ? first_stream_ : is_own ? first_user : StreamRef{}, site);
}

Result<void> Storage::take_block(StreamRef stream, CallSite site) noexcept {
  const ColdState* const cold = this->cold();
  const Result<Block> block =
      resource_->try_allocate({.bytes = bytes(),
                               .alignment = alignment_,
                               .stream = stream,
                               .tag = tag_,
                               .site = site,
                               .reservation = cold != nullptr ? cold->reservation : nullptr});
  if (!block) return block.failure();
  block_ = *block;
  set_memory({block->address, block->address, block->bytes});
  // Other threads may already be waiting for uses.
  Result<void> put = uses_.try_note(stream, stream.next_mark(), Access::discard);
  if (put && resource_->is_pausable()) put = try_be_found();
  if (put && (contents_ == Contents::zero || contents_ == Contents::poison)) {
    put = put_contents(stream, site);
  } else if (put) {
    note_unspecified(0, bytes());
  }
  if (!put) {
    stop_being_found();
    resource_->deallocate(block_, stream, site);
    block_ = {};
    set_memory({});
  }
  return put;
}

void Storage::note_unspecified(std::size_t offset, std::size_t bytes) const noexcept {
  if (contents_ != Contents::unspecified) return;
  // For a checker, the note is a host access.
  if (device().info().wants_notes && must_be_idle_for_host(*this) && !device().try_synchronize()) {
    return;
  }
  // Only a checker uses this, and it cannot fail: the bytes count as written.
  static_cast<void>(device().try_note_host_access(static_cast<std::byte*>(device_address_) + offset,
                                                  bytes, Access::discard, site_));
}

Result<void> Storage::put_contents(StreamRef first_user, CallSite site) noexcept {
  const unsigned char byte = contents_ == Contents::zero ? 0 : poison_byte;
  const std::size_t bytes = this->bytes();
  // The host fills memory that it will use itself. Other memory is filled on its device.
  if (!first_user.id() && reach().host_writes && !must_be_idle_for_host(*this)) {
    if (Result<void> judged =
            device().try_note_host_access(host_address_, bytes, Access::discard, site);
        !judged) {
      return judged;
    }
    std::memset(host_address_, byte, bytes);
    return {};
  }
  const StreamRef stream = first_user.id() ? first_user : device().default_stream();
  Pattern pattern;
  pattern.bytes[0] = std::byte{byte};
  if (Result<void> filled = stream.try_fill_bytes(device_address_, bytes, pattern, site); !filled) {
    return filled;
  }
  return uses_.try_note(stream, stream.next_mark(), Access::discard);
}

Result<Block> Storage::try_block() const noexcept {
  if (is_allocated()) return block_;
  return Failure(ErrorCode::not_allocated,
                 "buffer {id} has no memory yet: memory is allocated at the first use. Use the "
                 "buffer, or call ensure_allocated().")
      .with("id", id_.value);
}

Result<StorageOrigin::Memory> Storage::try_memory() const noexcept {
  if (is_allocated()) {
    return StorageOrigin::Memory{device_address_, host_address_, memory_bytes_};
  }
  return try_block().failure();
}

bool Storage::try_grow(std::size_t end, std::size_t bytes) noexcept {
  if (!is_allocated() || !resource_ || bytes > block_.bytes) return false;
  ColdState* const cold = make_cold();
  if (cold == nullptr) return false;
  const std::lock_guard lock(cold->mutex);
  const std::size_t before = this->bytes();
  if (end != before && shares() != 1) return false;
  if (bytes <= before) return true;
  return !cold->has_size_owner && grow_to(*cold, bytes);
}

bool Storage::grow_to(ColdState& cold, std::size_t bytes) noexcept {
  const std::size_t before = this->bytes();
  std::size_t word = bytes_and_written_.load(std::memory_order_acquire);
  std::size_t grown = 0;
  do {
    grown = bytes;
    if ((word & all_written_bit) == 0) continue;
    if (contents_ == Contents::unspecified) {
      grown |= all_written_bit;
      continue;
    }
    // New bytes are unwritten.
    try {
      cold.written.add(0, before);
    } catch (const std::bad_alloc&) {
      return false;
    }
  } while (!bytes_and_written_.compare_exchange_weak(word, grown, std::memory_order_acq_rel));
  note_unspecified(before, bytes - before);
  return true;
}

Result<void> Storage::try_extend(std::size_t bytes, CallSite site) noexcept {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("a larger array", site);
  const std::lock_guard lock(cold->mutex);
  cold->has_size_owner = true;
  if (!grow_to(*cold, bytes)) return no_host_memory("a larger array", site);
  return {};
}

Result<void> Storage::try_cut(std::size_t bytes, CallSite site) noexcept try {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("a smaller array", site);
  const std::lock_guard lock(cold->mutex);
  cold->has_size_owner = true;
  // Even if all bytes are written: the list may still have ranges from before they were.
  cold->written.remove(bytes, this->bytes());
  std::size_t word = bytes_and_written_.load(std::memory_order_acquire);
  std::size_t cut = 0;
  do {
    const bool is_written = (word & all_written_bit) != 0 || cold->written.has_all(bytes);
    cut = is_written ? bytes | all_written_bit : bytes;
  } while (!bytes_and_written_.compare_exchange_weak(word, cut, std::memory_order_acq_rel));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a smaller array", site);
}

Result<void> Storage::check_exports_done(CallSite site) const noexcept {
  if (are_exports_done()) return {};
  return Failure(ErrorCode::access_conflict,
                 "buffer {id} cannot free memory: it was exported, and work on '{device}' may "
                 "still use it. Call synchronize() of the device first.",
                 site)
      .with("id", id_.value)
      .with("device", device().spec());
}

// --- Use

Result<void> Storage::check_range(std::size_t offset, std::size_t bytes,
                                  CallSite site) const noexcept {
  if (is_within(offset, bytes, this->bytes())) return {};
  return Failure(ErrorCode::invalid_view,
                 "{size} bytes at offset {offset} exceed a storage of {extent} bytes.", site)
      .with("offset", offset)
      .with("size", bytes)
      .with("extent", this->bytes());
}

Result<void> Storage::check_kernels_reach(Access access, CallSite site) const noexcept {
  // Device memory of a resource is by far the most common case.
  if (resource_ && kind() != MemoryKind::host) return {};
  const Reach reach = this->reach();
  if (reach.kernels_read && (reach.kernels_write || !is_write(access))) return {};
  if (is_write(access) && is_read_only()) return read_only(*origin(), site);
  return Failure(ErrorCode::unsupported,
                 "work on a device cannot access {what}. Copy its bytes to the device first.", site)
      .with("what", origin() ? origin()->what() : name(kind()));
}

Result<void> Storage::check_use(StreamRef stream, Access access, std::size_t offset,
                                std::size_t bytes, CallSite site, Streams streams) noexcept {
  if (!is_within(offset, bytes, this->bytes())) return check_range(offset, bytes, site);
  if (is_write(access) && is_read_only()) return read_only(*origin(), site);
  if (streams == Streams::own_device && kind() == MemoryKind::file) {
    return Failure(ErrorCode::unsupported,
                   "work on a device cannot access {what}. Copy its bytes to the device first.",
                   site)
        .with("what", origin()->what());
  }
  if (streams == Streams::own_device && stream.device_id() != device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "buffer {id} on '{a}' cannot be used by a stream of '{b}'. Copy it to '{b}', or "
                   "use a stream of '{a}'.",
                   site)
        .with("id", id_.value)
        .with("a", device().spec())
        .with("b", stream.is_usable() ? std::string_view(stream.device().spec()) : "no device");
  }
  if (!stream.is_usable()) {
    // The stream returns the error message.
    return Failure(stream.try_native().failure()).at(site);
  }
  if (access == Access::read && !is_all_written()) {
    if (Result<void> written = check_written(offset, bytes, site); !written) return written;
  }
  if (is_checked_) {
    // An open host access is not ordered with this use.
    const Result<std::uint64_t> ticket = try_begin_host_access(access, offset, bytes, site);
    if (!ticket) return ticket.failure();
    end_host_access(*ticket);
  }
  if (phase_.load(std::memory_order_relaxed) == given_away) return released(id_, site);
  return {};
}

Result<StorageUse> Storage::try_use(StreamRef stream, Access access, std::size_t offset,
                                    std::size_t bytes, CallSite site, Streams streams) noexcept {
  if (Result<void> sound = check_use(stream, access, offset, bytes, site, streams); !sound) {
    return sound.failure();
  }
  if (Result<void> there = try_ensure(stream, site); !there) return there.failure();
  Result<UseRecord::Ticket> ticket = uses_.try_begin(stream, access, site);
  if (!ticket) return ticket.failure();
  StorageUse use;
  retain();
  use.storage_ = StorageHandle(this);
  use.stream_ = stream;
  use.ticket_ = *ticket;
  use.address_ = device_address_;
  use.offset_ = offset;
  use.bytes_ = bytes;
  use.access_ = access;
  return use;
}

Result<void> Storage::try_wait_host(Access access, std::size_t offset, std::size_t bytes,
                                    CallSite site) noexcept {
  if (Result<void> inside = check_range(offset, bytes, site); !inside) return inside;
  const Reach reach = this->reach();
  if (!reach.host_reads) return not_reachable(*this, site);
  if (is_write(access) && is_read_only()) return read_only(*origin(), site);
  if (is_write(access) && !reach.host_writes) return not_reachable(*this, site);
  if (access == Access::read) {
    if (Result<void> written = check_written(offset, bytes, site); !written) return written;
  }
  if (bytes == 0) return {};
  if (Result<void> there = try_ensure({}, site); !there) return there;
  if (resource_ && resource_->is_pausable()) {
    // The access has begun, so either this check or a pause that begins now notices.
    if (Result<void> resumed = uses_.check_not_paused(site); !resumed) return resumed;
  }
  if (Result<void> done = uses_.try_wait(access, site); !done)
    return Failure(done.failure()).at(site);
  if (access != Access::discard) {
    if (Result<void> arrived = check_arrived(offset, bytes, site); !arrived) return arrived;
  }
  if (must_be_idle_for_host(*this)) {
    if (Result<void> idle = device().try_synchronize(); !idle) {
      return Failure(idle.failure()).at(site);
    }
  }
  if (StorageOrigin* const origin = this->origin()) {
    if (Result<void> usable = origin->try_access(site); !usable) return usable;
    if (kind() == MemoryKind::file) return {};
  }
  return device().try_note_host_access(static_cast<std::byte*>(host_address_) + offset, bytes,
                                       access, site);
}

// --- Destruction

Result<void> Storage::try_queue_waits(StreamRef stream, CallSite site) noexcept {
  std::array<UseRecord::Entry, 32> some;
  const std::size_t count = uses_.list(some);
  std::unique_ptr<UseRecord::Entry[]> many;
  std::span<const UseRecord::Entry> all(some.data(), std::min(count, some.size()));
  if (count > some.size()) {
    many.reset(new (std::nothrow) UseRecord::Entry[count]);
    if (!many) return no_host_memory("freeing a buffer", site);
    static_cast<void>(uses_.list({many.get(), count}));
    all = {many.get(), count};
  }
  for (const UseRecord::Entry& entry : all) {
    if (entry.stream == stream) continue;
    if (Result<void> queued = stream.try_wait(entry.mark(), site); queued) continue;
    // Uses that no stream can wait for may already be done.
    const Result<bool> done = Device::try_is_done(entry.mark());
    if (!done) return done.failure();
    if (!*done) {
      return Failure(ErrorCode::device_mismatch,
                     "the free of buffer {id} cannot be queued after work of other devices yet.",
                     site)
          .with("id", id_.value);
    }
  }
  return {};
}

bool Storage::are_uses_done() const noexcept {
  const Result<bool> done = uses_.try_is_ready(Access::discard);
  // A lost device does no more work.
  return done ? *done : done.failure().code() == ErrorCode::device_lost;
}

[[gnu::cold, gnu::noinline]] bool Storage::try_give_again(StreamRef stream) noexcept {
  {
    const StreamPin stay(stream);
    const Result<bool> is_captured = stay ? stream.try_is_capturing() : Result<bool>(false);
    if (is_captured && *is_captured) return false;
  }
  // If the free fails, the resource counts it and retries it later.
  resource_->deallocate(block_, stream, site_);
  return true;
}

[[gnu::always_inline]] inline bool Storage::try_give(StreamRef stream) noexcept {
  if (!resource_->try_deallocate(block_, stream, site_)) [[unlikely]] {
    return try_give_again(stream);
  }
  return true;
}

bool Storage::try_end_block() noexcept {
  if (!block_) return true;
  // This is the last reference.
  const std::span<const UseRecord::Entry> uses = uses_.unshared();
  if (uses.empty()) return try_give({});
  const DeviceId own = resource_->device().id();
  // An ended stream cannot free without making the host wait.
  const auto can_free = [own](StreamRef stream) {
    return stream.device_id() == own && stream.is_usable();
  };
  // Uses of the stream itself are already in its order.
  if (uses.size() == 1 && can_free(uses[0].stream)) return try_give(uses[0].stream);
  StreamRef stream = resource_->device().default_stream();
  for (const UseRecord::Entry& use : uses) {
    if (can_free(use.stream)) stream = use.stream;
  }
  if (first_stream_.is_usable()) stream = first_stream_;
  Result<void> queued;
  {
    // The owner may end the stream in another thread; its last mark then follows the waits.
    const StreamPin stay(stream);
    if (!stay) stream = resource_->device().default_stream();
    queued = try_queue_waits(stream, site_);
    static_cast<void>(stream.next_mark());
  }
  if (!queued && !are_uses_done()) return false;
  return try_give(stream);
}

[[gnu::always_inline]] inline bool Storage::try_end_origin() noexcept {
  // This is the last reference.
  const bool was_used = std::ranges::any_of(uses_.unshared(), [this](const UseRecord::Entry& use) {
    return use.version > foreign_.owners_uses;
  });
  if (was_used && !try_end_uses()) return false;
  return foreign_.is_part || foreign_.origin->try_end();
}

bool Storage::try_end_uses() noexcept {
  const StreamRef stream = foreign_.origin->end_stream();
  if (const StreamPin stay(stream); stay && !foreign_.is_end_queued) {
    // After a failure, try again until the uses are done and there is nothing to wait for.
    foreign_.is_end_queued = bool(try_queue_waits(stream, site_));
  }
  return are_uses_done();
}

std::optional<std::size_t> Storage::try_begin_export() noexcept {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return std::nullopt;
  const std::lock_guard lock(cold->exports_lock);
  if (cold->exports++ != 0) return 0;
  cold->exported_bytes = bytes();
  return cold->exported_bytes;
}

std::size_t Storage::end_export() noexcept {
  ColdState& cold = *this->cold();
  if (kind() != MemoryKind::host) {
    // The storage holds a handle of its device, so the device is open and need not be looked up.
    const std::shared_ptr<DeviceState>& device = DeviceState::of(this->device());
    const std::uint64_t next = device ? device->next_barrier() : 0;
    std::uint64_t barrier = cold.barrier.load(std::memory_order_relaxed);
    while (barrier < next &&
           !cold.barrier.compare_exchange_weak(barrier, next, std::memory_order_relaxed)) {
    }
  }
  const std::lock_guard lock(cold.exports_lock);
  return --cold.exports == 0 ? cold.exported_bytes : 0;
}

bool Storage::are_exports_done() const noexcept {
  const ColdState* const cold = this->cold();
  return !cold || has_passed(device(), cold->barrier.load(std::memory_order_relaxed));
}

void Storage::leave_readiness_unstated() noexcept {
  const std::shared_ptr<DeviceState>& device = DeviceState::of(this->device());
  if (device) foreign_.ready_barrier.store(device->next_barrier(), std::memory_order_relaxed);
}

void Storage::note_readiness_stated() noexcept {
  if (!resource_) foreign_.ready_barrier.store(0, std::memory_order_release);
}

bool Storage::is_import_ready() const noexcept {
  return resource_ || has_passed(device(), foreign_.ready_barrier.load(std::memory_order_acquire));
}

inline bool Storage::try_end() noexcept {
  if (phase_.load(std::memory_order_acquire) == given_away) return true;
  if (!are_exports_done()) return false;
  return resource_ ? try_end_block() : try_end_origin();
}

// Not inline: the fast path of end() should need few registers.
[[gnu::noinline]] void Storage::end_now() noexcept {
  if (try_end()) {
    destroy();
  } else {
    DeferredFrees::keep(this);
  }
}

void Storage::end() noexcept {
  if (!resource_) [[unlikely]] {
    end_foreign();
    return;
  }
  if (cold() != nullptr) {
    if (cold()->can_be_paused) MemoryUsers::begin_end(*this, device_address_);
    if (phase_.load(std::memory_order_relaxed) == ready) take_advice_back();
  }
  // The most common case: only the first stream has used the storage.
  if (const std::span<const UseRecord::Entry> uses = uses_.unshared();
      uses.size() == 1 && uses[0].stream == first_stream_ && block_ && cold() == nullptr &&
      is_open(first_stream_) && phase_.load(std::memory_order_relaxed) == ready) {
    if (!try_give(first_stream_)) [[unlikely]] {
      DeferredFrees::keep(this);
      return;
    }
    delete this;
    return;
  }
  end_now();
}

void Storage::end_foreign() noexcept {
  // Releasing an owner may destroy another storage, and so on. Such a chain is destroyed
  // iteratively and not recursively.
  struct Chain {
    unsigned depth = 0;
    Storage* later = nullptr;
  };
  static constinit thread_local Chain chain;
  Chain& own = chain;
  if (own.depth == max_nested_ends) {
    next_ = std::exchange(own.later, this);
    return;
  }
  for (Storage* next = this; next != nullptr;) {
    ++own.depth;
    if (next->try_end()) {
      next->destroy();
    } else {
      DeferredFrees::keep(next);
    }
    --own.depth;
    next = own.depth == 0 ? own.later : nullptr;
    if (next != nullptr) own.later = next->next_;
  }
}

Result<Block> Storage::try_release_block(StreamRef stream, CallSite site) noexcept {
  if (shares() != 1) {
    return Failure(ErrorCode::access_conflict,
                   "buffer {id} cannot be released: {handles} handles and views share it. Destroy "
                   "the others first.",
                   site)
        .with("id", id_.value)
        .with("handles", shares());
  }
  if (!resource_) {
    return Failure(ErrorCode::unsupported,
                   "{what} cannot be released, because no resource allocated it.", site)
        .with("what", origin()->what());
  }
  if (Result<void> there = uses_.check_not_paused(site); !there) return there.failure();
  if (!are_exports_done()) {
    // The consumer's uses are unknown to every stream, and with a stream the host does not wait.
    if (stream.id()) {
      return Failure(ErrorCode::access_conflict,
                     "buffer {id} cannot be released: it was exported, and work on '{device}' may "
                     "still use it. Call synchronize() of the device first.",
                     site)
          .with("id", id_.value)
          .with("device", device().spec());
    }
    if (Result<void> waited = device().try_synchronize();
        !waited && waited.failure().code() != ErrorCode::device_lost) {
      return Failure(waited.failure()).at(site);
    }
  }
  if (Result<void> there = try_ensure(stream, site); !there) return there.failure();
  if (stream.id()) {
    if (Result<void> queued = try_queue_waits(stream, site); !queued) return queued.failure();
  } else if (Result<void> done = uses_.try_wait(Access::discard); !done) {
    return Failure(done.failure()).at(site);
  }
  phase_.store(given_away, std::memory_order_release);
  if (ColdState* const cold = this->cold(); cold != nullptr && cold->can_be_paused) {
    MemoryUsers::release(*this, device_address_);
    cold->can_be_paused = false;
  }
  return block_;
}

// --- StorageUse

StorageUse::StorageUse(StorageUse&& other) noexcept { *this = std::move(other); }

StorageUse& StorageUse::operator=(StorageUse&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(stream_, other.stream_);
  std::swap(ticket_, other.ticket_);
  std::swap(address_, other.address_);
  std::swap(offset_, other.offset_);
  std::swap(bytes_, other.bytes_);
  std::swap(access_, other.access_);
  return *this;
}

StorageUse::~StorageUse() {
  if (storage_) storage_->uses_.cancel(ticket_);
}

void StorageUse::end_on(StreamRef stream) noexcept {
  if (!storage_) return;
  storage_->uses_.end(ticket_, stream, stream.next_mark(), access_);
  if (is_write(access_)) storage_->note_written(offset_, bytes_);
  storage_ = {};
}

void StorageUse::end_deferred() noexcept {
  if (!storage_) return;
  storage_->uses_.end(ticket_, stream_, {}, access_);
  if (is_write(access_)) storage_->note_written(offset_, bytes_);
  storage_ = {};
}

}  // namespace tern
