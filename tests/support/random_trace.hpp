// Random programs as trace records that own their names and touches: all kinds of streams, events,
// waits, and blocks and pool blocks with valid lifetimes. Uses are ordered only sometimes.

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tern/detail/trace/record.hpp"
#include "tools/pool_program.hpp"

namespace tern::test {

class RandomTrace {
 public:
  RandomTrace(std::uint64_t seed, std::size_t size) : random_(seed) {
    for (ActorId id = 1; id <= 3; ++id) begin_actor();
    while (records_.size() < size) step();
  }
  RandomTrace(const RandomTrace&) = delete;
  RandomTrace& operator=(const RandomTrace&) = delete;

  [[nodiscard]] const std::vector<TraceRecord>& records() const { return records_; }

 private:
  static constexpr std::uint64_t slab_bytes = 1024, cell = 64, cells = slab_bytes / cell;

  void add(TraceRecord record) {
    // Each record has its own line, so that a checker in `apply` mode reports each finding.
    record.site = {"random.cpp", "step", static_cast<std::uint32_t>(records_.size() + 1)};
    if (record.kind == RecordKind::operation || record.kind == RecordKind::record_event ||
        record.kind == RecordKind::wait_event) {
      ++sequences_[record.actor];
    }
    records_.push_back(record);
  }
  void touch(RecordKind kind, OperationKind operation, ActorId actor, Touch one) {
    touches_.push_back({one});
    add({.kind = kind,
         .operation = operation,
         .actor = actor,
         .name = "k",
         .touches = touches_.back(),
         .tag = "random"});
  }
  ActorId stream() { return static_cast<ActorId>(1 + random_.below(sequences_.size() - 1)); }
  void begin_actor() {
    constexpr ActorKind kinds[] = {ActorKind::stream, ActorKind::stream, ActorKind::blocking_stream,
                                   ActorKind::default_stream};
    names_.push_back("s" + std::to_string(sequences_.size()));
    add({.kind = RecordKind::actor_begins,
         .actor_kind = kinds[random_.below(4)],
         .actor = static_cast<ActorId>(sequences_.size()),
         .name = names_.back()});
    sequences_.push_back(0);
  }
  void step() {
    const std::uint64_t dice = random_.below(100);
    const std::uint64_t at = random_.below(cells);
    const std::uint64_t slab = 1 + random_.below(2);
    const ActorId actor = stream();
    const SpaceRange whole{static_cast<std::uint32_t>(slab), 0, slab_bytes};
    const SpaceRange piece{static_cast<std::uint32_t>(slab), at * cell, cell};
    Slab& memory = slabs_[slab - 1];
    if (!memory.is_live) {
      touch(RecordKind::operation, OperationKind::allocate, actor, {TouchKind::allocate, whole});
      memory.is_live = true;
    } else if (dice < 50) {
      // Slab 1 is used as a whole, slab 2 in pool blocks.
      if (slab == 2 && memory.pieces[at] == 0) {
        memory.pieces[at] = ++generation_;
        touch(RecordKind::operation, OperationKind::allocate, actor,
              {TouchKind::suballocate, piece, generation_});
        return;
      }
      constexpr TouchKind kinds[] = {TouchKind::read, TouchKind::write, TouchKind::read_write};
      const Touch use{kinds[random_.below(3)], piece, memory.pieces[at], random_.below(3) == 0};
      if (random_.below(8) == 0) {
        touch(RecordKind::host_access, OperationKind::call, 0, use);
      } else {
        touch(RecordKind::operation, OperationKind::kernel, actor, use);
      }
    } else if (dice < 60) {
      if (slab == 2 && memory.pieces[at] != 0) {
        touch(RecordKind::operation, OperationKind::release, actor,
              {TouchKind::subrelease, piece, memory.pieces[at]});
        memory.pieces[at] = 0;
      }
    } else if (dice < 62) {
      for (std::uint64_t i = 0; i < cells; ++i) {
        if (memory.pieces[i] == 0) continue;
        touch(RecordKind::operation, OperationKind::release, actor,
              {TouchKind::subrelease, {static_cast<std::uint32_t>(slab), i * cell, cell}});
        memory.pieces[i] = 0;
      }
      touch(RecordKind::operation, OperationKind::release, actor, {TouchKind::release, whole});
      memory.is_live = false;
    } else if (dice < 74) {
      add({.kind = RecordKind::record_event, .actor = actor, .event = random_.below(4)});
    } else if (dice < 86) {
      add({.kind = RecordKind::wait_event, .actor = actor, .event = random_.below(4)});
    } else if (dice < 92) {
      add({.kind = RecordKind::host_wait_mark,
           .actor = actor,
           .sequence = random_.below(sequences_[actor] + 1)});
    } else if (dice < 96) {
      touches_.push_back({{TouchKind::read, piece}, {TouchKind::write, {0, at * cell, cell}}});
      add({.operation = OperationKind::copy, .actor = actor, .touches = touches_.back()});
    } else if (dice < 98 && sequences_.size() < 8) {
      begin_actor();
    } else {
      add({.kind = RecordKind::event_ends, .event = random_.below(4)});
    }
  }

  struct Slab {
    bool is_live = false;
    std::uint64_t pieces[cells] = {};  // generations; 0: free
  };

  tools::Random random_;
  std::vector<TraceRecord> records_;
  std::deque<std::vector<Touch>> touches_;
  std::deque<std::string> names_;
  std::vector<std::uint64_t> sequences_ = {0};
  Slab slabs_[2];
  std::uint64_t generation_ = 0;
};

}  // namespace tern::test
