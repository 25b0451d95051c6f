#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tools/formats/rmm_log.hpp"

namespace tern::tools {
namespace {

using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

constexpr std::uint64_t us_per_second = 1'000'000, seconds_per_day = 86'400;

class LogWriter {
 public:
  LogWriter(const MemoryTrace& trace, Output& out) : trace_(trace), out_(out) {}

  std::vector<std::string> write() {
    out_.write("Thread,Time,Action,Pointer,Size,Stream\n");
    write_earlier();
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      if (event.kind == EventKind::allocate) begin(event, i);
      if (event.kind == EventKind::free) end(event, i);
      if (event.kind == EventKind::refuse || event.kind == EventKind::budget_refuse) {
        line(i, event.time_ns, "allocate failure", 0, event.bytes, event.stream);
      }
    }
    return notes();
  }

 private:
  struct Live {
    std::uint64_t pointer = 0, bytes = 0, stream = 0;
    std::uint32_t resource = 0;
  };

  /// A replay cannot free what it has not allocated.
  void write_earlier() {
    std::unordered_set<std::uint64_t> known;
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      if (event.kind == EventKind::allocate) known.insert(event.block);
      if (event.kind != EventKind::free || !known.insert(event.block).second) continue;
      MemoryEvent begins = event;
      begins.time_ns = trace_.events.front().time_ns;
      begin(begins, i);
    }
  }
  void begin(const MemoryEvent& event, std::size_t index) {
    resources_.insert(event.resource);
    std::uint64_t pointer = event.address;
    if (const auto there = by_pointer_.find(pointer); there != by_pointer_.end()) {
      const std::uint64_t number = there->second;
      if (live_[number].resource == event.resource) {
        // The free of the block at this address is missing in the trace.
        free_line(index, event.time_ns, live_[number]);
        live_.erase(number);
        by_pointer_.erase(there);
      } else {
        pointer = other_pointer();
      }
    }
    // RMM reads pointers as signed numbers.
    if (pointer > INT64_MAX) pointer = other_pointer();
    live_[event.block] = {pointer, event.bytes, event.stream, event.resource};
    by_pointer_[pointer] = event.block;
    line(index, event.time_ns, "allocate", pointer, event.bytes, event.stream);
  }
  void end(const MemoryEvent& event, std::size_t index) {
    const auto at = live_.find(event.block);
    if (at == live_.end()) return;
    at->second.stream = event.stream;
    free_line(index, event.time_ns, at->second);
    by_pointer_.erase(at->second.pointer);
    live_.erase(at);
  }
  void free_line(std::size_t index, std::uint64_t time, const Live& block) {
    line(index, time, "free", block.pointer, block.bytes, block.stream);
  }
  /// A log has no devices, whose addresses may be equal. A replay uses a pointer only as a name.
  std::uint64_t other_pointer() { return (std::uint64_t{1} << 62) + 256 * ++other_pointers_; }

  void line(std::size_t index, std::uint64_t time, const char* action, std::uint64_t pointer,
            std::uint64_t bytes, std::uint64_t stream) {
    const trace::FileHeader& header = trace_.header;
    const std::uint64_t us =
        (header.start_unix_ns + (time - std::min(time, header.start_ns))) / 1000;
    const std::uint64_t second = us / us_per_second % seconds_per_day;
    out_.write(fmt::format("{},{:02}:{:02}:{:02}.{:06},{},{:#x},{},{:#x}\n", trace_.threads[index],
                           second / 3600, second / 60 % 60, second % 60, us % us_per_second, action,
                           pointer, bytes, stream));
  }

  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    if (resources_.size() > 1) {
      notes.push_back(
          fmt::format("An RMM log does not name resources. The blocks of {} resources are merged.",
                      resources_.size()));
    }
    if (!trace_.events.empty() && trace_.events.back().time_ns - trace_.events.front().time_ns >
                                      seconds_per_day * us_per_second * 1000) {
      notes.emplace_back(
          "An RMM log has times of day without dates, but the trace is longer than one day.");
    }
    return notes;
  }

  const MemoryTrace& trace_;
  Output& out_;
  std::unordered_map<std::uint64_t, Live> live_;                 // by the number of the block
  std::unordered_map<std::uint64_t, std::uint64_t> by_pointer_;  // number of the live block
  std::unordered_set<std::uint32_t> resources_;
  std::uint64_t other_pointers_ = 0;
};

}  // namespace

std::vector<std::string> write_rmm_log(const MemoryTrace& trace, Output& out) {
  return LogWriter(trace, out).write();
}

}  // namespace tern::tools
