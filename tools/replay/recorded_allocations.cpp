#include "tools/replay/recorded_allocations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/device_info.hpp"

namespace tern::tools {
namespace {

using bench::TraceStep;
using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

/// The blocks and calls of one device, in one kind of memory.
struct Memory {
  std::string name;
  bool is_device_memory = true;
  std::vector<TraceStep> steps = {};
  std::vector<TraceStep> earlier = {};  // allocations of blocks from before the recording
  std::vector<std::uint32_t> block_events = {};
  std::uint32_t streams = 0;
  std::uint64_t double_frees = 0, missing_frees = 0, refused_requests = 0;
  std::uint64_t live = 0, peak = 0, earlier_bytes = 0;
  bool is_too_large = false;

  void add_live(std::uint64_t bytes) {
    const std::optional<std::size_t> sum = checked_add(live, bytes);
    is_too_large |= !sum;
    live = sum.value_or(live);
    peak = std::max(peak, live);
  }
  /// Blocks from before the recording are live until they are freed, so this is an upper bound.
  [[nodiscard]] std::uint64_t highest() const {
    return checked_add(peak, earlier_bytes).value_or(std::numeric_limits<std::uint64_t>::max());
  }
};

class Reader {
 public:
  explicit Reader(const MemoryTrace& trace) : trace_(trace) {}

  std::vector<Memory> read() {
    for (std::uint32_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      if (event.kind == EventKind::allocate) allocate(event, i);
      if (event.kind == EventKind::free) free(event, i);
      if (event.kind == EventKind::refuse) ++memories_[memory_of(event)].refused_requests;
    }
    return std::move(memories_);
  }

 private:
  struct Live {
    std::size_t memory = 0;
    std::uint32_t block = 0, stream = 0;
    std::uint64_t bytes = 0, address = 0;
  };
  struct PairHash {
    std::size_t operator()(const std::pair<std::uint64_t, std::uint64_t>& pair) const noexcept {
      return std::hash<std::uint64_t>()(pair.first * 0x9e3779b97f4a7c15u ^ pair.second);
    }
  };

  std::size_t memory_of(const MemoryEvent& event) {
    const MemoryTrace::Name* resource = trace_.find(DefinitionKind::resource, event.resource);
    auto kind = MemoryKind::device;
    if (resource != nullptr && resource->detail <= static_cast<std::uint8_t>(MemoryKind::file)) {
      kind = static_cast<MemoryKind>(resource->detail);
    }
    const bool is_device = kind == MemoryKind::device || kind == MemoryKind::host;
    const auto [at, is_new] = indices_.try_emplace(
        {event.device, is_device ? 0 : static_cast<std::uint64_t>(kind)}, memories_.size());
    if (is_new) {
      const MemoryTrace::Name* device = trace_.find(DefinitionKind::device, event.device);
      std::string name = device != nullptr ? device->text : fmt::format("device {}", event.device);
      if (!is_device)
        name = fmt::format("{} memory of {}",
                           kind == MemoryKind::pinned ? "page-locked" : tern::name(kind), name);
      // Two devices may have been opened with the same spec.
      const std::size_t same = ++names_[name];
      if (same > 1) name += fmt::format(" ({})", same);
      memories_.push_back({.name = std::move(name), .is_device_memory = is_device});
    }
    return at->second;
  }
  std::uint32_t stream_of(std::size_t memory, std::uint64_t number) {
    const auto [at, is_new] = streams_.try_emplace({memory, number}, memories_[memory].streams);
    if (is_new) ++memories_[memory].streams;
    return at->second % RecordedAllocations::max_streams;
  }

  void allocate(const MemoryEvent& event, std::uint32_t index) {
    const std::size_t at = memory_of(event);
    end_lost(event, at);
    // A number may be used again in files of other formats.
    for (auto* numbers : {&freed_, &ended_, &empty_}) numbers->erase(event.block);
    // The granted size is for formats, and damaged files, that have no requested size.
    const std::uint64_t bytes =
        event.extra > 0 && event.extra <= event.bytes ? event.extra : event.bytes;
    if (bytes == 0) {
      empty_.insert(event.block);
      return;
    }
    Memory& memory = memories_[at];
    const auto block = static_cast<std::uint32_t>(memory.block_events.size());
    const std::uint32_t stream = stream_of(at, event.stream);
    memory.steps.push_back({block, stream, bytes});
    memory.block_events.push_back(index);
    memory.add_live(bytes);
    live_[event.block] = {at, block, stream, bytes, event.address};
    if (event.address != 0) by_address_[{at, event.address}] = event.block;
  }
  /// Ends the block that has the number or the address of a new block: its free was lost, or a ring
  /// replaced it.
  void end_lost(const MemoryEvent& event, std::size_t memory) {
    const auto at = by_address_.find({memory, event.address});
    const std::uint64_t numbers[] = {event.block,
                                     at == by_address_.end() ? event.block : at->second};
    for (const std::uint64_t number : numbers) {
      const auto known = live_.find(number);
      if (known == live_.end()) continue;
      ++memories_[known->second.memory].missing_frees;
      end(known, known->second.stream);
      // Its free may follow if the times of threads are not exact.
      ended_.insert(number);
    }
  }
  void end(std::unordered_map<std::uint64_t, Live>::iterator known, std::uint32_t stream) {
    const Live& one = known->second;
    Memory& memory = memories_[one.memory];
    memory.steps.push_back({one.block, stream, 0});
    memory.live -= std::min(memory.live, one.bytes);
    const auto at = by_address_.find({one.memory, one.address});
    if (at != by_address_.end() && at->second == known->first) by_address_.erase(at);
    live_.erase(known);
  }
  void free(const MemoryEvent& event, std::uint32_t index) {
    if (empty_.erase(event.block) > 0 || ended_.erase(event.block) > 0) return;
    const auto known = live_.find(event.block);
    if (known != live_.end()) {
      freed_.insert(event.block);
      return end(known, stream_of(known->second.memory, event.stream));
    }
    const std::size_t at = memory_of(event);
    if (!freed_.insert(event.block).second) {
      ++memories_[at].double_frees;
      return;
    }
    if (event.bytes > 0) add_earlier(event, index, at);
  }
  void add_earlier(const MemoryEvent& event, std::uint32_t index, std::size_t at) {
    Memory& memory = memories_[at];
    const auto block = static_cast<std::uint32_t>(memory.block_events.size());
    const std::uint32_t stream = stream_of(at, event.stream);
    memory.earlier.push_back({block, stream, event.bytes});
    memory.steps.push_back({block, stream, 0});
    memory.block_events.push_back(index);
    const std::optional<std::size_t> sum = checked_add(memory.earlier_bytes, event.bytes);
    memory.is_too_large |= !sum;
    memory.earlier_bytes = sum.value_or(memory.earlier_bytes);
  }

  const MemoryTrace& trace_;
  std::vector<Memory> memories_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> indices_;  // by device and kind
  std::unordered_map<std::string, std::size_t> names_;
  std::unordered_map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t, PairHash> streams_;
  std::unordered_map<std::uint64_t, Live> live_;  // by the number of the block, as are the sets
  std::unordered_set<std::uint64_t> freed_, ended_, empty_;
  std::unordered_map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t, PairHash> by_address_;
};

Failure refuse(const char* text) noexcept {
  return Failure(ErrorCode::invalid_argument, text).with("name", "recording");
}

RecordedAllocations result_of(Memory memory) {
  RecordedAllocations result;
  result.trace.name = memory.name;
  result.name = std::move(memory.name);
  result.trace.steps = std::move(memory.earlier);
  result.earlier_blocks = result.trace.steps.size();
  result.trace.steps.insert(result.trace.steps.end(), memory.steps.begin(), memory.steps.end());
  result.trace.block_count = static_cast<std::uint32_t>(memory.block_events.size());
  result.trace.stream_count = std::min(memory.streams, RecordedAllocations::max_streams);
  result.block_events = std::move(memory.block_events);
  result.streams = memory.streams;
  result.double_frees = memory.double_frees;
  result.missing_frees = memory.missing_frees;
  result.refused_requests = memory.refused_requests;
  return result;
}

}  // namespace

Result<RecordedAllocations> try_allocations_of(const MemoryTrace& trace, std::string_view name) {
  if (trace.events.size() > std::numeric_limits<std::uint32_t>::max()) {
    return refuse("the recording has more than 4294967295 events. Record a part of the program.");
  }
  std::vector<Memory> memories = Reader(trace).read();
  std::erase_if(memories, [](const Memory& one) { return one.block_events.empty(); });
  std::ranges::stable_sort(memories, [](const Memory& a, const Memory& b) {
    return std::pair(a.is_device_memory, a.highest()) > std::pair(b.is_device_memory, b.highest());
  });
  if (memories.empty()) {
    return refuse(
        "the recording has no allocations. Record a program that allocates memory from a "
        "resource.");
  }
  const auto chosen =
      name.empty() ? memories.begin() : std::ranges::find(memories, name, &Memory::name);
  if (chosen == memories.end()) {
    std::vector<std::string> names;
    for (const Memory& one : memories) {
      if (names.size() < 8) names.push_back(one.name);
    }
    return refuse("the recording has no allocations in '{wanted}'. It has allocations in: {names}.")
        .with("names", fmt::format("{}", fmt::join(names, ", ")))
        .with("wanted", name);
  }
  if (chosen->is_too_large || chosen->highest() == std::numeric_limits<std::uint64_t>::max()) {
    return refuse(
        "more than 16 EiB are live at once in the recording. No device has that much memory, so "
        "the file is damaged.");
  }
  std::iter_swap(memories.begin(), chosen);
  RecordedAllocations result = result_of(std::move(memories.front()));
  for (std::size_t i = 1; i < memories.size(); ++i) {
    result.others.push_back(
        {memories[i].name, memories[i].block_events.size(), memories[i].highest()});
  }
  return result;
}

Result<RecordedAllocations> try_sample_allocations(std::string_view name) {
  RecordedAllocations result;
  if (name == "training") {
    result.trace = bench::train_varlen();
  } else if (name == "kv_cache") {
    result.trace = bench::growing_kv_cache();
  } else if (name == "tables") {
    result.trace = bench::multi_stream_etl();
  } else if (name == "checkerboard") {
    result.trace = bench::checkerboard();
  } else {
    return Failure(ErrorCode::invalid_argument,
                   "there is no sample '{value}'. The samples are training, kv_cache, tables and "
                   "checkerboard.")
        .with("name", "sample")
        .with("value", name);
  }
  result.name = "a generated program";
  result.streams = result.trace.stream_count;
  return result;
}

std::vector<std::string> RecordedAllocations::notes() const {
  std::vector<std::string> notes;
  const auto add = [&](std::uint64_t count, std::string text) {
    if (count > 0) notes.push_back(std::move(text));
  };
  add(earlier_blocks,
      fmt::format("{} blocks were allocated before the recording. Each pass allocates them first.",
                  earlier_blocks));
  add(double_frees,
      fmt::format("{} frees are skipped, because their blocks are already free.", double_frees));
  add(missing_frees, fmt::format("{} frees are missing. The replay frees these blocks when their "
                                 "address is allocated again.",
                                 missing_frees));
  add(refused_requests,
      fmt::format("{} requests are skipped, because they were refused in the recording.",
                  refused_requests));
  add(streams > max_streams ? streams : 0,
      fmt::format("The {} streams of the recording share {} streams of the device.", streams,
                  max_streams));
  constexpr std::size_t max_others = 3;
  for (std::size_t i = 0; i < std::min(others.size(), max_others); ++i) {
    notes.push_back(
        fmt::format("{} blocks in '{}' (peak {}) are not replayed. To replay them, use --of.",
                    others[i].blocks, others[i].name, format_bytes(others[i].peak_bytes)));
  }
  add(others.size() > max_others ? 1 : 0,
      fmt::format("Blocks on {} more devices or in other kinds of memory are not replayed.",
                  others.size() - max_others));
  return notes;
}

}  // namespace tern::tools
