#include "backends/host/host_backend.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backends/handle_table.hpp"
#include "backends/host/host_kernels.hpp"
#include "backends/host/host_pages.hpp"
#include "backends/host/host_stream.hpp"
#include "backends/host/machine.hpp"
#include "backends/managed_range.hpp"
#include "core/memory_tool.hpp"
#include "core/no_host_memory.hpp"
#include "core/spans_in_flight.hpp"
#include "core/worker_team.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

/// The object behind a NativeEvent: the latest record and, for timed events, its time.
struct HostEvent {
  std::mutex mutex;
  Position position;                 // guarded by mutex
  std::uint64_t records = 0;         // guarded by mutex
  std::shared_ptr<TimeStamp> stamp;  // null without timing; constant

  Position latest() noexcept {
    const std::lock_guard lock(mutex);
    return position;
  }
};

/// The object behind a NativeStream. The stream is shared, because positions outlive handles.
using StreamHandle = std::shared_ptr<HostStream>;

template <class T, class Native>
T& target(Native native) noexcept {
  return *reinterpret_cast<T*>(native.value);
}

std::uintptr_t word(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Returns whether a value argument could contain an address. Only a count above four billion is
/// mistaken for one.
bool may_hold_address(const KernelArgument& argument) noexcept {
  std::uintptr_t value = 0;
  for (std::size_t at = 0; at + sizeof value <= argument.value_bytes; at += sizeof value) {
    std::memcpy(&value, static_cast<const std::byte*>(argument.value) + at, sizeof value);
    if (value >= 4 * gib) return true;
  }
  return false;
}

/// The memory that a kernel may access: the ranges of its arguments, and anything if a value may be
/// an address.
SpansNumber kernel_submitted(const SpansOrigin& origin, std::span<const KernelArgument> arguments) {
  std::vector<HostSpan> spans;
  for (const KernelArgument& argument : arguments) {
    if (argument.range_bytes > 0) {
      spans.push_back({argument.range_address, argument.range_bytes});
    } else if (may_hold_address(argument)) {
      return anything_submitted(origin);
    }
  }
  return spans_submitted(origin, spans);
}

DeviceInfo describe(const HostOptions& options) {
  DeviceInfo info;
  info.backend = "host";
  info.spec = options.spec;
  info.name = processor_name();
  info.driver = system_version();
  info.capabilities = {Capability::host_access,     Capability::pinned_memory,
                       Capability::managed_memory,  Capability::concurrent_managed,
                       Capability::prefetch,        Capability::virtual_memory,
                       Capability::host_functions,  Capability::stream_ordered_memory,
                       Capability::event_timing,    Capability::kernels,
                       Capability::float64,         Capability::memory_after_fork,
                       Capability::shareable_memory};
  info.total_bytes = total_bytes();
  info.alignment = 64;
  info.max_alignment = 256 * mib;
  info.page_bytes = HostPages::page_bytes;
  info.processors = static_cast<std::uint32_t>(usable_cores());
  info.is_host = true;
  return info;
}

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostOptions& options)
      : info_(describe(options)),
        team_(std::make_shared<WorkerTeam>(options.threads)),
        memory_(options.memory, info_.total_bytes),
        pages_(info_.total_bytes),
        default_stream_(std::make_shared<HostStream>(team_, true)) {
    streams_.push_back(default_stream_);
  }

  ~HostBackend() override {
    // Like synchronize(), but without allocating, because a destructor must not fail.
    for (const StreamHandle& stream : streams_) stream->position().wait();
    default_stream_->close();
    spans_lost(this);
  }

  const DeviceInfo& info() const noexcept override { return info_; }

  Result<MemoryInfo> memory() noexcept override {
    return MemoryInfo{available_bytes(), info_.total_bytes};
  }

  Result<void> synchronize() noexcept override {
    try {
      std::vector<Position> ends;
      {
        const std::lock_guard lock(streams_mutex_);
        for (const StreamHandle& stream : streams_) ends.push_back(stream->position());
      }
      for (const Position& end : ends) end.wait();
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(Position), "synchronisation");
    }
    return {};
  }

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite,
                         Tag) noexcept override {
    return memory_.allocate(kind, bytes, alignment);
  }
  Result<void> release(void* address, CallSite) noexcept override {
    return memory_.release(address);
  }
  Result<PointerInfo> pointer_info(const void* address) noexcept override {
    PointerInfo info;
    if (pages_.find(address, info)) return info;
    return memory_.find(address).value_or(PointerInfo{});
  }

  Result<void*> allocate_async(const Submission&, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    return memory_.allocate(MemoryKind::device, bytes, alignment);
  }
  Result<void> release_async(const Submission& submission, void* address) noexcept override {
    if (Result<void> begun = memory_.begin_release(address); !begun) return begun;
    Result<void> queued = submit(submission, ReleaseOperation{&memory_, address});
    if (!queued) memory_.cancel_release(address);
    return queued;
  }

  Result<void*> reserve(std::size_t bytes) noexcept override { return pages_.reserve(bytes); }
  Result<void> unreserve(void* address, std::size_t bytes) noexcept override {
    return pages_.unreserve(address, bytes);
  }
  Result<NativePages> create_pages(std::size_t bytes) noexcept override {
    return pages_.create(bytes);
  }
  Result<void> release_pages(NativePages pages) noexcept override { return pages_.release(pages); }
  Result<NativePages> create_shareable_pages(std::size_t bytes) noexcept override {
    return pages_.create_shareable(bytes);
  }
  Result<int> export_pages(NativePages pages) noexcept override {
    return pages_.export_file(pages);
  }
  Result<NativePages> import_pages(int descriptor, std::size_t bytes) noexcept override {
    return pages_.import_file(descriptor, bytes);
  }
  Result<void> map(void* address, NativePages pages) noexcept override {
    return pages_.map(address, pages);
  }
  Result<void> unmap(void* address, std::size_t bytes) noexcept override {
    return pages_.unmap(address, bytes);
  }
  Result<void> set_access(void* address, std::size_t bytes, PageAccess access) noexcept override {
    return pages_.set_access(address, bytes, access);
  }

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    const CopyOperation operation{destination, source, bytes};
    if (memory_tool() == nullptr) return submit(submission, operation);
    const HostSpan spans[] = {{destination, bytes, use_of(destination)}, {source, bytes}};
    return submit_watched(submission, operation, spans_submitted({this, submission.site}, spans));
  }
  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    if (memory_tool() == nullptr) return submit(submission, copy);
    const auto extent = [&](std::size_t pitch_bytes) {
      return pitch_bytes * (copy.height - 1) + copy.width_bytes;
    };
    // The bytes between the rows do not belong to the copy.
    const bool is_dense = copy.destination_pitch_bytes == copy.width_bytes;
    const HostSpan spans[] = {{copy.destination, extent(copy.destination_pitch_bytes),
                               is_dense ? use_of(copy.destination) : HostSpan::Use::written},
                              {copy.source, extent(copy.source_pitch_bytes)}};
    return submit_watched(submission, copy, spans_submitted({this, submission.site}, spans));
  }
  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    const HostSpan span{destination, bytes, HostSpan::Use::written};
    return submit_watched(submission, FillOperation{destination, bytes, pattern},
                          spans_submitted({this}, {&span, 1}));
  }

  NativeStream default_stream() noexcept override { return {word(&default_stream_)}; }

  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    try {
      auto handle =
          std::make_unique<StreamHandle>(std::make_shared<HostStream>(team_, options.blocking));
      const std::lock_guard lock(streams_mutex_);
      if (streams_.size() == streams_.capacity()) forget_finished();
      streams_.push_back(*handle);
      if (options.blocking) blocking_streams_.fetch_add(1, std::memory_order_relaxed);
      return NativeStream{word(handle.release())};
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(HostStream), "a stream");
    }
  }

  void destroy_stream(NativeStream native) noexcept override {
    const std::unique_ptr<StreamHandle> handle(&target<StreamHandle>(native));
    (*handle)->close();
    // A closed stream with pending work stays in the list until the work is done, so that
    // synchronize() and the default stream still wait for it. The list is searched only after many
    // streams have closed; otherwise destroying thousands of streams would take quadratic time.
    const std::lock_guard lock(streams_mutex_);
    if (2 * ++closed_streams_ > streams_.size()) forget_finished();
  }

  Result<bool> query(NativeStream native) noexcept override {
    return target<StreamHandle>(native)->position().is_passed();
  }
  Result<void> synchronize(NativeStream native) noexcept override {
    target<StreamHandle>(native)->position().wait();
    return {};
  }

  Result<NativeEvent> create_event(bool has_timing) noexcept override {
    try {
      auto event = std::make_unique<HostEvent>();
      if (has_timing) event->stamp = std::make_shared<TimeStamp>();
      return NativeEvent{word(event.release())};
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(HostEvent), "an event");
    }
  }
  void destroy_event(NativeEvent event) noexcept override { delete &target<HostEvent>(event); }

  Result<void> record(const Submission& submission, NativeEvent native) noexcept override {
    HostEvent& event = target<HostEvent>(native);
    HostStream& stream = *target<StreamHandle>(submission.stream);
    const std::lock_guard lock(event.mutex);
    if (event.stamp) {
      Result<void> queued = submit(submission, StampOperation{event.stamp, event.records + 1});
      if (!queued) return queued;
    }
    ++event.records;
    event.position = stream.position();
    return {};
  }

  Result<void> wait(const Submission& submission, NativeEvent native) noexcept override {
    if (native.value == 0) return {};
    Position position = target<HostEvent>(native).latest();
    if (position.is_passed()) return {};
    return submit(submission, std::move(position));
  }
  Result<bool> query(NativeEvent event) noexcept override {
    return target<HostEvent>(event).latest().is_passed();
  }
  Result<void> synchronize(NativeEvent event) noexcept override {
    target<HostEvent>(event).latest().wait();
    return {};
  }
  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    const auto time_of = [](NativeEvent native) {
      const std::shared_ptr<TimeStamp>& stamp = target<HostEvent>(native).stamp;
      const std::lock_guard lock(stamp->mutex);
      return stamp->time_ns;
    };
    const std::uint64_t first = time_of(start);
    const std::uint64_t last = time_of(end);
    return last - std::min(first, last);
  }

  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    return submit_watched(submission, CallOperation{function, context}, anything_submitted({this}));
  }

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    if (destination.kind() == Place::Kind::host_numa && !has_numa_node(destination.index())) {
      return Failure(
                 ErrorCode::invalid_device,
                 "memory cannot be prefetched to NUMA node {node}: this machine has no such node.")
          .with("spec", "host")
          .with("node", destination.index());
    }
    if (destination.kind() == Place::Kind::file) {
      return Failure(ErrorCode::invalid_device,
                     "memory of the host device cannot be prefetched to a file. Use the host as "
                     "the place.")
          .with("spec", "file");
    }
    if (Result<void> inside = check_managed_range(memory_.find(address), address, bytes, info_);
        !inside) {
      return inside;
    }
    return submit(submission, TouchOperation{address, bytes, system_page_bytes()});
  }

  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    KernelFunction function;
    function.body = source.body;
    function.context = source.context;
    function.splits = source.splits;
    if (source.body == nullptr && source.program) {
      Result<KernelFunction> compiled = try_compile(source);
      if (!compiled) return compiled.failure();
      function = *std::move(compiled);
    } else if (source.body == nullptr) {
      return Failure(ErrorCode::unsupported,
                     "the host runs {what} only, and kernel '{kernel}' has no C++ function. Set "
                     "the body of the kernel.")
          .with("what", "kernels written as C++ functions")
          .with("kernel", source.entry);
    }
    if (source.program) function.elements_per_thread = elements_per_thread(*source.program);
    const NativeKernel kernel{kernels_.add(std::move(function))};
    if (kernel.value == 0) return no_host_memory(sizeof(KernelFunction), "a kernel");
    return kernel;
  }
  void unload_kernel(NativeKernel kernel) noexcept override { kernels_.remove(kernel.value); }

  Result<void> launch(const Submission& submission, NativeKernel native, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    const std::shared_ptr<const KernelFunction> kernel = kernels_.find(native.value);
    if (!kernel) {
      return Failure(ErrorCode::use_after_free,
                     "the kernel was unloaded, or was loaded on another device. Keep the kernel "
                     "loaded until its last launch.");
    }
    try {
      auto launch = std::make_unique<KernelLaunch>(*kernel, std::string(), size, arguments);
      if (memory_tool() == nullptr) return submit(submission, std::move(launch));
      return submit_watched(submission, std::move(launch), kernel_submitted({this}, arguments));
    } catch (const std::bad_alloc&) {
      return no_host_memory(sizeof(KernelLaunch), "a launch");
    }
  }

 private:
  /// Call with streams_mutex_ held.
  void forget_finished() noexcept {
    closed_streams_ = 0;
    std::erase_if(streams_, [&](const StreamHandle& stream) {
      if (!stream->is_finished()) return false;
      if (stream->is_blocking()) blocking_streams_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    });
  }

  /// The destination of a copy, for the memory tool. Memory that the device did not allocate
  /// belongs to the program, such as a vector.
  HostSpan::Use use_of(const void* destination) noexcept {
    PointerInfo info;
    const bool is_own = pages_.find(destination, info) || memory_.find(destination);
    return is_own ? HostSpan::Use::written : HostSpan::Use::awaited;
  }

  /// The stream unpoisons the memory right before the operation.
  Result<void> submit_watched(const Submission& submission, Operation&& operation,
                              SpansNumber number) noexcept {
    if (number == 0) return submit(submission, std::move(operation));
    if (!submit(submission, CallOperation{run_spans, as_context(number)})) {
      spans_ended(number);
      return submit(submission, std::move(operation));
    }
    Result<void> queued = submit(submission, std::move(operation));
    if (queued) {
      // If the end of the operation cannot be queued, the operation counts as queued for ever, and
      // less memory is poisoned.
      static_cast<void>(submit(submission, CallOperation{end_spans, as_context(number)}));
    } else {
      spans_ended(number);
    }
    return queued;
  }

  Result<void> submit(const Submission& submission, Operation&& operation) noexcept {
    HostStream& stream = *target<StreamHandle>(submission.stream);
    if (stream.is_blocking() && blocking_streams_.load(std::memory_order_relaxed) > 0) {
      if (Result<void> ordered = order_with_default(stream); !ordered) return ordered;
    }
    return stream.submit(std::move(operation));
  }

  /// Orders work of the default stream after all earlier work of blocking streams, and vice versa.
  Result<void> order_with_default(HostStream& stream) noexcept {
    if (&stream != default_stream_.get()) {
      Position position = default_stream_->position();
      return position.is_passed() ? Result<void>() : stream.submit(std::move(position));
    }
    const std::lock_guard lock(streams_mutex_);
    for (const StreamHandle& other : streams_) {
      if (!other->is_blocking() || other == default_stream_) continue;
      Position position = other->position();
      if (position.is_passed()) continue;
      if (Result<void> ordered = stream.submit(std::move(position)); !ordered) return ordered;
    }
    return {};
  }

  const DeviceInfo info_;
  const std::shared_ptr<WorkerTeam> team_;
  HostMemory memory_;
  HostPages pages_;
  HandleTable<KernelFunction> kernels_;

  StreamHandle default_stream_;
  std::mutex streams_mutex_;
  std::vector<StreamHandle> streams_;  // guarded by streams_mutex_
  std::size_t closed_streams_ = 0;     // guarded by streams_mutex_; closed since the last search
  std::atomic<std::size_t> blocking_streams_ = 0;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(const HostOptions& options) noexcept {
  try {
    return std::unique_ptr<Backend>(std::make_unique<HostBackend>(options));
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(HostBackend), "the host device");
  }
}

}  // namespace tern::host
