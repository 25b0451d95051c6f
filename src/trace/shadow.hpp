// A Shadow stores, for every byte of a memory space, the last write, the reads since then, and the
// block that the byte belongs to.
//
// `judge` decides whether an access races with an earlier one: the earlier access is not ordered
// before it, and at least one of the two writes. Checking and applying are separate, so that a
// rejected operation leaves no effect. The shadow stores no clocks: the caller, an OrderChecker,
// passes a View with the order of the acting actor.
//
// After lost records, a shadow starts empty and knows that there was a gap. Bytes that no known
// block contains may then belong to anybody, and the free of an unknown block may be correct. Use
// from one thread at a time.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/interval_map.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/trace/finding.hpp"
#include "trace/note.hpp"

namespace tern {

/// Operation number `clock` of `actor`, with the note that describes it.
struct Epoch {
  ActorId actor = 0;
  std::uint64_t clock = 0;
  NoteRef note = {};
};

[[nodiscard]] inline Epoch epoch_of(const NoteRef& note) {
  return {note->actor, note->sequence, note};
}

/// The reads of an interval since its last write. There is nearly always one, so one is stored
/// inline.
class ReadSet {
 public:
  [[nodiscard]] bool empty() const noexcept { return !has_one_; }
  [[nodiscard]] std::size_t size() const noexcept {
    return (has_one_ ? 1u : 0u) + (more_ ? more_->size() : 0u);
  }
  void clear() noexcept {
    has_one_ = false;
    one_ = {};
    more_.reset();
  }

  template <class Visit>
  void visit(Visit visit) const {
    if (!has_one_) return;
    visit(one_);
    if (!more_) return;
    for (const Epoch& read : *more_) visit(read);
  }

  /// Adds a read and drops the earlier reads that it is ordered after: a write that is ordered
  /// after the new read is ordered after those too.
  template <class IsOrdered>
  void add(const Epoch& read, IsOrdered is_ordered) {
    if (more_) std::erase_if(*more_, is_ordered);
    if (!has_one_ || is_ordered(one_)) {
      one_ = read;
      has_one_ = true;
      if (more_ && more_->empty()) more_.reset();
      return;
    }
    if (!more_) more_ = std::make_unique<std::vector<Epoch>>();
    more_->push_back(read);
  }

  ReadSet() = default;
  ReadSet(const ReadSet& other)
      : has_one_(other.has_one_),
        one_(other.one_),
        more_(other.more_ ? std::make_unique<std::vector<Epoch>>(*other.more_) : nullptr) {}
  ReadSet(ReadSet&&) noexcept = default;
  ReadSet& operator=(ReadSet other) noexcept {
    has_one_ = other.has_one_;
    one_ = std::move(other.one_);
    more_ = std::move(other.more_);
    return *this;
  }
  ~ReadSet() = default;

 private:
  bool has_one_ = false;
  Epoch one_;
  std::unique_ptr<std::vector<Epoch>> more_;
};

/// The state of an interval of bytes.
struct Segment {
  enum class Kind : std::uint8_t {
    written,
    allocated,  // the last write is the allocation
    released,   // the last write is the free; kept until the bytes are allocated again
    reserved,   // owned by a pool and not handed out
  };
  Kind kind = Kind::written;
  bool is_undefined = false;
  std::uint32_t reuse = 0;  // if released: how many blocks used these bytes
  Epoch last;               // the last write
  NoteRef last_use;         // if released: the last use before the free
  NoteRef birth;            // if released: the allocation of its block
  ReadSet reads;
};

static_assert(sizeof(IntervalMap<Segment>::Interval) <= 96, "there are millions of them");

/// A block that is allocated now.
struct LiveBlock {
  std::uint64_t bytes = 0;
  NoteRef note;         // its allocation
  bool is_cut = false;  // a pool has handed out parts of it
};

/// An error in a touch.
struct Problem {
  FindingCode code;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Epoch against = {};    // the conflicting operation; has no note if none is known
  NoteRef earlier = {};  // the operation before that
  NoteRef birth = {};    // the allocation of the freed block that had the bytes
};

class Shadow {
 public:
  /// Bytes of host memory that the shadow has not seen count as allocated, initialized and ordered.
  /// Bytes of a device do not, unless there was a gap. `work` counts visited intervals and reads;
  /// it must outlive the shadow, and all shadows share it.
  Shadow(bool is_host, bool has_gap, std::uint64_t& work) noexcept
      : is_host_(is_host), is_open_(is_host || has_gap), has_gap_(has_gap), work_(work) {}

  /// The acting actor: its kind, and is_ordered(actor, clock), which returns whether it is ordered
  /// after an operation.
  template <class Ordered>
  struct View {
    bool is_host = false;
    bool moves_bytes = false;  // does not interpret the bytes; they may be uninitialized
    Ordered is_ordered;
  };

  /// Returns the first error of the touch, or nullopt. Does not change the shadow.
  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge(const Touch& touch, const View<Ordered>& view) const {
    if (is_birth(touch.kind)) return judge_birth(touch, view);
    if (is_death(touch.kind)) return judge_death(touch, view);
    return judge_use(touch, view);
  }

  template <class Ordered>
  void apply_read(const Touch& touch, const Epoch& epoch, const View<Ordered>& view) {
    const std::uint64_t end = end_of(touch.range);
    if (is_open_) adopt_gaps(touch.range.offset, end);
    segments_.update(touch.range.offset, end, [&](std::uint64_t, std::uint64_t, Segment& segment) {
      work_ += 1 + segment.reads.size();
      segment.reads.add(epoch,
                        [&](const Epoch& read) { return view.is_ordered(read.actor, read.clock); });
    });
  }
  void apply_write(const Touch& touch, const Epoch& epoch);
  void apply_birth(const Touch& touch, const Epoch& epoch);
  /// Frees exactly one block. A free of anything else has no predictable effect and is not applied.
  void apply_death(const Touch& touch, const Epoch& epoch);

  /// Returns the bytes of the range that were not written since their allocation, ascending.
  [[nodiscard]] std::vector<SpaceRange> undefined_in(const SpaceRange& range) const;
  /// Marks bytes as initialized; the reader accepts whatever they contain.
  void make_defined(const SpaceRange& range);
  /// Marks bytes of a block as uninitialized, because they were copied from uninitialized bytes.
  void make_undefined(const SpaceRange& range);
  /// Returns the first byte of the range that is in no live block.
  [[nodiscard]] std::optional<std::uint64_t> first_unowned(const SpaceRange& range) const;
  /// Returns true if is_ordered(actor, clock) holds for every operation on the range.
  template <class IsOrdered>
  [[nodiscard]] bool is_ordered_throughout(const SpaceRange& range, IsOrdered is_ordered) const {
    bool is_all = true;
    segments_.visit(
        range.offset, end_of(range), [&](std::uint64_t, std::uint64_t, const Segment* segment) {
          if (segment == nullptr) return true;
          is_all = is_ordered(segment->last.actor, segment->last.clock);
          segment->reads.visit(
              [&](const Epoch& read) { is_all = is_all && is_ordered(read.actor, read.clock); });
          return is_all;
        });
    return is_all;
  }
  /// Calls visit(epoch, is_moot) for the last write and the reads of every interval. Operations on
  /// a freed driver block are moot: no later operation has to be ordered after them, because the
  /// driver orders its own reuse.
  template <class Visit>
  void visit_epochs(Visit visit) const {
    for (const auto& [begin, interval] : segments_) {
      const Segment& segment = interval.value;
      work_ += 1 + segment.reads.size();
      const bool is_moot = segment.kind == Segment::Kind::released && segment.birth &&
                           segment.birth->touch == TouchKind::allocate;
      visit(segment.last, is_moot);
      segment.reads.visit([&](const Epoch& read) { visit(read, is_moot); });
    }
  }
  /// Returns how many blocks have used these bytes; the maximum over the range.
  [[nodiscard]] std::uint32_t reuse_of(const SpaceRange& range) const;
  /// Returns the live block that contains the byte: the pool's block if there is one, else the
  /// driver's.
  [[nodiscard]] const LiveBlock* block_at(std::uint64_t offset,
                                          std::uint64_t* begin = nullptr) const;
  /// Returns the latest write in the block that contains the byte.
  [[nodiscard]] NoteRef latest_write_in_block(std::uint64_t offset) const;

  using Blocks = std::map<std::uint64_t, LiveBlock>;
  /// Blocks of drivers and of the host, by offset.
  [[nodiscard]] const Blocks& blocks() const noexcept { return blocks_; }
  /// Blocks of pools, by offset.
  [[nodiscard]] const Blocks& pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::size_t interval_count() const noexcept { return segments_.size(); }
  /// Returns the number of stored reads. An interval may have one per actor.
  [[nodiscard]] std::size_t read_count() const noexcept;

  /// Drops history that no later operation can conflict with: is_settled(actor, clock) returns true
  /// if every actor is ordered after the operation for good. The results of later checks do not
  /// change. With `forgets_releases`, later reports may say less about who freed a block.
  template <class Settled>
  void prune(Settled is_settled, bool forgets_releases) {
    const auto settled = [&](const Epoch& epoch) { return is_settled(epoch.actor, epoch.clock); };
    for (auto& [begin, interval] : segments_) {
      work_ += 1 + interval.value.reads.size();
      bool all_settled = true;
      interval.value.reads.visit(
          [&](const Epoch& read) { all_settled = all_settled && settled(read); });
      if (all_settled) interval.value.reads.clear();
    }
    // In host memory and after a gap, bytes outside known blocks are treated the same whether or
    // not they were seen before, so their history can be dropped.
    if (is_open_) {
      segments_.erase_if([&](std::uint64_t begin, const Segment& segment) {
        return segment.kind == Segment::Kind::written && segment.reads.empty() &&
               settled(segment.last) && block_at(begin) == nullptr;
      });
    }
    segments_.join([&](std::uint64_t begin, Segment& a, std::uint64_t next, const Segment& b) {
      if (a.kind != b.kind || a.is_undefined != b.is_undefined || !a.reads.empty() ||
          !b.reads.empty() || !settled(a.last) || !settled(b.last)) {
        return false;
      }
      if (a.kind != Segment::Kind::released) {
        if (block_at(begin) != block_at(next)) return false;
      } else if (a.birth.get() != b.birth.get()) {
        if (!forgets_releases) return false;
        a.birth = a.last_use = {};
        a.last = {};
        a.reuse = std::max(a.reuse, b.reuse);
        return true;
      }
      a.last = later_of(a.last.note, b.last.note).get() == a.last.note.get() ? a.last : b.last;
      return true;
    });
  }

 private:
  [[nodiscard]] static std::uint64_t end_of(const SpaceRange& range) noexcept {
    return range.offset + range.bytes;
  }
  /// Returns the first block that overlaps the range, or end().
  [[nodiscard]] static Blocks::const_iterator first_in(const Blocks& blocks,
                                                       const SpaceRange& range);
  static void erase_all_in(Blocks& blocks, const SpaceRange& range);
  void adopt_gaps(std::uint64_t begin, std::uint64_t end);
  void cut_blocks_in(const SpaceRange& range);
  void cut(std::uint64_t begin, LiveBlock& block);

  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge_use(const Touch& touch,
                                                 const View<Ordered>& view) const {
    std::optional<Problem> problem;
    segments_.visit(touch.range.offset, end_of(touch.range),
                    [&](std::uint64_t from, std::uint64_t to, const Segment* segment) {
                      problem = segment != nullptr ? judge_segment(from, to, *segment, touch, view)
                                : is_open_
                                    ? std::nullopt
                                    : std::optional(Problem{FindingCode::out_of_bounds, from, to});
                      return !problem;
                    });
    return problem;
  }

  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge_segment(std::uint64_t from, std::uint64_t to,
                                                     const Segment& segment, const Touch& touch,
                                                     const View<Ordered>& view) const {
    work_ += 1 + segment.reads.size();
    if (segment.kind == Segment::Kind::reserved) {
      return Problem{FindingCode::out_of_bounds, from, to};
    }
    if (segment.kind == Segment::Kind::released) {
      return Problem{
          FindingCode::use_after_free, from, to, segment.last, segment.last_use, segment.birth};
    }
    if (touch.generation != 0) {
      const LiveBlock* block = block_at(from);
      if (block != nullptr && is_stale(touch, *block)) {
        return Problem{FindingCode::use_after_free, from, to, epoch_of(block->note)};
      }
    }
    const bool reads = touch.kind != TouchKind::write;
    const bool writes = touch.kind != TouchKind::read;
    if (!view.is_ordered(segment.last.actor, segment.last.clock)) {
      const FindingCode code = segment.kind == Segment::Kind::allocated
                                   ? FindingCode::use_before_alloc
                                   : conflict(view.is_host, reads, segment.last);
      return Problem{code, from, to, segment.last};
    }
    if (writes) {
      std::optional<Problem> problem;
      segment.reads.visit([&](const Epoch& read) {
        if (problem || view.is_ordered(read.actor, read.clock)) return;
        problem = Problem{conflict(view.is_host, false, read), from, to, read};
      });
      if (problem) return problem;
    }
    if (reads && segment.is_undefined && !touch.is_assumed && !view.moves_bytes) {
      return Problem{FindingCode::uninitialised_read, from, to};
    }
    return std::nullopt;
  }

  /// Returns the code of a conflict. If the host takes part, the code names what the host does.
  [[nodiscard]] static FindingCode conflict(bool is_host, bool reads, const Epoch& other) noexcept {
    if (!is_host) {
      if (!other.note || !other.note->is_host) return FindingCode::missing_wait;
      reads = other.note->touch == TouchKind::read;
    }
    return reads ? FindingCode::host_read_before_sync : FindingCode::host_write_before_sync;
  }

  [[nodiscard]] static bool is_stale(const Touch& touch, const LiveBlock& block) noexcept {
    return touch.generation != 0 && block.note->generation != 0 &&
           touch.generation != block.note->generation;
  }

  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge_birth(const Touch& touch,
                                                   const View<Ordered>& view) const {
    const bool is_piece = touch.kind == TouchKind::suballocate;
    for (const Blocks* blocks : {is_piece ? nullptr : &blocks_, &pieces_}) {
      if (blocks == nullptr) continue;
      const auto live = first_in(*blocks, touch.range);
      if (live == blocks->end()) continue;
      return Problem{FindingCode::live_block_reissued, std::max(touch.range.offset, live->first),
                     std::min(end_of(touch.range), live->first + live->second.bytes),
                     epoch_of(live->second.note)};
    }
    // A driver orders its own reuse of memory. A pool must do so itself.
    if (!is_piece) return std::nullopt;
    return judge_order(touch, view, FindingCode::reuse_before_ready);
  }

  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge_death(const Touch& touch,
                                                   const View<Ordered>& view) const {
    const std::uint64_t begin = touch.range.offset;
    const std::uint64_t end = end_of(touch.range);
    const Blocks& blocks = touch.kind == TouchKind::subrelease ? pieces_ : blocks_;
    const auto block = blocks.find(begin);
    if (is_of_the_gap(touch)) {
      // The free must still be ordered after uses since the gap, and pool blocks handed out since
      // the gap must not be live.
      if (const auto piece = live_piece_in(touch)) return piece;
      return judge_order(touch, view, FindingCode::free_while_in_use);
    }
    if (block == blocks.end() || block->second.bytes != touch.range.bytes) {
      const auto at = segments_.find(begin);
      if (at == segments_.end() || at->second.value.kind != Segment::Kind::released) {
        return Problem{FindingCode::wrong_range_free, begin, end};
      }
      const Segment& freed = at->second.value;
      // A free by address alone means the whole block that was there.
      return Problem{
          FindingCode::double_free, begin,      std::max(end, at->second.end), freed.last,
          freed.last_use,           freed.birth};
    }
    if (is_stale(touch, block->second)) {
      return Problem{FindingCode::double_free, begin, end, epoch_of(block->second.note)};
    }
    if (const auto piece = live_piece_in(touch)) return piece;
    return judge_order(touch, view, FindingCode::free_while_in_use);
  }

  /// Returns true if the touch frees a block whose allocation may have been lost. Returns false if
  /// the range overlaps a live block or was freed before, because both are known since the gap.
  [[nodiscard]] bool is_of_the_gap(const Touch& touch) const;
  /// Reports a driver block that is freed while a pool block inside it is live.
  [[nodiscard]] std::optional<Problem> live_piece_in(const Touch& touch) const;

  /// Reports the first operation on these bytes that the actor is not ordered after.
  template <class Ordered>
  [[nodiscard]] std::optional<Problem> judge_order(const Touch& touch, const View<Ordered>& view,
                                                   FindingCode code) const {
    std::optional<Problem> problem;
    segments_.visit(touch.range.offset, end_of(touch.range),
                    [&](std::uint64_t from, std::uint64_t to, const Segment* segment) {
                      if (segment == nullptr) return true;
                      work_ += 1 + segment->reads.size();
                      const auto collide = [&](const Epoch& epoch) {
                        if (problem || view.is_ordered(epoch.actor, epoch.clock)) return;
                        problem = Problem{code, from, to, epoch, segment->last_use, segment->birth};
                      };
                      collide(segment->last);
                      segment->reads.visit(collide);
                      return !problem;
                    });
    return problem;
  }

  const bool is_host_;
  const bool is_open_;  // bytes outside known blocks may be used
  const bool has_gap_;
  std::uint64_t& work_;
  IntervalMap<Segment> segments_;
  // The blocks of each map are disjoint: a new block replaces the blocks that it overlaps.
  Blocks blocks_;
  Blocks pieces_;
};

}  // namespace tern
