// Residents are the copies that unified buffers have in one place, with when each was last used.
//
// A use must cost next to nothing, so it takes no lock and moves nothing: it stamps the copy with
// the place's clock, and advances that only if another copy was used since. Whoever needs memory
// there pays instead, and looks at all of them. A Resident is on the list of its place while its
// copy has memory.
//
// Stamps may be set while others look. Locks: a place's list may be locked by whoever moves bytes
// of a buffer, and under it a buffer's own brief lock may be taken, never the other way round.
// Whoever makes room in a place has its turn first; a device's turn comes before the host's.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tern/coherence/pressure.hpp"
#include "tern/core/place.hpp"
#include "tern/core/tag.hpp"

namespace tern {

class UnifiedCore;
class Residents;

/// A copy of a buffer, as its place knows it: in which of the buffer's memories it is.
class Resident {
 public:
  Resident(std::shared_ptr<Residents> where, UnifiedCore* owner, unsigned memory) noexcept
      : where_(std::move(where)), owner_(owner), memory_(memory) {}
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;
  ~Resident() { leave(); }

  [[nodiscard]] Residents& where() const noexcept { return *where_; }
  [[nodiscard]] UnifiedCore* owner() const noexcept { return owner_; }
  [[nodiscard]] unsigned memory() const noexcept { return memory_; }

  /// It was used just now.
  void touch() noexcept;
  /// It is the first of its kind to go, until it is used again.
  void set_unwanted() noexcept { last_use_.store(0, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t last_use() const noexcept {
    return last_use_.load(std::memory_order_relaxed);
  }

  /// On the list, as used just now, and off it; either may be said twice.
  void enter() noexcept;
  void leave() noexcept;

 private:
  friend class Residents;

  const std::shared_ptr<Residents> where_;
  UnifiedCore* const owner_;
  const unsigned memory_;
  std::atomic<std::uint64_t> last_use_ = 0;
  Resident* previous_ = nullptr;  // guarded by the list's mutex, as all of these
  Resident* next_ = nullptr;
  bool is_listed_ = false;
};

class Residents {
 public:
  Residents() noexcept = default;
  Residents(const Residents&) = delete;
  Residents& operator=(const Residents&) = delete;

  /// Those of a place: the same for all who ask while somebody has them. Throws std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<Residents> of(Place place);

  /// Calls visit(Resident&) for each, with the list locked.
  template <class Visit>
  void visit(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (Resident* one = first_; one != nullptr; one = one->next_) visit(*one);
  }

  /// Rises when a copy is used that was not the last one used.
  [[nodiscard]] const std::atomic<std::uint64_t>& now() const noexcept { return time_; }
  /// Held by whoever makes room, so that nobody else takes it before the memory is there.
  [[nodiscard]] std::mutex& turn() noexcept { return turn_; }

  /// Memory of a copy is on its way between the two: charged to a budget, and on the list as none.
  /// Whoever adds up what copies have looks whether there was any.
  void begin_transit() noexcept {
    transits_begun_.fetch_add(1);
    transits_.fetch_add(1);
  }
  void end_transit() noexcept { transits_.fetch_sub(1); }
  [[nodiscard]] std::uint64_t transits_begun() const noexcept { return transits_begun_.load(); }
  /// Has there been any since so many had begun?
  [[nodiscard]] bool had_transits_since(std::uint64_t begun) const noexcept {
    return transits_.load() != 0 || transits_begun_.load() != begun;
  }

 private:
  friend class Resident;

  alignas(64) std::atomic<std::uint64_t> time_ = 1;  // 0 is before everything
  alignas(64) std::mutex turn_;
  std::atomic<std::uint64_t> transits_begun_ = 0, transits_ = 0;
  std::mutex mutex_;
  Resident* first_ = nullptr;  // guarded by mutex_
};

[[gnu::always_inline]] inline void Resident::touch() noexcept {
  // Two threads may read one clock, and stamp one number: they used it at the same time.
  if (last_use() == where_->time_.load(std::memory_order_relaxed)) return;
  last_use_.store(where_->time_.fetch_add(1, std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
}

/// A copy that may go.
struct Candidate {
  Eviction kind = Eviction::stale;
  std::uint64_t last_use = 0;
  std::size_t bytes = 0;
  UnifiedCore* owner = nullptr;
  unsigned memory = 0;
};

/// Puts those first that should go first: stale before clean before dirty, and of each kind those
/// whose last use is longest ago.
void sort(std::vector<Candidate>& candidates) noexcept;

}  // namespace tern
