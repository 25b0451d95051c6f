// How a pool without a limit serves large requests from free handles that are not contiguous.
// Pool::find() (pool.cpp) decides when an alias is used instead of growing; may_use_alias() is its
// check of the request. AliasStore has the mappings.

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <span>

#include "memory/pool/pool.hpp"
#include "tern/core/bytes.hpp"

namespace tern::pool {
namespace {

constexpr std::uint64_t page_granules = PageStore::page_granules;
/// Upper bound on the free runs among which an alias chooses.
constexpr std::size_t max_candidates = 128;
/// Two for each home that is cut out, and one for the block.
constexpr std::size_t descriptors_per_alias =
    2 * Alias::max_homes + 1 + Ranges::descriptors_per_growth;

/// An alias may have a quarter and 16 MiB more than the block, which is not used meanwhile.
std::uint64_t max_alias_pages(std::uint64_t pages) noexcept {
  return pages + pages / 4 + 16 * mib / page_bytes;
}

}  // namespace

bool Pool::may_use_alias(const Search& search) const noexcept {
  return has_pages_ && !poisoning_.is_on() && search.granules * granule_bytes >= min_large_bytes &&
         search.alignment <= page_granules;
}

bool Pool::hold_homes(std::span<const PageStore::Run> homes, Alias::Held& held) noexcept {
  for (std::size_t i = 0; i < homes.size(); ++i) {
    Descriptor* const range = ranges_.find_pages(homes[i].first, homes[i].pages);
    if (range == nullptr) {
      while (i > 0) ranges_.put_available(*held[--i]);
      return false;
    }
    held[i] = &ranges_.take_pages(*range, homes[i].first, homes[i].pages);
  }
  note_change();
  return true;
}

Descriptor* Pool::take_alias(Search& search) noexcept {
  const std::uint64_t need = PageStore::pages_for(search.granules);
  const std::lock_guard lock(ranges_mutex_);
  if (Result<void> prepared = ranges_.store().try_prepare(descriptors_per_alias); !prepared) {
    search.failure = prepared.failure();
    return nullptr;
  }
  Alias* best = nullptr;
  aliases_->for_each([&](Alias& one) {
    if (!one.is_idle() || one.unmapped_pages != 0 || one.pages < need ||
        one.pages > max_alias_pages(need) || (best != nullptr && best->pages <= one.pages)) {
      return;
    }
    const auto is_free = [this](const PageStore::Run& home) {
      return ranges_.find_pages(home.first, home.pages) != nullptr;
    };
    if (std::ranges::all_of(one.all_homes(), is_free)) best = &one;
  });
  if (best == nullptr || !hold_homes(best->all_homes(), best->held)) return nullptr;
  aliases_->note_reuse(*best);
  search.rung = &StreamCache::Counts::available_hits;
  return &ranges_.begin_alias(*best, search.granules);
}

// Takes the largest runs of whole handles first, so that the alias has few handles, and the
// smallest run that suffices last.
std::size_t Pool::choose_homes(std::uint64_t need,
                               std::array<PageStore::Run, Alias::max_homes>& homes) noexcept {
  std::array<PageStore::Run, max_candidates> runs;
  std::size_t count = 0;
  {
    const std::lock_guard lock(ranges_mutex_);
    if (ranges_.free_pages() < need) return 0;
    ranges_.for_each_whole_run([&](std::uint64_t first, std::uint64_t pages) {
      runs[count++] = {first, pages};
      return count < runs.size();
    });
  }
  std::ranges::sort(std::span(runs).first(count), std::greater{}, &PageStore::Run::pages);
  std::size_t home_count = 0;
  std::uint64_t found = 0, handles = 0;
  for (std::size_t i = 0; i < count && found < need; ++i) {
    std::size_t at = i;
    while (at + 1 < count && runs[at + 1].pages >= need - found) ++at;
    PageStore::Run run = runs[at];
    std::uint64_t end = run.first;
    while (end < run.first + run.pages && end - run.first < need - found) {
      end = pages_->handles().of(end).last;
      if (++handles > Alias::max_homes) return 0;
    }
    run.pages = end - run.first;
    found += run.pages;
    homes[home_count++] = run;
  }
  return found < need || found > max_alias_pages(need) ? 0 : home_count;
}

bool Pool::can_make_alias(const Search& search) noexcept {
  std::array<PageStore::Run, Alias::max_homes> homes;
  return aliases_->may_make() && choose_homes(PageStore::pages_for(search.granules), homes) > 0;
}

Descriptor* Pool::make_alias(Search& search) noexcept {
  if (!aliases_->may_make()) return nullptr;
  std::array<PageStore::Run, Alias::max_homes> all;
  const auto homes = std::span<const PageStore::Run>(all).first(
      choose_homes(PageStore::pages_for(search.granules), all));
  if (homes.empty()) return nullptr;
  // The homes are held while the driver is called, and then belong to the block.
  Alias::Held held = {};
  {
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(descriptors_per_alias); !prepared) {
      search.failure = prepared.failure();
      return nullptr;
    }
    // Another thread may have taken a part of them since they were chosen.
    if (!hold_homes(homes, held)) return nullptr;
  }
  const Result<Alias*> made = aliases_->try_make(homes);
  note_held();
  const std::lock_guard lock(ranges_mutex_);
  if (!made) {
    for (std::size_t i = 0; i < homes.size(); ++i) ranges_.put_available(*held[i]);
    note_change();
    // Growing may still succeed, unless the device is lost.
    if (made.failure().code() == ErrorCode::device_lost) search.failure = made.failure();
    return nullptr;
  }
  (*made)->held = held;
  search.rung = &StreamCache::Counts::remapped_hits;
  return &ranges_.begin_alias(**made, search.granules);
}

}  // namespace tern::pool
