// allocate_at_limit() decides what a request does at the limit of its budget: drain completed
// frees, recycle memory that its stream freed, wait for pending frees (unless Overflow::fail or
// Wait::never), then fail with out_of_budget. Eviction and spilling are up to unified buffers
// (eviction_request.cpp).
//
// Budget::claim_here() (budget.cpp) compares with the limit. free_claimed() and mark_of_free()
// decide whether a free becomes pending or its charge ends at once.
//
// Every block has a BlockCharge in the ChargeBook of this resource. Memory that the upstream
// recycles keeps its charge (recycle()).

#include "tern/memory/budget_resource.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "memory/budget_recorder.hpp"
#include "memory/charge_book.hpp"
#include "memory/pending_frees.hpp"
#include "tern/memory/pool_resource.hpp"
#include "trace/recording.hpp"

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

/// Returns the pool below, or null. Another budget in between bounds the pool by itself.
PoolResource* find_pool(Resource* resource) noexcept {
  while (auto* wrapping = dynamic_cast<WrappingResource*>(resource)) {
    if (dynamic_cast<BudgetResource*>(wrapping) != nullptr) return nullptr;
    resource = wrapping->upstream().get();
  }
  return dynamic_cast<PoolResource*>(resource);
}

/// Adds the fields that all events of requests at a limit have, and records the event.
void record_budget(trace::EventKind kind, const Device& device, const Request& request,
                   trace::EventFacts facts) noexcept {
  facts.stream = request.stream.id().value();
  facts.bytes = request.bytes;
  facts.site = request.site;
  facts.tag = request.tag;
  facts.device = {device.id().value, device.spec()};
  trace::record(kind, facts);
}

/// The request that goes to the upstream.
Request charged(const Request& request) noexcept {
  Request below = request;
  below.reservation = nullptr;
  below.is_charged = true;
  return below;
}

}  // namespace

BudgetResource::BudgetResource(ResourceHandle upstream, BudgetHandle budget)
    : WrappingResource("budget", std::move(upstream)),
      budget_(std::move(budget)),
      frees_without_waiting_(traits().frees_without_waiting),
      frees_for_host_at_once_(traits().frees_for_host_at_once),
      pool_(find_pool(this->upstream().get())) {
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
  inherited_ = budget_->charge(this->upstream()->statistics().live_bytes);
  try {
    book_ = budget_->frees_->make_book(*budget_, *this);
    if (pool_ != nullptr) pool_->add_budget(*budget_);
  } catch (const std::bad_alloc&) {
    if (book_) budget_->frees_->forget(*this);
    raise(no_host_memory(sizeof(ChargeBook), "the records of a budget"));
  }
}

// Ends the charges of blocks that were never freed through this resource. Pending charges stay with
// the budget.
BudgetResource::~BudgetResource() {
  budget_->frees_->forget(*this);
  if (pool_ != nullptr) pool_->remove_budget(*budget_);
}

Statistics BudgetResource::statistics() const noexcept {
  Statistics now = WrappingResource::statistics();
  const Statistics own = book_->statistics();
  now.live_bytes = own.live_bytes;
  now.live_blocks = own.live_blocks;
  // Everything that is live is charged, so the peak of the charges is an upper bound, too.
  now.peak_live_bytes = std::min(own.peak_live_bytes, budget_->lifetime_peak_.load());
  now.requests = own.requests;
  now.refusals = own.refusals;
  now.frees = own.frees;
  now.pending_bytes = own.pending_bytes;
  return now;
}

// --- Allocate

// Allocating and freeing fast never takes the address of a local variable, which would make the
// compiler add a stack guard. Code that needs an address is in a function of its own.

Result<Block> BudgetResource::try_allocate(const Request& request) noexcept {
  retry_before_allocation();
  Result<Block> block = Block{};
  if (!recycle(request, *block)) allocate_slow(request, block);
  return block;
}

// The fast path: the upstream recycles memory whose charge is still pending.
bool BudgetResource::recycle(const Request& request, Block& into) noexcept {
  const StreamId stream = request.stream.id();
  return stream && request.reservation == nullptr && book_->may_have_pending(stream) &&
         upstream()->recycle(request, into) &&
         (book_->try_revive(into, request.tag) || charge_recycled(into, request));
}

[[gnu::noinline]] void BudgetResource::allocate_slow(const Request& request,
                                                     Result<Block>& block) noexcept {
  if (request.bytes == 0) {
    book_->note_request(request.stream.id(), false);
    block = Block{};
    return;
  }
  if (book_->is_forked()) {
    block = upstream()->try_allocate(request);
    return;
  }
  const auto allocate = [&]() -> Result<Block> {
    if (Result<void> fits = check(request); !fits) return fits.failure();
    if (Result<void> prepared = budget_->prepare(request.tag); !prepared) {
      return Failure(prepared.failure()).at(request.site);
    }
    budget_->answer_requests();
    const std::size_t bytes = good_size(request);
    if (request.reservation != nullptr) return allocate_drawn(request, bytes);
    if (budget_->claim(bytes) != nullptr) return allocate_at_limit(request, bytes);
    return allocate_claimed(request, bytes);
  };
  block = allocate();
  if (!block) book_->note_request(request.stream.id(), true);
}

[[gnu::noinline]] bool BudgetResource::charge_recycled(const Block& block,
                                                       const Request& request) noexcept {
  BlockCharge* const charge = book_->try_open(block);
  const bool is_charged =
      charge != nullptr && budget_->prepare(request.tag) && budget_->claim(block.bytes) == nullptr;
  if (!is_charged) {
    upstream()->deallocate(block, request.stream, request.site);
    return false;
  }
  budget_->admit(block.bytes, request.tag);
  book_->begin(*charge, block, request.tag, request.stream.id());
  return true;
}

// The common case: `bytes` are claimed, so allocate, then admit them or undo the claim.
Result<Block> BudgetResource::allocate_claimed(const Request& request, std::size_t bytes) noexcept {
  Result<Block> block = upstream()->try_allocate(charged(request));
  if (!block) {
    budget_->unclaim(bytes);
    return block;
  }
  const Result<BlockCharge*> charge = try_make_charge(*block, request);
  Result<void> fits = charge ? Result<void>() : Result<void>(charge.failure());
  if (fits) fits = fit_claim(request, bytes, block->bytes);
  if (!fits) {
    upstream()->deallocate(*block, request.stream, request.site);
    budget_->unclaim(bytes);
    return fits.failure();
  }
  budget_->admit(block->bytes, request.tag);
  book_->begin(**charge, *block, request.tag, request.stream.id());
  return block;
}

Result<BlockCharge*> BudgetResource::try_make_charge(const Block& block,
                                                     const Request& request) noexcept {
  if (BlockCharge* const charge = book_->try_open(block)) return charge;
  return no_host_memory(sizeof(BlockCharge), "the record of a block", request.site);
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
Result<Block> BudgetResource::allocate_drawn(const Request& request, std::size_t bytes) noexcept {
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
  Result<Block> block = upstream()->try_allocate(charged(request));
  Result<void> fits;
  Result<BlockCharge*> charge = nullptr;
  if (block) charge = try_make_charge(*block, request);
  if (!charge) fits = charge.failure();
  if (block && fits) fits = fit_claim(request, bytes, block->bytes);
  if (block && fits) {
    budget_->admit(block->bytes, request.tag);
    book_->begin(**charge, *block, request.tag, request.stream.id());
    return block;
  }
  if (block) upstream()->deallocate(*block, request.stream, request.site);
  reservation.put_back(bytes);
  budget_->unclaim(bytes, from);
  return block ? Result<Block>(fits.failure()) : block;
}

// The limit is reached: drain, recycle, wait, in this order, until the request fits or nothing is
// left.
Result<Block> BudgetResource::allocate_at_limit(const Request& request,
                                                std::size_t bytes) noexcept {
  const bool may_wait = budget_->overflow() != Overflow::fail && request.wait != Wait::never;
  ChargeBook::Oldest waited_for;
  // A second pass, because a request that took pending bytes and put them back may have put them
  // before the frees already waited for.
  for (int rounds = 0; rounds < max_rounds;) {
    const Budget* refused = budget_->claim_or_drain(bytes);
    if (refused == nullptr) return allocate_claimed(request, bytes);
    if (const Block block = allocate_recycled(request, bytes)) return block;
    if (!may_wait || !refused->fits_after_pending(bytes)) return refuse(*refused, request, bytes);
    const auto oldest = budget_->frees_->oldest(refused, waited_for);
    if (!oldest) {
      waited_for = {};
      ++rounds;
      continue;
    }
    // If the wait fails, the stream's bytes stay pending, and the next oldest free is tried.
    waited_for = *oldest;
    const std::uint64_t begun_ns = trace::is_recording() ? trace::now_ns() : 0;
    static_cast<void>(Device::try_wait(oldest->mark));
    if (begun_ns != 0) {
      record_budget(trace::EventKind::budget_wait, device(), request,
                    {.block = refused->recorder_->number(),
                     .extra = trace::now_ns() - begun_ns,
                     .time_ns = begun_ns});
    }
  }
  const Budget* refused = budget_->claim_or_drain(bytes);
  if (refused != nullptr) return refuse(*refused, request, bytes);
  return allocate_claimed(request, bytes);
}

// Takes pending charges of the request's own stream, claims the rest, and asks the upstream for
// memory that the stream has freed. The taken charges are then retagged instead of released and
// claimed again. On failure the charges become pending again.
Block BudgetResource::allocate_recycled(const Request& request, std::size_t bytes) noexcept {
  if (!request.stream.id()) return {};
  const ChargeBook::Taken taken = book_->take(request.stream.id(), bytes);
  if (taken.bytes == 0) return {};
  const std::size_t rest = bytes - taken.bytes;
  if (budget_->claim(rest) != nullptr) {
    book_->put_back(taken);
    return {};
  }
  Request below = charged(request);
  below.only_recycled = true;
  const Result<Block> block = upstream()->try_allocate(below);
  BlockCharge* const charge = block && block->bytes == bytes ? book_->try_open(*block) : nullptr;
  if (charge == nullptr) {
    if (block) upstream()->deallocate(*block, request.stream, request.site);
    budget_->unclaim(rest);
    book_->put_back(taken);
    return {};
  }
  for (const BlockCharge* part = taken.first; part != nullptr; part = part->newer) {
    budget_->retag(part->bytes, part->tag, request.tag);
  }
  ChargeBook::discard(taken);
  budget_->admit(rest, request.tag);
  book_->begin(*charge, *block, request.tag, request.stream.id());
  return *block;
}

Failure BudgetResource::refuse(const Budget& level, const Request& request,
                               std::size_t bytes) const noexcept {
  if (trace::is_recording() && !request.only_recycled) {
    record_budget(trace::EventKind::budget_refuse, device(), request,
                  {.block = level.recorder_->number(), .text = level.path()});
    trace::dump_after_failure();
  }
  return level.refusal(request.bytes, bytes, request.tag, device().spec(), request.site);
}

// --- Free

// The charge is claimed before the upstream is called, so that a concurrent second free of the same
// block fails here.
Result<void> BudgetResource::try_deallocate(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept {
  const ChargeClaim claim = book_->claim(block);
  if (claim.charge == nullptr) [[unlikely]]
    return free_unclaimed(block, stream, site);
  return free_claimed(claim, block, stream, site);
}

// A separate function, so that the upstream writes its result where the caller wants it.
Result<void> BudgetResource::free_claimed(ChargeClaim claim, const Block& block, StreamRef stream,
                                          const CallSite& site) noexcept {
  const Tag tag = claim.charge->tag;  // if the charge is revived, its tag may change
  Result<void> freed = upstream()->try_deallocate(block, stream, site);
  if (!freed) {
    ChargeBook::unclaim(claim);
  } else if (const Mark mark = mark_of_free(stream)) {
    book_->add(claim, block.bytes, mark);
  } else {
    book_->end(claim, block.bytes, tag);
  }
  return freed;
}

[[gnu::noinline]] Result<void> BudgetResource::free_unclaimed(const Block& block, StreamRef stream,
                                                              const CallSite& site) noexcept {
  if (!block) return {};
  // A forked child charges nothing, so its blocks are none of those that existed before.
  if (book_->is_forked()) return upstream()->try_deallocate(block, stream, site);
  if (book_->is_being_freed(block)) return twice_freed(block, site);
  return free_inherited(block, stream, site);
}

Result<void> BudgetResource::free_inherited(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept {
  // The block has no charge: either the upstream allocated it before this wrapper was made, or the
  // free is a mistake. The upstream can tell.
  std::unique_ptr<BlockCharge> record = ChargeBook::try_make_record();
  if (!record) return no_host_memory(sizeof(BlockCharge), "the record of a block", site);
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(inherited_mutex_);
    bytes = std::min(inherited_.bytes_, block.bytes);
    inherited_.bytes_ -= bytes;
  }
  Result<void> freed = upstream()->try_deallocate(block, stream, site);
  if (!freed) {
    const std::lock_guard lock(inherited_mutex_);
    inherited_.bytes_ += bytes;
  } else if (bytes != 0) {
    if (const Mark mark = mark_of_free(stream)) {
      book_->add_pending(std::move(record), bytes, {}, mark);
    } else {
      budget_->release(bytes, {});
    }
  }
  return freed;
}

// The mark is taken after the free, so that it covers the free.
Mark BudgetResource::mark_of_free(StreamRef stream) const noexcept {
  StreamState* const state = DeviceState::state_of(stream);
  if (!frees_without_waiting_ || state == nullptr || !state->is_open_as(stream.id()) ||
      !state->device->is_in_its_process()) [[unlikely]] {
    return mark_of_other_free(stream);
  }
  // Code that borrows a stream for each call would pay for an event with each free.
  if (state->is_kept_by_device()) return {stream.id(), state->promise_next_of_free()};
  return {stream.id(), state->issue()};
}

[[gnu::noinline]] Mark BudgetResource::mark_of_other_free(StreamRef stream) const noexcept {
  const bool is_free = !stream.id() && frees_for_host_at_once_;
  // No stream of the parent process uses the memory of a forked child.
  if (!frees_without_waiting_ || is_free || book_->is_forked()) return {};
  if (!stream.id()) return mark_of_free(device().default_stream());
  // A destroyed stream returns its last mark. If there is no mark, the upstream has already waited.
  return DeviceState::of(device())->next_mark_of_free(stream.id());
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
