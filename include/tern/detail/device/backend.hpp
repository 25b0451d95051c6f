// Not part of the interface for programs; authors of a backend implement it.
//
// Backend is the contract between Tern and a device: everything that Tern asks of a device.
//
// A Backend is one open device. `host`, `sim`, `cuda` and `opencl` implement it. Users never call a
// Backend; they use Device and StreamRef, which check every argument once, for all backends. An
// implementation may therefore rely on the preconditions stated here and only reports errors that
// occur while it does the work.
//
// Order. Functions that take a Submission are ordered by its stream: the operation begins after all
// earlier work of that stream, and the call may return before the operation begins. All other
// functions are host calls and are complete when they return. Tern never relies on synchronization
// that a driver adds beyond that.
//
// Failure. A function that fails has changed nothing and returns a Failure, and the backend stays
// usable. The exception is device_lost: after it, frees succeed as pure bookkeeping, and every
// other call fails immediately with the first cause. No function throws or prints.
//
// Threads. All functions may be called from any thread at any time. The destructor is called last,
// from one thread, and completes all submitted work.
//
// The pure virtual functions are required. Each optional function names the capability that it
// needs. Its default implementation fails with unsupported, unless the comment says otherwise.
//
// A new backend is a folder src/backends/<name>, with an Opener (src/backends/opener.hpp) that is
// listed in src/backends/catalog.cpp.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/device/operands.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern {

/// Settings of the pool from which the driver takes stream-ordered memory. Unset fields stay
/// unchanged.
struct DriverPoolSettings {
  /// Maximum size of the pool. Can be set only before the pool exists.
  std::optional<std::size_t> max_bytes = {};
  /// Free memory above this size returns to the system when the host waits for a stream or the
  /// device.
  std::optional<std::size_t> release_threshold_bytes = {};
};

/// The stream that an operation is submitted to, with the call site and the tag for reports.
struct Submission {
  NativeStream stream = {};
  CallSite site = {};
  Tag tag = {};
  /// For record() and wait(): the event belongs to the library and is queried later, so it must not
  /// become a part of a CUDA graph. If the stream is being captured, the call fails with
  /// stream_misuse and leaves the capture intact.
  bool stays_out_of_graphs = false;
  /// All work that was submitted to the stream is known to be complete, so the backend need not
  /// query the stream.
  bool is_idle = false;
};

/// A stream that was created by other code.
struct BorrowedStream {
  NativeStream native;
  /// The driver's number of the stream, which is never reused. 0 if the driver has none.
  std::uint64_t id = 0;
  /// True if the handle is the default stream of the device, which Tern already has.
  bool is_default = false;
  /// True if the stream is being captured into a graph. The id is 0 then: reading it would end the
  /// capture.
  bool is_captured = false;
  /// True if every thread may use the handle, and forget_stream() can be called.
  bool can_be_kept = false;
};

/// Which stream a handle is: the default stream, or the one with this id. Id 0: not known.
struct StreamIdentity {
  std::uint64_t id = 0;
  bool is_default = false;
};

class TERN_EXPORT Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend();

  // --- The device

  /// Receives the number of the device, as places carry it. Called once, before any other function.
  /// The default does nothing.
  virtual void opened_as(DeviceId id) noexcept;
  /// Returns the properties of the device. The reference stays valid as long as the backend.
  [[nodiscard]] virtual const DeviceInfo& info() const noexcept = 0;
  /// Returns the free and total device memory now.
  [[nodiscard]] virtual Result<MemoryInfo> memory() noexcept = 0;
  /// Waits until all work submitted to any stream before the call has completed.
  [[nodiscard]] virtual Result<void> synchronize() noexcept = 0;
  /// Calls `function(context)` on this thread while the device is current, for functions of other
  /// libraries that use the current device. The default only calls the function.
  [[nodiscard]] virtual Result<void> call_current(HostFunction function, void* context) noexcept;

  // --- Memory. Preconditions: 0 < bytes <= max_request_bytes, and the alignment is a power of two
  // between info().alignment and info().max_alignment.

  /// Allocates memory. `kind` is device, pinned or managed, and the device has declared it. The
  /// contents are unspecified. Fails with out_of_memory.
  [[nodiscard]] virtual Result<void*> allocate(MemoryKind kind, std::size_t bytes,
                                               std::size_t alignment, CallSite site,
                                               Tag tag) noexcept = 0;
  /// Frees memory from allocate(). No submitted work may still use the memory. Fails with
  /// use_after_free, and changes nothing, if `address` is not a live allocation.
  [[nodiscard]] virtual Result<void> release(void* address, CallSite site) noexcept = 0;
  /// Returns the kind and the allocation of an address.
  [[nodiscard]] virtual Result<PointerInfo> pointer_info(const void* address) noexcept = 0;

  /// Needs stream_ordered_memory. Allocates in stream order: later work of the stream may use the
  /// memory; work of another stream may use it after a wait.
  [[nodiscard]] virtual Result<void*> allocate_async(const Submission& submission,
                                                     std::size_t bytes,
                                                     std::size_t alignment) noexcept;
  /// Needs stream_ordered_memory. Frees after all earlier work of the stream.
  [[nodiscard]] virtual Result<void> release_async(const Submission& submission,
                                                   void* address) noexcept;

  /// Returns the state of the pool behind allocate_async(). Fails with unsupported if the driver
  /// has no pool with settings. Settings apply to everyone who allocates from the pool.
  [[nodiscard]] virtual Result<DriverPoolInfo> driver_pool() noexcept;
  /// Changes settings of the pool.
  [[nodiscard]] virtual Result<void> set_driver_pool(const DriverPoolSettings& settings) noexcept;
  /// Resets the high-water marks to the current values.
  [[nodiscard]] virtual Result<void> reset_driver_pool_peaks() noexcept;
  /// Allows or forbids `peer`, another device of the same backend, to access memory of the pool,
  /// including memory that is already allocated.
  [[nodiscard]] virtual Result<void> set_driver_pool_access(Backend& peer,
                                                            bool is_allowed) noexcept;

  /// Needs registered_memory. Page-locks [address, address + bytes) and returns the device's
  /// address of it.
  [[nodiscard]] virtual Result<void*> register_host(void* address, std::size_t bytes) noexcept;
  /// Undoes register_host(). `address` is the host address.
  [[nodiscard]] virtual Result<void> unregister_host(void* address) noexcept;

  // --- Virtual memory. Needs virtual_memory. All sizes and offsets are multiples of
  // info().page_bytes.

  /// Reserves an address range without memory.
  [[nodiscard]] virtual Result<void*> reserve(std::size_t bytes) noexcept;
  /// Frees a whole reservation. Nothing may be mapped in it.
  [[nodiscard]] virtual Result<void> unreserve(void* address, std::size_t bytes) noexcept;
  /// Allocates physical memory without an address.
  [[nodiscard]] virtual Result<NativePages> create_pages(std::size_t bytes) noexcept;
  /// Gives up the handle. The memory is freed once it is not mapped anywhere.
  [[nodiscard]] virtual Result<void> release_pages(NativePages pages) noexcept;
  /// Maps all of `pages` at `address`, inside a reservation and where nothing is mapped. The
  /// mapping has no access rights yet.
  [[nodiscard]] virtual Result<void> map(void* address, NativePages pages) noexcept;
  /// Removes exactly one whole mapping that no submitted work uses.
  [[nodiscard]] virtual Result<void> unmap(void* address, std::size_t bytes) noexcept;
  /// Sets the access rights of a fully mapped range, which may consist of several mappings.
  [[nodiscard]] virtual Result<void> set_access(void* address, std::size_t bytes,
                                                PageAccess access) noexcept;

  // --- Shareable pages. Needs shareable_memory, and thereby virtual_memory.

  /// Creates pages that can be exported to other processes. Their memory stays where it is until
  /// the last process has released it.
  [[nodiscard]] virtual Result<NativePages> create_shareable_pages(std::size_t bytes) noexcept;
  /// Returns a new file descriptor of pages from create_shareable_pages(), which the caller closes.
  /// The descriptor keeps the memory alive, in any process.
  [[nodiscard]] virtual Result<int> export_pages(NativePages pages) noexcept;
  /// Creates a handle to the pages behind a descriptor from export_pages(), of this or of another
  /// process. The caller keeps the descriptor and may close it afterwards. Fails if the descriptor
  /// is not what a device of this backend exported, or has not `bytes`; a driver may detect a wrong
  /// size only in map().
  [[nodiscard]] virtual Result<NativePages> import_pages(int descriptor,
                                                         std::size_t bytes) noexcept;

  // --- Copies and fills. Preconditions: bytes > 0, no null address, no overlap.

  /// Copies between any combination of this device's memory and host memory. The caller keeps
  /// pageable host memory valid and unchanged until the stream has passed the copy.
  [[nodiscard]] virtual Result<void> copy(const Submission& submission, void* destination,
                                          const void* source, std::size_t bytes) noexcept = 0;
  /// Copies rows of memory, like copy().
  [[nodiscard]] virtual Result<void> copy_2d(const Submission& submission,
                                             const Copy2D& copy) noexcept = 0;
  /// Submits many copies, each as in copy(). They have no order among each other: no copy may write
  /// bytes that another copy of the batch reads or writes. If a copy cannot be submitted, earlier
  /// copies may already be submitted. The default calls copy() for each.
  [[nodiscard]] virtual Result<void> copy_batch(const Submission& submission,
                                                std::span<const CopyRange> copies) noexcept;
  /// Fills memory. `bytes` is a multiple of the pattern's width. The address may have any
  /// alignment.
  [[nodiscard]] virtual Result<void> fill(const Submission& submission, void* destination,
                                          std::size_t bytes, const Pattern& pattern) noexcept = 0;
  /// Needs peer_copies. Copies from memory of `peer`, a device of the same backend.
  [[nodiscard]] virtual Result<void> copy_from_peer(const Submission& submission, void* destination,
                                                    Backend& peer, const void* source,
                                                    std::size_t bytes) noexcept;
  /// Lets kernels of this device access memory of `peer`. Returns false if that is not possible.
  /// Calling it twice is harmless. The default returns false.
  [[nodiscard]] virtual Result<bool> enable_peer_access(Backend& peer) noexcept;
  /// Returns the state of the access to memory of `peer`, another device of the same backend. The
  /// default returns unavailable.
  [[nodiscard]] virtual Result<PeerAccess> peer_access(Backend& peer) noexcept;
  /// Disables the access again. Calling it twice is harmless. The default does nothing.
  [[nodiscard]] virtual Result<void> disable_peer_access(Backend& peer) noexcept;

  // --- Streams and events

  /// Returns the default stream. It is never null and stays valid as long as the backend.
  [[nodiscard]] virtual NativeStream default_stream() noexcept = 0;
  /// Creates a stream.
  [[nodiscard]] virtual Result<NativeStream> create_stream(
      const StreamOptions& options) noexcept = 0;
  /// Needs borrowed_streams. Borrows a stream by the driver's handle. The owner keeps the stream
  /// alive until destroy_stream(), which ends the loan and not the owner's stream.
  [[nodiscard]] virtual Result<BorrowedStream> borrow_stream(NativeStream handle) noexcept;
  /// Returns the id that borrow_stream() would return, with as few driver calls as possible, so
  /// that a stream that was borrowed before is found quickly. Never fails: id 0 stands for every
  /// doubt. The default returns id 0.
  [[nodiscard]] virtual StreamIdentity identify_stream(NativeStream handle) noexcept;
  /// Forgets a borrowed stream without calling the driver. The stream can still be used, but
  /// synchronize() no longer waits for it, and destroy_stream() is not called. The owner may
  /// destroy it at any time. The default does nothing.
  virtual void forget_stream(NativeStream stream) noexcept;
  /// Like synchronize(), but also waits for streams that the backend does not know, such as those
  /// that other code has destroyed. Ends graph captures that are in progress, so call it only if
  /// nothing else helps. The default calls synchronize().
  [[nodiscard]] virtual Result<void> synchronize_everything() noexcept;
  /// Returns the driver's handle of the stream, for code that calls the driver itself. The default
  /// returns `stream`.
  [[nodiscard]] virtual NativeStream native_handle(NativeStream stream) noexcept;
  /// Destroys a stream. Submitted work still completes. The call may wait for that work.
  virtual void destroy_stream(NativeStream stream) noexcept = 0;
  /// Returns true if all work submitted to the stream has completed. Does not wait.
  [[nodiscard]] virtual Result<bool> query(NativeStream stream) noexcept = 0;
  /// Waits until all work submitted to the stream has completed.
  [[nodiscard]] virtual Result<void> synchronize(NativeStream stream) noexcept = 0;
  /// Returns true if work submitted to the stream would become part of a graph capture or would
  /// invalidate one. The query itself does not affect the capture. The default returns false.
  [[nodiscard]] virtual Result<bool> is_capturing(NativeStream stream) noexcept;

  /// Creates an event.
  [[nodiscard]] virtual Result<NativeEvent> create_event(bool has_timing) noexcept = 0;
  /// Destroys an event. Waits that are already queued stay valid, and a pending record may
  /// complete.
  virtual void destroy_event(NativeEvent event) noexcept = 0;
  /// Records the event: it now represents all work submitted to the stream so far. Earlier waits
  /// keep the record that they refer to.
  [[nodiscard]] virtual Result<void> record(const Submission& submission,
                                            NativeEvent event) noexcept = 0;
  /// Makes later work of the stream start after the latest record of the event, which may be on
  /// another stream or on another device of the backend. A null event represents an event that was
  /// never recorded: it orders nothing, and only checkers use the call.
  [[nodiscard]] virtual Result<void> wait(const Submission& submission,
                                          NativeEvent event) noexcept = 0;
  /// Returns true if the latest record of the event has completed. The event has been recorded.
  /// Does not wait.
  [[nodiscard]] virtual Result<bool> query(NativeEvent event) noexcept = 0;
  /// Waits until the latest record of the event has completed.
  [[nodiscard]] virtual Result<void> synchronize(NativeEvent event) noexcept = 0;
  /// Needs event_timing. Returns the time between two events. Both were created with timing,
  /// recorded, and have completed.
  [[nodiscard]] virtual Result<std::uint64_t> elapsed_ns(NativeEvent start,
                                                         NativeEvent end) noexcept;

  /// Needs host_functions. Calls a function on a host thread, in stream order. A device may run the
  /// functions of all its streams one at a time, so a function that waits for a function of another
  /// stream may wait forever.
  [[nodiscard]] virtual Result<void> call_host(const Submission& submission, HostFunction function,
                                               void* context) noexcept;

  // --- Managed memory

  /// Needs prefetch. Migrates the pages of the range to a place, in stream order.
  [[nodiscard]] virtual Result<void> prefetch(const Submission& submission, void* address,
                                              std::size_t bytes, Place destination) noexcept;
  /// Needs prefetch. Submits many prefetches, which have no order among each other. If one cannot
  /// be submitted, `submitted` is the number of prefetches before it that were submitted. The
  /// default calls prefetch() for each.
  [[nodiscard]] virtual Result<void> prefetch_batch(const Submission& submission,
                                                    std::span<const PrefetchRange> ranges,
                                                    std::size_t& submitted) noexcept;
  /// Needs discard. Declares that the bytes of the range are no longer needed, so that their pages
  /// need not be copied. The bytes are unspecified until they are next written. With a destination,
  /// the pages move there without their contents. Concurrent use of the range is undefined.
  [[nodiscard]] virtual Result<void> discard(const Submission& submission, void* address,
                                             std::size_t bytes,
                                             std::optional<Place> destination) noexcept;
  /// Needs advice. Applies a hint to the pages of the range. The place is ignored for hints that
  /// have none.
  [[nodiscard]] virtual Result<void> advise(void* address, std::size_t bytes, Advice advice,
                                            Place place) noexcept;
  /// Needs advice. Returns the hints in force for the range and the destination of its last
  /// prefetch.
  [[nodiscard]] virtual Result<ManagedInfo> managed_info(const void* address,
                                                         std::size_t bytes) noexcept;

  // --- Kernels. Needs kernels.

  /// Loads a kernel. May compile.
  [[nodiscard]] virtual Result<NativeKernel> load_kernel(const KernelSource& source) noexcept;
  /// Unloads a kernel. Submitted launches still complete. The call may wait for them. The default
  /// does nothing.
  virtual void unload_kernel(NativeKernel kernel) noexcept;
  /// Returns what is known without a launch. The default returns an empty KernelInfo.
  [[nodiscard]] virtual Result<KernelInfo> kernel_info(NativeKernel kernel) noexcept;
  /// Launches a kernel. The argument values are copied before the call returns.
  [[nodiscard]] virtual Result<void> launch(const Submission& submission, NativeKernel kernel,
                                            const LaunchSize& size,
                                            std::span<const KernelArgument> arguments) noexcept;

  // --- Notes for checkers and tools. The defaults ignore them. A note without a stream is by the
  // host.

  /// Announces that the host is about to use memory that it shares with the device. A checker fails
  /// the call with violation if submitted work on that memory is not ordered before the access.
  [[nodiscard]] virtual Result<void> note_host_access(const void* address, std::size_t bytes,
                                                      Access access, CallSite site) noexcept;
  /// Announces that a pool hands out a block, in the order of the stream.
  virtual void note_suballocate(const Submission& submission, const Suballocation& block) noexcept;
  /// Announces that a pool takes a block back, in the order of the stream.
  virtual void note_subrelease(const Submission& submission, const Suballocation& block) noexcept;
};

}  // namespace tern
