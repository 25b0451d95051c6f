// plan() decides which bytes of a range are copied to a place, from which source, and which pieces
// are joined.
//
// apply() records an access of a place: a read makes its range up to date there too, a write makes
// its range stale in all other places.

#include "tern/detail/coherence/validity.hpp"

#include <algorithm>
#include <utility>

namespace tern {
namespace {

Failure broken(const char* what, std::size_t begin) noexcept {
  return Failure(ErrorCode::violation,
                 "the directory of a buffer violates an invariant at byte {begin}: {what}.")
      .with("what", what)
      .with("begin", begin);
}

bool overlaps_any(std::span<const ByteRange> ranges, std::size_t begin, std::size_t end) noexcept {
  return std::ranges::any_of(
      ranges, [&](const ByteRange& one) { return one.begin < end && begin < one.end; });
}

}  // namespace

Validity::Validity(Validity&& other) noexcept { *this = std::move(other); }

Validity& Validity::operator=(Validity&& other) noexcept {
  if (this == &other) return *this;
  bytes_ = other.bytes_;
  intervals_ = std::move(other.intervals_);
  other.intervals_.emplace_back();
  return *this;
}

std::size_t Validity::index_of(std::size_t offset) const noexcept {
  const Interval* const first = data();
  const Interval* const behind =
      std::upper_bound(first, first + size(), offset,
                       [](std::size_t at, const Interval& one) { return at < one.begin; });
  return static_cast<std::size_t>(behind - first) - 1;
}

bool Validity::are_all_only(std::size_t begin, std::size_t end, unsigned place) const noexcept {
  bool is_only = true;
  visit(begin, end,
        [&](std::size_t, std::size_t, PlaceSet valid) { is_only &= valid == PlaceSet::of(place); });
  return is_only;
}

PlaceSet Validity::valid_everywhere(std::size_t begin, std::size_t end) const noexcept {
  PlaceSet all{~std::uint64_t{0}};
  visit(begin, end, [&](std::size_t, std::size_t, PlaceSet valid) { all = all & valid; });
  return all;
}

PlaceSet Validity::valid_somewhere(std::size_t begin, std::size_t end) const noexcept {
  PlaceSet any;
  visit(begin, end, [&](std::size_t, std::size_t, PlaceSet valid) { any = any | valid; });
  return any;
}

ByteRange Validity::first_unwritten(std::size_t begin, std::size_t end) const noexcept {
  ByteRange found;
  visit(begin, end, [&](std::size_t from, std::size_t to, PlaceSet valid) {
    if (valid.empty() && found.begin == found.end) found = {from, to};
  });
  return found;
}

std::size_t Validity::plan(std::size_t begin, std::size_t end, unsigned place,
                           const CopyCosts& costs, std::vector<CopyRun>& runs) const {
  const std::size_t first_run = runs.size();
  std::size_t gaps = 0;
  PlaceSet since{~std::uint64_t{0}};  // places that have all bytes since the last run
  visit(begin, end, [&](std::size_t from, std::size_t to, PlaceSet valid) {
    if (valid.has(place) || valid.empty()) {
      since = since & valid;
      return;
    }
    CopyRun run{from, to, costs.cheapest(valid)};
    if (runs.size() > first_run) {
      CopyRun& last = runs.back();
      // A longer copy from the same source is cheaper than a second copy.
      if (valid.has(last.source) && costs.of_source[last.source] == costs.of_source[run.source]) {
        run.source = last.source;
      }
      const std::size_t gap = from - last.end;
      if (run.source == last.source &&
          (gap == 0 || (gap < costs.merge_below && since.has(run.source) &&
                        !overlaps_any(costs.leased, last.end, from)))) {
        last.end = to;
        gaps += gap;
        since = {~std::uint64_t{0}};
        return;
      }
    }
    runs.push_back(run);
    since = {~std::uint64_t{0}};
  });
  return gaps;
}

bool Validity::make_room(std::size_t ranges) noexcept {
  // A change to one range splits at most two intervals, and so adds at most two.
  return intervals_.try_reserve(size() + 2 * ranges);
}

void Validity::insert(std::size_t index, Interval interval) noexcept {
  intervals_.emplace_back();
  Interval* const all = data();
  std::copy_backward(all + index, intervals_.end() - 1, intervals_.end());
  all[index] = interval;
}

template <class Change>
void Validity::change(std::size_t begin, std::size_t end, Change change) noexcept {
  if (begin >= end) return;
  Interval* const all = data();
  if (is_uniform() && begin == 0 && end == bytes_) {
    all[0].valid = change(all[0].valid);
    return;
  }
  std::size_t first = index_of(begin);
  if (all[first].begin < begin) {
    ++first;
    insert(first, {begin, all[first - 1].valid});
  }
  std::size_t last = index_of(end - 1);
  if (end_of(last) > end) insert(last + 1, {end, all[last].valid});
  for (std::size_t i = first; i <= last; ++i) all[i].valid = change(all[i].valid);
  // Merges neighbours that became equal. Only the changed intervals and their neighbours can be.
  std::size_t kept = first == 0 ? 0 : first - 1;
  const std::size_t stop = std::min(last + 2, size());
  for (std::size_t i = kept + 1; i < stop; ++i) {
    if (all[i].valid != all[kept].valid) all[++kept] = all[i];
  }
  if (kept + 1 < stop) {
    std::copy(all + stop, intervals_.end(), all + kept + 1);
    intervals_.truncate(size() - (stop - (kept + 1)));
  }
}

void Validity::apply(Access access, std::size_t begin, std::size_t end, unsigned place) noexcept {
  if (is_write(access)) {
    change(begin, end, [place](PlaceSet) { return PlaceSet::of(place); });
  } else {
    change(begin, end,
           [place](PlaceSet valid) { return valid.empty() ? valid : valid.with(place); });
  }
}

void Validity::remove(std::size_t begin, std::size_t end, unsigned place) noexcept {
  change(begin, end, [place](PlaceSet valid) { return valid.without(place); });
}

void Validity::remove_copy(std::size_t begin, std::size_t end, unsigned place) noexcept {
  change(begin, end, [place](PlaceSet valid) {
    return valid == PlaceSet::of(place) ? valid : valid.without(place);
  });
}

void Validity::forget(std::size_t begin, std::size_t end) noexcept {
  change(begin, end, [](PlaceSet) { return PlaceSet{}; });
}

Result<void> Validity::check(PlaceSet existing) const noexcept {
  if (size() == 0 || data()[0].begin != 0) return broken("it does not begin at 0", 0);
  for (std::size_t i = 0; i < size(); ++i) {
    const Interval& one = data()[i];
    if (i > 0 && one.begin <= data()[i - 1].begin) return broken("it is out of order", one.begin);
    if (i > 0 && one.valid == data()[i - 1].valid) return broken("neighbours are alike", one.begin);
    if (i > 0 && one.begin >= bytes_) return broken("it goes on behind the end", one.begin);
    if ((one.valid & existing) != one.valid) return broken("a place is none", one.begin);
  }
  return {};
}

}  // namespace tern
