#include "trace/shadow.hpp"

namespace tern {

Shadow::Blocks::const_iterator Shadow::first_in(const Blocks& blocks, const SpaceRange& range) {
  auto at = blocks.upper_bound(range.offset);
  if (at != blocks.begin()) {
    const auto before = std::prev(at);
    if (range.offset - before->first < before->second.bytes) return before;
  }
  return at != blocks.end() && at->first < end_of(range) ? at : blocks.end();
}

void Shadow::erase_all_in(Blocks& blocks, const SpaceRange& range) {
  for (auto at = first_in(blocks, range); at != blocks.end() && at->first < end_of(range);) {
    at = blocks.erase(at);
  }
}

void Shadow::adopt_gaps(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;
  segments_.visit(begin, end, [&](std::uint64_t from, std::uint64_t to, const Segment* segment) {
    if (segment == nullptr) gaps.emplace_back(from, to);
    return true;
  });
  for (const auto& [from, to] : gaps) segments_.assign(from, to, Segment{});
}

void Shadow::cut_blocks_in(const SpaceRange& range) {
  // A pool block may span several driver blocks, whose pages are mapped side by side.
  auto at = blocks_.upper_bound(range.offset);
  if (at != blocks_.begin()) --at;
  for (; at != blocks_.end() && at->first < end_of(range); ++at) {
    if (at->first + at->second.bytes > range.offset) cut(at->first, at->second);
  }
}

void Shadow::cut(std::uint64_t begin, LiveBlock& block) {
  if (block.is_cut) return;
  block.is_cut = true;
  segments_.update(begin, begin + block.bytes, [](std::uint64_t, std::uint64_t, Segment& segment) {
    segment.kind = Segment::Kind::reserved;
  });
}

void Shadow::apply_write(const Touch& touch, const Epoch& epoch) {
  Segment segment;
  segment.last = epoch;
  segments_.assign(touch.range.offset, end_of(touch.range), std::move(segment));
}

void Shadow::apply_birth(const Touch& touch, const Epoch& epoch) {
  const bool is_piece = touch.kind == TouchKind::suballocate;
  // The first pool block inside a driver block shows that a pool manages it. The rest of the driver
  // block then belongs to the pool and must not be used.
  if (is_piece) cut_blocks_in(touch.range);
  Segment segment;
  segment.kind = Segment::Kind::allocated;
  // Host memory can be written without a record: by the program itself and by devices of other
  // backends.
  segment.is_undefined = !is_host_;
  segment.last = epoch;
  segments_.assign(touch.range.offset, end_of(touch.range), std::move(segment));
  erase_all_in(pieces_, touch.range);
  if (!is_piece) erase_all_in(blocks_, touch.range);
  (is_piece ? pieces_ : blocks_)
      .emplace(touch.range.offset, LiveBlock{touch.range.bytes, epoch.note, false});
}

bool Shadow::is_of_the_gap(const Touch& touch) const {
  if (!has_gap_) return false;
  const bool is_piece = touch.kind == TouchKind::subrelease;
  const Blocks& blocks = is_piece ? pieces_ : blocks_;
  if (first_in(blocks, touch.range) != blocks.end()) return false;
  const auto at = segments_.find(touch.range.offset);
  if (at == segments_.end() || at->second.value.kind != Segment::Kind::released) return true;
  // A driver block and its first pool block start at the same byte, and the pool block may have
  // been freed before.
  const NoteRef& birth = at->second.value.birth;
  return !birth || (birth->touch == TouchKind::suballocate) != is_piece;
}

std::optional<Problem> Shadow::live_piece_in(const Touch& touch) const {
  if (touch.kind != TouchKind::release) return std::nullopt;
  const auto piece = first_in(pieces_, touch.range);
  if (piece == pieces_.end()) return std::nullopt;
  return Problem{FindingCode::free_while_in_use, piece->first, piece->first + piece->second.bytes,
                 epoch_of(piece->second.note)};
}

std::size_t Shadow::read_count() const noexcept {
  std::size_t count = 0;
  for (const auto& [begin, interval] : segments_) count += interval.value.reads.size();
  return count;
}

void Shadow::apply_death(const Touch& touch, const Epoch& epoch) {
  if (is_of_the_gap(touch)) {
    // The range may not have been a whole block, so later uses are not reported as use after free.
    // They must still be ordered after the free.
    if (touch.kind == TouchKind::release) erase_all_in(pieces_, touch.range);
    apply_write(touch, epoch);
    return;
  }
  const bool is_piece = touch.kind == TouchKind::subrelease;
  Blocks& blocks = is_piece ? pieces_ : blocks_;
  const auto block = blocks.find(touch.range.offset);
  if (block == blocks.end() || block->second.bytes != touch.range.bytes) return;
  if (is_stale(touch, block->second)) return;

  Segment segment;
  segment.kind = Segment::Kind::released;
  segment.last = epoch;
  segment.birth = block->second.note;
  segment.reuse = segment.birth->reuse;
  // A report about a later use names the last use before the free. It prefers a real use to the
  // allocation, which is the last operation on the unused end of a block that a pool rounded up.
  NoteRef last_use;
  segments_.visit(
      touch.range.offset, end_of(touch.range),
      [&](std::uint64_t, std::uint64_t, const Segment* before) {
        if (before == nullptr) return true;
        if (before->kind == Segment::Kind::written) {
          last_use = later_of(last_use, before->last.note);
        }
        before->reads.visit([&](const Epoch& read) { last_use = later_of(last_use, read.note); });
        return true;
      });
  segment.last_use = last_use ? last_use : segment.birth;
  segments_.assign(touch.range.offset, end_of(touch.range), std::move(segment));
  blocks.erase(block);
  if (!is_piece) erase_all_in(pieces_, touch.range);
}

std::vector<SpaceRange> Shadow::undefined_in(const SpaceRange& range) const {
  std::vector<SpaceRange> undefined;
  segments_.visit(range.offset, end_of(range),
                  [&](std::uint64_t begin, std::uint64_t end, const Segment* segment) {
                    ++work_;
                    if (segment != nullptr && segment->is_undefined) {
                      undefined.push_back({range.space, begin, end - begin});
                    }
                    return true;
                  });
  return undefined;
}

void Shadow::make_undefined(const SpaceRange& range) {
  segments_.update(range.offset, end_of(range),
                   [&](std::uint64_t begin, std::uint64_t, Segment& segment) {
                     segment.is_undefined = block_at(begin) != nullptr;
                   });
}

void Shadow::make_defined(const SpaceRange& range) {
  segments_.update(range.offset, end_of(range), [](std::uint64_t, std::uint64_t, Segment& segment) {
    segment.is_undefined = false;
  });
}

std::optional<std::uint64_t> Shadow::first_unowned(const SpaceRange& range) const {
  for (std::uint64_t at = range.offset; at < end_of(range);) {
    std::uint64_t begin = 0;
    const LiveBlock* block = block_at(at, &begin);
    if (block == nullptr) return at;
    at = begin + block->bytes;
  }
  return std::nullopt;
}

std::uint32_t Shadow::reuse_of(const SpaceRange& range) const {
  std::uint32_t reuse = 0;
  segments_.visit(range.offset, end_of(range),
                  [&](std::uint64_t, std::uint64_t, const Segment* segment) {
                    ++work_;
                    if (segment != nullptr) reuse = std::max(reuse, segment->reuse);
                    return true;
                  });
  return reuse;
}

const LiveBlock* Shadow::block_at(std::uint64_t offset, std::uint64_t* begin) const {
  for (const Blocks* blocks : {&pieces_, &blocks_}) {
    const auto block = first_in(*blocks, {0, offset, 1});
    if (block == blocks->end()) continue;
    if (begin != nullptr) *begin = block->first;
    return &block->second;
  }
  return nullptr;
}

NoteRef Shadow::latest_write_in_block(std::uint64_t offset) const {
  std::uint64_t begin = 0;
  const LiveBlock* block = block_at(offset, &begin);
  NoteRef latest;
  if (block == nullptr) return latest;
  segments_.visit(begin, begin + block->bytes,
                  [&](std::uint64_t, std::uint64_t, const Segment* segment) {
                    if (segment != nullptr && segment->kind == Segment::Kind::written) {
                      latest = later_of(latest, segment->last.note);
                    }
                    return true;
                  });
  return latest;
}

}  // namespace tern
