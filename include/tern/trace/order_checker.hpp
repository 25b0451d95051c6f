// The OrderChecker decides whether every access to memory is ordered after the ones it depends on.
//
// It reads trace records in the order they were submitted and keeps a vector clock for each stream
// and host thread. Order comes from the submissions alone, never from how fast anything ran, so one
// pass judges all schedules of that sequence: what it reports can go wrong, and for the ranges that
// were declared, what it does not report cannot. Per memory space it knows, for each byte, the last
// write, the reads since, and whether the byte was ever written; the history of a block outlives
// the block, which is how early reuse is seen.
//
// Where records were lost, everything until then counts as ordered and everything about memory as
// unknown: no finding rests on what the missing records may have done.
//
// A record with a finding can be applied or left out: a device that refuses the operation leaves it
// out, a trace that already happened applies it. Confined to one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/record.hpp"

namespace tern {

class TERN_EXPORT OrderChecker {
 public:
  OrderChecker();
  ~OrderChecker();
  OrderChecker(OrderChecker&&) noexcept;
  OrderChecker& operator=(OrderChecker&&) noexcept;

  /// What findings say about the run: "sim:0  seed 0x1c9f  schedule lazy", and the line that
  /// repeats it.
  void set_context(std::string context, std::string replay);

  enum class OnFinding : std::uint8_t { leave_out, apply };

  /// Judges the record, and applies it unless there is a finding and the caller leaves it out.
  /// At most one finding per record: the first byte that is wrong. When it applies, a finding is
  /// given once per pair of lines that collide: what follows is mostly a consequence. Throws
  /// InvalidArgument, and changes nothing, if the record is not well-formed.
  std::optional<Finding> check(const TraceRecord& record,
                               OnFinding on_finding = OnFinding::leave_out);

  /// What somebody else found out, to be said in the checker's way.
  struct Words {
    std::string what = {};
    std::string fix = {};
    std::string action = {};  // of `now`; empty: as the record has it
  };
  /// A finding about a record that somebody else made: who, where, which block and how to repeat it
  /// are added to their words. It concerns the first touch of the record, if there is one, and the
  /// operation of the actor with `sequence`; 0 means the one to come. Changes nothing.
  [[nodiscard]] Finding report(FindingCode code, const TraceRecord& record, Words words,
                               std::uint64_t sequence = 0) const;
  /// "A@18": the actor's name and the number of its operation, as findings print it.
  [[nodiscard]] std::string mark_text(ActorId actor, std::uint64_t sequence) const;

  struct LiveBlock {
    SpaceRange range = {};
    Tag tag = {};
  };
  /// The block that holds the byte now: a pool's, or else the driver's.
  [[nodiscard]] std::optional<LiveBlock> block_at(std::uint32_t space,
                                                  std::uint64_t offset) const noexcept;

  /// Memory that a pool has cut into blocks stays with the pool, which may live to the end of the
  /// process.
  enum class PoolMemory : std::uint8_t { is_leaked, is_kept };
  /// Blocks that were never released, oldest first, as findings; at most so many.
  [[nodiscard]] std::vector<Finding> leaks(std::size_t most = static_cast<std::size_t>(-1),
                                           PoolMemory pools = PoolMemory::is_leaked) const;
  /// How many gaps the trace had so far. Operations behind one are counted, and named in findings,
  /// without those that were lost.
  [[nodiscard]] std::uint64_t gaps() const noexcept;

  /// Does `actor` know that everything `other` did up to `sequence` is done before it goes on?
  [[nodiscard]] bool knows(ActorId actor, ActorId other, std::uint64_t sequence) const noexcept;
  /// Does everybody who may act know that all that was ever done to the range is done?
  [[nodiscard]] bool is_settled(const SpaceRange& range) const noexcept;
  /// Which actors have done something to memory that a later operation may collide with, by number.
  /// Of an actor that is not among them and has ended, the number may be given to another stream.
  /// Without `with_names`, those too that a later report can only name, as the one that released.
  [[nodiscard]] std::vector<bool> remembered_actors(bool with_names) const;
  /// How many operations the actor has had: the sequence of its last one.
  [[nodiscard]] std::uint64_t sequence(ActorId actor) const noexcept;

  /// What the checker keeps now, for tests of its memory use: intervals of bytes, and earlier
  /// clocks.
  [[nodiscard]] std::size_t interval_count() const noexcept;
  [[nodiscard]] std::size_t snapshot_count() const noexcept;
  /// What checking has cost so far, in small steps of a few nanoseconds each, and what it keeps
  /// beyond a constant for each touch: clocks, and reads of the same bytes. The second is counted
  /// anew at each call. For whoever sets a limit on them, as the check of a file does.
  [[nodiscard]] std::uint64_t work() const noexcept;
  [[nodiscard]] std::size_t history_bytes() const noexcept;

 private:
  std::optional<Finding> apply(const TraceRecord& record, OnFinding on_finding);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tern
