#include "tern/coherence/prefetch_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "coherence/hint_checks.hpp"
#include "core/interval_map.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/coherence/raw_unified.hpp"

namespace tern {
namespace {

using Entry = PrefetchEntry;

/// Returns whether `next` continues the range of `before` to the same place. An entry without bytes
/// continues nothing, because it is counted as skipped.
bool continues(const Entry& before, const Entry& next) noexcept {
  return before.range.bytes != 0 && next.range.bytes != 0 &&
         before.target->identity() == next.target->identity() && before.place == next.place &&
         before.range.offset_bytes + before.range.bytes == next.range.offset_bytes;
}

/// Smaller batches use one stream.
constexpr std::size_t min_lane_bytes = 4 * mib;

/// Collects consecutive entries of managed memory for one stream, and sends them in one batch.
class Sender {
 public:
  Sender(HintOptions options, CallSite site) noexcept : options_(options), site_(site) {}

  /// Sends an entry, or adds it to the batch.
  [[nodiscard]] Result<void> try_send(const Entry& entry, StreamRef stream) {
    if (entry.range.bytes == 0) return skip(entry);
    if (entry.target->managed() == nullptr) return try_send_alone(entry, stream);
    if (!run_.empty() && run_stream_ != stream) {
      if (Result<void> flushed = try_flush(); !flushed) return flushed;
    }
    run_stream_ = stream;
    Result<HintSkip> able = can_move(entry);
    if (!able) return stop(entry, able.failure());
    if (*able != HintSkip::none) {
      // The entries before it are sent first, so that the counts of a failure are right.
      if (Result<void> flushed = try_flush(); !flushed) return flushed;
      return skip(entry);
    }
    run_.push_back(&entry);
    return {};
  }

  /// Sends the batch.
  [[nodiscard]] Result<void> try_flush() {
    std::vector<PrefetchRange> ranges;
    std::vector<UseRecord::Ticket> tickets;
    ranges.reserve(run_.size());
    tickets.reserve(run_.size());
    Result<void> begun;
    for (const Entry* entry : run_) {
      begun = try_begin(*entry, ranges, tickets);
      if (!begun) break;
    }
    std::size_t count = 0;
    const Result<void> sent = try_prefetch(ranges, count);
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      UseRecord& uses = run_[i]->target->managed()->storage()->uses();
      if (i < count) {
        uses.end(tickets[i], run_stream_, run_stream_.next_mark(), Access::read);
        report_.sent += run_[i]->count;
        report_.bytes += run_[i]->range.bytes;
      } else {
        uses.cancel(tickets[i]);
      }
    }
    const std::vector<const Entry*> run = std::exchange(run_, {});
    if (!sent && !ranges.empty()) {
      const std::uint64_t index = sent.failure().number("index").value_or(count);
      return refusal(*run[std::min<std::size_t>(index, run.size() - 1)], sent.failure());
    }
    if (!begun) return refusal(*run[tickets.size()], begun.failure());
    return {};
  }

  /// Sends the batch, and returns the failure of an entry that cannot be tried.
  [[nodiscard]] Result<void> stop(const Entry& entry, const Failure& cause) {
    if (Result<void> flushed = try_flush(); !flushed) return flushed;
    return refusal(entry, cause);
  }

  [[nodiscard]] const PrefetchPlan::Report& report() const noexcept { return report_; }

 private:
  /// Sends large ranges on two streams alternately, ordered between two points of the requested
  /// stream. A driver that prepares one range while another is in flight is faster than with one
  /// batch call. Sets `count` to the number of ranges that were sent.
  [[nodiscard]] Result<void> try_prefetch(std::span<const PrefetchRange> ranges,
                                          std::size_t& count) noexcept {
    const Stream lane = second_lane(ranges);
    if (!lane.is_usable()) {
      const Result<void> sent = run_stream_.try_prefetch_batch(ranges, site_);
      count = sent ? ranges.size() : sent.failure().number("submitted").value_or(0);
      return sent;
    }
    Result<void> sent;
    for (const PrefetchRange& one : ranges) {
      const StreamRef next = count % 2 == 0 ? run_stream_ : StreamRef(lane);
      sent = next.try_prefetch(one.address, one.bytes, one.destination, site_);
      if (!sent) break;
      ++count;
    }
    const Result<Mark> end = lane.try_mark();
    if (!end || !run_stream_.try_wait(*end, site_)) {
      // Later work on the stream must not run concurrently with the second stream, so the host
      // waits.
      static_cast<void>(DeviceState::wait_for_stream(lane, site_));
    }
    return sent;
  }

  /// Returns a second stream, ordered after the present work of the first. Returns an empty stream
  /// if the ranges are too small, the stream is being captured, or no stream can be made.
  [[nodiscard]] Stream second_lane(std::span<const PrefetchRange> ranges) const noexcept {
    std::size_t bytes = 0;
    for (const PrefetchRange& one : ranges) bytes += one.bytes;
    if (ranges.size() < 2 || bytes < min_lane_bytes) return {};
    const Result<bool> is_captured = run_stream_.try_is_capturing();
    const Result<Mark> begin = run_stream_.try_mark();
    if (!is_captured || *is_captured || !begin) return {};
    Result<Stream> lane = Stream::try_make(run_stream_.device(), {.name = "prefetch"});
    if (!lane || !lane->try_wait(*begin, site_)) return {};
    return *std::move(lane);
  }

  Result<void> skip(const Entry& entry) noexcept {
    report_.skipped += entry.count;
    return {};
  }

  [[nodiscard]] Result<void> try_send_alone(const Entry& entry, StreamRef stream) {
    if (Result<void> flushed = try_flush(); !flushed) return flushed;
    const Result<HintReport> sent =
        entry.target->try_prefetch(entry.range, entry.place, stream, options_, site_);
    if (!sent) return refusal(entry, sent.failure());
    if (!sent->is_sent()) return skip(entry);
    report_.sent += entry.count;
    report_.bytes += sent->moved_bytes.value_or(entry.range.bytes);
    return {};
  }

  /// Returns whether the device of the memory and the destination both support concurrent access.
  [[nodiscard]] Result<HintSkip> can_move(const Entry& entry) const {
    const Device& own = entry.target->device();
    const Result<HintSkip> able = check_able(own, Capability::prefetch, options_, site_);
    if (!able || *able != HintSkip::none || entry.place.is_host()) return able;
    const DeviceScope target(entry.place.device_id());
    if (!target || target->info().capabilities.has(Capability::concurrent_managed)) return able;
    if (!options_.strict) return HintSkip::not_concurrent;
    return Failure(ErrorCode::unsupported,
                   "'{device}' lacks {what}, so nothing can be prefetched to it. Turn "
                   "HintOptions::strict off to skip such devices.",
                   site_)
        .with("what", name(Capability::concurrent_managed))
        .with("device", target->info().spec);
  }

  [[nodiscard]] Result<void> try_begin(const Entry& entry, std::vector<PrefetchRange>& ranges,
                                       std::vector<UseRecord::Ticket>& tickets) {
    const Buffer& whole = *entry.target->managed();
    if (Result<void> there = whole.try_ensure_allocated({}, site_); !there) return there;
    const std::size_t begin = entry.range.offset_bytes;
    if (Result<void> noted = whole.storage()->try_note_edges({begin, begin + entry.range.bytes});
        !noted) {
      return noted;
    }
    const Result<UseRecord::Ticket> ticket = whole.storage()->uses().try_begin(
        run_stream_, Access::read, site_, UseRecord::LockMode::none);
    if (!ticket) return ticket.failure();
    tickets.push_back(*ticket);
    ranges.push_back({whole.storage()->first_byte() + begin, entry.range.bytes, entry.place});
    return {};
  }

  [[nodiscard]] Result<void> refusal(const Entry& entry, const Failure& cause) const {
    return Failure(cause.code(),
                   "entry {index} of a prefetch plan was refused with {enqueued} sent before it: "
                   "{cause}",
                   site_)
        .with("index", entry.index)
        .with("enqueued", report_.sent)
        .with("cause", cause.text());
  }

  const HintOptions options_;
  const CallSite site_;
  StreamRef run_stream_ = {};
  std::vector<const Entry*> run_;
  PrefetchPlan::Report report_;
};

template <class StreamOf>
Result<PrefetchPlan::Report> execute_with(const PrefetchPlan& plan, HintOptions options,
                                          CallSite site, StreamOf stream_of) noexcept try {
  const PrefetchPlan merged = plan.merged();
  Sender sender(options, site);
  for (const Entry& entry : merged.entries()) {
    const Result<StreamRef> stream = stream_of(entry);
    const Result<void> sent =
        stream ? sender.try_send(entry, *stream) : sender.stop(entry, stream.failure());
    if (!sent) return sent.failure();
  }
  if (Result<void> flushed = sender.try_flush(); !flushed) return flushed.failure();
  return sender.report();
} catch (const std::bad_alloc&) {
  return no_host_memory("a prefetch plan", site);
}

}  // namespace

std::size_t PrefetchPlan::size() const noexcept { return entries_.size(); }

std::span<const PrefetchEntry> PrefetchPlan::entries() const noexcept { return entries_; }

std::string PrefetchEntry::text() const {
  return fmt::format("bytes [{}, {}) of {} to {}", range.offset_bytes,
                     range.offset_bytes + range.bytes, target->text(), place.text());
}

Result<void> PrefetchPlan::try_add(const Buffer& view, Place place, std::optional<HintRange> range,
                                   CallSite site) noexcept {
  Result<std::shared_ptr<const PrefetchTarget>> target = try_managed_target(view, site);
  if (!target) return target.failure();
  const HintRange inside = range.value_or(HintRange{0, view.size_bytes()});
  if (Result<void> sound = check_hint_range(inside, view.size_bytes(), site); !sound) return sound;
  return try_add(*std::move(target), place,
                 HintRange{view.offset_bytes() + inside.offset_bytes, inside.bytes}, site);
}

Result<void> PrefetchPlan::try_add(const RawUnified& view, Place place,
                                   std::optional<HintRange> range, CallSite site) noexcept {
  Result<std::shared_ptr<const PrefetchTarget>> target = try_unified_target(view, site);
  if (!target) return target.failure();
  const HintRange inside = range.value_or(HintRange{0, view.size_bytes()});
  if (Result<void> sound = check_hint_range(inside, view.size_bytes(), site); !sound) return sound;
  return try_add(*std::move(target), place,
                 HintRange{view.offset() + inside.offset_bytes, inside.bytes}, site);
}

Result<void> PrefetchPlan::try_add(std::shared_ptr<const PrefetchTarget> target, Place place,
                                   std::optional<HintRange> range, CallSite site) noexcept try {
  if (!target) {
    return Failure(ErrorCode::invalid_argument,
                   "a prefetch plan cannot add a null {name}. Pass the memory to prefetch.", site)
        .with("name", "target")
        .with("value", "null");
  }
  const HintRange inside = range.value_or(HintRange{0, target->bytes()});
  if (Result<void> sound = check_hint_range(inside, target->bytes(), site); !sound) return sound;
  if (Result<void> there = target->check(place, site); !there) return there;
  entries_.push_back({std::move(target), inside, place, entries_.size(), 1, site});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a prefetch plan", site);
}

std::string PrefetchPlan::text() const {
  std::string text = fmt::format("prefetch plan, {} {}", size(), size() == 1 ? "entry" : "entries");
  for (const Entry& entry : entries_) text += fmt::format("\n  {}: {}", entry.index, entry.text());
  return text;
}

PrefetchPlan PrefetchPlan::merged() const {
  PrefetchPlan plan;
  for (const Entry& entry : entries_) {
    if (!plan.empty() && continues(plan.entries_.back(), entry)) {
      plan.entries_.back().range.bytes += entry.range.bytes;
      plan.entries_.back().count += entry.count;
    } else {
      plan.entries_.push_back(entry);
    }
  }
  return plan;
}

std::vector<std::pair<Place, std::size_t>> PrefetchPlan::peaks() const {
  struct Load {
    std::size_t now = 0, peak = 0;
  };
  std::map<Place, Load> loads;
  std::map<const void*, IntervalMap<Place>> where;
  for (const Entry& entry : entries_) {
    const std::size_t begin = entry.range.offset_bytes, end = begin + entry.range.bytes;
    IntervalMap<Place>& memory = where[entry.target->identity()];
    memory.visit(begin, end, [&](std::uint64_t from, std::uint64_t to, const Place* at) {
      if (at != nullptr) loads[*at].now -= to - from;
      return true;
    });
    memory.assign(begin, end, entry.place);
    Load& load = loads[entry.place];
    load.now += end - begin;
    load.peak = std::max(load.peak, load.now);
  }
  std::vector<std::pair<Place, std::size_t>> peaks;
  for (const auto& [place, load] : loads) peaks.push_back({place, load.peak});
  return peaks;
}

Result<std::size_t> PrefetchPlan::try_check(Place place, const Budget& budget,
                                            CallSite site) const noexcept try {
  std::size_t peak = 0;
  for (const auto& [where, bytes] : peaks()) {
    if (where == place) peak = bytes;
  }
  if (peak == 0 || budget.would_fit(peak)) return peak;
  return Failure(ErrorCode::out_of_budget,
                 "a prefetch plan brings {requested} to {place} at one time, but budget '{budget}' "
                 "has {available} left. Plan fewer bytes at once, or raise the limit.",
                 site)
      .with_bytes("requested", peak)
      .with_bytes("available", budget.remaining_bytes())
      .with("budget", budget.path())
      .with("place", place.text());
} catch (const std::bad_alloc&) {
  return no_host_memory("a prefetch plan", site);
}

Result<PrefetchPlan::Report> PrefetchPlan::try_execute(StreamRef stream, HintOptions options,
                                                       CallSite site) const noexcept {
  return execute_with(*this, options, site,
                      [stream](const Entry&) -> Result<StreamRef> { return stream; });
}

Result<PrefetchPlan::Report> PrefetchPlan::try_execute(std::span<const StreamRef> streams,
                                                       HintOptions options,
                                                       CallSite site) const noexcept {
  return execute_with(*this, options, site, [&](const Entry& entry) -> Result<StreamRef> {
    const DeviceId wanted =
        entry.place.is_host() ? entry.target->device().id() : entry.place.device_id();
    const auto found = std::ranges::find(streams, wanted, &StreamRef::device_id);
    if (found != streams.end()) return *found;
    return Failure(ErrorCode::stream_misuse,
                   "none of the {count} streams belongs to device {number}, which moves the "
                   "memory. Pass one stream of each device, or one for all.",
                   site)
        .with("stream", std::uint64_t{0})
        .with("why", "it is of another device")
        .with("count", streams.size())
        .with("number", wanted.value);
  });
}

}  // namespace tern
