// Allocating and freeing by address in the C API.

#include <atomic>
#include <cstdint>
#include <optional>

#include "c/failures.hpp"
#include "c/handles.hpp"
#include "c/plugins.hpp"
#include "c/streams.hpp"
#include "memory/block_table.hpp"
#include "tern/memory/arena_resource.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern::c {

namespace {

/// A stream that is borrowed for each call would get an event only when somebody needs one, and
/// that event would also cover all later work. An event now and then tells which older frees are
/// done.
constexpr unsigned allocations_per_mark = 256;
thread_local unsigned allocations_of_thread = 0;

/// A forked child has nothing to free.
bool is_in_its_process(const PointerOwner& owner) noexcept {
  return DeviceState::of(owner.resource()->device())->is_in_its_process();
}

/// The lane of a stream in an arena. NULL and 1 are the same stream, and lane 0 is the host.
std::uintptr_t lane_of(void* handle) noexcept {
  return handle == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(handle);
}

/// Frees a block of an arena. `last` is the stream for a rehearsal.
Result<void> free_in_arena(PointerOwner& owner, AddressEntry entry, void* address,
                           std::optional<std::uintptr_t> lane, StreamRef last,
                           CallSite site) noexcept {
  const Result<Block> block = PointerOwner::try_block(entry, address);
  if (!block) return Failure(block.failure()).at(site);
  ArenaResource& arena = *owner.arena();
  Result<void> freed = entry.has_other_uses()
                           ? arena.try_retire(*block, site)
                           : arena.try_deallocate_in_lane(*block, lane, last, site);
  if (freed) {
    owner.note_freed();
  } else {
    AddressMap::restore(address, entry);
  }
  return freed;
}

Result<void*> enter(PointerOwner& owner, const Block& block, const Request& request) noexcept {
  Result<void*> entered = owner.try_enter(block, request.site);
  if (!entered) owner.resource()->deallocate(block, request.stream, request.site);
  return entered;
}

}  // namespace

Result<void*> allocate_on(PointerOwner& owner, const Request& wanted, void* handle) noexcept {
  Request request = wanted;
  const Device& device = owner.resource()->device();
  if (const Result<void> usable = DeviceState::of(device)->check_process(); !usable) {
    return usable.failure();
  }
  ArenaResource* const arena = owner.arena();
  if (arena != nullptr && !arena->rehearses()) {
    const Result<Block> block = arena->try_allocate_in_lane(request, lane_of(handle));
    if (!block) return block.failure();
    return enter(owner, *block, request);
  }
  const CallStream stream(device, handle);
  if (!stream.result()) return stream.result().failure();
  // Without a stream, the memory is ready for each launch of the graph that is being captured.
  request.stream = stream.get();
  if (request.stream.id() && ++allocations_of_thread % allocations_per_mark == 0) [[unlikely]]
    static_cast<void>(device.try_record_mark(request.stream.id()));
  if (arena == nullptr) return owner.try_allocate(request);
  const Result<Block> block = arena->try_allocate_in_lane(request, lane_of(handle));
  if (!block) return block.failure();
  return enter(owner, *block, request);
}

Result<void> free_on(void* address, void* handle, CallSite site) noexcept {
  if (address == nullptr) return {};
  const AddressEntry entry = AddressMap::take(address);
  if (!entry) return PointerOwner::not_live(address, site);
  PointerOwner& owner = PointerOwner::of(entry);
  if (!is_in_its_process(owner)) return {};
  if (owner.arena() != nullptr && !owner.arena()->rehearses()) {
    return free_in_arena(owner, entry, address, lane_of(handle), StreamRef(), site);
  }
  const CallStream stream(owner.resource()->device(), handle);
  if (stream.result() && !stream.is_captured()) {
    if (owner.arena() != nullptr) {
      return free_in_arena(owner, entry, address, lane_of(handle), stream.get(), site);
    }
    return PointerOwner::try_free_taken(entry, address, stream.get(), site);
  }
  AddressMap::restore(address, entry);
  if (!stream.result()) return stream.result();
  return free_in_order(address, site);
}

Result<void> free_in_order(void* address, CallSite site) noexcept {
  if (address == nullptr) return {};
  const AddressEntry entry = AddressMap::take(address);
  if (!entry) return PointerOwner::not_live(address, site);
  PointerOwner& owner = PointerOwner::of(entry);
  if (!is_in_its_process(owner)) return {};
  const BlockPlace* const place = find_place(entry.slot());
  const StreamId id = place == nullptr ? StreamId() : place->stream.load(std::memory_order_relaxed);
  if (owner.arena() != nullptr && !owner.arena()->rehearses()) {
    return free_in_arena(owner, entry, address, std::nullopt, StreamRef(), site);
  }
  Result<StreamRef> stream = owner.try_order_of(id, site);
  if (!id) {
    // The memory was allocated during a capture. Any stream may have launched the graph.
    const Result<void> waited = DeviceState::of(owner.resource()->device())->settle_idle();
    if (!waited && waited.failure().code() != ErrorCode::device_lost) {
      stream = Failure(waited.failure()).at(site);
    }
  }
  if (!stream) {
    AddressMap::restore(address, entry);
    return stream.failure();
  }
  if (owner.arena() != nullptr) {
    return free_in_arena(owner, entry, address, std::nullopt, *stream, site);
  }
  return PointerOwner::try_free_taken(entry, address, *stream, site);
}

}  // namespace tern::c

using namespace tern;
using namespace tern::c;

tern_status tern_allocate(tern_resource* resource, size_t bytes, size_t alignment, void* stream,
                          void** address) {
  if (resource == nullptr) return fail_null("resource");
  if (address == nullptr) return fail_null("address");
  const Result<void*> made = allocate_on(
      *resource->owner, {.bytes = bytes, .alignment = alignment, .tag = resource->tag}, stream);
  if (!made) return fail_request(made.failure(), *resource->resource);
  *address = *made;
  return TERN_OK;
}

tern_status tern_free(void* address, void* stream) {
  return finish(free_on(address, stream, CallSite::here()));
}

tern_status tern_free_in_order(void* address) {
  return finish(free_in_order(address, CallSite::here()));
}

tern_status tern_record_use(void* address, void* stream) {
  const AddressEntry entry = AddressMap::get(address);
  if (!entry) return fail(PointerOwner::not_live(address));
  PointerOwner& owner = PointerOwner::of(entry);
  if (const Result<void> usable = DeviceState::of(owner.resource()->device())->check_process();
      !usable) {
    return fail(usable.failure());
  }
  // The order of streams in a capture is not known here, so an arena does not use the range again.
  if (owner.arena() != nullptr) {
    return AddressMap::set_other_uses(address, entry) || AddressMap::get(address).has_other_uses()
               ? TERN_OK
               : fail(PointerOwner::not_live(address));
  }
  const CallStream user(owner.resource()->device(), stream);
  if (!user.result()) return fail(user.result().failure());
  if (user.is_captured()) {
    return fail(Failure(ErrorCode::stream_misuse,
                        "stream {stream} cannot be recorded as a user of memory: {why}. Allocate "
                        "the memory of a graph from an arena.")
                    .with("stream", reinterpret_cast<std::uintptr_t>(stream), Unit::hex)
                    .with("why", "it is being captured into a graph"));
  }
  return finish(owner.try_add_use(address, entry, user.get(), CallSite::here()));
}

tern_status tern_find_block(const void* address, tern_block* block) {
  const Result<Block> found = PointerAllocator::try_find(address);
  if (!found) return fail(found.failure());
  const Result<BlockInfo> info = try_block_info(found->generation);
  if (!info) return fail(info.failure());
  const DeviceScope device(found->device);
  return copy_out({.struct_bytes = sizeof(tern_block),
                   .address = found->address,
                   .bytes = found->bytes,
                   .tag = tag_text(info->tag),
                   .device = device ? device->info().spec.data() : ""},
                  block, "block");
}
