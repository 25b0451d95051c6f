// Room is memory that copies of unified buffers give up for one that has none.
//
// Whoever was refused memory for a copy makes a Room, and asks it to free bytes until the request
// succeeds or nothing more can go. It knows which copies would help: those whose memory counts
// against a limit that the request's does, or, where the device itself has no more, all there. A
// Room has the turn of its place for as long as it lives, so that nobody else takes what it frees.
// Confined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "coherence/residents.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

struct RoomWanted {
  std::size_t bytes = 0;
  /// Who was asked; null for the heap.
  const Resource* resource = nullptr;
  StreamRef stream = {};  // in whose order copies go; none: the host's
  Eviction most = Eviction::dirty;
  Tag tag = {};
  std::string_view place = {};
  CallSite site = {};
};

class Room {
 public:
  /// Waits for its turn, unless the thread has another one.
  Room(Residents& where, const RoomWanted& wanted) noexcept;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room();

  /// What goes to the host waits for the copy's last use, and no more: fetches that the stream is
  /// asked for from here on run beside it. Before anything goes.
  void part_uses() noexcept;
  /// Did another make room meanwhile?
  [[nodiscard]] bool has_waited() const noexcept { return has_waited_; }
  /// Is there a limit that the request is above, whatever goes? Then nothing should.
  [[nodiscard]] bool is_hopeless(const Failure& why) noexcept;
  /// What the limits over the resource lack for the request now; nothing where none lacks anything.
  [[nodiscard]] std::size_t missing_bytes() const noexcept;
  /// Frees so many bytes, or what it can: false if nothing went.
  [[nodiscard]] bool free(std::size_t bytes, const Failure& why) noexcept;
  /// Would there be, once other threads have closed their leases and all that was freed is free?
  [[nodiscard]] bool fits_later(const Failure& why) const noexcept;
  /// How many requests of this thread were refused so far, for those who ask again: one that finds
  /// no room may have made another, on the host.
  [[nodiscard]] static std::uint64_t refused_by_thread() noexcept;
  /// Why there is no room, with who has it.
  [[nodiscard]] Failure refusal(const Failure& why) const noexcept;

 private:
  struct Sums {
    std::size_t evictable_bytes = 0, leased_bytes = 0, kept_bytes = 0;
  };
  class Shared;
  /// May a copy of that kind go? Budgets have a word in it where one of them refuses (Overflow).
  [[nodiscard]] bool may_go(Eviction kind, bool is_for_device) const noexcept;
  [[nodiscard]] bool would_fit_later(const Failure& why) const noexcept;
  /// Those that help. Throws std::bad_alloc.
  void find(bool is_for_device, Shared& found) const;

  Residents& where_;
  const RoomWanted wanted_;
  const Overflow reach_;
  std::unique_lock<std::mutex> turn_;
  bool has_waited_ = false;
  bool is_hopeless_ = false;
  std::size_t limit_bytes_ = 0;
  std::size_t freed_bytes_ = 0;
  std::uint64_t freed_copies_ = 0;
  std::optional<Failure> last_failure_;  // of a copy that should have gone
};

/// Is it for want of memory that it was refused?
[[nodiscard]] bool is_shortage(const Failure& failure) noexcept;
/// And is it worth asking again?
[[nodiscard]] bool may_fit_later(const Failure& failure) noexcept;

}  // namespace tern
