#include "tern/detail/device/backend.hpp"

#include <algorithm>

#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern {
namespace {

/// The failure of a function that a backend did not implement. Device and StreamRef only call
/// declared capabilities, so this failure means that the backend declares more than it implements.
Failure missing(const Backend& backend, const char* what) noexcept {
  return Failure(
             ErrorCode::unsupported,
             "device '{device}' does not support {what}. `tern info --all` lists what each device "
             "can do.")
      .with("what", what)
      .with("device", backend.info().spec);
}

}  // namespace

bool ManagedInfo::is_accessed_by(Place place) const noexcept {
  return std::ranges::find(accessed_by, place) != accessed_by.end();
}

Result<LaunchSize> LaunchSize::try_for_elements(std::uint64_t count, std::uint32_t block_threads,
                                                CallSite site) noexcept {
  if (block_threads == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a block of 0 threads cannot process {count} elements. Use at least 1 thread "
                   "per block.",
                   site)
        .with("name", "block_threads")
        .with("value", std::uint64_t{0})
        .with("count", count);
  }
  constexpr std::uint64_t max_blocks = 0x7FFF'FFFF;  // the limit of the first axis on all GPUs
  const std::uint64_t blocks = count / block_threads + (count % block_threads == 0 ? 0 : 1);
  if (blocks > max_blocks) {
    return Failure(ErrorCode::size_overflow,
                   "{what} of {count} elements needs {blocks} blocks of {threads} threads, and the "
                   "maximum is {max} blocks. Let each thread process several elements.",
                   site)
        .with("what", "a launch")
        .with("count", count)
        .with("blocks", blocks)
        .with("threads", block_threads)
        .with("max", max_blocks);
  }
  return LaunchSize{{static_cast<std::uint32_t>(blocks), 1, 1}, {block_threads, 1, 1}};
}

Backend::~Backend() = default;

void Backend::opened_as(DeviceId) noexcept {}

Result<void*> Backend::allocate_async(const Submission&, std::size_t, std::size_t) noexcept {
  return missing(*this, "stream-ordered allocation");
}
Result<void> Backend::release_async(const Submission&, void*) noexcept {
  return missing(*this, "stream-ordered release");
}
Result<DriverPoolInfo> Backend::driver_pool() noexcept {
  return missing(*this, "driver pool settings");
}
Result<void> Backend::set_driver_pool(const DriverPoolSettings&) noexcept {
  return missing(*this, "driver pool settings");
}
Result<void> Backend::reset_driver_pool_peaks() noexcept {
  return missing(*this, "driver pool settings");
}
Result<void> Backend::set_driver_pool_access(Backend&, bool) noexcept {
  return missing(*this, "driver pool settings");
}
Result<void*> Backend::register_host(void*, std::size_t) noexcept {
  return missing(*this, "registering host memory");
}
Result<void> Backend::unregister_host(void*) noexcept {
  return missing(*this, "unregistering host memory");
}
Result<void*> Backend::reserve(std::size_t) noexcept {
  return missing(*this, "address reservation");
}
Result<void> Backend::unreserve(void*, std::size_t) noexcept {
  return missing(*this, "address reservation");
}
Result<NativePages> Backend::create_pages(std::size_t) noexcept {
  return missing(*this, "page creation");
}
Result<void> Backend::release_pages(NativePages) noexcept {
  return missing(*this, "page creation");
}
Result<NativePages> Backend::create_shareable_pages(std::size_t) noexcept {
  return missing(*this, "shareable pages");
}
Result<int> Backend::export_pages(NativePages) noexcept {
  return missing(*this, "shareable pages");
}
Result<NativePages> Backend::import_pages(int, std::size_t) noexcept {
  return missing(*this, "shareable pages");
}
Result<void> Backend::map(void*, NativePages) noexcept { return missing(*this, "page mapping"); }
Result<void> Backend::unmap(void*, std::size_t) noexcept { return missing(*this, "page mapping"); }
Result<void> Backend::set_access(void*, std::size_t, PageAccess) noexcept {
  return missing(*this, "page access");
}
Result<void> Backend::copy_from_peer(const Submission&, void*, Backend&, const void*,
                                     std::size_t) noexcept {
  return missing(*this, "peer copies");
}
Result<void> Backend::copy_batch(const Submission& submission,
                                 std::span<const CopyRange> copies) noexcept {
  for (const CopyRange& one : copies) {
    if (Result<void> queued = copy(submission, one.destination, one.source, one.bytes); !queued) {
      return queued;
    }
  }
  return {};
}
Result<void> Backend::call_current(HostFunction function, void* context) noexcept {
  function(context);
  return {};
}
Result<BorrowedStream> Backend::borrow_stream(NativeStream) noexcept {
  return missing(*this, "borrowing streams");
}

StreamIdentity Backend::identify_stream(NativeStream) noexcept { return {}; }

void Backend::forget_stream(NativeStream) noexcept {}

Result<void> Backend::synchronize_everything() noexcept { return synchronize(); }
NativeStream Backend::native_handle(NativeStream stream) noexcept { return stream; }
Result<bool> Backend::is_capturing(NativeStream) noexcept { return false; }
Result<bool> Backend::enable_peer_access(Backend&) noexcept { return false; }
Result<PeerAccess> Backend::peer_access(Backend&) noexcept { return PeerAccess::unavailable; }
Result<void> Backend::disable_peer_access(Backend&) noexcept { return {}; }
Result<std::uint64_t> Backend::elapsed_ns(NativeEvent, NativeEvent) noexcept {
  return missing(*this, "event timing");
}
Result<void> Backend::call_host(const Submission&, HostFunction, void*) noexcept {
  return missing(*this, "host functions");
}
Result<void> Backend::prefetch(const Submission&, void*, std::size_t, Place) noexcept {
  return missing(*this, "prefetching");
}
Result<void> Backend::prefetch_batch(const Submission& submission,
                                     std::span<const PrefetchRange> ranges,
                                     std::size_t& submitted) noexcept {
  for (submitted = 0; submitted < ranges.size(); ++submitted) {
    const PrefetchRange& one = ranges[submitted];
    if (Result<void> queued = prefetch(submission, one.address, one.bytes, one.destination);
        !queued) {
      return queued;
    }
  }
  return {};
}
Result<void> Backend::discard(const Submission&, void*, std::size_t,
                              std::optional<Place>) noexcept {
  return missing(*this, "discarding");
}
Result<void> Backend::advise(void*, std::size_t, Advice, Place) noexcept {
  return missing(*this, "advice");
}
Result<ManagedInfo> Backend::managed_info(const void*, std::size_t) noexcept {
  return missing(*this, "advice");
}
Result<NativeKernel> Backend::load_kernel(const KernelSource&) noexcept {
  return missing(*this, "kernels");
}
void Backend::unload_kernel(NativeKernel) noexcept {}
Result<KernelInfo> Backend::kernel_info(NativeKernel) noexcept { return KernelInfo{}; }
Result<void> Backend::launch(const Submission&, NativeKernel, const LaunchSize&,
                             std::span<const KernelArgument>) noexcept {
  return missing(*this, "kernels");
}
Result<void> Backend::begin_capture(NativeStream) noexcept { return missing(*this, "graphs"); }
Result<NativeGraph> Backend::end_capture(NativeStream) noexcept { return missing(*this, "graphs"); }
void Backend::abort_capture(NativeStream) noexcept {}
Result<void> Backend::launch_graph(const Submission&, NativeGraph) noexcept {
  return missing(*this, "graphs");
}
void Backend::destroy_graph(NativeGraph) noexcept {}
Result<void> Backend::note_host_access(const void*, std::size_t, Access, CallSite) noexcept {
  return {};
}
void Backend::note_suballocate(const Submission&, const Suballocation&) noexcept {}
void Backend::note_subrelease(const Submission&, const Suballocation&) noexcept {}

}  // namespace tern
