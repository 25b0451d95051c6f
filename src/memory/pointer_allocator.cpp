#include "tern/memory/pointer_allocator.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/pointer_owner.hpp"
#include "tern/memory/arena_resource.hpp"

namespace tern {
namespace {

/// How many delayed frees one allocation looks at.
constexpr std::size_t polled_per_allocation = 4;

/// The owners by their resource. Never destroyed, because memory may be freed after main().
struct Registry {
  std::mutex mutex;
  std::unordered_map<const Resource*, PointerOwner*> owners;  // also those that are released
};
Registry& registry() {
  static auto* const one = new Registry;
  return *one;
}

/// How many owners are released and still have live memory. Frees look at it, so that an owner can
/// end with the last free.
constinit std::atomic<std::uint32_t> released_owners = 0;

ArenaResource* as_arena(const ResourceHandle& resource) noexcept {
  return dynamic_cast<ArenaResource*>(resource.get());
}

}  // namespace

constinit std::atomic<PointerOwner*> PointerOwner::owners_[max_owners] = {};

PointerOwner::PointerOwner(ResourceHandle resource)
    : resource_(std::move(resource)), arena_(as_arena(resource_)) {}

std::shared_ptr<PointerOwner> PointerOwner::of(ResourceHandle resource) {
  if (resource == nullptr) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a pointer allocator needs a resource, and the handle is null. Pass a pool or "
                  "another resource.")
              .with("name", "resource"));
  }
  if (!resource->traits().tracks_use) {
    raise(Failure(ErrorCode::unsupported,
                  "memory of resource '{resource}' on '{device}' cannot be freed by its address, "
                  "because its blocks have no generation. Put a TrackingResource around it.")
              .with("what", "freeing by address")
              .with("resource", resource->name())
              .with("device", resource->device().spec()));
  }
  const Resource* const key = resource.get();
  Registry& all = registry();
  PointerOwner* owner = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    const auto known = all.owners.find(key);
    if (known != all.owners.end()) {
      owner = known->second;
      if (owner->is_released_.exchange(false)) released_owners.fetch_sub(1);
    } else {
      std::uint32_t number = 0;
      while (number < max_owners && owners_[number].load(std::memory_order_relaxed) != nullptr) {
        ++number;
      }
      if (number == max_owners) {
        raise(Failure(ErrorCode::capacity,
                      "{max} resources have memory that is freed by its address, which is the "
                      "maximum. Free the memory of some of them.")
                  .with("max", max_owners));
      }
      auto made = std::make_unique<PointerOwner>(std::move(resource));
      made->number_ = number;
      all.owners.emplace(key, made.get());
      owner = made.release();
      owners_[number].store(owner, std::memory_order_release);
    }
    ++owner->handles_;
  }
  // Without memory for the reference count, the deleter runs, so the lock must not be held.
  return std::shared_ptr<PointerOwner>(owner, [](PointerOwner* last) { release(last); });
}

void PointerOwner::release(PointerOwner* owner) noexcept {
  const std::uint32_t number = owner->number_;
  owner->wait_for_delayed();
  {
    const std::lock_guard lock(registry().mutex);
    if (--owner->handles_ != 0) return;
    owner->is_released_.store(true);
    released_owners.fetch_add(1);
  }
  end_if_unused(number);
}

// Two threads may free the last two blocks at the same time, so a free must not touch its owner
// after it has counted itself. Both come here with the owner's number, and one ends the owner.
void PointerOwner::end_if_unused(std::uint32_t number) noexcept {
  std::unique_ptr<PointerOwner> ended;  // destroyed without the lock: the resource may wait
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  PointerOwner* const owner = owners_[number].load(std::memory_order_relaxed);
  if (owner == nullptr || !owner->is_released_.load() || owner->live() != 0) return;
  ended.reset(owner);
  released_owners.fetch_sub(1);
  owners_[number].store(nullptr, std::memory_order_release);
  all.owners.erase(owner->resource_.get());
}

std::int64_t PointerOwner::live() const noexcept {
  std::int64_t sum = 0;
  for (const Count& one : counts_) sum += one.live.load();
  return sum;
}

Failure PointerOwner::not_live(const void* address, CallSite site) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "no live memory begins at {address}: it was freed already, or another allocator "
                 "allocated it. Free each address once, with the allocator that allocated it.",
                 site)
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
}

Result<Block> PointerOwner::try_block(AddressEntry entry, const void* address) noexcept {
  if (!entry) return not_live(address);
  const BlockPlace* const place = find_place(entry.slot());
  if (place == nullptr) return not_live(address);
  const std::uint64_t count = place->count();
  if (!place->is_live(count) || place->address.load(std::memory_order_relaxed) != address) {
    return not_live(address);
  }
  return Block{.address = const_cast<void*>(address),
               .bytes = place->bytes.load(std::memory_order_relaxed),
               .device = place->device.load(std::memory_order_relaxed),
               .generation = Generation(entry.slot(), count)};
}

Result<void*> PointerOwner::try_enter(const Block& block, CallSite site) noexcept {
  if (!block) return nullptr;
  if (!AddressMap::try_put(block.address, AddressEntry(block.generation.slot(), number_))) {
    if (reinterpret_cast<std::uintptr_t>(block.address) % AddressMap::unit_bytes != 0) {
      return Failure(ErrorCode::unsupported,
                     "memory of resource '{resource}' begins at {address}, which is not a multiple "
                     "of {unit}, so it cannot be freed by its address. Use a resource whose "
                     "blocks are aligned.",
                     site)
          .with("what", "freeing by address")
          .with("resource", resource_->name())
          .with("address", reinterpret_cast<std::uintptr_t>(block.address), Unit::hex)
          .with_bytes("unit", AddressMap::unit_bytes);
    }
    return no_host_memory("the table of addresses", site);
  }
  count(1);
  return block.address;
}

Result<void*> PointerOwner::try_allocate(const Request& request) noexcept {
  if (has_delayed_.load(std::memory_order_relaxed)) poll(polled_per_allocation);
  Result<Block> block = resource_->try_allocate(request);
  if (!block && has_delayed_.load(std::memory_order_relaxed) && request.wait == Wait::forever &&
      (block.failure().code() == ErrorCode::out_of_memory ||
       block.failure().code() == ErrorCode::out_of_budget) &&
      wait_for_delayed()) {
    block = resource_->try_allocate(request);
  }
  if (!block) return block.failure();
  Result<void*> entered = try_enter(*block, request.site);
  if (!entered) resource_->deallocate(*block, request.stream, request.site);
  return entered;
}

Result<void> PointerOwner::try_free_taken(AddressEntry entry, void* address, StreamRef stream,
                                          CallSite site) noexcept {
  const Result<Block> block = try_block(entry, address);
  if (!block) return Failure(block.failure()).at(site);
  PointerOwner& owner = of(entry);
  Result<void> freed = entry.has_other_uses()
                           ? owner.free_after_uses(*block, stream, address, site)
                           : owner.resource_->try_deallocate(*block, stream, site);
  if (!freed) {
    AddressMap::restore(address, entry);
    return freed;
  }
  if (!entry.has_other_uses()) owner.note_freed();
  return freed;
}

void PointerOwner::note_freed() noexcept {
  const std::uint32_t number = number_;
  // The count comes before the load, and a release before its sum: one of the two sees the other.
  count(-1);
  if (released_owners.load() != 0) [[unlikely]]
    end_if_unused(number);
}

Result<void> PointerOwner::try_add_use(const void* address, AddressEntry entry, StreamRef stream,
                                       CallSite site) noexcept {
  if (stream.device_id() != resource_->device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "memory of '{a}' is used on a stream of {b}. Use it on a stream of '{a}'.", site)
        .with("a", resource_->device().spec())
        .with("b", Place::device(stream.device_id()).text());
  }
  // Asks for a mark now: if the stream ends before the free, there must be a mark after its work.
  static_cast<void>(stream.next_mark());
  try {
    const std::lock_guard lock(delayed_mutex_);
    // Another thread may have recorded a use since the caller read the entry.
    const AddressEntry now = AddressMap::get(address);
    if (!now.is_same_block(entry)) return not_live(address, site);
    std::vector<StreamRef>& streams = uses_[address];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
    if (now.has_other_uses() || AddressMap::set_other_uses(address, now)) return {};
    uses_.erase(address);  // another thread has taken the entry
  } catch (const std::bad_alloc&) {
    return no_host_memory("the streams that use a block", site);
  }
  return not_live(address, site);
}

Result<StreamRef> PointerOwner::try_order_of(StreamId id, CallSite site) noexcept {
  const Device& device = resource_->device();
  DeviceState& state = *DeviceState::of(device);
  const StreamRef stream = id ? state.stream_of(id) : StreamRef();
  if (!id || (stream.id() && DeviceState::state_of(stream)->accepts_frees_as(id))) return stream;
  // A stream of Tern that has ended left a mark after its last work. Other code may have submitted
  // work to its stream since Tern borrowed it last, and only a wait for the whole device covers
  // that.
  if (!device.can(Capability::borrowed_streams)) return stream;
  if (const Result<void> waited = state.settle_idle();
      !waited && waited.failure().code() != ErrorCode::device_lost) {
    return Failure(waited.failure()).at(site);
  }
  return StreamRef();
}

Result<void> PointerOwner::free_after_uses(const Block& block, StreamRef stream,
                                           const void* address, CallSite site) noexcept {
  // The uses leave the list now: the address may have a new block as soon as this one is freed.
  decltype(uses_)::node_type uses;
  {
    const std::lock_guard lock(delayed_mutex_);
    uses = uses_.extract(address);
  }
  DelayedFree delayed{.block = block, .stream = stream, .marks = {}};
  Result<void> freed;
  DeviceState& device = *DeviceState::of(resource_->device());
  try {
    for (std::size_t i = 0; !uses.empty() && i < uses.mapped().size() && freed; ++i) {
      const StreamRef user = uses.mapped()[i];
      if (user == stream) continue;
      const Result<StreamRef> order = try_order_of(user.id(), site);
      if (!order) {
        freed = order.failure();
      } else if (const Mark mark = device.next_mark_of_free(order->id()); order->id() && mark) {
        delayed.marks.push_back(mark);
      }
    }
    // Nobody would look at a delayed free of a resource without allocators.
    if (freed && !is_released_.load() && !is_unused(delayed)) {
      const std::lock_guard lock(delayed_mutex_);
      delayed_.push_back(std::move(delayed));
      has_delayed_.store(true, std::memory_order_release);
      return {};
    }
  } catch (const std::bad_alloc&) {
    // Without host memory for the list, wait for everything.
    freed = device.settle_idle();
  }
  for (const Mark mark : delayed.marks) {
    if (freed) freed = Device::try_wait(mark, site);
  }
  if (!freed && freed.failure().code() == ErrorCode::device_lost) freed = Result<void>();
  if (freed) freed = resource_->try_deallocate(block, stream, site);
  if (freed) {
    note_freed();
  } else if (!uses.empty()) {
    const std::lock_guard lock(delayed_mutex_);
    uses_.insert(std::move(uses));
  }
  return freed;
}

bool PointerOwner::is_unused(DelayedFree& delayed) noexcept {
  std::erase_if(delayed.marks, [](Mark mark) {
    // A stream that is being captured cannot answer now.
    const Result<bool> is_done = Device::try_is_done(mark);
    return is_done ? *is_done : is_done.failure().code() == ErrorCode::device_lost;
  });
  return delayed.marks.empty();
}

std::size_t PointerOwner::poll(std::size_t max_blocks) noexcept {
  // One thread at a time, so that each entry has one visitor. Others add entries meanwhile.
  const std::lock_guard polling(poll_mutex_);
  std::vector<DelayedFree> visited;
  {
    const std::lock_guard lock(delayed_mutex_);
    const std::size_t count = std::min(max_blocks, delayed_.size());
    try {
      visited.reserve(count);
    } catch (const std::bad_alloc&) {
      return delayed_.size();
    }
    visited.assign(std::move_iterator(delayed_.begin()),
                   std::move_iterator(delayed_.begin() + static_cast<std::ptrdiff_t>(count)));
  }
  std::size_t freed = 0;
  for (DelayedFree& one : visited) {
    if (!is_unused(one) || !resource_->try_deallocate(one.block, one.stream)) continue;
    one.block = {};
    ++freed;
  }
  std::size_t left = 0;
  {
    const std::lock_guard lock(delayed_mutex_);
    delayed_.erase(delayed_.begin(),
                   delayed_.begin() + static_cast<std::ptrdiff_t>(visited.size()));
    // What stays goes to the end, so that a slow stream does not hide the others. The places are
    // there.
    for (DelayedFree& one : visited) {
      if (one.block) delayed_.push_back(std::move(one));
    }
    has_delayed_.store(!delayed_.empty(), std::memory_order_release);
    left = delayed_.size();
  }
  for (std::size_t i = 0; i < freed; ++i) note_freed();
  return left;
}

PointerOwner::Delayed PointerOwner::delayed() noexcept {
  if (!has_delayed_.load(std::memory_order_relaxed)) return {};
  // No other thread may have taken entries out.
  const std::lock_guard polling(poll_mutex_);
  const std::lock_guard lock(delayed_mutex_);
  Delayed sum;
  for (const DelayedFree& one : delayed_) sum.bytes += one.block.bytes;
  sum.blocks = delayed_.size();
  return sum;
}

bool PointerOwner::wait_for_delayed() noexcept {
  const std::size_t before = poll(SIZE_MAX);
  if (before == 0) return true;
  std::vector<Mark> marks;
  try {
    // While another thread polls, entries are missing.
    const std::lock_guard polling(poll_mutex_);
    const std::lock_guard lock(delayed_mutex_);
    for (const DelayedFree& one : delayed_) {
      marks.insert(marks.end(), one.marks.begin(), one.marks.end());
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (const Mark mark : marks) static_cast<void>(Device::try_wait(mark));
  return poll(SIZE_MAX) < before;
}

// --- PointerAllocator

PointerAllocator::PointerAllocator(ResourceHandle resource)
    : owner_(PointerOwner::of(std::move(resource))) {}

const ResourceHandle& PointerAllocator::resource() const noexcept { return owner_->resource(); }

Result<void*> PointerAllocator::try_allocate(const Request& request) const noexcept {
  return owner_->try_allocate(request);
}

Result<void> PointerAllocator::try_free(void* address, StreamRef stream, CallSite site) noexcept {
  if (address == nullptr) return {};
  const AddressEntry entry = AddressMap::take(address);
  if (!entry) return PointerOwner::not_live(address, site);
  return PointerOwner::try_free_taken(entry, address, stream, site);
}

Result<void> PointerAllocator::try_free_in_order(void* address, CallSite site) noexcept {
  if (address == nullptr) return {};
  const AddressEntry entry = AddressMap::take(address);
  if (!entry) return PointerOwner::not_live(address, site);
  const BlockPlace* const place = find_place(entry.slot());
  const StreamId id = place == nullptr ? StreamId() : place->stream.load(std::memory_order_relaxed);
  const Result<StreamRef> stream = PointerOwner::of(entry).try_order_of(id, site);
  if (!stream) {
    AddressMap::restore(address, entry);
    return stream.failure();
  }
  return PointerOwner::try_free_taken(entry, address, *stream, site);
}

Result<void> PointerAllocator::try_record_use(void* address, StreamRef stream,
                                              CallSite site) noexcept {
  const AddressEntry entry = AddressMap::get(address);
  if (!entry) return PointerOwner::not_live(address, site);
  return PointerOwner::of(entry).try_add_use(address, entry, stream, site);
}

Result<Block> PointerAllocator::try_find(const void* address) noexcept {
  return PointerOwner::try_block(AddressMap::get(address), address);
}

std::size_t PointerAllocator::poll() const noexcept { return owner_->poll(SIZE_MAX); }

}  // namespace tern
