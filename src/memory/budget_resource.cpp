// allocate_at_limit() decides what a request does at the limit of its budget: drain completed
// frees, recycle memory that its stream freed, wait for pending frees (unless Overflow::fail or
// Wait::never), then fail with out_of_budget. Eviction and spilling are up to unified buffers
// (eviction_request.cpp).
//
// Every block has a BlockCharge record. It is in the table of this resource while the block is
// live, and moves to the PendingFrees of the budget tree when the block is freed.

#include "tern/memory/budget_resource.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "memory/pending_frees.hpp"

namespace tern {
namespace {

/// Passes over all pending frees before a request at the limit fails.
constexpr int max_rounds = 2;

Failure twice_freed(const Block& block, CallSite site) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "the block at {address} (generation {generation}) is being freed by another "
                 "thread. Free each block once.",
                 site)
      .with("address", reinterpret_cast<std::uintptr_t>(block.address), Unit::hex)
      .with("generation", block.generation.count());
}

}  // namespace

BudgetResource::BudgetResource(ResourceHandle upstream, BudgetHandle budget)
    : WrappingResource("budget", std::move(upstream)),
      budget_(std::move(budget)),
      frees_without_waiting_(traits().frees_without_waiting),
      frees_for_host_at_once_(traits().frees_for_host_at_once) {
  if (!budget_) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a budget resource needs a budget, and the pointer is null.")
              .with("name", "budget"));
  }
  if (budget_->device() && budget_->device() != device().id()) {
    raise(Failure(ErrorCode::device_mismatch,
                  "budget '{layer}' belongs to {a} and cannot count memory of '{b}'. Use a budget "
                  "of '{b}', or a budget without a device.")
              .with("layer", budget_->path())
              .with("a", Place::device(budget_->device()).text())
              .with("b", device().spec()));
  }
  for (Shard& shard : shards_) shard.buckets.resize(16);
  inherited_ = budget_->charge(this->upstream()->statistics().live_bytes);
  budget_->frees_->add(this);
}

// Ends the charges of blocks that were never freed through this resource. Pending charges stay with
// the budget; they only lose their link to pending_bytes_.
BudgetResource::~BudgetResource() {
  budget_->frees_->forget(this);
  budget_->frees_->forget(&pending_bytes_);
  for (Shard& shard : shards_) {
    for (BlockCharge* record : shard.buckets) {
      while (record != nullptr) {
        budget_->release(record->bytes, record->tag);
        delete std::exchange(record, record->next);
      }
    }
  }
}

Statistics BudgetResource::statistics() const noexcept {
  Statistics now = WrappingResource::statistics();
  now.pending_bytes = pending_bytes_.load();
  return now;
}

// --- Allocate

Result<Block> BudgetResource::try_allocate(const Request& request) noexcept {
  counters().note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  const auto allocate = [&]() -> Result<Block> {
    if (Result<void> fits = check(request); !fits) return fits.failure();
    // Allocate all host memory that the block needs until its charge ends. If there is none,
    // nothing has to be undone, and freeing never allocates.
    Record record(new (std::nothrow) BlockCharge);
    if (!record) return no_host_memory(sizeof(BlockCharge), "the record of a block", request.site);
    if (Result<void> prepared = budget_->prepare(request.tag); !prepared) {
      return Failure(prepared.failure()).at(request.site);
    }
    const std::size_t bytes = good_size(request);
    if (request.reservation != nullptr) {
      return allocate_drawn(request, bytes, std::move(record));
    }
    if (budget_->claim(bytes) != nullptr) {
      return allocate_at_limit(request, bytes, std::move(record));
    }
    return allocate_claimed(request, bytes, std::move(record));
  };
  Result<Block> block = allocate();
  if (!block) counters().note_refusal();
  return block;
}

// The common case: `bytes` are claimed, so allocate, then admit them or undo the claim.
Result<Block> BudgetResource::allocate_claimed(const Request& request, std::size_t bytes,
                                               Record record) noexcept {
  Request below = request;
  below.reservation = nullptr;
  Result<Block> block = upstream()->try_allocate(below);
  if (!block) {
    budget_->unclaim(bytes);
    return block;
  }
  if (Result<void> fits = fit_claim(request, bytes, block->bytes); !fits) {
    upstream()->deallocate(*block, request.stream, request.site);
    budget_->unclaim(bytes);
    return fits.failure();
  }
  budget_->admit(block->bytes, request.tag);
  return keep(*block, request.tag, std::move(record));
}

// Adjusts the claim if the upstream granted another size than good_size() promised.
Result<void> BudgetResource::fit_claim(const Request& request, std::size_t claimed,
                                       std::size_t granted) noexcept {
  // good_size() promises the exact size. If an upstream breaks the promise, the budget still counts
  // the granted bytes.
  if (granted < claimed) budget_->unclaim(claimed - granted);
  if (granted <= claimed) return {};
  const Budget* refused = budget_->claim_or_drain(granted - claimed);
  if (refused == nullptr) return {};
  return refuse(*refused, request, granted);
}

// Allocates from a reservation. On failure, the reservation gets its bytes back.
Result<Block> BudgetResource::allocate_drawn(const Request& request, std::size_t bytes,
                                             Record record) noexcept {
  Reservation& reservation = *request.reservation;
  const Budget* const from = reservation.budget().get();
  if (from == nullptr || !budget_->is_under(from)) {
    return Failure(ErrorCode::invalid_argument,
                   "a reservation of '{value}' cannot be used for memory that is charged to "
                   "'{layer}'. Reserve in '{layer}', or in a budget above it.",
                   request.site)
        .with("name", "reservation")
        .with("value", from == nullptr ? "no budget" : from->path())
        .with("layer", budget_->path());
  }
  // The reservation has claimed bytes at its own budget and above. Claim the levels below it now.
  if (const Budget* refused = budget_->claim_or_drain(bytes, from)) {
    return refuse(*refused, request, bytes);
  }
  if (!reservation.draw(bytes)) {
    budget_->unclaim(bytes, from);
    return Failure(ErrorCode::out_of_budget,
                   "a reservation in budget '{layer}' has {remaining} left, and the request needs "
                   "{would_grant}. Reserve more, or allocate without the reservation.",
                   request.site)
        .with("layer", from->path())
        .with_bytes("requested", request.bytes)
        .with_bytes("would_grant", bytes)
        .with_bytes("remaining", reservation.bytes())
        .with("tag", request.tag.name())
        .with("device", device().spec());
  }
  Request below = request;
  below.reservation = nullptr;
  Result<Block> block = upstream()->try_allocate(below);
  Result<void> fits;
  if (block) fits = fit_claim(request, bytes, block->bytes);
  if (block && fits) {
    budget_->admit(block->bytes, request.tag);
    return keep(*block, request.tag, std::move(record));
  }
  if (block) upstream()->deallocate(*block, request.stream, request.site);
  reservation.put_back(bytes);
  budget_->unclaim(bytes, from);
  return block ? Result<Block>(fits.failure()) : block;
}

// The limit is reached: drain, recycle, wait, in this order, until the request fits or nothing is
// left.
Result<Block> BudgetResource::allocate_at_limit(const Request& request, std::size_t bytes,
                                                Record record) noexcept {
  const bool may_wait = budget_->overflow() != Overflow::fail && request.wait != Wait::never;
  std::uint64_t waited_for = 0;
  // A second pass, because a request that took pending bytes and put them back may have put them
  // before the frees already waited for.
  for (int rounds = 0; rounds < max_rounds;) {
    const Budget* refused = budget_->claim_or_drain(bytes);
    if (refused == nullptr) return allocate_claimed(request, bytes, std::move(record));
    if (const Block block = allocate_recycled(request, bytes, record)) return block;
    // allocate_recycled() may have used up the record.
    if (!record) record.reset(new (std::nothrow) BlockCharge);
    if (!record || !may_wait || !refused->fits_after_pending(bytes)) {
      return refuse(*refused, request, bytes);
    }
    const auto oldest = budget_->frees_->oldest(refused, waited_for);
    if (!oldest) {
      waited_for = 0;
      ++rounds;
      continue;
    }
    // If the wait fails, the stream's bytes stay pending, and the next oldest free is tried.
    waited_for = oldest->order;
    static_cast<void>(Device::try_wait(oldest->mark));
  }
  const Budget* refused = budget_->claim_or_drain(bytes);
  if (refused != nullptr) return refuse(*refused, request, bytes);
  return allocate_claimed(request, bytes, std::move(record));
}

// Takes pending charges of the request's own stream, claims the rest, and asks the upstream for
// memory that the stream has freed. The taken charges are then retagged instead of released and
// claimed again. On failure the charges become pending again.
Block BudgetResource::allocate_recycled(const Request& request, std::size_t bytes,
                                        Record& record) noexcept {
  if (!request.stream.id()) return {};
  BlockCharge* spare = record.release();
  const PendingFrees::Taken taken =
      budget_->frees_->take(request.stream.id(), &pending_bytes_, bytes, spare);
  record.reset(spare);
  if (taken.first == nullptr) return {};
  const std::size_t rest = bytes - taken.bytes;
  if (budget_->claim(rest) != nullptr) {
    budget_->frees_->put_back(taken);
    return {};
  }
  Request below = request;
  below.only_recycled = true;
  const Result<Block> block = upstream()->try_allocate(below);
  if (!block || block->bytes != bytes) {
    if (block) upstream()->deallocate(*block, request.stream, request.site);
    budget_->unclaim(rest);
    budget_->frees_->put_back(taken);
    return {};
  }
  for (BlockCharge* one = taken.first; one != nullptr;) {
    budget_->retag(one->bytes, one->tag, request.tag);
    BlockCharge* const next = one->next;
    if (record) {
      delete one;
    } else {
      record.reset(one);
    }
    one = next;
  }
  budget_->admit(rest, request.tag);
  return keep(*block, request.tag, std::move(record));
}

Block BudgetResource::keep(const Block& block, Tag tag, Record record) noexcept {
  *record = BlockCharge{};
  record->block = block;
  record->bytes = block.bytes;
  record->tag = tag;
  record->budget = budget_.get();
  record->resource_pending = &pending_bytes_;
  insert(record.release());
  counters().note_allocation(block.bytes);
  return block;
}

Failure BudgetResource::refuse(const Budget& level, const Request& request,
                               std::size_t bytes) const noexcept {
  return level.refusal(request.bytes, bytes, request.tag, device().spec(), request.site);
}

// --- Free

// The record is marked before the upstream is called, so that a concurrent second free of the same
// block fails here.
Result<void> BudgetResource::try_deallocate(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept {
  if (!block) return {};
  Shard& shard = shard_of(block.generation);
  BlockCharge* record = nullptr;
  {
    const std::lock_guard lock(shard.mutex);
    record = find(block, shard);
    if (record != nullptr && record->is_being_freed) return twice_freed(block, site);
    if (record != nullptr) record->is_being_freed = true;
  }
  if (record == nullptr) return free_inherited(block, stream, site);
  Result<void> freed = upstream()->try_deallocate(block, stream, site);
  {
    const std::lock_guard lock(shard.mutex);
    record->is_being_freed = false;
    if (!freed) return freed;
    erase(record, shard);
  }
  counters().note_free(block.bytes);
  end(Record(record), stream);
  return freed;
}

Result<void> BudgetResource::free_inherited(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept {
  // The block is not in the table: either the upstream allocated it before this wrapper was made,
  // or the free is a mistake. The upstream can tell.
  Record record(new (std::nothrow) BlockCharge);
  if (!record) return no_host_memory(sizeof(BlockCharge), "the record of a block", site);
  {
    const std::lock_guard lock(inherited_mutex_);
    record->bytes = std::min(inherited_.bytes_, block.bytes);
    inherited_.bytes_ -= record->bytes;
  }
  Result<void> freed = upstream()->try_deallocate(block, stream, site);
  if (freed) {
    end(std::move(record), stream);
  } else {
    const std::lock_guard lock(inherited_mutex_);
    inherited_.bytes_ += record->bytes;
  }
  return freed;
}

void BudgetResource::end(Record record, StreamRef stream) noexcept {
  if (record->bytes == 0) return;
  record->budget = budget_.get();
  record->resource_pending = &pending_bytes_;
  const bool is_free = !stream.id() && frees_for_host_at_once_;
  if (frees_without_waiting_ && !is_free) {
    // Take the mark after the free, so that the mark covers the free. A destroyed stream returns
    // its last mark. If there is no mark, the upstream has already waited.
    if (!stream.id()) stream = device().default_stream();
    const Result<Mark> mark = stream.try_mark();
    record->mark = mark ? *mark : device().next_mark(stream.id());
    if (record->mark) {
      budget_->frees_->add(record.release());
      return;
    }
  }
  budget_->release(record->bytes, record->tag);
}

// --- The table of blocks

BudgetResource::Shard& BudgetResource::shard_of(Generation generation) noexcept {
  return shards_[generation.slot() % shards_.size()];
}

void BudgetResource::insert(BlockCharge* record) noexcept {
  Shard& shard = shard_of(record->block.generation);
  const std::size_t place = record->block.generation.slot() / shards_.size();
  const std::lock_guard lock(shard.mutex);
  if (shard.count >= shard.buckets.size()) {
    try {
      std::vector<BlockCharge*> wider(shard.buckets.size() * 2);
      for (BlockCharge* one : shard.buckets) {
        while (one != nullptr) {
          BlockCharge* const next = one->next;
          const std::size_t at = one->block.generation.slot() / shards_.size() % wider.size();
          one->next = std::exchange(wider[at], one);
          one = next;
        }
      }
      shard.buckets = std::move(wider);
    } catch (const std::bad_alloc&) {
      // The lists stay longer; lookups are slower but correct.
    }
  }
  ++shard.count;
  record->next = std::exchange(shard.buckets[place % shard.buckets.size()], record);
}

BlockCharge* BudgetResource::find(const Block& block, Shard& shard) noexcept {
  const std::size_t place = block.generation.slot() / shards_.size();
  BlockCharge* record = shard.buckets[place % shard.buckets.size()];
  while (record != nullptr && record->block != block) record = record->next;
  return record;
}

void BudgetResource::erase(BlockCharge* record, Shard& shard) noexcept {
  const std::size_t place = record->block.generation.slot() / shards_.size();
  BlockCharge** link = &shard.buckets[place % shard.buckets.size()];
  while (*link != record) link = &(*link)->next;
  *link = record->next;
  --shard.count;
}

Overflow overflow_of(const Resource* resource) noexcept {
  Overflow least = Overflow::spill;
  while (const auto* wrapping = dynamic_cast<const WrappingResource*>(resource)) {
    if (const auto* limited = dynamic_cast<const BudgetResource*>(wrapping)) {
      least = std::min(least, limited->budget()->overflow());
    }
    resource = wrapping->upstream().get();
  }
  return least;
}

}  // namespace tern
