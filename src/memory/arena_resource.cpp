#include "tern/memory/arena_resource.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "memory/arena_layout.hpp"
#include "memory/block_table.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

constexpr std::size_t granule_bytes = 256;
/// Small requests share chunks of this size, the page size of devices.
constexpr std::size_t min_chunk_bytes = 2 * mib;

constexpr std::size_t granted(std::size_t bytes) noexcept {
  return (bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
}

const ResourceHandle& checked(const ResourceHandle& upstream, const ArenaOptions& options) {
  if (upstream == nullptr) {
    raise(Failure(ErrorCode::invalid_argument,
                  "an arena needs an upstream, and the handle is null. Pass a pool or another "
                  "resource.")
              .with("name", "upstream"));
  }
  if (options.rehearse && (options.bytes != 0 || !options.may_grow)) {
    raise(Failure(ErrorCode::invalid_argument,
                  "an arena that rehearses holds no memory in advance, but its options ask for "
                  "{bytes}. Leave bytes at 0 and may_grow at true.")
              .with("name", "bytes")
              .with_bytes("bytes", options.bytes));
  }
  if (options.bytes > max_request_bytes) {
    raise(Failure(ErrorCode::size_overflow, "an arena cannot hold {requested}. Use a smaller size.")
              .with_bytes("requested", options.bytes));
  }
  return upstream;
}

}  // namespace

struct ArenaResource::State {
  struct Chunk {
    Block memory;
    ArenaLayout layout;
  };
  struct Rehearsed {
    Block memory;
    std::size_t offset;
  };
  struct Found {
    void* address;
    std::uint64_t chunk;  // its index
  };

  ResourceHandle upstream;
  ArenaOptions options;
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Chunk>> chunks;            // guarded by mutex
  ArenaLayout rehearsal{SIZE_MAX / 2};                   // guarded by mutex
  std::unordered_map<std::uint64_t, Generation> live;    // guarded by mutex; by its value
  std::unordered_map<const void*, Rehearsed> rehearsed;  // guarded by mutex
  Statistics counts = {};                                // guarded by mutex

  [[nodiscard]] bool rehearses() const noexcept { return options.rehearse; }

  // The following are called with the mutex held, and may throw std::bad_alloc.
  [[nodiscard]] Result<void> add_chunk(std::size_t bytes, std::size_t alignment, Tag tag,
                                       CallSite site) {
    chunks.reserve(chunks.size() + 1);
    // Without a stream, the memory is ready for every stream.
    Result<Block> memory =
        upstream->try_allocate({.bytes = bytes, .alignment = alignment, .tag = tag, .site = site});
    if (!memory) return memory.failure();
    try {
      chunks.push_back(std::unique_ptr<Chunk>(new Chunk{*memory, ArenaLayout(bytes)}));
    } catch (...) {
      upstream->deallocate(*memory, StreamRef(), site);
      throw;
    }
    counts.reserved_bytes += memory->bytes;
    return {};
  }

  [[nodiscard]] Result<Found> place(const Request& request, std::size_t bytes,
                                    std::uintptr_t lane) {
    const std::size_t alignment = std::max(request.alignment, granule_bytes);
    if (rehearses()) {
      rehearsed.reserve(rehearsed.size() + 1);
      Result<Block> memory = upstream->try_allocate(request);
      if (!memory) return memory.failure();
      try {
        const std::size_t offset = rehearsal.take(bytes, alignment, lane).value();
        rehearsed.emplace(memory->address, Rehearsed{*memory, offset});
      } catch (...) {
        upstream->deallocate(*memory, request.stream, request.site);
        throw;
      }
      counts.reserved_bytes += memory->bytes;
      return Found{memory->address, 0};
    }
    for (bool has_grown = false;; has_grown = true) {
      for (std::uint64_t i = 0; i < chunks.size(); ++i) {
        Chunk& chunk = *chunks[i];
        auto* const base = static_cast<std::byte*>(chunk.memory.address);
        if (reinterpret_cast<std::uintptr_t>(base) % alignment != 0) continue;
        if (const auto offset = chunk.layout.take(bytes, alignment, lane)) {
          return Found{base + *offset, i};
        }
      }
      if (has_grown || !options.may_grow) return full(request, bytes);
      const std::size_t size = bytes <= min_chunk_bytes / 2 ? min_chunk_bytes : bytes;
      const Result<void> grown = add_chunk(size, alignment, request.tag, request.site);
      if (!grown) return grown.failure();
    }
  }

  void unplace(void* address, std::uint64_t chunk, std::optional<std::uintptr_t> lane) noexcept {
    Chunk& home = *chunks[chunk];
    home.layout.put(static_cast<std::size_t>(static_cast<std::byte*>(address) -
                                             static_cast<std::byte*>(home.memory.address)),
                    lane);
  }

  // Frees the memory of a rehearsed block in the upstream.
  [[nodiscard]] Result<void> unrehearse(const void* address, std::optional<std::uintptr_t> lane,
                                        bool is_reused, StreamRef last, CallSite site) noexcept {
    const auto found = rehearsed.find(address);
    if (found == rehearsed.end()) return {};
    Result<void> freed = upstream->try_deallocate(found->second.memory, last, site);
    if (!freed) return freed;
    counts.reserved_bytes -= found->second.memory.bytes;
    if (is_reused) rehearsal.put(found->second.offset, lane);
    rehearsed.erase(found);
    return freed;
  }

  [[nodiscard]] Failure full(const Request& request, std::size_t bytes) const noexcept {
    return Failure(ErrorCode::out_of_memory,
                   "an arena of {held} on '{device}' has no {requested} free for the stream of the "
                   "request. Rehearse the same work to get the size that it needs, or let the "
                   "arena grow.",
                   request.site)
        .with_bytes("held", counts.reserved_bytes)
        .with_bytes("live", counts.live_bytes)
        .with_bytes("requested", bytes)
        .with("device", upstream->device().spec());
  }
};

ArenaResource::ArenaResource(ResourceHandle upstream, const ArenaOptions& options)
    : state_(std::make_unique<State>()) {
  free_abandoned();
  state_->options = options;
  state_->upstream = checked(upstream, options);
  set_pausable(upstream->is_pausable());
  if (options.bytes != 0) {
    state_->add_chunk(granted(options.bytes), granule_bytes, options.tag, CallSite::here()).value();
  }
}

namespace {

/// Chunks of arenas that have ended, and whose device could not be waited for.
struct Abandoned {
  ResourceHandle upstream;
  std::vector<Block> chunks;
};
struct AbandonedList {
  std::mutex mutex;
  std::vector<Abandoned> all;
  std::atomic<bool> has_any = false;
};
AbandonedList& abandoned() {
  static auto* const one = new AbandonedList;
  return *one;
}

/// Waits for everything that may use the chunks, also for work on streams that Tern does not know.
bool has_passed_everything(const Device& device) noexcept {
  const Result<void> waited = DeviceState::of(device)->settle_idle();
  return waited || waited.failure().code() == ErrorCode::device_lost ||
         waited.failure().code() == ErrorCode::after_fork;
}

}  // namespace

void ArenaResource::free_abandoned() noexcept {
  AbandonedList& list = abandoned();
  if (!list.has_any.load(std::memory_order_acquire)) return;
  std::vector<Abandoned> waiting;
  {
    const std::lock_guard lock(list.mutex);
    waiting.swap(list.all);
    list.has_any.store(false, std::memory_order_release);
  }
  for (Abandoned& one : waiting) {
    if (has_passed_everything(one.upstream->device())) {
      for (const Block& chunk : one.chunks) one.upstream->deallocate(chunk, StreamRef());
      continue;
    }
    const std::lock_guard lock(list.mutex);
    try {
      list.all.push_back(std::move(one));
      list.has_any.store(true, std::memory_order_release);
    } catch (const std::bad_alloc&) {
      // The memory stays allocated: freeing it would be worse.
    }
  }
}

ArenaResource::~ArenaResource() {
  free_abandoned();
  State& state = *state_;
  // Later frees of blocks that outlive the arena fail, also if a new arena has this address.
  for (const auto& [value, generation] : state.live) {
    static_cast<void>(value);
    end_block(generation, Mark{});
  }
  if (state.chunks.empty() && state.rehearsed.empty()) return;
  Abandoned held{state.upstream, {}};
  const bool is_over = has_passed_everything(state.upstream->device());
  const auto free_or_keep = [&](const Block& memory) {
    if (is_over) {
      state.upstream->deallocate(memory, StreamRef());
      return;
    }
    try {
      held.chunks.push_back(memory);
    } catch (const std::bad_alloc&) {
      // The memory stays allocated: freeing it would be worse.
    }
  };
  for (const auto& chunk : state.chunks) free_or_keep(chunk->memory);
  for (const auto& [address, one] : state.rehearsed) free_or_keep(one.memory);
  if (is_over) return;
  AbandonedList& list = abandoned();
  const std::lock_guard lock(list.mutex);
  try {
    list.all.push_back(std::move(held));
    list.has_any.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // As above.
  }
}

const Device& ArenaResource::device() const noexcept { return state_->upstream->device(); }

ResourceTraits ArenaResource::traits() const noexcept {
  ResourceTraits traits = state_->upstream->traits();
  traits.is_stream_ordered = true;
  traits.frees_without_waiting = true;
  traits.frees_for_host_at_once = true;
  traits.tracks_use = true;
  traits.alignment = granule_bytes;
  return traits;
}

Statistics ArenaResource::statistics() const noexcept {
  const std::lock_guard lock(state_->mutex);
  Statistics now = state_->counts;
  now.free_bytes = now.reserved_bytes - std::min(now.reserved_bytes, now.live_bytes);
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

std::size_t ArenaResource::good_size(const Request& request) const noexcept {
  if (request.bytes == 0 || request.bytes > SIZE_MAX / 2) return request.bytes;
  return granted(request.bytes);
}

bool ArenaResource::rehearses() const noexcept { return state_->rehearses(); }

std::size_t ArenaResource::trim(std::size_t) noexcept { return 0; }

std::size_t ArenaResource::held_bytes() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->counts.reserved_bytes;
}

std::size_t ArenaResource::needed_bytes() const noexcept {
  const std::lock_guard lock(state_->mutex);
  if (state_->rehearses()) return state_->rehearsal.extent_bytes();
  std::size_t sum = 0;
  for (const auto& chunk : state_->chunks) sum += chunk->layout.extent_bytes();
  return sum;
}

Result<Block> ArenaResource::try_allocate(const Request& request) noexcept {
  return try_allocate_in_lane(request, static_cast<std::uintptr_t>(request.stream.id().value()));
}

Result<Block> ArenaResource::try_allocate_in_lane(const Request& request,
                                                  std::uintptr_t lane) noexcept {
  State& state = *state_;
  const Result<void> fits = request.bytes == 0 ? Result<void>() : check(request);
  const std::size_t bytes = fits ? granted(request.bytes) : 0;
  const std::lock_guard lock(state.mutex);
  ++state.counts.requests;
  const auto refuse = [&](const Failure& why) {
    ++state.counts.refusals;
    return Failure(why).at(request.site);
  };
  if (!fits) return refuse(fits.failure());
  if (request.bytes == 0) return Block{};
  try {
    state.live.reserve(state.live.size() + 1);
    const Result<State::Found> found = state.place(request, bytes, lane);
    if (!found) return refuse(found.failure());
    const Result<Generation> generation = try_begin_block({.address = found->address,
                                                           .bytes = bytes,
                                                           .device = device().id(),
                                                           .owner = this,
                                                           .stream = request.stream.id(),
                                                           .tag = request.tag,
                                                           .note = found->chunk});
    if (!generation) {
      if (state.rehearses()) {
        static_cast<void>(
            state.unrehearse(found->address, lane, true, request.stream, request.site));
      } else {
        state.unplace(found->address, found->chunk, lane);
      }
      return refuse(generation.failure());
    }
    state.live.emplace(generation->value(), *generation);
    state.counts.live_bytes += bytes;
    ++state.counts.live_blocks;
    state.counts.peak_live_bytes = std::max(state.counts.peak_live_bytes, state.counts.live_bytes);
    return Block{found->address, bytes, device().id(), *generation};
  } catch (const std::bad_alloc&) {
    return refuse(no_host_memory("the layout of an arena"));
  }
}

Result<void> ArenaResource::try_deallocate(const Block& block, StreamRef stream,
                                           const CallSite& site) noexcept {
  return free_block(block, static_cast<std::uintptr_t>(stream.id().value()), Reuse::in_lane, stream,
                    site);
}

Result<void> ArenaResource::try_deallocate_in_lane(const Block& block,
                                                   std::optional<std::uintptr_t> lane,
                                                   StreamRef last, CallSite site) noexcept {
  return free_block(block, lane, Reuse::in_lane, last, site);
}

Result<void> ArenaResource::try_retire(const Block& block, CallSite site) noexcept {
  if (state_->rehearses()) {
    const Result<void> waited = DeviceState::of(device())->settle_idle();
    if (!waited && waited.failure().code() != ErrorCode::device_lost) {
      return Failure(waited.failure()).at(site);
    }
  }
  return free_block(block, std::nullopt, Reuse::never, StreamRef(), site);
}

Result<void> ArenaResource::free_block(const Block& block, std::optional<std::uintptr_t> lane,
                                       Reuse reuse, StreamRef last, CallSite site) noexcept {
  if (!block) return {};
  const Result<BlockFacts> claimed = try_claim_block(block, this);
  if (!claimed) return Failure(claimed.failure()).at(site);
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.rehearses()) {
    const Result<void> freed =
        state.unrehearse(block.address, lane, reuse == Reuse::in_lane, last, site);
    if (!freed) {
      unclaim_block(block.generation);
      return freed;
    }
  } else if (reuse == Reuse::in_lane) {
    state.unplace(block.address, claimed->note, lane);
  }
  state.live.erase(block.generation.value());
  state.counts.live_bytes -= block.bytes;
  --state.counts.live_blocks;
  ++state.counts.frees;
  end_block(block.generation, Mark{});
  return {};
}

}  // namespace tern
