#include "backends/sim/sim_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/handle_table.hpp"
#include "backends/memory_file.hpp"
#include "backends/page_failures.hpp"
#include "backends/sim/capture.hpp"
#include "backends/sim/interpreted_launch.hpp"
#include "backends/sim/unknown_blocks.hpp"
#include "core/no_host_memory.hpp"
#include "device/host_order.hpp"
#include "language/interpreter.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

struct SimKernel {
  std::string name;
  KernelFunction function;
};

/// A graph. Lane 0 runs on the stream of the launch, every other lane on a stream of the graph.
struct SimGraph {
  CapturedWork work;
  std::vector<std::size_t> streams;   // of the lanes from 1 on
  std::vector<std::uint64_t> events;  // the numbers of the records
  std::uint64_t end_event = 0;        // after the whole launch
  std::shared_ptr<RecordPoint> end;   // of the last launch
};

/// The results of the CUDA driver for calls that a capture does not allow, as the fake driver
/// returns them.
enum CaptureError : std::uint64_t {
  is_captured = 900,
  was_invalidated = 901,
  would_merge = 902,
  is_not_the_origin = 903,
  is_unjoined = 904,
  crosses_the_capture = 905,
  would_wait_for_capture = 906,
  is_captured_event = 907,
  has_no_capture = 401,
};

const char* why_of(CaptureError error) noexcept {
  switch (error) {
    case is_captured:
      return "it is being captured into a graph. Make the call before the capture begins, or after "
             "it ends";
    case was_invalidated:
      return "an illegal call has invalidated its capture. End the capture, and begin a new one";
    case is_not_the_origin:
      return "its capture began on another stream. End the capture on the stream on which it began";
    case would_merge:
      return "the event belongs to another capture. Capture both in one graph, or end one first";
    case is_unjoined:
      return "another stream of the capture has work that this stream has not waited for. Record "
             "an event on that stream after its work, and wait for the event";
    case crosses_the_capture:
      return "it is being captured, and the event was recorded outside the capture. Wait before "
             "the capture begins, or in the stream that launches the graph";
    case would_wait_for_capture:
      return "the default stream waits for blocking streams, and one is being captured. Use "
             "another stream until the capture ends";
    case is_captured_event:
      return "the event was last recorded in a capture. Record it outside the capture first";
    case has_no_capture:
      return "no capture began on it. Begin one first";
  }
  return "it is being captured";
}

DeviceInfo describe(const World& world, std::string spec, std::size_t memory_bytes) {
  DeviceInfo info;
  info.backend = "sim";
  info.spec = std::move(spec);
  info.name = world.profile().name;
  info.driver = "Tern";
  info.capabilities = {
      Capability::pinned_memory,  Capability::managed_memory, Capability::prefetch,
      Capability::virtual_memory, Capability::host_functions, Capability::stream_ordered_memory,
      Capability::event_timing,   Capability::kernels,        Capability::peer_copies,
      Capability::advice,         Capability::discard,        Capability::graphs};
  // Other processes would read bytes that the device does not keep.
  if (world.options().keeps_contents) {
    info.capabilities = info.capabilities.with(Capability::shareable_memory);
  }
  if (world.options().float64) info.capabilities = info.capabilities.with(Capability::float64);
  if (world.shares_managed()) {
    info.capabilities = info.capabilities.with(Capability::concurrent_managed);
  }
  info.total_bytes = memory_bytes;
  info.alignment = 256;
  info.max_alignment = 256 * mib;
  info.page_bytes = PageTable::page_bytes;
  info.processors = world.profile().processors;
  info.wants_notes = world.options().check;
  return info;
}

std::size_t index_of(NativeStream stream) noexcept { return stream.value - 1; }
SimEvent& event_of(NativeEvent event) noexcept { return *reinterpret_cast<SimEvent*>(event.value); }

Failure not_live(const void* address) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "{address} is not the address of a live allocation of the simulated device. The "
                 "block was freed before, or has another owner. Free each block once, by the "
                 "address that allocate returned.")
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
}

class SimBackend final : public Backend, public HostOrder {
 public:
  SimBackend(std::shared_ptr<World> world, std::uint32_t index, std::string spec)
      : world_(std::move(world)),
        index_(index),
        info_(describe(*world_, std::move(spec), world_->device(index).memory->bytes())) {}

  [[nodiscard]] World& world() noexcept { return *world_; }

  const DeviceInfo& info() const noexcept override { return info_; }
  void opened_as(DeviceId id) noexcept override { device().id = id; }

  Result<MemoryInfo> memory() noexcept override {
    const Result<Entry> entry = world_->enter("memory");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "memory"); !begun) return begun.failure();
    return MemoryInfo{device().allocator->free_bytes(), device().allocator->total_bytes()};
  }

  Result<void> synchronize() noexcept override {
    const Result<Entry> entry = world_->enter("synchronize");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::sync, "synchronize"); !begun) return begun;
    if (Result<void> waited = world_->wait_for_all(index_); !waited) return waited;
    // As on a driver: work before the capture may be pending and cannot be waited for.
    if (!captures_.empty()) return misuse(is_captured, captures_.open().front()->origin());
    return world_->take_failure_of_work();
  }

  // --- Memory

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite site,
                         Tag tag) noexcept override {
    const Result<Entry> entry = world_->enter("allocate", site);
    if (!entry) return entry.failure();
    const bool is_host = kind != MemoryKind::device;
    const FaultClass fault_class =
        kind == MemoryKind::pinned ? FaultClass::pin : FaultClass::allocate;
    if (Result<void> begun = begin(fault_class, "allocate", bytes); !begun) {
      return begun.failure();
    }
    const std::uint64_t generation = world_->next_generation();
    // Managed memory migrates by page, so no two blocks share a page.
    if (kind == MemoryKind::managed) alignment = std::max(alignment, ManagedPages::page_bytes);
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
    if (const auto offset = world_->host().managed_offset(*address)) {
      world_->managed().begin(*offset, bytes);
    }
    world_->run_until_host();
    return address;
  }

  Result<void> release(void* address, CallSite site) noexcept override {
    const Result<Entry> entry = world_->enter("release", site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin_release("release"); !begun) return begun;
    void* base = nullptr;
    const HostSpace::Block* host = world_->host().find(address, &base);
    const SimBlock* block = host == nullptr ? find(address) : nullptr;
    const bool is_live = (host != nullptr && base == address) || block != nullptr;
    const std::size_t bytes = host != nullptr ? host->bytes : block != nullptr ? block->bytes : 0;
    if (!is_live) {
      world_->note_bad_free({.kind = RecordKind::host_access, .site = site}, address);
      return not_live(address);
    }
    // A driver may wait for the device here; with implicit_sync=documented it does.
    if (!device().loss && world_->options().implicit_sync) {
      if (Result<void> waited = world_->wait_for_all(index_); !waited) return waited;
    } else if (world_->flip(4) == 1) {
      world_->run_all(index_);
    }
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::release, address, bytes);
    if (Result<void> judged = world_->judge({.kind = RecordKind::host_access,
                                             .operation = OperationKind::release,
                                             .touches = touches,
                                             .site = site});
        !judged) {
      return judged;
    }
    if (const auto offset = world_->host().managed_offset(address)) {
      world_->managed().end(*offset, bytes);
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
    const Result<Entry> entry = world_->enter("pointer_info");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "pointer_info"); !begun) {
      return begun.failure();
    }
    void* base = nullptr;
    if (const HostSpace::Block* host = world_->host().find(address, &base)) {
      return PointerInfo{host->kind, base, host->bytes};
    }
    const std::optional<std::uint64_t> offset = device().memory->offset_of(address);
    if (!offset) return PointerInfo{};
    auto next = device().blocks.upper_bound(*offset);
    if (next != device().blocks.begin() && *offset - (--next)->first < next->second.bytes) {
      return PointerInfo{MemoryKind::device, device().memory->address_of(next->first),
                         next->second.bytes};
    }
    if (const auto mapping = device().pages->mapping_at(*offset)) {
      return PointerInfo{MemoryKind::mapped, device().memory->address_of(mapping->offset),
                         mapping->bytes};
    }
    return PointerInfo{};
  }

  Result<void*> allocate_async(const Submission& submission, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    const Result<Entry> entry = world_->enter("allocate_async", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::allocate, "allocate_async", bytes); !begun) {
      return begun.failure();
    }
    if (Result<void> outside = check_outside(submission.stream); !outside) {
      return outside.failure();
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
    const Result<Entry> entry = world_->enter("release_async", submission.site);
    if (!entry) return entry.failure();
    const SimBlock* block = find(address);
    if (block == nullptr) {
      world_->note_bad_free({.actor = world_->stream(index_of(submission.stream)).actor,
                             .device = index_,
                             .site = submission.site},
                            address);
      return not_live(address);
    }
    if (device().loss) {
      world_->learn_of_loss(index_);
      note_host(TouchKind::release, OperationKind::release, address, block->bytes);
      give(address);
      return {};
    }
    if (Result<void> begun = begin_release("release_async"); !begun) return begun;
    if (Result<void> outside = check_outside(submission.stream); !outside) return outside;
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
    // The driver reuses the range only for later work: immediately on the same stream, and on other
    // streams after the stream has passed the free.
    const std::uint64_t offset = *device().memory->offset_of(address);
    device().pending.push_back(
        {index_of(submission.stream), offset, block->bytes, block->generation});
    device().blocks.erase(offset);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Virtual memory

  Result<void*> reserve(std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("reserve");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::map, "reserve", bytes); !begun) {
      return begun.failure();
    }
    const std::optional<void*> address = device().pages->reserve(bytes);
    if (!address) return out_of_memory(bytes, device().pages->window());
    return *address;
  }

  Result<void> unreserve(void* address, std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("unreserve");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin_release("unreserve"); !begun) return begun;
    return device().pages->try_unreserve(address, bytes);
  }

  Result<NativePages> create_pages(std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("create_pages");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::allocate, "create_pages", bytes); !begun) {
      return begun.failure();
    }
    const std::uint64_t handle = world_->next_generation();
    if (!device().pages->create(bytes, handle)) return out_of_memory(bytes, *device().allocator);
    return NativePages{handle};
  }

  Result<void> release_pages(NativePages pages) noexcept override {
    const Result<Entry> entry = world_->enter("release_pages");
    if (!entry) return entry.failure();
    if (!device().pages->bytes_of(pages.value)) return unknown(pages, "release_pages");
    if (Result<void> begun = begin_release("release_pages"); !begun) return begun;
    device().pages->release(pages.value);
    return {};
  }

  Result<NativePages> create_shareable_pages(std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("create_shareable_pages");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::allocate, "create_shareable_pages", bytes); !begun) {
      return begun.failure();
    }
    // Checked first, because the file takes memory of the machine.
    if (device().allocator->free_bytes() < bytes) return out_of_memory(bytes, *device().allocator);
    return add_file(try_make_shareable_file("tern-sim-shared", bytes), bytes, false);
  }

  Result<int> export_pages(NativePages pages) noexcept override {
    const Result<Entry> entry = world_->enter("export_pages");
    if (!entry) return entry.failure();
    const std::optional<std::size_t> bytes = device().pages->bytes_of(pages.value);
    if (Result<void> begun = begin(FaultClass::map, "export_pages", bytes.value_or(0)); !begun) {
      return begun.failure();
    }
    if (!bytes) return unknown(pages, "export_pages");
    const int file = device().pages->file_of(pages.value);
    if (file < 0) return not_shareable(pages.value);
    return try_duplicate(file);
  }

  Result<NativePages> import_pages(int descriptor, std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("import_pages");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::map, "import_pages", bytes); !begun) {
      return begun.failure();
    }
    if (Result<void> sealed = check_shareable_file(descriptor, bytes); !sealed) {
      return sealed.failure();
    }
    return add_file(try_duplicate(descriptor), bytes, true);
  }

  Result<void> map(void* address, NativePages pages) noexcept override {
    const Result<Entry> entry = world_->enter("map");
    if (!entry) return entry.failure();
    const std::optional<std::size_t> bytes = device().pages->bytes_of(pages.value);
    if (Result<void> begun = begin(FaultClass::map, "map", bytes.value_or(0)); !begun) return begun;
    if (!bytes) return unknown(pages, "map");
    const Result<bool> mapped = device().pages->try_map(address, pages.value);
    if (!mapped) return mapped.failure();
    // For the checker, a mapping is an allocation at its address. Pages that were mapped before
    // keep their contents.
    note_host(TouchKind::allocate, OperationKind::allocate, address, *bytes);
    if (*mapped) note_host(TouchKind::write, OperationKind::copy, address, *bytes);
    return {};
  }

  Result<void> unmap(void* address, std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("unmap");
    if (!entry) return entry.failure();
    if (Result<void> whole = device().pages->check_mapping(address, bytes); !whole) return whole;
    if (Result<void> begun = begin_release("unmap"); !begun) return begun;
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::release, address, bytes);
    if (Result<void> judged = world_->judge({.kind = RecordKind::host_access,
                                             .operation = OperationKind::release,
                                             .touches = touches});
        !judged) {
      return judged;
    }
    return device().pages->try_unmap(address, bytes);
  }

  Result<void> set_access(void* address, std::size_t bytes, PageAccess access) noexcept override {
    const Result<Entry> entry = world_->enter("set_access");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::map, "set_access", bytes); !begun) {
      return begun;
    }
    return device().pages->try_set_access(address, bytes, access);
  }

  // --- Copies and fills

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("copy", submission.site);
    if (!entry) return entry.failure();
    return begin_copy(submission, destination, source, bytes, "copy", Crossing::none);
  }

  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    const Result<Entry> entry = world_->enter("copy_2d", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::copy, "copy_2d"); !begun) {
      return begun;
    }
    return perform(submission,
                   [this, copy](const Submission& on) { return queue_copy_2d(on, copy); });
  }

  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    const Result<Entry> entry = world_->enter("fill", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::fill, "fill"); !begun) return begun;
    return perform(submission, [this, destination, bytes, pattern](const Submission& on) {
      return queue_fill(on, destination, bytes, pattern);
    });
  }

  Result<void> copy_from_peer(const Submission& submission, void* destination, Backend& peer,
                              const void* source, std::size_t bytes) noexcept override {
    if (world_of(peer) != world_.get()) {
      return Failure(ErrorCode::device_mismatch,
                     "'{a}' and '{b}' belong to different simulations and are not peers. Open both "
                     "from the catalog, or with open_peers().")
          .with("a", info_.spec)
          .with("b", peer.info().spec);
    }
    const Result<Entry> entry = world_->enter("copy_from_peer", submission.site);
    if (!entry) return entry.failure();
    // The memory of a lost device is lost.
    if (const auto& loss = static_cast<SimBackend&>(peer).device().loss) return *loss;
    return begin_copy(submission, destination, source, bytes, "copy_from_peer", Crossing::copies);
  }

  Result<bool> enable_peer_access(Backend& peer) noexcept override {
    const Result<Entry> entry = world_->enter("enable_peer_access");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "enable_peer_access"); !begun) {
      return begun.failure();
    }
    if (world_of(peer) != world_.get()) return false;
    world_->grant_peer_access(index_, static_cast<SimBackend&>(peer).index_);
    return true;
  }

  Result<PeerAccess> peer_access(Backend& peer) noexcept override {
    const Result<Entry> entry = world_->enter("peer_access");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "peer_access"); !begun) {
      return begun.failure();
    }
    if (world_of(peer) != world_.get()) return PeerAccess::unavailable;
    return world_->has_peer_access(index_, static_cast<SimBackend&>(peer).index_)
               ? PeerAccess::enabled
               : PeerAccess::disabled;
  }

  Result<void> disable_peer_access(Backend& peer) noexcept override {
    const Result<Entry> entry = world_->enter("disable_peer_access");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "disable_peer_access"); !begun) return begun;
    if (world_of(peer) != world_.get()) return {};
    world_->take_peer_access(index_, static_cast<SimBackend&>(peer).index_);
    return {};
  }

  // --- Streams and events

  NativeStream default_stream() noexcept override { return {device().default_stream + 1}; }

  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    const Result<Entry> entry = world_->enter("create_stream");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::stream, "create_stream"); !begun) {
      return begun.failure();
    }
    const ActorKind kind = options.blocking ? ActorKind::blocking_stream : ActorKind::stream;
    const Result<std::size_t> made = world_->add_stream(index_, kind, options.name);
    if (!made) return made.failure();
    return NativeStream{*made + 1};
  }

  void destroy_stream(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("destroy_stream");
    if (!entry) return;
    std::erase_if(streams_of_slots_,
                  [&](const auto& one) { return one.second.value == stream.value; });
    if (const std::shared_ptr<Capture> capture = captures_.find(index_of(stream))) {
      capture->invalidate();
      if (capture->origin() == index_of(stream)) close(*capture);
    }
    world_->end_stream(index_of(stream));
  }

  Result<bool> query(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("query");
    if (!entry) return entry.failure();
    if (Result<void> outside = check_outside(stream); !outside) return outside.failure();
    SimStream& asked = world_->stream(index_of(stream));
    const auto step = [&] {
      return asked.passed < asked.submitted ? ~std::uint64_t{0} : asked.last_step;
    };
    const std::uint64_t sequence = world_->checker().sequence(asked.actor);
    const Result<bool> is_done = answer(index_of(stream), asked.submitted, step());
    if (!is_done || !*is_done) return is_done;
    world_->host_knows(step());
    if (sequence > 0) {
      world_->judge_later(
          {.kind = RecordKind::host_wait_mark, .actor = asked.actor, .sequence = sequence});
    }
    return is_done;
  }

  Result<void> synchronize(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("synchronize");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::sync, "synchronize"); !begun) return begun;
    if (Result<void> outside = check_outside(stream); !outside) return outside;
    if (Result<void> waited = wait_and_acquire(index_of(stream)); !waited) return waited;
    return world_->take_failure_of_work();
  }
  Result<bool> is_capturing(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("is_capturing");
    if (!entry) return entry.failure();
    return captures_.find(index_of(stream)) != nullptr || waits_for_capture(index_of(stream));
  }

  Result<NativeEvent> create_event(bool) noexcept override {
    const Result<Entry> entry = world_->enter("create_event");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::stream, "create_event"); !begun) {
      return begun.failure();
    }
    auto* event = new (std::nothrow) SimEvent;
    if (event == nullptr) return no_host_memory(sizeof(SimEvent), "an event");
    event->world = world_.get();
    event->number = world_->next_event_number();
    return NativeEvent{reinterpret_cast<std::uintptr_t>(event)};
  }

  void destroy_event(NativeEvent native) noexcept override {
    const Result<Entry> entry = world_->enter("destroy_event");
    if (!entry) return;
    SimEvent* event = &event_of(native);
    world_->judge_later({.kind = RecordKind::event_ends, .event = event->number});
    delete event;
  }

  Result<void> record(const Submission& submission, NativeEvent native) noexcept override {
    const Result<Entry> entry = world_->enter("record", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::record, "record"); !begun) {
      return begun;
    }
    SimEvent& event = event_of(native);
    const Result<Lane> lane = lane_of(submission);
    if (!lane) return lane.failure();
    if (lane->capture) {
      event.captured_record = lane->capture->add_record(lane->number, submission.site);
      event.capture = lane->capture;
      return {};
    }
    Result<std::shared_ptr<RecordPoint>> point = queue_record(submission, event.number);
    if (!point) return point.failure();
    event.record = *std::move(point);
    event.capture = nullptr;
    return {};
  }

  Result<void> wait(const Submission& submission, NativeEvent native) noexcept override {
    // Streams and sequence numbers of another simulation mean nothing in this one.
    if (native.value != 0 && event_of(native).world != world_.get()) {
      return Failure(ErrorCode::device_mismatch,
                     "'{a}' cannot wait for a device of another simulation. Open both from the "
                     "catalog with the same options, or with open_peers().")
          .with("a", info_.spec);
    }
    const Result<Entry> entry = world_->enter("wait", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::wait, "wait"); !begun) return begun;
    const SimEvent* event = native.value == 0 ? nullptr : &event_of(native);
    if (event != nullptr && event->capture) return wait_captured(submission, *event);
    const Result<Lane> lane = lane_of(submission);
    if (!lane) return lane.failure();
    if (lane->capture) {
      // An event that was never recorded orders nothing.
      if (event == nullptr || !event->record) return {};
      lane->capture->invalidate();
      return misuse(crosses_the_capture, index_of(submission.stream));
    }
    return queue_wait(submission, event == nullptr ? 0 : event->number,
                      event == nullptr ? nullptr : event->record);
  }

  Result<bool> query(NativeEvent native) noexcept override {
    const Result<Entry> entry = world_->enter("query");
    if (!entry) return entry.failure();
    SimEvent& event = event_of(native);
    if (event.capture) return misuse(is_captured_event, event.capture->origin());
    if (!event.record) return true;
    const Result<bool> is_done =
        answer(event.record->stream, event.record->position, event.record->step);
    if (!is_done || !*is_done) return is_done;
    world_->host_knows(event.record->step);
    learn(event);
    return is_done;
  }

  Result<void> synchronize(NativeEvent native) noexcept override {
    const Result<Entry> entry = world_->enter("synchronize");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::sync, "synchronize"); !begun) return begun;
    SimEvent& event = event_of(native);
    if (event.capture) return misuse(is_captured_event, event.capture->origin());
    if (!event.record) return {};
    if (Result<void> waited =
            world_->wait_for(event.record->stream, event.record->position, "synchronize");
        !waited) {
      return waited;
    }
    learn(event);
    return world_->take_failure_of_work();
  }

  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    const Result<Entry> entry = world_->enter("elapsed_ns");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "elapsed_ns"); !begun) return begun.failure();
    for (const NativeEvent event : {start, end}) {
      if (const auto& capture = event_of(event).capture) {
        return misuse(is_captured_event, capture->origin());
      }
    }
    const std::uint64_t first = event_of(start).record->time_ns;
    const std::uint64_t last = event_of(end).record->time_ns;
    return last - std::min(first, last);
  }

  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    const Result<Entry> entry = world_->enter("call_host", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::launch, "call_host"); !begun) {
      return begun;
    }
    return perform(submission, [this, function, context](const Submission& on) {
      return queue_call(on, function, context);
    });
  }

  // --- Managed memory

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    const Result<Entry> entry = world_->enter("prefetch", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> known = check_managed(address, bytes, destination); !known) return known;
    if (Result<void> begun = begin(submission, FaultClass::copy, "prefetch"); !begun) {
      return begun;
    }
    return perform(submission, [this, address, bytes, destination](const Submission& on) {
      return queue_prefetch(on, address, bytes, destination);
    });
  }

  Result<void> discard(const Submission& submission, void* address, std::size_t bytes,
                       std::optional<Place> destination) noexcept override {
    const Result<Entry> entry = world_->enter("discard", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> known = check_managed(address, bytes, destination.value_or(Place::host()));
        !known) {
      return known;
    }
    if (Result<void> begun = begin(submission, FaultClass::copy, "discard"); !begun) return begun;
    return perform(submission, [this, address, bytes, destination](const Submission& on) {
      return queue_discard(on, address, bytes, destination);
    });
  }

  Result<void> advise(void* address, std::size_t bytes, Advice advice,
                      Place place) noexcept override {
    const Result<Entry> entry = world_->enter("advise");
    if (!entry) return entry.failure();
    const bool has_place = advice != Advice::set_read_mostly && advice != Advice::unset_read_mostly;
    if (Result<void> known = check_managed(address, bytes, has_place ? place : Place::host());
        !known) {
      return known;
    }
    if (Result<void> begun = begin(FaultClass::info, "advise"); !begun) return begun;
    world_->managed().advise(*world_->host().managed_offset(address), bytes, advice, place);
    return {};
  }

  Result<ManagedInfo> managed_info(const void* address, std::size_t bytes) noexcept override {
    const Result<Entry> entry = world_->enter("managed_info");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::info, "managed_info"); !begun) {
      return begun.failure();
    }
    if (!is_managed(address, bytes)) return not_managed(address, bytes);
    return world_->managed().info(*world_->host().managed_offset(address), bytes);
  }

  // --- Kernels

  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    const Result<Entry> entry = world_->enter("load_kernel");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::load, "load_kernel"); !begun) {
      return begun.failure();
    }
    try {
      KernelFunction function;
      if (source.program) {
        function.interpreter = std::make_shared<const language::Interpreter>(*source.program);
        function.is_combine = source.is_combine;
      } else {
        function.body = source.body;
        function.context = source.context;
      }
      const NativeKernel kernel{kernels_.add({std::string(source.entry), std::move(function)})};
      if (kernel.value != 0) return kernel;
    } catch (const std::bad_alloc&) {
      // Reported below, with the other case.
    }
    return no_host_memory("a kernel");
  }
  void unload_kernel(NativeKernel kernel) noexcept override { kernels_.remove(kernel.value); }

  Result<void> launch(const Submission& submission, NativeKernel native, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    const Result<Entry> entry = world_->enter("launch", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::launch, "launch"); !begun) {
      return begun;
    }
    const Result<Lane> lane = lane_of(submission);
    if (!lane) return lane.failure();
    if (!lane->capture) return queue_launch(submission, native, size, arguments);
    const std::shared_ptr<const SimKernel> kernel = kernels_.find(native.value);
    if (!kernel) return dead_kernel(submission, native);
    // The graph keeps the values of the arguments, but not the kernel.
    const auto kept =
        std::make_shared<const KernelLaunch>(kernel->function, kernel->name, size, arguments);
    lane->capture->add_work(lane->number, submission.site, submission.tag,
                            [this, native, kept](const Submission& on) {
                              return queue_launch(on, native, kept->size, kept->arguments);
                            });
    return {};
  }

  // --- Graphs

  Result<void> begin_capture(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("begin_capture");
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(FaultClass::stream, "begin_capture"); !begun) return begun;
    const std::size_t index = index_of(stream);
    if (index == device().default_stream) {
      return misuse(is_captured, index,
                    "the default stream cannot be captured. Capture a stream that the program "
                    "created");
    }
    if (captures_.find(index)) {
      return misuse(has_no_capture, index,
                    "it is already being captured. End the other capture first");
    }
    captures_.begin(index);
    return {};
  }

  Result<NativeGraph> end_capture(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("end_capture");
    if (!entry) return entry.failure();
    const std::size_t index = index_of(stream);
    const std::shared_ptr<Capture> capture = captures_.find(index);
    if (!capture) return misuse(has_no_capture, index);
    if (capture->origin() != index) {
      capture->invalidate();
      return misuse(is_not_the_origin, index);
    }
    close(*capture);
    if (Result<void> begun = begin(FaultClass::stream, "end_capture"); !begun) {
      return begun.failure();
    }
    if (capture->is_invalid()) return misuse(was_invalidated, index);
    if (!capture->is_joined()) return misuse(is_unjoined, index);
    return make_graph(capture->take());
  }

  void abort_capture(NativeStream stream) noexcept override {
    const Result<Entry> entry = world_->enter("abort_capture");
    if (!entry) return;
    const std::shared_ptr<Capture> capture = captures_.find(index_of(stream));
    if (capture && capture->origin() == index_of(stream)) close(*capture);
  }

  Result<void> launch_graph(const Submission& submission, NativeGraph native) noexcept override {
    const Result<Entry> entry = world_->enter("launch_graph", submission.site);
    if (!entry) return entry.failure();
    if (Result<void> begun = begin(submission, FaultClass::launch, "launch_graph"); !begun) {
      return begun;
    }
    if (Result<void> outside = check_outside(submission.stream); !outside) return outside;
    const auto graph = graphs_.find(native.value);
    if (!graph) return dead_graph(submission, native);
    return replay(submission, **graph);
  }

  void destroy_graph(NativeGraph native) noexcept override {
    const Result<Entry> entry = world_->enter("destroy_graph");
    if (!entry) return;
    const auto graph = graphs_.find(native.value);
    if (!graph) return;
    graphs_.remove(native.value);
    end_graph(**graph);
  }

  /// For the fake driver.
  [[nodiscard]] CaptureStatus capture_status(NativeStream stream) {
    const std::shared_ptr<Capture> capture = captures_.find(index_of(stream));
    if (!capture) return CaptureStatus::none;
    return capture->is_invalid() ? CaptureStatus::invalidated : CaptureStatus::active;
  }
  void invalidate_capture(NativeStream stream) {
    if (const std::shared_ptr<Capture> capture = captures_.find(index_of(stream))) {
      capture->invalidate();
    }
  }

  // --- Facts from pools and from the host

  Result<void> note_host_access(const void* address, std::size_t bytes, Access access,
                                CallSite site) noexcept override {
    const auto entered = world_->enter("host access", site);
    if (!entered) return entered.failure();
    if (access == Access::discard && world_->locate(address)) {
      // The host does not write device memory: the bytes count as written and may be read.
      std::vector<Touch>& touches = world_->scratch();
      world_->add_touch(touches, TouchKind::write, address, bytes, true);
      return world_->judge({.kind = RecordKind::host_access, .touches = touches, .site = site});
    }
    return world_->judge_host_access(
        address, bytes, access == Access::read ? TouchKind::read : TouchKind::write, site, index_);
  }
  void note_suballocate(const Submission& submission,
                        const Suballocation& block) noexcept override {
    note(submission, block, TouchKind::suballocate, OperationKind::allocate);
  }
  void note_subrelease(const Submission& submission, const Suballocation& block) noexcept override {
    note(submission, block, TouchKind::subrelease, OperationKind::release);
  }

  // --- HostOrder

  void note_stream(std::uint32_t slot, NativeStream stream) noexcept override {
    if (!counts_threads()) return;
    const Result<Entry> entry = world_->enter("note");
    if (!entry) return;
    try {
      streams_of_slots_.insert_or_assign(slot, stream);
    } catch (const std::bad_alloc&) {
      streams_of_slots_.erase(slot);
    }
  }
  void note_seen_done(std::uint32_t slot) noexcept override {
    if (!counts_threads()) return;
    const Result<Entry> entry = world_->enter("note");
    if (!entry) return;
    // The number of an ended stream may belong to another stream by now. Its marks pass on
    // everything that this thread knows: an error can be missed, but none is made up.
    const auto found = streams_of_slots_.find(slot);
    const ActorId actor = found == streams_of_slots_.end()
                              ? ActorId{0}
                              : world_->stream(index_of(found->second)).actor;
    world_->judge_later({.kind = RecordKind::release_edge, .actor = actor, .event = edge_of(slot)});
  }
  void note_known_done(std::uint32_t slot) noexcept override {
    if (!counts_threads()) return;
    const Result<Entry> entry = world_->enter("note");
    if (entry) world_->judge_later({.kind = RecordKind::acquire_edge, .event = edge_of(slot)});
  }
  void note_known_done(std::uint32_t slot, Backend& waiter,
                       const Submission& submission) noexcept override {
    // Another simulation has other numbers, so only its own host thread knows the order.
    if (&static_cast<SimBackend&>(waiter).world() != world_.get()) return note_known_done(slot);
    if (!counts_threads()) return;
    const Result<Entry> entry = world_->enter("note");
    if (!entry) return;
    world_->judge_later({.kind = RecordKind::wait_event,
                         .actor = world_->stream(index_of(submission.stream)).actor,
                         .event = edge_of(slot),
                         .site = submission.site});
  }
  void note_released(std::uint64_t tag) noexcept override {
    if (counts_threads()) world_->note_edge(RecordKind::release_edge, timeline_bit | tag);
  }
  void note_acquired(std::uint64_t tag) noexcept override {
    if (counts_threads()) world_->note_edge(RecordKind::acquire_edge, timeline_bit | tag);
  }

 private:
  SimDevice& device() noexcept { return world_->device(index_); }

  Result<void> begin(FaultClass fault_class, const char* call, std::size_t bytes = 0) {
    const auto begun = world_->begin(index_, fault_class, call, bytes);
    return begun ? Result<void>() : Result<void>(begun.failure());
  }
  Result<void> begin(const Submission& submission, FaultClass fault_class, const char* call) {
    const auto begun = world_->begin(index_, fault_class, call, 0, index_of(submission.stream));
    return begun ? Result<void>() : Result<void>(begun.failure());
  }
  /// Freeing memory of a lost device only updates the records.
  Result<void> begin_release(const char* call) {
    if (!device().loss) return begin(FaultClass::release, call);
    world_->learn_of_loss(index_);
    return {};
  }

  Result<void> judge(const Submission& submission, OperationKind operation,
                     const std::vector<Touch>& touches, std::string_view name = {},
                     Crossing crossing = Crossing::none) {
    return world_->judge({.operation = operation,
                          .actor = world_->stream(index_of(submission.stream)).actor,
                          .device = index_,
                          .name = name,
                          .touches = touches,
                          .site = submission.site,
                          .tag = submission.tag},
                         crossing);
  }

  Result<void> begin_copy(const Submission& submission, void* destination, const void* source,
                          std::size_t bytes, const char* call, Crossing crossing) {
    if (Result<void> begun = begin(submission, FaultClass::copy, call); !begun) return begun;
    const Result<Lane> lane = lane_of(submission);
    if (!lane) return lane.failure();
    if (!lane->capture) {
      return queue_copy(submission, destination, source, bytes, crossing, IsReplay::no);
    }
    lane->capture->add_work(lane->number, submission.site, submission.tag,
                            [this, destination, source, bytes, crossing](const Submission& on) {
                              return queue_copy(on, destination, source, bytes, crossing,
                                                IsReplay::yes);
                            });
    return {};
  }

  enum class IsReplay : bool { no, yes };
  Result<void> queue_copy(const Submission& submission, void* destination, const void* source,
                          std::size_t bytes, Crossing crossing, IsReplay is_replay) {
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::read, source, bytes);
    world_->add_touch(touches, TouchKind::write, destination, bytes);
    if (Result<void> judged = judge(submission, OperationKind::copy, touches, {}, crossing);
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::copy;
    operation.destination = destination;
    operation.source = source;
    operation.bytes = bytes;
    const std::size_t stream = index_of(submission.stream);
    const bool is_from_pageable = world_->is_pageable(source);
    if (!is_from_pageable && !world_->is_pageable(destination)) {
      world_->submit(stream, std::move(operation));
      return {};
    }
    const HostWatch::Range ranges[] = {{source, bytes, false}, {destination, bytes, true}};
    if (is_replay == IsReplay::yes) {
      // A graph reads the source when it runs.
      operation.watch = watch(submission, ranges, HostWatch::Kind::copy);
      world_->submit(stream, std::move(operation));
      return {};
    }
    // For pageable memory a driver may return after the copy, after reading the source, or
    // immediately. Programs must not rely on any of them.
    enum Coin : std::uint64_t { at_once, blocks, stages };
    const std::uint64_t coin = world_->flip(is_from_pageable ? 3 : 2);
    const SimStream& state = world_->stream(stream);
    operation.watch = watch(submission, ranges, HostWatch::Kind::copy);
    if (coin == stages) {
      // Earlier work of the stream may still write the source, so it runs first.
      world_->drain(stream);
      const auto* first = static_cast<const std::byte*>(source);
      const bool is_kept = world_->options().keeps_contents || !world_->locate(destination);
      if (is_kept && state.passed == state.submitted) {
        operation.staged.assign(first, first + bytes);
      }
    }
    world_->submit(stream, std::move(operation));
    if (world_->options().implicit_sync) {
      return wait_and_acquire(stream);
    }
    if (coin == blocks) world_->run_towards(stream, state.submitted);
    return {};
  }

  // --- Work, submitted directly or by a replay

  Result<void> queue_copy_2d(const Submission& submission, const Copy2D& copy) {
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
    operation.watch = watch_rows(submission, copy);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> queue_fill(const Submission& submission, void* destination, std::size_t bytes,
                          const Pattern& pattern) {
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
    const HostWatch::Range written{destination, bytes, true};
    operation.watch = watch(submission, {&written, 1}, HostWatch::Kind::other);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> queue_call(const Submission& submission, HostFunction function, void* context) {
    std::vector<Touch>& touches = world_->scratch();
    if (Result<void> judged = judge(submission, OperationKind::call, touches); !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::call;
    operation.function = function;
    operation.context = context;
    operation.site = submission.site;
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> queue_prefetch(const Submission& submission, void* address, std::size_t bytes,
                              Place destination) {
    Operation operation;
    operation.kind = Operation::Kind::prefetch;
    operation.destination = address;
    operation.bytes = bytes;
    operation.place = destination;
    std::vector<Touch>& touches = world_->scratch();
    if (Result<void> judged = judge(submission, OperationKind::prefetch, touches); !judged) {
      return judged;
    }
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<void> queue_discard(const Submission& submission, void* address, std::size_t bytes,
                             std::optional<Place> destination) {
    // A concurrent use of the bytes is a race, as with a write.
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, TouchKind::write, address, bytes);
    if (Result<void> judged = judge(submission, OperationKind::fill, touches); !judged) {
      return judged;
    }
    const auto submit = [&](Operation::Kind kind, Place place) {
      Operation operation;
      operation.kind = kind;
      operation.destination = address;
      operation.bytes = bytes;
      operation.place = place;
      world_->submit(index_of(submission.stream), std::move(operation));
    };
    submit(Operation::Kind::discard, {});
    if (destination) submit(Operation::Kind::prefetch, *destination);
    return {};
  }

  Result<void> queue_launch(const Submission& submission, NativeKernel native,
                            const LaunchSize& size, std::span<const KernelArgument> arguments) {
    const std::shared_ptr<const SimKernel> kernel = kernels_.find(native.value);
    if (!kernel) return dead_kernel(submission, native);
    auto kept = std::make_unique<KernelLaunch>(kernel->function, kernel->name, size, arguments);
    std::vector<Touch>& touches = world_->scratch();
    for (KernelArgument& argument : kept->arguments) {
      if (argument.range_address != nullptr) {
        const auto index = static_cast<std::size_t>(&argument - kept->arguments.data());
        add_declared(touches, argument, is_written_in_part(kept->function, index));
      } else if (Result<void> taken = add_bare(touches, submission, kernel->name, argument);
                 !taken) {
        return taken;
      }
    }
    if (Result<void> judged =
            judge(submission, OperationKind::kernel, touches, kernel->name, Crossing::granted);
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::launch;
    operation.launch = std::move(kept);
    operation.site = submission.site;
    operation.watch = watch_arguments(submission, *operation.launch);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  Result<std::shared_ptr<RecordPoint>> queue_record(const Submission& submission,
                                                    std::uint64_t event) {
    const std::size_t index = index_of(submission.stream);
    if (Result<void> judged = world_->judge({.kind = RecordKind::record_event,
                                             .actor = world_->stream(index).actor,
                                             .event = event,
                                             .site = submission.site});
        !judged) {
      return judged.failure();
    }
    auto point = std::make_shared<RecordPoint>(RecordPoint{index, 0, 0});
    Operation operation;
    operation.kind = Operation::Kind::record;
    operation.point = point;
    world_->submit(index, std::move(operation));
    return point;
  }

  Result<void> queue_wait(const Submission& submission, std::uint64_t event,
                          std::shared_ptr<RecordPoint> record) {
    if (Result<void> judged =
            world_->judge({.kind = RecordKind::wait_event,
                           .actor = world_->stream(index_of(submission.stream)).actor,
                           .event = event,
                           .site = submission.site});
        !judged) {
      return judged;
    }
    Operation operation;
    operation.kind = Operation::Kind::wait;
    operation.point = std::move(record);
    world_->submit(index_of(submission.stream), std::move(operation));
    return {};
  }

  // --- Captures and graphs

  struct Lane {
    std::shared_ptr<Capture> capture = {};  // null: the stream is not captured
    std::size_t number = 0;
  };

  [[nodiscard]] Failure misuse(CaptureError error, std::size_t stream,
                               const char* why = nullptr) const noexcept {
    return Failure(ErrorCode::stream_misuse,
                   "the call is not possible on a stream of '{device}': {why}.")
        .with("stream", std::uint64_t{stream})
        .with("device", info_.spec)
        .with("why", why == nullptr ? why_of(error) : why)
        .with("code", std::uint64_t{error});
  }

  /// Returns whether work of the stream would wait for a captured stream.
  [[nodiscard]] bool waits_for_capture(std::size_t stream) const {
    if (captures_.empty() || stream != world_->device(index_).default_stream) return false;
    return std::ranges::any_of(captures_.open(), [&](const auto& capture) {
      return world_->stream(capture->origin()).kind == ActorKind::blocking_stream;
    });
  }

  /// Returns the lane that captures work of the submission. Fails, and invalidates the capture, if
  /// the stream accepts no work now.
  Result<Lane> lane_of(const Submission& submission) {
    if (captures_.empty()) return Lane{};
    const std::size_t stream = index_of(submission.stream);
    std::shared_ptr<Capture> capture = captures_.find(stream);
    if (!capture) {
      if (!waits_for_capture(stream)) return Lane{};
      if (!submission.stays_out_of_graphs) invalidate_blocking();
      return misuse(would_wait_for_capture, stream);
    }
    if (submission.stays_out_of_graphs) return misuse(is_captured, stream);
    if (capture->is_invalid()) return misuse(was_invalidated, stream);
    const std::size_t number = *capture->lane_of(stream);
    return Lane{std::move(capture), number};
  }

  void invalidate_blocking() {
    for (const std::shared_ptr<Capture>& capture : captures_.open()) {
      if (world_->stream(capture->origin()).kind == ActorKind::blocking_stream) {
        capture->invalidate();
      }
    }
  }

  /// Fails, and invalidates the capture, if the stream is being captured.
  Result<void> check_outside(NativeStream native) {
    if (captures_.empty()) return {};
    const std::size_t stream = index_of(native);
    const std::shared_ptr<Capture> capture = captures_.find(stream);
    if (capture) {
      capture->invalidate();
      return misuse(is_captured, stream);
    }
    if (!waits_for_capture(stream)) return {};
    invalidate_blocking();
    return misuse(would_wait_for_capture, stream);
  }

  /// Submits the work now, or adds it to the capture of the stream.
  template <class Submit>
  Result<void> perform(const Submission& submission, Submit submit) {
    const Result<Lane> lane = lane_of(submission);
    if (!lane) return lane.failure();
    if (!lane->capture) return submit(submission);
    lane->capture->add_work(lane->number, submission.site, submission.tag, std::move(submit));
    return {};
  }

  /// Waits for an event that was recorded in a capture. The stream joins the capture.
  Result<void> wait_captured(const Submission& submission, const SimEvent& event) {
    const std::size_t stream = index_of(submission.stream);
    if (submission.stays_out_of_graphs) return misuse(is_captured_event, stream);
    const std::shared_ptr<Capture>& capture = event.capture;
    if (capture->is_over()) return misuse(is_captured_event, stream);
    if (capture->is_invalid()) return misuse(was_invalidated, stream);
    const bool is_ours = std::ranges::find(captures_.open(), capture) != captures_.open().end();
    if (const std::shared_ptr<Capture> own = captures_.find(stream); own && own != capture) {
      own->invalidate();
      capture->invalidate();
      return misuse(would_merge, stream);
    }
    if (!is_ours || stream == device().default_stream) {
      capture->invalidate();
      return misuse(is_ours ? would_wait_for_capture : crosses_the_capture, stream,
                    is_ours ? "the default stream cannot join a capture. Use a stream that the "
                              "program created"
                            : "the capture is of another device. Use a stream of that device");
    }
    const std::optional<std::size_t> lane = capture->lane_of(stream);
    capture->add_wait(lane ? *lane : capture->join(stream), event.captured_record, submission.site);
    return {};
  }

  Result<NativeGraph> make_graph(CapturedWork work) {
    auto graph = std::make_shared<SimGraph>();
    for (std::size_t lane = 1; lane < work.lane_count; ++lane) {
      const Result<std::size_t> stream =
          world_->add_stream(index_, ActorKind::stream, fmt::format("graph lane {}", lane));
      if (!stream) {
        end_graph(*graph);
        return stream.failure();
      }
      graph->streams.push_back(*stream);
    }
    for (std::size_t i = 0; i < work.record_count; ++i) {
      graph->events.push_back(world_->next_event_number());
    }
    graph->end_event = world_->next_event_number();
    graph->work = std::move(work);
    const NativeGraph native{graphs_.add(graph)};
    if (native.value != 0) return native;
    end_graph(*graph);
    return no_host_memory(sizeof(SimGraph), "a graph");
  }

  void end_graph(SimGraph& graph) {
    for (const std::size_t stream : graph.streams) world_->end_stream(stream);
    for (const std::uint64_t event : graph.events) {
      world_->judge_later({.kind = RecordKind::event_ends, .event = event});
    }
    if (graph.end) world_->judge_later({.kind = RecordKind::event_ends, .event = graph.end_event});
  }

  /// Submits the work of the graph. After a violation the rest of the work is left out, but all
  /// records and waits are submitted, so that the launch stream waits for what was submitted.
  Result<void> replay(const Submission& submission, SimGraph& graph) {
    // A driver runs one launch of a graph at a time.
    if (graph.end) {
      if (Result<void> after = queue_wait(submission, graph.end_event, graph.end); !after) {
        return after;
      }
    }
    Result<void> result;
    const auto note = [&](const Result<void>& done) {
      if (!done && result) result = done;
    };
    std::vector<std::shared_ptr<RecordPoint>> points(graph.work.record_count);
    for (const CapturedCall& call : graph.work.calls) {
      const std::size_t stream =
          call.lane == 0 ? index_of(submission.stream) : graph.streams[call.lane - 1];
      const Submission on{.stream = {stream + 1}, .site = call.site, .tag = call.tag};
      if (call.kind == CapturedCall::Kind::work) {
        if (result) note(call.submit(on));
      } else if (call.kind == CapturedCall::Kind::note) {
        if (call.submit) note(call.submit(on));
      } else if (call.kind == CapturedCall::Kind::wait) {
        note(queue_wait(on, graph.events[call.record], points[call.record]));
      } else if (const auto point = queue_record(on, graph.events[call.record])) {
        points[call.record] = *point;
      } else {
        note(point.failure());
      }
    }
    const auto end = queue_record(submission, graph.end_event);
    if (end) graph.end = *end;
    if (!end) note(end.failure());
    return result;
  }

  Failure dead_graph(const Submission& submission, NativeGraph graph) {
    world_->note_dead_handle(
        {.operation = OperationKind::kernel,
         .actor = world_->stream(index_of(submission.stream)).actor,
         .device = index_,
         .site = submission.site},
        fmt::format("graph {} is launched after it was destroyed", graph.value),
        "keep it until its last launch is submitted", "launch_graph");
    return Failure(ErrorCode::use_after_free,
                   "the graph was destroyed, or was captured on another device. Keep the graph "
                   "until its last launch.");
  }

  [[nodiscard]] std::uint64_t watch(const Submission& submission,
                                    std::span<const HostWatch::Range> ranges,
                                    HostWatch::Kind kind) {
    return world_->watch(index_of(submission.stream), submission.site, ranges, kind);
  }
  [[nodiscard]] std::uint64_t watch_rows(const Submission& submission, const Copy2D& copy) {
    if (!world_->is_pageable(copy.source) && !world_->is_pageable(copy.destination)) return 0;
    std::vector<HostWatch::Range> ranges;
    for (std::size_t row = 0; row < copy.height; ++row) {
      const auto* from = static_cast<const std::byte*>(copy.source);
      const auto* to = static_cast<const std::byte*>(copy.destination);
      ranges.push_back({from + row * copy.source_pitch_bytes, copy.width_bytes, false});
      ranges.push_back({to + row * copy.destination_pitch_bytes, copy.width_bytes, true});
    }
    return watch(submission, ranges, HostWatch::Kind::copy);
  }
  [[nodiscard]] std::uint64_t watch_arguments(const Submission& submission,
                                              const KernelLaunch& launch) {
    std::vector<HostWatch::Range> ranges;
    for (const KernelArgument& argument : launch.arguments) {
      if (argument.range_address == nullptr) continue;
      ranges.push_back({argument.range_address, argument.range_bytes, is_write(argument.access)});
    }
    return watch(submission, ranges, HostWatch::Kind::other);
  }

  /// Makes the host wait for the whole stream, and the checker count the wait.
  Result<void> wait_and_acquire(std::size_t index) {
    SimStream& awaited = world_->stream(index);
    if (Result<void> waited = world_->wait_for(index, awaited.submitted, "synchronize"); !waited) {
      return waited;
    }
    world_->judge_later({.kind = RecordKind::host_wait_mark,
                         .actor = awaited.actor,
                         .sequence = world_->checker().sequence(awaited.actor)});
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
    const Result<Entry> entry = world_->enter("note", submission.site);
    if (!entry) {
      if (kind == TouchKind::suballocate) unknown_blocks_.add(block.generation);
      return;
    }
    if (kind == TouchKind::subrelease && unknown_blocks_.remove(block.generation)) return;
    if (!captures_.empty() && is_noted_in_capture(submission, block, kind, operation)) return;
    judge_note(submission, block, kind, operation);
  }

  /// A block that begins and ends in a capture does so at each launch of the graph. All other
  /// blocks begin and end now: only the work of a capture is put off.
  bool is_noted_in_capture(const Submission& submission, const Suballocation& block, TouchKind kind,
                           OperationKind operation) {
    const bool has_stream = submission.stream.value != 0;
    const std::shared_ptr<Capture> capture =
        has_stream ? captures_.find(index_of(submission.stream)) : nullptr;
    const auto note = [this, block, kind, operation](const Submission& on) {
      judge_note(on, block, kind, operation);
      return Result<void>();
    };
    if (kind == TouchKind::suballocate) {
      if (!capture) return false;
      capture->add_block(*capture->lane_of(index_of(submission.stream)), block.generation,
                         submission.site, submission.tag, note);
      return true;
    }
    if (capture && capture->end_block(*capture->lane_of(index_of(submission.stream)),
                                      block.generation, submission.site, note)) {
      return true;
    }
    for (const std::shared_ptr<Capture>& other : captures_.open()) {
      if (const auto begun = other->take_block(block.generation)) begin_block(*other, *begun);
    }
    return false;
  }

  void begin_block(const Capture& capture, const CapturedCall& begun) {
    static_cast<void>(begun.submit(
        {.stream = {capture.stream_of(begun.lane) + 1}, .site = begun.site, .tag = begun.tag}));
  }

  /// Ends a capture. The blocks that have begun in it and have not ended begin now.
  void close(Capture& capture) {
    captures_.end(capture);
    for (const CapturedCall& begun : capture.take_blocks()) begin_block(capture, begun);
  }

  void judge_note(const Submission& submission, const Suballocation& block, TouchKind kind,
                  OperationKind operation) {
    // Work of a lost device counts as complete for a waiting host, and its streams learn nothing
    // more.
    const bool is_by_host = submission.stream.value == 0 || device().loss;
    if (device().loss) world_->learn_of_loss(index_);
    std::vector<Touch>& touches = world_->scratch();
    world_->add_touch(touches, kind, block.address, block.bytes, false, block.generation);
    if (is_by_host) {
      world_->judge_later({.kind = RecordKind::host_access,
                           .operation = operation,
                           .touches = touches,
                           .site = submission.site,
                           .tag = submission.tag});
      return;
    }
    world_->judge_later({.operation = operation,
                         .actor = world_->stream(index_of(submission.stream)).actor,
                         .device = index_,
                         .touches = touches,
                         .site = submission.site,
                         .tag = submission.tag});
  }

  Result<bool> answer(std::size_t stream, std::uint64_t position, std::uint64_t step) {
    const auto begun = world_->begin(index_, FaultClass::query, "query");
    if (!begun) return begun.failure();
    if (*begun == FaultKind::not_ready && world_->may_deny(stream, step)) return false;
    const Result<bool> is_done = world_->answer_query(stream, position);
    if (device().loss) return *device().loss;
    return is_done;
  }

  static constexpr std::uint64_t timeline_bit = std::uint64_t{1} << 61;
  /// Numbers for completion that host threads have observed. Events count from 1; tags of the
  /// program have the highest bit set.
  [[nodiscard]] std::uint64_t edge_of(std::uint32_t slot) const noexcept {
    return (std::uint64_t{1} << 62) | (std::uint64_t{index_} << 32) | slot;
  }
  [[nodiscard]] bool counts_threads() const noexcept {
    return world_->options().per_thread_host && !world_->runs_in_this_thread();
  }
  void learn(const SimEvent& event) {
    world_->judge_later({.kind = RecordKind::host_wait_event, .event = event.number});
  }

  // --- Blocks

  [[nodiscard]] Failure out_of_memory(std::size_t bytes, const RangeAllocator& allocator) const {
    return Failure(ErrorCode::out_of_memory,
                   "{device} could not allocate {requested}: {free} of {total} are free. Free "
                   "something, or ask for less.")
        .with("device", info_.spec)
        .with_bytes("requested", bytes)
        .with_bytes("free", allocator.free_bytes())
        .with_bytes("total", allocator.total_bytes())
        .with("code", std::uint64_t{2});
  }

  Result<void*> take(std::size_t bytes, std::size_t alignment, std::uint64_t generation) {
    const std::optional<std::uint64_t> offset = device().allocator->take(bytes, alignment);
    if (!offset) return out_of_memory(bytes, *device().allocator);
    device().blocks.emplace(*offset, SimBlock{*offset, bytes, MemoryKind::device, generation});
    return device().memory->address_of(*offset);
  }

  /// Returns a range that this stream freed and has not passed yet: the earliest possible reuse.
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
  /// Checks that the range is managed memory and that its pages can be moved to the place.
  [[nodiscard]] Result<void> check_managed(const void* address, std::size_t bytes, Place place) {
    if (!is_managed(address, bytes)) return not_managed(address, bytes);
    if (place.is_host() || world_->has_device(place.device_id())) return {};
    return Failure(ErrorCode::invalid_device,
                   "managed memory of '{device}' cannot be moved to {place}. Use the host, or a "
                   "simulated device that is a peer of '{device}'.")
        .with("spec", place.text())
        .with("device", info_.spec)
        .with("place", place.text());
  }
  [[nodiscard]] Failure not_managed(const void* address, std::size_t bytes) const {
    return Failure(ErrorCode::invalid_argument,
                   "the range of {bytes} at {value} is not inside managed memory of '{device}'. "
                   "Use a range that allocate(MemoryKind::managed) returned.")
        .with("name", "address")
        .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
        .with_bytes("bytes", bytes)
        .with("device", info_.spec);
  }

  [[nodiscard]] Result<NativePages> add_file(const Result<int>& file, std::size_t bytes,
                                             bool is_imported) noexcept {
    if (!file) return file.failure();
    const std::uint64_t handle = world_->next_generation();
    if (!device().pages->add_file(*file, bytes, handle, is_imported)) {
      return out_of_memory(bytes, *device().allocator);
    }
    return NativePages{handle};
  }

  [[nodiscard]] Failure unknown(NativePages pages, const char* call) {
    world_->note_dead_handle({.kind = RecordKind::host_access, .device = index_},
                             fmt::format("pages {} are used after their release", pages.value),
                             "keep the handle until its last mapping is made", call);
    return Failure(ErrorCode::use_after_free,
                   "pages {handle} were released before, or never created. Keep the handle until "
                   "its last mapping is made.")
        .with("handle", static_cast<std::uint64_t>(pages.value));
  }
  // --- Launches

  void add_declared(std::vector<Touch>& touches, const KernelArgument& argument,
                    bool reads_none = false) {
    if (argument.range_bytes == 0) return;
    const TouchKind kind = argument.access == Access::read ? TouchKind::read
                           : argument.access == Access::read_write && !reads_none
                               ? TouchKind::read_write
                               : TouchKind::write;
    world_->add_touch(touches, kind, argument.range_address, argument.range_bytes);
  }

  /// An address without a range counts as a use of its whole block.
  Result<void> add_bare(std::vector<Touch>& touches, const Submission& submission,
                        std::string_view kernel, KernelArgument& argument) {
    if (argument.value_bytes != sizeof(void*)) return {};
    void* address = nullptr;
    std::memcpy(&address, argument.value, sizeof address);
    const auto place = world_->locate(address);
    if (!place) return {};
    SimDevice& owner = world_->device(place->first);
    SpaceRange range{owner.space, place->second, 1};
    if (const auto block = world_->checker().block_at(owner.space, place->second)) {
      range = block->range;
    }
    const Touch touch{TouchKind::read_write, range, 0, true};
    if (world_->options().strict_kernels) {
      return world_->keep(world_->checker().report(
          FindingCode::undeclared_access,
          {.operation = OperationKind::kernel,
           .actor = world_->stream(index_of(submission.stream)).actor,
           .device = index_,
           .name = kernel,
           .touches = {&touch, 1},
           .site = submission.site},
          {.what = fmt::format("kernel \"{}\" has an address argument without a range", kernel),
           .fix = "declare the bytes that the kernel uses, and the access"}));
    }
    touches.push_back(touch);
    argument.range_address = owner.memory->address_of(range.offset);
    argument.range_bytes = range.bytes;
    argument.access = Access::read_write;
    return {};
  }

  Failure dead_kernel(const Submission& submission, NativeKernel kernel) {
    world_->note_dead_handle(
        {.operation = OperationKind::kernel,
         .actor = world_->stream(index_of(submission.stream)).actor,
         .device = index_,
         .site = submission.site},
        fmt::format("kernel {} is launched after it was unloaded", kernel.value),
        "keep it loaded until its last launch is submitted", "launch");
    return Failure(ErrorCode::use_after_free,
                   "the kernel was unloaded, or was loaded on another device. Keep the kernel "
                   "loaded until its last launch.");
  }

  const std::shared_ptr<World> world_;
  const std::uint32_t index_;
  const DeviceInfo info_;
  HandleTable<SimKernel> kernels_;
  HandleTable<std::shared_ptr<SimGraph>> graphs_;
  Captures captures_;                                       // guarded by the lock of the world
  std::map<std::uint32_t, NativeStream> streams_of_slots_;  // guarded by the lock of the world
  UnknownBlocks unknown_blocks_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<World> world,
                                              std::string spec) noexcept {
  const Result<std::uint32_t> index = world->add_device(spec.substr(0, spec.find('?')));
  if (!index) return index.failure();
  try {
    return std::unique_ptr<Backend>(
        std::make_unique<SimBackend>(std::move(world), *index, std::move(spec)));
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(SimBackend), "a simulated device");
  }
}

CaptureStatus capture_status(Backend& backend, NativeStream stream) noexcept {
  auto& simulated = static_cast<SimBackend&>(backend);
  const Result<Entry> entry = simulated.world().enter("capture_status");
  return entry ? simulated.capture_status(stream) : CaptureStatus::none;
}

void invalidate_capture(Backend& backend, NativeStream stream) noexcept {
  auto& simulated = static_cast<SimBackend&>(backend);
  const Result<Entry> entry = simulated.world().enter("invalidate_capture");
  if (entry) simulated.invalidate_capture(stream);
}

World* world_of(Backend& backend) noexcept {
  auto* simulated = dynamic_cast<SimBackend*>(&backend);
  return simulated == nullptr ? nullptr : &simulated->world();
}

}  // namespace tern::sim
