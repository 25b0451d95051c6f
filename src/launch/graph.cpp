// A launch declares its uses with a UseScope, as Kernel::try_launch_with() does. Launches of one
// graph run one after another, so the mark of the last launch covers all of them.

#include "tern/launch/graph.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "launch/captured_uses.hpp"
#include "device/captures.hpp"
#include "tern/launch/use_scope.hpp"

namespace tern {

/// The shared state of the handles of a graph. It is destroyed with the last handle, or kept,
/// without a handle of its device, until its launches are done.
struct GraphState {
  Device device;
  std::weak_ptr<DeviceState> device_state;
  NativeGraph native;
  // Destroyed in reverse order: the buffers before their memory.
  ResourceHandle memory;
  std::shared_ptr<CapturedUses> captured;
  // The driver does not accept two launches of one graph at the same time.
  std::mutex mutex;
  Mark last_launch;            // guarded by mutex
  GraphState* next = nullptr;  // in the list of waiting graphs

  [[nodiscard]] bool is_done() const noexcept {
    const Result<bool> done = Device::try_is_done(last_launch);
    // A device that is lost, or belongs to another process, needs no wait.
    return !done || *done;
  }
};

namespace {

/// Graphs without handles whose launches are in flight. A lock-free stack that is taken as a whole,
/// so a forked child cannot find a lock held.
std::atomic<GraphState*> waiting_graphs = nullptr;

void wait_for(GraphState* state) noexcept {
  state->next = waiting_graphs.load(std::memory_order_relaxed);
  while (!waiting_graphs.compare_exchange_weak(state->next, state, std::memory_order_release,
                                               std::memory_order_relaxed)) {
  }
}

void finish(GraphState* state) noexcept {
  // The resource may keep the device open, and waiting graphs must not, so wait for the launches
  // now. If the device is lost, its work is over.
  if (state->memory) static_cast<void>(Device::try_wait(state->last_launch));
  if (state->native.value != 0 && !state->memory && !state->is_done()) {
    // Buffers and kernels know the launches that used them.
    state->captured.reset();
    // When the device closes, it completes its work and destroys the rest.
    const Device closing = std::exchange(state->device, Device());
    wait_for(state);
    return;
  }
  const std::unique_ptr<GraphState> gone(state);
  gone->device.destroy_graph(gone->native);
}

Failure empty_graph(CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the graph is empty: it was default-constructed or moved from. Capture a graph "
                 "first.",
                 site)
      .with("name", "graph")
      .with("value", "none");
}

Result<void> check_stream(const GraphState& graph, StreamRef stream, CallSite site) noexcept {
  if (!stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  if (stream.device_id() != graph.device.id()) {
    return Failure(ErrorCode::device_mismatch,
                   "a graph of '{a}' cannot be launched on a stream of '{b}'. Use a stream of "
                   "'{a}', or capture the graph on '{b}'.",
                   site)
        .with("a", graph.device.spec())
        .with("b", stream.device().spec());
  }
  return check_not_captured(stream, site);
}

Result<void> add_use(UseScope& uses, const LaunchArgument& use, CallSite site) noexcept {
  if (use.movable() != nullptr || use.is_brought()) {
    return Failure(ErrorCode::invalid_argument,
                   "a launch of a graph cannot declare a unified buffer: its memory may have moved "
                   "since the capture. Capture work on a Buffer or an Array.",
                   site)
        .with("name", "uses")
        .with("value", "unified buffer");
  }
  if (use.is_empty_array()) return {};
  if (use.storage() == nullptr) {
    return Failure(ErrorCode::not_allocated,
                   "a use of a graph is an empty buffer or array: it was default-constructed or "
                   "moved from. Create it with a device.",
                   site)
        .with("id", std::uint64_t{0});
  }
  const Result<std::size_t> added =
      uses.try_add_borrowed(use.storage(), use.offset_bytes(), use.bytes(), use.access(), site);
  return added ? Result<void>() : Result<void>(added.failure());
}

}  // namespace

std::size_t poll_graphs() noexcept {
  std::size_t left = 0;
  GraphState* state = waiting_graphs.exchange(nullptr, std::memory_order_acquire);
  while (state != nullptr) {
    GraphState* const next = state->next;
    if (state->is_done()) {
      const std::unique_ptr<GraphState> gone(state);
      // A device that has closed has destroyed the graph.
      if (const std::shared_ptr<DeviceState> device = state->device_state.lock()) {
        device->inner_handle().destroy_graph(state->native);
      }
    } else {
      wait_for(state);
      ++left;
    }
    state = next;
  }
  return left;
}

const Device& Graph::device() const noexcept {
  static const Device none;
  return state_ ? state_->device : none;
}

NativeGraph Graph::native() const noexcept { return state_ ? state_->native : NativeGraph{}; }

Result<Mark> Graph::try_launch_with(LaunchStream on,
                                    std::span<const LaunchArgument> declared) const noexcept {
  const auto& [stream, site] = on;
  if (!state_) return empty_graph(site);
  GraphState& graph = *state_;
  if (Result<void> right = check_stream(graph, stream, site); !right) return right.failure();
  UseScope uses(stream);
  for (const LaunchArgument& use : declared) {
    if (Result<void> added = add_use(uses, use, site); !added) return added.failure();
  }
  for (const CapturedUse& use : graph.captured->uses()) {
    const Result<std::size_t> added =
        uses.try_add_borrowed(use.storage.get(), use.offset, use.bytes, use.access, site);
    if (!added) return added.failure();
  }
  if (Result<void> begun = uses.try_begin(site); !begun) return begun.failure();
  for (const std::shared_ptr<KernelState>& kernel : graph.captured->kernels()) {
    if (Result<void> noted = try_note_launch(*kernel, stream, site); !noted) {
      uses.cancel();
      return noted.failure();
    }
  }
  const std::lock_guard lock(graph.mutex);
  Result<void> launched = stream.try_launch_graph(graph.native, site);
  if (!launched && launched.failure().code() != ErrorCode::violation) {
    uses.cancel();
    return launched.failure();
  }
  const Result<Mark> mark = stream.try_mark();
  if (mark) graph.last_launch = *mark;
  // After a violation, a part of the work was submitted.
  uses.finish(launched ? UseScope::Outcome::submitted : UseScope::Outcome::unknown);
  if (!launched) return launched.failure();
  return mark;
}

GraphCapture::GraphCapture(StreamRef stream, ResourceHandle memory, CallSite site)
    : GraphCapture(try_begin(stream, std::move(memory), site).value()) {}

Result<GraphCapture> GraphCapture::try_begin(StreamRef stream, ResourceHandle memory,
                                             CallSite site) noexcept {
  Result<std::shared_ptr<CapturedUses>> uses = CapturedUses::try_open(stream, site);
  if (!uses) return uses.failure();
  if (Result<void> begun = stream.try_begin_capture(site); !begun) {
    CapturedUses::close(*uses);
    return begun.failure();
  }
  return GraphCapture(stream, stream.device(), std::move(memory), *std::move(uses));
}

GraphCapture::GraphCapture(GraphCapture&& other) noexcept
    : stream_(other.stream_),
      device_(std::move(other.device_)),
      memory_(std::move(other.memory_)),
      uses_(std::move(other.uses_)),
      is_active_(std::exchange(other.is_active_, false)) {}

GraphCapture::~GraphCapture() {
  if (!is_active_) return;
  stream_.abort_capture();
  CapturedUses::close(uses_);
}

Result<Graph> GraphCapture::try_end(CallSite site) noexcept {
  if (!is_active_) {
    return Failure(ErrorCode::stream_misuse,
                   "the capture on stream {stream} cannot end: {why}. Begin a new capture.", site)
        .with("stream", stream_.id().number())
        .with("why", "it has already ended");
  }
  is_active_ = false;
  CapturedUses::close(uses_);
  static_cast<void>(poll_graphs());
  // Before the capture ends, because it cannot be undone.
  std::shared_ptr<GraphState> state;
  try {
    state = std::shared_ptr<GraphState>(new GraphState, [](GraphState* gone) {
      finish(gone);
      static_cast<void>(poll_graphs());
    });
  } catch (const std::bad_alloc&) {
    stream_.abort_capture();
    return no_host_memory(sizeof(GraphState), "a graph", site);
  }
  state->device = std::move(device_);
  state->device_state = DeviceState::of(state->device)->weak_from_this();
  state->memory = std::move(memory_);
  state->captured = std::move(uses_);
  const Result<NativeGraph> native = stream_.try_end_capture(site);
  if (!native) return native.failure();
  state->native = *native;
  return Graph(std::move(state));
}

}  // namespace tern
