#include "backends/sim/sim_backend.hpp"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "backends/handle_table.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

constexpr std::size_t page_bytes = 2 * mib;

struct SimKernel {
  std::string name;
  KernelBody body = nullptr;
  void* context = nullptr;
};

DeviceInfo describe(const World& world, std::string spec, std::size_t memory_bytes) {
  DeviceInfo info;
  info.backend = "sim";
  info.spec = std::move(spec);
  info.name = world.profile().name;
  info.driver = "Tern";
  info.capabilities = {
      Capability::pinned_memory,  Capability::managed_memory, Capability::prefetch,
      Capability::virtual_memory, Capability::host_functions, Capability::stream_ordered_memory,
      Capability::event_timing,   Capability::kernels,        Capability::peer_copies};
  if (world.options().concurrent_managed) {
    info.capabilities = info.capabilities.with(Capability::concurrent_managed);
  }
  info.total_bytes = memory_bytes;
  info.alignment = 256;
  info.max_alignment = 256 * mib;
  info.page_bytes = page_bytes;
  info.processors = world.profile().processors;
  return info;
}

std::size_t index_of(NativeStream stream) noexcept { return stream.value - 1; }
SimEvent& event_of(NativeEvent event) noexcept { return *reinterpret_cast<SimEvent*>(event.value); }

Failure not_live(const void* address) noexcept {
  return Failure(
             ErrorCode::use_after_free,
             "address {address} is not that of a live allocation of the simulated device. It was "
             "freed before, or belongs to somebody else; free each block once, by the address it "
             "was given at.")
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
}

Failure bad_range(const char* why, const void* address, std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument, "the page range of {bytes} at {value} is {why}.")
      .with("name", "address")
      .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with_bytes("bytes", bytes)
      .with("why", why);
}

class SimBackend final : public Backend {
 public:
  SimBackend(std::shared_ptr<World> world, std::uint32_t index, std::string spec)
      : world_(std::move(world)),
        index_(index),
        info_(describe(*world_, std::move(spec), world_->device(index).memory->bytes())) {}

  [[nodiscard]] World& world() noexcept { return *world_; }

  const DeviceInfo& info() const noexcept override { return info_; }

  Result<MemoryInfo> memory() noexcept override {
    const auto lock = world_->enter();
    return MemoryInfo{device().allocator->free_bytes(), device().allocator->total_bytes()};
  }

  Result<void> synchronize() noexcept override {
    const auto lock = world_->enter();
    if (device().loss) return *device().loss;
    return world_->wait_for_all(index_);
  }

  // --- Memory
  // -------------------------------------------------------------------------------------

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite site,
                         Tag tag) noexcept override {
    const auto lock = world_->enter();
    const bool is_host = kind != MemoryKind::device;
    const FaultClass fault_class =
        kind == MemoryKind::pinned ? FaultClass::pin : FaultClass::allocate;
    if (Result<void> begun = world_->begin(index_, fault_class, "allocate", bytes); !begun) {
      return begun.failure();
    }
    const std::uint64_t generation = world_->next_generation();
    Result<void*> address = is_host ? world_->host().allocate(bytes, alignment, kind, generation)
                                    : take(bytes, alignment, generation);
    if (!address) return address;
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::allocate, *address, bytes);
    const Result<void> judged = world_->judge({.kind = RecordKind::host_access,
                                               .operation = OperationKind::allocate,
                                               .touches = touches,
                                               .site = site,
                                               .tag = tag});
    if (!judged) {
      is_host ? world_->host().release(*address) : give(*address);
      return judged.failure();
    }
    if (!is_host) mark_fresh(*address, bytes, generation);
    world_->run_until_host();
    return address;
  }

  Result<void> release(void* address, CallSite site) noexcept override {
    const auto lock = world_->enter();
    if (!device().loss) {
      if (Result<void> begun = world_->begin(index_, FaultClass::release, "release"); !begun) {
        return begun;
      }
    }
    void* base = nullptr;
    const HostSpace::Block* host = world_->host().find(address, &base);
    const SimBlock* block = host == nullptr ? find(address) : nullptr;
    const bool is_live = (host != nullptr && base == address) || block != nullptr;
    const std::size_t bytes = host != nullptr ? host->bytes : block != nullptr ? block->bytes : 0;
    if (!is_live) return not_live(address);
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::release, address, bytes);
    if (Result<void> judged = world_->judge({.kind = RecordKind::host_access,
                                             .operation = OperationKind::release,
                                             .touches = touches,
                                             .site = site});
        !judged && !device().loss) {
      return judged;
    }
    if (host != nullptr) {
      world_->host().release(address);
    } else {
      mark_freed(address, bytes, block->generation);
      give(address);
    }
    return {};
  }

  Result<PointerInfo> pointer_info(const void* address) noexcept override {
    const auto lock = world_->enter();
    void* base = nullptr;
    if (const HostSpace::Block* host = world_->host().find(address, &base)) {
      return PointerInfo{host->kind, base, host->bytes};
    }
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    if (!offset) return PointerInfo{};
    const auto holds = [&](const auto& map, auto bytes_of) -> std::optional<PointerInfo> {
      auto next = map.upper_bound(*offset);
      if (next == map.begin()) return std::nullopt;
      --next;
      const std::size_t bytes = bytes_of(next->second);
      if (*offset - next->first >= bytes) return std::nullopt;
      return PointerInfo{MemoryKind::device, device().memory->address_of(next->first), bytes};
    };
    if (auto info = holds(device().blocks, [](const SimBlock& b) { return b.bytes; })) return *info;
    if (auto info = holds(device().mappings, [](const auto& m) { return m.first; })) {
      info->kind = MemoryKind::mapped;
      return *info;
    }
    return PointerInfo{};
  }

  Result<void*> allocate_async(const Submission& submission, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::allocate, "allocate_async", bytes);
        !begun) {
      return begun.failure();
    }
    const std::uint64_t generation = world_->next_generation();
    Result<void*> address = take_again(index_of(submission.stream), bytes, alignment, generation);
    if (!address) address = take(bytes, alignment, generation);
    if (!address) return address;
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::allocate, *address, bytes);
    if (Result<void> judged = judge(submission, OperationKind::allocate, touches); !judged) {
      give(*address);
      return judged.failure();
    }
    Operation operation;
    operation.kind = Operation::Kind::birth;
    operation.destination = *address;
    operation.bytes = bytes;
    operation.generation = generation;
    world_->submit(index_of(submission.stream), std::move(operation));
    return address;
  }

  Result<void> release_async(const Submission& submission, void* address) noexcept override {
    const auto lock = world_->enter();
    const SimBlock* block = find(address);
    if (block == nullptr) return not_live(address);
    if (device().loss) {
      give(address);
      return {};
    }
    if (Result<void> begun = world_->begin(index_, FaultClass::release, "release_async"); !begun) {
      return begun;
    }
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::release, address, block->bytes);
    if (Result<void> judged = judge(submission, OperationKind::release, touches); !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::death;
    operation.destination = address;
    operation.bytes = block->bytes;
    operation.generation = block->generation;
    // The driver hands the range out again only to work that comes behind this: at once to the same
    // stream, to others when it has been passed.
    const std::uint64_t offset = *device().memory->offset_of(address);
    device().pending.push_back(
        {index_of(submission.stream), offset, block->bytes, block->generation});
    device().blocks.erase(offset);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Virtual memory
  // -----------------------------------------------------------------------------

  Result<void*> reserve(std::size_t bytes) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::map, "reserve", bytes); !begun) {
      return begun.failure();
    }
    const std::optional<std::uint64_t> offset = device().window->take(bytes, page_bytes);
    if (!offset) return out_of_memory(bytes, *device().window);
    const std::uint64_t at = device().memory->bytes() + *offset;
    device().reservations.emplace(at, bytes);
    return device().memory->address_of(at);
  }

  Result<void> unreserve(void* address, std::size_t bytes) noexcept override {
    const auto lock = world_->enter();
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    const auto found = offset ? device().reservations.find(*offset) : device().reservations.end();
    if (found == device().reservations.end() || found->second != bytes) {
      return bad_range("no reservation. Give back exactly what was reserved", address, bytes);
    }
    if (has_mapping(*offset, bytes)) {
      return bad_range("still mapped in places. Unmap all of it first", address, bytes);
    }
    device().window->give(*offset - device().memory->bytes(), bytes);
    device().reservations.erase(found);
    return {};
  }

  Result<NativePages> create_pages(std::size_t bytes) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::allocate, "create_pages", bytes);
        !begun) {
      return begun.failure();
    }
    const std::optional<std::uint64_t> offset = device().allocator->take(bytes, page_bytes);
    if (!offset) return out_of_memory(bytes, *device().allocator);
    const std::uint64_t generation = world_->next_generation();
    device().memory->set_fresh(*offset, bytes, generation);
    device().pages.emplace(generation, SimPages{*offset, bytes, 0, false, false});
    return NativePages{generation};
  }

  Result<void> release_pages(NativePages pages) noexcept override {
    const auto lock = world_->enter();
    const auto found = device().pages.find(pages.value);
    if (found == device().pages.end() || found->second.is_released) return unknown(pages);
    found->second.is_released = true;
    drop_if_unused(found);
    return {};
  }

  Result<void> map(void* address, NativePages pages) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::map, "map"); !begun) return begun;
    const auto found = device().pages.find(pages.value);
    if (found == device().pages.end() || found->second.is_released) return unknown(pages);
    SimPages& handle = found->second;
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    if (!offset || !is_reserved(*offset, handle.bytes)) {
      return bad_range("not inside one reservation. Reserve addresses first", address,
                       handle.bytes);
    }
    if (has_mapping(*offset, handle.bytes)) {
      return bad_range("mapped already in places. Unmap what is there first", address,
                       handle.bytes);
    }
    if (Result<void> mapped = device().memory->map(*offset, handle.offset, handle.bytes); !mapped) {
      return mapped;
    }
    device().mappings.emplace(*offset, std::pair(handle.bytes, found->first));
    ++handle.mappings;
    // To the checker a mapping is born at its address. Pages that come from elsewhere bring their
    // contents along.
    note_host(TouchKind::allocate, OperationKind::allocate, address, handle.bytes);
    if (std::exchange(handle.was_mapped, true)) {
      note_host(TouchKind::write, OperationKind::copy, address, handle.bytes);
    }
    return {};
  }

  Result<void> unmap(void* address, std::size_t bytes) noexcept override {
    const auto lock = world_->enter();
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    const auto found = offset ? device().mappings.find(*offset) : device().mappings.end();
    if (found == device().mappings.end() || found->second.first != bytes) {
      return bad_range("no whole mapping. Unmap exactly what was mapped", address, bytes);
    }
    if (!device().loss) {
      if (Result<void> begun = world_->begin(index_, FaultClass::map, "unmap"); !begun) {
        return begun;
      }
    }
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::release, address, bytes);
    if (Result<void> judged = world_->judge({.kind = RecordKind::host_access,
                                             .operation = OperationKind::release,
                                             .touches = touches});
        !judged) {
      return judged;
    }
    if (Result<void> unmapped = device().memory->unmap(*offset, bytes); !unmapped) return unmapped;
    const auto pages = device().pages.find(found->second.second);
    device().mappings.erase(found);
    --pages->second.mappings;
    drop_if_unused(pages);
    return {};
  }

  Result<void> set_access(void* address, std::size_t bytes, PageAccess) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::map, "set_access"); !begun) {
      return begun;
    }
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    std::uint64_t covered = offset.value_or(0);
    if (offset) {
      for (auto it = device().mappings.find(*offset);
           it != device().mappings.end() && it->first == covered && covered - *offset < bytes;
           ++it) {
        covered += it->second.first;
      }
    }
    if (!offset || covered - *offset != bytes) {
      return bad_range("not covered by whole mappings. Map it first", address, bytes);
    }
    return {};
  }

  // --- Copies and fills
  // ---------------------------------------------------------------------------

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    const auto lock = world_->enter();
    return queue_copy(submission, destination, source, bytes);
  }

  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::copy, "copy_2d"); !begun) {
      return begun;
    }
    std::vector<Touch>& touches = world_->scratch();
    for (std::size_t row = 0; row < copy.height; ++row) {
      world_->add_touch(touches, TouchKind::read,
                        static_cast<const std::byte*>(copy.source) + row * copy.source_pitch_bytes,
                        copy.width_bytes, true);
      world_->add_touch(
          touches, TouchKind::write,
          static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch_bytes,
          copy.width_bytes);
    }
    if (Result<void> judged = judge(submission, OperationKind::kernel, touches, "copy_2d");
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::copy_2d;
    operation.copy_2d = copy;
    operation.bytes = copy.width_bytes * copy.height;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::fill, "fill"); !begun) return begun;
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::write, destination, bytes);
    if (Result<void> judged = judge(submission, OperationKind::fill, touches); !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::fill;
    operation.destination = destination;
    operation.bytes = bytes;
    operation.pattern = pattern;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> copy_from_peer(const Submission& submission, void* destination, Backend& peer,
                              const void* source, std::size_t bytes) noexcept override {
    if (world_of(peer) != world_.get()) {
      return Failure(ErrorCode::device_mismatch,
                     "'{a}' and '{b}' are simulated apart, and not peers. Open both from the "
                     "catalog, or with open_peers().")
          .with("a", info_.spec)
          .with("b", peer.info().spec);
    }
    const auto lock = world_->enter();
    return queue_copy(submission, destination, source, bytes);
  }

  Result<bool> enable_peer_access(Backend& peer) noexcept override {
    return world_of(peer) == world_.get();
  }

  // --- Streams and events
  // -------------------------------------------------------------------------

  NativeStream default_stream() noexcept override { return {device().default_stream + 1}; }

  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::stream, "create_stream"); !begun) {
      return begun.failure();
    }
    const ActorKind kind = options.blocking ? ActorKind::blocking_stream : ActorKind::stream;
    return NativeStream{world_->add_stream(index_, kind, options.name) + 1};
  }

  void destroy_stream(NativeStream stream) noexcept override {
    const auto lock = world_->enter();
    SimStream& ended = world_->stream(index_of(stream));
    ended.is_open = false;
    world_->judge_later({.kind = RecordKind::actor_ends, .actor = ended.actor});
  }

  Result<bool> query(NativeStream stream) noexcept override {
    const auto lock = world_->enter();
    SimStream& asked = world_->stream(index_of(stream));
    return answer(index_of(stream), asked.submitted, world_->checker().sequence(asked.actor));
  }

  Result<void> synchronize(NativeStream stream) noexcept override {
    const auto lock = world_->enter();
    if (device().loss) return *device().loss;
    SimStream& awaited = world_->stream(index_of(stream));
    if (Result<void> waited = world_->wait_for(index_of(stream), awaited.submitted, "synchronize");
        !waited) {
      return waited;
    }
    world_->judge_later({.kind = RecordKind::host_wait_mark,
                         .actor = awaited.actor,
                         .sequence = world_->checker().sequence(awaited.actor)});
    return {};
  }

  Result<NativeEvent> create_event(const EventOptions&) noexcept override {
    const auto lock = world_->enter();
    auto* event = new (std::nothrow) SimEvent;
    if (event == nullptr) return Failure(ErrorCode::out_of_memory);
    event->number = world_->next_event_number();
    return NativeEvent{reinterpret_cast<std::uintptr_t>(event)};
  }

  void destroy_event(NativeEvent native) noexcept override {
    const auto lock = world_->enter();
    SimEvent* event = &event_of(native);
    world_->judge_later({.kind = RecordKind::event_ends, .event = event->number});
    delete event;
  }

  Result<void> record(const Submission& submission, NativeEvent native) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::record, "record"); !begun) {
      return begun;
    }
    SimEvent& event = event_of(native);
    const std::size_t index = index_of(submission.stream);
    SimStream& stream = world_->stream(index);
    if (Result<void> judged = world_->judge({.kind = RecordKind::record_event,
                                             .actor = stream.actor,
                                             .event = event.number,
                                             .site = submission.site});
        !judged) {
      return judged;
    }
    auto point = std::make_shared<RecordPoint>(RecordPoint{index, 0, 0});
    event.record = point;
    Operation operation;
    operation.kind = Operation::Kind::record;
    operation.point = std::move(point);
    world_->submit(index, std::move(operation));
    return {};
  }

  Result<void> wait(const Submission& submission, NativeEvent native) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::wait, "wait"); !begun) return begun;
    const std::uint64_t number = native.value == 0 ? 0 : event_of(native).number;
    if (Result<void> judged =
            world_->judge({.kind = RecordKind::wait_event,
                           .actor = world_->stream(index_of(submission.stream)).actor,
                           .event = number,
                           .site = submission.site});
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::wait;
    if (native.value != 0) operation.point = event_of(native).record;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<bool> query(NativeEvent native) noexcept override {
    const auto lock = world_->enter();
    SimEvent& event = event_of(native);
    if (!event.record) return true;
    const Result<bool> is_done = answer(event.record->stream, event.record->position, 0);
    if (is_done && *is_done) learn(event);
    return is_done;
  }

  Result<void> synchronize(NativeEvent native) noexcept override {
    const auto lock = world_->enter();
    if (device().loss) return *device().loss;
    SimEvent& event = event_of(native);
    if (!event.record) return {};
    if (Result<void> waited =
            world_->wait_for(event.record->stream, event.record->position, "synchronize");
        !waited) {
      return waited;
    }
    learn(event);
    return {};
  }

  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    const auto lock = world_->enter();
    const std::uint64_t first = event_of(start).record->time_ns;
    const std::uint64_t last = event_of(end).record->time_ns;
    return last - std::min(first, last);
  }

  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::launch, "call_host"); !begun) {
      return begun;
    }
    std::vector<Touch>& touches = world_->scratch();
    if (Result<void> judged = judge(submission, OperationKind::call, touches); !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::call;
    operation.function = function;
    operation.context = context;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Managed memory
  // -----------------------------------------------------------------------------

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    const auto lock = world_->enter();
    if (destination.kind() == Place::Kind::file) {
      return Failure(ErrorCode::invalid_device,
                     "managed memory cannot be prefetched to a file. Name the host or a device.")
          .with("spec", "file");
    }
    if (!is_managed(address, bytes)) return not_managed(address, bytes);
    if (Result<void> begun = world_->begin(index_, FaultClass::copy, "prefetch"); !begun) {
      return begun;
    }
    Operation operation;
    operation.kind = Operation::Kind::prefetch;
    std::vector<Touch>& touches = world_->scratch();
    if (Result<void> judged = judge(submission, OperationKind::prefetch, touches); !judged) {
      return judged;
    }
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Kernels
  // ------------------------------------------------------------------------------------

  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    try {
      const NativeKernel kernel{
          kernels_.add({std::string(source.entry), source.body, source.context})};
      if (kernel.value != 0) return kernel;
    } catch (const std::bad_alloc&) {
      // Said below, with the other case.
    }
    return Failure(ErrorCode::out_of_memory,
                   "the host could not allocate memory for a kernel. Free host memory.");
  }
  void unload_kernel(NativeKernel kernel) noexcept override { kernels_.remove(kernel.value); }

  Result<void> launch(const Submission& submission, NativeKernel native, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    const auto lock = world_->enter();
    if (Result<void> begun = world_->begin(index_, FaultClass::launch, "launch"); !begun) {
      return begun;
    }
    const std::shared_ptr<const SimKernel> kernel = kernels_.find(native.value);
    if (!kernel) {
      return Failure(ErrorCode::use_after_free,
                     "the kernel was unloaded before, or never loaded here. Keep it until its last "
                     "launch.");
    }
    std::vector<Touch>& touches = world_->scratch();
    for (const KernelArgument& argument : arguments) add_argument(touches, argument);
    if (Result<void> judged = judge(submission, OperationKind::kernel, touches, kernel->name);
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::launch;
    operation.launch = std::make_unique<KernelLaunch>(kernel->body, kernel->context, kernel->name,
                                                      size, arguments);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Facts from pools
  // ---------------------------------------------------------------------------

  void note_suballocate(const Submission& submission,
                        const Suballocation& block) noexcept override {
    note(submission, block, TouchKind::suballocate, OperationKind::allocate);
  }
  void note_subrelease(const Submission& submission, const Suballocation& block) noexcept override {
    note(submission, block, TouchKind::subrelease, OperationKind::release);
  }

 private:
  SimDevice& device() noexcept { return world_->device(index_); }

  Result<void> judge(const Submission& submission, OperationKind operation,
                     const std::vector<Touch>& touches, std::string_view name = {}) {
    return world_->judge({.operation = operation,
                          .actor = world_->stream(index_of(submission.stream)).actor,
                          .name = name,
                          .touches = touches,
                          .site = submission.site,
                          .tag = submission.tag});
  }

  Result<void> queue_copy(const Submission& submission, void* destination, const void* source,
                          std::size_t bytes) {
    if (Result<void> begun = world_->begin(index_, FaultClass::copy, "copy", bytes); !begun) {
      return begun;
    }
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::read, source, bytes);
    world_->add_touch(touches, TouchKind::write, destination, bytes);
    if (Result<void> judged = judge(submission, OperationKind::copy, touches); !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::copy;
    operation.destination = destination;
    operation.source = source;
    operation.bytes = bytes;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  void note_host(TouchKind kind, OperationKind operation, const void* address, std::size_t bytes) {
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, kind, address, bytes);
    world_->judge_later(
        {.kind = RecordKind::host_access, .operation = operation, .touches = touches});
  }

  void note(const Submission& submission, const Suballocation& block, TouchKind kind,
            OperationKind operation) noexcept {
    const auto lock = world_->enter();
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, kind, block.address, block.bytes, false, block.generation);
    world_->judge_later({.operation = operation,
                         .actor = world_->stream(index_of(submission.stream)).actor,
                         .touches = touches,
                         .site = submission.site,
                         .tag = submission.tag});
  }

  Result<bool> answer(std::size_t stream, std::uint64_t position, std::uint64_t sequence) {
    if (device().loss) return *device().loss;
    if (const auto fault = world_->faults().next(FaultClass::query);
        fault && *fault == FaultKind::not_ready) {
      return false;
    }
    const bool is_done = world_->answer_query(stream, position);
    if (device().loss) return *device().loss;
    if (is_done && sequence > 0) {
      world_->judge_later({.kind = RecordKind::host_wait_mark,
                           .actor = world_->stream(stream).actor,
                           .sequence = sequence});
    }
    return is_done;
  }

  void learn(const SimEvent& event) {
    world_->judge_later({.kind = RecordKind::host_wait_event, .event = event.number});
  }

  // --- Blocks
  // -------------------------------------------------------------------------------------

  [[nodiscard]] Failure out_of_memory(std::size_t bytes, const RangeAllocator& allocator) const {
    return Failure(ErrorCode::out_of_memory,
                   "{device} could not allocate {requested}: {free} of {total} are free. Free "
                   "something, or ask for less.")
        .with("device", info_.spec)
        .with_bytes("requested", bytes)
        .with_bytes("free", allocator.free_bytes())
        .with_bytes("total", allocator.total_bytes());
  }

  Result<void*> take(std::size_t bytes, std::size_t alignment, std::uint64_t generation) {
    const std::optional<std::uint64_t> offset = device().allocator->take(bytes, alignment);
    if (!offset) return out_of_memory(bytes, *device().allocator);
    device().blocks.emplace(*offset, SimBlock{*offset, bytes, MemoryKind::device, generation});
    return device().memory->address_of(*offset);
  }

  /// A range this stream released and has not passed yet: the earliest reuse there can be.
  Result<void*> take_again(std::size_t stream, std::size_t bytes, std::size_t alignment,
                           std::uint64_t generation) {
    std::vector<PendingRelease>& pending = device().pending;
    if (world_->options().reuse == Reuse::hostile) {
      for (std::size_t i = pending.size(); i > 0; --i) {
        const PendingRelease found = pending[i - 1];
        if (found.stream != stream || found.offset % alignment != 0 ||
            RangeAllocator::rounded(found.bytes) != RangeAllocator::rounded(bytes)) {
          continue;
        }
        pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i) - 1);
        device().blocks.emplace(found.offset,
                                SimBlock{found.offset, bytes, MemoryKind::device, generation});
        return device().memory->address_of(found.offset);
      }
    }
    return Failure(ErrorCode::not_found);
  }

  void give(void* address) {
    const std::uint64_t offset = *device().memory->offset_of(address);
    const auto block = device().blocks.find(offset);
    device().allocator->give(offset, block->second.bytes);
    device().blocks.erase(block);
  }

  [[nodiscard]] const SimBlock* find(const void* address) {
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    if (!offset) return nullptr;
    const auto block = device().blocks.find(*offset);
    return block == device().blocks.end() ? nullptr : &block->second;
  }

  void mark_fresh(void* address, std::size_t bytes, std::uint64_t generation) {
    device().memory->set_fresh(*device().memory->offset_of(address), bytes, generation);
  }
  void mark_freed(void* address, std::size_t bytes, std::uint64_t generation) {
    device().memory->set_freed(*device().memory->offset_of(address), bytes, generation);
  }

  [[nodiscard]] bool is_managed(const void* address, std::size_t bytes) {
    void* base = nullptr;
    const HostSpace::Block* block = world_->host().find(address, &base);
    if (block == nullptr || block->kind != MemoryKind::managed) return false;
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) -
                                                 static_cast<std::byte*>(base));
    return is_within(offset, bytes, block->bytes);
  }
  [[nodiscard]] Failure not_managed(const void* address, std::size_t bytes) const {
    return Failure(
               ErrorCode::invalid_argument,
               "the range of {bytes} at {value} is not inside managed memory of '{device}'. Use "
               "what allocate(MemoryKind::managed) returned.")
        .with("name", "address")
        .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
        .with_bytes("bytes", bytes)
        .with("device", info_.spec);
  }

  [[nodiscard]] static Failure unknown(NativePages pages) {
    return Failure(ErrorCode::use_after_free,
                   "pages {handle} were released before, or never created. Keep a handle until its "
                   "last mapping is made.")
        .with("handle", static_cast<std::uint64_t>(pages.value));
  }
  void drop_if_unused(std::map<std::uint64_t, SimPages>::iterator pages) {
    if (!pages->second.is_released || pages->second.mappings > 0) return;
    device().memory->set_freed(pages->second.offset, pages->second.bytes, pages->first);
    device().allocator->give(pages->second.offset, pages->second.bytes);
    device().pages.erase(pages);
  }
  [[nodiscard]] bool is_reserved(std::uint64_t offset, std::size_t bytes) {
    auto next = device().reservations.upper_bound(offset);
    if (next == device().reservations.begin()) return false;
    --next;
    return is_within(offset - next->first, bytes, next->second);
  }
  [[nodiscard]] bool has_mapping(std::uint64_t offset, std::size_t bytes) {
    const auto next = device().mappings.lower_bound(offset);
    if (next != device().mappings.end() && next->first - offset < bytes) return true;
    if (next == device().mappings.begin()) return false;
    const auto before = std::prev(next);
    return offset - before->first < before->second.first;
  }

  // --- Launches
  // -----------------------------------------------------------------------------------

  void add_argument(std::vector<Touch>& touches, const KernelArgument& argument) {
    if (argument.range_address == nullptr || argument.range_bytes == 0) return;
    const TouchKind kind = argument.access == Access::read         ? TouchKind::read
                           : argument.access == Access::read_write ? TouchKind::read_write
                                                                   : TouchKind::write;
    world_->add_touch(touches, kind, argument.range_address, argument.range_bytes);
  }

  const std::shared_ptr<World> world_;
  const std::uint32_t index_;
  const DeviceInfo info_;
  HandleTable<SimKernel> kernels_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<World> world,
                                              std::string spec) noexcept {
  const Result<std::uint32_t> index = world->add_device();
  if (!index) return index.failure();
  try {
    return std::unique_ptr<Backend>(
        std::make_unique<SimBackend>(std::move(world), *index, std::move(spec)));
  } catch (const std::bad_alloc&) {
    return Failure(ErrorCode::out_of_memory);
  }
}

World* world_of(Backend& backend) noexcept {
  auto* simulated = dynamic_cast<SimBackend*>(&backend);
  return simulated == nullptr ? nullptr : &simulated->world();
}

}  // namespace tern::sim
