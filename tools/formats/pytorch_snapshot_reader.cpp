#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file_failure.hpp"
#include "tern/device/device_info.hpp"
#include "tools/formats/pickle.hpp"
#include "tools/formats/python_frame.hpp"
#include "tools/formats/pytorch_snapshot.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;
using Index = Pickle::Index;

constexpr Index absent = UINT32_MAX;
/// 2^53 microseconds are 285 years.
constexpr std::uint64_t max_time_us = std::uint64_t{1} << 53;
/// All events have one thread: snapshots name none.
constexpr std::uint32_t only_thread = 1;

/// The values of a dict that are read. A key that is not there is `absent`.
template <class Fields>
using FieldNames = std::span<const std::pair<std::string_view, Index Fields::*>>;

struct RootFields {
  Index segments = absent, device_traces = absent, device_names = absent;
};
constexpr std::pair<std::string_view, Index RootFields::*> root_names[] = {
    {"segments", &RootFields::segments},
    {"device_traces", &RootFields::device_traces},
    {"tern_devices", &RootFields::device_names}};

struct SegmentFields {
  Index device = absent, address = absent, total_size = absent, stream = absent, blocks = absent;
};
constexpr std::pair<std::string_view, Index SegmentFields::*> segment_names[] = {
    {"device", &SegmentFields::device},
    {"address", &SegmentFields::address},
    {"total_size", &SegmentFields::total_size},
    {"stream", &SegmentFields::stream},
    {"blocks", &SegmentFields::blocks}};

struct BlockFields {
  Index size = absent, requested_size = absent, state = absent, frames = absent, history = absent;
};
constexpr std::pair<std::string_view, Index BlockFields::*> block_names[] = {
    {"size", &BlockFields::size},
    {"requested_size", &BlockFields::requested_size},
    {"state", &BlockFields::state},
    {"frames", &BlockFields::frames},
    {"history", &BlockFields::history}};

/// Versions before 2.1 have the requested size and the frames of a block in its history.
struct HistoryFields {
  Index real_size = absent, frames = absent;
};
constexpr std::pair<std::string_view, Index HistoryFields::*> history_names[] = {
    {"real_size", &HistoryFields::real_size}, {"frames", &HistoryFields::frames}};

struct EventFields {
  Index action = absent, addr = absent, size = absent, stream = absent, time_us = absent,
        frames = absent, category = absent, user_metadata = absent;
};
constexpr std::pair<std::string_view, Index EventFields::*> event_names[] = {
    {"action", &EventFields::action},     {"addr", &EventFields::addr},
    {"size", &EventFields::size},         {"stream", &EventFields::stream},
    {"time_us", &EventFields::time_us},   {"frames", &EventFields::frames},
    {"category", &EventFields::category}, {"user_metadata", &EventFields::user_metadata}};

struct FrameFields {
  Index filename = absent, line = absent, name = absent;
};
constexpr std::pair<std::string_view, Index FrameFields::*> frame_names[] = {
    {"filename", &FrameFields::filename},
    {"line", &FrameFields::line},
    {"name", &FrameFields::name}};

/// What an event of PyTorch does. Its names are in action_of().
enum class Action : std::uint8_t { allocate, free, grow, shrink, refuse, nothing, unknown };

Action action_of(std::string_view text) {
  if (text == "alloc") return Action::allocate;
  // The block is live until the program frees it; the allocator may reuse it after free_completed.
  if (text == "free_requested") return Action::free;
  if (text == "segment_alloc" || text == "segment_map") return Action::grow;
  if (text == "segment_free" || text == "segment_unmap") return Action::shrink;
  if (text == "oom") return Action::refuse;
  if (text == "free_completed" || text == "snapshot" || text == "annotate") return Action::nothing;
  return Action::unknown;
}

/// An event of PyTorch.
struct Event {
  Action action = Action::nothing;
  std::uint16_t tag = 0;
  std::uint32_t site = 0;
  std::uint64_t address = 0, bytes = 0, stream = 0, time_us = 0;
};

/// A block that is live when the snapshot is taken, or when its events begin.
struct LiveBlock {
  std::uint64_t bytes = 0, stream = 0, number = 0;
  std::uint32_t site = 0;
  std::uint16_t tag = 0;
};

struct DeviceState {
  std::vector<Event> events = {};
  std::map<std::uint64_t, LiveBlock> live = {};  // by address
  std::uint64_t live_bytes = 0, held_bytes = 0;
};

class SnapshotReader {
 public:
  SnapshotReader(const Pickle& pickle, std::size_t file_bytes)
      // Every value and every member takes a byte at least, so only a pickle that repeats one list
      // many times has more to visit.
      : pickle_(pickle), visits_left_(file_bytes + 1024), text_left_(file_bytes + (1U << 20)) {}

  Result<MemoryTrace> read() {
    read_root();
    if (failure_) return *failure_;
    for (auto& [index, device] : devices_) {
      define_device(index);
      rewind(device);
      replay(index, device);
    }
    finish();
    return std::move(trace_);
  }

 private:
  // --- Values

  void fail(const Failure& failure) {
    if (!failure_) failure_ = failure;
  }
  void fail_field(const char* record, std::uint64_t index, const char* field) {
    fail(Failure(ErrorCode::bad_format,
                 "{record} {index} of '{path}' has no valid '{field}'. The file is damaged or is "
                 "not a PyTorch memory snapshot.")
             .with("record", record)
             .with("index", index)
             .with("field", field));
  }
  /// Counts values that are visited. Returns false if there are more than the file can have.
  bool visit(std::size_t count) {
    if (count <= visits_left_) {
      visits_left_ -= count;
      return !failure_;
    }
    fail(Failure(
        ErrorCode::bad_format,
        "'{path}' is not a PyTorch memory snapshot: it refers to the same lists so often that it "
        "has more values than bytes. Write it with torch.cuda.memory._dump_snapshot()."));
    return false;
  }
  template <class Fields>
  [[nodiscard]] Fields fields_of(Index dict, FieldNames<Fields> names) {
    Fields fields;
    if (dict == absent || pickle_.kind(dict) != Pickle::Kind::dict) return fields;
    const std::span<const Index> items = pickle_.items(dict);
    if (!visit(items.size() / 2)) return fields;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view key = pickle_.text(items[i]);
      for (const auto& [name, member] : names) {
        if (key == name) fields.*member = items[i + 1];
      }
    }
    return fields;
  }
  [[nodiscard]] std::optional<std::uint64_t> number_of(Index value) const {
    return value == absent ? std::nullopt : pickle_.number(value);
  }
  [[nodiscard]] std::string_view text_of(Index value) const {
    return value == absent ? std::string_view() : pickle_.text(value);
  }
  /// The members of a list or tuple.
  [[nodiscard]] std::span<const Index> items_of(Index value) {
    if (value == absent || pickle_.kind(value) == Pickle::Kind::dict) return {};
    const std::span<const Index> items = pickle_.items(value);
    return visit(items.size()) ? items : std::span<const Index>();
  }

  // --- Names

  std::uint32_t site_of(Index frames) {
    if (frames == absent) return 0;
    const auto known = sites_by_frames_.find(frames);
    if (known != sites_by_frames_.end()) return known->second;
    const PythonFrame* best = nullptr;
    for (const Index frame : items_of(frames)) {
      const PythonFrame& one = frame_of(frame);
      if (best == nullptr || one.rank < best->rank) best = &one;
    }
    const std::uint32_t site = best == nullptr ? 0 : number_of_site(*best);
    return sites_by_frames_[frames] = site;
  }
  const PythonFrame& frame_of(Index dict) {
    const auto [at, is_new] = frames_.try_emplace(dict);
    if (is_new) {
      const FrameFields fields = fields_of<FrameFields>(dict, frame_names);
      at->second = PythonFrame(text_of(fields.filename), text_of(fields.name),
                               number_of(fields.line).value_or(0));
    }
    return at->second;
  }
  std::uint32_t number_of_site(const PythonFrame& frame) {
    const std::string_view text = kept(frame.place());
    if (text.empty()) return 0;
    const auto [at, is_new] = sites_.try_emplace({text, frame.line}, sites_.size() + 1);
    const auto number = static_cast<std::uint32_t>(at->second);
    if (is_new && !define(DefinitionKind::site, number, text, frame.line)) at->second = 0;
    return static_cast<std::uint32_t>(at->second);
  }
  std::uint16_t tag_of(const EventFields& fields) {
    std::string_view text = kept(text_of(fields.category));
    if (text.empty() || text == "unknown") text = kept(text_of(fields.user_metadata));
    if (text.empty()) return 0;
    const auto known = tags_.find(text);
    if (known != tags_.end()) return known->second;
    if (tags_.size() >= UINT16_MAX) return 0;
    const auto number = static_cast<std::uint16_t>(tags_.size() + 1);
    return tags_[text] = define(DefinitionKind::tag, number, text) ? number : std::uint16_t{0};
  }
  /// The part of a text that a definition can hold.
  [[nodiscard]] static std::string_view kept(std::string_view text) {
    return text.substr(0, trace::max_text_bytes);
  }
  /// A pickle can refer to one long text many times, but definitions are copies.
  bool define(DefinitionKind kind, std::uint32_t number, std::string_view text,
              std::uint32_t line = 0) {
    if (text.size() > text_left_) return false;
    text_left_ -= text.size();
    trace_.define(kind, number, {std::string(text), line, 0, 0});
    return true;
  }
  /// A stream has a number in a trace: PyTorch's default stream is 0 on every device, and 0 is the
  /// host in a trace.
  std::uint64_t stream_of(std::uint64_t device, std::uint64_t stream) {
    const auto [at, is_new] = streams_.try_emplace({device, stream}, streams_.size() + 1);
    if (!is_new) return at->second;
    const auto number = static_cast<std::uint32_t>(at->second);
    const std::string name = stream == 0 ? "default" : fmt::format("stream {:#x}", stream);
    trace_.define(DefinitionKind::text, number, {name, 0, 0, 0});
    MemoryEvent event = event_of(EventKind::stream_begin, start_ns());
    event.stream = event.extra = number;
    add(event);
    return number;
  }
  void define_device(std::uint64_t index) {
    ++number_;
    std::string name = fmt::format("cuda:{}", index);
    if (index < device_names_.size() && !text_of(device_names_[index]).empty()) {
      const std::string_view text = kept(text_of(device_names_[index]));
      if (text.size() <= text_left_) name = text;
    }
    text_left_ -= std::min(text_left_, name.size());
    trace_.define(DefinitionKind::device, number_, {std::move(name), 0, 0, 0});
    trace_.define(DefinitionKind::resource, number_,
                  {"PyTorch", 0, number_, static_cast<std::uint8_t>(MemoryKind::device)});
  }

  // --- The pickle

  void read_root() {
    RootFields root;
    // torch.cuda.memory_snapshot() returns the list of segments alone.
    if (pickle_.kind(pickle_.root()) == Pickle::Kind::list) {
      root.segments = pickle_.root();
    } else {
      root = fields_of<RootFields>(pickle_.root(), root_names);
    }
    if (root.segments == absent && root.device_traces == absent) {
      return fail(Failure(ErrorCode::bad_format,
                          "'{path}' is a pickle, but not a PyTorch memory snapshot: it has no "
                          "'segments' and no 'device_traces'. Write it with "
                          "torch.cuda.memory._dump_snapshot()."));
    }
    device_names_ = items_of(root.device_names);
    const std::span<const Index> segments = items_of(root.segments);
    for (std::size_t i = 0; i < segments.size() && !failure_; ++i) read_segment(segments[i], i);
    const std::span<const Index> traces = items_of(root.device_traces);
    for (std::size_t i = 0; i < traces.size() && !failure_; ++i) read_events(traces[i], i);
    if (unknown_actions_ > 0) {
      trace_.notes.push_back(
          fmt::format("{} events of unknown kinds were skipped.", unknown_actions_));
    }
  }
  void read_segment(Index dict, std::size_t index) {
    const SegmentFields fields = fields_of<SegmentFields>(dict, segment_names);
    const auto address = number_of(fields.address), total = number_of(fields.total_size);
    if (!address) return fail_field("segment", index, "address");
    if (!total || *total > UINT64_MAX - *address) return fail_field("segment", index, "total_size");
    DeviceState& device = devices_[number_of(fields.device).value_or(0)];
    if (*total > UINT64_MAX - device.held_bytes) return fail_field("segment", index, "total_size");
    device.held_bytes += *total;
    const std::uint64_t stream = number_of(fields.stream).value_or(0);
    std::uint64_t at = *address;
    for (const Index block : items_of(fields.blocks)) {
      const BlockFields its = fields_of<BlockFields>(block, block_names);
      const auto size = number_of(its.size);
      // Blocks fill their segment, one after another.
      if (!size || *size > *address + *total - at) return fail_field("segment", index, "blocks");
      if (text_of(its.state) == "active_allocated") add_live(device, its, at, *size, stream);
      at += *size;
    }
  }
  void add_live(DeviceState& device, const BlockFields& fields, std::uint64_t address,
                std::uint64_t size, std::uint64_t stream) {
    HistoryFields history;
    const std::span<const Index> entries = items_of(fields.history);
    if (!entries.empty()) history = fields_of<HistoryFields>(entries[0], history_names);
    LiveBlock block;
    block.bytes =
        number_of(fields.requested_size).value_or(number_of(history.real_size).value_or(size));
    // A damaged file may claim more than the block has.
    block.bytes = std::min(block.bytes, size);
    block.stream = stream;
    block.site = site_of(fields.frames != absent ? fields.frames : history.frames);
    device.live.insert_or_assign(address, block);
  }
  void read_events(Index list, std::size_t device_index) {
    const std::span<const Index> items = items_of(list);
    if (items.empty()) return;
    DeviceState& device = devices_[device_index];
    device.events.reserve(items.size());
    for (std::size_t i = 0; i < items.size() && !failure_; ++i) {
      const EventFields fields = fields_of<EventFields>(items[i], event_names);
      Event event;
      event.action = action_of(text_of(fields.action));
      if (event.action == Action::unknown) ++unknown_actions_;
      const auto time = number_of(fields.time_us);
      if (time && *time > max_time_us) return fail_field("event", i, "time_us");
      event.time_us = time.value_or(0);
      has_times_ = has_times_ && time;
      // A snapshot is an event without memory, and an unknown one may be.
      if (event.action < Action::nothing) {
        const auto size = number_of(fields.size), address = number_of(fields.addr);
        if (!size || *size > INT64_MAX) return fail_field("event", i, "size");
        if (!address && event.action != Action::refuse) return fail_field("event", i, "addr");
        event.bytes = *size;
        event.address = address.value_or(0);
        event.stream = number_of(fields.stream).value_or(0);
        event.site = site_of(fields.frames);
        event.tag = tag_of(fields);
      }
      device.events.push_back(event);
    }
  }

  // --- From the end to the beginning, and back

  /// Turns the state at the end of the events into the state before them.
  static void rewind(DeviceState& device) {
    for (auto event = device.events.rbegin(); event != device.events.rend(); ++event) {
      switch (event->action) {
        case Action::allocate:
          device.live.erase(event->address);
          break;
        case Action::free:
          device.live.insert_or_assign(event->address,
                                       LiveBlock{event->bytes, event->stream, 0, 0, event->tag});
          break;
        case Action::grow:
          device.held_bytes -= std::min(device.held_bytes, event->bytes);
          break;
        case Action::shrink:
          device.held_bytes += std::min(UINT64_MAX - device.held_bytes, event->bytes);
          break;
        default:
          break;
      }
    }
  }
  void replay(std::uint64_t index, DeviceState& device) {
    for (auto& [address, block] : device.live) {
      MemoryEvent event = event_of(EventKind::allocate, start_ns());
      event.stream = stream_of(index, block.stream);
      event.block = block.number = ++last_block_;
      event.address = address;
      event.bytes = event.extra = block.bytes;
      event.site = block.site;
      event.tag = block.tag;
      add(event);
      device.live_bytes += block.bytes;
    }
    if (device.held_bytes > 0) add_hold(device, start_ns());
    std::uint64_t time = start_ns();
    for (std::size_t i = 0; i < device.events.size(); ++i) {
      const Event& event = device.events[i];
      // The clock of PyTorch is an estimate, but the order of the list is not.
      time = std::max(time, has_times_ ? event.time_us * 1000 : i * 1000);
      replay(index, device, event, time);
    }
  }
  void replay(std::uint64_t index, DeviceState& device, const Event& from, std::uint64_t time) {
    MemoryEvent event = event_of(EventKind::none, time);
    event.address = from.address;
    event.bytes = from.bytes;
    event.site = from.site;
    event.tag = from.tag;
    switch (from.action) {
      case Action::allocate: {
        event.kind = EventKind::allocate;
        event.block = ++last_block_;
        event.extra = from.bytes;
        LiveBlock& block = device.live[from.address];
        // If the free of the block that was here is missing, the report ends the block.
        device.live_bytes -= std::min(device.live_bytes, block.bytes);
        block = {from.bytes, from.stream, event.block, from.site, from.tag};
        device.live_bytes += from.bytes;
        break;
      }
      case Action::free: {
        const auto at = device.live.find(from.address);
        if (at == device.live.end()) return;  // it was freed before
        event.kind = EventKind::free;
        event.block = at->second.number;
        event.bytes = at->second.bytes;
        event.tag = at->second.tag;
        device.live_bytes -= std::min(device.live_bytes, at->second.bytes);
        device.live.erase(at);
        break;
      }
      case Action::grow:
        device.held_bytes += std::min(UINT64_MAX - device.held_bytes, from.bytes);
        return add_hold(device, time);
      case Action::shrink:
        device.held_bytes -= std::min(device.held_bytes, from.bytes);
        return add_hold(device, time);
      case Action::refuse:
        event.kind = EventKind::refuse;
        event.address = 0;
        event.extra = device.held_bytes;
        event.detail = static_cast<std::uint8_t>(ErrorCode::out_of_memory);
        break;
      default:
        return;
    }
    event.stream = stream_of(index, from.stream);
    add(event);
  }

  // --- The trace

  [[nodiscard]] MemoryEvent event_of(EventKind kind, std::uint64_t time) const {
    MemoryEvent event;
    event.kind = kind;
    event.time_ns = time;
    event.device = event.resource = number_;
    return event;
  }
  void add(const MemoryEvent& event) {
    trace_.events.push_back(event);
    trace_.threads.push_back(only_thread);
  }
  void add_hold(const DeviceState& device, std::uint64_t time) {
    MemoryEvent event = event_of(EventKind::hold, time);
    event.bytes = device.held_bytes;
    event.extra = device.live_bytes;
    add(event);
  }
  /// When the first event of any device happened.
  [[nodiscard]] std::uint64_t start_ns() {
    if (start_ns_) return *start_ns_;
    std::uint64_t first = UINT64_MAX;
    for (const auto& [index, device] : devices_) {
      for (const Event& event : device.events) first = std::min(first, event.time_us * 1000);
    }
    start_ns_ = has_times_ && first != UINT64_MAX ? first : 0;
    return *start_ns_;
  }
  void finish() {
    trace_.sort();
    trace_.header.is_closed = 1;
    trace_.header.start_ns = trace_.header.start_unix_ns = start_ns();
    const bool has_events = std::ranges::any_of(
        devices_, [](const auto& device) { return !device.second.events.empty(); });
    if (!has_events) {
      trace_.notes.emplace_back(
          "The snapshot has no events, only the live blocks. Call "
          "torch.cuda.memory._record_memory_history() at the beginning of the program.");
    } else if (!has_times_) {
      trace_.notes.emplace_back("The snapshot has no timestamps. Events are shown 1 us apart.");
    }
  }

  const Pickle& pickle_;
  std::size_t visits_left_, text_left_;
  std::optional<Failure> failure_;
  MemoryTrace trace_;
  std::map<std::uint64_t, DeviceState> devices_;  // by PyTorch's index
  std::span<const Index> device_names_;
  std::unordered_map<Index, std::uint32_t> sites_by_frames_;
  std::unordered_map<Index, PythonFrame> frames_;
  std::map<std::pair<std::string_view, std::uint32_t>, std::size_t> sites_;
  std::unordered_map<std::string_view, std::uint16_t> tags_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> streams_;
  std::uint64_t last_block_ = 0, unknown_actions_ = 0;
  std::uint32_t number_ = 0;  // of the device and of its resource
  bool has_times_ = true;
  std::optional<std::uint64_t> start_ns_;
};

}  // namespace

Result<MemoryTrace> try_parse_pytorch_snapshot(std::string_view bytes) {
  const Result<Pickle> pickle = Pickle::try_read(bytes);
  if (!pickle) return pickle.failure();
  return SnapshotReader(*pickle, bytes.size()).read();
}

Result<MemoryTrace> try_read_pytorch_snapshot(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return file_failure(path, "open", errno);
  std::string bytes, part(std::size_t{1} << 20, '\0');
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    bytes.append(part, 0, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return file_failure(path, "read", errno);
  Result<MemoryTrace> trace = try_parse_pytorch_snapshot(bytes);
  if (trace) return trace;
  Failure failure = trace.failure();
  return failure.with("path", path);
}

}  // namespace tern::tools
