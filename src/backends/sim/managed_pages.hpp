// Where the pages of managed memory are, and what they were told.
//
// Pages move when somebody touches them: to whoever did, unless advice says otherwise. A page that
// is mostly read is copied instead, until somebody writes; a page that prefers the place where it
// is stays there if the toucher can reach it from afar. A prefetch moves pages ahead of their use.
// It is a model of what drivers document, not of what they do when nobody looks. Offsets are those
// of the arena in which managed blocks lie. Confined.

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

  /// A block of its own pages begins: nowhere yet, and told nothing.
  void begin(std::uint64_t offset, std::uint64_t bytes);
  void end(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] bool empty() const noexcept { return pages_.empty(); }

  /// Somebody at the place reads or writes. Gives how many bytes had to move for that.
  std::uint64_t touch(std::uint64_t offset, std::uint64_t bytes, Place who, bool writes);
  std::uint64_t prefetch(std::uint64_t offset, std::uint64_t bytes, Place to);
  void advise(std::uint64_t offset, std::uint64_t bytes, Advice advice, Place place);

  /// The bytes are of no use any more: pages that lie in the range as a whole are nowhere, and come
  /// without moving.
  void discard(std::uint64_t offset, std::uint64_t bytes);

  [[nodiscard]] ManagedInfo info(std::uint64_t offset, std::uint64_t bytes) const;
  /// Where the page is; unset before it was first touched.
  [[nodiscard]] std::optional<Place> home(std::uint64_t offset) const;
  /// Is the page there, or a copy of it for reading?
  [[nodiscard]] bool is_at(std::uint64_t offset, Place place) const;

 private:
  struct Page {
    std::optional<Place> home = {};
    std::optional<Place> preferred = {};
    std::optional<Place> last_prefetch = {};
    std::vector<Place> copies = {};  // for reading, besides the one at home
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
