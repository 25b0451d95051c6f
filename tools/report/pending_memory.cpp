#include "tools/report/pending_memory.hpp"

#include <algorithm>
#include <iterator>

namespace tern::tools {
namespace {

constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::size_t max_changes = 8192, parts = 2048;

std::uint64_t end_of(std::uint64_t address, std::uint64_t bytes) {
  return address > all - bytes ? all : address + bytes;
}

}  // namespace

void PendingMemory::allocate(const trace::MemoryEvent& event, std::uint64_t time) {
  cut(event.address, end_of(event.address, event.bytes), time);
}

bool PendingMemory::free(const trace::MemoryEvent& event, std::uint64_t time, std::uint32_t device,
                         std::uint64_t block) {
  std::uint64_t address = event.address;
  const std::uint64_t end = end_of(address, event.bytes);
  if (event.stream == 0 || event.extra == 0 || address == end) return false;
  // Pending memory is freed again only if the recording is damaged or lacks events.
  cut(address, end, time);
  pieces_[address] = {end, block};
  Range range{end, event.stream, event.extra, event.resource, device};
  const auto join = [&](Ranges::iterator other) {
    if (other->second.stream != range.stream || other->second.resource != range.resource) return;
    address = std::min(address, other->first);
    const Range joined = remove(other);
    range.end = std::max(range.end, joined.end);
    range.sequence = std::max(range.sequence, joined.sequence);
  };
  if (const auto after = ranges_.find(end); after != ranges_.end()) join(after);
  if (const auto at = ranges_.lower_bound(address); at != ranges_.begin()) {
    if (std::prev(at)->second.end == address) join(std::prev(at));
  }
  insert(address, range);
  note(device, time);
  return true;
}

void PendingMemory::done_seen(const trace::MemoryEvent& event, std::uint64_t time) {
  // The work that an event of the program covers is not known to this class.
  if (event.block == 0 && event.address != 0) return;
  const std::uint64_t sequence = event.block == 0 ? all : event.block;
  auto next = order_.lower_bound({event.stream, 0, 0});
  while (next != order_.end() && next->stream == event.stream && next->sequence <= sequence) {
    const auto at = ranges_.find(next->address);
    ++next;
    const std::uint64_t address = at->first;
    const Range range = remove(at);
    auto piece = pieces_.find(address);
    while (piece != pieces_.end() && piece->first < range.end) {
      passed_.push_back({time, piece->second.block});
      piece = pieces_.erase(piece);
    }
    note(range.device, time);
  }
}

void PendingMemory::insert(std::uint64_t address, const Range& range) {
  ranges_.emplace(address, range);
  order_.insert({range.stream, range.sequence, address});
  bytes_[range.device] += range.end - address;
}

PendingMemory::Range PendingMemory::remove(Ranges::iterator at) {
  const auto [address, range] = *at;
  order_.erase({range.stream, range.sequence, address});
  bytes_[range.device] -= range.end - address;
  ranges_.erase(at);
  return range;
}

void PendingMemory::cut(std::uint64_t address, std::uint64_t end, std::uint64_t time) {
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin() && std::prev(at)->second.end > address) --at;
  if (at == ranges_.end() || at->first >= end) return;
  while (at != ranges_.end() && at->first < end) {
    const std::uint64_t first = at->first;
    const auto next = std::next(at);
    Range range = remove(at);
    const std::uint64_t last = range.end;
    if (last > end) insert(end, range);
    range.end = address;
    if (first < address) insert(first, range);
    note(range.device, time);
    at = next;
  }
  cut_pieces(address, end);
}

void PendingMemory::cut_pieces(std::uint64_t address, std::uint64_t end) {
  auto at = pieces_.upper_bound(address);
  if (at != pieces_.begin() && std::prev(at)->second.end > address) --at;
  while (at != pieces_.end() && at->first < end) {
    const auto [first, piece] = *at;
    at = pieces_.erase(at);
    if (piece.end > end) pieces_[end] = piece;
    if (first < address) pieces_[first] = {address, piece.block};
  }
}

void PendingMemory::note(std::uint32_t device, std::uint64_t time) {
  changes_.push_back({time, bytes_[device], device});
}

std::vector<PendingMemory::Change> PendingMemory::changes(std::uint64_t duration) const {
  if (changes_.size() <= max_changes) return changes_;
  struct Part {
    std::uint64_t number = all;
    Change highest = {}, last = {};
  };
  std::map<std::uint32_t, Part> of_device;
  std::vector<Change> thinned;
  const auto finish = [&](const Part& part) {
    if (part.number == all) return;
    thinned.push_back(part.highest);
    if (part.last.bytes != part.highest.bytes) thinned.push_back(part.last);
  };
  for (const Change& one : changes_) {
    Part& part = of_device[one.device];
    const std::uint64_t number = one.time / (duration / parts + 1);
    if (number != part.number) {
      finish(part);
      part = {number, one, one};
    }
    if (one.bytes > part.highest.bytes) part.highest = one;
    part.last = one;
  }
  for (const auto& [device, part] : of_device) finish(part);
  std::ranges::stable_sort(thinned, {}, &Change::time);
  return thinned;
}

}  // namespace tern::tools
