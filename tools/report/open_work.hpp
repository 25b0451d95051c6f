// OpenWork finds when a program saw that work of its streams was over: waits for other streams, and
// host functions. A recording has the time at which such work was submitted, and the marks of
// streams that the program saw complete later.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "trace/memory_event.hpp"

namespace tern::tools {

class OpenWork {
 public:
  static constexpr std::uint64_t never = UINT64_MAX;

  /// Adds a wait of a stream or a host function. Returns its number, counted from 0. Call this
  /// class in the order of time.
  std::size_t add(const trace::MemoryEvent& event);
  void event_recorded(const trace::MemoryEvent& event);
  void done_seen(const trace::MemoryEvent& event, std::uint64_t time);

  /// Returns when the work was seen to be over, or `never`.
  [[nodiscard]] std::uint64_t over(std::size_t number) const { return over_[number]; }

 private:
  /// The work is over when the stream has passed the sequence number.
  struct Open {
    std::uint64_t stream = 0, sequence = 0;
    std::size_t number = 0;

    friend auto operator<=>(const Open&, const Open&) = default;
  };
  /// Returns a sequence number that covers all work of the stream so far.
  [[nodiscard]] std::uint64_t next_mark(std::uint64_t stream) { return last_mark_[stream] + 1; }

  std::set<Open> open_;
  std::unordered_map<std::uint64_t, std::uint64_t> last_mark_;  // by stream
  /// The mark that covers an event of the program, by event.
  std::unordered_map<std::uint64_t, std::uint64_t> mark_of_event_;
  std::vector<std::uint64_t> over_;
};

}  // namespace tern::tools
