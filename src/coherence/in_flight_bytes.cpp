#include "coherence/in_flight_bytes.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "coherence/byte_ranges.hpp"

namespace tern {

void InFlightBytes::limit() noexcept {
  if (copies_.size() <= max_ranges) return;
  Entry all = copies_[0];
  for (const Entry& one : copies_) {
    all.range = hull(all.range, one.range);
    all.stream_uses = std::max(all.stream_uses, one.stream_uses);
    if (all.source != one.source) all.source = several_sources;
  }
  copies_.assign(1, all);
}

void InFlightBytes::add_sole_copy(const Entry& one) {
  const auto covers = [&](const Entry& other) {
    return !other.is_lost && other.source == one.source && other.range.begin <= one.range.begin &&
           one.range.end <= other.range.end;
  };
  if (const auto found = std::ranges::find_if(sole_copies_, covers); found != sole_copies_.end()) {
    found->stream_uses = std::max(found->stream_uses, one.stream_uses);
  } else {
    sole_copies_.push_back(one);
  }
}

void InFlightBytes::add_sole_copies_without(PlaceSet removed, PlaceSet host_memory,
                                            const Validity& directory) {
  for (const Entry& one : copies_) {
    directory.visit(one.range.begin, one.range.end,
                    [&](std::size_t begin, std::size_t end, PlaceSet valid) {
                      const PlaceSet left{valid.bits & ~removed.bits};
                      if (left == valid || left.empty() || (left & host_memory) != left) return;
                      add_sole_copy({{begin, end}, one.source, one.stream_uses});
                    });
  }
}

void InFlightBytes::note_arrived(std::uint64_t stream_uses, const Validity& directory) noexcept {
  if (shared_use_ <= stream_uses) shared_use_ = 0;
  std::erase_if(copies_, [&](const Entry& one) { return one.stream_uses <= stream_uses; });
  std::erase_if(sole_copies_, [&](const Entry& one) {
    if (!one.is_lost) return one.stream_uses <= stream_uses;
    return is_empty(directory.first_unwritten(one.range.begin, one.range.end));
  });
}

void InFlightBytes::note_all_arrived() noexcept {
  shared_use_ = 0;
  copies_.clear();
  std::erase_if(sole_copies_, [](const Entry& one) { return !one.is_lost; });
}

void InFlightBytes::clear() noexcept {
  shared_use_ = 0;
  copies_.clear();
  sole_copies_.clear();
}

ByteRange InFlightBytes::first_lost(ByteRange range, const Validity& directory) const noexcept {
  for (const Entry& one : sole_copies_) {
    if (!one.is_lost) continue;
    const ByteRange gap = directory.first_unwritten(std::max(range.begin, one.range.begin),
                                                    std::min(range.end, one.range.end));
    if (!is_empty(gap)) return gap;
  }
  return {};
}

InFlightBytes InFlightBytes::only_lost(std::size_t bytes) const {
  InFlightBytes found;
  for (Entry one : sole_copies_) {
    one.range.end = std::min(one.range.end, bytes);
    if (one.is_lost && one.range.begin < one.range.end) found.sole_copies_.push_back(one);
  }
  return found;
}

unsigned InFlightBytes::source_of(ByteRange range) const noexcept {
  std::optional<unsigned> found;
  for (const Entry& one : copies_) {
    if (!overlap(one.range, range)) continue;
    found = !found || *found == one.source ? one.source : several_sources;
  }
  return found.value_or(several_sources);
}

bool InFlightBytes::touches(ByteRange range) const noexcept {
  const auto concerns = [&](const Entry& one) { return !one.is_lost && overlap(one.range, range); };
  return std::ranges::any_of(copies_, concerns) || std::ranges::any_of(sole_copies_, concerns);
}

std::vector<ByteRange> InFlightBytes::settled(std::vector<ByteRange> ranges) const {
  if (shared_use_ != 0) return {};
  for (const std::vector<Entry>* const list : {&copies_, &sole_copies_}) {
    for (const Entry& one : *list) {
      if (!one.is_lost) ranges = subtract(ranges, std::span(&one.range, 1));
    }
  }
  return ranges;
}

}  // namespace tern
