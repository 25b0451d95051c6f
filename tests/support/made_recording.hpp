// A recording that a test writes event by event, without a program.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "tern/device/device_info.hpp"
#include "trace/memory_trace.hpp"

namespace tern::test {

/// Events get increasing times, unless a test changes `time_ns`. Device 1 is "sim:0".
struct MadeRecording {
  trace::MemoryTrace trace = {};
  std::uint64_t time_ns = 1'000;
  std::uint32_t device = 1, resource = 1;

  MadeRecording() {
    trace.header.is_closed = 1;
    add_device(1, "sim:0");
    add_resource(1, 1, MemoryKind::device);
  }
  void add_device(std::uint32_t number, const std::string& name) {
    trace.define(trace::DefinitionKind::device, number, {name, 0, 0, 0});
  }
  void add_resource(std::uint32_t number, std::uint32_t of_device, MemoryKind kind) {
    trace.define(trace::DefinitionKind::resource, number,
                 {"pool", 0, of_device, static_cast<std::uint8_t>(kind)});
  }
  trace::MemoryEvent& add(trace::EventKind kind) {
    trace::MemoryEvent& event = trace.events.emplace_back();
    trace.threads.push_back(1);
    event.kind = kind;
    event.time_ns = time_ns++;
    event.device = device;
    event.resource = resource;
    return event;
  }
  trace::MemoryEvent& allocate(std::uint64_t block, std::uint64_t bytes, std::uint64_t stream = 0) {
    trace::MemoryEvent& event = add(trace::EventKind::allocate);
    event.block = block;
    event.bytes = event.extra = bytes;
    event.stream = stream;
    return event;
  }
  trace::MemoryEvent& free(std::uint64_t block, std::uint64_t bytes, std::uint64_t stream = 0) {
    trace::MemoryEvent& event = add(trace::EventKind::free);
    event.block = block;
    event.bytes = bytes;
    event.stream = stream;
    return event;
  }
};

/// The recording of a program that makes the calls of the trace.
inline MadeRecording recording_of(const bench::AllocationTrace& trace) {
  MadeRecording made;
  std::vector<std::size_t> bytes(trace.block_count);
  const auto address = [](std::uint32_t block) { return std::uint64_t{block + 1} << 40; };
  for (const bench::TraceStep& step : trace.steps) {
    if (step.bytes == 0) {
      made.free(step.block + 1, bytes[step.block], step.stream + 1).address = address(step.block);
    } else {
      bytes[step.block] = step.bytes;
      made.allocate(step.block + 1, step.bytes, step.stream + 1).address = address(step.block);
    }
  }
  return made;
}

}  // namespace tern::test
