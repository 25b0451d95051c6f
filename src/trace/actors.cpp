#include "trace/actors.hpp"

#include <iterator>
#include <utility>

namespace tern {

void Actors::begin(ActorId id, ActorKind kind, std::uint32_t device, std::string name,
                   ActorId creator) {
  VectorClock inherited = at(creator).clock;
  Actor& actor = at(id);
  // A reused number keeps counting, so that operations of the old owner stay distinct. The new
  // owner does not inherit the order of the old one, and nobody asks for the old owner's marks any
  // more.
  const std::uint64_t done = actor.clock.at(id);
  inherited.set(id, std::max(done, inherited.at(id)));
  actor.clock = std::move(inherited);
  snapshot_count_ -= actor.snapshots.size();
  actor.snapshots.clear();
  actor.name = std::move(name);
  actor.kind = kind;
  actor.device = device;
  actor.is_alive = true;
  actor.is_begun = true;
  work_ += 3 * actor.clock.size();
  // This snapshot is valid from the first operation of the new owner. The last operation of the old
  // owner had another clock.
  actor.snapshots.push_back({done == 0 ? 0 : done + 1, actor.clock});
  ++snapshot_count_;
  actor.begun_after = done;
  actor.last_record = 0;
  actor.idle_wait.reset();
}

void Actors::learn(ActorId id, const VectorClock& clock) {
  Actor& actor = at(id);
  work_ += clock.size();
  if (!actor.clock.join(clock)) return;
  work_ += actor.clock.size();
  // A stream gains order as a part of an operation, a host thread between two operations.
  const std::uint64_t since = actor.clock.at(id) + (actor.kind == ActorKind::host ? 1 : 0);
  if (!actor.snapshots.empty() && actor.snapshots.back().sequence == since) {
    actor.snapshots.back().clock = actor.clock;
  } else {
    actor.snapshots.push_back({since, actor.clock});
    ++snapshot_count_;
  }
}

void Actors::step(ActorId id) {
  Actor& actor = at(id);
  actor.clock.set(id, actor.clock.at(id) + 1);
}

void Actors::submit(ActorId id, ActorId host) {
  if (std::max(id, host) >= count()) actors_.resize(std::max(id, host) + 1);
  // The vector does not grow below, so references to actors stay valid.
  step(id);
  if (host != id) learn(id, at(host).clock);
  for_each_partner(id, [&](const Actor& partner) { learn(id, partner.clock); });
}

VectorClock Actors::clock_at(ActorId id, std::uint64_t sequence) const {
  const Actor* actor = find(id);
  if (actor == nullptr) return {};
  sequence = std::min(sequence, actor->clock.at(id));
  const auto behind =
      std::ranges::upper_bound(actor->snapshots, sequence, {}, &Actor::Snapshot::sequence);
  VectorClock clock = behind == actor->snapshots.begin() ? VectorClock() : std::prev(behind)->clock;
  clock.set(id, sequence);
  return clock;
}

VectorClock Actors::released_by(ActorId host, ActorId stream) {
  const VectorClock& clock = at(host).clock;
  return stream == 0 ? clock : clock_at(stream, clock.at(stream));
}

std::optional<std::uint64_t> Actors::learned_at(ActorId id, ActorId other,
                                                std::uint64_t sequence) const noexcept {
  const Actor* actor = find(id);
  if (actor == nullptr || actor->clock.at(other) < sequence) return std::nullopt;
  const auto first = std::ranges::partition_point(
      actor->snapshots,
      [&](const Actor::Snapshot& snapshot) { return snapshot.clock.at(other) < sequence; });
  return first == actor->snapshots.end() ? actor->clock.at(id) : first->sequence;
}

bool Actors::is_settled(ActorId id, std::uint64_t sequence) const noexcept {
  if (floor_.at(id) >= sequence) return true;
  return std::ranges::all_of(actors_, [&](const Actor& actor) {
    return actor.kind != ActorKind::host || !actor.is_alive || actor.clock.at(id) >= sequence;
  });
}

void Actors::join_all() {
  has_gap_ = true;
  for (ActorId id = 0; id < count(); ++id) {
    Actor& actor = actors_[id];
    floor_.set(id, actor.clock.at(id));
    // The floor now covers the snapshots and the events that the actor recorded or waited for.
    actor.snapshots.clear();
    actor.last_record = 0;
    actor.idle_wait.reset();
  }
  snapshot_count_ = 0;
  work_ += count();
}

std::size_t Actors::clock_bytes() const noexcept {
  std::size_t words = floor_.size();
  for (const Actor& actor : actors_) {
    words += actor.clock.size();
    for (const Actor::Snapshot& snapshot : actor.snapshots) words += snapshot.clock.size();
  }
  return words * sizeof(std::uint64_t);
}

void Actors::prune() {
  work_ += (snapshot_count_ + 1) * actors_.size();
  snapshot_count_ = 0;
  for (ActorId id = 0; id < count(); ++id) {
    std::vector<Actor::Snapshot>& snapshots = actors_[id].snapshots;
    // Keep the last settled snapshot: it holds the clock of the operations that follow it.
    std::size_t settled = 0;
    while (settled + 1 < snapshots.size() && is_settled(id, snapshots[settled + 1].sequence)) {
      ++settled;
    }
    snapshots.erase(snapshots.begin(), snapshots.begin() + static_cast<std::ptrdiff_t>(settled));
    snapshot_count_ += snapshots.size();
  }
}

}  // namespace tern
