// The OrderChecker decides whether every memory access is ordered after the accesses it depends on.
//
//   OrderChecker checker;
//   if (std::optional<Finding> finding = checker.check(record)) std::cout << finding->text();
//
// The checker reads trace records in submission order and keeps a vector clock for each actor, that
// is, for each stream and host thread. Order follows from the submissions alone and never from
// timing, so one pass covers all schedules of the recorded submissions. Every reported error can
// occur under some schedule. For declared ranges, an access that is not reported is ordered under
// every schedule.
//
// For each byte of each memory space, a Shadow stores the last write, the reads since then, and
// whether the byte was ever written. Shadow::judge compares a new access with them: two accesses
// race if one of them writes and the clocks do not order them. The history of a block survives its
// free, so premature reuse is an ordinary conflict.
//
// After lost records, the checker treats all earlier work as ordered and all memory as unknown. No
// finding depends on what the lost records may have contained.
//
// The caller decides whether a record with a finding takes effect. A device that rejects the
// operation leaves the record out; a check of a finished run applies it. Use a checker from one
// thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/trace/finding.hpp"

namespace tern {

class TERN_EXPORT OrderChecker {
 public:
  OrderChecker();
  ~OrderChecker();
  OrderChecker(OrderChecker&&) noexcept;
  OrderChecker& operator=(OrderChecker&&) noexcept;

  /// Sets the text that findings show about the run, such as "sim:0  seed 0x1c9f  schedule lazy",
  /// and the line that tells how to repeat it.
  void set_context(std::string context, std::string replay);

  /// Whether a record with a finding takes effect.
  enum class OnFinding : std::uint8_t { leave_out, apply };

  /// Checks a record and then applies it, unless there is a finding and `on_finding` is
  /// `leave_out`. Returns at most one finding per record, for the first byte that is wrong. With
  /// `apply`, each pair of conflicting lines is reported once, because later conflicts of the same
  /// lines mostly follow from the first. Throws InvalidArgument, and changes nothing, if the record
  /// is not well formed.
  std::optional<Finding> check(const TraceRecord& record,
                               OnFinding on_finding = OnFinding::leave_out);

  /// The caller's text for a finding that the caller made, for report().
  struct Words {
    std::string what = {};
    std::string fix = {};
    std::string action = {};  // for `now`; if empty, the record describes itself
  };
  /// Builds a Finding for an error that the caller, not the checker, has found in a record. The
  /// checker adds the actor, the call site, the block and how to repeat the run. The finding refers
  /// to the first touch of the record, if any, and to the operation of the actor with number
  /// `sequence`. 0 means the actor's next operation. Does not change the checker.
  [[nodiscard]] Finding report(FindingCode code, const TraceRecord& record, Words words,
                               std::uint64_t sequence = 0) const;
  /// Returns an operation as findings print it, such as "A@18": the name of the actor and the
  /// number of its operation.
  [[nodiscard]] std::string mark_text(ActorId actor, std::uint64_t sequence) const;

  /// A block that is allocated now.
  struct LiveBlock {
    SpaceRange range = {};
    Tag tag = {};
  };
  /// Returns the block that contains the byte now: the block of a pool if there is one, else the
  /// block of the driver. Returns nullopt if there is neither.
  [[nodiscard]] std::optional<LiveBlock> block_at(std::uint32_t space,
                                                  std::uint64_t offset) const noexcept;

  /// Whether leaks() reports driver memory that a pool has divided into blocks. The pool may keep
  /// such memory until the process ends.
  enum class PoolMemory : std::uint8_t { is_leaked, is_kept };
  /// Returns the blocks that were never freed as findings, oldest first, at most `most`.
  [[nodiscard]] std::vector<Finding> leaks(std::size_t most = static_cast<std::size_t>(-1),
                                           PoolMemory pools = PoolMemory::is_leaked) const;
  /// Returns the number of gaps in the trace so far. After a gap, operations are numbered, in
  /// findings too, as if the lost ones did not exist.
  [[nodiscard]] std::uint64_t gaps() const noexcept;

  /// Returns true if later work of `actor` is ordered after operation `sequence` of `other`.
  [[nodiscard]] bool knows(ActorId actor, ActorId other, std::uint64_t sequence) const noexcept;
  /// Returns true if everything ever done to the range is ordered before whatever any actor may do
  /// next.
  [[nodiscard]] bool is_settled(const SpaceRange& range) const noexcept;
  /// Returns, by actor number, which actors have accessed memory in a way that a later operation
  /// may conflict with. The number of an ended actor that is not in the set may be given to a new
  /// stream. With `with_names`, the set also contains actors that a later report can only name,
  /// such as the one that freed a block.
  [[nodiscard]] std::vector<bool> remembered_actors(bool with_names) const;
  /// Returns the number of operations of the actor, which is the sequence number of its last
  /// operation.
  [[nodiscard]] std::uint64_t sequence(ActorId actor) const noexcept;

  /// These functions return the number of byte intervals and of earlier clocks that the checker
  /// keeps. For tests of its memory use.
  [[nodiscard]] std::size_t interval_count() const noexcept;
  [[nodiscard]] std::size_t snapshot_count() const noexcept;
  /// work() returns the cost of checking so far, in steps of a few nanoseconds. history_bytes()
  /// returns the memory of clocks and of concurrent reads, which can grow beyond a constant per
  /// touch; history_bytes() recounts at each call. check_trace() uses both to enforce a
  /// CheckBudget.
  [[nodiscard]] std::uint64_t work() const noexcept;
  [[nodiscard]] std::size_t history_bytes() const noexcept;

 private:
  std::optional<Finding> apply(const TraceRecord& record, OnFinding on_finding);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tern
