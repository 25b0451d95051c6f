// Splitting, joining and listing of ranges. A free range is in exactly one index, given by its
// state.

#include "memory/pool/ranges.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "memory/block_table.hpp"
#include "memory/pool/alias_store.hpp"

namespace tern::pool {

// --- Splitting and joining

Descriptor& Ranges::add(std::uint64_t offset, std::uint64_t size, Descriptor* before) noexcept {
  Descriptor& range = store_.take();
  range.offset = offset;
  range.size = size;
  range.before = before;
  range.after = nullptr;
  last_ = &range;
  if (before != nullptr) {
    range.after = before->after;
    if (range.after != nullptr) range.after->before = &range;
    before->after = &range;
  }
  return range;
}

void Ranges::drop(Descriptor& range) noexcept {
  if (range.before != nullptr) range.before->after = range.after;
  if (range.after != nullptr) range.after->before = range.before;
  if (last_ == &range) last_ = range.before;
  store_.give(range);
}

Descriptor& Ranges::split(Descriptor& range, std::uint64_t offset) noexcept {
  Descriptor& rest = store_.take();
  rest.offset = offset;
  rest.size = range.end() - offset;
  range.size = offset - range.offset;
  rest.before = &range;
  rest.after = range.after;
  if (rest.after != nullptr) rest.after->before = &rest;
  range.after = &rest;
  if (last_ == &range) last_ = &rest;
  return rest;
}

Descriptor& Ranges::split_front(Descriptor& range, std::uint64_t offset) noexcept {
  Descriptor& front = store_.take();
  front.offset = range.offset;
  front.size = offset - range.offset;
  range.size -= front.size;
  range.offset = offset;
  front.after = &range;
  front.before = range.before;
  if (front.before != nullptr) front.before->after = &front;
  range.before = &front;
  return front;
}

void Ranges::absorb(Descriptor& left, Descriptor& right) noexcept {
  left.size += right.size;
  left.after = right.after;
  if (left.after != nullptr) left.after->before = &left;
  if (last_ == &right) last_ = &left;
  store_.give(right);
}

// --- Available

Ranges::Pages Ranges::whole_pages_of(const Descriptor& range) const noexcept {
  Pages pages{(range.offset + page_granules_ - 1) >> page_shift_, range.end() >> page_shift_};
  if (handles_ == nullptr || pages.count() == 0) return pages;
  if (const HandleMap::Extent at = handles_->of(pages.first); at.first < pages.first) {
    pages.first = at.last;
  }
  if (pages.count() == 0) return pages;
  if (const HandleMap::Extent at = handles_->of(pages.last - 1); at.last > pages.last) {
    pages.last = at.first;
  }
  return pages;
}

std::uint64_t Ranges::pages_in(const Descriptor& range) const noexcept {
  if (page_granules_ == 0) return range.before == nullptr && range.after == nullptr ? 1 : 0;
  return whole_pages_of(range).count();
}

// Also links the range into one of the two lists of ranges with whole handles, if it has any.
void Ranges::insert_available(Descriptor& range) noexcept {
  range.state = State::available;
  available_.insert(range);
  const std::uint64_t pages = pages_in(range);
  range.whole_pages = static_cast<std::uint32_t>(pages);
  range.older = range.newer = nullptr;
  if (pages == 0) return;
  free_pages_ += pages;
  Descriptor*& head = holders_[pages >= run_pages ? 1 : 0];
  range.newer = head;
  if (head != nullptr) head->older = &range;
  head = &range;
}

void Ranges::remove_available(Descriptor& range) noexcept {
  available_.remove(range);
  range.state = State::held;
  const std::uint64_t pages = range.whole_pages;
  if (pages == 0) return;
  free_pages_ -= pages;
  if (range.newer != nullptr) range.newer->older = range.older;
  (range.older != nullptr ? range.older->newer : holders_[pages >= run_pages ? 1 : 0]) =
      range.newer;
  range.older = range.newer = nullptr;
}

// Joins the range with available neighbours on both sides. Of an alias, its homes become available.
void Ranges::put_available(Descriptor& range) noexcept {
  if (range.alias != nullptr) {
    end_alias(range);
    return;
  }
  Descriptor* left = range.before;
  Descriptor* joined = &range;
  if (left != nullptr && left->state == State::available) {
    remove_available(*left);
    absorb(*left, range);
    joined = left;
  }
  Descriptor* right = joined->after;
  if (right != nullptr && right->state == State::available) {
    remove_available(*right);
    absorb(*joined, *right);
  }
  insert_available(*joined);
}

// Small blocks first try the lowest range that is smaller than a page, see Placement.
Descriptor* Ranges::find(const FitIndex& index, std::uint64_t granules, std::uint64_t alignment,
                         FitIndex::Effort effort, Placement placement) const noexcept {
  if (placement == Placement::together && granules <= page_granules_ / small_share) {
    Descriptor* const lowest = index.find_lowest(granules, alignment, page_granules_);
    if (lowest != nullptr) return lowest;
  }
  return index.find(granules, alignment, effort);
}

Descriptor* Ranges::take_available(Descriptor& found, std::uint64_t granules,
                                   std::uint64_t alignment) noexcept {
  const bool has_whole_handles = found.whole_pages != 0;
  remove_available(found);
  const std::uint64_t begin = has_whole_handles
                                  ? begin_that_spares_handles(found, granules, alignment)
                                  : aligned_begin(found, alignment);
  cut(found, begin, granules, [this](Descriptor& rest) { insert_available(rest); });
  return &found;
}

std::uint64_t Ranges::begin_that_spares_handles(const Descriptor& range, std::uint64_t granules,
                                                std::uint64_t alignment) const noexcept {
  const std::uint64_t first = aligned_begin(range, alignment);
  if (page_granules_ == 0) return first;
  const std::uint64_t last = (range.end() - granules) & ~(alignment - 1);
  if (first == last) return first;
  const Pages whole = whole_pages_of(range);
  // Number of pages of whole handles that the block would use or pin.
  const auto pages_touched = [&](std::uint64_t begin) -> std::uint64_t {
    const std::uint64_t from = std::max(begin >> page_shift_, whole.first);
    const std::uint64_t to =
        std::min((begin + granules + page_granules_ - 1) >> page_shift_, whole.last);
    if (to <= from) return 0;
    return handle_of(to - 1).last - handle_of(from).first;
  };
  return pages_touched(last) < pages_touched(first) ? last : first;
}

void Ranges::take_whole(Descriptor& range) noexcept { remove_available(range); }

Descriptor* Ranges::take_handles(std::uint64_t pages) noexcept {
  Descriptor* found = first_holder();
  if (found == nullptr) return nullptr;
  const Pages whole = whole_pages_of(*found);
  std::uint64_t end = whole.first;
  while (end < whole.last && end - whole.first < pages) end = handle_of(end).last;
  remove_available(*found);
  cut(*found, whole.first * page_granules_, (end - whole.first) * page_granules_,
      [this](Descriptor& rest) { insert_available(rest); });
  return found;
}

// --- Aliases

Descriptor* Ranges::find_pages(std::uint64_t first_page, std::uint64_t pages) const noexcept {
  const std::uint64_t begin = first_page * page_granules_, end = begin + pages * page_granules_;
  for (Descriptor* head : holders_) {
    for (Descriptor* at = head; at != nullptr; at = at->newer) {
      if (at->offset <= begin && at->end() >= end) return at;
    }
  }
  return nullptr;
}

Descriptor& Ranges::take_pages(Descriptor& range, std::uint64_t first_page,
                               std::uint64_t pages) noexcept {
  remove_available(range);
  cut(range, first_page * page_granules_, pages * page_granules_,
      [this](Descriptor& rest) { insert_available(rest); });
  return range;
}

Descriptor& Ranges::begin_alias(Alias& alias, std::uint64_t granules) noexcept {
  Descriptor& block = store_.take();
  block.offset = alias.offset;
  block.size = granules;
  block.alias = &alias;
  alias.block = &block;
  for (std::size_t i = 0; i < alias.home_count; ++i) alias.held[i]->alias = &alias;
  return block;
}

void Ranges::end_alias(Descriptor& block) noexcept {
  Alias& alias = *block.alias;
  for (std::size_t i = 0; i < alias.home_count; ++i) {
    Descriptor& home = *std::exchange(alias.held[i], nullptr);
    home.alias = nullptr;
    put_available(home);
  }
  alias.set_idle();
  store_.give(block);
}

// --- Unbacked

void Ranges::put_unbacked(Descriptor& range) noexcept {
  Descriptor* joined = &range;
  if (Descriptor* left = range.before; left != nullptr && left->state == State::unbacked) {
    unbacked_.remove(*left);
    absorb(*left, range);
    joined = left;
  }
  if (Descriptor* right = joined->after; right != nullptr && right->state == State::unbacked) {
    unbacked_.remove(*right);
    absorb(*joined, *right);
  }
  joined->state = State::unbacked;
  unbacked_.insert(*joined);
}

Descriptor* Ranges::take_unbacked(std::uint64_t granules, std::uint64_t alignment) noexcept {
  Descriptor* found = unbacked_.find(granules, alignment, FitIndex::Effort::thorough);
  if (found == nullptr) return nullptr;
  unbacked_.remove(*found);
  found->state = State::held;
  cut(*found, aligned_begin(*found, alignment), granules, [this](Descriptor& rest) {
    rest.state = State::unbacked;
    unbacked_.insert(rest);
  });
  return found;
}

// --- In flight

void Ranges::link_behind(Descriptor& range, Descriptor* older, Lane& lane) noexcept {
  range.older = older;
  range.newer = older != nullptr ? older->newer : lane.oldest;
  (range.older != nullptr ? range.older->newer : lane.oldest) = &range;
  (range.newer != nullptr ? range.newer->older : lane.newest) = &range;
}

void Ranges::remove_in_flight(Descriptor& range) noexcept {
  Lane& lane = *range.lane;
  if (range.alias == nullptr) lane.index.remove(range);
  (range.older != nullptr ? range.older->newer : lane.oldest) = range.newer;
  (range.newer != nullptr ? range.newer->older : lane.newest) = range.older;
  range.older = range.newer = nullptr;
  range.lane = nullptr;
  range.state = State::held;
  in_flight_granules_ -= range.size;
}

// Joins the range with neighbours of the same lane. The joined range moves to the newest end.
void Ranges::put_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept {
  const auto is_same_lane = [&lane](const Descriptor* other) {
    return other != nullptr && other->state == State::in_flight && other->lane == &lane;
  };
  // A lane is ordered by mark. Using a later mark than necessary is safe.
  if (lane.newest != nullptr) sequence = std::max(sequence, lane.newest->sequence);
  Descriptor* joined = &range;
  if (Descriptor* left = range.before; is_same_lane(left)) {
    remove_in_flight(*left);
    absorb(*left, range);
    joined = left;
  }
  if (Descriptor* right = joined->after; is_same_lane(right)) {
    remove_in_flight(*right);
    absorb(*joined, *right);
  }
  insert_in_flight(*joined, lane, sequence);
  link_behind(*joined, lane.newest, lane);
}

void Ranges::insert_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept {
  range.state = State::in_flight;
  range.lane = &lane;
  range.sequence = sequence;
  // The block of an alias cannot be cut, so it must not be found by a search.
  if (range.alias == nullptr) lane.index.insert(range);
  in_flight_granules_ += range.size;
}

// Walks from the newest end to the position of the mark; joins nothing.
void Ranges::return_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept {
  Descriptor* older = lane.newest;
  while (older != nullptr && older->sequence > sequence) older = older->older;
  insert_in_flight(range, lane, sequence);
  link_behind(range, older, lane);
}

Descriptor* Ranges::take_in_flight(Descriptor& found, std::uint64_t granules,
                                   std::uint64_t alignment) noexcept {
  Lane& lane = *found.lane;
  Descriptor* at = found.older;
  const std::uint64_t sequence = found.sequence;
  remove_in_flight(found);
  cut(found, aligned_begin(found, alignment), granules, [&](Descriptor& rest) {
    insert_in_flight(rest, lane, sequence);
    link_behind(rest, at, lane);
  });
  return &found;
}

// Pops ranges from the oldest end while their mark is done.
std::uint64_t Ranges::settle(Lane& lane, std::uint64_t done_sequence) noexcept {
  std::uint64_t settled = 0;
  while (lane.oldest != nullptr && lane.oldest->sequence <= done_sequence) {
    Descriptor& range = *lane.oldest;
    settled += range.size;
    remove_in_flight(range);
    put_available(range);
  }
  if (lane.oldest == nullptr) lane.unsealed_blocks = lane.unsealed_granules = 0;
  return settled;
}

// --- Facts

std::uint64_t Ranges::requested_bytes() const noexcept {
  std::uint64_t sum = 0;
  store_.for_each([&](const Descriptor& range) {
    if (range.state != State::held || range.place == nullptr) return;
    if (!range.place->is_live(range.place->count())) return;
    sum += range.requested_bytes.load(std::memory_order_relaxed);
  });
  return sum;
}

Ranges::Census Ranges::count() const noexcept {
  Census census;
  std::uint64_t pages = 0;
  store_.for_each([&](const Descriptor& range) {
    if (range.state == State::spare) return;
    if (range.size == 0) census.check_invariants = false;
    if (range.alias != nullptr && range.alias->block != &range) {
      census.lent += range.size;
      return;
    }
    if (range.alias != nullptr) census.in_aliases += range.size;
    switch (range.state) {
      case State::held:
        census.held += range.size;
        break;
      case State::in_flight:
        census.in_flight += range.size;
        break;
      case State::available:
        census.available += range.size;
        pages += pages_in(range);
        break;
      case State::unbacked:
        census.unbacked += range.size;
        break;
      default:
        break;
    }
    const Descriptor* after = range.after;
    if (after == nullptr) return;
    if (after->before != &range || after->offset != range.end()) census.check_invariants = false;
    const bool is_joined = range.state == State::available || range.state == State::unbacked;
    if (is_joined && after->state == range.state) census.check_invariants = false;
  });
  std::uint64_t held_pages = 0;
  for (const Descriptor* head : holders_) {
    for (const Descriptor* at = head; at != nullptr; at = at->newer) held_pages += pages_in(*at);
  }
  if (pages != free_pages_ || held_pages != free_pages_ || !available_.check_invariants() ||
      !unbacked_.check_invariants() || census.in_flight != in_flight_granules_ ||
      census.available != available_.total() || census.unbacked != unbacked_.total()) {
    census.check_invariants = false;
  }
  return census;
}

}  // namespace tern::pool
