// The open host accesses to a storage that checks them.
//
// Reads may overlap reads. A write may overlap nothing. Not thread-safe: the storage holds its
// lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"

namespace tern {

class HostAccesses {
 public:
  /// One open access to bytes [begin, end).
  struct Open {
    std::uint64_t ticket = 0;
    std::size_t begin = 0, end = 0;
    bool is_write = false;
    CallSite site = {};
  };

  /// Returns the first open access that conflicts with this one, or null.
  [[nodiscard]] const Open* conflict(Access access, std::size_t begin,
                                     std::size_t end) const noexcept {
    for (const Open& one : open_) {
      if (one.begin < end && begin < one.end && (one.is_write || is_write(access))) return &one;
    }
    return nullptr;
  }
  /// Adds an access and returns its ticket, which is not 0. Throws std::bad_alloc.
  [[nodiscard]] std::uint64_t add(Access access, std::size_t begin, std::size_t end,
                                  CallSite site) {
    open_.push_back({next_ticket_ + 1, begin, end, is_write(access), site});
    return ++next_ticket_;
  }
  [[nodiscard]] bool is_empty() const noexcept { return open_.empty(); }
  /// Removes an access.
  void remove(std::uint64_t ticket) noexcept {
    std::erase_if(open_, [ticket](const Open& one) { return one.ticket == ticket; });
  }

 private:
  std::vector<Open> open_;
  std::uint64_t next_ticket_ = 0;
};

}  // namespace tern
