#include "backends/sim/managed_pages.hpp"

#include <algorithm>

namespace tern::sim {
namespace {

bool contains(const std::vector<Place>& places, Place place) {
  return std::ranges::find(places, place) != places.end();
}

void add(std::vector<Place>& places, Place place) {
  if (!contains(places, place)) places.push_back(place);
}

std::uint64_t page_begin(std::uint64_t offset) {
  return offset / ManagedPages::page_bytes * ManagedPages::page_bytes;
}

}  // namespace

template <class Change>
void ManagedPages::update(std::uint64_t offset, std::uint64_t bytes, Change change) {
  pages_.update(page_begin(offset), page_begin(offset + bytes + page_bytes - 1), change);
}

template <class Visit>
void ManagedPages::visit(std::uint64_t offset, std::uint64_t bytes, Visit visit) const {
  pages_.visit(page_begin(offset), page_begin(offset + bytes + page_bytes - 1),
               [&](std::uint64_t, std::uint64_t, const Page* page) {
                 if (page != nullptr) visit(*page);
                 return true;
               });
}

void ManagedPages::begin(std::uint64_t offset, std::uint64_t bytes) {
  pages_.assign(page_begin(offset), page_begin(offset + bytes + page_bytes - 1), Page{});
}

void ManagedPages::end(std::uint64_t offset, std::uint64_t bytes) {
  pages_.erase(page_begin(offset), page_begin(offset + bytes + page_bytes - 1));
}

/// Returns whether `who` can access the page in place. A device can access memory of the host and
/// of its peers. The host cannot access device memory.
bool ManagedPages::stays(const Page& page, Place who) {
  const bool can_reach = page.home->is_host() || !who.is_host();
  const bool is_wanted = page.preferred == page.home || contains(page.accessed_by, who);
  return can_reach && is_wanted;
}

std::uint64_t ManagedPages::touch(std::uint64_t offset, std::uint64_t bytes, Place who,
                                  bool writes) {
  std::uint64_t moved = 0;
  update(offset, bytes, [&](std::uint64_t begin, std::uint64_t end, Page& page) {
    // The first access migrates nothing: the page appears at the accessing place.
    if (!page.home) page.home = page.preferred.value_or(who);
    if (page.home != who && !contains(page.copies, who) && !stays(page, who)) {
      moved += end - begin;
      if (page.is_read_mostly && !writes) {
        page.copies.push_back(who);
      } else {
        page.home = who;
      }
    } else if (writes && contains(page.copies, who)) {
      page.home = who;
    }
    // A write invalidates all copies.
    if (writes) page.copies.clear();
  });
  return moved;
}

std::uint64_t ManagedPages::prefetch(std::uint64_t offset, std::uint64_t bytes, Place to) {
  std::uint64_t moved = 0;
  update(offset, bytes, [&](std::uint64_t begin, std::uint64_t end, Page& page) {
    page.last_prefetch = to;
    if (!page.home) {
      page.home = to;
    } else if (page.home != to && !contains(page.copies, to)) {
      moved += end - begin;
      if (page.is_read_mostly) {
        page.copies.push_back(to);
      } else {
        page.home = to;
      }
    }
  });
  return moved;
}

void ManagedPages::advise(std::uint64_t offset, std::uint64_t bytes, Advice advice, Place place) {
  update(offset, bytes, [&](std::uint64_t, std::uint64_t, Page& page) {
    switch (advice) {
      case Advice::set_read_mostly:
        page.is_read_mostly = true;
        return;
      case Advice::unset_read_mostly:
        page.is_read_mostly = false;
        page.copies.clear();
        return;
      case Advice::set_preferred_location:
        page.preferred = place;
        return;
      case Advice::unset_preferred_location:
        page.preferred.reset();
        return;
      case Advice::set_accessed_by:
        add(page.accessed_by, place);
        return;
      case Advice::unset_accessed_by:
        std::erase(page.accessed_by, place);
        return;
    }
  });
}

void ManagedPages::discard(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t begin = page_begin(offset + page_bytes - 1), end = page_begin(offset + bytes);
  if (begin >= end) return;
  pages_.update(begin, end, [](std::uint64_t, std::uint64_t, Page& page) {
    page.home.reset();
    page.copies.clear();
  });
}

ManagedInfo ManagedPages::info(std::uint64_t offset, std::uint64_t bytes) const {
  ManagedInfo info;
  bool is_first = true;
  visit(offset, bytes, [&](const Page& page) {
    if (is_first) {
      info = {page.is_read_mostly, page.accessed_by, page.preferred, page.last_prefetch};
      is_first = false;
      return;
    }
    info.is_read_mostly = info.is_read_mostly && page.is_read_mostly;
    std::erase_if(info.accessed_by, [&](Place who) { return !contains(page.accessed_by, who); });
    if (info.preferred != page.preferred) info.preferred.reset();
    if (info.last_prefetch != page.last_prefetch) info.last_prefetch.reset();
  });
  return info;
}

std::optional<Place> ManagedPages::home(std::uint64_t offset) const {
  const auto page = pages_.find(offset);
  return page == pages_.end() ? std::nullopt : page->second.value.home;
}

bool ManagedPages::is_at(std::uint64_t offset, Place place) const {
  const auto page = pages_.find(offset);
  return page != pages_.end() &&
         (page->second.value.home == place || contains(page->second.value.copies, place));
}

}  // namespace tern::sim
