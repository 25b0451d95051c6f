#include "backends/opencl/opencl_backend.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "backends/handle_table.hpp"
#include "backends/managed_range.hpp"
#include "backends/opencl/opencl_context.hpp"
#include "backends/opencl/opencl_errors.hpp"
#include "backends/opencl/opencl_event.hpp"
#include "backends/opencl/opencl_kernel.hpp"
#include "backends/opencl/opencl_memory.hpp"
#include "backends/opencl/opencl_stream.hpp"
#include "core/memory_tool.hpp"
#include "core/no_host_memory.hpp"
#include "core/spans_in_flight.hpp"
#include "tern/core/bytes.hpp"

namespace tern::opencl {
namespace {

/// What a NativeEvent points to: where its latest record stands.
struct RecordedEvent {
  explicit RecordedEvent(bool is_timed) noexcept : has_timing(is_timed) {}

  const bool has_timing;
  std::mutex mutex;
  Position position;  // guarded by mutex

  Position latest() noexcept {
    const std::lock_guard lock(mutex);
    return position;
  }
};

template <class T, class Native>
T& target(Native native) noexcept {
  return *reinterpret_cast<T*>(native.value);
}

std::uintptr_t word(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Since 2.1; loaders have the entry whether or not the device behind them does.
bool can_migrate(const Context& context) noexcept {
  const DeviceFacts& facts = context.facts();
  const bool is_new =
      facts.version_major > 2 || (facts.version_major == 2 && facts.version_minor > 0);
  return is_new && context.table().clEnqueueSVMMigrateMem != nullptr;
}

DeviceInfo describe(const Context& context) {
  const DeviceFacts& facts = context.facts();
  DeviceInfo info;
  info.backend = "opencl";
  info.spec = context.spec();
  info.name = facts.name;
  info.driver = facts.driver;
  info.capabilities = {Capability::host_functions, Capability::stream_ordered_memory,
                       Capability::event_timing};
  if (facts.has_compiler) info.capabilities = info.capabilities.with(Capability::kernels);
  if (facts.has_float64) info.capabilities = info.capabilities.with(Capability::float64);
  if (facts.is_fine_grained()) {
    info.capabilities = info.capabilities.with(Capability::host_access)
                            .with(Capability::managed_memory)
                            .with(Capability::concurrent_managed);
    if (can_migrate(context)) info.capabilities = info.capabilities.with(Capability::prefetch);
  }
  info.total_bytes = facts.total_bytes;
  info.alignment = Memory::alignment;
  info.max_alignment = Memory::max_alignment;
  info.processors = facts.compute_units;
  info.compute_major = facts.version_major;
  info.compute_minor = facts.version_minor;
  return info;
}

class OpenClBackend final : public Backend {
 public:
  OpenClBackend(std::shared_ptr<Context> context, std::unique_ptr<Stream> default_stream)
      : info_(describe(*context)),
        context_(std::move(context)),
        memory_(std::make_shared<Memory>(context_)),
        default_stream_(*default_stream) {
    streams_.push_back(std::move(default_stream));
  }

  ~OpenClBackend() override {
    for (const std::unique_ptr<Stream>& stream : streams_) {
      static_cast<void>(wait_until_done(stream->position()));
    }
  }

  void opened_as(DeviceId id) noexcept override { id_ = id; }
  const DeviceInfo& info() const noexcept override { return info_; }

  Result<MemoryInfo> memory() noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    return MemoryInfo{memory_->free_bytes(), info_.total_bytes};
  }

  Result<void> synchronize() noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    try {
      std::vector<Position> ends;
      {
        const std::lock_guard lock(streams_mutex_);
        for (const auto& stream : streams_) ends.push_back(stream->position());
      }
      for (const Position& end : ends) {
        if (Result<void> waited = opencl::wait(end); !waited) return waited;
      }
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(Position), "synchronisation");
    }
    return {};
  }

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite,
                         Tag) noexcept override {
    return memory_->allocate(kind, bytes, alignment);
  }
  Result<void> release(void* address, CallSite) noexcept override {
    return memory_->release(address);
  }
  Result<PointerInfo> pointer_info(const void* address) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    return memory_->find(address).value_or(PointerInfo{});
  }

  Result<void*> allocate_async(const Submission&, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    return memory_->allocate(MemoryKind::device, bytes, alignment);
  }
  Result<void> release_async(const Submission& submission, void* address) noexcept override {
    if (context_->is_lost()) return memory_->release(address);
    if (Result<void> begun = memory_->begin_release(address); !begun) return begun;
    Result<void> queued =
        submit(submission, [&](Stream& stream) { return stream.release(memory_, address); });
    if (!queued) memory_->cancel_release(address);
    return queued;
  }

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    const auto copy = [&](Stream& stream) { return stream.copy(destination, source, bytes); };
    if (memory_tool() == nullptr) return submit(submission, copy);
    return submit_watched(submission, copy_submitted(submission.site, destination, source, bytes),
                          copy);
  }
  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    const auto copy_rows = [&](Stream& stream) { return stream.copy_2d(copy); };
    const bool is_dense = copy.destination_pitch_bytes == copy.width_bytes &&
                          copy.source_pitch_bytes == copy.width_bytes;
    if (memory_tool() == nullptr || !is_dense) return submit(submission, copy_rows);
    const std::size_t bytes = copy.width_bytes * copy.height;
    return submit_watched(submission,
                          copy_submitted(submission.site, copy.destination, copy.source, bytes),
                          copy_rows);
  }
  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    return submit(submission,
                  [&](Stream& stream) { return stream.fill(destination, bytes, pattern); });
  }

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    if (!destination.is_host() && destination != Place::device(id_)) {
      return Failure(ErrorCode::invalid_device,
                     "memory of '{device}' can be prefetched to this device and to the host only. "
                     "Use one of them as the place.")
          .with("spec", info_.spec)
          .with("device", info_.spec);
    }
    if (Result<void> inside = check_managed_range(memory_->find(address), address, bytes, info_);
        !inside) {
      return inside;
    }
    return submit(submission, [&](Stream& stream) {
      return stream.migrate(address, bytes, destination.is_host());
    });
  }

  NativeStream default_stream() noexcept override { return {word(&default_stream_)}; }

  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    Result<std::unique_ptr<Stream>> made = Stream::make(context_, options.blocking);
    if (!made) return made.failure();
    const NativeStream native{word(made->get())};
    try {
      const std::lock_guard lock(streams_mutex_);
      if (streams_.size() == streams_.capacity()) forget_finished();
      streams_.push_back(*std::move(made));
      if (options.blocking) blocking_streams_.fetch_add(1, std::memory_order_relaxed);
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(Stream), "a stream");
    }
    return native;
  }

  void destroy_stream(NativeStream native) noexcept override {
    // One that still has work stays on the list until it is done, so that synchronize() and the
    // default stream go on waiting for it. Looking through the list only after many have closed
    // keeps ending thousands of streams from taking the square of that.
    const std::lock_guard lock(streams_mutex_);
    target<Stream>(native).close();
    if (2 * ++closed_streams_ > streams_.size()) forget_finished();
  }

  Result<bool> query(NativeStream native) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    return is_passed(target<Stream>(native).position());
  }
  Result<void> synchronize(NativeStream native) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    return opencl::wait(target<Stream>(native).position());
  }

  Result<NativeEvent> create_event(bool has_timing) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    try {
      return NativeEvent{word(new RecordedEvent(has_timing))};
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(RecordedEvent), "an event");
    }
  }
  void destroy_event(NativeEvent event) noexcept override { delete &target<RecordedEvent>(event); }

  Result<void> record(const Submission& submission, NativeEvent native) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    RecordedEvent& event = target<RecordedEvent>(native);
    const std::lock_guard lock(event.mutex);
    if (!event.has_timing) {
      // The event of the last command covers all commands before it, so recording queues nothing.
      event.position = target<Stream>(submission.stream).position();
      return {};
    }
    return submit(submission, [&](Stream& stream) -> Result<void> {
      Result<Position> stamped = stream.stamp();
      if (!stamped) return stamped.failure();
      event.position = *std::move(stamped);
      return {};
    });
  }

  Result<void> wait(const Submission& submission, NativeEvent native) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    if (native.value == 0) return {};
    const Position position = target<RecordedEvent>(native).latest();
    const Result<bool> passed = is_passed(position);
    if (!passed) return passed.failure();
    if (*passed) return {};
    return submit(submission, [&](Stream& stream) { return stream.wait(position); });
  }
  Result<bool> query(NativeEvent event) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    return is_passed(target<RecordedEvent>(event).latest());
  }
  Result<void> synchronize(NativeEvent event) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    return opencl::wait(target<RecordedEvent>(event).latest());
  }
  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
    std::uint64_t times[2] = {};
    const Position positions[2] = {target<RecordedEvent>(start).latest(),
                                   target<RecordedEvent>(end).latest()};
    for (std::size_t i = 0; i < 2; ++i) {
      const cl_int code = context_->table().clGetEventProfilingInfo(
          positions[i]->event(), profiling_command_end, sizeof times[i], &times[i], nullptr);
      Result<void> asked = context_->check("clGetEventProfilingInfo", code);
      if (!asked) return asked.failure();
    }
    return times[1] - std::min(times[0], times[1]);
  }

  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    return submit_watched(submission, anything_submitted({context_.get()}),
                          [&](Stream& stream) { return stream.call(function, context); });
  }

  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    Result<std::shared_ptr<Kernel>> loaded = Kernel::load(context_, source);
    if (!loaded) return loaded.failure();
    const NativeKernel kernel{kernels_.add(*std::move(loaded))};
    if (kernel.value == 0) return no_host_memory(sizeof(Kernel), "a kernel");
    return kernel;
  }
  void unload_kernel(NativeKernel kernel) noexcept override { kernels_.remove(kernel.value); }
  Result<KernelInfo> kernel_info(NativeKernel native) noexcept override {
    const std::shared_ptr<const std::shared_ptr<Kernel>> kernel = kernels_.find(native.value);
    if (!kernel) return dead_kernel();
    return (*kernel)->info();
  }

  Result<void> launch(const Submission& submission, NativeKernel native, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    const std::shared_ptr<const std::shared_ptr<Kernel>> kernel = kernels_.find(native.value);
    if (!kernel) return dead_kernel();
    return submit(submission, [&](Stream& stream) {
      return (*kernel)->launch(stream, *memory_, size, arguments);
    });
  }

 private:
  static Failure dead_kernel() noexcept {
    return Failure(ErrorCode::use_after_free,
                   "the kernel was unloaded, or was loaded on another device. Keep the kernel "
                   "loaded until its last launch.");
  }

  /// Call with streams_mutex_ held.
  void forget_finished() noexcept {
    closed_streams_ = 0;
    std::erase_if(streams_, [&](const std::unique_ptr<Stream>& stream) {
      if (!stream->is_finished()) return false;
      if (stream->is_blocking()) blocking_streams_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    });
  }

  /// Returns whether the memory belongs to the program, such as a vector, and not to the device.
  SpansNumber copy_submitted(CallSite site, const void* destination, const void* source,
                             std::size_t bytes) noexcept {
    std::array<HostSpan, 2> spans;
    std::size_t count = 0;
    if (!memory_->find(destination)) {
      spans[count++] = {destination, bytes, HostSpan::Use::awaited};
    }
    if (!memory_->find(source)) spans[count++] = {source, bytes};
    if (count == 0) return 0;
    return spans_submitted({context_.get(), site, true}, std::span(spans.data(), count));
  }

  /// The stream unpoisons the memory right before the command.
  template <class Submit>
  Result<void> submit_watched(const Submission& submission, SpansNumber number,
                              Submit submit_to) noexcept {
    if (number == 0) return submit(submission, submit_to);
    Result<void> queued = submit(submission, [&](Stream& stream) -> Result<void> {
      if (!stream.call(run_spans, as_context(number))) {
        spans_ended(number);
        return submit_to(stream);
      }
      Result<void> put = submit_to(stream);
      // If the end of the command cannot be queued, the command counts as queued for ever, and less
      // memory is poisoned.
      if (put) static_cast<void>(stream.call(end_spans, as_context(number)));
      return put;
    });
    if (!queued) spans_ended(number);
    return queued;
  }

  template <class Submit>
  Result<void> submit(const Submission& submission, Submit submit_to) noexcept {
    if (Result<void> alive = context_->check_alive(); !alive) return alive;
    Stream& stream = target<Stream>(submission.stream);
    if (stream.is_blocking() && blocking_streams_.load(std::memory_order_relaxed) > 0) {
      if (Result<void> ordered = order_with_default(stream); !ordered) return ordered;
    }
    return submit_to(stream);
  }

  /// Orders work of the default stream after all earlier work of blocking streams, and vice versa.
  Result<void> order_with_default(Stream& stream) noexcept {
    const auto follow = [&](Stream& other) -> Result<void> {
      const Position position = other.position();
      const Result<bool> passed = is_passed(position);
      if (!passed) return passed.failure();
      return *passed ? Result<void>() : stream.wait(position);
    };
    if (&stream != &default_stream_) return follow(default_stream_);
    const std::lock_guard lock(streams_mutex_);
    for (const std::unique_ptr<Stream>& other : streams_) {
      if (!other->is_blocking() || other.get() == &default_stream_) continue;
      if (Result<void> ordered = follow(*other); !ordered) return ordered;
    }
    return {};
  }

  const DeviceInfo info_;
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Memory> memory_;
  HandleTable<std::shared_ptr<Kernel>> kernels_;

  Stream& default_stream_;  // the first in the list, never closed
  DeviceId id_;
  std::mutex streams_mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;  // guarded by streams_mutex_
  std::size_t closed_streams_ = 0;  // guarded by streams_mutex_; closed since the last search
  std::atomic<std::size_t> blocking_streams_ = 0;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(const Table& table, const DeviceFacts& facts,
                                              std::string spec) noexcept {
  Result<std::shared_ptr<Context>> context = Context::open(table, facts, std::move(spec));
  if (!context) return context.failure();
  Result<std::unique_ptr<Stream>> stream = Stream::make(*context, true);
  if (!stream) return stream.failure();
  try {
    return std::unique_ptr<Backend>(
        std::make_unique<OpenClBackend>(*std::move(context), *std::move(stream)));
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(OpenClBackend), "an OpenCL device");
  }
}

}  // namespace tern::opencl
