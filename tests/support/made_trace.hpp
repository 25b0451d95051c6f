// A memory trace that a test makes up, event by event. Events are a microsecond apart.
//
//   MadeTrace story;
//   story.free(story.allocate(1000, 7));   // line 7 is "code.cpp:7"
//
// Tag n is "tag n". All events are of the device "gpu" and of one resource, unless a test changes
// the event that a function returns.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tern/core/error.hpp"
#include "trace/memory_trace.hpp"

namespace tern::test {

class MadeTrace {
 public:
  MadeTrace() {
    made_.header.is_closed = 1;
    made_.define(trace::DefinitionKind::device, 1, {"gpu", 0, 0, 0});
  }
  trace::MemoryEvent& add(trace::EventKind kind, std::uint64_t bytes, std::uint32_t line = 0,
                          std::uint16_t tag = 0) {
    trace::MemoryEvent event;
    event.kind = kind;
    event.time_ns = 1000 * (made_.events.size() + 1);
    event.bytes = bytes;
    event.site = line;
    event.tag = tag;
    event.device = event.resource = 1;
    if (line != 0) made_.define(trace::DefinitionKind::site, line, {"code.cpp", line, 0, 0});
    if (tag != 0)
      made_.define(trace::DefinitionKind::tag, tag, {"tag " + std::to_string(tag), 0, 0, 0});
    made_.events.push_back(event);
    made_.threads.push_back(1);
    return made_.events.back();
  }
  /// Allocates after everything else. Returns the number of the block.
  std::uint64_t allocate(std::uint64_t bytes, std::uint32_t line, std::uint16_t tag = 0,
                         std::uint64_t stream = 1) {
    return allocate_at(next_, bytes, line, tag, stream);
  }
  std::uint64_t allocate_at(std::uint64_t address, std::uint64_t bytes, std::uint32_t line,
                            std::uint16_t tag = 0, std::uint64_t stream = 1) {
    trace::MemoryEvent& event = add(trace::EventKind::allocate, bytes, line, tag);
    event.block = blocks_.size() + 1;
    event.address = address;
    event.extra = bytes;
    event.stream = stream;
    next_ = std::max(next_, address + bytes);
    blocks_.push_back(event);
    return event.block;
  }
  void free(std::uint64_t block, std::uint64_t stream = 1, std::uint32_t line = 0) {
    const trace::MemoryEvent of = blocks_[block - 1];
    trace::MemoryEvent& event = add(trace::EventKind::free, of.bytes, line, of.tag);
    event.block = block;
    event.address = of.address;
    event.stream = stream;
    event.extra = made_.events.size();
  }
  /// The program sees that the stream has passed all its work.
  void pass(std::uint64_t stream) { add(trace::EventKind::done_seen, 0).stream = stream; }
  void hold(std::uint64_t bytes, std::uint64_t pending) {
    add(trace::EventKind::hold, bytes).block = pending;
  }
  trace::MemoryEvent& refuse(std::uint64_t bytes, std::uint64_t held, std::uint32_t line,
                             std::uint16_t tag = 0) {
    trace::MemoryEvent& event = add(trace::EventKind::refuse, bytes, line, tag);
    event.extra = held;
    event.stream = 1;
    event.detail = static_cast<std::uint8_t>(ErrorCode::out_of_memory);
    return event;
  }
  [[nodiscard]] trace::MemoryTrace& trace() { return made_; }
  [[nodiscard]] const trace::MemoryTrace& trace() const { return made_; }

 private:
  trace::MemoryTrace made_;
  std::vector<trace::MemoryEvent> blocks_;
  std::uint64_t next_ = 0x10000;
};

}  // namespace tern::test
