// The untyped functions behind GrowingArray<T>, and the origin of its memory.

#include "tern/buffer/growing_array.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "buffer/copy_route.hpp"
#include "core/no_host_memory.hpp"
#include "device/captures.hpp"
#include "device/device_state.hpp"
#include "memory/address_range.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

/// The default reservation leaves as many addresses to others. It is halved for that, but not below
/// this size.
constexpr std::size_t min_default_bytes = 64 * mib;

/// The memory of a growing array: all addresses of its range, of which the storage uses the first.
class GrowingOrigin final : public StorageOrigin {
 public:
  GrowingOrigin(AddressRange&& range, bool host_reads) noexcept
      : range_(std::move(range)), host_reads_(host_reads) {}

  [[nodiscard]] AddressRange& range() noexcept { return range_; }
  [[nodiscard]] const char* what() const noexcept override { return "a growing array"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override {
    return Memory{range_.address(), host_reads_ ? range_.address() : nullptr,
                  range_.reserved_bytes()};
  }
  [[nodiscard]] bool try_end() noexcept override { return range_.try_end(); }

 private:
  AddressRange range_;
  const bool host_reads_;
};

[[gnu::cold]] Failure too_many(std::size_t count, std::size_t element_bytes,
                               CallSite site) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "{count} elements of {width} bytes overflow a 64-bit size. Add fewer elements.",
                 site)
      .with("what", "a growing array")
      .with("count", count)
      .with("width", element_bytes);
}

/// Returns whether the device has as many addresses free.
bool has_addresses(const Device& device, std::size_t bytes) noexcept {
  const Result<void*> others = device.try_reserve(bytes);
  return others && device.try_unreserve(*others, bytes);
}

Result<AddressRange> try_reserve_addresses(const Device& device,
                                           const GrowingOptions& options) noexcept {
  const AddressRangeOptions charged = {.budget = options.budget, .tag = options.tag};
  if (options.reserved_bytes != 0) {
    return AddressRange::try_reserve(device, options.reserved_bytes, charged, options.site);
  }
  const Result<MemoryInfo> memory = device.try_memory();
  if (!memory) return Failure(memory.failure()).at(options.site);
  for (std::size_t bytes = std::max(memory->total_bytes, min_default_bytes);; bytes /= 2) {
    Result<AddressRange> range = AddressRange::try_reserve(device, bytes, charged, options.site);
    const bool is_last = bytes / 2 < min_default_bytes;
    if (is_last || (!range && range.failure().code() != ErrorCode::out_of_memory)) return range;
    // The pool and other arrays need addresses, too.
    if (range && has_addresses(device, range->reserved_bytes())) return range;
  }
}

/// Copies the written parts of a storage.
Result<void> try_copy_written(const StorageHandle& to, const StorageHandle& from, StreamRef stream,
                              CallSite site) noexcept try {
  const Result<std::vector<ByteRange>> written = from->try_written_ranges(0, from->bytes());
  if (!written) return Failure(written.failure()).at(site);
  for (const ByteRange& range : *written) {
    const Shape shape{range.end - range.begin};
    const Result<Mark> copied =
        try_copy(Buffer::try_over(to, range.begin, shape, DType::byte).value(),
                 Buffer::try_over(from, range.begin, shape, DType::byte).value(), stream, site);
    if (!copied) return copied.failure();
  }
  return {};
} catch (const Error& error) {
  return Failure(error.failure()).at(site);
}

}  // namespace

// --- Making

Result<RawGrowing> RawGrowing::try_make(const Device& device, std::size_t element_bytes,
                                        const GrowingOptions& options) noexcept try {
  const CallSite site = options.site;
  RawGrowing made;
  made.element_bytes_ = element_bytes;
  made.limit_bytes_ = options.reserved_bytes != 0 ? options.reserved_bytes : max_request_bytes;
  StorageOptions storage{.tag = options.tag, .checked = options.checked, .site = site};
  if (!device.can(Capability::virtual_memory)) {
    const Result<ResourceHandle> resource = try_default_resource(device);
    if (!resource) return Failure(resource.failure()).at(site);
    storage.resource =
        options.budget ? std::make_shared<BudgetResource>(*resource, options.budget) : *resource;
    Result<StorageHandle> empty = Storage::try_allocate(storage.resource, 0, storage);
    if (!empty) return empty.failure();
    made.storage_ = *std::move(empty);
    return made;
  }
  // The storage holds a handle of the program, and drops it if it is kept after the last one.
  const Device inner = DeviceState::of(device)->inner_handle();
  Result<AddressRange> range = try_reserve_addresses(inner, options);
  if (!range) return range.failure();
  made.limit_bytes_ = std::min(made.limit_bytes_, range->reserved_bytes());
  const MemoryKind kind = storage_kind_of(MemoryKind::mapped, device.info().is_host);
  const bool host_reads = reach_of(kind, device.info().capabilities).host_reads;
  auto origin = std::make_unique<GrowingOrigin>(*std::move(range), host_reads);
  made.range_ = &origin->range();
  Result<StorageHandle> empty = Storage::try_make(device, 0, kind, std::move(origin), storage);
  if (!empty) return empty.failure();
  made.storage_ = *std::move(empty);
  if (Result<void> there = made.storage_->try_ensure({}, site); !there) return there.failure();
  return made;
} catch (const Error& error) {
  return Failure(error.failure()).at(options.site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a growing array", options.site);
}

void RawGrowing::swap(RawGrowing& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(range_, other.range_);
  std::swap(element_bytes_, other.element_bytes_);
  std::swap(limit_bytes_, other.limit_bytes_);
  std::swap(moved_, other.moved_);
}

// --- Properties

std::size_t RawGrowing::capacity_bytes() const noexcept {
  if (!storage_) return 0;
  if (range_ != nullptr) return std::min(range_->backed_bytes(), limit_bytes_);
  const Result<Block> block = storage_->try_block();
  return block ? std::min(block->bytes, limit_bytes_) : 0;
}

std::size_t RawGrowing::max_bytes() const noexcept { return storage_ ? limit_bytes_ : 0; }

GrowingStatistics RawGrowing::statistics() const noexcept {
  GrowingStatistics now{.size_bytes = size_bytes(), .moved = moved_};
  if (range_ != nullptr) {
    now.resident_bytes = range_->resident_bytes();
    now.pending_bytes = range_->pending_bytes();
    now.reserved_bytes = range_->reserved_bytes();
  } else if (storage_) {
    const Result<Block> block = storage_->try_block();
    now.resident_bytes = now.reserved_bytes = block ? block->bytes : 0;
  }
  return now;
}

RawArray RawGrowing::all() const noexcept {
  return size_bytes() == 0 ? RawArray(storage_, nullptr, 0)
                           : RawArray(storage_, storage_->first_byte(), size_bytes());
}

Result<void> RawGrowing::check_there(CallSite site) const noexcept {
  if (storage_) return {};
  return Failure(ErrorCode::not_allocated,
                 "a growing array without a device cannot change: it was default-constructed or "
                 "moved from. Make it with a device.",
                 site)
      .with("id", std::uint64_t{0});
}

Result<void> RawGrowing::check_sole(const char* what, CallSite site) const noexcept {
  if (storage_->shares() == 1) return {};
  return Failure(ErrorCode::access_conflict,
                 "growing array {id} cannot {what}: {handles} other handles, leases, exports or "
                 "graphs share its memory. Destroy them first.",
                 site)
      .with("id", storage_->id().value)
      .with("what", what)
      .with("handles", storage_->shares() - 1);
}

// --- Growing

Result<void> RawGrowing::try_back(std::size_t bytes, StreamRef stream, CallSite site) noexcept {
  if (bytes > limit_bytes_) {
    return Failure(ErrorCode::capacity,
                   "a growing array of {held} cannot grow to {requested}: it was made for at most "
                   "{reserved}. Make it with more reserved_bytes; on devices with virtual memory "
                   "these are only addresses.",
                   site)
        .with_bytes("held", size_bytes())
        .with_bytes("requested", bytes)
        .with_bytes("reserved", limit_bytes_)
        .with("max", limit_bytes_);
  }
  if (bytes <= capacity_bytes()) return {};
  if (range_ != nullptr) {
    // A driver call costs as much for many pages as for one.
    const std::size_t ahead = range_->backed_bytes() / 8;
    return range_->try_back(bytes, std::min(ahead, AddressRange::max_piece_bytes), site);
  }
  // Half as much again, so that repeated small steps copy each element only a few times. If there
  // is not enough memory for that, exactly what is needed.
  const std::size_t before = size_bytes();
  const std::size_t ample = std::min(std::max(bytes, before + before / 2), limit_bytes_);
  Result<void> moved = try_move(ample, stream, site);
  const bool is_full = !moved && (moved.failure().code() == ErrorCode::out_of_memory ||
                                  moved.failure().code() == ErrorCode::out_of_budget);
  return is_full && ample != bytes ? try_move(bytes, stream, site) : moved;
}

Result<void> RawGrowing::try_move(std::size_t capacity, StreamRef stream, CallSite site) noexcept {
  const std::size_t bytes = size_bytes();
  if (bytes != 0) {
    if (Result<void> sole = check_sole("move its elements to other memory", site); !sole) {
      return sole;
    }
    if (Result<void> own = check_stream_of(*storage_, stream, site); !own) return own;
  }
  Result<StorageHandle> other = Storage::try_allocate(
      storage_->resource(), capacity,
      {.stream = stream, .tag = storage_->tag(), .checked = storage_->is_checked(), .site = site});
  if (!other) return other.failure();
  if (Result<void> cut = (*other)->try_cut(bytes, site); !cut) return cut;
  if (Result<void> copied = try_copy_written(*other, storage_, stream, site); !copied) {
    return copied;
  }
  if (bytes != 0) moved_ += {.copies = 1, .bytes = bytes};
  storage_ = *std::move(other);
  return {};
}

Result<void> RawGrowing::try_reserve(std::size_t count, StreamRef stream, CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  const std::optional<std::size_t> bytes = checked_multiply(count, element_bytes_);
  if (!bytes) return too_many(count, element_bytes_, site);
  reclaim();
  if (*bytes <= capacity_bytes()) return {};
  if (Result<void> free = check_not_captured(stream, site); !free) return free;
  return try_back(*bytes, stream, site);
}

Result<RawArray> RawGrowing::try_extend(std::size_t count, StreamRef stream,
                                        CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  const std::size_t before = size_bytes();
  const std::optional<std::size_t> added = checked_multiply(count, element_bytes_);
  const std::optional<std::size_t> bytes = added ? checked_add(before, *added) : std::nullopt;
  if (!bytes) return too_many(count, element_bytes_, site);
  // A stream of no device is the host, which waits for its copy.
  if (stream.id()) {
    if (Result<void> free = check_not_captured(stream, site); !free) return free.failure();
    if (Result<void> own = check_stream_of(*storage_, stream, site); !own) return own.failure();
  }
  reclaim();
  if (*added == 0) return RawArray(storage_, nullptr, 0);
  const StreamRef mover = stream.id() ? stream : storage_->device().default_stream();
  if (Result<void> backed = try_back(*bytes, mover, site); !backed) return backed.failure();
  if (Result<void> larger = storage_->try_extend(*bytes, site); !larger) return larger.failure();
  return RawArray(storage_, storage_->first_byte() + before, *added);
}

Result<void> RawGrowing::try_resize(std::size_t count, StreamRef stream, CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  const std::size_t size = size_bytes() / element_bytes_;
  if (count > size) {
    if (Result<void> free = check_not_captured(stream, site); !free) return free;
    const Result<RawArray> added = try_extend(count - size, stream, site);
    return added ? Result<void>() : Result<void>(added.failure());
  }
  reclaim();
  if (count == size) return {};
  if (Result<void> sole = check_sole("remove elements", site); !sole) return sole;
  return storage_->try_cut(count * element_bytes_, site);
}

Result<Mark> RawGrowing::finish(const Result<Mark>& written, std::size_t size_before) noexcept {
  // Only the host can lack memory for that; then the new elements stay, without a value.
  if (!written) static_cast<void>(storage_->try_cut(size_before, CallSite()));
  return written;
}

Result<Mark> RawGrowing::try_append(const void* elements, std::size_t count, StreamRef stream,
                                    CallSite site) noexcept {
  const std::size_t before = size_bytes();
  Result<RawArray> added = try_extend(count, stream, site);
  if (!added) return added.failure();
  return finish(added->try_write(elements, added->size_bytes(), stream, site), before);
}

Result<Mark> RawGrowing::try_append(const Buffer& elements, StreamRef stream,
                                    CallSite site) noexcept {
  if (Result<void> free = check_not_captured(stream, site); !free) return free.failure();
  const std::size_t before = size_bytes();
  const Result<RawArray> added = try_extend(elements.size_bytes() / element_bytes_, stream, site);
  if (!added) return added.failure();
  if (added->size_bytes() == 0) return stream.try_mark();
  return finish(try_copy(added->buffer(DType::byte, 1), elements, stream, site), before);
}

Result<Mark> RawGrowing::try_push_back(const void* element, StreamRef stream,
                                       CallSite site) noexcept {
  if (Result<void> free = check_not_captured(stream, site); !free) return free.failure();
  const std::size_t before = size_bytes();
  Result<RawArray> added = try_extend(1, stream, site);
  if (!added) return added.failure();
  return finish(added->try_put(element, element_bytes_, stream, site), before);
}

// --- Shrinking

Result<void> RawGrowing::try_shrink_to_fit(StreamRef stream, CallSite site) noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  reclaim();
  if (Result<void> sole = check_sole("free memory", site); !sole) return sole;
  if (Result<void> done = storage_->check_exports_done(site); !done) return done;
  if (range_ == nullptr) {
    const std::size_t held = capacity_bytes();
    return held > size_bytes() ? try_move(size_bytes(), stream, site) : Result<void>();
  }
  // The marks of all users: a record has one per stream, whichever bytes the stream used.
  MarkSet uses;
  if (!storage_->uses().try_collect(Access::discard, uses)) {
    return no_host_memory("a list of uses", site);
  }
  return range_->try_unback(size_bytes(), uses.all(), site);
}

std::size_t RawGrowing::reclaim() noexcept { return range_ != nullptr ? range_->reclaim() : 0; }

}  // namespace tern
