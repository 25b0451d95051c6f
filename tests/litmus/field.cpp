#include "litmus/field.hpp"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tern/backends/sim.hpp"

namespace tern::test::litmus {
namespace {

std::uint32_t& word_at(std::byte* address) { return *reinterpret_cast<std::uint32_t*>(address); }
// Relaxed accesses, because in programs with races the device uses the word at the same time.
std::uint32_t load(std::byte* address) {
  return std::atomic_ref(word_at(address)).load(std::memory_order_relaxed);
}
void store(std::byte* address, std::uint32_t value) {
  std::atomic_ref(word_at(address)).store(value, std::memory_order_relaxed);
}

/// What a host function does; the run keeps it until the device is idle.
struct HostWork {
  Verb verb;
  std::byte* to;
  std::byte* from;
  std::uint32_t value;

  static void work(void* context) {
    const auto& self = *static_cast<const HostWork*>(context);
    switch (self.verb) {
      case Verb::call_move:
        return store(self.to, load(self.from));
      case Verb::call_add:
        return store(self.to, load(self.to) + self.value);
      default:
        return store(self.to, self.value);
    }
  }
};

/// Memory that the host reaches through copies only.
bool goes_through_image(Home home) { return home == Home::device || home == Home::slab; }

}  // namespace

/// What lives for one run. A run that fails half way must not leave work behind that uses it.
struct Field::Objects {
  explicit Objects(const Device& of) : device(of) {}
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects() {
    gate.open();
    static_cast<void>(device.try_synchronize());
  }

  Device device;
  std::vector<Stream> owned;
  std::vector<StreamRef> streams;
  std::vector<Event> events;
  std::vector<Mark> marks;
  std::vector<std::unique_ptr<HostWork>> work;
  Gate gate;
};

Stall stall_of_run(const Program& program, std::uint64_t run) {
  constexpr Stall::By means[] = {Stall::By::gate, Stall::By::fill, Stall::By::kernel};
  if (run == 0) return {};
  const std::uint64_t sets = (std::uint64_t{1} << program.streams.size()) - 1;
  return {means[(run - 1) / sets % std::size(means)],
          static_cast<std::uint32_t>((run - 1) % sets + 1)};
}

Field::Field(const Device& device)
    : device_(device),
      is_sim_(device.info().backend == "sim"),
      setup_(device),
      pageable_arena_(arena_bytes / sizeof(std::uint32_t)) {
  const auto allocate = [&](MemoryKind kind, std::size_t bytes) {
    return static_cast<std::byte*>(device_.allocate(kind, bytes));
  };
  device_arena_ = allocate(MemoryKind::device, arena_bytes);
  if (device_.can(Capability::pinned_memory)) {
    pinned_arena_ = allocate(MemoryKind::pinned, 2 * arena_bytes);
  } else {
    pinned_stand_in_.resize(2 * arena_bytes / sizeof(std::uint32_t));
    pinned_arena_ = reinterpret_cast<std::byte*>(pinned_stand_in_.data());
  }
  image_ = pinned_arena_ + arena_bytes;
  if (!is_sim_) stall_scratch_ = allocate(MemoryKind::device, stall_bytes * max_streams);
}

Field::~Field() {
  // What a failed run left behind is in the way of nobody but the memory below.
  static_cast<void>(device_.try_synchronize());
  kernels_.reset();
  if (is_sim_) return;  // each release would be a choice of schedules, and the device ends anyway
  if (!pinned_stand_in_.empty()) pinned_arena_ = nullptr;
  for (std::byte* address : {device_arena_, pinned_arena_, managed_arena_, stall_scratch_}) {
    static_cast<void>(device_.try_release(address));
  }
}

std::optional<std::string> Field::lacks(const Device& device, const Program& program) {
  std::vector<Capability> needed;
  if (program.uses_kernels()) needed.push_back(Capability::kernels);
  if (program.uses(Home::managed)) {
    // The host touches it while a stalled stream keeps the device busy.
    needed.insert(needed.end(), {Capability::managed_memory, Capability::concurrent_managed});
  }
  if (program.has(Verb::prefetch)) needed.push_back(Capability::prefetch);
  for (const Step& step : program.steps) {
    if (step.verb == Verb::call_store || step.verb == Verb::call_move ||
        step.verb == Verb::call_add) {
      needed.push_back(Capability::host_functions);
    }
    if (step.stream && (step.verb == Verb::allocate || step.verb == Verb::release)) {
      needed.push_back(Capability::stream_ordered_memory);
    }
  }
  for (const Capability capability : needed) {
    if (!device.can(capability)) return std::string(name(capability));
  }
  return std::nullopt;
}

Kernels& Field::kernels() {
  if (!kernels_) kernels_.emplace(device_, setup_, stall_scratch_);
  return *kernels_;
}

std::byte* Field::at(const Words& words) const {
  return addresses_[words.location] + words.first * sizeof(std::uint32_t);
}

void Field::announce(const Program& program, const Words& words, bool writes) const {
  if (!is_sim_ || program.locations[words.location].home == Home::local) return;
  if (writes) {
    sim::host_write(device_, at(words), words.count * sizeof(std::uint32_t));
  } else {
    sim::host_read(device_, at(words), words.count * sizeof(std::uint32_t));
  }
}

void Field::place(const Program& program) {
  locals_.assign(program.locations.size() * slot_bytes / sizeof(std::uint32_t), 0);
  addresses_.assign(program.locations.size(), nullptr);
  is_host_released_.assign(program.locations.size(), false);
  if (program.locations.size() > slots) throw std::runtime_error("a program has 32 locations");
  if (program.uses(Home::managed) && managed_arena_ == nullptr) {
    managed_arena_ = static_cast<std::byte*>(device_.allocate(MemoryKind::managed, arena_bytes));
  }
  for (std::size_t i = 0; i < program.locations.size(); ++i) {
    const std::size_t offset = i * slot_bytes;
    switch (program.locations[i].home) {
      case Home::device:
        addresses_[i] = device_arena_ + offset;
        break;
      case Home::pinned:
        addresses_[i] = pinned_arena_ + offset;
        break;
      case Home::pageable:
        addresses_[i] = reinterpret_cast<std::byte*>(pageable_arena_.data()) + offset;
        break;
      case Home::managed:
        addresses_[i] = managed_arena_ + offset;
        break;
      case Home::local:
        addresses_[i] = reinterpret_cast<std::byte*>(locals_.data()) + offset;
        break;
      case Home::slab:
        addresses_[i] = static_cast<std::byte*>(device_.allocate(MemoryKind::device, slot_bytes));
        is_host_released_[i] = true;
        break;
      case Home::block:
        break;
    }
  }
}

void Field::set_first_values(const Program& program) {
  std::memset(image_, 0, arena_bytes);
  for (std::size_t i = 0; i < program.locations.size(); ++i) {
    const Location& location = program.locations[i];
    std::byte* target = goes_through_image(location.home) ? image_ + i * slot_bytes : addresses_[i];
    if (target == nullptr) continue;
    for (std::size_t word = 0; word < location.words; ++word) {
      word_at(target + word * sizeof(std::uint32_t)) = location.initial;
    }
    if (target == addresses_[i]) announce(program, {i, 0, location.words}, true);
  }
  if (is_sim_) sim::host_write(device_, image_, arena_bytes);
  setup_.copy(device_arena_, image_, arena_bytes);
  for (std::size_t i = 0; i < program.locations.size(); ++i) {
    if (program.locations[i].home != Home::slab) continue;
    setup_.copy(addresses_[i], image_ + i * slot_bytes, slot_bytes);
  }
  setup_.synchronize();
}

Stall::By Field::means_of(const Stall& stall) const {
  const bool can = stall.by == Stall::By::gate     ? device_.can(Capability::host_functions)
                   : stall.by == Stall::By::kernel ? device_.can(Capability::kernels)
                                                   : true;
  return can ? stall.by : Stall::By::fill;
}

void Field::hold_back(const Program& program, const Stall& stall, Objects& objects) {
  for (std::size_t i = 0; i < program.streams.size(); ++i) {
    if (((stall.streams >> i) & 1u) == 0) continue;
    std::byte* scratch = stall_scratch_ + i * stall_bytes;
    switch (means_of(stall)) {
      case Stall::By::nothing:
        break;
      case Stall::By::gate:
        objects.gate.hold(objects.streams[i]);
        break;
      case Stall::By::fill:
        objects.streams[i].fill(reinterpret_cast<std::uint32_t*>(scratch),
                                stall_bytes / sizeof(std::uint32_t), 1u);
        break;
      case Stall::By::kernel:
        kernels().keep_busy(objects.streams[i], scratch, 20'000);
        break;
    }
  }
}

/// A bounded number of looks, since what they wait for may be held itself.
void Field::let_others_go_ahead(const Program& program, const Stall& stall, Objects& objects) {
  for (int look = 0; look < 100; ++look) {
    bool is_idle = true;
    for (std::size_t i = 0; i < program.streams.size(); ++i) {
      const bool is_held = ((stall.streams >> i) & 1u) != 0;
      if (is_held || !objects.streams[i].is_usable()) continue;
      is_idle = is_idle && objects.streams[i].is_idle();
    }
    if (is_idle) return;
    std::this_thread::yield();
  }
}

void Field::execute(const Program& program, const Step& step, Objects& objects) {
  const StreamRef stream = step.stream ? objects.streams[*step.stream] : StreamRef{};
  const std::size_t bytes = step.to.count * sizeof(std::uint32_t);
  switch (step.verb) {
    case Verb::fill: {
      Pattern pattern{.width_bytes = step.width_bytes};
      if (step.width_bytes == sizeof step.value) {
        std::memcpy(pattern.bytes, &step.value, sizeof step.value);
      } else {
        std::memset(pattern.bytes, static_cast<int>(step.value), step.width_bytes);
      }
      const std::size_t filled = bytes / step.width_bytes * step.width_bytes;
      return stream.try_fill_bytes(at(step.to), filled, pattern).value();
    }
    case Verb::copy:
      return stream.copy(at(step.to), at(step.from), bytes);
    case Verb::copy_2d:
      return stream.copy_2d({.destination = at(step.to),
                             .destination_pitch_bytes = step.to_pitch * sizeof(std::uint32_t),
                             .source = at(step.from),
                             .source_pitch_bytes = step.from_pitch * sizeof(std::uint32_t),
                             .width_bytes = step.row_words * sizeof(std::uint32_t),
                             .height = step.rows});
    case Verb::kernel_store:
      return kernels().store(stream, at(step.to), step.value);
    case Verb::kernel_move:
      return kernels().move(stream, at(step.to), at(step.from));
    case Verb::kernel_add:
      return kernels().add(stream, at(step.to), step.value);
    case Verb::call_store:
    case Verb::call_move:
    case Verb::call_add:
      objects.work.push_back(std::make_unique<HostWork>(
          HostWork{step.verb, at(step.to), step.verb == Verb::call_move ? at(step.from) : nullptr,
                   step.value}));
      return stream.call(HostWork::work, objects.work.back().get());
    case Verb::record:
      return stream.record(objects.events[step.event]);
    case Verb::wait:
      if (step.waits_for_mark) return stream.wait(objects.marks[step.mark]);
      return stream.wait(objects.events[step.event]);
    case Verb::mark:
      objects.marks[step.mark] = stream.mark();
      return;
    case Verb::next_mark:
      objects.marks[step.mark] = stream.next_mark();
      return;
    case Verb::allocate:
      addresses_[step.to.location] = static_cast<std::byte*>(
          step.stream ? stream.allocate(bytes) : device_.allocate(MemoryKind::device, bytes));
      is_host_released_[step.to.location] = !step.stream;
      return;
    case Verb::release:
      is_host_released_[step.to.location] = false;
      if (step.stream) return stream.release(at(step.to));
      return device_.release(at(step.to));
    case Verb::give:
      return stream.note_suballocate({at(step.to), bytes, ++generation_});
    case Verb::take:
      return stream.note_subrelease({at(step.to), bytes, generation_});
    case Verb::prefetch:
      return stream
          .try_prefetch(at(step.to), bytes, step.value == 1 ? Place::host() : device_.place())
          .value();
    case Verb::host_store:
    case Verb::host_move: {
      if (step.guard && load(addresses_[*step.guard]) == 0) return;
      std::uint32_t value = step.value;
      if (step.verb == Verb::host_move) {
        announce(program, step.from, false);
        value = load(at(step.from));
      }
      announce(program, step.to, true);
      return store(at(step.to), value);
    }
    case Verb::sync_stream:
      return stream.synchronize();
    case Verb::sync_event:
      return objects.events[step.event].synchronize();
    case Verb::sync_mark:
      return Device::wait(objects.marks[step.mark]);
    case Verb::sync_all:
      return device_.synchronize();
    case Verb::query_stream:
      return store(at(step.to), stream.is_idle() ? 1 : 0);
    case Verb::query_event:
      return store(at(step.to), objects.events[step.event].is_done() ? 1 : 0);
    case Verb::query_mark:
      return store(at(step.to), Device::is_done(objects.marks[step.mark]) ? 1 : 0);
    case Verb::destroy_stream:
      objects.owned[*step.stream] = Stream();
      return;
    case Verb::destroy_event:
      objects.events[step.event] = Event();
      return;
  }
}

Outcome Field::read(const Program& program) {
  setup_.copy(image_, device_arena_, arena_bytes);
  setup_.synchronize();
  Outcome outcome;
  for (const Words& seen : program.seen) {
    std::byte* first = at(seen);
    if (program.locations[seen.location].home == Home::device) {
      first = image_ + (first - device_arena_);
    }
    for (std::size_t i = 0; i < seen.count; ++i) {
      outcome.push_back(load(first + i * sizeof(std::uint32_t)));
    }
  }
  return outcome;
}

void Field::give_back(const Program& program) {
  for (std::size_t i = 0; i < program.locations.size(); ++i) {
    if (is_host_released_[i]) device_.release(addresses_[i]);
  }
}

Outcome Field::run(const Program& program, const Stall& stall) {
  place(program);
  set_first_values(program);
  if (program.uses_kernels() || means_of(stall) == Stall::By::kernel) static_cast<void>(kernels());
  Objects objects(device_);
  for (const StreamName& name : program.streams) {
    objects.owned.push_back(
        name.is_default ? Stream()
                        : Stream(device_, {.blocking = name.is_blocking, .name = name.name}));
    objects.streams.push_back(name.is_default ? device_.default_stream()
                                              : StreamRef(objects.owned.back()));
  }
  for (std::size_t i = 0; i < program.events.size(); ++i) objects.events.emplace_back(device_);
  objects.marks.resize(program.marks.size());
  hold_back(program, stall, objects);
  for (const Step& step : program.steps) {
    if (may_block(program, step)) objects.gate.open();
    execute(program, step, objects);
  }
  if (means_of(stall) == Stall::By::gate) let_others_go_ahead(program, stall, objects);
  objects.gate.open();
  device_.synchronize();
  Outcome outcome = read(program);
  give_back(program);
  return outcome;
}

}  // namespace tern::test::litmus
