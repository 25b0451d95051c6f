// The table of charges, and the lanes of those that are pending.

#include "memory/charge_book.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "core/process.hpp"
#include "memory/pending_frees.hpp"
#include "tern/device/device.hpp"

namespace tern {
namespace {

using Phase = BlockCharge::Phase;
using State = BlockCharge::State;

/// Lanes are drained when they have twice as many charges as they keep, so that they stay short
/// even if no request reaches a limit. The newest charges are kept, because their memory is the
/// most likely to be recycled. If memory is recycled whose charge a drain has ended, its lane keeps
/// twice as many charges from then on: the drain made the recycling more expensive.
constexpr std::uint32_t first_kept = 32, max_kept = 4096;
/// Every 64th drain of a lane drains the whole tree, because other streams may be idle.
constexpr std::uint32_t drains_per_full_drain = 64;

/// Work of a lost device, or of the parent process after a fork, will never use memory again.
bool is_over(const Failure& failure) {
  return failure.code() == ErrorCode::device_lost || failure.code() == ErrorCode::after_fork;
}

}  // namespace

ChargeBook::ChargeBook(Budget& budget, PendingFrees& frees)
    : budget_(&budget),
      frees_(frees),
      process_(process_generation()),
      root_(std::make_unique<Root>()) {}

ChargeBook::~ChargeBook() {
  while (displaced_ != nullptr) delete std::exchange(displaced_, displaced_->newer);
  for (Lane& lane : lanes_) {
    for (BlockCharge* charge = lane.oldest; charge != nullptr;) {
      BlockCharge* const next = charge->newer;
      if (!charge->is_in_table) delete charge;
      charge = next;
    }
  }
  for (std::atomic<Middle*>& place : *root_) {
    Middle* const middle = place.load();
    if (middle == nullptr) continue;
    for (std::atomic<Leaf*>& leaf : *middle) delete leaf.load();
    delete middle;
  }
}

// --- The table

BlockCharge* ChargeBook::find_or_make(Generation generation) noexcept {
  // If two threads make the same part, one of them deletes its own.
  const auto make = [](auto& place) {
    auto* there = place.load(std::memory_order_acquire);
    if (there != nullptr) return there;
    using Made = std::remove_pointer_t<decltype(there)>;
    auto* const made = new (std::nothrow) Made{};
    if (made == nullptr || place.compare_exchange_strong(there, made)) return made;
    delete made;
    return there;
  };
  const std::uint32_t slot = generation.slot();
  Middle* const middle = make((*root_)[slot >> (leaf_bits + middle_bits)]);
  if (middle == nullptr) return nullptr;
  Leaf* const leaf = make((*middle)[slot >> leaf_bits & ((1u << middle_bits) - 1)]);
  return leaf == nullptr ? nullptr : &(*leaf)[slot & ((1u << leaf_bits) - 1)];
}

// --- Begin and end

// The caller alone has a block with this slot, so only the thread that freed the earlier block and
// threads that drain can change the state meanwhile.
BlockCharge* ChargeBook::try_open(const Block& block) noexcept {
  BlockCharge* const charge = find_or_make(block.generation);
  if (charge == nullptr) return nullptr;
  std::unique_ptr<BlockCharge> record;
  for (;;) {
    const State state = charge->state();
    switch (state.phase()) {
      case Phase::none:
        return charge;
      case Phase::live: {
        // The earlier block was freed elsewhere.
        const std::size_t bytes = charge->bytes;
        const Tag tag = charge->tag;
        if (!charge->try_change(state, {})) break;
        note_end(state.lane(), bytes);
        release(bytes, tag);
        return charge;
      }
      case Phase::claimed:
        // The earlier block is freed, and its free has not returned yet.
        if (!record) record = try_make_record();
        if (!record) return nullptr;
        if (displace(*charge, state, record)) return charge;
        break;
      case Phase::pending: {
        if (!record) record = try_make_record();
        if (!record) return nullptr;
        Lane& lane = lanes_[state.lane()];
        const std::lock_guard lock(lane.lock);
        if (charge->state() != state) break;
        record->bytes = charge->bytes;
        record->tag = charge->tag;
        record->mark = charge->mark;
        record->order = charge->order;
        record->set({0, state.lane(), Phase::pending});
        lane.insert(*record.release(), charge);
        lane.unlink(*charge);
        charge->set({});
        return charge;
      }
    }
  }
}

// The lock of the lane orders this with add(). The record is in the list before the state changes:
// the thread that frees the block searches the list once it sees another state.
bool ChargeBook::displace(BlockCharge& charge, State state,
                          std::unique_ptr<BlockCharge>& record) noexcept {
  const std::lock_guard lane_lock(lanes_[state.lane()].lock);
  const std::lock_guard lock(displaced_mutex_);
  // Atomic: if the charge has become pending, its lane may be taking a part of it.
  record->bytes = std::atomic_ref(charge.bytes).load(std::memory_order_relaxed);
  record->tag = charge.tag;
  record->order = state.word;
  record->older = &charge;
  record->newer = displaced_;
  displaced_ = record.get();
  displaced_count_.fetch_add(1, std::memory_order_relaxed);
  if (charge.try_change(state, {})) {
    static_cast<void>(record.release());
    return true;
  }
  displaced_ = record->newer;
  displaced_count_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

std::unique_ptr<BlockCharge> ChargeBook::take_displaced(ChargeClaim claim) noexcept {
  if (displaced_count_.load(std::memory_order_relaxed) == 0 || is_forked()) return nullptr;
  const std::lock_guard lock(displaced_mutex_);
  for (BlockCharge** link = &displaced_; *link != nullptr; link = &(*link)->newer) {
    BlockCharge* const record = *link;
    if (record->older != claim.charge || record->order != claim.state.word) continue;
    *link = record->newer;
    displaced_count_.fetch_sub(1, std::memory_order_relaxed);
    return std::unique_ptr<BlockCharge>(record);
  }
  return nullptr;
}

void ChargeBook::begin(BlockCharge& charge, const Block& block, Tag tag, StreamId stream) noexcept {
  const std::size_t lane = lane_of(stream);
  charge.bytes = block.bytes;
  charge.tag = tag;
  charge.set({block.generation.count(), lane, Phase::live});
  if (is_forked()) return;
  const std::lock_guard lock(lanes_[lane].lock);
  lanes_[lane].note_begin(block.bytes);
}

[[gnu::noinline]] bool ChargeBook::revive_slow(BlockCharge& charge, const Block& block,
                                               Tag tag) noexcept {
  const std::uint64_t count = block.generation.count();
  const Tag before = charge.tag;
  Budget& budget = *budget_.load(std::memory_order_relaxed);
  // The counter of the tag must exist before the charge has the tag.
  if (before != tag && !budget.prepare(tag)) return false;
  // If the counts differ by more, the slot was used for another block since. If the charge is
  // claimed, the thread that freed the earlier block has not added it yet, or adds it now, perhaps
  // to another lane.
  for (State now = charge.state(); now.count() + 1 == count && now.phase() != Phase::live;
       now = charge.state()) {
    if (now == State()) break;  // the slot never had a charge, so no drain has ended one
    Lane& lane = lanes_[now.lane()];
    const std::lock_guard lock(lane.lock);
    if (charge.state() == now.as(Phase::none)) {
      // A drain has ended the charge: the lane is drained too often.
      lane.kept = std::min(2 * lane.kept, max_kept);
      lane.drain_at = std::max(lane.drain_at, 2 * lane.kept);
      return false;
    }
    // Atomic: if the charge is claimed, its new lane may be taking a part of it.
    if (std::atomic_ref(charge.bytes).load(std::memory_order_relaxed) != block.bytes) return false;
    if (!charge.try_change(now, {count, now.lane(), Phase::live})) continue;
    if (now.phase() == Phase::pending) lane.unlink(charge);
    charge.tag = tag;
    lane.note_begin(block.bytes);
    if (before != tag) budget.retag(block.bytes, before, tag);
    return true;
  }
  return false;
}

bool ChargeBook::is_being_freed(const Block& block) const noexcept {
  const BlockCharge* const charge = find(block.generation);
  return charge != nullptr && charge->state().count() == block.generation.count() &&
         charge->state().phase() == Phase::claimed;
}

void ChargeBook::unclaim(ChargeClaim claim) noexcept {
  static_cast<void>(claim.charge->try_change(claim.state, claim.state.as(Phase::live)));
}

// A free gets an order of its own only if the lane grows. A program that frees and allocates the
// same blocks does not make its lanes grow, so its frees change no counter of the tree.
void ChargeBook::push(std::size_t index, BlockCharge& charge, Mark mark) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << index;
  if ((used_lanes_.load(std::memory_order_relaxed) & bit) == 0) [[unlikely]] {
    used_lanes_.fetch_or(bit, std::memory_order_release);
  }
  Lane& lane = lanes_[index];
  charge.mark = mark;
  lane.insert(charge, nullptr);
  if (lane.count() > lane.most_pending) {
    lane.most_pending = lane.count();
    charge.order = frees_.next_order() + 1;
  } else {
    charge.order = frees_.order();
  }
}

void ChargeBook::add(ChargeClaim claim, std::size_t bytes, Mark mark) noexcept {
  const std::size_t home = claim.state.lane(), index = lane_of(mark.stream);
  if (home != index) note_end(home, bytes);
  Lane& lane = lanes_[index];
  // Locked by hand, so that the usual path is as short as possible.
  lane.lock.lock();
  if (home == index) lane.note_end(bytes);
  // If the state has changed, another thread has got the memory or the slot already and has revived
  // or displaced the charge. It does so under the lock of `home`, so here a comparison is enough if
  // that is held.
  const State pending(claim.state.count(), index, Phase::pending);
  if (home == index ? claim.charge->state_relaxed() != claim.state
                    : !claim.charge->try_change(claim.state, pending)) [[unlikely]] {
    lane.lock.unlock();
    add_displaced(claim, mark);
    return;
  }
  if (home == index) claim.charge->set_relaxed(pending);
  push(index, *claim.charge, mark);
  if (lane.count() < lane.drain_at) {
    lane.lock.unlock();
    return;
  }
  // Other threads that free meanwhile need not drain, too.
  lane.drain_at = 2 * lane.count();
  lane.lock.unlock();
  drain_due(lane);
}

[[gnu::noinline]] void ChargeBook::add_displaced(ChargeClaim claim, Mark mark) noexcept {
  std::unique_ptr<BlockCharge> record = take_displaced(claim);
  if (!record) return;
  const std::size_t bytes = record->bytes;
  const Tag tag = record->tag;
  add_pending(std::move(record), bytes, tag, mark);
}

void ChargeBook::end(ChargeClaim claim, std::size_t bytes, Tag tag) noexcept {
  note_end(claim.state.lane(), bytes);
  // If this fails, another thread has got the memory or the slot already and has revived or
  // displaced the charge.
  if (claim.charge->try_change(claim.state, {}) || take_displaced(claim)) release(bytes, tag);
}

void ChargeBook::release(std::size_t bytes, Tag tag) noexcept {
  Budget* const budget = budget_.load(std::memory_order_relaxed);
  if (budget != nullptr) budget->release(bytes, tag);
}

void ChargeBook::record_use() const noexcept {
  const Budget* const budget = budget_.load(std::memory_order_relaxed);
  if (budget != nullptr) budget->record_use();
}

void ChargeBook::note_end(std::size_t lane, std::size_t bytes) noexcept {
  if (is_forked()) return;
  const std::lock_guard lock(lanes_[lane].lock);
  lanes_[lane].note_end(bytes);
}

// --- Lanes

ChargeBook::Lane::Lane() noexcept : drain_at(2 * first_kept), kept(first_kept) {}

std::unique_ptr<BlockCharge> ChargeBook::try_make_record() noexcept {
  std::unique_ptr<BlockCharge> record(new (std::nothrow) BlockCharge);
  if (record) record->is_in_table = false;
  return record;
}

void ChargeBook::add_pending(std::unique_ptr<BlockCharge> record, std::size_t bytes, Tag tag,
                             Mark mark) noexcept {
  const std::size_t index = lane_of(mark.stream);
  record->bytes = bytes;
  record->tag = tag;
  record->set({0, index, Phase::pending});
  const std::lock_guard lock(lanes_[index].lock);
  push(index, *record.release(), mark);
}

std::size_t ChargeBook::pending_bytes() const noexcept {
  std::size_t sum = 0;
  for_each_used_lane(*this, [&](const Lane& lane) {
    const std::lock_guard lock(lane.lock);
    sum += lane.pending_bytes;
  });
  return sum;
}

std::size_t ChargeBook::pending_bytes(StreamId stream) const noexcept {
  const Lane& lane = lanes_[lane_of(stream)];
  std::size_t sum = 0;
  const std::lock_guard lock(lane.lock);
  for (const BlockCharge* charge = lane.oldest; charge != nullptr; charge = charge->newer) {
    if (charge->mark.stream == stream) sum += charge->bytes;
  }
  return sum;
}

std::size_t ChargeBook::end_until(Lane& lane, Mark mark, std::uint64_t last_order,
                                  std::size_t kept) noexcept {
  Budget* const budget = budget_.load(std::memory_order_relaxed);
  std::size_t ended = 0, left = lane.count();
  for (BlockCharge* charge = lane.oldest;
       left > kept && charge != nullptr && charge->order <= last_order; --left) {
    BlockCharge* const next = charge->newer;
    if (charge->mark.stream == mark.stream && charge->mark.sequence <= mark.sequence) {
      const std::size_t bytes = charge->bytes;
      const Tag tag = charge->tag;
      lane.unlink(*charge);
      if (charge->is_in_table) {
        // The count stays, so that try_revive() sees that the charge has ended.
        charge->set(charge->state().as(Phase::none));
      } else {
        delete charge;
      }
      if (budget != nullptr) budget->release_unrecorded(bytes, tag);
      ended += bytes;
    }
    charge = next;
  }
  if (ended > 0) lane.most_pending = lane.count();
  return ended;
}

// The oldest mark is asked for first: usually it is the only question if the stream is busy. Then
// the newest: usually it is the last question if the stream is idle. Marks complete in order, so
// the rest is a binary search.
Mark ChargeBook::find_last_done(Mark first, Mark last) noexcept {
  bool has_failed = false;
  const auto is_done = [&](Mark mark) {
    const Result<bool> done = Device::try_is_done(mark);
    if (done) return *done;
    if (is_over(done.failure())) return true;
    frees_.note_failed_query();
    has_failed = true;
    return false;
  };
  if (!is_done(first)) return {};
  if (first == last || is_done(last)) return last;
  std::uint64_t done = first.sequence, open = last.sequence;
  while (!has_failed && open - done > 1) {
    const std::uint64_t middle = done + (open - done) / 2;
    (is_done({first.stream, middle}) ? done : open) = middle;
  }
  return {first.stream, done};
}

// One stream after the other, in the order of their ids.
std::size_t ChargeBook::drain(Lane& lane, std::uint64_t last_order, std::size_t kept) noexcept {
  std::size_t all = 0;
  for (StreamId seen;;) {
    Mark first, last;
    {
      const std::lock_guard lock(lane.lock);
      std::size_t left = lane.count();
      for (const BlockCharge* charge = lane.oldest;
           left > kept && charge != nullptr && charge->order <= last_order;
           charge = charge->newer, --left) {
        const Mark mark = charge->mark;
        if (mark.stream <= seen) continue;
        if (!first || mark.stream < first.stream) {
          first = last = mark;
        } else if (mark.stream == first.stream) {
          first.sequence = std::min(first.sequence, mark.sequence);
          last.sequence = std::max(last.sequence, mark.sequence);
        }
      }
    }
    if (!first) return all;
    if (const Mark done = find_last_done(first, last)) {
      std::size_t ended = 0;
      {
        const std::lock_guard lock(lane.lock);
        ended = end_until(lane, done, last_order, kept);
      }
      // Without the lock: the recording may have to map a part of its file.
      if (ended > 0) record_use();
      all += ended;
    }
    seen = first.stream;
  }
}

std::size_t ChargeBook::drain(std::uint64_t last_order) noexcept {
  std::size_t all = 0;
  for_each_used_lane(*this, [&](Lane& lane) {
    if (lane.count() != 0) all += drain(lane, last_order, 0);
  });
  return all;
}

void ChargeBook::drain_due(Lane& lane) noexcept {
  bool is_full_drain = false;
  std::size_t kept = 0;
  {
    const std::lock_guard lock(lane.lock);
    is_full_drain = ++lane.drains % drains_per_full_drain == 0;
    kept = lane.kept;
  }
  if (is_full_drain) {
    frees_.drain();
  } else {
    drain(lane, frees_.next_order(), kept);
  }
  // The cost of a drain grows with the charges that stay, so the next one comes after as many more.
  const std::lock_guard lock(lane.lock);
  lane.drain_at = 2 * std::max(lane.kept, lane.count());
}

std::optional<ChargeBook::Oldest> ChargeBook::oldest(const Oldest& after) const noexcept {
  std::optional<Oldest> first;
  for_each_used_lane(*this, [&](const Lane& lane) {
    const std::lock_guard lock(lane.lock);
    for (const BlockCharge* charge = lane.oldest; charge != nullptr; charge = charge->newer) {
      if (first && charge->order > first->order) break;
      const Oldest one{charge->order, this, charge->mark};
      if (after < one && (!first || one < *first)) first = one;
    }
  });
  return first;
}

// --- Taking charges over

// All records are made before a charge is taken, so that putting the charges back needs no memory.
ChargeBook::Taken ChargeBook::take(StreamId stream, std::size_t bytes) noexcept {
  const std::size_t index = lane_of(stream);
  Lane& lane = lanes_[index];
  Taken spare;
  {
    std::size_t count = 0, found = 0;
    {
      const std::lock_guard lock(lane.lock);
      for (const BlockCharge* charge = lane.oldest; charge != nullptr && found < bytes;
           charge = charge->newer) {
        if (charge->mark.stream != stream) continue;
        found += charge->bytes;
        ++count;
      }
    }
    for (; count > 0; --count) {
      std::unique_ptr<BlockCharge> record = try_make_record();
      if (!record) {
        discard(spare);
        return {};
      }
      record->newer = spare.first;
      spare.first = record.release();
    }
  }
  Taken taken;
  BlockCharge** end = &taken.first;
  {
    const std::lock_guard lock(lane.lock);
    for (BlockCharge* charge = lane.oldest; charge != nullptr;) {
      if (taken.bytes == bytes || spare.first == nullptr) break;
      BlockCharge* const next = charge->newer;
      if (charge->mark.stream == stream) {
        const std::size_t part = std::min(charge->bytes, bytes - taken.bytes);
        BlockCharge* const record = spare.first;
        spare.first = record->newer;
        record->bytes = part;
        record->tag = charge->tag;
        record->mark = charge->mark;
        record->order = charge->order;
        record->newer = nullptr;
        record->set({0, index, Phase::pending});
        *std::exchange(end, &record->newer) = record;
        taken.bytes += part;
        if (part < charge->bytes) {
          // The rest stays pending.
          std::atomic_ref(charge->bytes).fetch_sub(part, std::memory_order_relaxed);
          lane.pending_bytes -= part;
        } else {
          lane.unlink(*charge);
          if (charge->is_in_table) {
            charge->set({});
          } else {
            delete charge;
          }
        }
      }
      charge = next;
    }
  }
  discard(spare);
  return taken;
}

void ChargeBook::put_back(const Taken& taken) noexcept {
  if (taken.first == nullptr) return;
  Lane& lane = lanes_[lane_of(taken.first->mark.stream)];
  const std::lock_guard lock(lane.lock);
  BlockCharge* at = lane.oldest;
  for (BlockCharge* charge = taken.first; charge != nullptr;) {
    BlockCharge* const next = charge->newer;
    while (at != nullptr && at->order <= charge->order) at = at->newer;
    lane.insert(*charge, at);
    charge = next;
  }
}

void ChargeBook::discard(const Taken& taken) noexcept {
  for (BlockCharge* charge = taken.first; charge != nullptr;) {
    delete std::exchange(charge, charge->newer);
  }
}

// --- The resource

bool ChargeBook::is_under(const Budget* budget) const noexcept {
  const Budget* const own = budget_.load(std::memory_order_relaxed);
  return own != nullptr && own->is_under(budget);
}

void ChargeBook::detach() noexcept {
  Budget* const budget = budget_.load(std::memory_order_relaxed);
  for (std::atomic<Middle*>& place : *root_) {
    Middle* const middle = place.load(std::memory_order_acquire);
    if (middle == nullptr) continue;
    for (std::atomic<Leaf*>& part : *middle) {
      Leaf* const leaf = part.load(std::memory_order_acquire);
      if (leaf == nullptr) continue;
      for (BlockCharge& charge : *leaf) {
        if (charge.state().phase() != Phase::live) continue;
        charge.set({});
        if (budget != nullptr) budget->release_unrecorded(charge.bytes, charge.tag);
      }
    }
  }
  record_use();
}

void ChargeBook::note_request(StreamId stream, bool is_refused) noexcept {
  if (is_forked()) return;
  Lane& lane = lanes_[lane_of(stream)];
  const std::lock_guard lock(lane.lock);
  ++lane.other_requests;
  if (is_refused) ++lane.refusals;
}

Statistics ChargeBook::statistics() const noexcept {
  Statistics now;
  if (is_forked()) return now;
  std::uint64_t allocations = 0;
  for (const Lane& lane : lanes_) {
    const std::lock_guard lock(lane.lock);
    now.requests += lane.other_requests + lane.allocations;
    now.refusals += lane.refusals;
    now.frees += lane.frees;
    allocations += lane.allocations;
    now.live_bytes += lane.live_bytes;
    now.peak_live_bytes += lane.peak_live_bytes;
    now.pending_bytes += lane.pending_bytes;
  }
  now.live_blocks = allocations - std::min(allocations, now.frees);
  return now;
}

}  // namespace tern
