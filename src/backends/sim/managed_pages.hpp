// The location of managed pages, and their advice.
//
// An access migrates a page to the accessing place, unless advice says otherwise. A read-mostly
// page is copied instead, until it is written. A page with a preferred location stays there if the
// accessing place can access it remotely. A prefetch migrates pages ahead of their use. This models
// the documented behaviour of drivers. Offsets are those of the arena of managed blocks. Not
// thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/interval_map.hpp"
#include "tern/core/place.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern::sim {

class ManagedPages {
 public:
  static constexpr std::size_t page_bytes = 4096;

  /// Begins a block of pages without a location and without advice.
  void begin(std::uint64_t offset, std::uint64_t bytes);
  void end(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] bool empty() const noexcept { return pages_.empty(); }

  /// Accesses the range from a place. Returns how many bytes had to migrate.
  std::uint64_t touch(std::uint64_t offset, std::uint64_t bytes, Place who, bool writes);
  std::uint64_t prefetch(std::uint64_t offset, std::uint64_t bytes, Place to);
  void advise(std::uint64_t offset, std::uint64_t bytes, Advice advice, Place place);

  /// Discards the bytes: whole pages of the range have no location and reappear without migration.
  void discard(std::uint64_t offset, std::uint64_t bytes);

  [[nodiscard]] ManagedInfo info(std::uint64_t offset, std::uint64_t bytes) const;
  /// Returns the location of the page, or nothing before its first access.
  [[nodiscard]] std::optional<Place> home(std::uint64_t offset) const;
  /// Returns whether the page, or a read-only copy of it, is at the place.
  [[nodiscard]] bool is_at(std::uint64_t offset, Place place) const;

 private:
  struct Page {
    std::optional<Place> home = {};
    std::optional<Place> preferred = {};
    std::optional<Place> last_prefetch = {};
    std::vector<Place> copies = {};  // read-only copies, besides the home location
    std::vector<Place> accessed_by = {};
    bool is_read_mostly = false;
  };
  [[nodiscard]] static bool stays(const Page& page, Place who);
  template <class Change>
  void update(std::uint64_t offset, std::uint64_t bytes, Change change);
  template <class Visit>
  void visit(std::uint64_t offset, std::uint64_t bytes, Visit visit) const;

  IntervalMap<Page> pages_;
};

}  // namespace tern::sim
