// Random memory traces as a program would record them: blocks of several devices and threads that
// do not overlap while they are live, blocks from before the recording, growth, refusals, copies,
// launches, waits and ranges, with names of any bytes.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tern/device/device_info.hpp"
#include "trace/memory_trace.hpp"

namespace tern::test {

class RandomMemoryTrace {
 public:
  RandomMemoryTrace(unsigned seed, std::size_t events) : random_(seed) {
    trace_.header.start_ns = time_;
    trace_.header.start_unix_ns = 1'700'000'000'000'000'000;
    trace_.header.process = 4711;
    trace_.header.is_closed = 1;
    trace_.header.lost_events = seed % 3;
    define();
    // Some blocks were allocated before.
    for (int i = 0; i < 5; ++i) allocate(false);
    while (trace_.events.size() < events) step();
  }

  [[nodiscard]] const trace::MemoryTrace& trace() const { return trace_; }

 private:
  static constexpr std::uint32_t devices = 3, tags = 5, sites = 20, streams = 4, threads = 3;

  struct Live {
    std::uint64_t number = 0, bytes = 0;
    std::uint32_t device = 0;
    std::uint16_t tag = 0;
  };

  std::uint32_t pick(std::uint32_t count) { return static_cast<std::uint32_t>(random_() % count); }

  void define() {
    using enum trace::DefinitionKind;
    const char* const names[] = {"host", "cuda:0", "cuda:5"};
    for (std::uint32_t i = 1; i <= devices; ++i) {
      trace_.define(device, i, {names[i - 1], 0, 0, 0});
      trace_.define(resource, i, {"pool", 0, i, static_cast<std::uint8_t>(MemoryKind::device)});
    }
    for (std::uint32_t i = 1; i <= tags; ++i) trace_.define(tag, i, {bytes_of_name(), 0, 0, 0});
    for (std::uint32_t i = 1; i <= sites; ++i) {
      trace_.define(site, i, {"src/model.cpp", 10 * i, 0, 0});
    }
    for (std::uint32_t i = 1; i <= streams; ++i) {
      trace_.define(text, i, {bytes_of_name(), 0, 0, 0});
      trace_.define(kernel, i, {"scale", 0, 0, 0});
    }
  }
  std::string bytes_of_name() {
    std::string name;
    for (std::uint32_t i = 0, length = pick(30); i < length; ++i) {
      name += static_cast<char>(pick(256));
    }
    return name;
  }

  trace::MemoryEvent event(trace::EventKind kind, std::uint32_t device) {
    trace::MemoryEvent made;
    made.kind = kind;
    made.time_ns = time_ += 1 + pick(3000);
    made.device = made.resource = device;
    made.site = pick(sites + 1);
    made.stream = pick(streams + 1);
    return made;
  }
  void add(const trace::MemoryEvent& event) {
    trace_.events.push_back(event);
    trace_.threads.push_back(1 + pick(threads));
  }
  void step() {
    const std::uint32_t device = 1 + pick(devices);
    switch (pick(12)) {
      case 0:
        return other(device);
      case 1: {
        trace::MemoryEvent made = event(trace::EventKind::refuse, device);
        made.bytes = 1 + random_() % (1ULL << 40);
        return add(made);
      }
      case 2: {
        trace::MemoryEvent made = event(trace::EventKind::hold, device);
        made.bytes = pick(100) * 65536;
        return add(made);
      }
      case 3:
      case 4:
      case 5:
      case 6:
        return live_.empty() ? allocate(true) : free();
      default:
        return allocate(true);
    }
  }
  void allocate(bool is_recorded) {
    const std::uint32_t device = 1 + pick(devices);
    const std::uint64_t bytes = 256 * (1 + random_() % 64);
    // The first gap of a device that is large enough, in a memory that is nearly full.
    std::uint64_t address = 0x10000000ULL * device;
    for (const auto& [at, block] : live_) {
      if (block.device != device || at + block.bytes <= address) continue;
      if (at >= address + bytes) break;
      address = at + block.bytes;
    }
    const auto tag = static_cast<std::uint16_t>(pick(tags + 1));
    live_[address] = {++last_block_, bytes, device, tag};
    if (!is_recorded) return;
    trace::MemoryEvent made = event(trace::EventKind::allocate, device);
    made.block = last_block_;
    made.address = address;
    made.bytes = bytes;
    made.extra = bytes - pick(200);
    made.tag = tag;
    add(made);
  }
  void free() {
    auto at = live_.begin();
    std::advance(at, pick(static_cast<std::uint32_t>(live_.size())));
    trace::MemoryEvent made = event(trace::EventKind::free, at->second.device);
    made.block = at->second.number;
    made.address = at->first;
    made.bytes = at->second.bytes;
    made.tag = at->second.tag;
    add(made);
    live_.erase(at);
  }
  void other(std::uint32_t device) {
    using enum trace::EventKind;
    const trace::EventKind kinds[] = {
        copy,  fill,        launch,       use,         stream_wait, host_wait,     move,
        evict, budget_wait, stream_begin, range_begin, range_end,   budget_refuse, budget_use};
    trace::MemoryEvent made = event(kinds[pick(std::size(kinds))], device);
    made.block = pick(1000);
    made.address = 0x10000000ULL * device + pick(10000);
    made.bytes = 1 + pick(10000);
    made.extra = 1 + pick(streams);
    add(made);
  }

  std::minstd_rand random_;
  trace::MemoryTrace trace_;
  std::map<std::uint64_t, Live> live_;  // by address
  std::uint64_t last_block_ = 0, time_ = 5'000'000'000;
};

/// Returns the live bytes of each device by name after each of its allocations and frees, with the
/// bytes that were live before the first of them.
inline std::map<std::string, std::vector<std::uint64_t>> live_bytes(
    const trace::MemoryTrace& trace) {
  std::map<std::uint64_t, std::uint64_t> sizes;
  std::map<std::string, std::vector<std::uint64_t>> live;
  const auto name_of = [&](const trace::MemoryEvent& event) {
    return trace.find(trace::DefinitionKind::device, event.device)->text;
  };
  // Frees of unknown blocks tell what was live at first.
  for (const trace::MemoryEvent& event : trace.events) {
    if (event.kind == trace::EventKind::allocate) sizes[event.block] = event.bytes;
    if (event.kind != trace::EventKind::free || sizes.contains(event.block)) continue;
    std::vector<std::uint64_t>& values = live[name_of(event)];
    values.resize(1);
    values[0] += event.bytes;
  }
  for (const trace::MemoryEvent& event : trace.events) {
    if (event.kind != trace::EventKind::allocate && event.kind != trace::EventKind::free) continue;
    std::vector<std::uint64_t>& values = live[name_of(event)];
    if (values.empty()) values.push_back(0);
    const std::uint64_t bytes = event.bytes;
    values.push_back(event.kind == trace::EventKind::allocate ? values.back() + bytes
                                                              : values.back() - bytes);
  }
  return live;
}

}  // namespace tern::test
