// A Stream owns a queue of work on a device; a StreamRef refers to a Stream without owning it.
//
//   Stream stream(device, {.name = "upload"});
//   stream.copy(device_address, host_address, bytes);
//   stream.launch(kernel, size, arguments);
//   stream.synchronize();
//
// Order. Work on one stream runs in the order in which it was submitted. Work on two streams has no
// order until one of them waits for a mark or an event of the other. All calls return without
// waiting for the work; only synchronize() waits. Memory used by a copy or a fill must stay valid
// until the stream has passed the operation.
//
// Ownership. A Stream converts to StreamRef. Destroying a Stream does not lose work: submitted work
// still completes, and marks of the stream stay valid. A Stream keeps its device open; a StreamRef,
// which is two words, does not. While the device is open, a call on a StreamRef whose stream has
// ended fails with stream_misuse.
//
// Threads. Several threads may submit to one stream; the order of the work is the order of the
// calls. The program must not destroy a Stream while another of its threads makes calls through a
// reference to it. The library may use the stream on its own at any time, to free buffers on
// streams that used them; the destructor of Stream handles that case.
//
// Operations of zero bytes do nothing and do not reach the backend. Each x() throws the failure
// that try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/device/operands.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"

namespace tern {

class Event;
struct StreamState;

class TERN_EXPORT StreamRef {
 public:
  /// A reference to no stream. Every call that can fail fails with stream_misuse.
  constexpr StreamRef() noexcept = default;

  /// Returns the id of the stream, which is never reused.
  [[nodiscard]] StreamId id() const noexcept { return id_; }
  /// Returns the device of the stream, also after the stream has ended.
  [[nodiscard]] DeviceId device_id() const noexcept { return id_.device(); }
  /// Returns a handle to the device. Throws StreamMisuse if the stream has ended.
  [[nodiscard]] Device device() const;
  /// Returns the name given at creation, else "stream 3" with its number. The default stream is
  /// "default". Returns "ended" if the stream does not accept work.
  [[nodiscard]] std::string name() const;
  /// Returns true if the stream accepts work: false for a reference to no stream, for a stream that
  /// has ended, and for a stream of the parent process after a fork.
  [[nodiscard]] bool is_usable() const noexcept;
  /// Returns the driver's handle of the stream, for code that calls the driver itself.
  [[nodiscard]] Result<NativeStream> try_native() const noexcept;

  // --- Memory: stream-ordered copies, fills and allocations

  /// Copies bytes. Source and destination may each be memory of this device or host memory. Fails
  /// with invalid_argument if an address is null or the two ranges overlap, and with size_overflow
  /// if a range exceeds the address space.
  Result<void> try_copy(void* destination, const void* source, std::size_t bytes,
                        CallSite site = CallSite::here()) const noexcept;
  void copy(void* destination, const void* source, std::size_t bytes,
            CallSite site = CallSite::here()) const {
    try_copy(destination, source, bytes, site).value();
  }
  /// Copies rows of memory. Fails like try_copy(), and with invalid_argument if a pitch is smaller
  /// than the width.
  Result<void> try_copy_2d(const Copy2D& copy, CallSite site = CallSite::here()) const noexcept;
  void copy_2d(const Copy2D& copy, CallSite site = CallSite::here()) const {
    try_copy_2d(copy, site).value();
  }
  /// Submits many copies together, in one driver call where the backend supports it. The copies
  /// have no order among each other, so no copy may read or write bytes that another copy of the
  /// batch writes. This is not checked. Copies of zero bytes are skipped. All arguments are checked
  /// before the first copy is submitted; if the driver then rejects a copy, earlier copies may
  /// already be submitted.
  Result<void> try_copy_batch(std::span<const CopyRange> copies,
                              CallSite site = CallSite::here()) const noexcept;
  void copy_batch(std::span<const CopyRange> copies, CallSite site = CallSite::here()) const {
    try_copy_batch(copies, site).value();
  }
  /// Copies from memory of `peer`, another device of the same backend, to memory of this device.
  /// Needs Capability::peer_copies. Fails with device_mismatch if `peer` belongs to another
  /// backend. The stream does not wait for work of `peer`; wait for a mark first.
  Result<void> try_copy_from_peer(void* destination, const Device& peer, const void* source,
                                  std::size_t bytes,
                                  CallSite site = CallSite::here()) const noexcept;

  /// Fills memory by repeating a pattern of 1 to 16 bytes. Fails with size_mismatch if `bytes` is
  /// not a multiple of the width of the pattern.
  Result<void> try_fill_bytes(void* destination, std::size_t bytes, const Pattern& pattern,
                              CallSite site = CallSite::here()) const noexcept;
  /// Writes `count` copies of `value`. T must be trivially copyable and have at most 16 bytes. The
  /// value is copied before the call returns.
  template <class T>
  Result<void> try_fill(T* destination, std::size_t count, const std::type_identity_t<T>& value,
                        CallSite site = CallSite::here()) const noexcept {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= Pattern::max_bytes);
    Pattern pattern;
    pattern.width_bytes = sizeof(T);
    std::memcpy(pattern.bytes, &value, sizeof(T));
    return try_fill_elements(destination, count, pattern, site);
  }
  template <class T>
  void fill(T* destination, std::size_t count, const std::type_identity_t<T>& value,
            CallSite site = CallSite::here()) const {
    try_fill(destination, count, value, site).value();
  }

  /// Allocates device memory in stream order. Later work of this stream may use the memory. Other
  /// streams may use it after they wait for a mark of this stream. Needs
  /// Capability::stream_ordered_memory. Fails with out_of_memory.
  [[nodiscard]] Result<void*> try_allocate(std::size_t bytes,
                                           const AllocateOptions& options = {}) const noexcept;
  [[nodiscard]] void* allocate(std::size_t bytes, const AllocateOptions& options = {}) const {
    return try_allocate(bytes, options).value();
  }
  /// Frees memory from try_allocate() once all earlier work of this stream has completed. If other
  /// streams used the memory, this stream must wait for them first.
  Result<void> try_release(void* address, CallSite site = CallSite::here()) const noexcept;
  void release(void* address, CallSite site = CallSite::here()) const {
    try_release(address, site).value();
  }

  /// Migrates the pages of a range of managed memory to a place before they are used. Needs
  /// Capability::prefetch. Fails with invalid_device if the destination is a device that is not
  /// open.
  Result<void> try_prefetch(void* address, std::size_t bytes, Place destination,
                            CallSite site = CallSite::here()) const noexcept;
  void prefetch(void* address, std::size_t bytes, Place destination,
                CallSite site = CallSite::here()) const {
    try_prefetch(address, bytes, destination, site).value();
  }
  /// Submits many prefetches together, in one driver call where the backend supports it. They have
  /// no order among each other. Ranges of zero bytes are skipped. All ranges are checked before the
  /// first is submitted. A failure carries the index of the rejected range (`index`) and the number
  /// of ranges before it that were submitted (`submitted`).
  Result<void> try_prefetch_batch(std::span<const PrefetchRange> ranges,
                                  CallSite site = CallSite::here()) const noexcept;
  void prefetch_batch(std::span<const PrefetchRange> ranges,
                      CallSite site = CallSite::here()) const {
    try_prefetch_batch(ranges, site).value();
  }
  /// Declares that the contents of a range of managed memory are no longer needed, so that the
  /// driver does not have to copy its pages. The bytes are unspecified until they are next written.
  /// With a destination, the pages move there without their contents. Needs Capability::discard.
  Result<void> try_discard(void* address, std::size_t bytes,
                           std::optional<Place> destination = std::nullopt,
                           CallSite site = CallSite::here()) const noexcept;
  void discard(void* address, std::size_t bytes, std::optional<Place> destination = std::nullopt,
               CallSite site = CallSite::here()) const {
    try_discard(address, bytes, destination, site).value();
  }

  // --- Notes for checkers and tools, for programs with a memory pool of their own

  /// note_suballocate() announces that a pool hands out a block of memory that the pool owns. Work
  /// that is submitted to this stream afterwards uses the block first. note_subrelease() announces
  /// that the pool takes the block back, after the work submitted to this stream so far. A
  /// simulated device checks the order and reports an error in the next call that can fail. Other
  /// devices ignore the notes.
  void note_suballocate(const Suballocation& block, Tag tag = {},
                        CallSite site = CallSite::here()) const noexcept;
  void note_subrelease(const Suballocation& block, CallSite site = CallSite::here()) const noexcept;

  // --- Work

  /// Calls `function(context)` on a host thread, in stream order. The function must not throw, must
  /// not call the device, and must not wait for a function of another stream, because CUDA runs
  /// such functions one at a time. Needs Capability::host_functions. Fails with invalid_argument
  /// for a null function.
  Result<void> try_call(HostFunction function, void* context,
                        CallSite site = CallSite::here()) const noexcept;
  void call(HostFunction function, void* context, CallSite site = CallSite::here()) const {
    try_call(function, context, site).value();
  }
  /// Launches a kernel. The argument values are copied before the call returns; together they may
  /// have at most 64 KiB. A grid or block with a zero extent launches nothing. Needs
  /// Capability::kernels. Fails with invalid_argument for a null kernel, and with unsupported if
  /// the device does not accept that many arguments. Kernel, in launch/kernel.hpp, also declares
  /// the uses of buffers.
  Result<void> try_launch(NativeKernel kernel, const LaunchSize& size,
                          std::span<const KernelArgument> arguments,
                          CallSite site = CallSite::here()) const noexcept;
  void launch(NativeKernel kernel, const LaunchSize& size,
              std::span<const KernelArgument> arguments, CallSite site = CallSite::here()) const {
    try_launch(kernel, size, arguments, site).value();
  }

  // --- Order: marks, events and waits

  /// Returns a mark for everything submitted to the stream so far. No driver call.
  [[nodiscard]] Result<Mark> try_mark() const noexcept;
  [[nodiscard]] Mark mark(CallSite site = CallSite::here()) const { return try_mark().value(site); }
  /// Returns the mark that the stream will issue next, which covers everything submitted so far, at
  /// the cost of one load. The stream issues the mark on the first wait for it or query of it, or
  /// when mark() is next called. The mark also covers work that is submitted until then. Allocators
  /// use this function to record every free.
  [[nodiscard]] Result<Mark> try_next_mark() const noexcept;
  /// Like try_next_mark(), but returns the empty mark if the stream does not accept work.
  [[nodiscard]] Mark next_mark() const noexcept;

  /// Makes later work of this stream start after the mark. The host does not wait. Does nothing for
  /// a mark of this stream or for a mark that is done. Fails with device_mismatch for a mark of a
  /// device of another backend.
  Result<void> try_wait(Mark mark, CallSite site = CallSite::here()) const noexcept;
  void wait(Mark mark, CallSite site = CallSite::here()) const { try_wait(mark, site).value(); }

  /// Records the event: it now represents everything submitted to this stream so far. Fails with
  /// invalid_argument for an empty event, and with device_mismatch if the event belongs to another
  /// device.
  Result<void> try_record(Event& event, CallSite site = CallSite::here()) const noexcept;
  void record(Event& event, CallSite site = CallSite::here()) const {
    try_record(event, site).value();
  }
  /// Makes later work of this stream start after the latest record of the event. The host does not
  /// wait. An event that was never recorded orders nothing. Fails with device_mismatch for an event
  /// of another backend.
  Result<void> try_wait(const Event& event, CallSite site = CallSite::here()) const noexcept;
  void wait(const Event& event, CallSite site = CallSite::here()) const {
    try_wait(event, site).value();
  }

  // --- Graphs. Needs Capability::graphs. GraphCapture and Graph, in launch/graph.hpp, own captures
  // and graphs, and declare the uses of buffers.

  /// Begins to capture the stream: work that is submitted to it becomes part of a graph and does
  /// not run. Another stream of the device joins the capture when it waits for an Event that was
  /// recorded in the capture. Fails with stream_misuse for the default stream, and if the stream is
  /// already being captured.
  Result<void> try_begin_capture(CallSite site = CallSite::here()) const noexcept;
  /// Ends the capture that began on this stream, and returns the captured work. Destroy it with
  /// Device::destroy_graph(). Fails with stream_misuse if no capture began on this stream, if an
  /// illegal call has invalidated the capture, or if this stream has not waited for all work of the
  /// other streams. Unless no capture began on this stream, the capture is over even if the call
  /// fails.
  [[nodiscard]] Result<NativeGraph> try_end_capture(
      CallSite site = CallSite::here()) const noexcept;
  /// Ends the capture that began on this stream, and discards the captured work. Does nothing if
  /// there is none.
  void abort_capture() const noexcept;
  /// Launches a graph of this device. It starts after all earlier work of this stream and after all
  /// earlier launches of the graph. Fails with invalid_argument for a null graph.
  Result<void> try_launch_graph(NativeGraph graph, CallSite site = CallSite::here()) const noexcept;

  /// Returns true if the stream is being captured into a graph. Work submitted during a
  /// capture does not run now; it runs each time the graph is launched. Marks cannot describe such
  /// work. During a capture, waiting for or querying a mark of this stream fails with stream_misuse
  /// if it needs a new event, and so does a wait of this stream for a mark of another stream. The
  /// failure does not end the capture. Recording and waiting for an Event work as in the driver.
  [[nodiscard]] Result<bool> try_is_capturing() const noexcept;
  [[nodiscard]] bool is_capturing(CallSite site = CallSite::here()) const {
    return try_is_capturing().value(site);
  }

  /// Returns true if all work submitted to the stream has completed. Does not wait.
  [[nodiscard]] Result<bool> try_is_idle() const noexcept;
  [[nodiscard]] bool is_idle(CallSite site = CallSite::here()) const {
    return try_is_idle().value(site);
  }
  /// Blocks the host until all work submitted to the stream so far has completed. If a copy with a
  /// file has failed since the last call, returns its failure (copy.hpp).
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(site); }

  friend bool operator==(const StreamRef& a, const StreamRef& b) noexcept { return a.id_ == b.id_; }

 protected:
  friend class DeviceState;
  constexpr StreamRef(StreamState* state, StreamId id) noexcept : state_(state), id_(id) {}

  StreamState* state_ = nullptr;  // may belong to a later stream; id_ tells them apart
  StreamId id_;

 private:
  Result<void> try_fill_elements(void* destination, std::size_t count, const Pattern& pattern,
                                 CallSite site) const noexcept;
};

/// The owner of a stream. Can be moved, but not copied. Calls on a Stream that was moved from fail
/// with stream_misuse.
class TERN_EXPORT Stream : public StreamRef {
 public:
  /// An empty Stream.
  Stream() noexcept = default;
  /// Creates a stream. Throws the failure that try_make() returns.
  explicit Stream(const Device& device, const StreamOptions& options = {},
                  CallSite site = CallSite::here());
  /// Creates a stream. Fails with invalid_device if the device is not open, and with capacity if
  /// the device already has 4,095 streams.
  [[nodiscard]] static Result<Stream> try_make(const Device& device,
                                               const StreamOptions& options = {}) noexcept;

  /// Borrows a stream that other code created, by its driver handle. Work that Tern submits and
  /// work that the owner submits then run in one order. The owner must keep the stream alive until
  /// this Stream is destroyed. Destroying this Stream does not destroy the owner's stream.
  ///
  /// Borrowing one stream twice returns two Streams that refer to the same stream, with one id. The
  /// driver's default stream is the default stream of the device. A stream that is borrowed again
  /// and again keeps its id, and borrowing it costs two driver calls.
  ///
  /// Fails with stream_misuse if the stream is being captured into a graph and is not borrowed yet.
  /// The capture stays valid. Needs Capability::borrowed_streams.
  [[nodiscard]] static Result<Stream> try_borrow(const Device& device,
                                                 NativeStream handle) noexcept;
  [[nodiscard]] static Stream borrow(const Device& device, NativeStream handle,
                                     CallSite site = CallSite::here()) {
    return try_borrow(device, handle).value(site);
  }

  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  /// Ends the stream. Work already submitted still completes. Normally does not wait for it: the
  /// destructor records a last event for pending marks, and waits for the work only if that record
  /// fails.
  ~Stream();

 private:
  Stream(std::shared_ptr<DeviceState> device, StreamRef ref) noexcept;
  /// Borrows a stream that the device does not know yet.
  static Result<Stream> try_borrow_new(const Device& device, NativeStream handle) noexcept;
  void end() noexcept;

  // Null for a borrowed stream, whose loan keeps the device open.
  std::shared_ptr<DeviceState> device_;
};

// A StreamPool lends a bounded number of streams of one device.
//
//   StreamPool pool(device, 4);
//   StreamLease stream = pool.acquire();
//   stream->copy(destination, source, bytes);
//
// The pool creates streams on demand, keeps them, and lends them again after they are returned. If
// all streams are lent, the next request fails with ErrorCode::capacity. The pool never lends the
// default stream instead, because that would silently serialise work.
//
// A returned stream keeps its id and may still have pending work. Work of the next borrower runs
// after that work. The pool is thread-safe. Pool and leases may be destroyed in any order, because
// leases keep the streams alive.

struct StreamPoolState;

/// A lent stream. The destructor returns the stream to the pool. It does not wait for the work.
class TERN_EXPORT StreamLease {
 public:
  /// A lease without a stream.
  StreamLease() noexcept = default;
  StreamLease(StreamLease&& other) noexcept;
  StreamLease& operator=(StreamLease&& other) noexcept;
  ~StreamLease();

  /// Returns the stream. Do not use the reference after the lease has ended.
  [[nodiscard]] StreamRef get() const noexcept { return stream_; }
  [[nodiscard]] const StreamRef* operator->() const noexcept { return &stream_; }
  operator StreamRef() const noexcept { return stream_; }

 private:
  friend class StreamPool;
  StreamLease(std::shared_ptr<StreamPoolState> pool, StreamRef stream, std::size_t index) noexcept;
  void end() noexcept;

  std::shared_ptr<StreamPoolState> pool_;
  StreamRef stream_;
  std::size_t index_ = 0;
};

class TERN_EXPORT StreamPool {
 public:
  /// Creates a pool without streams. Capacity 0 selects TERN_STREAM_POOL, which is 16 unless set.
  /// Throws InvalidArgument for a capacity above 1024, and InvalidDevice if the device is not open.
  explicit StreamPool(const Device& device, std::size_t capacity = 0);
  // Copies refer to the same pool. There is no move constructor, because a pool that was moved from
  // would have no state.
  StreamPool(const StreamPool&) noexcept = default;
  StreamPool& operator=(const StreamPool&) noexcept = default;

  /// Lends a stream, preferably the one returned last. Creates a stream if none is available and
  /// the capacity is not reached. Fails with capacity if all streams are lent. Does not wait.
  [[nodiscard]] Result<StreamLease> try_acquire() noexcept;
  [[nodiscard]] StreamLease acquire(CallSite site = CallSite::here()) {
    return try_acquire().value(site);
  }

  /// Returns the stream of the pool with this id, whether lent or not. Fails with stream_misuse if
  /// the pool has no such stream.
  [[nodiscard]] Result<StreamRef> try_find(StreamId id) const noexcept;

  /// Returns the maximum number of streams.
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Returns the number of streams that are lent now.
  [[nodiscard]] std::size_t lent() const noexcept;

 private:
  std::shared_ptr<StreamPoolState> state_;
};

}  // namespace tern
