// Actors holds the actors of a trace, that is, its streams and host threads, and their vector
// clocks.
//
// The clock of an actor contains, for every other actor, the last operation that the actor is
// ordered after. Clocks of earlier operations are needed too, but not kept for each operation: a
// snapshot is taken only when an actor gains order from another actor. Between two snapshots only
// the actor's own component changes.
//
// After lost records, every actor counts as having waited for all others. The operations until then
// form a floor below every clock, present and future. Use from one thread at a time.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tern/detail/trace/record.hpp"
#include "trace/vector_clock.hpp"

namespace tern {

/// One actor: what it is, its clock now, and its earlier clocks.
struct Actor {
  struct Snapshot {
    std::uint64_t sequence;
    VectorClock clock;
  };

  std::string name;
  ActorKind kind = ActorKind::stream;
  std::uint32_t device = 0;
  bool is_alive = false;
  bool is_begun = false;  // a record has named its kind
  VectorClock clock;
  std::vector<Snapshot> snapshots;         // ordered by sequence
  std::uint64_t begun_after = 0;           // the last operation of the previous owner of its number
  std::uint64_t last_record = 0;           // the sequence of its last recorded event; 0 if none
  std::optional<std::uint64_t> idle_wait;  // its last wait for an event that was never recorded
};

/// An actor without a begin record counts as a stream that is ordered after nothing.
class Actors {
 public:
  [[nodiscard]] Actor& at(ActorId id) {
    if (id >= actors_.size()) actors_.resize(id + 1);
    return actors_[id];
  }
  [[nodiscard]] const Actor* find(ActorId id) const noexcept {
    return id < actors_.size() ? &actors_[id] : nullptr;
  }
  [[nodiscard]] ActorId count() const noexcept { return static_cast<ActorId>(actors_.size()); }
  [[nodiscard]] std::size_t snapshot_count() const noexcept { return snapshot_count_; }

  /// Returns the number of operations of the actor.
  [[nodiscard]] std::uint64_t sequence(ActorId id) const noexcept { return known(id, id); }
  /// Returns the last operation of `other` that the actor is ordered after.
  [[nodiscard]] std::uint64_t known(ActorId id, ActorId other) const noexcept {
    const Actor* actor = find(id);
    return actor == nullptr ? floor_.at(other) : std::max(actor->clock.at(other), floor_.at(other));
  }
  /// Like known(), for an operation that `host` would submit to the actor now.
  [[nodiscard]] std::uint64_t known_if_submitted(ActorId id, ActorId host,
                                                 ActorId other) const noexcept {
    std::uint64_t most = std::max(known(id, other), known(host, other));
    for_each_partner(id,
                     [&](const Actor& partner) { most = std::max(most, partner.clock.at(other)); });
    return most;
  }

  /// Begins an actor, which inherits the order of its creator. `id` may be reused from an ended
  /// actor.
  void begin(ActorId id, ActorKind kind, std::uint32_t device, std::string name, ActorId creator);
  /// Adds an operation that `host` submits to a stream. The operation is ordered after everything
  /// that the host is ordered after.
  void submit(ActorId id, ActorId host);
  /// Adds an operation that the actor makes on its own.
  void step(ActorId id);
  /// Orders the actor after everything in the clock.
  void learn(ActorId id, const VectorClock& clock);
  /// Returns the clock of an earlier operation of the actor. For an operation that does not exist
  /// yet, returns the clock now, because nobody can have waited for more.
  [[nodiscard]] VectorClock clock_at(ActorId id, std::uint64_t sequence) const;
  /// Returns the clock of the host thread, or if `stream` is not 0, the clock of the last operation
  /// of the stream that the thread is ordered after.
  [[nodiscard]] VectorClock released_by(ActorId host, ActorId stream);
  /// Returns the operation at which the actor was first ordered after operation `sequence` of
  /// `other`, or nullopt if it is not.
  [[nodiscard]] std::optional<std::uint64_t> learned_at(ActorId id, ActorId other,
                                                        std::uint64_t sequence) const noexcept;
  /// Handles lost records: orders every actor, also those that begin later, after everything so
  /// far.
  void join_all();
  /// Returns true if the begin record of the actor was lost. The actor may then be of any kind and
  /// be ordered with any other actor.
  [[nodiscard]] bool is_unknown(ActorId id) const noexcept {
    const Actor* actor = find(id);
    return has_gap_ && (actor == nullptr || !actor->is_begun);
  }
  /// Returns the work done so far, in clock components and actors visited.
  [[nodiscard]] std::uint64_t work() const noexcept { return work_; }
  /// Returns the memory of all clocks, including snapshots.
  [[nodiscard]] std::size_t clock_bytes() const noexcept;
  /// Drops snapshots that every host thread is ordered after.
  void prune();
  /// Returns true if everything that is submitted from now on, by any host thread, is ordered after
  /// the operation.
  [[nodiscard]] bool is_settled(ActorId id, std::uint64_t sequence) const noexcept;

 private:
  /// Visits the streams that are implicitly ordered with the actor: the default stream of a device
  /// and its blocking streams. Ended streams are included, because their work continues.
  template <class Visit>
  void for_each_partner(ActorId id, Visit visit) const {
    const Actor* actor = find(id);
    if (actor == nullptr) return;
    const bool is_default = actor->kind == ActorKind::default_stream;
    if (!is_default && actor->kind != ActorKind::blocking_stream) return;
    const ActorKind wanted = is_default ? ActorKind::blocking_stream : ActorKind::default_stream;
    work_ += actors_.size();
    for (const Actor& other : actors_) {
      if (other.kind == wanted && other.device == actor->device) visit(other);
    }
  }

  std::vector<Actor> actors_;
  VectorClock floor_;
  bool has_gap_ = false;
  std::size_t snapshot_count_ = 0;
  mutable std::uint64_t work_ = 0;
};

}  // namespace tern
