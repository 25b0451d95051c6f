#include "memory/address_range.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <string_view>

#include "core/no_host_memory.hpp"
#include "memory/eviction_hook.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pressure_resource.hpp"

namespace tern {
namespace {

/// How often the destructor asks a driver that refuses to free something.
constexpr int end_attempts = 3;

/// Nothing is left to free in a forked child, or on a lost device.
bool has_nothing_to_free(const Failure& failure) noexcept {
  return failure.code() == ErrorCode::after_fork || failure.code() == ErrorCode::device_lost;
}

bool is_over(Mark mark) noexcept {
  const Result<bool> done = Device::try_is_done(mark);
  return done ? *done : has_nothing_to_free(done.failure());
}

Failure past_the_end(std::size_t bytes, std::size_t reserved, std::string_view device,
                     CallSite site) noexcept {
  return Failure(ErrorCode::capacity,
                 "{requested} do not fit into a reservation of {reserved} addresses on '{device}'. "
                 "Reserve more addresses at the start: they take no memory.",
                 site)
      .with_bytes("requested", bytes)
      .with_bytes("reserved", reserved)
      .with("max", reserved)
      .with("device", device);
}

bool has_pressure_handlers(const Resource* resource) noexcept {
  while (const auto* wrapping = dynamic_cast<const WrappingResource*>(resource)) {
    if (dynamic_cast<const PressureResource*>(wrapping) != nullptr) return true;
    resource = wrapping->upstream().get();
  }
  return false;
}

/// Makes the pressure handlers of the default resource free `bytes`, and returns this memory to the
/// device.
void ask_pressure_handlers(Resource& from, std::size_t bytes, Tag tag, CallSite site) noexcept {
  if (!has_pressure_handlers(&from)) return;
  // The handlers free as much as a request needs.
  const Result<Block> block = from.try_allocate({.bytes = bytes, .tag = tag, .site = site});
  if (!block) return;
  from.deallocate(*block, {}, site);
  from.trim(0);
}

/// Charges `bytes` and returns the charge. At the limit, does what the Overflow of the budget
/// allows: waits for pending frees, and evicts copies of unified buffers.
Result<Charge> try_make_room(Budget& budget, std::size_t bytes, Tag tag, CallSite site) noexcept {
  const Overflow overflow = budget.overflow();
  Result<Charge> charge = budget.try_charge(bytes, tag, site);
  const auto is_refused = [&] {
    return !charge && charge.failure().code() == ErrorCode::out_of_budget;
  };
  if (is_refused() && overflow >= Overflow::wait &&
      charge.failure().number("fits_after_pending") == 1) {
    // A stream that cannot be waited for keeps its bytes pending.
    static_cast<void>(budget.try_wait_for_pending());
    charge = budget.try_charge(bytes, tag, site);
  }
  const EvictionHook evict = eviction_hook.load();
  if (!is_refused() || overflow < Overflow::evict || evict == nullptr) return charge;
  for (const Budget* level = &budget; level != nullptr; level = level->parent().get()) {
    if (bytes > level->limit_bytes()) return charge;
  }
  std::size_t evicted = 0;
  for (const Budget* level = &budget; level != nullptr; level = level->parent().get()) {
    const std::size_t left = level->remaining_bytes();
    if (left < bytes) evicted += evict(*level, bytes - left, overflow);
  }
  if (evicted == 0) return charge;
  static_cast<void>(budget.try_wait_for_pending());
  return budget.try_charge(bytes, tag, site);
}

}  // namespace

Result<AddressRange> AddressRange::try_reserve(const Device& device, std::size_t bytes,
                                               const AddressRangeOptions& options,
                                               CallSite site) noexcept {
  if (device.is_open() && !device.can(Capability::virtual_memory)) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' cannot reserve addresses without memory ({what}). Allocate the "
                   "memory at once.",
                   site)
        .with("what", name(Capability::virtual_memory))
        .with("device", device.spec());
  }
  const BudgetHandle& budget = options.budget;
  if (device.is_open() && budget && budget->device() && budget->device() != device.id()) {
    return Failure(ErrorCode::device_mismatch,
                   "budget '{layer}' belongs to {a} and cannot count memory of '{b}'. Use a budget "
                   "of '{b}', or a budget without a device.",
                   site)
        .with("layer", budget->path())
        .with("a", Place::device(budget->device()).text())
        .with("b", device.spec());
  }
  const std::size_t page = device.is_open() ? device.info().page_bytes : 1;
  const std::optional<std::size_t> rounded = checked_round_up(bytes, page);
  if (!rounded || *rounded > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "{bytes} bytes of addresses are more than any device has. Reserve fewer.", site)
        .with("what", "a reservation")
        .with("bytes", bytes);
  }
  // A request for 0 bytes reaches no driver, but an empty device has to be refused.
  const Result<void*> base = device.try_reserve(*rounded);
  if (!base) return Failure(base.failure()).at(site);
  AddressRange range;
  range.device_ = device;
  range.base_ = static_cast<std::byte*>(*base);
  range.reserved_bytes_ = *rounded;
  range.budget_ = budget;
  range.tag_ = options.tag;
  return range;
}

AddressRange::~AddressRange() {
  for (const Mark mark : waits_) static_cast<void>(Device::try_wait(mark));
  for (int i = 0; i < end_attempts && !try_end(); ++i) {
  }
}

void AddressRange::swap(AddressRange& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(budget_, other.budget_);
  std::swap(tag_, other.tag_);
  std::swap(pieces_, other.pieces_);
  std::swap(usable_, other.usable_);
  std::swap(waits_, other.waits_);
}

std::size_t AddressRange::backed_bytes() const noexcept { return end_of(usable_); }

std::size_t AddressRange::resident_bytes() const noexcept { return end_of(pieces_.size()); }

// --- Pieces

Result<void> AddressRange::try_open(Piece& piece) noexcept {
  if (!piece.is_mapped) {
    if (piece.pages.value == 0) {
      const Result<NativePages> pages = device_.try_create_pages(piece.bytes);
      if (!pages) return pages.failure();
      piece.pages = *pages;
    }
    if (Result<void> mapped = device_.try_map(base_ + piece.offset, piece.pages); !mapped) {
      return mapped;
    }
    piece.is_mapped = true;
  }
  if (!piece.is_open) {
    if (Result<void> opened =
            device_.try_set_access(base_ + piece.offset, piece.bytes, PageAccess::read_write);
        !opened) {
      return opened;
    }
    piece.is_open = true;
  }
  // If the driver refuses, try_close() releases the handle.
  if (piece.pages.value != 0 && device_.try_release_pages(piece.pages)) piece.pages = {};
  return {};
}

bool AddressRange::try_close(Piece& piece) noexcept {
  if (piece.is_mapped) {
    if (const Result<void> unmapped = device_.try_unmap(base_ + piece.offset, piece.bytes);
        !unmapped) {
      return has_nothing_to_free(unmapped.failure());
    }
    piece.is_mapped = piece.is_open = false;
  }
  if (piece.pages.value != 0) {
    if (const Result<void> released = device_.try_release_pages(piece.pages); !released) {
      return has_nothing_to_free(released.failure());
    }
    piece.pages = {};
  }
  return true;
}

Result<void> AddressRange::try_add(std::size_t bytes, CallSite site) noexcept {
  // First, so that nothing is lost afterwards.
  try {
    pieces_.reserve(pieces_.size() + 1);
  } catch (const std::bad_alloc&) {
    return no_host_memory("the record of pages", site);
  }
  Charge charge;
  if (budget_) {
    Result<Charge> charged = budget_->try_charge(bytes, tag_, site);
    if (!charged) return charged.failure();
    charge = *std::move(charged);
  }
  pieces_.push_back({.offset = resident_bytes(), .bytes = bytes, .charge = std::move(charge)});
  Result<void> opened = try_open(pieces_.back());
  if (opened) {
    usable_ = pieces_.size();
  } else {
    close_pending();
  }
  return opened;
}

Result<void> AddressRange::try_grow(std::size_t bytes, std::size_t ahead_bytes,
                                    CallSite site) noexcept {
  const std::size_t end = resident_bytes() + bytes;
  const std::size_t page = device_.info().page_bytes;
  std::size_t largest = max_piece_bytes / page * page;
  std::size_t ahead = std::min(ahead_bytes / page * page, reserved_bytes_ - resident_bytes());
  bool was_trimmed = false, was_pressed = false;
  while (resident_bytes() < end) {
    const std::size_t missing = end - resident_bytes();
    const std::size_t size = std::min(std::max(missing, ahead), largest);
    if (size > missing && budget_ && !budget_->would_fit(size)) {
      ahead = ahead / 2 / page * page;
      continue;
    }
    Result<void> added = try_add(size, site);
    if (added) {
      ahead -= std::min(ahead, size);
      continue;
    }
    const ErrorCode why = added.failure().code();
    const bool is_full = why == ErrorCode::out_of_memory || why == ErrorCode::out_of_budget;
    // A piece that could be neither opened nor closed is in the way.
    if (!is_full || usable_ != pieces_.size()) return Failure(added.failure()).at(site);
    if (size > missing) {
      ahead = ahead / 2 / page * page;
    } else if (why == ErrorCode::out_of_budget) {
      return added;
    } else if (!was_trimmed) {
      was_trimmed = true;
      const Result<ResourceHandle> pool = try_default_resource(device_);
      if (pool) (*pool)->trim(0);
    } else if (!was_pressed) {
      was_pressed = true;
      const Result<ResourceHandle> pool = try_default_resource(device_);
      if (pool) ask_pressure_handlers(**pool, size, tag_, site);
    } else if (size > page) {
      largest = std::max(size / 2 / page, std::size_t{1}) * page;
    } else {
      return Failure(added.failure()).at(site);
    }
  }
  return {};
}

// --- Growing and shrinking

Result<void> AddressRange::try_back(std::size_t bytes, std::size_t ahead_bytes,
                                    CallSite site) noexcept {
  if (bytes <= backed_bytes()) return {};
  if (bytes > reserved_bytes_) {
    return past_the_end(bytes, reserved_bytes_, device_.spec(), site);
  }
  const std::size_t usable_before = usable_;
  const std::size_t pieces_before = pieces_.size();
  // Pending pieces are still mapped. Their new users come after the old ones.
  Result<void> done;
  while (done && usable_ < pieces_before && backed_bytes() < bytes) {
    done = try_open(pieces_[usable_]);
    if (done) ++usable_;
  }
  if (done && backed_bytes() < bytes) {
    const std::size_t page = device_.info().page_bytes;
    const std::size_t missing =
        checked_round_up(bytes, page).value_or(reserved_bytes_) - backed_bytes();
    // One charge of everything that is missing, so that a refusal states the whole request.
    if (budget_ && (missing > max_piece_bytes || !budget_->would_fit(missing))) {
      const Result<Charge> fits = try_make_room(*budget_, missing, tag_, site);
      if (!fits) done = fits.failure();
    }
    if (done) done = try_grow(missing, ahead_bytes, site);
  }
  if (done) {
    if (usable_ == pieces_.size()) waits_.clear();
    return {};
  }
  usable_ = usable_before;
  // The new pieces have no users. Those from before keep waiting for theirs.
  while (pieces_.size() > pieces_before && try_close(pieces_.back())) pieces_.pop_back();
  return done;
}

Result<void> AddressRange::try_unback(std::size_t keep_bytes, std::span<const Mark> uses,
                                      CallSite site) noexcept {
  std::size_t keep = usable_;
  while (keep > 0 && pieces_[keep - 1].offset >= keep_bytes) --keep;
  if (keep != usable_) {
    try {
      waits_.reserve(waits_.size() + uses.size());
    } catch (const std::bad_alloc&) {
      return no_host_memory("the marks of pages", site);
    }
    for (const Mark mark : uses) {
      const auto same = std::ranges::find(waits_, mark.stream, &Mark::stream);
      if (same == waits_.end()) {
        waits_.push_back(mark);
      } else {
        same->sequence = std::max(same->sequence, mark.sequence);
      }
    }
    usable_ = keep;
  }
  reclaim();
  return {};
}

std::size_t AddressRange::close_pending() noexcept {
  const std::size_t before = resident_bytes();
  while (pieces_.size() > usable_ && try_close(pieces_.back())) pieces_.pop_back();
  return before - resident_bytes();
}

std::size_t AddressRange::reclaim() noexcept {
  if (usable_ == pieces_.size()) return 0;
  std::erase_if(waits_, is_over);
  return waits_.empty() ? close_pending() : 0;
}

bool AddressRange::try_end() noexcept {
  usable_ = 0;
  reclaim();
  if (!pieces_.empty()) return false;
  if (base_ == nullptr) return true;
  if (const Result<void> freed = device_.try_unreserve(base_, reserved_bytes_); !freed) {
    return has_nothing_to_free(freed.failure());
  }
  base_ = nullptr;
  return true;
}

}  // namespace tern
