#include "backends/cuda/cuda_backend.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "backends/cuda/context.hpp"
#include "backends/cuda/cuda_copies.hpp"
#include "backends/cuda/cuda_kernels.hpp"
#include "backends/cuda/cuda_managed.hpp"
#include "backends/cuda/cuda_memory.hpp"
#include "backends/cuda/cuda_pages.hpp"
#include "backends/cuda/cuda_peers.hpp"
#include "backends/cuda/cuda_streams.hpp"
#include "backends/cuda/suballocation_notes.hpp"
#include "core/memory_tool.hpp"
#include "core/no_host_memory.hpp"
#include "core/spans_in_flight.hpp"
#include "tern/core/bytes.hpp"

namespace tern::cuda {
namespace {

/// Derives the capabilities of the device from its driver attributes.
Capabilities capabilities_of(const Context& context, std::size_t page_bytes) {
  Capabilities all = {Capability::pinned_memory,   Capability::host_functions,
                      Capability::event_timing,    Capability::kernels,
                      Capability::float64,         Capability::peer_copies,
                      Capability::borrowed_streams};
  if (context.attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0) {
    all = all.with(Capability::registered_memory);
  }
  if (context.attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0) {
    all = all.with(Capability::stream_ordered_memory);
  }
  if (page_bytes != 0) {
    all = all.with(Capability::virtual_memory);
    if (context.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0) {
      all = all.with(Capability::shareable_memory);
    }
  }
  if (context.attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) != 0) {
    all = all.with(Capability::managed_memory);
    // Without this attribute the driver migrates whole allocations and rejects hints and
    // prefetches.
    if (context.attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0) {
      all = all.with(Capability::concurrent_managed)
                .with(Capability::prefetch)
                .with(Capability::advice);
      if (has_batches(context.driver())) all = all.with(Capability::discard);
    }
  }
  return all;
}

Result<DeviceInfo> describe(Context& context, std::size_t page_bytes) {
  const DriverTable& cu = context.cu();
  DeviceInfo info;
  info.backend = "cuda";
  info.spec = context.spec();
  std::array<char, 128> name = {};
  if (Result<void> named = context.check(
          cu.cuDeviceGetName(name.data(), static_cast<int>(name.size() - 1), context.device()),
          "cuDeviceGetName");
      !named) {
    return named.failure();
  }
  info.name = name.data();
  info.driver = "CUDA " + context.driver().version_text();
  info.capabilities = capabilities_of(context, page_bytes);
  if (Result<void> known = context.check(cu.cuDeviceTotalMem(&info.total_bytes, context.device()),
                                         "cuDeviceTotalMem");
      !known) {
    return known.failure();
  }
  info.alignment = CudaMemory::min_alignment;
  info.max_alignment = 256 * mib;
  info.page_bytes = page_bytes;
  const auto count = [&](CUdevice_attribute attribute) {
    return static_cast<std::uint32_t>(context.attribute(attribute));
  };
  info.processors = count(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.compute_major = count(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  info.compute_minor = count(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return info;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Context> context, DeviceInfo info, std::unique_ptr<Staging> staging,
              std::unique_ptr<SuballocationNotes> notes)
      : context_(std::move(context)),
        info_(std::move(info)),
        notes_(std::move(notes)),
        memory_(*context_),
        pages_(*context_, info_.page_bytes),
        peers_(*context_),
        streams_(*context_),
        copies_(*context_, std::move(staging)),
        managed_(*context_),
        kernels_(*context_) {}

  ~CudaBackend() override {
    static_cast<void>(streams_.synchronize_all());
    note_closed(id_);
  }

  void opened_as(DeviceId id) noexcept override {
    id_ = id;
    try {
      note_opened(context_->driver(), id, context_->device());
    } catch (const std::bad_alloc&) {
      // The place of such memory cannot be a prefetch target; prefetch reports that.
    }
  }
  const DeviceInfo& info() const noexcept override { return info_; }

  Result<MemoryInfo> memory() noexcept override {
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    MemoryInfo memory;
    if (Result<void> asked = context_->check(
            context_->cu().cuMemGetInfo(&memory.free_bytes, &memory.total_bytes), "cuMemGetInfo");
        !asked) {
      return asked.failure();
    }
    if (context_->attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED) != 0) {
      // The driver counts files that the system has cached as used, although the system drops them
      // when memory is needed.
      memory.free_bytes =
          std::max(memory.free_bytes,
                   std::min(memory.total_bytes, context_->driver().available_host_bytes()));
    }
    return memory;
  }
  Result<void> synchronize() noexcept override { return streams_.synchronize_all(); }
  Result<void> call_current(HostFunction function, void* context) noexcept override {
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    function(context);
    return {};
  }

  // --- Memory

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite,
                         Tag) noexcept override {
    return memory_.allocate(kind, bytes, alignment);
  }
  Result<void> release(void* address, CallSite) noexcept override {
    if (notes_) {
      const ContextScope scope(*context_);
      if (scope) notes_->forget(address);
    }
    return memory_.release(address);
  }
  Result<PointerInfo> pointer_info(const void* address) noexcept override {
    if (const std::optional<PointerInfo> mapped = pages_.find(address)) return *mapped;
    return memory_.find(address);
  }
  Result<void*> allocate_async(const Submission& submission, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    const Result<CUstream> stream = streams_.resolve(submission.stream);
    if (!stream) return stream.failure();
    return memory_.allocate_async(*stream, bytes, alignment);
  }
  Result<void> release_async(const Submission& submission, void* address) noexcept override {
    const Result<CUstream> stream = streams_.resolve(submission.stream);
    if (!stream) return stream.failure();
    return memory_.release_async(*stream, address);
  }
  Result<void*> register_host(void* address, std::size_t bytes) noexcept override {
    return memory_.register_host(address, bytes);
  }
  Result<void> unregister_host(void* address) noexcept override {
    return memory_.unregister_host(address);
  }

  // --- Virtual memory

  Result<void*> reserve(std::size_t bytes) noexcept override { return pages_.reserve(bytes); }
  Result<void> unreserve(void* address, std::size_t bytes) noexcept override {
    return pages_.unreserve(address, bytes);
  }
  Result<NativePages> create_pages(std::size_t bytes) noexcept override {
    return pages_.create(bytes);
  }
  Result<NativePages> create_shareable_pages(std::size_t bytes) noexcept override {
    return pages_.create_shareable(bytes);
  }
  Result<int> export_pages(NativePages pages) noexcept override {
    return pages_.export_file(pages);
  }
  Result<NativePages> import_pages(int descriptor, std::size_t bytes) noexcept override {
    return pages_.import_file(descriptor, bytes);
  }
  Result<void> release_pages(NativePages pages) noexcept override { return pages_.release(pages); }
  Result<void> map(void* address, NativePages pages) noexcept override {
    return pages_.map(address, pages);
  }
  Result<void> unmap(void* address, std::size_t bytes) noexcept override {
    return pages_.unmap(address, bytes);
  }
  Result<void> set_access(void* address, std::size_t bytes, PageAccess access) noexcept override {
    return pages_.set_access(address, bytes, access);
  }

  // --- The driver's pool

  Result<DriverPoolInfo> driver_pool() noexcept override { return memory_.driver_pool().info(); }
  Result<void> set_driver_pool(const DriverPoolSettings& settings) noexcept override {
    return memory_.driver_pool().set(settings);
  }
  Result<void> reset_driver_pool_peaks() noexcept override {
    return memory_.driver_pool().reset_peaks();
  }
  Result<void> set_driver_pool_access(Backend& peer, bool is_allowed) noexcept override {
    if (Result<void> same = check_driver(peer); !same) return same;
    return memory_.driver_pool().set_access(*peer_of(peer).context_, is_allowed);
  }

  // --- Copies and fills

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    return on(submission.stream, [&](CUstream stream) {
      return copies_.copy({stream, submission.is_idle, submission.site}, destination, source,
                          bytes);
    });
  }
  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    return on(submission.stream, [&](CUstream stream) {
      return copies_.copy_2d({stream, submission.is_idle, submission.site}, copy);
    });
  }
  Result<void> copy_batch(const Submission& submission,
                          std::span<const CopyRange> copies) noexcept override {
    // Only for the first copy of the batch could the stream be idle.
    return on(submission.stream, [&](CUstream stream) {
      return copies_.copy_batch({stream, false, submission.site}, copies);
    });
  }
  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    return on(submission.stream,
              [&](CUstream stream) { return copies_.fill(stream, destination, bytes, pattern); });
  }
  Result<void> copy_from_peer(const Submission& submission, void* destination, Backend& peer,
                              const void* source, std::size_t bytes) noexcept override {
    if (Result<void> same = check_driver(peer); !same) return same;
    return on(submission.stream, [&](CUstream stream) {
      return copies_.copy_from_peer(stream, destination, *peer_of(peer).context_, source, bytes);
    });
  }
  Result<bool> enable_peer_access(Backend& backend) noexcept override {
    if (Result<void> same = check_driver(backend); !same) return same.failure();
    CudaBackend& peer = peer_of(backend);
    return peers_.enable(*peer.context_, peer.pages_);
  }
  Result<PeerAccess> peer_access(Backend& backend) noexcept override {
    if (!check_driver(backend)) return PeerAccess::unavailable;
    return peers_.access_to(*peer_of(backend).context_);
  }
  Result<void> disable_peer_access(Backend& backend) noexcept override {
    if (!check_driver(backend)) return {};
    CudaBackend& peer = peer_of(backend);
    return peers_.disable(*peer.context_, peer.pages_);
  }

  // --- Streams and events

  NativeStream default_stream() noexcept override { return CudaStreams::default_stream(); }
  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    return streams_.create(options);
  }
  Result<BorrowedStream> borrow_stream(NativeStream handle) noexcept override {
    return streams_.borrow(handle);
  }
  StreamIdentity identify_stream(NativeStream handle) noexcept override {
    return streams_.identify(handle);
  }
  void forget_stream(NativeStream stream) noexcept override { streams_.forget(stream); }
  Result<void> synchronize_everything() noexcept override { return streams_.synchronize_context(); }
  NativeStream native_handle(NativeStream stream) noexcept override {
    return CudaStreams::handle_of(stream);
  }
  void destroy_stream(NativeStream stream) noexcept override { streams_.destroy(stream); }
  Result<bool> query(NativeStream stream) noexcept override { return streams_.query(stream); }
  Result<void> synchronize(NativeStream stream) noexcept override {
    return streams_.synchronize(stream);
  }
  Result<bool> is_capturing(NativeStream stream) noexcept override {
    return streams_.is_capturing(stream);
  }
  Result<NativeEvent> create_event(bool has_timing) noexcept override {
    return streams_.create_event(has_timing);
  }
  void destroy_event(NativeEvent event) noexcept override { streams_.destroy_event(event); }
  Result<void> record(const Submission& submission, NativeEvent event) noexcept override {
    return streams_.record(submission, event);
  }
  Result<void> wait(const Submission& submission, NativeEvent event) noexcept override {
    return streams_.wait(submission, event);
  }
  Result<bool> query(NativeEvent event) noexcept override { return streams_.query(event); }
  Result<void> synchronize(NativeEvent event) noexcept override {
    return streams_.synchronize(event);
  }
  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    return streams_.elapsed_ns(start, end);
  }
  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    const auto call = [&](HostFunction called, void* with) {
      return on(submission.stream, [&](CUstream stream) {
        return context_->check(context_->cu().cuLaunchHostFunc(stream, called, with),
                               "cuLaunchHostFunc");
      });
    };
    if (memory_tool() == nullptr) return call(function, context);
    // Nothing is added to a graph.
    const Result<bool> is_captured = streams_.is_capturing(submission.stream);
    if (!is_captured || *is_captured) return call(function, context);
    const SpansNumber number = anything_submitted({context_.get()});
    Result<void> queued = call(function, context);
    if (!queued) {
      spans_ended(number);
    } else if (number != 0) {
      // If this fails, the function counts as queued until the device is closed, and less memory is
      // poisoned.
      static_cast<void>(call(end_spans, as_context(number)));
    }
    return queued;
  }

  // --- Managed memory

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    if (Result<void> inside = check_managed(address, bytes); !inside) return inside;
    return on(submission.stream, [&](CUstream stream) {
      return managed_.prefetch(stream, address, bytes, destination);
    });
  }
  Result<void> prefetch_batch(const Submission& submission, std::span<const PrefetchRange> ranges,
                              std::size_t& submitted) noexcept override {
    submitted = 0;
    // An invalid range is left to the loop, which names it after it has submitted the ranges before
    // it.
    for (const PrefetchRange& one : ranges) {
      if (!check_managed(one.address, one.bytes)) {
        return Backend::prefetch_batch(submission, ranges, submitted);
      }
    }
    return on(submission.stream,
              [&](CUstream stream) { return managed_.prefetch_batch(stream, ranges, submitted); });
  }
  Result<void> discard(const Submission& submission, void* address, std::size_t bytes,
                       std::optional<Place> destination) noexcept override {
    if (Result<void> inside = check_managed(address, bytes); !inside) return inside;
    return on(submission.stream, [&](CUstream stream) {
      return managed_.discard(stream, address, bytes, destination);
    });
  }
  Result<void> advise(void* address, std::size_t bytes, Advice advice,
                      Place place) noexcept override {
    if (Result<void> inside = check_managed(address, bytes); !inside) return inside;
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    return managed_.advise(address, bytes, advice, place);
  }
  Result<ManagedInfo> managed_info(const void* address, std::size_t bytes) noexcept override {
    if (Result<void> inside = check_managed(address, bytes); !inside) return inside.failure();
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    return managed_.info(address, bytes);
  }

  // --- Kernels

  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    return kernels_.load(source);
  }
  void unload_kernel(NativeKernel kernel) noexcept override { kernels_.unload(kernel); }
  Result<KernelInfo> kernel_info(NativeKernel kernel) noexcept override {
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    return kernels_.info(kernel);
  }
  Result<void> launch(const Submission& submission, NativeKernel kernel, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    return on(submission.stream,
              [&](CUstream stream) { return kernels_.launch(stream, kernel, size, arguments); });
  }

  // --- For attached tools

  void note_suballocate(const Submission&, const Suballocation& block) noexcept override {
    if (!notes_) return;
    // compute-sanitizer does not track mapped pages.
    const std::optional<PointerInfo> whole = memory_.find_own(block.address);
    const ContextScope scope(*context_);  // tools need a current context
    if (whole && scope) notes_->begin(whole->base, whole->bytes, block.address, block.bytes);
  }
  void note_subrelease(const Submission&, const Suballocation& block) noexcept override {
    if (!notes_) return;
    const ContextScope scope(*context_);
    if (scope) notes_->end(block.address);
  }

 private:
  /// Streams have checked that peers are devices of this backend.
  static CudaBackend& peer_of(Backend& backend) noexcept {
    return static_cast<CudaBackend&>(backend);
  }

  /// A simulated device behind the fake driver is not a peer of a real one.
  Result<void> check_driver(Backend& peer) const noexcept {
    if (&peer_of(peer).context_->driver() == &context_->driver()) return {};
    return Failure(ErrorCode::device_mismatch).with("a", info_.spec).with("b", peer.info().spec);
  }

  /// Runs work on a stream: in a scope, with a handle that this thread may use.
  template <class Body>
  Result<void> on(NativeStream native, Body body) noexcept {
    const ContextScope scope(*context_);
    if (!scope) return scope.failure();
    const Result<CUstream> stream = streams_.resolve(native);
    if (!stream) return stream.failure();
    return body(*stream);
  }

  Result<void> check_managed(const void* address, std::size_t bytes) noexcept {
    const Result<PointerInfo> block = memory_.find(address);
    if (!block) return block.failure();
    const auto offset =
        reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(block->base);
    if (block->kind == MemoryKind::managed && is_within(offset, bytes, block->bytes)) return {};
    return Failure(ErrorCode::invalid_argument,
                   "the range of {bytes} at {value} is not inside managed memory of '{device}'. "
                   "Use a range that allocate(MemoryKind::managed) returned.")
        .with("name", "address")
        .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
        .with_bytes("bytes", bytes)
        .with("device", info_.spec);
  }

  const std::unique_ptr<Context> context_;
  const DeviceInfo info_;
  const std::unique_ptr<SuballocationNotes> notes_;
  DeviceId id_;
  CudaMemory memory_;
  CudaPages pages_;
  CudaPeers peers_;
  CudaStreams streams_;
  CudaCopies copies_;
  CudaManaged managed_;
  CudaKernels kernels_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(const Driver& driver,
                                              const CudaOptions& options) noexcept {
  try {
    Result<std::unique_ptr<Context>> context =
        Context::try_open(driver, options.ordinal, options.spec);
    if (!context) return context.failure();
    const Result<std::size_t> page_bytes = CudaPages::granularity(**context);
    if (!page_bytes) return page_bytes.failure();
    Result<DeviceInfo> info = describe(**context, *page_bytes);
    if (!info) return info.failure();
    std::unique_ptr<Staging> staging;
    if (options.staging.ring_bytes != 0 && options.staging.threads != 0) {
      staging = std::make_unique<Staging>(driver.table, (*context)->handle(), options.staging);
    }
    std::unique_ptr<SuballocationNotes> notes = SuballocationNotes::attach(options.nvtx_injection);
    info->wants_notes = notes != nullptr;
    return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(
        *std::move(context), *std::move(info), std::move(staging), std::move(notes)));
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(CudaBackend), "a CUDA device");
  }
}

}  // namespace tern::cuda
