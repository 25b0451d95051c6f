// A Device is a handle to an open device: its properties, its memory and its default stream.
//
//   Device device = open_device("cuda:0");
//   void* address = device.allocate(MemoryKind::device, 1 * mib);
//   device.release(address);
//
// Open devices by spec with backends/catalog.hpp. Copies of a handle refer to the same device.
// Streams and events keep their device open. When the last handle, stream and event is gone, the
// device completes its work and closes.
//
// This is the lowest public layer: it returns raw addresses that have no owner. Buffers and
// resources are built on it. Device checks every argument once, for all backends: sizes up to
// max_request_bytes, alignments that are powers of two, declared capabilities, and that the process
// was not forked. A request for zero bytes is valid everywhere and does not reach the backend: it
// returns a null address, and releasing null does nothing.
//
// Each x() throws the failure that try_x() returns. After a fork, calls in the child fail with
// after_fork, except that try_allocate() and try_release() work on a device with
// Capability::memory_after_fork. All functions are safe from any thread.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/device/operands.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"

namespace tern {

class Backend;
class DeviceState;
class StreamRef;

/// Options of an allocation. Alignment 0 selects DeviceInfo::alignment. The tag and the call site
/// are for reports.
struct AllocateOptions {
  std::size_t alignment = 0;
  Tag tag = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Device {
 public:
  /// A handle without a device. is_open(), comparison, the properties and activity() work and
  /// return empty values. Every other call fails with invalid_device.
  Device() noexcept = default;
  /// Opens a device on a backend of your own (detail/device/backend.hpp). The catalog does the same
  /// for the built-in backends. Throws InvalidArgument if `backend` is null, OutOfMemory if the
  /// host has no memory, and CapacityReached after 2^24 - 1 devices in one process.
  explicit Device(std::unique_ptr<Backend> backend);

  /// Returns false for a handle without a device.
  [[nodiscard]] bool is_open() const noexcept { return state_ != nullptr; }
  /// Returns the number of the device, which is unique in the process and never reused.
  /// Place::device carries the same number.
  [[nodiscard]] DeviceId id() const noexcept;
  /// Returns the place of the device's memory, for leases, hints and audits.
  [[nodiscard]] Place place() const noexcept { return Place::device(id()); }
  /// Returns the canonical spec, such as "host" or "cuda:0".
  [[nodiscard]] std::string_view spec() const noexcept;
  /// Returns the fixed properties of the device. The reference is valid while the device is open.
  [[nodiscard]] const DeviceInfo& info() const noexcept;
  /// Returns true if the device has declared the capability.
  [[nodiscard]] bool can(Capability capability) const noexcept;

  /// Returns the free and total bytes of device memory now. Other programs may use the device too,
  /// so a later allocation of the free bytes can still fail. Calls the driver.
  [[nodiscard]] Result<MemoryInfo> try_memory() const noexcept;
  [[nodiscard]] MemoryInfo memory(CallSite site = CallSite::here()) const {
    return try_memory().value(site);
  }

  /// Returns the counts of events, waits and launches since the device was opened. No driver call.
  [[nodiscard]] DeviceActivity activity() const noexcept;

  // --- Memory: device, pinned or managed. These calls are not ordered by any stream.

  /// Allocates memory of kind `device`, `pinned` or `managed`. Its contents are unspecified. Fails
  /// with invalid_argument for another kind or a bad alignment, with unsupported if the device
  /// lacks the kind, and with out_of_memory. May wait for the device, as the driver's allocator
  /// does.
  [[nodiscard]] Result<void*> try_allocate(MemoryKind kind, std::size_t bytes,
                                           const AllocateOptions& options = {}) const noexcept;
  [[nodiscard]] void* allocate(MemoryKind kind, std::size_t bytes,
                               const AllocateOptions& options = {}) const {
    return try_allocate(kind, bytes, options).value();
  }
  /// Frees memory that try_allocate() of this device returned. No submitted work may still use the
  /// memory. Fails with use_after_free, and changes nothing, if the address is not that of a live
  /// allocation of this device.
  Result<void> try_release(void* address, CallSite site = CallSite::here()) const noexcept;
  void release(void* address, CallSite site = CallSite::here()) const {
    try_release(address, site).value();
  }
  /// Returns the kind of memory at an address, and the allocation that contains it. Memory that the
  /// device does not know, and null, is reported as MemoryKind::host with a null base.
  [[nodiscard]] Result<PointerInfo> try_pointer_info(const void* address) const noexcept;
  [[nodiscard]] PointerInfo pointer_info(const void* address,
                                         CallSite site = CallSite::here()) const {
    return try_pointer_info(address).value(site);
  }
  /// Page-locks existing host memory and returns the device's address of it. Needs
  /// Capability::registered_memory. Call try_unregister_host() before freeing the memory.
  [[nodiscard]] Result<void*> try_register_host(void* address, std::size_t bytes) const noexcept;
  /// Undoes try_register_host(). `address` is the host address that was registered.
  Result<void> try_unregister_host(void* address) const noexcept;

  // --- Virtual memory. Needs Capability::virtual_memory. Addresses and sizes must be multiples of
  // info().page_bytes, else the call fails with misaligned. Backend describes each call in detail.

  /// Reserves an address range without memory.
  [[nodiscard]] Result<void*> try_reserve(std::size_t bytes) const noexcept;
  /// Frees a whole reservation. Nothing may be mapped in it.
  Result<void> try_unreserve(void* address, std::size_t bytes) const noexcept;
  /// Allocates physical memory without an address.
  [[nodiscard]] Result<NativePages> try_create_pages(std::size_t bytes) const noexcept;
  /// Gives up the handle. The memory is freed once it is no longer mapped anywhere.
  Result<void> try_release_pages(NativePages pages) const noexcept;
  /// Maps all of `pages` at `address`, inside a reservation. The mapping has no access rights until
  /// try_set_access().
  Result<void> try_map(void* address, NativePages pages) const noexcept;
  /// Removes exactly one whole mapping. No submitted work may still use it.
  Result<void> try_unmap(void* address, std::size_t bytes) const noexcept;
  /// Sets the access rights of the device for a fully mapped range.
  Result<void> try_set_access(void* address, std::size_t bytes, PageAccess access) const noexcept;

  // --- Shareable pages. Needs Capability::shareable_memory. SharedArray is the simple way.

  /// Allocates physical memory that can be exported to other processes.
  [[nodiscard]] Result<NativePages> try_create_shareable_pages(std::size_t bytes) const noexcept;
  /// Returns a new file descriptor of shareable pages. The caller closes it. The memory lives as
  /// long as a descriptor, a handle or a mapping of it, in any process.
  [[nodiscard]] Result<int> try_export_pages(NativePages pages) const noexcept;
  /// Creates a handle to the pages behind a descriptor that a device of the same backend exported.
  /// The caller keeps the descriptor and may close it afterwards. Fails with bad_format if the
  /// descriptor is something else or has another size; CUDA reports a wrong size in try_map().
  [[nodiscard]] Result<NativePages> try_import_pages(int descriptor,
                                                     std::size_t bytes) const noexcept;

  /// Gives the driver a hint on the pages of a range of managed memory. Needs Capability::advice.
  /// The place is ignored for hints that have none.
  Result<void> try_advise(void* address, std::size_t bytes, Advice advice,
                          Place place) const noexcept;
  /// Returns the hints in force for the whole range and the place to which it was last prefetched.
  /// Needs Capability::advice.
  [[nodiscard]] Result<ManagedInfo> try_managed_info(const void* address,
                                                     std::size_t bytes) const noexcept;

  // --- Notes for checkers and tools. Only devices with a checker (`sim`) act on them. The two
  // notes on blocks are like StreamRef::note_suballocate and note_subrelease, but the host acts,
  // not a stream.

  /// Announces that the host is about to use memory that it shares with the device. A simulated
  /// device fails with violation if submitted work on that memory is not yet ordered before the
  /// access. Other devices ignore the note.
  Result<void> try_note_host_access(const void* address, std::size_t bytes, Access access,
                                    CallSite site = CallSite::here()) const noexcept;
  /// Announces that a pool hands out a block from memory that the pool owns.
  void note_suballocate(const Suballocation& block, Tag tag = {},
                        CallSite site = CallSite::here()) const noexcept;
  /// Announces that the pool has taken the block back.
  void note_subrelease(const Suballocation& block, CallSite site = CallSite::here()) const noexcept;

  // --- Kernels. Needs Capability::kernels.

  /// Loads a kernel from a C++ function, a compiled image or source text, as the backend supports.
  /// May compile. Unload the kernel with unload_kernel().
  [[nodiscard]] Result<NativeKernel> try_load_kernel(const KernelSource& source) const noexcept;
  /// Unloads a kernel. Launches that were already submitted still complete. Ignores a null kernel.
  void unload_kernel(NativeKernel kernel) const noexcept;
  /// Returns what the backend knows about the parameters and the best block size of a kernel.
  [[nodiscard]] Result<KernelInfo> try_kernel_info(NativeKernel kernel) const noexcept;

  // --- Graphs. Needs Capability::graphs. Streams capture and launch them.

  /// Destroys a graph. Launches that were already submitted still complete; the call may wait for
  /// them. Ignores a null graph.
  void destroy_graph(NativeGraph graph) const noexcept;

  // --- Order

  /// Returns the default stream, which lives as long as the device. Returns an empty reference for
  /// a handle without a device.
  [[nodiscard]] StreamRef default_stream() const noexcept;

  /// Returns the library's internal stream for copies that the host waits for. Such a copy waits
  /// only for the work that it depends on, and not for unrelated work of the program. The stream is
  /// created on first use and lives as long as the device.
  [[nodiscard]] Result<StreamRef> try_copy_stream() const noexcept;

  /// Returns true if the work up to the mark has completed. A mark of a stream or device that is
  /// gone is done. The first query of a pending mark may record an event. Fails with stream_misuse
  /// for a mark that its stream never issued.
  ///
  /// Does not wait, with one exception: if a stream ended on a device that did not answer, no event
  /// covers its last marks, and a query of such a mark waits for the whole device.
  [[nodiscard]] static Result<bool> try_is_done(Mark mark) noexcept;
  [[nodiscard]] static bool is_done(Mark mark, CallSite site = CallSite::here()) {
    return try_is_done(mark).value(site);
  }
  /// Blocks the host until the work up to the mark has completed. Fails like try_is_done().
  static Result<void> try_wait(Mark mark, CallSite site = CallSite::here()) noexcept;
  static void wait(Mark mark, CallSite site = CallSite::here()) {
    try_wait(mark, site).value(site);
  }

  /// Returns the next mark of a stream by its id, as StreamRef::next_mark() does. If the stream has
  /// ended and still occupies its slot, returns the last mark that the stream issued. Returns the
  /// empty mark, which counts as done, for a stream of another device and for an ended stream whose
  /// slot was freed. Work that an ended stream received after its last mark is covered by no mark
  /// and may still be in flight.
  [[nodiscard]] Mark next_mark(StreamId stream) const noexcept;
  /// Issues the next mark of the stream and records its event now, so that a later wait for the
  /// mark does not also wait for work submitted in between. A stream keeps at most 32 such events.
  /// When all are pending, the device drops every second older event, and a wait for a mark of a
  /// dropped event waits for the next later event instead.
  Result<void> try_record_mark(StreamId stream) const noexcept;

  /// Blocks the host until the work submitted to the streams of the device has completed. On CUDA,
  /// this covers Tern's streams, borrowed streams, the default stream and blocking streams. It does
  /// not cover non-blocking streams of other libraries that Tern has not borrowed, or the
  /// per-thread default streams of other threads.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(site); }

  // --- Peers: lets kernels of this device access memory of another device. Copies do not need
  // this.

  /// Returns whether kernels of this device can access memory of `peer`. Always `enabled` for the
  /// device itself, and `unavailable` between backends.
  [[nodiscard]] Result<PeerAccess> try_peer_access(const Device& peer) const noexcept;
  [[nodiscard]] PeerAccess peer_access(const Device& peer, CallSite site = CallSite::here()) const {
    return try_peer_access(peer).value(site);
  }
  /// Enables access of this device's kernels to memory of `peer`. Returns false if the two devices
  /// do not support it. Enabling it twice is harmless.
  [[nodiscard]] Result<bool> try_enable_peer_access(const Device& peer) const noexcept;
  bool enable_peer_access(const Device& peer, CallSite site = CallSite::here()) const {
    return try_enable_peer_access(peer).value(site);
  }
  /// Disables access of this device's kernels to memory of `peer`. Work that was already submitted
  /// must no longer need the access. Does nothing if the access is not enabled. Fails with
  /// invalid_argument if `peer` is this device.
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

// A DeviceSet holds several devices and chooses one: in turn, or by free memory.
//
//   DeviceSet devices({open_device("cuda:0"), open_device("cuda:1")});
//   const Device& device = devices.next();
//
// The set keeps its devices open and never changes. All functions are safe from any thread.

class TERN_EXPORT DeviceSet {
 public:
  /// Throws InvalidArgument if the list is empty, contains a device that is not open, or contains a
  /// device twice.
  explicit DeviceSet(std::vector<Device> devices);

  /// Returns the devices in the order given to the constructor.
  [[nodiscard]] std::span<const Device> devices() const noexcept;

  /// Returns the devices round robin: 0, 1, ..., n-1, 0, ... All threads share one counter.
  [[nodiscard]] const Device& next() noexcept;
  /// Returns the device with the most free memory now; of equal devices, the first. Skips devices
  /// that cannot report their memory, and fails with the last of their failures if none can.
  [[nodiscard]] Result<Device> try_max_free() const noexcept;
  [[nodiscard]] Device max_free(CallSite site = CallSite::here()) const {
    return try_max_free().value(site);
  }

  /// Waits for all work on all devices. If a device fails, continues with the others and then
  /// returns the first failure.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(site); }

 private:
  std::vector<Device> devices_;
  std::atomic<std::size_t> turn_ = 0;
};

}  // namespace tern
