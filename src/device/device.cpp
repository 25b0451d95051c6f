#include "tern/device/device.hpp"

#include <cstddef>
#include <new>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "device/request_checks.hpp"
#include "tern/core/bytes.hpp"
#include "trace/nvtx.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

Failure not_open(const char* what) noexcept {
  return Failure(
             ErrorCode::invalid_device,
             "{what} needs an open device, and the Device is empty. Open one with open_device().")
      .with("spec", "")
      .with("what", what);
}

/// The checks that every call begins with: the handle is open, the process was not forked, and, in
/// the second form, the device has declared the capability.
Result<void> check(const std::shared_ptr<DeviceState>& state, const char* what) noexcept {
  if (!state) return not_open(what);
  return state->check_process();
}

Result<void> check(const std::shared_ptr<DeviceState>& state, const char* what,
                   Capability capability) noexcept {
  if (Result<void> usable = check(state, what); !usable) return usable;
  return state->check_can(capability);
}

/// Fails with misaligned unless the address and the size are multiples of the page size.
Result<void> check_pages(const DeviceInfo& info, const void* address, std::size_t bytes) noexcept {
  if (bytes > max_request_bytes) return allocation_too_large(bytes);
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  if (bytes % info.page_bytes != 0 || number % info.page_bytes != 0) {
    return Failure(ErrorCode::misaligned,
                   "a page range of {bytes} bytes at {address} does not consist of whole pages. "
                   "Use multiples of {required} bytes.")
        .with("address", number, Unit::hex)
        .with("required", info.page_bytes)
        .with("bytes", bytes);
  }
  return {};
}

const DeviceInfo& no_device() noexcept {
  // Never destroyed, and in static storage, so that info() cannot fail.
  alignas(DeviceInfo) static std::byte storage[sizeof(DeviceInfo)];
  static const DeviceInfo& nothing = *new (storage) DeviceInfo;
  return nothing;
}

Capability needed_for(MemoryKind kind) noexcept {
  return kind == MemoryKind::pinned ? Capability::pinned_memory : Capability::managed_memory;
}

}  // namespace

Device::Device(std::unique_ptr<Backend> backend) {
  if (!backend) {
    raise(
        Failure(
            ErrorCode::invalid_argument,
            "a device needs a backend, and the pointer is null. Open a device with open_device().")
            .with("name", "backend")
            .with("value", "null"));
  }
  try {
    trace::start_from_environment();
    auto state = std::make_shared<DeviceState>(std::move(backend));
    state->publish();
    state_ = DeviceState::begin_handles(std::move(state));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    raise(no_host_memory(sizeof(DeviceState), "a device"));
  }
}

DeviceId Device::id() const noexcept { return state_ ? state_->id() : DeviceId{}; }
std::string_view Device::spec() const noexcept { return info().spec; }
const DeviceInfo& Device::info() const noexcept { return state_ ? state_->info() : no_device(); }
bool Device::can(Capability capability) const noexcept {
  return info().capabilities.has(capability);
}

Result<MemoryInfo> Device::try_memory() const noexcept {
  if (Result<void> usable = check(state_, "memory information"); !usable) return usable.failure();
  return state_->backend().memory();
}

DeviceActivity Device::activity() const noexcept {
  return state_ ? state_->activity() : DeviceActivity{};
}

Result<void*> Device::try_allocate(MemoryKind kind, std::size_t bytes,
                                   const AllocateOptions& options) const noexcept {
  if (!state_) return at(options.site, not_open("memory"));
  if (!can(Capability::memory_after_fork)) {
    if (Result<void> usable = state_->check_process(); !usable) {
      return at(options.site, usable.failure());
    }
  }
  if (kind == MemoryKind::pinned || kind == MemoryKind::managed) {
    if (Result<void> able = state_->check_can(needed_for(kind)); !able) {
      return at(options.site, able.failure());
    }
  } else if (kind != MemoryKind::device) {
    return Failure(ErrorCode::invalid_argument,
                   "a device cannot allocate {value} memory. Use MemoryKind::device, pinned or "
                   "managed.",
                   options.site)
        .with("name", "kind")
        .with("value", name(kind));
  }
  const Result<std::size_t> alignment = checked_alignment(info(), options.alignment);
  if (!alignment) return at(options.site, alignment.failure());
  if (bytes == 0) return nullptr;
  if (bytes > max_request_bytes) return at(options.site, allocation_too_large(bytes));
  const trace::TagRange range_of_tag(options.tag);
  Result<void*> address =
      state_->backend().allocate(kind, bytes, *alignment, options.site, options.tag);
  if (!address) return at(options.site, address.failure());
  return address;
}

Result<void> Device::try_release(void* address, CallSite site) const noexcept {
  if (!state_) return at(site, not_open("a release"));
  if (!can(Capability::memory_after_fork)) {
    if (Result<void> usable = state_->check_process(); !usable) return at(site, usable);
  }
  if (address == nullptr) return {};
  return at(site, state_->backend().release(address, site));
}

Result<PointerInfo> Device::try_pointer_info(const void* address) const noexcept {
  if (Result<void> usable = check(state_, "a pointer's kind"); !usable) return usable.failure();
  if (address == nullptr) return PointerInfo{};
  return state_->backend().pointer_info(address);
}

Result<void*> Device::try_register_host(void* address, std::size_t bytes) const noexcept {
  constexpr const char* what = "registering host memory";
  if (Result<void> able = check(state_, what, Capability::registered_memory); !able) {
    return able.failure();
  }
  if (bytes == 0) return nullptr;
  if (Result<void> fits = check_range("host memory", address, bytes); !fits) return fits.failure();
  return state_->backend().register_host(address, bytes);
}

Result<void> Device::try_unregister_host(void* address) const noexcept {
  constexpr const char* what = "unregistering host memory";
  if (Result<void> able = check(state_, what, Capability::registered_memory); !able) return able;
  if (address == nullptr) return {};
  return state_->backend().unregister_host(address);
}

Result<void*> Device::try_reserve(std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "an address range", Capability::virtual_memory); !able) {
    return able.failure();
  }
  if (bytes == 0) return nullptr;
  if (Result<void> fits = check_pages(info(), nullptr, bytes); !fits) return fits.failure();
  return state_->backend().reserve(bytes);
}

Result<void> Device::try_unreserve(void* address, std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "an address range", Capability::virtual_memory); !able) {
    return able;
  }
  if (bytes == 0) return {};
  if (Result<void> fits = check_pages(info(), address, bytes); !fits) return fits;
  return state_->backend().unreserve(address, bytes);
}

Result<NativePages> Device::try_create_pages(std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "pages", Capability::virtual_memory); !able) {
    return able.failure();
  }
  if (bytes == 0) return NativePages{};
  if (Result<void> fits = check_pages(info(), nullptr, bytes); !fits) return fits.failure();
  return state_->backend().create_pages(bytes);
}

Result<void> Device::try_release_pages(NativePages pages) const noexcept {
  if (Result<void> able = check(state_, "pages", Capability::virtual_memory); !able) return able;
  if (pages.value == 0) return {};
  return state_->backend().release_pages(pages);
}

Result<void> Device::try_map(void* address, NativePages pages) const noexcept {
  if (Result<void> able = check(state_, "a mapping", Capability::virtual_memory); !able) {
    return able;
  }
  if (pages.value == 0) return {};
  if (Result<void> fits = check_pages(info(), address, info().page_bytes); !fits) return fits;
  return state_->backend().map(address, pages);
}

Result<void> Device::try_unmap(void* address, std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "a mapping", Capability::virtual_memory); !able) {
    return able;
  }
  if (bytes == 0) return {};
  if (Result<void> fits = check_pages(info(), address, bytes); !fits) return fits;
  return state_->backend().unmap(address, bytes);
}

Result<void> Device::try_set_access(void* address, std::size_t bytes,
                                    PageAccess access) const noexcept {
  if (Result<void> able = check(state_, "page access", Capability::virtual_memory); !able) {
    return able;
  }
  if (bytes == 0) return {};
  if (Result<void> fits = check_pages(info(), address, bytes); !fits) return fits;
  return state_->backend().set_access(address, bytes, access);
}

Result<NativePages> Device::try_create_shareable_pages(std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "shareable pages", Capability::shareable_memory); !able) {
    return able.failure();
  }
  if (bytes == 0) return NativePages{};
  if (Result<void> fits = check_pages(info(), nullptr, bytes); !fits) return fits.failure();
  return state_->backend().create_shareable_pages(bytes);
}

Result<int> Device::try_export_pages(NativePages pages) const noexcept {
  if (Result<void> able = check(state_, "shareable pages", Capability::shareable_memory); !able) {
    return able.failure();
  }
  if (pages.value == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "{what} is {value}, and pages of zero bytes cannot be exported. Create pages "
                   "with try_create_shareable_pages().")
        .with("what", "the handle of the pages")
        .with("name", "pages")
        .with("value", "null");
  }
  return state_->backend().export_pages(pages);
}

Result<NativePages> Device::try_import_pages(int descriptor, std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "shareable pages", Capability::shareable_memory); !able) {
    return able.failure();
  }
  if (descriptor < 0 || bytes == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "pages of {bytes} cannot be imported from {name} {value}. Pass an open "
                   "descriptor of exported pages and their size.")
        .with("name", "descriptor")
        .with_bytes("bytes", bytes)
        .with_signed("value", descriptor);
  }
  if (Result<void> fits = check_pages(info(), nullptr, bytes); !fits) return fits.failure();
  return state_->backend().import_pages(descriptor, bytes);
}

Result<void> Device::try_advise(void* address, std::size_t bytes, Advice advice,
                                Place place) const noexcept {
  if (Result<void> able = check(state_, "advice", Capability::advice); !able) return able;
  if (bytes == 0) return {};
  if (Result<void> fits = check_range("range", address, bytes); !fits) return fits;
  return state_->backend().advise(address, bytes, advice, place);
}

Result<ManagedInfo> Device::try_managed_info(const void* address,
                                             std::size_t bytes) const noexcept {
  if (Result<void> able = check(state_, "advice", Capability::advice); !able) {
    return able.failure();
  }
  if (bytes == 0) return ManagedInfo{};
  if (Result<void> fits = check_range("range", address, bytes); !fits) return fits.failure();
  return state_->backend().managed_info(address, bytes);
}

Result<NativeKernel> Device::try_load_kernel(const KernelSource& source) const noexcept {
  if (Result<void> able = check(state_, "a kernel", Capability::kernels); !able) {
    return able.failure();
  }
  return state_->backend().load_kernel(source);
}

void Device::unload_kernel(NativeKernel kernel) const noexcept {
  if (!check(state_, "a kernel") || kernel.value == 0) return;
  state_->backend().unload_kernel(kernel);
}

Result<KernelInfo> Device::try_kernel_info(NativeKernel kernel) const noexcept {
  if (Result<void> able = check(state_, "a kernel", Capability::kernels); !able) {
    return able.failure();
  }
  return state_->backend().kernel_info(kernel);
}

void Device::destroy_graph(NativeGraph graph) const noexcept {
  if (!check(state_, "a graph") || graph.value == 0) return;
  state_->backend().destroy_graph(graph);
}

StreamRef Device::default_stream() const noexcept {
  return state_ ? state_->default_stream() : StreamRef();
}

Result<bool> Device::try_is_done(Mark mark) noexcept {
  const DeviceScope device(mark.stream.device());
  if (!device) return true;
  if (Result<void> usable = device->check_process(); !usable) {
    // Marks that were seen done before the fork stay done. For other marks, the child can never
    // find out.
    return device->is_known_done(mark) ? Result<bool>(true) : usable.failure();
  }
  Result<bool> is_done = device->is_done(mark);
  device->note_if_lost(is_done);
  return is_done;
}

Result<void> Device::try_wait(Mark mark, CallSite site) noexcept {
  const DeviceScope device(mark.stream.device());
  if (!device) return {};
  if (Result<void> usable = device->check_process(); !usable) {
    return device->is_known_done(mark) ? Result<void>() : usable;
  }
  Result<void> waited = device->wait_on_host(mark, site);
  device->note_if_lost(waited);
  return waited;
}

Result<StreamRef> Device::try_copy_stream() const noexcept {
  if (Result<void> usable = check(state_, "a stream"); !usable) return usable.failure();
  return state_->copy_stream();
}

Mark Device::next_mark(StreamId stream) const noexcept {
  if (!state_ || stream.device() != state_->id()) return {};
  return state_->next_mark(stream);
}

Result<void> Device::try_record_mark(StreamId stream) const noexcept {
  if (Result<void> usable = check(state_, "a mark"); !usable) return usable;
  return state_->record_early(next_mark(stream));
}

Result<void> Device::try_note_host_access(const void* address, std::size_t bytes, Access access,
                                          CallSite site) const noexcept {
  if (!state_) return at(site, not_open("a note"));
  if (bytes == 0 || !state_->info().wants_notes) return {};
  if (Result<void> usable = state_->check_process(); !usable) return at(site, usable);
  return at(site, state_->backend().note_host_access(address, bytes, access, site));
}

void Device::note_suballocate(const Suballocation& block, Tag tag, CallSite site) const noexcept {
  if (!check(state_, "a note") || block.bytes == 0) return;
  state_->backend().note_suballocate({{}, site, tag}, block);
}

void Device::note_subrelease(const Suballocation& block, CallSite site) const noexcept {
  if (!check(state_, "a note") || block.bytes == 0) return;
  state_->backend().note_subrelease({{}, site, {}}, block);
}

Result<void> Device::try_synchronize(CallSite site) const noexcept {
  if (Result<void> usable = check(state_, "synchronisation"); !usable) return usable;
  return state_->synchronize(site);
}

Result<PeerAccess> Device::try_peer_access(const Device& peer) const noexcept {
  if (Result<void> usable = check(state_, "peer access"); !usable) return usable.failure();
  if (Result<void> usable = check(peer.state_, "peer access"); !usable) return usable.failure();
  if (*this == peer) return PeerAccess::enabled;
  if (info().backend != peer.info().backend) return PeerAccess::unavailable;
  return state_->backend().peer_access(peer.state_->backend());
}

Result<void> Device::try_disable_peer_access(const Device& peer) const noexcept {
  if (Result<void> usable = check(state_, "peer access"); !usable) return usable;
  if (Result<void> usable = check(peer.state_, "peer access"); !usable) return usable;
  if (*this == peer) {
    return Failure(
               ErrorCode::invalid_argument,
               "the access of '{value}' to its own memory cannot be disabled. Name another device.")
        .with("name", "peer")
        .with("value", peer.spec())
        .with("why", "it is the device itself");
  }
  if (info().backend != peer.info().backend) return {};
  return state_->backend().disable_peer_access(peer.state_->backend());
}

Result<bool> Device::try_enable_peer_access(const Device& peer) const noexcept {
  if (Result<void> usable = check(state_, "peer access"); !usable) return usable.failure();
  if (Result<void> usable = check(peer.state_, "peer access"); !usable) return usable.failure();
  if (*this == peer) return true;
  if (info().backend != peer.info().backend) return false;
  return state_->backend().enable_peer_access(peer.state_->backend());
}

}  // namespace tern
