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

void PendingMemory::add(const trace::MemoryEvent& event, std::uint64_t time, std::uint32_t device) {
  switch (event.kind) {
    case trace::EventKind::allocate:
      return end_overlapping(event.address, event.bytes, time);
    case trace::EventKind::free:
      if (event.stream == 0 || event.extra == 0 || event.bytes == 0) return;
      // Pending memory is freed again only if the recording is damaged or lacks events.
      end_overlapping(event.address, event.bytes, time);
      return begin(event.address, {event.bytes, event.stream, event.extra, device}, time);
    case trace::EventKind::done_seen:
      // The work that an event of the program covers is not known to this class.
      if (event.block == 0 && event.address != 0) return;
      return end_passed(event.stream, event.block == 0 ? all : event.block, time);
    default:
      return;
  }
}

void PendingMemory::begin(std::uint64_t address, const Freed& freed, std::uint64_t time) {
  pending_.emplace(address, freed);
  by_stream_[freed.stream].emplace_back(freed.sequence, address);
  bytes_[freed.device] += freed.bytes;
  note(freed.device, time);
}

PendingMemory::ByAddress::iterator PendingMemory::end(ByAddress::iterator freed,
                                                      std::uint64_t time) {
  bytes_[freed->second.device] -= freed->second.bytes;
  note(freed->second.device, time);
  return pending_.erase(freed);
}

void PendingMemory::end_overlapping(std::uint64_t address, std::uint64_t bytes,
                                    std::uint64_t time) {
  auto at = pending_.lower_bound(address);
  if (at != pending_.begin()) {
    const auto before = std::prev(at);
    if (end_of(before->first, before->second.bytes) > address) at = before;
  }
  while (at != pending_.end() && at->first < end_of(address, bytes)) at = end(at, time);
}

void PendingMemory::end_passed(std::uint64_t stream, std::uint64_t sequence, std::uint64_t time) {
  const auto known = by_stream_.find(stream);
  if (known == by_stream_.end()) return;
  auto& frees = known->second;
  while (!frees.empty() && frees.front().first <= sequence) {
    const auto at = pending_.find(frees.front().second);
    if (at != pending_.end() && at->second.stream == stream &&
        at->second.sequence == frees.front().first) {
      end(at, time);
    }
    frees.pop_front();
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
