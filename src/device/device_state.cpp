// is_done() and wait_on_host() tell the host whether a mark is complete, and wait_on_stream() makes
// another stream wait for it. cover() finds or records the event for the mark.
//
// The streams of other code are in foreign_streams.cpp.
//
// end_stream() ends a stream that may have work in flight: it seals the stream, so that its marks
// can still be waited for. Memory relies on these marks: Pool keeps what the stream freed until its
// mark is done, and Storage::try_end_block() frees later memory on another stream. A block that is
// freed on the ended stream makes the host wait (Pool::free_slow).

#include "device/device_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <new>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/no_host_memory.hpp"
#include "core/text.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

/// All open devices by number, so that marks can find the device of another stream. Never
/// destroyed, because marks may outlive everything else.
struct OpenDevices {
  std::mutex mutex;
  std::condition_variable visit_ended;
  std::unordered_map<std::uint32_t, DeviceState*> by_number;  // guarded by mutex
  std::atomic<std::uint32_t> last_number = 0;
  std::atomic<std::uint32_t> observers = 0;  // devices whose backend is a HostOrder
};

OpenDevices& open_devices() {
  static OpenDevices& instance = *new OpenDevices;
  // The forking thread holds the lock, so the child never inherits it locked by a thread that does
  // not exist there.
  static const int registered =
      pthread_atfork([] { open_devices().mutex.lock(); }, [] { open_devices().mutex.unlock(); },
                     [] { open_devices().mutex.unlock(); });
  static_cast<void>(registered);
  return instance;
}

DeviceId next_device_id() {
  // The number must fit into the device bits of a StreamId, which allows 16 million devices.
  const std::uint32_t number = open_devices().last_number.fetch_add(1) + 1;
  if (number >> StreamId::device_bits != 0) {
    raise(Failure(ErrorCode::capacity,
                  "this process has opened {max} devices, which is the maximum. Keep devices open "
                  "instead of reopening them.")
              .with("max", (std::uint64_t{1} << StreamId::device_bits) - 1));
  }
  return DeviceId{number};
}

/// Returns the open device with the next higher number, or the empty id. A linear search is fine:
/// few devices are open at a time.
DeviceId next_open(DeviceId before) noexcept {
  const std::lock_guard lock(open_devices().mutex);
  DeviceId next;
  for (const auto& [number, device] : open_devices().by_number) {
    if (number > before.value && (next.value == 0 || number < next.value)) next = DeviceId{number};
  }
  return next;
}

}  // namespace

DeviceState::DeviceState(std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)),
      info_(backend_->info()),
      host_order_(dynamic_cast<HostOrder*>(backend_.get())),
      generation_(process_generation()),
      id_(next_device_id()) {
  backend_->opened_as(id_);
  if (host_order_ != nullptr) open_devices().observers.fetch_add(1, std::memory_order_relaxed);
  auto stream = std::make_unique<StreamState>();
  stream->device = this;
  stream->native = backend_->default_stream();
  if (host_order_ != nullptr) host_order_->note_stream(0, stream->native);
  std::copy_n("default", 8, stream->name.begin());
  stream->use.store(StreamState::one_loan | StreamState::must_seal, std::memory_order_relaxed);
  stream->id.store(StreamId(id_, 0, 0).value(), std::memory_order_release);
  slots_[0].store(stream.release(), std::memory_order_release);
  slot_count_ = next_number_ = 1;
}

DeviceState::~DeviceState() {
  // In a forked child, the threads and driver handles of the backend do not exist, and destroying
  // the backend would wait for them forever. Only Tern's own state is freed there, and the backend
  // is leaked. In the normal case, the work completes before the events that it uses are destroyed.
  const bool is_usable = bool(check_process());
  delete companion();
  if (is_usable) {
    static_cast<void>(wait_for_unknown());
    static_cast<void>(backend_->synchronize());
  }
  if (is_usable && copy_stream_.id()) backend_->destroy_stream(copy_stream_.state_->native);
  {
    std::unique_lock lock(open_devices().mutex);
    open_devices().by_number.erase(id_.value);
    if (is_usable) open_devices().visit_ended.wait(lock, [&] { return visits_ == 0; });
  }
  if (host_order_ != nullptr) open_devices().observers.fetch_sub(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < slot_count_; ++i) {
    StreamState* stream = slots_[i].load(std::memory_order_relaxed);
    while (is_usable && stream->record_count > 0) erase_record(*stream, 0);
    delete stream;
  }
  if (is_usable) {
    copy_times_.record_completed(*backend_);
    copy_times_.end(*backend_);
    for (const NativeEvent event : spare_events_) backend_->destroy_event(event);
    for (const NativeEvent event : lent_events_) backend_->destroy_event(event);
    backend_.reset();
    // The streams will never deliver these.
    while (in_flight_objects_ != nullptr)
      delete std::exchange(in_flight_objects_, in_flight_objects_->next);
  } else {
    static_cast<void>(backend_.release());
  }
}

void DeviceState::add_in_flight_object(InFlightObject& load) noexcept {
  const std::lock_guard lock(in_flight_objects_mutex_);
  load.next = in_flight_objects_;
  if (in_flight_objects_ != nullptr) in_flight_objects_->previous = &load;
  in_flight_objects_ = &load;
}

void DeviceState::note_lost(const Failure& why) noexcept {
  const std::lock_guard lock(in_flight_objects_mutex_);
  for (InFlightObject* one = in_flight_objects_; one != nullptr; one = one->next) {
    one->on_device_lost(why);
  }
}

void DeviceState::remove_in_flight_object(InFlightObject& load) noexcept {
  const std::lock_guard lock(in_flight_objects_mutex_);
  if (load.next != nullptr) load.next->previous = load.previous;
  (load.previous != nullptr ? load.previous->next : in_flight_objects_) = load.next;
}

namespace {

constinit std::atomic<void (*)(DeviceState&) noexcept> last_handle_callback = nullptr;

}  // namespace

void DeviceState::on_last_handle_of_device(void (*told)(DeviceState& device) noexcept) noexcept {
  last_handle_callback.store(told, std::memory_order_release);
}

/// The object that all handles of the program share. Its destructor runs when the last one is gone;
/// inner handles do not count.
struct DeviceState::Handles {
  explicit Handles(std::shared_ptr<DeviceState> device) noexcept : state(std::move(device)) {}
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    if (!state->is_in_its_process()) {
      // In a forked child, the companion's locks may be held by a thread that does not exist there.
      // The state is leaked if a Stream still refers to it.
      if (state->has_loans()) static_cast<void>(new std::shared_ptr<DeviceState>(state));
      return;
    }
    if (state->hand_over_to_loans(state)) return;
    Companion* left = nullptr;
    {
      const std::lock_guard lock(state->companion_mutex_);
      state->has_handles_ = false;
      left = state->companion();
    }
    if (left != nullptr) left->on_last_handle();
    if (auto* const told = last_handle_callback.load(std::memory_order_acquire)) told(*state);
  }

  const std::shared_ptr<DeviceState> state;
};

bool DeviceState::has_loans() const noexcept {
  if (!has_unknown_.load(std::memory_order_relaxed)) return false;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const StreamState* const stream = slots_[slot].load(std::memory_order_acquire);
    if (stream == nullptr) break;
    if (slot > 0 && stream->foreign_handle.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t own = slot == 0 ? StreamState::one_loan : 0;
    if ((stream->use.load(std::memory_order_acquire) & StreamState::loans_mask) > own) return true;
  }
  return false;
}

bool DeviceState::hand_over_to_loans(const std::shared_ptr<DeviceState>& state) noexcept {
  if (!has_unknown_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(streams_mutex_);
  for (std::size_t slot = 0; slot < slot_count_; ++slot) {
    StreamState& stream = *slots_[slot].load(std::memory_order_relaxed);
    if (slot > 0 && stream.foreign_handle.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t own = slot == 0 ? StreamState::one_loan : 0;
    std::uint64_t now = stream.use.load(std::memory_order_acquire);
    while ((now & StreamState::loans_mask) > own && (now & StreamState::is_handed_over) == 0) {
      if (!stream.use.compare_exchange_weak(now, now | StreamState::is_handed_over)) continue;
      ++handed_over_count_;
      break;
    }
  }
  if (handed_over_count_ == 0) return false;
  try {
    loan_handle_ = std::shared_ptr<DeviceState>(std::make_shared<Handles>(state), this);
  } catch (const std::bad_alloc&) {
    loan_handle_ = state;  // an inner handle, which keeps the device open as well
  }
  const std::lock_guard first(first_handle_mutex_);
  first_handle_ = loan_handle_;
  return true;
}

std::shared_ptr<DeviceState> DeviceState::begin_handles(std::shared_ptr<DeviceState> state) {
  DeviceState* const device = state.get();
  std::shared_ptr<DeviceState> first(std::make_shared<Handles>(std::move(state)), device);
  const std::lock_guard lock(device->first_handle_mutex_);
  device->first_handle_ = first;
  return first;
}

Device DeviceState::handle() {
  std::shared_ptr<DeviceState> another;
  {
    const std::lock_guard lock(first_handle_mutex_);
    another = first_handle_.lock();
  }
  // The result is empty if the device is closing. A DeviceScope does not prevent that.
  if (!another) another = weak_from_this().lock();
  return Device(std::move(another));
}

void DeviceState::publish() {
  const std::lock_guard lock(open_devices().mutex);
  open_devices().by_number.emplace(id_.value, this);
}

DeviceScope::DeviceScope(DeviceId id) noexcept {
  const std::lock_guard lock(open_devices().mutex);
  const auto found = open_devices().by_number.find(id.value);
  if (found == open_devices().by_number.end()) return;
  state_ = found->second;
  ++state_->visits_;
}

DeviceScope::~DeviceScope() {
  if (state_ == nullptr) return;
  const std::lock_guard lock(open_devices().mutex);
  if (--state_->visits_ == 0) open_devices().visit_ended.notify_all();
}

Result<StreamRef> DeviceState::copy_stream() noexcept {
  const std::lock_guard lock(copy_stream_mutex_);
  if (!copy_stream_.id()) {
    const Result<StreamRef> made = make_stream({.name = "copies"});
    if (!made) return made;
    copy_stream_ = *made;
  }
  return copy_stream_;
}

StreamRef DeviceState::default_stream() noexcept {
  return StreamRef(slots_[0].load(std::memory_order_relaxed), StreamId(id_, 0, 0));
}

DeviceActivity DeviceState::activity() const noexcept {
  DeviceActivity sum;
  for (const std::atomic<StreamState*>& slot : slots_) {
    const StreamState* const stream = slot.load(std::memory_order_acquire);
    if (stream == nullptr) break;  // slots are filled from the front
    sum.events += stream->counts.events.load(std::memory_order_relaxed);
    sum.stream_waits += stream->counts.stream_waits.load(std::memory_order_relaxed);
    sum.host_waits += stream->counts.host_waits.load(std::memory_order_relaxed);
    sum.launches += stream->counts.launches.load(std::memory_order_relaxed);
  }
  return sum;
}

Result<void> DeviceState::check_can(Capability capability) const noexcept {
  if (info().capabilities.has(capability)) return {};
  return Failure(ErrorCode::unsupported,
                 "device '{device}' lacks {what}: {meaning}. `tern info --all` "
                 "lists what each device can do.")
      .with("what", name(capability))
      .with("device", info().spec)
      .with("meaning", meaning(capability));
}

StreamState* DeviceState::free_slot(std::uint32_t& slot) {
  for (slot = 1; slot < slot_count_; ++slot) {
    StreamState* stream = slots_[slot].load(std::memory_order_relaxed);
    if (stream->has_ended.load(std::memory_order_acquire)) recycle_if_done(*stream);
    if (stream->id.load(std::memory_order_acquire) == 0) return stream;
  }
  if (slot_count_ == max_streams) return nullptr;
  auto* stream = new StreamState;
  stream->device = this;
  slots_[slot_count_].store(stream, std::memory_order_release);
  slot = static_cast<std::uint32_t>(slot_count_++);
  return stream;
}

Result<DeviceState::FreeSlot> DeviceState::find_slot() noexcept {
  std::uint32_t slot = 0;
  StreamState* stream = nullptr;
  try {
    stream = free_slot(slot);
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(StreamState), "a stream");
  }
  if (stream == nullptr || next_number_ >> StreamId::number_bits != 0) {
    return Failure(ErrorCode::capacity,
                   "all {max} streams of device '{device}' are in use. Destroy some of them.")
        .with("max", max_streams - 1)
        .with("device", info().spec);
  }
  return FreeSlot{stream, slot};
}

StreamRef DeviceState::begin_stream(const FreeSlot& place, NativeStream native,
                                    std::string_view name, trace::StreamOrder order,
                                    std::uint64_t flags) noexcept {
  const StreamId id(id_, place.slot, next_number_++);
  StreamState& stream = *place.stream;
  stream.native = native;
  if (host_order_ != nullptr) host_order_->note_stream(place.slot, native);
  stream.driver_id.store(0, std::memory_order_relaxed);
  stream.foreign_handle.store(0, std::memory_order_relaxed);
  stream.is_private.store(order == trace::StreamOrder::independent, std::memory_order_relaxed);
  stream.note_idle(stream.submissions.load(std::memory_order_acquire));
  stream.name = {};
  std::copy_n(name.data(), utf8_prefix_bytes(name, stream.name.size() - 1), stream.name.begin());
  stream.id.store(id.value(), std::memory_order_release);
  // A thread that has found an earlier stream here may be about to take its pin back.
  std::uint64_t before = stream.use.load(std::memory_order_relaxed);
  while (!stream.use.compare_exchange_weak(
      before, (before & StreamState::pins_mask) | flags | StreamState::one_loan | id.number())) {
  }
  if (trace::is_recording()) {
    trace::record(trace::EventKind::stream_begin, {.stream = id.value(),
                                                   .device = {id_.value, info().spec},
                                                   .text = stream.name.data(),
                                                   .detail = static_cast<std::uint8_t>(order)});
  }
  return StreamRef(&stream, id);
}

Result<StreamRef> DeviceState::make_stream(const StreamOptions& options) noexcept {
  std::unique_lock lock(streams_mutex_);
  Result<FreeSlot> place = find_slot();
  if (!place && is_full_of_kept(place.failure())) {
    lock.unlock();
    retire_idle();
    lock.lock();
    place = find_slot();
  }
  if (!place) return place.failure();
  const Result<NativeStream> native = backend_->create_stream(options);
  if (!native) return native.failure();
  return begin_stream(
      *place, *native, options.name,
      options.blocking ? trace::StreamOrder::blocking : trace::StreamOrder::independent);
}

// --- The end of a stream

void DeviceState::end_stream(StreamRef ref) noexcept {
  if (!check_process()) return;
  if (ref.id().slot() == 0) return;  // the device owns it
  end_loan_slowly(*ref.state_);
}

bool DeviceState::seal(StreamState& stream) noexcept {
  while ((stream.use.load() & StreamState::pins_mask) != 0) std::this_thread::yield();
  const std::uint64_t now = stream.use.load(std::memory_order_acquire);
  const bool keeps = (now & StreamState::is_kept) != 0;
  if (keeps && (now & StreamState::must_seal) == 0) return true;
  const std::lock_guard lock(stream.mutex);
  if (stream.has_next.exchange(false, std::memory_order_acq_rel) || keeps) {
    stream.issued.fetch_add(1, std::memory_order_acq_rel);
  }
  const std::uint64_t issued = stream.issued.load(std::memory_order_acquire);
  stream.sealed = issued;
  const std::uint64_t recorded =
      stream.record_count == 0 ? 0 : stream.records[stream.record_count - 1].sequence;
  // Seal the stream: nobody can record on it afterwards, so its last mark needs an event now. If
  // the record fails, wait for the work instead, so that the marks stay valid.
  if (issued > stream.done.load(std::memory_order_acquire) && issued > recorded) {
    // A kept stream may have the seals of earlier loans.
    if (stream.record_count > StreamState::early_records) {
      static_cast<void>(poll(stream));
      if (stream.record_count > StreamState::early_records) thin_out(stream);
    }
    // The event also covers the marks of the newest record, so a few events are enough for any
    // number of loans.
    const bool replaces = keeps && stream.record_count >= StreamState::asked_records &&
                          stream.records[stream.record_count - 1].waiters == 0;
    const Result<Covering> last = replaces
                                      ? record_now(stream, stream.record_count, WhenFull::replace)
                                      : record_now(stream, stream.records.size(), WhenFull::poll);
    if (last && !last->is_listed) give_event(last->event);  // a host thread waits for each record
    if (keeps && (!last || !last->is_listed)) return false;
    if (!last) {
      // A stream in capture has no pending work of its own, and synchronizing with it would end
      // the capture. In that case wait for the whole device, which covers its other streams.
      const Result<bool> is_captured = backend_->is_capturing(stream.native);
      const bool may_wait = !is_captured || !*is_captured;
      if (!may_wait || !backend_->synchronize(stream.native)) {
        // A failed wait proves nothing about the work. Exception: if the wait was rejected
        // because of the capture, waiting again is useless, and the captured work belongs to the
        // graph.
        const Result<void> waited = backend_->synchronize();
        stream.is_unsealed =
            !waited && (may_wait || waited.failure().code() != ErrorCode::stream_misuse);
        if (stream.is_unsealed) has_unknown_.store(true, std::memory_order_relaxed);
      }
      if (!stream.is_unsealed) stream.see_done(issued);
    }
  }
  if (keeps) return true;
  if (trace::is_recording()) {
    trace::record(
        trace::EventKind::stream_end,
        {.stream = stream.id.load(std::memory_order_relaxed), .device = {id_.value, info().spec}});
  }
  backend_->destroy_stream(stream.native);
  stream.native = {};
  stream.has_ended.store(true, std::memory_order_release);
  return true;
}

Result<void> DeviceState::end_unsealed(StreamState& stream) noexcept {
  if (!stream.is_unsealed) return {};
  if (stream.done.load(std::memory_order_acquire) < stream.sealed) {
    // The backend does not know a stream that has ended without leaving an event.
    Result<void> waited = synchronize_context();
    if (!waited) return waited;
    stream.see_done(stream.sealed);
  }
  stream.is_unsealed = false;
  return {};
}

void DeviceState::recycle_if_done(StreamState& stream) noexcept {
  const std::lock_guard lock(stream.mutex);
  if (!stream.has_ended.load(std::memory_order_relaxed)) return;
  // The thread that ends it has not left the slot yet.
  if ((stream.use.load(std::memory_order_acquire) & StreamState::is_claimed) != 0) return;
  if (stream.is_unsealed && stream.done.load(std::memory_order_acquire) < stream.sealed) return;
  stream.is_unsealed = false;
  if (const Result<void> polled = poll(stream);
      !polled && polled.failure().code() == ErrorCode::stream_misuse) {
    // The event was recorded into a graph, so its completion can never be queried. The stream has
    // ended; drop its records.
    while (stream.record_count > 0 && stream.records[0].waiters == 0) erase_record(stream, 0);
  }
  // A remaining record is pending, or a host thread is about to return from waiting for it.
  if (stream.record_count > 0) return;
  if (std::exchange(stream.has_vanished, false)) --kept_count_;
  stream.has_ended.store(false, std::memory_order_relaxed);
  stream.id.store(0, std::memory_order_release);
}

StreamRef DeviceState::find_stream(StreamId id) noexcept {
  const DeviceScope device(id.device());
  if (!device) return {};
  StreamState* const stream = device->slots_[id.slot()].load(std::memory_order_acquire);
  if (stream == nullptr || stream->id.load(std::memory_order_acquire) != id.value()) return {};
  return StreamRef(stream, id);
}

std::vector<Device> DeviceState::open_handles() {
  std::vector<Device> all;
  for (DeviceId id = next_open({}); id.value != 0; id = next_open(id)) {
    const DeviceScope scope(id);
    if (!scope) continue;
    if (Device device = scope->handle(); device.is_open()) all.push_back(std::move(device));
  }
  return all;
}

void DeviceState::note_host_order(void (HostOrder::*note)(std::uint64_t) noexcept,
                                  std::uint64_t tag) noexcept {
  if (open_devices().observers.load(std::memory_order_relaxed) == 0) return;
  for (DeviceId id = next_open({}); id.value != 0; id = next_open(id)) {
    const DeviceScope device(id);
    if (!device || !device->is_in_its_process() || device->host_order() == nullptr) continue;
    (device->host_order()->*note)(tag);
  }
}

Result<void> DeviceState::check_not_elsewhere(const Device& device, const void* address) noexcept {
  for (DeviceId id = next_open({}); id.value != 0; id = next_open(id)) {
    if (id == device.id()) continue;
    const DeviceScope other(id);
    // Host memory belongs to no particular device.
    if (!other || !other->is_in_its_process() || other->info().is_host) continue;
    const Result<PointerInfo> known = other->backend().pointer_info(address);
    if (!known || known->base == nullptr) continue;
    if (known->kind != MemoryKind::device && known->kind != MemoryKind::mapped) continue;
    return Failure(ErrorCode::device_mismatch,
                   "the memory at {address} belongs to '{b}' and not to '{a}'. Pass '{b}'.")
        .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
        .with("a", device.spec())
        .with("b", other->info().spec);
  }
  return {};
}

Result<NativeEvent> DeviceState::take_event() noexcept {
  {
    const std::lock_guard lock(events_mutex_);
    if (!spare_events_.empty()) {
      const NativeEvent event = spare_events_.back();
      spare_events_.pop_back();
      return event;
    }
  }
  return backend_->create_event(false);
}

Result<NativeEvent> DeviceState::lend_event() noexcept {
  const Result<NativeEvent> event = take_event();
  if (!event) return event;
  try {
    const std::lock_guard lock(events_mutex_);
    lent_events_.push_back(*event);
  } catch (const std::bad_alloc&) {
    give_event(*event);
    return no_host_memory("the record of an event");
  }
  return event;
}

void DeviceState::take_back(NativeEvent event) noexcept {
  {
    const std::lock_guard lock(events_mutex_);
    const auto found =
        std::ranges::find(lent_events_, event.value, [](NativeEvent one) { return one.value; });
    if (found == lent_events_.end()) return;
    *found = lent_events_.back();
    lent_events_.pop_back();
  }
  give_event(event);
}

void DeviceState::give_event(NativeEvent event) noexcept {
  {
    const std::lock_guard lock(events_mutex_);
    if (spare_events_.size() < max_spare_events) {
      try {
        spare_events_.push_back(event);
        return;
      } catch (const std::bad_alloc&) {
        // The list could not grow. The event is destroyed below, which only costs the time to
        // create another.
      }
    }
  }
  backend_->destroy_event(event);
}

StreamState* DeviceState::pending(Mark mark) noexcept {
  StreamState* stream = slots_[mark.stream.slot()].load(std::memory_order_acquire);
  if (stream == nullptr || stream->id.load(std::memory_order_acquire) != mark.stream.value()) {
    return nullptr;
  }
  return stream->done.load(std::memory_order_acquire) >= mark.sequence ? nullptr : stream;
}

void DeviceState::erase_record(StreamState& stream, std::size_t index) noexcept {
  give_event(stream.records[index].event);
  const auto first = stream.records.begin() + static_cast<std::ptrdiff_t>(index);
  const auto last = stream.records.begin() + static_cast<std::ptrdiff_t>(stream.record_count);
  std::move(first + 1, last, first);
  --stream.record_count;
}

void DeviceState::thin_out(StreamState& stream) noexcept {
  for (std::size_t i = 0; i + 1 < stream.record_count; ++i) {
    if (stream.records[i].waiters == 0) erase_record(stream, i);
  }
}

// A stream completes its records in order, so one answer covers all older records. The oldest
// record is queried first, because often nothing is complete; then the newest, because otherwise
// often everything is; then those in the middle.
Result<void> DeviceState::poll(StreamState& stream) noexcept {
  Result<void> result;
  const std::size_t count = stream.record_count;
  std::size_t complete = 0,
              open = count;  // records before `complete` are, those from `open` on not
  std::size_t at = 0;
  while (complete < open) {
    const Result<bool> is_complete = backend_->query(stream.records[at].event);
    if (is_complete && *is_complete) {
      complete = at + 1;
    } else {
      open = at;
      // A failure counts once the records before it are complete.
      if (!is_complete && at == complete) result = is_complete.failure();
    }
    at = complete == 1 && open == count ? count - 1 : complete + (open - complete) / 2;
  }
  if (complete > 0) stream.see_done(stream.records[complete - 1].sequence);
  for (std::size_t i = complete; i-- > 0;) {
    if (stream.records[i].waiters == 0) erase_record(stream, i);
  }
  return result;
}

Result<DeviceState::Covering> DeviceState::record_now(StreamState& stream, std::size_t places,
                                                      WhenFull what) noexcept {
  // Drop the records that the host has already seen done. A program that waits often then needs
  // only one event.
  const std::uint64_t done = stream.done.load(std::memory_order_acquire);
  while (stream.record_count > 0 && stream.records[0].sequence <= done &&
         stream.records[0].waiters == 0) {
    erase_record(stream, 0);
  }
  if (stream.record_count >= places && what == WhenFull::poll) {
    if (Result<void> polled = poll(stream); !polled) return polled.failure();
  }
  const Result<NativeEvent> event = take_event();
  if (!event) return event.failure();
  // Read the sequence before recording. A mark issued in between may cover work that is submitted
  // after the event.
  const std::uint64_t sequence = stream.issued.load(std::memory_order_acquire);
  if (Result<void> recorded = stream.count(
          &StreamState::Counts::events,
          backend_->record({.stream = stream.native, .stays_out_of_graphs = true}, *event));
      !recorded) {
    give_event(*event);
    return recorded.failure();
  }
  if (trace::is_recording()) [[unlikely]] {
    trace::record(trace::EventKind::event_recorded,
                  {.stream = stream.id.load(std::memory_order_relaxed),
                   .block = sequence,
                   .device = {id_.value, info().spec}});
  }
  // If more records are listed, the stream has early records, which stay.
  if (stream.record_count == places && what == WhenFull::replace &&
      stream.records[stream.record_count - 1].waiters == 0) {
    erase_record(stream, stream.record_count - 1);
  }
  if (stream.record_count >= places) return Covering{*event};
  stream.records[stream.record_count++] = {sequence, *event, 0};
  return Covering{*event, true};
}

void DeviceState::record_host_wait(const DoneWork& done, std::uint64_t begun_ns,
                                   CallSite site) noexcept {
  trace::record(trace::EventKind::host_wait, {.stream = done.stream.value(),
                                              .block = done.sequence,
                                              .address = done.event.value,
                                              .extra = trace::now_ns() - begun_ns,
                                              .site = site,
                                              .device = {id_.value, info().spec},
                                              .time_ns = begun_ns});
  copy_times_.record_completed(*backend_);
}

void DeviceState::record_done_seen(const DoneWork& done) const noexcept {
  trace::record(trace::EventKind::done_seen, {.stream = done.stream.value(),
                                              .block = done.sequence,
                                              .address = done.event.value,
                                              .device = {id_.value, info().spec}});
}

void StreamState::record_done(std::uint64_t sequence) const noexcept {
  device->record_done_seen({StreamId::from(id.load(std::memory_order_relaxed)), sequence});
}

Result<void> DeviceState::synchronize(CallSite site) noexcept {
  std::array<std::uint64_t, 64> covered;
  // Only the first 64 streams are updated here. Marks of other streams are queried when needed.
  std::size_t count = 0;
  while (count < covered.size()) {
    StreamState* stream = slots_[count].load(std::memory_order_acquire);
    if (stream == nullptr) break;
    const std::lock_guard lock(stream->mutex);
    const bool is_unknown =
        stream->has_vanished || stream->is_unsealed ||
        (stream->use.load(std::memory_order_acquire) & StreamState::is_kept) != 0;
    covered[count++] = is_unknown ? 0
                       : stream->has_ended.load(std::memory_order_relaxed)
                           ? stream->issued.load(std::memory_order_relaxed)
                           : stream->last_promised();
  }
  const std::uint64_t barrier = barriers_begun_.fetch_add(1) + 1;
  const std::uint64_t begun_ns = trace::is_recording() ? trace::now_ns() : 0;
  Result<void> waited = slots_[0]
                            .load(std::memory_order_relaxed)
                            ->count(&StreamState::Counts::host_waits, backend_->synchronize());
  if (waited) waited = wait_for_unknown();
  note_if_lost(waited);
  if (begun_ns != 0) record_host_wait({}, begun_ns, site);
  // A lost device runs nothing any more, so nothing is pending.
  if (!waited && waited.failure().code() != ErrorCode::device_lost) return waited;
  std::uint64_t passed = barriers_passed_.load(std::memory_order_relaxed);
  while (passed < barrier &&
         !barriers_passed_.compare_exchange_weak(passed, barrier, std::memory_order_release)) {
  }
  if (!waited) return waited;
  for (std::size_t i = 0; i < count; ++i) {
    slots_[i].load(std::memory_order_acquire)->see_done(covered[i]);
  }
  return waited;
}

Mark DeviceState::next_mark(StreamId id) noexcept {
  StreamState* stream = slots_[id.slot()].load(std::memory_order_acquire);
  // A slot is freed only when all its marks are done.
  if (stream == nullptr || stream->id.load(std::memory_order_acquire) != id.value()) return {};
  // An ended stream, and an idle one that promised nothing since its seal.
  if (stream->has_ended.load(std::memory_order_acquire) ||
      (stream->is_idle() && !stream->has_next.load(std::memory_order_acquire))) {
    return Mark{id, stream->issued.load(std::memory_order_acquire)};
  }
  return Mark{id, stream->promise_next()};
}

Mark DeviceState::next_mark_of_free(StreamId id) noexcept {
  StreamState* const stream = slots_[id.slot()].load(std::memory_order_acquire);
  if (stream == nullptr) return {};
  const StreamPin stay(StreamRef(stream, id), StreamPin::Idle::accepted);
  if (!stay || !stream->is_kept_by_device()) return next_mark(id);
  return Mark{id, stream->promise_next_of_free()};
}

void DeviceState::take_next(StreamState& stream, Mark mark) noexcept {
  std::uint64_t before = mark.sequence - 1;
  if (!stream.has_next.load(std::memory_order_acquire)) return;
  // If the exchange fails, another thread has issued the mark already.
  stream.issued.compare_exchange_strong(before, mark.sequence, std::memory_order_acq_rel);
}

Result<void> DeviceState::record_early(Mark mark) noexcept {
  StreamState* stream = pending(mark);
  if (stream == nullptr) return {};
  const std::lock_guard lock(stream->mutex);
  if (stream->has_ended.load(std::memory_order_acquire) || pending(mark) == nullptr) return {};
  if (stream->record_count > 0 &&
      stream->records[stream->record_count - 1].sequence >= mark.sequence) {
    return {};
  }
  if (stream->record_count >= StreamState::early_records) {
    if (Result<void> polled = poll(*stream); !polled) return polled;
    if (stream->record_count >= StreamState::early_records) thin_out(*stream);
    if (stream->record_count >= StreamState::early_records) return {};
  }
  take_next(*stream, mark);
  const StreamPin stay(StreamRef(stream, mark.stream));
  if (!stay) {
    stream->need_seal();
    return {};
  }
  const Result<Covering> recorded = record_now(*stream, StreamState::early_records, WhenFull::poll);
  return recorded ? Result<void>() : Result<void>(recorded.failure());
}

Result<DeviceState::Covering> DeviceState::cover(StreamState& stream, Mark mark,
                                                 WhenFull what) noexcept {
  take_next(stream, mark);
  if (mark.sequence > stream.issued.load(std::memory_order_acquire)) {
    return Failure(ErrorCode::stream_misuse,
                   "mark {sequence} of stream {stream} refers to work that was never submitted. "
                   "Use a mark that the stream returned.")
        .with("stream", mark.stream.number())
        .with("sequence", mark.sequence);
  }
  for (std::size_t i = 0; i < stream.record_count; ++i) {
    if (stream.records[i].sequence >= mark.sequence) return Covering{stream.records[i].event, true};
  }
  // Not reached for an ended stream: its seal covers every mark that it issued. The owner of an
  // idle stream may have destroyed it.
  const bool is_kept = (stream.use.load(std::memory_order_acquire) & StreamState::is_kept) != 0;
  const StreamPin stay(is_kept ? StreamRef(&stream, mark.stream) : StreamRef());
  if (is_kept && !stay) {
    stream.need_seal();
    return Covering{.event = {}, .is_out_of_reach = true};
  }
  return record_now(stream, StreamState::asked_records, what);
}

namespace {

/// Limits a mark to the seal of its stream. A mark that was taken while the stream ended may have a
/// higher number, but the seal covers its work. Requires the mutex of the stream.
Mark within_seal(const StreamState& stream, Mark mark) noexcept {
  if (stream.id.load(std::memory_order_acquire) == mark.stream.value() &&
      stream.has_ended.load(std::memory_order_acquire)) {
    mark.sequence = std::min(mark.sequence, stream.sealed);
  }
  return mark;
}

}  // namespace

Result<bool> DeviceState::is_done(Mark mark) noexcept {
  StreamState* stream = pending_or_rely(mark);
  if (stream == nullptr) return true;
  const std::lock_guard lock(stream->mutex);
  mark = within_seal(*stream, mark);
  // Only a wait for the whole device would tell, and this function does not wait.
  if (stream->has_vanished && stream->is_unsealed) return pending_or_rely(mark) == nullptr;
  if (Result<void> over = end_unsealed(*stream); !over) return over.failure();
  if (pending_or_rely(mark) == nullptr) return true;
  const Result<Covering> covering = cover(*stream, mark, WhenFull::poll);
  if (!covering) return covering.failure();
  if (covering->is_out_of_reach) return false;
  if (covering->is_listed) {
    if (Result<void> polled = poll(*stream); !polled) return polled.failure();
    return pending_or_rely(mark) == nullptr;
  }
  const Result<bool> is_complete = backend_->query(covering->event);
  give_event(covering->event);
  if (is_complete && *is_complete) stream->see_done(mark.sequence);
  return is_complete;
}

Result<void> DeviceState::wait_on_host(Mark mark, CallSite site) noexcept {
  StreamState* stream = pending_or_rely(mark);
  if (stream == nullptr) return {};
  const auto record_of = [stream](NativeEvent event) {
    return std::ranges::find(stream->records, event.value,
                             [](const StreamState::Record& record) { return record.event.value; });
  };

  std::unique_lock lock(stream->mutex);
  mark = within_seal(*stream, mark);
  if (Result<void> over = end_unsealed(*stream); !over) return over;
  if (pending_or_rely(mark) == nullptr) return {};
  const Result<Covering> covering = cover(*stream, mark, WhenFull::poll);
  if (!covering) return covering.failure();
  if (covering->is_listed) ++record_of(covering->event)->waiters;
  if (covering->is_out_of_reach) {
    lock.unlock();
    return stream->count(&StreamState::Counts::host_waits, settle_idle());
  }
  lock.unlock();  // other threads can use the stream while this one waits

  const std::uint64_t begun_ns = trace::is_recording() ? trace::now_ns() : 0;
  Result<void> waited =
      stream->count(&StreamState::Counts::host_waits, backend_->synchronize(covering->event));
  if (begun_ns != 0) record_host_wait({mark.stream, mark.sequence}, begun_ns, site);
  if (waited) stream->see_done(mark.sequence);

  lock.lock();
  if (covering->is_listed) {
    --record_of(covering->event)->waiters;
  } else {
    give_event(covering->event);
  }
  return waited;
}

Result<void> DeviceState::wait_on_stream(Mark mark, Backend& waiter,
                                         const Submission& submission) noexcept {
  const auto done_before = [&]() -> Result<void> {
    if (host_order_ != nullptr) [[unlikely]] {
      host_order_->note_known_done(mark.stream.slot(), waiter, submission);
    }
    return {};
  };
  StreamState* stream = pending(mark);
  if (stream == nullptr) return done_before();
  std::unique_lock lock(stream->mutex);
  mark = within_seal(*stream, mark);
  if (Result<void> over = end_unsealed(*stream); !over) return over;
  if (pending(mark) == nullptr) return done_before();
  const Result<Covering> covering = cover(*stream, mark, WhenFull::replace);
  if (!covering) return covering.failure();
  if (covering->is_out_of_reach) {
    lock.unlock();
    if (Result<void> settled = settle_idle(); !settled) return settled;
    return done_before();
  }
  Submission outside = submission;
  outside.stays_out_of_graphs = true;
  Result<void> waited =
      stream->count(&StreamState::Counts::stream_waits, waiter.wait(outside, covering->event));
  if (!covering->is_listed) give_event(covering->event);
  return waited;
}

}  // namespace tern
