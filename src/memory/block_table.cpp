// The block table: claiming, retiring and reusing places.

#include "memory/block_table.hpp"

#include <pthread.h>

#include <mutex>
#include <new>
#include <vector>

#include "core/no_host_memory.hpp"
#include "tern/device/device.hpp"

namespace tern {

constinit std::array<std::atomic<BlockPlace*>, max_place_chunks> place_chunks = {};

namespace {

using Phase = BlockPhase;
using Row = BlockPlace;

constexpr std::uint64_t word_of(std::uint64_t count, Phase phase) noexcept {
  return Row::word_of(count, phase);
}
constexpr std::uint64_t count_of(std::uint64_t word) noexcept { return word >> Row::phase_bits; }
constexpr Phase phase_of(std::uint64_t word) noexcept {
  return static_cast<Phase>(word & ((1u << Row::phase_bits) - 1));
}

/// Upper bound on the retired places that are polled per new block.
constexpr int max_polls = 4;

constexpr std::uint32_t no_slot = ~std::uint32_t{0};

struct Table {
  std::mutex mutex;
  std::vector<std::uint32_t> free_slots;  // guarded by mutex; has capacity for every place
  std::size_t chunk_count = 0;            // guarded by mutex
  // Places of freed blocks whose streams may still use the memory, oldest first. They are linked
  // through their note fields, which the owners no longer need. Guarded by mutex.
  std::uint32_t oldest_retired = no_slot;
  std::uint32_t newest_retired = no_slot;
};

Table& table() {
  // Never destroyed, and not on the heap: the table must work after main() and without host memory.
  alignas(Table) static std::byte storage[sizeof(Table)];
  static Table& instance = *new (storage) Table;
  // The forking thread holds the lock, so the child never finds it locked by a thread that does not
  // exist there.
  static const int registered = pthread_atfork(
      [] { table().mutex.lock(); }, [] { table().mutex.unlock(); }, [] { table().mutex.unlock(); });
  static_cast<void>(registered);
  return instance;
}

Mark last_use_of(const Row& place) noexcept {
  return {place.stream.load(std::memory_order_relaxed),
          place.sequence.load(std::memory_order_relaxed)};
}

/// Call with the table locked.
void free_place(Table& all, Generation generation) noexcept {
  find_place(generation.slot())
      ->word.store(word_of(generation.count(), Phase::free), std::memory_order_release);
  // A place that has reached the last count is not reused, because its count would wrap.
  if (generation.count() < Row::last_count) all.free_slots.push_back(generation.slot());
}

/// Frees the places of retired blocks whose streams have passed the free. The device is queried
/// without the lock, so the place is checked again afterwards: another thread may have freed it.
void reap(Table& all) noexcept {
  for (int i = 0; i < max_polls; ++i) {
    std::uint32_t slot = no_slot;
    Mark mark;
    {
      const std::lock_guard lock(all.mutex);
      slot = all.oldest_retired;
      if (slot == no_slot) return;
      mark = last_use_of(*find_place(slot));
    }
    const Result<bool> is_done = Device::try_is_done(mark);
    if (!is_done || !*is_done) return;
    const std::lock_guard lock(all.mutex);
    const Row& place = *find_place(slot);
    if (all.oldest_retired != slot || last_use_of(place) != mark) continue;
    all.oldest_retired = static_cast<std::uint32_t>(place.note.load(std::memory_order_relaxed));
    if (all.oldest_retired == no_slot) all.newest_retired = no_slot;
    free_place(all, Generation(slot, place.count()));
  }
}

/// Call with the table locked. Allocates all host memory, including room in free_slots, so that
/// returning a place never allocates.
Result<void> grow(Table& all) noexcept {
  if (all.chunk_count == max_place_chunks) {
    return Failure(ErrorCode::capacity,
                   "this process holds {max} blocks, which is the maximum. Free some, or allocate "
                   "fewer and larger blocks.")
        .with("max", std::uint64_t{1} << Generation::slot_bits);
  }
  try {
    all.free_slots.reserve((all.chunk_count + 1) * places_per_chunk);
    auto* chunk = new Row[places_per_chunk];
    const auto first = static_cast<std::uint32_t>(all.chunk_count * places_per_chunk);
    // Slot 0 with count 0 would be the null generation, but counts start at 1.
    for (std::uint32_t i = places_per_chunk; i > 0; --i) all.free_slots.push_back(first + i - 1);
    place_chunks[all.chunk_count++].store(chunk, std::memory_order_release);
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Row) * places_per_chunk, "the records of blocks");
  }
}

Failure not_live(const Block& block) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "the block at {address} (generation {generation}) was freed before, or is not a "
                 "block of this resource. Free each block once, to the resource that allocated it.")
      .with("address", reinterpret_cast<std::uintptr_t>(block.address), Unit::hex)
      .with("generation", block.generation.count());
}

BlockFacts read(const Row& place) noexcept {
  return {.address = place.address.load(std::memory_order_relaxed),
          .bytes = place.bytes.load(std::memory_order_relaxed),
          .device = place.device.load(std::memory_order_relaxed),
          .owner = place.owner.load(std::memory_order_relaxed),
          .stream = place.stream.load(std::memory_order_relaxed),
          .tag = place.tag.load(std::memory_order_relaxed),
          .note = place.note.load(std::memory_order_relaxed)};
}

Result<std::uint32_t> take_slot(Table& all) noexcept {
  const std::lock_guard lock(all.mutex);
  if (all.free_slots.empty()) {
    if (Result<void> grown = grow(all); !grown) return grown.failure();
  }
  const std::uint32_t slot = all.free_slots.back();
  all.free_slots.pop_back();
  return slot;
}

}  // namespace

Result<std::uint32_t> try_keep_place(const Resource* owner, DeviceId device,
                                     std::uint64_t note) noexcept {
  const Result<std::uint32_t> slot = take_slot(table());
  if (!slot) return slot;
  Row& place = *find_place(*slot);
  place.owner.store(owner, std::memory_order_relaxed);
  place.device.store(device, std::memory_order_relaxed);
  place.note.store(note, std::memory_order_relaxed);
  return slot;
}

void drop_place(std::uint32_t slot) noexcept {
  Table& all = table();
  const std::uint64_t count = find_place(slot)->count();
  const std::lock_guard lock(all.mutex);
  free_place(all, Generation(slot, count));
}

Result<Generation> try_begin_block(const BlockFacts& facts) noexcept {
  Table& all = table();
  reap(all);
  const Result<std::uint32_t> slot = take_slot(all);
  if (!slot) return slot.failure();
  Row& place = *find_place(*slot);
  place.address.store(facts.address, std::memory_order_relaxed);
  place.bytes.store(facts.bytes, std::memory_order_relaxed);
  place.owner.store(facts.owner, std::memory_order_relaxed);
  place.note.store(facts.note, std::memory_order_relaxed);
  place.device.store(facts.device, std::memory_order_relaxed);
  return Generation(*slot, place.renew(facts.stream, facts.tag));
}

Failure why_not_live(const Block& block, const BlockPlace* place) noexcept {
  if (!block.generation || place == nullptr || !place->is_live(block.generation.count())) {
    return not_live(block);
  }
  const BlockFacts facts = read(*place);
  if (facts.device != block.device) {
    return Failure(ErrorCode::device_mismatch,
                   "the block at {address} is on {a} and was freed as a block on {b}. Free it to "
                   "the resource that allocated it.")
        .with("address", reinterpret_cast<std::uintptr_t>(block.address), Unit::hex)
        .with("a", Place::device(facts.device).text())
        .with("b", Place::device(block.device).text());
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(facts.address);
  const auto given = reinterpret_cast<std::uintptr_t>(block.address);
  if (given == begin || given - begin >= facts.bytes) return not_live(block);
  return Failure(ErrorCode::out_of_bounds,
                 "the address {address} is {offset} inside a block of {bytes}. Free the block by "
                 "the address that allocate returned.")
      .with("address", given, Unit::hex)
      .with_bytes("offset", given - begin)
      .with_bytes("bytes", facts.bytes);
}

Result<BlockFacts> try_claim_block(const Block& block, const Resource* owner) noexcept {
  Row* const place = find_place(block.generation.slot());
  if (!block.generation || place == nullptr || !place->is_live(block.generation.count())) {
    return not_live(block);
  }
  const BlockFacts facts = read(*place);
  if (facts.device != block.device || facts.address != block.address) {
    return why_not_live(block, place);
  }
  if (facts.owner != owner || facts.bytes != block.bytes) return not_live(block);
  std::uint64_t live = word_of(block.generation.count(), Phase::live);
  if (!place->word.compare_exchange_strong(live, word_of(block.generation.count(), Phase::claimed),
                                           std::memory_order_acq_rel)) {
    return not_live(block);
  }
  return facts;
}

void unclaim_block(Generation generation) noexcept {
  find_place(generation.slot())
      ->word.store(word_of(generation.count(), Phase::live), std::memory_order_release);
}

void end_block(Generation generation, Mark last_use) noexcept {
  Table& all = table();
  Row& place = *find_place(generation.slot());
  const std::lock_guard lock(all.mutex);
  if (!last_use) {
    free_place(all, generation);
    return;
  }
  place.retire(generation.count(), last_use);
  place.note.store(no_slot, std::memory_order_relaxed);
  const std::uint32_t slot = generation.slot();
  if (all.newest_retired == no_slot) {
    all.oldest_retired = slot;
  } else {
    find_place(all.newest_retired)->note.store(slot, std::memory_order_relaxed);
  }
  all.newest_retired = slot;
}

void quarantine_block(Generation generation) noexcept {
  find_place(generation.slot())
      ->word.store(word_of(generation.count(), Phase::quarantined), std::memory_order_release);
}

Result<BlockFacts> try_find_block(Generation generation) noexcept {
  Row* const place = find_place(generation.slot());
  const Block asked{.generation = generation};
  if (!generation || place == nullptr) return not_live(asked);
  const std::uint64_t before = place->word.load(std::memory_order_acquire);
  if (count_of(before) != generation.count() || phase_of(before) == Phase::free) {
    return not_live(asked);
  }
  const BlockFacts facts = read(*place);
  // If the place changed while the fields were read, they belong to no single block.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (count_of(place->word.load(std::memory_order_relaxed)) != generation.count()) {
    return not_live(asked);
  }
  return facts;
}

BlockState state_of(Generation generation) noexcept {
  Row* const place = find_place(generation.slot());
  if (!generation || place == nullptr) return BlockState::freed;
  const std::uint64_t word = place->word.load(std::memory_order_acquire);
  if (count_of(word) != generation.count()) return BlockState::freed;
  switch (phase_of(word)) {
    case Phase::live:
    case Phase::claimed:
      return BlockState::live;
    case Phase::quarantined:
      return BlockState::quarantined;
    case Phase::retired: {
      const Mark mark = last_use_of(*place);
      // If the place changed while the mark was read, the block is gone.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (place->word.load(std::memory_order_relaxed) != word) return BlockState::freed;
      const Result<bool> is_done = Device::try_is_done(mark);
      return is_done && *is_done ? BlockState::freed : BlockState::retired;
    }
    case Phase::free:
      break;
  }
  return BlockState::freed;
}

}  // namespace tern
