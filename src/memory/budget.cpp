// The counters of a budget tree: claim() charges every level, claim_here() enforces the limit of
// one level, refusal() explains why it could not. The charge of a freed block ends in
// ChargeBook::end_until() (charge_book.cpp), when its stream has passed the free.

#include "tern/memory/budget.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "memory/budget_recorder.hpp"
#include "memory/budget_state.hpp"
#include "memory/pending_frees.hpp"
#include "tern/device/device.hpp"
#include "tern/memory/shared_budget.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

/// Returns whether a change of a counter, which this thread has just made, must be recorded. Unlike
/// trace::is_recording(), the load cannot move before the change: if it finds no recording, one
/// that starts reads the changed counter (BudgetRecorder::recording_changed()).
bool is_change_recorded() noexcept {
  return trace::current_recording.load(std::memory_order_seq_cst) != nullptr;
}

void raise_to(std::atomic<std::size_t>& peak, std::size_t bytes) noexcept {
  std::size_t seen = peak.load();
  while (seen < bytes && !peak.compare_exchange_weak(seen, bytes)) {
  }
}

std::string path_of(const BudgetHandle& parent, std::string_view name) {
  return parent ? parent->path() + '/' + std::string(name) : std::string(name);
}

void check_device(std::string_view name, DeviceId own, DeviceId other) {
  if (!own || !other || own == other) return;
  raise(Failure(ErrorCode::device_mismatch,
                "budget '{layer}' belongs to {a}, and its parent or limit belongs to {b}. All "
                "budgets of a tree must belong to one device, or to none.")
            .with("layer", name)
            .with("a", Place::device(own).text())
            .with("b", Place::device(other).text()));
}

void check_shared(std::string_view name, const BudgetOptions& options) {
  if (!options.shared || !options.parent) return;
  raise(Failure(ErrorCode::invalid_argument,
                "budget '{layer}' has a parent, so it cannot have a shared budget: only the root of "
                "a tree can. Give the shared budget to the root '{root}'.")
            .with("name", "shared")
            .with("layer", name)
            .with("root", options.parent->path()));
}

}  // namespace

std::string_view name(Overflow overflow) noexcept {
  switch (overflow) {
    case Overflow::fail:
      return "fail";
    case Overflow::wait:
      return "wait";
    case Overflow::evict:
      return "evict";
    case Overflow::spill:
      return "spill";
  }
  return "unknown";
}

BudgetLimit BudgetLimit::fraction_of(const Device& device, double fraction) {
  // Written so that NaN is rejected, too.
  if (!(fraction > 0 && fraction <= 1)) {
    raise(Failure(ErrorCode::invalid_argument,
                  "the fraction of a device's memory must be above 0 and at most 1.")
              .with("name", "fraction"));
  }
  const auto total = static_cast<double>(device.memory().total_bytes);
  return {bytes(static_cast<std::size_t>(total * fraction)).bytes_, device.id()};
}

BudgetHandle Budget::make(std::string_view name, BudgetLimit limit, const BudgetOptions& options) {
  if (name.empty()) {
    raise(Failure(ErrorCode::invalid_argument, "a budget needs a name, which its errors print.")
              .with("name", "name"));
  }
  const DeviceId above = options.parent ? options.parent->device() : DeviceId{};
  DeviceId device = options.device ? options.device : limit.device();
  if (!device) device = above;
  check_device(name, device, limit.device());
  check_device(name, device, above);
  check_shared(name, options);
  try {
    BudgetHandle made(new Budget(name, limit, options, device));
    if (options.shared) options.shared->attach(made);
    return made;
  } catch (const std::bad_alloc&) {
    raise(no_host_memory(sizeof(Budget), "the records of a budget"));
  }
}

Budget::Budget(std::string_view name, BudgetLimit limit, const BudgetOptions& options,
               DeviceId device)
    : name_(name),
      parent_(options.parent),
      shared_(parent_ ? parent_->shared_ : options.shared),
      path_(path_of(parent_, name)),
      device_(device),
      overflow_(options.overflow),
      bounds_held_(options.bounds_held),
      frees_(parent_ ? parent_->frees_ : std::make_shared<PendingFrees>()),
      limit_(limit.bytes_) {
  recorder_ = std::make_unique<BudgetRecorder>(*this);
}

Budget::~Budget() {
  // Until forget() returns, another thread may end charges of this budget and record its use.
  frees_->forget(*this);
  recorder_.reset();
  // Pending charges that belong to no budget any more would stay in the shared budget.
  if (has_shared_above()) shared_->release(charged_.load());
  for (std::atomic<TagPage*>& page : tag_pages_) delete page.load();
}

// --- Queries

std::size_t Budget::live_bytes() const noexcept {
  const std::size_t pending = pending_bytes(), used = used_bytes();
  return used > pending ? used - pending : 0;
}

std::size_t Budget::pending_bytes() const noexcept { return frees_->bytes(*this); }

std::size_t Budget::pending_bytes(StreamId stream) const noexcept { return frees_->bytes(stream); }

std::uint64_t Budget::failed_queries() const noexcept { return frees_->failed_queries(); }

std::size_t Budget::remaining_bytes() const noexcept {
  const std::size_t charged = charged_.load(), limit = limit_bytes();
  const std::size_t own = limit > charged ? limit - charged : 0;
  return has_shared_above() ? std::min(own, shared_->remaining_bytes()) : own;
}

bool Budget::would_fit(std::size_t bytes) const noexcept {
  for (const Budget* level = this; level != nullptr; level = level->parent_.get()) {
    if (bytes > level->remaining_bytes()) return false;
  }
  return true;
}

std::size_t Budget::used_bytes(Tag tag) const noexcept {
  const TagPage* page = tag_pages_[tag.number() / tags_per_page].load();
  return page == nullptr ? 0 : (*page)[tag.number() % tags_per_page].load();
}

std::vector<std::pair<Tag, std::size_t>> Budget::used_by_tag() const {
  std::vector<std::pair<Tag, std::size_t>> uses;
  for (std::size_t i = 0; i < tag_pages_.size(); ++i) {
    const TagPage* page = tag_pages_[i].load();
    if (page == nullptr) continue;
    for (std::size_t j = 0; j < tags_per_page; ++j) {
      const std::size_t used = (*page)[j].load();
      if (used == 0) continue;
      // A tag is its number. The counter is not 0, so a tag with this number exists.
      uses.push_back({std::bit_cast<Tag>(static_cast<std::uint16_t>(i * tags_per_page + j)), used});
    }
  }
  return uses;
}

void Budget::set_limit(BudgetLimit limit) {
  check_device(path_, device_, limit.device());
  limit_.store(limit.bytes_);
  if (is_change_recorded()) recorder_->record();
  frees_->bound_pools();
}

bool Budget::is_under(const Budget* ancestor) const noexcept {
  const Budget* level = this;
  while (level != nullptr && level != ancestor) level = level->parent_.get();
  return level == ancestor;
}

bool Budget::fits_after_pending(std::size_t bytes) const noexcept {
  // Pending first: a charge that ends in between is then missing from both, and nothing is refused
  // that would fit.
  const std::size_t pending = pending_bytes(), charged = charged_.load(), limit = limit_bytes();
  const std::size_t kept = charged > pending ? charged - pending : 0;
  if (kept > limit || bytes > limit - kept) return false;
  return !has_shared_above() || bytes <= pending || bytes - pending <= shared_->remaining_bytes();
}

// --- Claiming, admitting, releasing

// Charges this level only, and for a root its shared budget. The loop makes check and claim one
// atomic step. The own limit comes first: a request that it refuses is not charged to other
// processes for a moment.
bool Budget::claim_here(std::size_t bytes) noexcept {
  std::size_t charged = charged_.load();
  do {
    // Compared without adding, which could wrap. `charged > limit` happens after the limit was
    // lowered.
    const std::size_t limit = limit_bytes();
    if (charged > limit || bytes > limit - charged) return false;
  } while (!charged_.compare_exchange_weak(charged, charged + bytes));
  if (!has_shared_above() || shared_->claim(bytes)) return true;
  charged_ -= bytes;
  return false;
}

void Budget::unclaim_here(std::size_t bytes) noexcept {
  charged_ -= bytes;
  if (has_shared_above()) shared_->release(bytes);
}

// Claims level by level, from this budget up. If a level has no room, the levels below it are
// undone.
const Budget* Budget::claim(std::size_t bytes, const Budget* end) noexcept {
  for (Budget* level = this; level != end; level = level->parent_.get()) {
    if (level->claim_here(bytes)) {
      level->provisional_ += bytes;
      continue;
    }
    unclaim(bytes, level);
    return level;
  }
  return nullptr;
}

void Budget::unclaim(std::size_t bytes, const Budget* end) noexcept {
  for (Budget* level = this; level != end; level = level->parent_.get()) {
    level->provisional_ -= bytes;
    level->unclaim_here(bytes);
  }
}

const Budget* Budget::claim_or_drain(std::size_t bytes, const Budget* end) noexcept {
  const Budget* refused = claim(bytes, end);
  if (refused == nullptr) return nullptr;
  drain();
  // Claim again even if this drain released nothing: another thread may have drained in between.
  return claim(bytes, end);
}

// The memory exists now. The bytes stay charged; they only move from provisional to admitted.
void Budget::admit(std::size_t bytes, Tag tag) noexcept {
  for (Budget* level = this; level != nullptr; level = level->parent_.get()) {
    level->tag_total(tag) += bytes;
    const std::size_t used = level->admit_here(bytes);
    level->provisional_ -= bytes;
    if (is_change_recorded()) [[unlikely]]
      level->recorder_->record_reached(used);
  }
}

std::size_t Budget::admit_here(std::size_t bytes) noexcept {
  std::size_t admitted = admitted_.load();
  while ((admitted & window_bit) == 0) {
    if (!admitted_.compare_exchange_weak(admitted, admitted + bytes)) continue;
    raise_to(lifetime_peak_, admitted + bytes);
    return admitted + bytes;
  }
  // A window is open. A window is opened under the lock, so it has either counted these bytes in
  // its initial value or is in the list now.
  const std::lock_guard lock(window_mutex_);
  const std::size_t now = ((admitted_ += bytes) & ~window_bit);
  raise_to(lifetime_peak_, now);
  for (PeakSlot* slot = windows_; slot != nullptr; slot = slot->next) {
    if (slot->peak_bytes < now) slot->peak_bytes = now;
  }
  return now;
}

void Budget::release(std::size_t bytes, Tag tag) noexcept {
  release_unrecorded(bytes, tag);
  record_use();
}

void Budget::release_unrecorded(std::size_t bytes, Tag tag) noexcept {
  for (Budget* level = this; level != nullptr; level = level->parent_.get()) {
    level->tag_total(tag) -= bytes;
    level->admitted_ -= bytes;
    level->unclaim_here(bytes);
  }
}

void Budget::record_use() const noexcept {
  if (!is_change_recorded()) return;
  for (const Budget* level = this; level != nullptr; level = level->parent_.get()) {
    level->recorder_->record();
  }
}

void Budget::retag(std::size_t bytes, Tag from, Tag to) noexcept {
  if (from == to) return;
  for (Budget* level = this; level != nullptr; level = level->parent_.get()) {
    level->tag_total(from) -= bytes;
    level->tag_total(to) += bytes;
  }
}

Result<void> Budget::prepare(Tag tag) noexcept {
  for (Budget* level = this; level != nullptr; level = level->parent_.get()) {
    if (!level->prepare_here(tag)) {
      return no_host_memory(sizeof(TagPage), "the records of a budget");
    }
  }
  return {};
}

// Counters of tags are in pages that are allocated on demand and freed with the budget. If two
// threads allocate the same page, one of them deletes its copy.
bool Budget::prepare_here(Tag tag) noexcept {
  std::atomic<TagPage*>& place = tag_pages_[tag.number() / tags_per_page];
  if (place.load() != nullptr) return true;
  auto* page = new (std::nothrow) TagPage{};
  if (page == nullptr) return false;
  TagPage* none = nullptr;
  if (!place.compare_exchange_strong(none, page)) delete page;
  return true;
}

std::atomic<std::size_t>& Budget::tag_total(Tag tag) noexcept {
  return (*tag_pages_[tag.number() / tags_per_page].load())[tag.number() % tags_per_page];
}

// --- Peaks

void Budget::open(PeakSlot& slot) noexcept {
  const std::lock_guard lock(window_mutex_);
  // One atomic step: an admission either is part of this value, or sees the bit and takes the lock.
  slot.peak_bytes = admitted_.fetch_or(window_bit) & ~window_bit;
  if (slot.is_open) return;
  slot.is_open = true;
  slot.next = std::exchange(windows_, &slot);
}

void Budget::close(PeakSlot& slot) noexcept {
  const std::lock_guard lock(window_mutex_);
  PeakSlot** link = &windows_;
  while (*link != &slot) link = &(*link)->next;
  *link = slot.next;
  if (windows_ == nullptr) admitted_ &= ~window_bit;
}

std::size_t Budget::peak_of(const PeakSlot& slot) const noexcept {
  // Under the lock, no admission is between counting its bytes and raising the peak.
  const std::lock_guard lock(window_mutex_);
  return slot.peak_bytes;
}

std::size_t Budget::peak_bytes() const noexcept {
  if (was_reset_.load()) return peak_of(since_reset_);
  // An admission may have counted its bytes but not raised the peak yet.
  const std::size_t used = used_bytes(), peak = lifetime_peak_.load();
  return used > peak ? used : peak;
}

void Budget::reset_peak() noexcept {
  open(since_reset_);
  was_reset_.store(true);
}

PeakWindow::PeakWindow(BudgetHandle budget) : budget_(std::move(budget)) {
  if (!budget_) {
    raise(Failure(ErrorCode::invalid_argument, "a window needs a budget, and the pointer is null.")
              .with("name", "budget"));
  }
  budget_->open(slot_);
}

PeakWindow::~PeakWindow() { budget_->close(slot_); }

// --- Requests and failures

Failure Budget::refusal(std::size_t requested, std::size_t would_grant, Tag tag,
                        std::string_view device, CallSite site) const noexcept {
  const BudgetState now = state_of(*this);
  if (has_shared_above() && now.charged_bytes <= now.limit_bytes &&
      would_grant <= now.limit_bytes - now.charged_bytes) {
    return shared_->refusal(path_, requested, would_grant)
        .at(site)
        .with_bytes("pending", now.pending_bytes)
        .with("tag", tag.name())
        .with("device", device)
        .with("fits_after_pending", std::uint64_t{fits_after_pending(would_grant)});
  }
  const std::optional<std::size_t> required = checked_add(now.charged_bytes, would_grant);
  const bool fits = fits_after_pending(would_grant);
  // Choose the message by the one change that would have made the request fit.
  const char* sentence =
      "budget '{layer}' cannot hold {would_grant} more: {current} of {limit} in use. Free "
      "something, or raise the limit by {missing}.";
  if (would_grant > now.limit_bytes) {
    sentence =
        "budget '{layer}' cannot hold {would_grant}: the request exceeds its limit of {limit} by "
        "{missing}, even if everything else is freed. Ask for less, or raise the limit.";
  } else if (fits && now.pending_bytes != 0) {
    sentence =
        "budget '{layer}' cannot hold {would_grant} more: {current} of {limit} in use, {pending} "
        "of it by pending frees. Wait for their streams.";
  } else if (now.reserved_bytes != 0 &&
             now.charged_bytes - std::min(now.charged_bytes, now.reserved_bytes) <=
                 now.limit_bytes - would_grant) {
    sentence =
        "budget '{layer}' cannot hold {would_grant} more: {current} of {limit} in use, {reserved} "
        "of it reserved. Charge the request to the reservation, or end the reservation.";
  }
  const std::size_t remaining = now.limit_bytes - std::min(now.limit_bytes, now.charged_bytes);
  // Report by how much the limit is exceeded, not the new limit: rounded, the new limit may look
  // like the old one. If the request alone exceeds the limit, the bytes in use do not matter.
  const std::size_t sum = would_grant > now.limit_bytes
                              ? would_grant
                              : required.value_or(std::numeric_limits<std::size_t>::max());
  return Failure(ErrorCode::out_of_budget, sentence, site)
      .with("layer", path_)
      .with_bytes("requested", requested)
      .with_bytes("would_grant", would_grant)
      .with_bytes("required", required.value_or(std::numeric_limits<std::size_t>::max()))
      .with("overflow", std::uint64_t{!required})
      .with_bytes("current", now.charged_bytes)
      .with_bytes("admitted", now.admitted_bytes)
      .with_bytes("pending", now.pending_bytes)
      .with_bytes("reserved", now.reserved_bytes)
      .with_bytes("limit", now.limit_bytes)
      .with_bytes("remaining", remaining)
      .with_bytes("missing", sum - std::min(sum, now.limit_bytes))
      .with_bytes("peak", now.peak_bytes)
      .with("tag", tag.name())
      .with("device", device)
      .with("fits_after_pending", std::uint64_t{fits});
}

Result<Reservation> Budget::try_reserve(std::size_t bytes, CallSite site) noexcept {
  bool is_finite = false;
  for (const Budget* level = this; level != nullptr; level = level->parent_.get()) {
    is_finite = is_finite || level->has_limit() || level->has_shared_above();
  }
  if (!is_finite) {
    return Failure(ErrorCode::unsupported,
                   "{requested} cannot be reserved in budget '{layer}', because neither this "
                   "budget nor a budget above it has a limit. Set a limit.",
                   site)
        .with_bytes("requested", bytes)
        .with("layer", path_)
        .with("what", "a reservation");
  }
  answer_requests();
  if (const Budget* refused = claim_or_drain(bytes)) {
    return refused->refusal(bytes, bytes, {}, device_ ? Place::device(device_).text() : "any",
                            site);
  }
  for (Budget* level = this; level != nullptr; level = level->parent_.get()) {
    level->reserved_ += bytes;
    level->provisional_ -= bytes;
  }
  return Reservation(shared_from_this(), bytes);
}

Reservation Budget::reserve(std::size_t bytes, CallSite site) {
  return try_reserve(bytes, site).value();
}

Result<Charge> Budget::try_charge(std::size_t bytes, Tag tag, CallSite site) noexcept {
  if (Result<void> prepared = prepare(tag); !prepared) return Failure(prepared.failure()).at(site);
  answer_requests();
  if (const Budget* refused = claim_or_drain(bytes)) {
    return refused->refusal(bytes, bytes, tag, device_ ? Place::device(device_).text() : "any",
                            site);
  }
  admit(bytes, tag);
  return Charge(shared_from_this(), bytes, tag);
}

Charge Budget::charge(std::size_t bytes, Tag tag, CallSite site) {
  return try_charge(bytes, tag, site).value();
}

// Retries failed frees first: if one succeeds, its bytes may be released right away.
std::size_t Budget::drain() noexcept {
  frees_->retry_failed_frees();
  return frees_->drain();
}

Result<void> Budget::try_wait_for_pending() noexcept {
  Result<void> result;
  ChargeBook::Oldest after;
  while (const std::optional<ChargeBook::Oldest> oldest = frees_->oldest(nullptr, after)) {
    after = *oldest;
    const Result<void> waited = Device::try_wait(oldest->mark);
    if (!waited && result && waited.failure().code() != ErrorCode::device_lost) result = waited;
    // After a wait many other frees are usually complete; drain them at once.
    drain();
  }
  drain();
  return result;
}

void Budget::answer_requests() const noexcept {
  // The caller may be allocating a host copy to write another one back, so no dirty copy is evicted.
  if (shared_ && shared_->is_asked()) shared_->answer(Overflow::evict, false);
}

std::size_t Budget::trim_pools() noexcept { return frees_->trim_pools(); }

// --- Reservations and charges

Reservation::Reservation(BudgetHandle budget, std::size_t bytes) noexcept
    : budget_(std::move(budget)), bytes_(bytes) {}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::move(other.budget_)), bytes_(other.bytes_.exchange(0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  end();
  budget_ = std::move(other.budget_);
  bytes_.store(other.bytes_.exchange(0));
  return *this;
}

Reservation::~Reservation() { end(); }

void Reservation::end() noexcept {
  const std::size_t rest = bytes_.exchange(0);
  for (Budget* level = budget_.get(); level != nullptr; level = level->parent_.get()) {
    level->reserved_ -= rest;
    level->unclaim_here(rest);
  }
}

// Takes the bytes from the reservation first, so that two threads cannot draw the same bytes.
bool Reservation::draw(std::size_t bytes) noexcept {
  std::size_t rest = bytes_.load();
  do {
    if (bytes > rest) return false;
  } while (!bytes_.compare_exchange_weak(rest, rest - bytes));
  for (Budget* level = budget_.get(); level != nullptr; level = level->parent_.get()) {
    level->provisional_ += bytes;
    level->reserved_ -= bytes;
  }
  return true;
}

void Reservation::put_back(std::size_t bytes) noexcept {
  for (Budget* level = budget_.get(); level != nullptr; level = level->parent_.get()) {
    level->reserved_ += bytes;
    level->provisional_ -= bytes;
  }
  bytes_ += bytes;
}

Charge::Charge(BudgetHandle budget, std::size_t bytes, Tag tag) noexcept
    : budget_(std::move(budget)), bytes_(bytes), tag_(tag) {}

Charge::Charge(Charge&& other) noexcept
    : budget_(std::move(other.budget_)),
      bytes_(std::exchange(other.bytes_, 0)),
      tag_(std::exchange(other.tag_, {})) {}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  end();
  budget_ = std::move(other.budget_);
  bytes_ = std::exchange(other.bytes_, 0);
  tag_ = std::exchange(other.tag_, {});
  return *this;
}

Charge::~Charge() { end(); }

void Charge::end() noexcept {
  if (budget_ && bytes_ != 0) budget_->release(std::exchange(bytes_, 0), tag_);
}

}  // namespace tern
