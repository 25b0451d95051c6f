// The actors of a trace: what each has done, and what it knows of the others.
//
// An actor's clock says, for every other actor, up to which operation it comes after. The clock of
// an earlier operation is not kept for each: a snapshot is taken only where an actor learned
// something from another, and in between only its own count moved.
//
// Where order was lost, everybody counts as having waited for everybody: what was done until then
// is a floor below all that anyone knows, now or later. Confined.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tern/trace/record.hpp"
#include "trace/vector_clock.hpp"

namespace tern {

struct Actor {
  struct Snapshot {
    std::uint64_t sequence;
    VectorClock clock;
  };

  std::string name;
  ActorKind kind = ActorKind::stream;
  std::uint32_t device = 0;
  bool is_alive = false;
  bool is_begun = false;  // somebody said what it is
  VectorClock clock;
  std::vector<Snapshot> snapshots;         // by sequence
  std::uint64_t begun_after = 0;           // the last operation of an earlier owner of its number
  std::uint64_t last_record = 0;           // the sequence of its last recorded event; 0: none
  std::optional<std::uint64_t> idle_wait;  // where it last waited for an event never recorded
};

/// An actor that was never begun is a stream that knows nothing.
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

  /// How often the actor has acted.
  [[nodiscard]] std::uint64_t sequence(ActorId id) const noexcept { return known(id, id); }
  /// Up to which operation of `other` the actor comes after it.
  [[nodiscard]] std::uint64_t known(ActorId id, ActorId other) const noexcept {
    const Actor* actor = find(id);
    return actor == nullptr ? floor_.at(other) : std::max(actor->clock.at(other), floor_.at(other));
  }
  /// The same for what `host` would submit to the actor now.
  [[nodiscard]] std::uint64_t known_if_submitted(ActorId id, ActorId host,
                                                 ActorId other) const noexcept {
    std::uint64_t most = std::max(known(id, other), known(host, other));
    for_each_partner(id,
                     [&](const Actor& partner) { most = std::max(most, partner.clock.at(other)); });
    return most;
  }

  void begin(ActorId id, ActorKind kind, std::uint32_t device, std::string name, ActorId creator);
  /// The host submits something to a stream: it follows what the host knows.
  void submit(ActorId id, ActorId host);
  /// The actor acts once more by itself.
  void step(ActorId id);
  /// The actor comes after everything the clock stands for.
  void learn(ActorId id, const VectorClock& clock);
  /// What was known at an earlier operation of the actor. Of one that is yet to come, what is known
  /// now: nobody can have waited for more.
  [[nodiscard]] VectorClock clock_at(ActorId id, std::uint64_t sequence) const;
  /// At which of its operations the actor first knew `other` up to `sequence`, if it does.
  [[nodiscard]] std::optional<std::uint64_t> learned_at(ActorId id, ActorId other,
                                                        std::uint64_t sequence) const noexcept;
  /// Order was lost: everybody comes after everything done so far, also who is yet to begin.
  void join_all();
  /// Was its beginning lost? Then it may be of any kind, and ordered with any other actor.
  [[nodiscard]] bool is_unknown(ActorId id) const noexcept {
    const Actor* actor = find(id);
    return has_gap_ && (actor == nullptr || !actor->is_begun);
  }
  /// How much has been looked at so far, in components of clocks and actors.
  [[nodiscard]] std::uint64_t work() const noexcept { return work_; }
  /// What the clocks of all actors take, earlier ones included.
  [[nodiscard]] std::size_t clock_bytes() const noexcept;
  /// Drops snapshots that every host thread has passed for good.
  void prune();
  /// Is everything submitted from now on ordered after that operation, whoever submits it?
  [[nodiscard]] bool is_settled(ActorId id, std::uint64_t sequence) const noexcept;

 private:
  /// The default stream of a device follows its blocking streams, and they follow it. One that has
  /// ended still counts: its work goes on.
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
