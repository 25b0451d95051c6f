// The part of UnifiedCore that decides whether a copy may be evicted (evictability_of), evicts it
// (try_evict), and allocates memory with the help of evictions (try_make_memory). EvictionRequest
// chooses which copies to evict.

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "coherence/eviction_request.hpp"
#include "coherence/totals.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "tern/buffer/foreign.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

/// Every round evicts as many bytes as the request needs. If memory is fragmented, several rounds
/// may be necessary. The bound ends the loop if other code keeps taking the freed memory.
constexpr int max_rounds = 64;

/// Frees the memory in the order of the stream, after all of its uses.
void free_on(StorageHandle storage, StreamRef stream, CallSite site) noexcept {
  const ResourceHandle resource = storage->resource();
  if (!resource || !stream.is_usable() || stream.device_id() != resource->device().id()) return;
  // If the release fails, the memory is freed with its last handle, after its recorded uses.
  if (const Result<Block> block = storage->try_release_block(stream, site)) {
    resource->deallocate(*block, stream, site);
  }
}

}  // namespace

UnifiedCore::TryTransferLock::TryTransferLock(UnifiedCore& core) noexcept : core_(core) {
  {
    // The holder of a transfer lock counts in transfer_locks_. So a thread never tries a mutex that
    // it holds itself.
    const std::lock_guard lock(core_.mutex_);
    if (core_.transfer_locks_ != 0) return;
    ++core_.transfer_locks_;
    core_.copies_.clear_deferred_uses();
  }
  lock_ = std::unique_lock(core_.transfer_mutex_, std::try_to_lock);
  if (lock_) core_.moving_thread_.store(this_thread(), std::memory_order_relaxed);
  if (lock_ && core_.options_.guard.value_or(false)) HostAccessChecks::open_pages(core_.copies_);
  if (lock_) return;
  const std::lock_guard lock(core_.mutex_);
  --core_.transfer_locks_;
}

UnifiedCore::TryTransferLock::~TryTransferLock() {
  if (!lock_) return;
  core_.list_copies();
  if (core_.options_.guard.value_or(false)) core_.close_pages();
  core_.moving_thread_.store(0, std::memory_order_relaxed);
  lock_.unlock();
  const std::lock_guard lock(core_.mutex_);
  --core_.transfer_locks_;
}

void UnifiedCore::list_copies() noexcept {
  for (Memory& memory : copies_.memories()) {
    if (!memory.resident) continue;
    if (memory.storage) {
      memory.resident->enter();
    } else {
      memory.resident->leave();
    }
  }
  while (!transits_.empty()) end_transit(transits_.first());
  // If all spilled bytes were written elsewhere since, their disk space is released.
  if (spilled_.empty()) return;
  bool is_needed = false;
  {
    const std::lock_guard lock(mutex_);
    is_needed = needs_spilled({0, bytes()}, {});
  }
  if (!is_needed) forget_spilled();
}

bool UnifiedCore::begin_transit(unsigned number) noexcept {
  const Memory& memory = copies_.memory(number);
  if (transits_.has(number) || !memory.resident) return false;
  transits_ = transits_.with(number);
  memory.resident->where().begin_transit();
  return true;
}

void UnifiedCore::end_transit(unsigned number) noexcept {
  transits_ = transits_.without(number);
  copies_.memory(number).resident->where().end_transit();
}

void UnifiedCore::begin_transits() noexcept {
  for (unsigned i = 0; i < copies_.memories().size(); ++i) {
    if (copies_.memory(i).storage) begin_transit(i);
  }
}

bool UnifiedCore::try_share() noexcept {
  const std::lock_guard lock(mutex_);
  if (shares_ == 0 && leases_.is_empty()) return false;
  ++shares_;
  return true;
}

void UnifiedCore::settle_uses() noexcept {
  const std::lock_guard lock(mutex_);
  for (Memory& memory : copies_.memories()) {
    memory.deferred_use = {};
    if (memory.storage) memory.storage->uses().settle();
  }
}

UnifiedCore::Evictability UnifiedCore::evictability(unsigned number) const noexcept {
  const std::lock_guard lock(mutex_);
  return evictability_of(number, 0);
}

UnifiedCore::Evictability UnifiedCore::evictability_of(
    unsigned number, std::uint32_t own_transfer_locks) const noexcept {
  Evictability found;
  const Memory& memory = copies_.memory(number);
  if ((shares_ == 0 && leases_.is_empty()) || !memory.storage) return found;
  const Result<Block> block = memory.storage->try_block();
  found.bytes = block && *block ? block->bytes : memory.storage->bytes();
  found.resource = memory.storage->resource().get();
  found.is_kept = memory.storage->is_external() || !(memory.parts & kept_).empty();
  bool is_used = false, is_alone = false;
  copies_.directory().visit(0, bytes(), [&](std::size_t, std::size_t, PlaceSet valid) {
    if ((valid & memory.parts).empty()) return;
    is_used = true;
    is_alone |= (valid & memory.parts) == valid;
  });
  found.kind = is_alone ? Eviction::dirty : is_used ? Eviction::clean : Eviction::stale;
  // Another handle of the storage would keep the memory alive.
  found.is_leased = transfer_locks_ != own_transfer_locks || memory.storage->shares() != 1;
  const std::uint64_t own_thread = this_thread();
  bool is_own = transfer_locks_ != own_transfer_locks &&
                moving_thread_.load(std::memory_order_relaxed) == own_thread;
  for (const Slot& lease : leases_.all()) {
    // A claim without a place may still choose this one. A dirty copy can be written back only if
    // no lease is open anywhere.
    const bool is_in_use = lease.place == LeaseTable::nowhere ||
                           lease.place == LeaseTable::all_memories ||
                           memory.parts.has(lease.place) || found.kind == Eviction::dirty;
    found.is_leased |= is_in_use;
    if (is_in_use) found.leased_at = lease.site;
    is_own |= is_in_use && lease.thread == own_thread;
  }
  // A dirty host copy can only be written to a spill file.
  found.could_go = !is_own && !found.is_kept &&
                   (found.kind != Eviction::dirty || number != host || options_.spill);
  found.can_go = !found.is_leased && found.could_go;
  return found;
}

Result<void> UnifiedCore::try_write_back(unsigned number, CallSite site) noexcept try {
  const PlaceSet own = copies_.memory(number).parts;
  const ByteRange all{0, bytes()};
  const std::vector<ByteRange> alone =
      ranges_where(all, [&](PlaceSet valid) { return !valid.empty() && (valid & own) == valid; });
  if (Result<void> there = try_ensure(host, {}, site); !there) return there;
  const std::uint64_t before = log_.statistics().of(TransferReason::evict).bytes;
  if (Result<void> saved = try_fetch({.range = all,
                                      .place = host,
                                      .reason = TransferReason::evict,
                                      .own = LeaseTable::no_lease,
                                      .site = site,
                                      .parts = alone});
      !saved) {
    return saved;
  }
  // The device copy is freed while these bytes are in flight. If they do not arrive, they are lost.
  note_sole_copy(alone, number);
  PressureTotals& totals = PressureTotals::instance();
  const std::lock_guard lock(totals.mutex);
  totals.statistics.written_back_bytes +=
      log_.statistics().of(TransferReason::evict).bytes - before;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

void UnifiedCore::note_sole_copy(std::span<const ByteRange> ranges, unsigned source) {
  const std::lock_guard lock(mutex_);
  for (const ByteRange& one : ranges) {
    copies_.in_flight().add_sole_copy({one, source, copies_.memory(host).stream_uses});
  }
}

Result<std::size_t> UnifiedCore::try_evict(unsigned number, Eviction most, StreamRef stream,
                                           CallSite site) noexcept {
  const auto failed = [](const Failure& failure) -> Result<std::size_t> {
    PressureTotals& totals = PressureTotals::instance();
    const std::lock_guard lock(totals.mutex);
    ++totals.statistics.failed_evictions;
    return failure;
  };
  const TryTransferLock mover(*this);
  if (!mover) return 0;
  Evictability before;
  {
    const std::lock_guard lock(mutex_);
    before = evictability_of(number, 1);
  }
  if (!before.can_go || before.kind > most) return 0;
  const bool is_spilled = before.kind == Eviction::dirty && number == host;
  StorageHandle gone;
  if (before.kind == Eviction::dirty) {
    Result<void> saved = is_spilled ? try_spill(gone, site) : try_write_back(number, site);
    if (!saved) return failed(saved.failure());
  }
  begin_transit(number);
  try {
    const std::lock_guard lock(mutex_);
    if (number != host) copies_.keep_sole_copies(copies_.memory(number).parts);
    Memory& memory = copies_.memory(number);
    // Leases that claimed their range meanwhile wait for the transfer lock and find the copy gone.
    // For a spilled copy, try_spill() has already updated the directory.
    if (!is_spilled) {
      for (PlaceSet rest = memory.parts; !rest.empty(); rest = rest.without(rest.first())) {
        copies_.directory().remove(0, bytes_, rest.first());
      }
      memory.parts = {};
      gone = std::exchange(memory.storage, {});
    }
    log_.count([&](UnifiedStatistics& counts) { counts.evicted += {1, before.bytes}; });
    if (trace::is_recording()) {
      trace::record(trace::EventKind::evict,
                    {.bytes = before.bytes, .site = site, .tag = options_.tag});
    }
  } catch (const std::bad_alloc&) {
    return failed(no_host_memory("the directory of a unified buffer", site));
  }
  free_on(std::move(gone), stream, site);
  PressureTotals& totals = PressureTotals::instance();
  const std::lock_guard lock(totals.mutex);
  PressureStatistics& all = totals.statistics;
  CopyCount& count =
      (number == host ? all.host : all.device)[static_cast<std::size_t>(before.kind)];
  count.copies += 1;
  count.bytes += before.bytes;
  return before.bytes;
}

Result<StorageHandle> UnifiedCore::try_make_memory(unsigned place, std::size_t bytes,
                                                   StreamRef stream, CallSite site,
                                                   Eviction most) noexcept {
  ResourceHandle asked;
  const unsigned number = copies_[place].memory;
  const auto try_once = [&] {
    const bool is_first = begin_transit(number);
    Result<StorageHandle> made =
        number == host
            ? allocator_.try_host_copy(bytes, stream, asked, site)
            : allocator_.try_device_copy(copies_[place].device, bytes, stream, asked, site);
    if (!made && is_first) end_transit(number);
    return made;
  };
  Result<StorageHandle> made = try_once();
  if (made || !is_shortage(made.failure())) return made;
  // Memory that was freed earlier may be available by now.
  reclaim_deferred();
  const std::size_t need =
      asked ? asked->good_size({.bytes = bytes, .stream = stream, .tag = options_.tag}) : bytes;
  EvictionRequest room(copies_.memory_of(place).resident->where(), {.bytes = need,
                                                                    .resource = asked.get(),
                                                                    .stream = stream,
                                                                    .most = most,
                                                                    .tag = options_.tag,
                                                                    .place = copies_.name_of(place),
                                                                    .site = site});
  for (int round = 0; round < max_rounds; ++round) {
    // While this request waited for its turn, another one may have freed more than it needed.
    if (round != 0 || room.has_waited()) {
      made = try_once();
      if (made || !is_shortage(made.failure())) return made;
    }
    if (round == 0 && room.is_hopeless(made.failure())) break;
    if (round == 0) room.part_uses();
    // The first round frees what is missing. If that was not enough, later rounds free the full
    // size.
    const std::size_t missing = round == 0 ? room.missing_bytes() : 0;
    if (!room.free(missing != 0 ? missing : need, made.failure())) break;
  }
  return room.refusal(made.failure());
}

// --- Policies

Result<void> UnifiedCore::try_pin_residency(Place where, bool keeps, CallSite site) noexcept {
  const TransferLock mover(*this);
  std::optional<unsigned> place;
  if (where == options_.device.place() && keeps) {
    const Result<unsigned> own = try_place(options_.device, site);
    if (!own) return own.failure();
    place = *own;
  } else {
    const std::lock_guard lock(mutex_);
    place = copies_.find(where);
  }
  if (!place && !keeps) return {};
  if (!place) {
    return Failure(ErrorCode::invalid_device,
                   "{spec} is not a place of buffer '{tag}', so there is no copy to pin. Prefetch "
                   "the buffer to {spec} first.",
                   site)
        .with("spec", where.text())
        .with("tag", options_.tag.name());
  }
  const std::lock_guard lock(mutex_);
  kept_ = keeps ? kept_.with(*place) : kept_.without(*place);
  return {};
}

void UnifiedCore::set_unwanted() noexcept {
  const std::lock_guard lock(mutex_);
  for (Memory& memory : copies_.memories()) {
    if (!memory.resident) continue;
    memory.resident->set_unwanted();
    memory.last_use = 0;
  }
}

}  // namespace tern
