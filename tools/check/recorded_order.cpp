#include "tools/check/recorded_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tern/detail/trace/record.hpp"
#include "tern/device/mark.hpp"
#include "tools/report/plain_text.hpp"
#include "trace/trace_writer.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

/// All memory is in one space, because addresses of different devices differ.
constexpr std::uint32_t space = 1;
/// The lower bits of an offset are the address. The upper bits count the earlier blocks at this
/// address.
constexpr unsigned address_bits = 48;
constexpr std::uint64_t max_blocks_at_address = 0xffff;
constexpr std::size_t max_tags = 1024;
/// A use lies in one block. A file may claim otherwise, so the blocks of a range are bounded.
constexpr std::size_t max_blocks_of_range = 8;
/// Above this many streams, a wait for work of other libraries is taken as one of the host.
constexpr std::size_t max_unknown_streams = 16;

std::uint64_t saturated_sum(std::uint64_t a, std::uint64_t b) {
  return a > ~std::uint64_t{0} - b ? ~std::uint64_t{0} : a + b;
}

/// Returns the time at which the event begins to order work. A wait orders work when it ends.
std::uint64_t effective_time(const MemoryEvent& event) {
  return event.kind == EventKind::host_wait ? saturated_sum(event.time_ns, event.extra)
                                            : event.time_ns;
}

/// A part of a block, as a range of the trace.
struct Piece {
  SpaceRange range;
  std::uint64_t block = 0;
};

/// The newest block at each address, live or freed.
class Blocks {
 public:
  /// Adds a block and returns its range in the trace. Returns nothing if the block overlaps a live
  /// block: one resource allocates from another, or an event of a free was lost. Freed blocks are
  /// kept until forget_freed(), so that uses after the free are found.
  std::optional<SpaceRange> begin(std::uint64_t number, std::uint64_t address, std::uint64_t bytes,
                                  std::uint32_t resource) {
    if (bytes == 0 || address == 0 || saturated_sum(address, bytes) >> address_bits != 0) {
      return std::nullopt;
    }
    std::uint64_t use = 0;
    auto at = first_after(address);
    const auto first = at;
    for (; at != by_address_.end() && at->first < address + bytes; ++at) {
      if (at->second.is_live) return std::nullopt;
      use = std::max(use, at->second.use + 1);
    }
    if (use > max_blocks_at_address) return std::nullopt;
    // Erases older blocks as a whole. Uses of their other bytes would be uses after the free, and
    // are not found from now on.
    by_address_.erase(first, at);
    by_address_.emplace(address, Block{number, bytes, use, resource, true});
    address_of_[number] = address;
    return range_of(address, by_address_.at(address), 0, bytes);
  }
  /// Marks a block as freed and returns its range. Returns nothing if the block is not known.
  std::optional<SpaceRange> end(std::uint64_t number) {
    const auto known = address_of_.find(number);
    if (known == address_of_.end()) return std::nullopt;
    Block& block = by_address_.at(known->second);
    block.is_live = false;
    freed_[block.resource].emplace_back(known->second, block.number);
    const SpaceRange range = range_of(known->second, block, 0, block.bytes);
    address_of_.erase(known);
    return range;
  }
  /// Forgets the freed blocks of a resource. Call it when the resource may have returned their
  /// memory to the driver: allocators that are not recorded may then use the memory.
  void forget_freed(std::uint32_t resource) {
    for (const auto& [address, number] : freed_[resource]) {
      const auto at = by_address_.find(address);
      if (at != by_address_.end() && at->second.number == number && !at->second.is_live) {
        by_address_.erase(at);
      }
    }
    freed_.erase(resource);
  }
  /// Forgets a live block, so that later uses of its bytes are not checked.
  void forget(std::uint64_t number) {
    const auto known = address_of_.find(number);
    if (known == address_of_.end()) return;
    by_address_.erase(known->second);
    address_of_.erase(known);
  }
  /// Returns the parts of the range that lie in blocks, the first max_blocks_of_range.
  [[nodiscard]] std::vector<Piece> find(std::uint64_t address, std::uint64_t bytes) const {
    std::vector<Piece> found;
    const std::uint64_t end = saturated_sum(address, bytes);
    for (auto at = first_after(address);
         at != by_address_.end() && at->first < end && found.size() < max_blocks_of_range; ++at) {
      const std::uint64_t from = std::max(address, at->first);
      const std::uint64_t to = std::min(end, at->first + at->second.bytes);
      found.push_back(
          {range_of(at->first, at->second, from - at->first, to - from), at->second.number});
    }
    return found;
  }
  [[nodiscard]] std::uint64_t live_count() const { return address_of_.size(); }
  [[nodiscard]] std::uint64_t live_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [number, address] : address_of_) bytes += by_address_.at(address).bytes;
    return bytes;
  }

 private:
  struct Block {
    std::uint64_t number = 0, bytes = 0, use = 0;
    std::uint32_t resource = 0;
    bool is_live = false;
  };

  /// Returns the first block that ends after the address.
  [[nodiscard]] std::map<std::uint64_t, Block>::const_iterator first_after(
      std::uint64_t address) const {
    auto at = by_address_.upper_bound(address);
    if (at != by_address_.begin()) {
      const auto before = std::prev(at);
      if (before->first + before->second.bytes > address) at = before;
    }
    return at;
  }
  static SpaceRange range_of(std::uint64_t address, const Block& block, std::uint64_t offset,
                             std::uint64_t bytes) {
    return {space, (block.use << address_bits) + address + offset, bytes};
  }

  std::map<std::uint64_t, Block> by_address_;                    // no two overlap
  std::unordered_map<std::uint64_t, std::uint64_t> address_of_;  // of live blocks, by number
  /// Address and number of freed blocks, by resource.
  std::unordered_map<std::uint32_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>> freed_;
};

class Translation {
 public:
  explicit Translation(const MemoryTrace& trace)
      : trace_(trace), writer_(TraceWriter::to_memory({.context = context_of(trace)})) {}

  RecordedOrder run() {
    std::vector<std::pair<std::uint64_t, std::size_t>> order;
    order.reserve(trace_.events.size());
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      order.emplace_back(effective_time(event), i);
      if (event.kind == EventKind::stream_begin) begins_[event.stream] = &event;
    }
    std::ranges::stable_sort(order, {}, &std::pair<std::uint64_t, std::size_t>::first);
    for (const auto& [time, i] : order) add(trace_.events[i]);
    static_cast<void>(writer_.close());
    result_.bytes.assign(writer_.bytes().begin(), writer_.bytes().end());
    result_.live_blocks = blocks_.live_count();
    result_.live_bytes = blocks_.live_bytes();
    return std::move(result_);
  }

 private:
  /// A stream as the checker sees it.
  struct Stream {
    ActorId actor = 0;  // 0: work of the stream is not checked
    std::uint32_t device = 0;
    bool is_independent = false;  // not ordered with the default stream
    bool is_known = true;         // the host knows that its work and its waits are complete
    bool has_ended = false;       // the program has destroyed it
    bool is_over = false;         // has_ended and is_known: another stream may have its actor
    std::uint64_t done = 0;       // the host knows that the stream has passed this sequence number
    /// The newest event of the trace on the stream, or 0 if the stream has other work after it.
    std::uint64_t last_event = 0;
    /// Device events that were recorded on the stream, by the last sequence number that they cover.
    std::map<std::uint64_t, std::uint64_t> marks = {};
  };

  static std::string context_of(const MemoryTrace& trace) {
    const char* const begin = trace.header.program;
    const std::string program(begin, std::find(begin, std::end(trace.header.program), '\0'));
    return fmt::format("recorded by {} (process {})", plain(program), trace.header.process);
  }

  void add(const MemoryEvent& event) {
    switch (event.kind) {
      case EventKind::allocate:
        return add_allocation(event);
      case EventKind::free:
        return add_free(event);
      case EventKind::hold:
        return add_held(event);
      case EventKind::copy:
      case EventKind::fill:
      case EventKind::use:
        return add_use(event);
      case EventKind::launch:
        kernels_[event.stream] = event.extra;
        return;
      case EventKind::event_recorded:
        return add_device_event(event);
      case EventKind::stream_wait:
        return add_stream_wait(event);
      case EventKind::host_wait:
      case EventKind::done_seen:
        return learn(event);
      case EventKind::host_call:
        // The function may tell the host that the work before it is complete.
        if (Stream* const stream = judged(event.stream)) host_waits_for_all(*stream);
        return;
      case EventKind::stream_end:
        return add_stream_end(event);
      default:
        return;
    }
  }

  /// Returns the stream, and adds it to the trace on the first call. If work of the stream is not
  /// checked, its actor is 0.
  Stream& stream_of(std::uint64_t id) {
    const auto [at, is_new] = streams_.try_emplace(id);
    Stream& stream = at->second;
    if (!is_new) return stream;
    const auto begun = begins_.find(id);
    const MemoryEvent* const begin = begun == begins_.end() ? nullptr : begun->second;
    const auto order =
        begin == nullptr ? trace::StreamOrder::blocking : trace::StreamOrder{begin->detail};
    stream.device = StreamId::from(id).device().value;
    const bool is_full = free_actors_.empty() && actors_.size() + 1 >= max_actors;
    if (order == trace::StreamOrder::borrowed || is_full) return stream;
    actors_.push_back(&stream);
    ++result_.streams;
    if (free_actors_.empty()) {
      stream.actor = static_cast<ActorId>(actors_.size());
    } else {
      stream.actor = free_actors_.back();
      free_actors_.pop_back();
    }
    const std::uint32_t number = StreamId::from(id).number();
    const MemoryTrace::Name* const name =
        begin == nullptr
            ? nullptr
            : trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(begin->extra));
    const std::string text = name != nullptr && !name->text.empty() ? plain(name->text)
                             : number == 0                          ? "default"
                                                                    : fmt::format("S{}", number);
    stream.is_independent = number != 0 && order == trace::StreamOrder::independent;
    writer_.write({.kind = RecordKind::actor_begins,
                   .actor_kind = number == 0             ? ActorKind::default_stream
                                 : stream.is_independent ? ActorKind::stream
                                                         : ActorKind::blocking_stream,
                   .actor = stream.actor,
                   .device = stream.device,
                   .name = text});
    return stream;
  }
  /// Returns null for the host, for streams whose work is not checked, and for streams that are
  /// over.
  Stream* judged(std::uint64_t id) {
    if (id == 0) return nullptr;
    Stream& stream = stream_of(id);
    return stream.actor == 0 ? nullptr : &stream;
  }

  [[nodiscard]] CallSite site_of(const MemoryEvent& event) const {
    const MemoryTrace::Name* const name = trace_.find(DefinitionKind::site, event.site);
    if (name == nullptr || name->line == 0) return {};
    return {name->text.c_str(), "", name->line};
  }
  [[nodiscard]] Tag tag_of(const MemoryEvent& event) {
    if (event.tag == 0) return {};
    const auto known = tags_.find(event.tag);
    if (known != tags_.end()) return known->second;
    const MemoryTrace::Name* const name = trace_.find(DefinitionKind::tag, event.tag);
    // Tags are never freed, so a recording with very many tags must not use up those of the
    // process.
    if (name == nullptr || tags_.size() >= max_tags) return {};
    return tags_[event.tag] = Tag(name->text);
  }

  /// Writes an access of a stream, or of the host if `stream` is null.
  void touch(Stream* stream, OperationKind operation, std::span<const Touch> touches,
             const MemoryEvent& event, std::string_view name = {}) {
    if (stream != nullptr) add_work(*stream);
    writer_.write({.kind = stream == nullptr ? RecordKind::host_access : RecordKind::operation,
                   .operation = operation,
                   .actor = stream == nullptr ? 0 : stream->actor,
                   .device = event.device,
                   .name = name,
                   .touches = touches,
                   .site = site_of(event),
                   .tag = tag_of(event)});
  }

  void add_allocation(const MemoryEvent& event) {
    const std::optional<SpaceRange> range =
        blocks_.begin(event.block, event.address, event.bytes, event.resource);
    if (!range) return;
    Touch one{.kind = TouchKind::allocate, .range = *range, .generation = event.block};
    touch(judged(event.stream), OperationKind::allocate, {&one, 1}, event);
    // Declares the bytes as initialized, because the recording does not show every write.
    one = {.kind = TouchKind::write, .range = *range, .is_assumed = true};
    touch(nullptr, OperationKind::call, {&one, 1}, event);
  }

  void add_free(const MemoryEvent& event) {
    Stream* const stream = judged(event.stream);
    if (event.stream != 0 && stream == nullptr) return blocks_.forget(event.block);
    const std::optional<SpaceRange> range = blocks_.end(event.block);
    if (!range) return;
    const Touch one{.kind = TouchKind::release, .range = *range, .generation = event.block};
    touch(stream, OperationKind::release, {&one, 1}, event);
    // Only pools keep freed memory. Other resources return it to the driver.
    if (!held_.contains(event.resource)) blocks_.forget_freed(event.resource);
  }

  void add_held(const MemoryEvent& event) {
    std::uint64_t& held = held_[event.resource];
    if (event.bytes < held) blocks_.forget_freed(event.resource);
    held = event.bytes;
  }

  void add_use(const MemoryEvent& event) {
    Stream* const stream = judged(event.stream);
    if (stream == nullptr) {
      ++result_.on_borrowed_streams;
      return;
    }
    if (event.kind == EventKind::copy &&
        trace::CopyShape{event.detail} != trace::CopyShape::contiguous) {
      ++result_.in_rows;
      return;
    }
    std::vector<Touch> touches;
    const auto add = [&](std::uint64_t address, TouchKind kind) {
      for (const Piece& piece : blocks_.find(address, event.bytes)) {
        touches.push_back({.kind = kind, .range = piece.range, .generation = piece.block});
      }
    };
    OperationKind operation = OperationKind::kernel;
    std::string name;
    if (event.kind == EventKind::copy) {
      operation = OperationKind::copy;
      add(event.extra, TouchKind::read);
      add(event.address, TouchKind::write);
    } else if (event.kind == EventKind::fill) {
      operation = OperationKind::fill;
      add(event.address, TouchKind::write);
    } else {
      constexpr TouchKind kinds[] = {TouchKind::read, TouchKind::read_write, TouchKind::write};
      add(event.address, kinds[std::min<std::size_t>(event.detail, 2)]);
      const MemoryTrace::Name* const kernel =
          trace_.find(DefinitionKind::kernel, static_cast<std::uint32_t>(kernels_[event.stream]));
      if (kernel != nullptr) name = plain(kernel->text);
    }
    if (touches.empty()) {
      ++result_.outside_of_blocks;
      return;
    }
    ++result_.judged;
    touch(stream, operation, touches, event, name);
  }

  static void add_work(Stream& stream) {
    stream.is_known = false;
    stream.last_event = 0;
  }
  /// Records a new event on the stream in the trace, and returns its number.
  std::uint64_t new_event(Stream& stream) {
    writer_.write(
        {.kind = RecordKind::record_event, .actor = stream.actor, .event = ++last_event_});
    return stream.last_event = last_event_;
  }
  void end_event(std::uint64_t event) {
    writer_.write({.kind = RecordKind::event_ends, .event = event});
  }
  void host_waits(std::uint64_t event) {
    writer_.write({.kind = RecordKind::host_wait_event, .event = event});
  }
  void host_waits_for_all(Stream& stream) {
    if (stream.is_known) return;
    const std::uint64_t event = new_event(stream);
    host_waits(event);
    end_event(event);
    set_known(stream);
  }
  void set_known(Stream& stream) {
    stream.is_known = true;
    if (stream.has_ended) end_actor(stream);
  }

  void add_stream_end(const MemoryEvent& event) {
    const auto at = streams_.find(event.stream);
    if (at == streams_.end() || at->second.actor == 0) return;
    at->second.has_ended = true;
    if (at->second.is_known) end_actor(at->second);
  }
  /// The next stream that begins may have the actor, so a program that creates a stream for each
  /// request has as many actors as streams at a time. All that the stream did is ordered before
  /// everything that the host does from now on, so no later wait for the stream matters.
  void end_actor(Stream& stream) {
    writer_.write({.kind = RecordKind::actor_ends, .actor = stream.actor});
    for (const auto& [sequence, event] : stream.marks) end_event(event);
    stream.marks.clear();
    std::erase(actors_, &stream);
    free_actors_.push_back(stream.actor);
    stream.actor = 0;
    stream.is_over = true;
  }
  [[nodiscard]] bool is_over(std::uint64_t id) const {
    const auto at = streams_.find(id);
    return at != streams_.end() && at->second.is_over;
  }

  void add_device_event(const MemoryEvent& event) {
    Stream* const stream = judged(event.stream);
    if (stream == nullptr) return;
    const std::uint64_t made = new_event(*stream);
    // The event also covers the work of the streams that this one is ordered with.
    if (!stream->is_independent) stream->is_known = false;
    std::uint64_t& place =
        event.block == 0 ? program_events_[event.address] : stream->marks[event.block];
    if (place != 0) end_event(place);
    place = made;
  }

  /// Returns the event of the trace that covers the mark or the event of the program. If there is
  /// none, returns a new event, which covers all work of the stream so far.
  std::uint64_t event_for(Stream& stream, std::uint64_t sequence, std::uint64_t address) {
    if (sequence != 0) {
      const auto at = stream.marks.lower_bound(sequence);
      return at == stream.marks.end() ? new_event(stream) : at->second;
    }
    const auto at = program_events_.find(address);
    return address == 0 || at == program_events_.end() ? new_event(stream) : at->second;
  }

  void add_stream_wait(const MemoryEvent& event) {
    Stream* const waiter = judged(event.stream);
    if (waiter == nullptr) return;
    const auto wait = [&](std::uint64_t made) {
      // Whoever waits for this stream now waits for the other one, too.
      add_work(*waiter);
      writer_.write({.kind = RecordKind::wait_event,
                     .actor = waiter->actor,
                     .event = made,
                     .site = site_of(event)});
    };
    if (is_over(event.extra)) return;
    if (Stream* const other = judged(event.extra)) {
      if (event.block != 0 && event.block <= other->done) return;
      return wait(event_for(*other, event.block, event.address));
    }
    // The stream waits for another library, whose work may have waited for any stream. If the host
    // knows that a stream is done, everything that it submits is already ordered after the stream.
    std::vector<Stream*> unknown;
    for (Stream* const other : actors_) {
      if (other != waiter && !other->is_known) unknown.push_back(other);
    }
    for (Stream* const other : unknown) {
      if (unknown.size() > max_unknown_streams) {
        host_waits_for_all(*other);
        continue;
      }
      const std::uint64_t made = new_event(*other);
      wait(made);
      end_event(made);
    }
  }

  void learn(const MemoryEvent& event) {
    if (Stream* const stream = judged(event.stream)) {
      if (event.block == 0 && event.address == 0) return host_waits_for_all(*stream);
      if (event.block != 0 && event.block <= stream->done) return;
      const std::uint64_t made = event_for(*stream, event.block, event.address);
      host_waits(made);
      // Later waits for these marks are already satisfied, so their events are not needed.
      stream->done = std::max(stream->done, event.block);
      const auto end = stream->marks.lower_bound(event.block);
      for (auto at = stream->marks.begin(); at != end; ++at) end_event(at->second);
      stream->marks.erase(stream->marks.begin(), end);
      if (made == stream->last_event) set_known(*stream);
      return;
    }
    if (is_over(event.stream)) return;
    const bool is_all = event.stream != 0 || event.device == 0;
    const std::vector<Stream*> all = actors_;  // a stream that ends leaves the list
    for (Stream* const stream : all) {
      if (is_all || stream->device == event.device) host_waits_for_all(*stream);
    }
  }

  const MemoryTrace& trace_;
  TraceWriter writer_;
  RecordedOrder result_;
  Blocks blocks_;
  std::unordered_map<std::uint64_t, Stream> streams_;
  std::unordered_map<std::uint64_t, const MemoryEvent*> begins_;
  std::vector<Stream*> actors_;  // streams whose work is checked
  std::vector<ActorId> free_actors_;
  std::unordered_map<std::uint64_t, std::uint64_t> program_events_;  // by their handle
  std::unordered_map<std::uint64_t, std::uint64_t> kernels_;  // the last launch of each stream
  std::unordered_map<std::uint32_t, std::uint64_t> held_;     // bytes, by resource
  std::unordered_map<std::uint16_t, Tag> tags_;
  std::uint64_t last_event_ = 0;
};

}  // namespace

RecordedOrder order_of(const MemoryTrace& trace) { return Translation(trace).run(); }

}  // namespace tern::tools
