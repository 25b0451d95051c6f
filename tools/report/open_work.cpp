#include "tools/report/open_work.hpp"

#include <algorithm>

namespace tern::tools {

std::size_t OpenWork::add(const trace::MemoryEvent& event) {
  const std::size_t number = over_.size();
  over_.push_back(never);
  open_.insert({event.stream, next_mark(event.stream), number});
  if (event.kind != trace::EventKind::stream_wait) return number;
  // A wait is also over when the other stream has passed what it is for.
  const std::uint64_t other = event.extra;
  std::uint64_t sequence = event.block;
  if (sequence == 0) {
    const auto known = mark_of_event_.find(event.address);
    sequence = known != mark_of_event_.end() ? known->second : next_mark(other);
  }
  open_.insert({other, sequence, number});
  return number;
}

void OpenWork::event_recorded(const trace::MemoryEvent& event) {
  if (event.block == 0) {
    mark_of_event_[event.address] = next_mark(event.stream);
    return;
  }
  std::uint64_t& last = last_mark_[event.stream];
  last = std::max(last, event.block);
}

void OpenWork::done_seen(const trace::MemoryEvent& event, std::uint64_t time) {
  // The work that an event of the program covers is not known to this class.
  if (event.block == 0 && event.address != 0) return;
  const std::uint64_t sequence = event.block == 0 ? never : event.block;
  auto at = open_.lower_bound({event.stream, 0, 0});
  while (at != open_.end() && at->stream == event.stream && at->sequence <= sequence) {
    std::uint64_t& over = over_[at->number];
    over = std::min(over, time);
    at = open_.erase(at);
  }
}

}  // namespace tern::tools
