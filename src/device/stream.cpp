#include "tern/device/stream.hpp"

#include <fmt/format.h>

#include <atomic>

#include "device/device_state.hpp"
#include "device/request_checks.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "trace/nvtx.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

Failure no_stream(StreamId id, const char* why) noexcept {
  return Failure(ErrorCode::stream_misuse, "stream {stream} cannot accept work: {why}.")
      .with("stream", id.number())
      .with("why", why);
}

/// The state that a moved-from Stream refers to: a stream that never accepts work. It has no name,
/// so name() returns "ended".
StreamState* moved_from() noexcept {
  struct Ended : StreamState {
    Ended() noexcept { has_ended.store(true, std::memory_order_relaxed); }
  };
  static Ended state;
  return &state;
}

/// The fast path of every call: four loads.
bool is_usable(const StreamState* stream, StreamId id) noexcept {
  return stream != nullptr && stream->is_open_as(id) && stream->device->is_in_its_process();
}

/// The slow path: explains why the stream does not accept work. The reference names no stream, the
/// Stream was moved from, the stream has ended, or the process was forked.
[[gnu::noinline, gnu::cold]] Result<void> why_unusable(const StreamState* stream,
                                                       StreamId id) noexcept {
  if (stream == nullptr) return no_stream(id, "the StreamRef is empty. Create a Stream first");
  if (stream == moved_from()) {
    return Failure(ErrorCode::stream_misuse,
                   "{why} and cannot accept work. Use the Stream that it was moved to.")
        .with("stream", id.number())
        .with("why", "the stream was moved from");
  }
  if (stream->device->is_in_its_process()) {
    return no_stream(id, "it was destroyed. Keep the Stream until the last submission");
  }
  return stream->device->check_process();
}

Result<void> check(const StreamState* stream, StreamId id) noexcept {
  if (is_usable(stream, id)) return {};
  return why_unusable(stream, id);
}

Result<void> check(const StreamState* stream, StreamId id, Capability capability) noexcept {
  if (!is_usable(stream, id)) return why_unusable(stream, id);
  if (stream->device->info().capabilities.has(capability)) return {};
  return stream->device->check_can(capability);
}

bool overlaps(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second ? b_bytes > 0 && second - first < a_bytes : first - second < b_bytes;
}

Failure overlapping(std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "source and destination of a copy of {bytes} bytes overlap. Copy through other "
                 "memory.")
      .with("name", "destination")
      .with("value", "inside the source")
      .with("bytes", bytes);
}

/// Returns the number of bytes from the first byte of the first row to the end of the last row.
std::optional<std::size_t> pitched_extent(std::size_t pitch, std::size_t width,
                                          std::size_t height) noexcept {
  const std::optional<std::size_t> rows = checked_multiply(pitch, height - 1);
  return rows ? checked_add(*rows, width) : rows;
}

Result<void> check_pitch(const char* name, std::size_t pitch, std::size_t width) noexcept {
  if (pitch >= width) return {};
  return Failure(ErrorCode::invalid_argument,
                 "{name} {value} is smaller than a row of {width} bytes, so rows would overlap.")
      .with("name", name)
      .with("value", pitch)
      .with("width", width);
}

Failure two_devices(const DeviceInfo& a, const DeviceInfo& b) noexcept {
  return Failure(ErrorCode::device_mismatch).with("a", a.spec).with("b", b.spec);
}

/// A submission until the backend's call has returned.
class ActiveSubmission : public Submission {
 public:
  ActiveSubmission(StreamState& state, CallSite call_site, Tag memory_tag) noexcept
      : Submission{.stream = state.native,
                   .site = call_site,
                   .tag = memory_tag,
                   .is_idle = state.begin_submission()},
        state_(state) {}
  ~ActiveSubmission() { state_.end_submission(); }
  ActiveSubmission(const ActiveSubmission&) = delete;
  ActiveSubmission& operator=(const ActiveSubmission&) = delete;

 private:
  StreamState& state_;
};

ActiveSubmission submit(StreamState& stream, CallSite site, Tag tag = {}) noexcept {
  stream.need_seal();
  return {stream, site, tag};
}

trace::Named recorded_device(const DeviceState& device) noexcept {
  return {device.id().value, device.info().spec};
}

/// Records a copy or fill that the backend has accepted. `number` is that of CopyTimes.
void record_transfer(trace::EventKind kind, StreamId stream, const trace::Named& device,
                     const void* to, const void* from, std::size_t bytes, CallSite site,
                     std::uint64_t begun_ns, std::uint64_t number = 0,
                     trace::CopyShape shape = trace::CopyShape::contiguous) noexcept {
  trace::record(kind, {.stream = stream.value(),
                       .block = number,
                       .address = reinterpret_cast<std::uintptr_t>(to),
                       .bytes = bytes,
                       .extra = reinterpret_cast<std::uintptr_t>(from),
                       .site = site,
                       .device = device,
                       .detail = static_cast<std::uint8_t>(shape),
                       .time_ns = begun_ns});
}

/// Records that the stream waits for a mark, or for an event of the program that was recorded by
/// the stream of the mark.
void record_stream_wait(const DeviceState& device, StreamId stream, Mark mark, CallSite site,
                        NativeEvent event = {}) noexcept {
  trace::record(trace::EventKind::stream_wait, {.stream = stream.value(),
                                                .block = mark.sequence,
                                                .address = event.value,
                                                .extra = mark.stream.value(),
                                                .site = site,
                                                .device = recorded_device(device)});
}

/// A copy or fill that is recorded, if a recording is on, once the backend has accepted it.
class RecordedTransfer {
 public:
  /// Call before the submission.
  RecordedTransfer(StreamState& stream, StreamId id, trace::EventKind kind, std::size_t bytes,
                   CallSite site, trace::CopyShape shape = trace::CopyShape::contiguous) noexcept
      : stream_(stream), id_(id), kind_(kind), shape_(shape), bytes_(bytes), site_(site) {
    if (trace::is_recording()) [[unlikely]]
      start();
  }
  RecordedTransfer(const RecordedTransfer&) = delete;
  RecordedTransfer& operator=(const RecordedTransfer&) = delete;
  /// Call after the submission.
  void end(const Result<void>& submitted, const void* to, const void* from) noexcept {
    if (begun_ns_ != 0) [[unlikely]]
      record(bool(submitted), to, from);
  }

 private:
  [[gnu::noinline, gnu::cold]] void start() noexcept {
    begun_ns_ = trace::now_ns();
    if (kind_ != trace::EventKind::copy || bytes_ < CopyTimes::min_bytes) return;
    DeviceState& device = *stream_.device;
    if (device.has_copy_times()) {
      started_ = device.copy_times().start(device.backend(), stream_.native);
    }
  }
  [[gnu::noinline, gnu::cold]] void record(bool is_submitted, const void* to,
                                           const void* from) noexcept {
    DeviceState& device = *stream_.device;
    const trace::Named name = recorded_device(device);
    if (!is_submitted) return device.copy_times().cancel(device.backend(), started_);
    const std::uint64_t number =
        device.copy_times().stop(device.backend(), stream_.native, started_, name);
    record_transfer(kind_, id_, name, to, from, bytes_, site_, begun_ns_, number, shape_);
  }

  StreamState& stream_;
  StreamId id_;
  trace::EventKind kind_;
  trace::CopyShape shape_;
  std::size_t bytes_;
  CallSite site_;
  std::uint64_t begun_ns_ = 0;  // 0: not recorded
  NativeEvent started_ = {};
};

/// Returns the time if a recording is on, else 0.
std::uint64_t begin_recorded() noexcept { return trace::is_recording() ? trace::now_ns() : 0; }

}  // namespace

Device StreamRef::device() const {
  check(state_, id_).value();
  return state_->device->handle();
}

std::string StreamRef::name() const {
  if (!check(state_, id_)) return "ended";
  if (state_->name[0] != '\0') return state_->name.data();
  return fmt::format("stream {}", id_.number());
}

bool StreamRef::is_usable() const noexcept { return tern::is_usable(state_, id_); }

Result<NativeStream> StreamRef::try_native() const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return usable.failure();
  // Other code may submit work now.
  state_->is_private.store(false, std::memory_order_relaxed);
  return state_->device->backend().native_handle(state_->native);
}

Result<void> StreamRef::try_copy(void* destination, const void* source, std::size_t bytes,
                                 CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  if (bytes == 0) return {};
  if (Result<void> fits = check_range("destination", destination, bytes); !fits) {
    return at(site, fits);
  }
  if (Result<void> fits = check_range("source", source, bytes); !fits) return at(site, fits);
  if (overlaps(destination, bytes, source, bytes)) return at(site, overlapping(bytes));
  RecordedTransfer recorded(*state_, id_, trace::EventKind::copy, bytes, site);
  const Result<void> queued =
      state_->device->backend().copy(submit(*state_, site), destination, source, bytes);
  recorded.end(queued, destination, source);
  return at(site, queued);
}

Result<void> StreamRef::try_copy_2d(const Copy2D& copy, CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  if (copy.width_bytes == 0 || copy.height == 0) return {};
  if (Result<void> fits =
          check_pitch("destination_pitch_bytes", copy.destination_pitch_bytes, copy.width_bytes);
      !fits) {
    return at(site, fits);
  }
  if (Result<void> fits =
          check_pitch("source_pitch_bytes", copy.source_pitch_bytes, copy.width_bytes);
      !fits) {
    return at(site, fits);
  }
  // If the extent overflows, use a size that check_range() rejects.
  const std::size_t too_many = max_request_bytes + 1;
  const std::size_t written =
      pitched_extent(copy.destination_pitch_bytes, copy.width_bytes, copy.height)
          .value_or(too_many);
  const std::size_t read =
      pitched_extent(copy.source_pitch_bytes, copy.width_bytes, copy.height).value_or(too_many);
  if (Result<void> fits = check_range("destination", copy.destination, written); !fits) {
    return at(site, fits);
  }
  if (Result<void> fits = check_range("source", copy.source, read); !fits) return at(site, fits);
  if (overlaps(copy.destination, written, copy.source, read)) {
    return at(site, overlapping(written));
  }
  RecordedTransfer recorded(*state_, id_, trace::EventKind::copy, copy.width_bytes * copy.height,
                            site, trace::CopyShape::rows);
  const Result<void> queued = state_->device->backend().copy_2d(submit(*state_, site), copy);
  recorded.end(queued, copy.destination, copy.source);
  return at(site, queued);
}

Result<void> StreamRef::try_copy_batch(std::span<const CopyRange> copies,
                                       CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  std::size_t empty = 0;
  for (const CopyRange& one : copies) {
    if (one.bytes == 0) {
      ++empty;
      continue;
    }
    if (Result<void> fits = check_range("destination", one.destination, one.bytes); !fits) {
      return at(site, fits);
    }
    if (Result<void> fits = check_range("source", one.source, one.bytes); !fits) {
      return at(site, fits);
    }
    if (overlaps(one.destination, one.bytes, one.source, one.bytes)) {
      return at(site, overlapping(one.bytes));
    }
  }
  Backend& backend = state_->device->backend();
  // Submit the copies in runs, because copies of zero bytes must not reach the backend.
  for (std::size_t begin = 0; begin < copies.size();) {
    if (empty > 0 && copies[begin].bytes == 0) {
      ++begin;
      continue;
    }
    std::size_t end = copies.size();
    if (empty > 0) {
      for (end = begin + 1; end < copies.size() && copies[end].bytes != 0;) ++end;
    }
    const std::uint64_t begun_ns = begin_recorded();
    if (Result<void> queued =
            backend.copy_batch(submit(*state_, site), copies.subspan(begin, end - begin));
        !queued) {
      return at(site, queued);
    }
    for (std::size_t i = begin; begun_ns != 0 && i < end; ++i) {
      record_transfer(trace::EventKind::copy, id_, recorded_device(*state_->device),
                      copies[i].destination, copies[i].source, copies[i].bytes, site, begun_ns);
    }
    begin = end;
  }
  return {};
}

Result<void> StreamRef::try_copy_from_peer(void* destination, const Device& peer,
                                           const void* source, std::size_t bytes,
                                           CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::peer_copies); !able) {
    return at(site, able);
  }
  if (!peer.is_open() || peer.info().backend != state_->device->info().backend) {
    return at(site, two_devices(state_->device->info(), peer.info()));
  }
  if (Result<void> usable = DeviceState::of(peer)->check_process(); !usable) {
    return at(site, usable);
  }
  if (bytes == 0) return {};
  if (Result<void> fits = check_range("destination", destination, bytes); !fits) {
    return at(site, fits);
  }
  if (Result<void> fits = check_range("source", source, bytes); !fits) return at(site, fits);
  Backend& owner = DeviceState::of(peer)->backend();
  RecordedTransfer recorded(*state_, id_, trace::EventKind::copy, bytes, site);
  const Result<void> queued = state_->device->backend().copy_from_peer(
      submit(*state_, site), destination, owner, source, bytes);
  recorded.end(queued, destination, source);
  return at(site, queued);
}

Result<void> StreamRef::try_fill_bytes(void* destination, std::size_t bytes, const Pattern& pattern,
                                       CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  if (Result<void> whole = check_pattern(pattern, bytes, site); !whole) return whole;
  if (bytes == 0) return {};
  if (Result<void> fits = check_range("destination", destination, bytes); !fits) {
    return at(site, fits);
  }
  RecordedTransfer recorded(*state_, id_, trace::EventKind::fill, bytes, site);
  const Result<void> queued =
      state_->device->backend().fill(submit(*state_, site), destination, bytes, pattern);
  recorded.end(queued, destination, nullptr);
  return at(site, queued);
}

Result<void> StreamRef::try_fill_elements(void* destination, std::size_t count,
                                          const Pattern& pattern, CallSite site) const noexcept {
  const std::optional<std::size_t> bytes = checked_multiply(count, pattern.width_bytes);
  if (!bytes) {
    return Failure(ErrorCode::size_overflow,
                   "{count} elements of {width} bytes overflow a 64-bit size. Fill fewer elements.",
                   site)
        .with("what", "a fill")
        .with("count", count)
        .with("width", pattern.width_bytes);
  }
  return try_fill_bytes(destination, *bytes, pattern, site);
}

Result<void*> StreamRef::try_allocate(std::size_t bytes,
                                      const AllocateOptions& options) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::stream_ordered_memory); !able) {
    return at(options.site, able.failure());
  }
  const Result<std::size_t> alignment =
      checked_alignment(state_->device->info(), options.alignment);
  if (!alignment) return at(options.site, alignment.failure());
  if (bytes == 0) return nullptr;
  if (bytes > max_request_bytes) return at(options.site, allocation_too_large(bytes));
  const trace::TagRange range_of_tag(options.tag);
  Result<void*> address = state_->device->backend().allocate_async(
      submit(*state_, options.site, options.tag), bytes, *alignment);
  if (!address) return at(options.site, address.failure());
  return address;
}

Result<void> StreamRef::try_release(void* address, CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::stream_ordered_memory); !able) {
    return at(site, able);
  }
  if (address == nullptr) return {};
  return at(site, state_->device->backend().release_async(submit(*state_, site), address));
}

namespace {

Result<void> check_prefetch(const void* address, std::size_t bytes, Place destination) noexcept {
  if (Result<void> fits = check_range("range", address, bytes); !fits) return fits;
  if (destination.kind() != Place::Kind::device || DeviceScope(destination.device_id())) return {};
  return Failure(ErrorCode::invalid_device,
                 "memory cannot be prefetched to device {number}, which is not open. Use "
                 "Device::place().")
      .with("spec", "")
      .with("number", destination.index());
}

/// Adds the index of the rejected range, and how many ranges were submitted, to the failure.
Failure in_batch(const Failure& why, std::size_t index, std::size_t submitted,
                 CallSite site) noexcept {
  return Failure(why).at(site).with("index", index).with("submitted", submitted);
}

}  // namespace

Result<void> StreamRef::try_prefetch(void* address, std::size_t bytes, Place destination,
                                     CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::prefetch); !able) return at(site, able);
  if (bytes == 0) return {};
  if (Result<void> sound = check_prefetch(address, bytes, destination); !sound) {
    return at(site, sound);
  }
  return at(site,
            state_->device->backend().prefetch(submit(*state_, site), address, bytes, destination));
}

Result<void> StreamRef::try_prefetch_batch(std::span<const PrefetchRange> ranges,
                                           CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::prefetch); !able) return at(site, able);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].bytes == 0) continue;
    const Result<void> sound =
        check_prefetch(ranges[i].address, ranges[i].bytes, ranges[i].destination);
    if (!sound) return in_batch(sound.failure(), i, 0, site);
  }
  Backend& backend = state_->device->backend();
  const ActiveSubmission submission = submit(*state_, site);
  // Submit the ranges in runs, because ranges of zero bytes must not reach the backend.
  for (std::size_t begin = 0; begin < ranges.size();) {
    if (ranges[begin].bytes == 0) {
      ++begin;
      continue;
    }
    std::size_t end = begin + 1;
    while (end < ranges.size() && ranges[end].bytes > 0) ++end;
    std::size_t submitted = 0;
    const Result<void> sent =
        backend.prefetch_batch(submission, ranges.subspan(begin, end - begin), submitted);
    if (!sent) {
      return in_batch(sent.failure(), begin + submitted, begin + submitted, site);
    }
    begin = end;
  }
  return {};
}

Result<void> StreamRef::try_discard(void* address, std::size_t bytes,
                                    std::optional<Place> destination,
                                    CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::discard); !able) return at(site, able);
  if (bytes == 0) return {};
  if (Result<void> sound = check_prefetch(address, bytes, destination.value_or(Place::host()));
      !sound) {
    return at(site, sound);
  }
  return at(site,
            state_->device->backend().discard(submit(*state_, site), address, bytes, destination));
}

void StreamRef::note_suballocate(const Suballocation& block, Tag tag,
                                 CallSite site) const noexcept {
  if (!check(state_, id_) || block.bytes == 0) return;
  state_->device->backend().note_suballocate({state_->native, site, tag}, block);
}

void StreamRef::note_subrelease(const Suballocation& block, CallSite site) const noexcept {
  if (!check(state_, id_) || block.bytes == 0) return;
  state_->device->backend().note_subrelease({state_->native, site, {}}, block);
}

Result<void> StreamRef::try_call(HostFunction function, void* context,
                                 CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::host_functions); !able) {
    return at(site, able);
  }
  if (function == nullptr) {
    return Failure(ErrorCode::invalid_argument,
                   "a stream cannot call a null function. Pass a function.", site)
        .with("name", "function")
        .with("value", "null");
  }
  if (trace::is_recording()) [[unlikely]] {
    trace::record(
        trace::EventKind::host_call,
        {.stream = id_.value(), .site = site, .device = recorded_device(*state_->device)});
  }
  return at(site, state_->device->backend().call_host(submit(*state_, site), function, context));
}

Result<void> StreamRef::try_launch(NativeKernel kernel, const LaunchSize& size,
                                   std::span<const KernelArgument> arguments,
                                   CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::kernels); !able) return at(site, able);
  const DeviceInfo& info = state_->device->info();
  if (kernel.value == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "the kernel handle of a launch is empty. Load a kernel with try_load_kernel().",
                   site)
        .with("name", "kernel")
        .with("value", "null");
  }
  if (info.max_kernel_arguments != 0 && arguments.size() > info.max_kernel_arguments) {
    return Failure(ErrorCode::unsupported,
                   "a kernel with {count} arguments exceeds the {max} arguments that '{device}' "
                   "supports.",
                   site)
        .with("what", "that many kernel arguments")
        .with("count", arguments.size())
        .with("max", info.max_kernel_arguments)
        .with("device", info.spec);
  }
  constexpr std::size_t max_value_bytes = 64 * kib;
  std::size_t value_bytes = 0;
  for (const KernelArgument& argument : arguments) {
    if (argument.value_bytes == 0) continue;
    if (Result<void> fits = check_range("kernel argument", argument.value, argument.value_bytes);
        !fits) {
      return at(site, fits);
    }
    // The sum never exceeds the limit, so it cannot wrap.
    if (argument.value_bytes > max_value_bytes - value_bytes) {
      return Failure(ErrorCode::invalid_argument,
                     "the by-value arguments of a launch exceed {max} bytes. Pass large data by "
                     "address.",
                     site)
          .with("name", "arguments")
          .with("value", argument.value_bytes)
          .with("max", max_value_bytes);
    }
    value_bytes += argument.value_bytes;
  }
  for (int axis = 0; axis < 3; ++axis) {
    // An empty grid or block is valid and launches nothing.
    if (size.grid[axis] == 0 || size.block[axis] == 0) return {};
  }
  return at(site, state_->count(&StreamState::Counts::launches,
                                state_->device->backend().launch(submit(*state_, site), kernel,
                                                                 size, arguments)));
}

Result<Mark> StreamRef::try_mark() const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return usable.failure();
  return Mark{id_, state_->issue()};
}

Result<Mark> StreamRef::try_next_mark() const noexcept {
  const Mark next = next_mark();
  if (!next) return why_unusable(state_, id_).failure();
  return next;
}

Mark StreamRef::next_mark() const noexcept {
  if (!tern::is_usable(state_, id_)) return {};
  return Mark{id_, state_->promise_next()};
}

Result<void> StreamRef::try_wait(Mark mark, CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  if (mark.stream == id_ || !mark) return {};
  DeviceState* own = state_->device;
  // Recorded after the event that the mark may have needed.
  const auto wait_on = [&](DeviceState& device) noexcept {
    Result<void> waited = device.wait_on_stream(mark, own->backend(), submit(*state_, site));
    if (trace::is_recording() && waited) record_stream_wait(*own, id_, mark, site);
    return at(site, waited);
  };
  if (mark.stream.device() == own->id()) return wait_on(*own);
  const DeviceScope other(mark.stream.device());
  if (!other) return {};
  // In a forked child, a wait for a device of the parent would never end.
  if (Result<void> usable = other->check_process(); !usable) return at(site, usable);
  if (other->info().backend != own->info().backend) {
    return at(site, two_devices(own->info(), other->info()));
  }
  return wait_on(*other.operator->());
}

Result<void> StreamRef::try_record(Event& event, CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  if (event.native_.value == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "an empty event cannot be recorded. Create the event with a device.", site)
        .with("name", "event")
        .with("value", "empty");
  }
  if (event.device_.get() != state_->device) {
    return at(site, two_devices(state_->device->info(), event.device_->info()));
  }
  Result<void> recorded =
      state_->count(&StreamState::Counts::events,
                    state_->device->backend().record(submit(*state_, site), event.native_));
  if (recorded) {
    event.is_recorded_ = true;
    event.recorded_by_ = id_;
    if (trace::is_recording()) [[unlikely]] {
      trace::record(trace::EventKind::event_recorded, {.stream = id_.value(),
                                                       .address = event.native_.value,
                                                       .site = site,
                                                       .device = recorded_device(*state_->device)});
    }
  }
  return at(site, recorded);
}

Result<void> StreamRef::try_wait(const Event& event, CallSite site) const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return at(site, usable);
  DeviceState* own = state_->device;
  if (event.device_) {
    if (Result<void> usable = event.device_->check_process(); !usable) return at(site, usable);
    if (event.device_->info().backend != own->info().backend) {
      return at(site, two_devices(own->info(), event.device_->info()));
    }
  }
  if (trace::is_recording() && event.is_recorded_ && event.recorded_by_ != id_) {
    record_stream_wait(*own, id_, {event.recorded_by_, 0}, site, event.native_);
  }
  const NativeEvent native = event.is_recorded_ ? event.native_ : NativeEvent{};
  return at(site, state_->count(&StreamState::Counts::stream_waits,
                                own->backend().wait(submit(*state_, site), native)));
}

Result<void> StreamRef::try_begin_capture(CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::graphs); !able) return at(site, able);
  // Counted like a submission: a stream that is captured is not known to be idle.
  const ActiveSubmission submission = submit(*state_, site);
  return at(site, state_->device->backend().begin_capture(submission.stream));
}

Result<NativeGraph> StreamRef::try_end_capture(CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::graphs); !able) {
    return at(site, able.failure());
  }
  const ActiveSubmission submission = submit(*state_, site);
  Result<NativeGraph> graph = state_->device->backend().end_capture(submission.stream);
  if (!graph) return at(site, graph.failure());
  return graph;
}

void StreamRef::abort_capture() const noexcept {
  if (!check(state_, id_, Capability::graphs)) return;
  state_->device->backend().abort_capture(state_->native);
}

Result<void> StreamRef::try_launch_graph(NativeGraph graph, CallSite site) const noexcept {
  if (Result<void> able = check(state_, id_, Capability::graphs); !able) return at(site, able);
  if (graph.value == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "the graph handle of a launch is empty. Capture a graph with try_end_capture().",
                   site)
        .with("name", "graph")
        .with("value", "null");
  }
  return at(site, state_->device->backend().launch_graph(submit(*state_, site), graph));
}

Result<bool> StreamRef::try_is_capturing() const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return usable.failure();
  return state_->device->backend().is_capturing(state_->native);
}

Result<bool> StreamRef::try_is_idle() const noexcept {
  if (Result<void> usable = check(state_, id_); !usable) return usable.failure();
  const Result<bool> is_idle = state_->device->backend().query(state_->native);
  state_->device->note_if_lost(is_idle);
  if (trace::is_recording() && is_idle && *is_idle) state_->device->record_done_seen({id_});
  return is_idle;
}

Result<void> DeviceState::wait_for_stream(StreamRef stream, CallSite site) noexcept {
  StreamState* const state = stream.state_;
  if (Result<void> usable = check(state, stream.id_); !usable) return usable;
  // Marks issued so far need no event any more: the host has waited for all of them.
  const std::uint64_t covered = state->last_promised();
  const std::uint64_t submissions = state->submissions.load(std::memory_order_acquire);
  const std::uint64_t begun_ns = begin_recorded();
  Result<void> waited = state->count(&StreamState::Counts::host_waits,
                                     state->device->backend().synchronize(state->native));
  state->device->note_if_lost(waited);
  if (waited) {
    state->see_done(covered);
    state->note_idle(submissions);
  }
  if (begun_ns != 0) state->device->record_host_wait({stream.id_}, begun_ns, site);
  return waited;
}

Result<void> StreamRef::try_synchronize(CallSite site) const noexcept {
  Result<void> waited = DeviceState::wait_for_stream(*this, site);
  return waited ? state_->take_late(id_) : waited;
}

Stream::Stream(const Device& device, const StreamOptions& options, CallSite site)
    : Stream(try_make(device, options).value(site)) {}

Stream::Stream(std::shared_ptr<DeviceState> device, StreamRef ref) noexcept
    : StreamRef(ref), device_(std::move(device)) {}

Result<Stream> Stream::try_make(const Device& device, const StreamOptions& options) noexcept {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(ErrorCode::invalid_device,
                   "a stream needs an open device, and the Device is empty. Open one with "
                   "open_device().")
        .with("spec", "");
  }
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  const Result<StreamRef> ref = state->make_stream(options);
  if (!ref) return ref.failure();
  return Stream(state, *ref);
}

Result<Stream> Stream::try_borrow(const Device& device, NativeStream handle) noexcept {
  DeviceState* const state = DeviceState::of(device).get();
  if (state != nullptr && state->is_in_its_process() &&
      state->info().capabilities.has(Capability::borrowed_streams)) [[likely]] {
    if (const StreamRef known = state->borrow_known(handle); known.id()) return Stream({}, known);
  }
  return try_borrow_new(device, handle);
}

[[gnu::noinline, gnu::cold]] Result<Stream> Stream::try_borrow_new(const Device& device,
                                                                   NativeStream handle) noexcept {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(ErrorCode::invalid_device,
                   "a borrowed stream needs an open device, and the Device is empty. Open one with "
                   "open_device().")
        .with("spec", "");
  }
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  if (Result<void> able = state->check_can(Capability::borrowed_streams); !able) {
    return able.failure();
  }
  const Result<StreamRef> ref = state->borrow_stream(handle);
  if (!ref) return ref.failure();
  return Stream({}, *ref);
}

Stream::Stream(Stream&& other) noexcept
    : StreamRef(std::exchange(static_cast<StreamRef&>(other), StreamRef())),
      device_(std::move(other.device_)) {
  other.state_ = moved_from();
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  end();
  static_cast<StreamRef&>(*this) = std::exchange(static_cast<StreamRef&>(other), StreamRef());
  other.state_ = moved_from();
  device_ = std::move(other.device_);
  return *this;
}

Stream::~Stream() { end(); }

void Stream::end() noexcept {
  if (device_) {
    device_->end_stream(*this);
  } else if (id_) {
    DeviceState::end_loan(*this);
  }
  static_cast<StreamRef&>(*this) = StreamRef();
  device_.reset();
}

}  // namespace tern
