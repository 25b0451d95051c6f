// Residents is the list of the copies that unified buffers have in one place, with the time of
// their last use. Eviction chooses from this list.
//
// Recording a use has to be almost free, so it takes no lock and does not reorder the list. It
// stamps the copy with the clock of the place, and advances the clock only if another copy was used
// since. An eviction request pays instead: it visits and sorts all copies. A Resident is in the
// list of its place while its copy has memory.
//
// Stamps may be set while another thread visits the list. The lock order is:
// 1. the transfer lock of the buffer that needs memory,
// 2. the turn of a device, then the turn of the host (see EvictionRequest),
// 3. the mutex of a list,
// 4. the mutex_ of a buffer (UnifiedCore).

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

/// The entry of one copy in the list of its place.
class Resident {
 public:
  /// `memory` is the number of the copy's memory in its buffer.
  Resident(std::shared_ptr<Residents> where, UnifiedCore* owner, unsigned memory) noexcept
      : where_(std::move(where)), owner_(owner), memory_(memory) {}
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;
  ~Resident() { leave(); }

  [[nodiscard]] Residents& where() const noexcept { return *where_; }
  [[nodiscard]] UnifiedCore* owner() const noexcept { return owner_; }
  [[nodiscard]] unsigned memory() const noexcept { return memory_; }

  /// Records that the copy is used now.
  void touch() noexcept;
  /// Makes the copy the first of its kind to be evicted, until its next use.
  void set_unwanted() noexcept { last_use_.store(0, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t last_use() const noexcept {
    return last_use_.load(std::memory_order_relaxed);
  }

  /// Adds the copy to the list, as used now, and removes it. Calling either twice has no effect.
  void enter() noexcept;
  void leave() noexcept;

 private:
  friend class Residents;

  const std::shared_ptr<Residents> where_;
  UnifiedCore* const owner_;
  const unsigned memory_;
  std::atomic<std::uint64_t> last_use_ = 0;
  Resident* previous_ = nullptr;  // guarded by the mutex of the list, as the members below
  Resident* next_ = nullptr;
  bool is_listed_ = false;
};

class Residents {
 public:
  Residents() noexcept = default;
  Residents(const Residents&) = delete;
  Residents& operator=(const Residents&) = delete;

  /// Returns the list of a place. All callers get the same list while any of them holds it. Throws
  /// std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<Residents> of(Place place);
  /// Returns the lists of all places. Throws std::bad_alloc.
  [[nodiscard]] static std::vector<std::shared_ptr<Residents>> all();

  /// Calls visit(Resident&) for each copy, with the list locked.
  template <class Visit>
  void visit(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (Resident* one = first_; one != nullptr; one = one->next_) visit(*one);
  }

  /// Returns the clock. It advances when a copy is used that was not the last one used.
  [[nodiscard]] const std::atomic<std::uint64_t>& now() const noexcept { return time_; }
  /// Returns the lock of eviction requests. Its holder keeps it until its allocation has succeeded
  /// or failed, so that no other request takes the memory it has freed.
  [[nodiscard]] std::mutex& turn() noexcept { return turn_; }

  /// Between these two calls, memory of a copy is being allocated or freed: a budget may count it
  /// while the list does not. Code that adds up the sizes of copies checks whether there was such a
  /// transit.
  void begin_transit() noexcept {
    transits_begun_.fetch_add(1);
    transits_.fetch_add(1);
  }
  void end_transit() noexcept { transits_.fetch_sub(1); }
  [[nodiscard]] std::uint64_t transits_begun() const noexcept { return transits_begun_.load(); }
  /// Returns whether there was a transit since transits_begun() returned `begun`.
  [[nodiscard]] bool had_transits_since(std::uint64_t begun) const noexcept {
    return transits_.load() != 0 || transits_begun_.load() != begun;
  }

 private:
  friend class Resident;

  alignas(64) std::atomic<std::uint64_t> time_ = 1;  // 0 is before every use
  alignas(64) std::mutex turn_;
  std::atomic<std::uint64_t> transits_begun_ = 0, transits_ = 0;
  std::mutex mutex_;
  Resident* first_ = nullptr;  // guarded by mutex_
};

[[gnu::always_inline]] inline void Resident::touch() noexcept {
  // If two threads read the same clock and store the same stamp, the order of their uses is
  // unimportant.
  if (last_use() == where_->time_.load(std::memory_order_relaxed)) return;
  last_use_.store(where_->time_.fetch_add(1, std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
}

}  // namespace tern
