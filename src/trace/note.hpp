// A Note stores what a later report needs to describe an operation.
//
// Many byte intervals refer to the same operation, and most operations are soon irrelevant. Notes
// are therefore reference-counted and recycled in a NotePool. Use from one thread at a time, like
// the checker that owns the pool.

#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>

#include "tern/detail/trace/record.hpp"

namespace tern {

/// Returns true if the touch allocates a block.
[[nodiscard]] constexpr bool is_birth(TouchKind kind) noexcept {
  return kind == TouchKind::allocate || kind == TouchKind::suballocate;
}
/// Returns true if the touch frees a block.
[[nodiscard]] constexpr bool is_death(TouchKind kind) noexcept {
  return kind == TouchKind::release || kind == TouchKind::subrelease;
}

struct Note {
  std::uint64_t step = 0;  // the number of the trace record
  ActorId actor = 0;
  std::uint64_t sequence = 0;
  OperationKind operation = OperationKind::call;
  TouchKind touch = TouchKind::read;
  bool is_host = false;
  SpaceRange range = {};
  SpaceRange other = {};       // for a copy: the other side
  std::string_view name = {};  // interned by the checker
  CallSite site = {};
  Tag tag = {};
  std::uint64_t generation = 0;  // for an allocation: of the block, if known
  // For an allocation: how many blocks have used these bytes, including this one.
  std::uint32_t reuse = 0;
};

class NotePool {
 public:
  class Ref;

  NotePool() = default;
  NotePool(const NotePool&) = delete;
  NotePool& operator=(const NotePool&) = delete;

  [[nodiscard]] Ref make(const Note& note);

 private:
  struct Place : Note {
    NotePool* pool = nullptr;
    Place* next_unused = nullptr;
    std::uint32_t references = 0;
  };

  std::deque<Place> places_;  // never move
  Place* unused_ = nullptr;
};

/// A counted reference to a note. Empty if nothing is known.
class NotePool::Ref {
 public:
  Ref() noexcept = default;
  Ref(const Ref& other) noexcept : place_(other.place_) {
    if (place_ != nullptr) ++place_->references;
  }
  Ref(Ref&& other) noexcept : place_(std::exchange(other.place_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(place_, other.place_);
    return *this;
  }
  ~Ref() {
    if (place_ == nullptr || --place_->references > 0) return;
    place_->next_unused = std::exchange(place_->pool->unused_, place_);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return place_ != nullptr; }
  [[nodiscard]] const Note& operator*() const noexcept { return *place_; }
  [[nodiscard]] const Note* operator->() const noexcept { return place_; }
  [[nodiscard]] const Note* get() const noexcept { return place_; }

 private:
  friend class NotePool;
  explicit Ref(Place& place) noexcept : place_(&place) { ++place.references; }

  Place* place_ = nullptr;
};

using NoteRef = NotePool::Ref;

inline NoteRef NotePool::make(const Note& note) {
  if (unused_ == nullptr) {
    unused_ = &places_.emplace_back();
    unused_->pool = this;
  }
  Place& place = *std::exchange(unused_, unused_->next_unused);
  static_cast<Note&>(place) = note;
  return Ref(place);
}

/// Returns the later of two notes. An empty reference counts as earlier than any note.
[[nodiscard]] inline const NoteRef& later_of(const NoteRef& a, const NoteRef& b) noexcept {
  return !b || (a && a->step >= b->step) ? a : b;
}

}  // namespace tern
