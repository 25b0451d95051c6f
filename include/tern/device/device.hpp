// A Device is a handle to an opened device: its facts, its memory, its default stream.
//
// Copies of the handle are the same device; the last one, or the last stream or event made from it,
// closes it after completing its work. Devices are opened by spec through backends/catalog.hpp.
//
// This is the raw floor: addresses without owners. Every argument is checked here, once for all
// backends: sizes up to max_request_bytes, alignments that are powers of two, declared abilities, a
// process that has not been forked. Zero bytes are legal everywhere and reach no backend: the
// address is null and releasing null does nothing. Each x() throws what try_x() returns.
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/activity.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/mark.hpp"

namespace tern {

class DeviceState;
class StreamRef;

/// How an allocation is asked for. Alignment 0 means the device's own.
struct AllocateOptions {
  std::size_t alignment = 0;
  Tag tag = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Device {
 public:
  /// No device: everything but is_open() and comparison is refused with invalid_device.
  Device() noexcept = default;
  /// Opens a backend of one's own; the catalog does this for the built-in ones. Throws
  /// InvalidArgument for null, OutOfMemory.
  explicit Device(std::unique_ptr<Backend> backend);

  [[nodiscard]] bool is_open() const noexcept { return state_ != nullptr; }
  /// Unique in the process; the number in Place::device.
  [[nodiscard]] DeviceId id() const noexcept;
  [[nodiscard]] Place place() const noexcept { return Place::device(id()); }
  /// Canonical, such as "host" or "cuda:0".
  [[nodiscard]] std::string_view spec() const noexcept;
  [[nodiscard]] const DeviceInfo& info() const noexcept;
  [[nodiscard]] bool can(Capability capability) const noexcept;

  /// Free and total bytes now. Others use the device too, so free is no promise.
  [[nodiscard]] Result<MemoryInfo> try_memory() const noexcept;
  [[nodiscard]] MemoryInfo memory(CallSite site = CallSite::here()) const {
    return try_memory().value(site);
  }

  /// What the device was asked to do since it was opened. Asks no driver.
  [[nodiscard]] DeviceActivity activity() const noexcept;

  // --- Memory: device, pinned or managed

  [[nodiscard]] Result<void*> try_allocate(MemoryKind kind, std::size_t bytes,
                                           const AllocateOptions& options = {}) const noexcept;
  [[nodiscard]] void* allocate(MemoryKind kind, std::size_t bytes,
                               const AllocateOptions& options = {}) const {
    return try_allocate(kind, bytes, options).value();
  }
  /// Refused with use_after_free if the address is not that of a live allocation of this device.
  Result<void> try_release(void* address, CallSite site = CallSite::here()) const noexcept;
  void release(void* address, CallSite site = CallSite::here()) const {
    try_release(address, site).value();
  }
  [[nodiscard]] Result<PointerInfo> try_pointer_info(const void* address) const noexcept;
  [[nodiscard]] PointerInfo pointer_info(const void* address,
                                         CallSite site = CallSite::here()) const {
    return try_pointer_info(address).value(site);
  }
  [[nodiscard]] Result<void*> try_register_host(void* address, std::size_t bytes) const noexcept;
  Result<void> try_unregister_host(void* address) const noexcept;

  // --- Virtual memory: sizes are multiples of info().page_bytes, else misaligned

  [[nodiscard]] Result<void*> try_reserve(std::size_t bytes) const noexcept;
  Result<void> try_unreserve(void* address, std::size_t bytes) const noexcept;
  [[nodiscard]] Result<NativePages> try_create_pages(std::size_t bytes) const noexcept;
  Result<void> try_release_pages(NativePages pages) const noexcept;
  Result<void> try_map(void* address, NativePages pages) const noexcept;
  Result<void> try_unmap(void* address, std::size_t bytes) const noexcept;
  Result<void> try_set_access(void* address, std::size_t bytes, PageAccess access) const noexcept;

  Result<void> try_advise(void* address, std::size_t bytes, Advice advice,
                          Place place) const noexcept;
  /// What advice is in force for all of the range, and where it was last sent.
  [[nodiscard]] Result<ManagedInfo> try_managed_info(const void* address,
                                                     std::size_t bytes) const noexcept;

  // --- Facts for checkers and tools: StreamRef::note_suballocate and note_subrelease, by the host

  /// Before the host uses memory that it shares with the device. A simulated device refuses it with
  /// violation while work there is under way; others take no notice.
  Result<void> try_note_host_access(const void* address, std::size_t bytes, Access access,
                                    CallSite site = CallSite::here()) const noexcept;
  void note_suballocate(const Suballocation& block, Tag tag = {},
                        CallSite site = CallSite::here()) const noexcept;
  void note_subrelease(const Suballocation& block, CallSite site = CallSite::here()) const noexcept;

  // --- Kernels

  [[nodiscard]] Result<NativeKernel> try_load_kernel(const KernelSource& source) const noexcept;
  void unload_kernel(NativeKernel kernel) const noexcept;
  [[nodiscard]] Result<KernelInfo> try_kernel_info(NativeKernel kernel) const noexcept;

  // --- Order

  /// Lives as long as the device.
  [[nodiscard]] StreamRef default_stream() const noexcept;

  /// A stream of the library's own, for copies that the host waits for: behind nobody's work but
  /// what they need. Made when it is first asked for; lives as long as the device.
  [[nodiscard]] Result<StreamRef> try_copy_stream() const noexcept;

  /// Has the work up to the mark completed? Never blocks. A mark of a stream or device that is gone
  /// is done.
  [[nodiscard]] static Result<bool> try_is_done(Mark mark) noexcept;
  [[nodiscard]] static bool is_done(Mark mark, CallSite site = CallSite::here()) {
    return try_is_done(mark).value(site);
  }
  /// Blocks the host until it has.
  static Result<void> try_wait(Mark mark) noexcept;
  static void wait(Mark mark, CallSite site = CallSite::here()) { try_wait(mark).value(site); }

  /// StreamRef::try_next_mark by name, of a stream that may have ended: then the last one it took.
  /// A stream of this device that never took one, and is gone, is not known to be done.
  [[nodiscard]] Mark next_mark(StreamId stream) const noexcept;
  /// Takes that mark and records its event now, so that whoever waits for it waits for nothing
  /// later. With many unfinished ones on the stream, those of the past become fewer: who waits for
  /// one of them may wait for a little more.
  Result<void> try_record_mark(StreamId stream) const noexcept;

  /// Blocks the host until everything submitted to any stream of the device is complete.
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

  // --- Peers: kernels of this device on memory of another one. Copies need none of it.

  /// unavailable between backends, and always enabled for the device itself.
  [[nodiscard]] Result<PeerAccess> try_peer_access(const Device& peer) const noexcept;
  [[nodiscard]] PeerAccess peer_access(const Device& peer, CallSite site = CallSite::here()) const {
    return try_peer_access(peer).value(site);
  }
  /// May kernels of this device use memory of `peer`? Enables it where they may.
  [[nodiscard]] Result<bool> try_enable_peer_access(const Device& peer) const noexcept;
  bool enable_peer_access(const Device& peer, CallSite site = CallSite::here()) const {
    return try_enable_peer_access(peer).value(site);
  }
  /// From now on they may not; work that was submitted must not need it any more. Where it is not
  /// enabled, nothing changes. Refused with invalid_argument for the device itself.
  Result<void> try_disable_peer_access(const Device& peer) const noexcept;
  void disable_peer_access(const Device& peer, CallSite site = CallSite::here()) const {
    try_disable_peer_access(peer).value(site);
  }

  friend bool operator==(const Device& a, const Device& b) noexcept { return a.state_ == b.state_; }

 private:
  friend class DeviceState;
  explicit Device(std::shared_ptr<DeviceState> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<DeviceState> state_;
};

}  // namespace tern
