// The shadow of a memory space: for every byte, who wrote it last, who has read it since, and which
// block it belongs to.
//
// Judging and applying are separate, so that an operation that is refused leaves no trace. The
// shadow asks its caller what the acting party knows; it has no clocks of its own.
//
// After a gap a shadow begins anew and knows that it does: bytes it has seen nobody give out may be
// anybody's, and so may a block that is freed. Confined.

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

#include "tern/core/interval_map.hpp"
#include "tern/trace/finding.hpp"
#include "tern/trace/record.hpp"
#include "trace/note.hpp"

namespace tern {

/// Operation number `clock` of `actor`, and what is remembered of it.
struct Epoch {
  ActorId actor = 0;
  std::uint64_t clock = 0;
  NoteRef note = {};
};

[[nodiscard]] inline Epoch epoch_of(const NoteRef& note) {
  return {note->actor, note->sequence, note};
}

/// The reads of an interval since its last write: nearly always one, so that one lies inline.
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

  /// Adds a read and drops those it comes after, which it stands for from now on.
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

/// What is known of an interval of bytes.
struct Segment {
  enum class Kind : std::uint8_t {
    written,
    allocated,  // the last write is the allocation
    released,   // the last write is the release; kept until the bytes are given out again
    reserved,   // a pool owns it and has given it to nobody
  };
  Kind kind = Kind::written;
  bool is_undefined = false;
  std::uint32_t reuse = 0;  // of a released segment: how many blocks these bytes have been
  Epoch last;               // the last write
  NoteRef last_use;         // of a released segment: the use before the release
  NoteRef birth;            // of a released segment: the allocation of the block it was part of
  ReadSet reads;
};

static_assert(sizeof(IntervalMap<Segment>::Interval) <= 96, "there are millions of them");

/// A block that was given out and not taken back.
struct LiveBlock {
  std::uint64_t bytes = 0;
  NoteRef note;         // its allocation
  bool is_cut = false;  // a pool has announced pieces of it
};

/// Something wrong with a touch.
struct Problem {
  FindingCode code;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Epoch against = {};    // the operation it collides with; no note: none is known
  NoteRef earlier = {};  // the one before that
  NoteRef birth = {};    // the allocation of the block the bytes belonged to, if it is gone
};

class Shadow {
 public:
  /// Unknown bytes of host memory are somebody's, defined and settled; those of a device are not.
  /// `work` is where to count what has been looked at, in intervals and reads; it outlives the
  /// shadow, and serves all of them.
  Shadow(bool is_host, bool has_gap, std::uint64_t& work) noexcept
      : is_host_(is_host), is_open_(is_host || has_gap), has_gap_(has_gap), work_(work) {}

  /// What the acting party is, and what it knows: is_ordered(actor, clock).
  template <class Ordered>
  struct View {
    bool is_host = false;
    bool moves_bytes = false;  // without looking at them, so undefined ones do no harm
    Ordered is_ordered;
  };

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
  /// Of exactly one block: freeing anything else has no effect that could be foretold.
  void apply_death(const Touch& touch, const Epoch& epoch);

  /// The bytes of the range that nothing has written since their allocation, ascending.
  [[nodiscard]] std::vector<SpaceRange> undefined_in(const SpaceRange& range) const;
  /// These bytes count as written: whoever reads them takes what is there.
  void make_defined(const SpaceRange& range);
  /// These bytes of a block are undefined again: they were copied from such.
  void make_undefined(const SpaceRange& range);
  /// The first byte of the range that is in no live block.
  [[nodiscard]] std::optional<std::uint64_t> first_unowned(const SpaceRange& range) const;
  /// Is everything that was done to the range ordered, as is_ordered(actor, clock) has it?
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
  /// Visits the last write and the reads of every interval, as visit(epoch, is_moot): nobody is
  /// ever asked whether he comes after what is moot, the release of a driver's block.
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
  /// How many blocks these bytes have been, at the most.
  [[nodiscard]] std::uint32_t reuse_of(const SpaceRange& range) const;
  /// The live block, a pool's or else the driver's, that holds the byte.
  [[nodiscard]] const LiveBlock* block_at(std::uint64_t offset,
                                          std::uint64_t* begin = nullptr) const;
  /// The latest write elsewhere in the block that holds the byte.
  [[nodiscard]] NoteRef latest_write_in_block(std::uint64_t offset) const;

  using Blocks = std::map<std::uint64_t, LiveBlock>;
  /// Given out by a driver or the host, by offset.
  [[nodiscard]] const Blocks& blocks() const noexcept { return blocks_; }
  /// Given out by pools, by offset.
  [[nodiscard]] const Blocks& pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::size_t interval_count() const noexcept { return segments_.size(); }
  /// The reads remembered now, which an interval may have one of for every actor.
  [[nodiscard]] std::size_t read_count() const noexcept;

  /// Forgets what no later operation can collide with: is_settled(actor, clock) says that everybody
  /// is ordered after it for good. Verdicts stay the same. With `forgets_releases`, later reports
  /// may say less about who released a block.
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
    // Memory that nobody is known to have given out is no different when it was never seen.
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
  /// The first block that shares a byte with the range, or end().
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

  /// A collision in which the host takes part is named after what the host does.
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
    // A driver orders its own reuse. A pool has to.
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
      // What was done to its bytes since, and the pieces given out since, must still come before.
      if (const auto piece = live_piece_in(touch)) return piece;
      return judge_order(touch, view, FindingCode::free_while_in_use);
    }
    if (block == blocks.end() || block->second.bytes != touch.range.bytes) {
      const auto at = segments_.find(begin);
      if (at == segments_.end() || at->second.value.kind != Segment::Kind::released) {
        return Problem{FindingCode::wrong_range_free, begin, end};
      }
      const Segment& freed = at->second.value;
      // Whoever frees by the address alone means all of what was there.
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

  /// Is this the end of a block whose beginning may have been lost? Not if it overlaps a live block
  /// or was freed before, which are both known since the gap.
  [[nodiscard]] bool is_of_the_gap(const Touch& touch) const;
  /// A block ends while a pool has given out a piece of it.
  [[nodiscard]] std::optional<Problem> live_piece_in(const Touch& touch) const;

  /// Everything ever done to these bytes must come before.
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
  const bool is_open_;  // unknown bytes are somebody's
  const bool has_gap_;
  std::uint64_t& work_;
  IntervalMap<Segment> segments_;
  // Disjoint among themselves: one that is given out over another replaces it.
  Blocks blocks_;
  Blocks pieces_;
};

}  // namespace tern
