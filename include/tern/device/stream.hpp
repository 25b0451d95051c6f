// A Stream is a queue of work on a device, done in order; a StreamRef names one.
//
// Work on one stream runs in the order it was submitted; work on two streams has no order until one
// waits for a mark or an event of the other. All calls return without waiting for the work, except
// synchronize(). Memory named by a copy or a fill must stay valid until the stream has passed it.
//
// A Stream owns its queue and is one: it converts to StreamRef wherever one is asked for.
// Destroying it never loses work: what was submitted still completes, and its marks stay
// answerable. A StreamRef is two words; one whose stream has ended is refused with stream_misuse
// as long as the device is open. It does not keep the device open.
//
// Sizes of zero are no-ops that reach no backend. Each x() throws what try_x() returns. Submitting
// from several threads is safe; their order is then the order of the calls. Ending a Stream must
// not race with calls of the program's through references to it. What the library does there by
// itself may come at any time: buffers free their memory on streams that used it.

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
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"

namespace tern {

class Event;
struct StreamState;

class TERN_EXPORT StreamRef {
 public:
  /// No stream: every call is refused with stream_misuse.
  constexpr StreamRef() noexcept = default;

  [[nodiscard]] StreamId id() const noexcept { return id_; }
  [[nodiscard]] DeviceId device_id() const noexcept { return id_.device(); }
  /// The handle of the device; throws StreamMisuse if the stream has ended.
  [[nodiscard]] Device device() const;
  /// As given when it was made, else "stream 3", or "default".
  [[nodiscard]] std::string name() const;
  /// Would it take work now? False if it names no stream, one that has ended, or another process's.
  [[nodiscard]] bool is_usable() const noexcept;
  /// The backend's own handle, for code that talks to the driver itself.
  [[nodiscard]] Result<NativeStream> try_native() const noexcept;

  // --- Memory

  /// Ranges must not overlap (invalid_argument). Either side may be this device's or host memory.
  Result<void> try_copy(void* destination, const void* source, std::size_t bytes,
                        CallSite site = CallSite::here()) const noexcept;
  void copy(void* destination, const void* source, std::size_t bytes,
            CallSite site = CallSite::here()) const {
    try_copy(destination, source, bytes, site).value();
  }
  Result<void> try_copy_2d(const Copy2D& copy, CallSite site = CallSite::here()) const noexcept;
  void copy_2d(const Copy2D& copy, CallSite site = CallSite::here()) const {
    try_copy_2d(copy, site).value();
  }
  /// Many copies at once, for which one call of the driver may do. They have no order among each
  /// other, so none may touch what another one of them writes; that is not checked. Copies of zero
  /// bytes are left out.
  Result<void> try_copy_batch(std::span<const CopyRange> copies,
                              CallSite site = CallSite::here()) const noexcept;
  void copy_batch(std::span<const CopyRange> copies, CallSite site = CallSite::here()) const {
    try_copy_batch(copies, site).value();
  }
  /// From memory of another device of the same backend.
  Result<void> try_copy_from_peer(void* destination, const Device& peer, const void* source,
                                  std::size_t bytes,
                                  CallSite site = CallSite::here()) const noexcept;

  /// Repeats a pattern of 1 to 16 bytes; `bytes` must be a multiple of its width (size_mismatch).
  Result<void> try_fill_bytes(void* destination, std::size_t bytes, const Pattern& pattern,
                              CallSite site = CallSite::here()) const noexcept;
  /// Writes `count` copies of `value`.
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

  /// In stream order: later work of this stream may use the memory, other streams behind a wait.
  [[nodiscard]] Result<void*> try_allocate(std::size_t bytes,
                                           const AllocateOptions& options = {}) const noexcept;
  [[nodiscard]] void* allocate(std::size_t bytes, const AllocateOptions& options = {}) const {
    return try_allocate(bytes, options).value();
  }
  /// After all earlier work of this stream. Uses on other streams must be waited for first.
  Result<void> try_release(void* address, CallSite site = CallSite::here()) const noexcept;
  void release(void* address, CallSite site = CallSite::here()) const {
    try_release(address, site).value();
  }

  /// Managed memory (prefetch): its pages are brought to a place ahead of their use.
  Result<void> try_prefetch(void* address, std::size_t bytes, Place destination,
                            CallSite site = CallSite::here()) const noexcept;
  void prefetch(void* address, std::size_t bytes, Place destination,
                CallSite site = CallSite::here()) const {
    try_prefetch(address, bytes, destination, site).value();
  }
  /// Many at once, for which one call of the driver may do; they have no order among each other.
  /// Those of zero bytes are left out. All of them are looked at before the first is submitted; a
  /// refusal names the one it is about (`index`) and how many before it were submitted
  /// (`submitted`).
  Result<void> try_prefetch_batch(std::span<const PrefetchRange> ranges,
                                  CallSite site = CallSite::here()) const noexcept;
  void prefetch_batch(std::span<const PrefetchRange> ranges,
                      CallSite site = CallSite::here()) const {
    try_prefetch_batch(ranges, site).value();
  }
  /// Managed memory (discard): nobody needs its bytes any more, which are unspecified until they
  /// are written. Its pages need not be moved for them. With a destination the pages are brought
  /// there, empty.
  Result<void> try_discard(void* address, std::size_t bytes,
                           std::optional<Place> destination = std::nullopt,
                           CallSite site = CallSite::here()) const noexcept;
  void discard(void* address, std::size_t bytes, std::optional<Place> destination = std::nullopt,
               CallSite site = CallSite::here()) const {
    try_discard(address, bytes, destination, site).value();
  }

  // --- Facts for checkers and tools, from pools of one's own

  /// A block cut from memory the pool owns is given out, and is used by later work of this stream
  /// first; or it is taken back, behind the earlier work. A simulated device checks the order and
  /// reports a mistake with the next call that can fail; others take no notice.
  void note_suballocate(const Suballocation& block, Tag tag = {},
                        CallSite site = CallSite::here()) const noexcept;
  void note_subrelease(const Suballocation& block, CallSite site = CallSite::here()) const noexcept;

  // --- Work

  /// Calls `function(context)` on a host thread in stream order. It must not throw, must not call
  /// the device, and must not wait for a function of another stream: CUDA runs them one at a time.
  Result<void> try_call(HostFunction function, void* context,
                        CallSite site = CallSite::here()) const noexcept;
  void call(HostFunction function, void* context, CallSite site = CallSite::here()) const {
    try_call(function, context, site).value();
  }
  Result<void> try_launch(NativeKernel kernel, const LaunchSize& size,
                          std::span<const KernelArgument> arguments,
                          CallSite site = CallSite::here()) const noexcept;
  void launch(NativeKernel kernel, const LaunchSize& size,
              std::span<const KernelArgument> arguments, CallSite site = CallSite::here()) const {
    try_launch(kernel, size, arguments, site).value();
  }

  // --- Order

  /// Everything submitted so far, as a value. No driver call.
  [[nodiscard]] Result<Mark> try_mark() const noexcept;
  [[nodiscard]] Mark mark(CallSite site = CallSite::here()) const { return try_mark().value(site); }
  /// The same point in one load: the mark that is taken next, by whoever first asks about this one.
  /// For bookkeeping at every call; an allocator frees with it.
  [[nodiscard]] Result<Mark> try_next_mark() const noexcept;
  /// The same, and no mark at all of a stream that takes no work.
  [[nodiscard]] Mark next_mark() const noexcept;

  /// Later work here begins after the mark. Of this stream, or of one that is done: nothing to do.
  /// A mark of another backend's device is refused with device_mismatch.
  Result<void> try_wait(Mark mark, CallSite site = CallSite::here()) const noexcept;
  void wait(Mark mark, CallSite site = CallSite::here()) const { try_wait(mark, site).value(); }

  /// The event now stands for everything submitted so far. It must be of this device
  /// (device_mismatch).
  Result<void> try_record(Event& event, CallSite site = CallSite::here()) const noexcept;
  void record(Event& event, CallSite site = CallSite::here()) const {
    try_record(event, site).value();
  }
  /// Later work here begins after the event's latest record. One never recorded orders nothing.
  Result<void> try_wait(const Event& event, CallSite site = CallSite::here()) const noexcept;
  void wait(const Event& event, CallSite site = CallSite::here()) const {
    try_wait(event, site).value();
  }

  /// Is it being captured into a graph (CUDA)? What is submitted then is not done now but each time
  /// the graph runs, so marks say nothing of it: those taken meanwhile are refused with
  /// stream_misuse where an event would be needed, and so are waits here for marks of other
  /// streams. The capture stays as it is. An Event of one's own is recorded and waited for as the
  /// driver does it.
  [[nodiscard]] Result<bool> try_is_capturing() const noexcept;
  [[nodiscard]] bool is_capturing(CallSite site = CallSite::here()) const {
    return try_is_capturing().value(site);
  }

  [[nodiscard]] Result<bool> try_is_idle() const noexcept;
  [[nodiscard]] bool is_idle(CallSite site = CallSite::here()) const {
    return try_is_idle().value(site);
  }
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

  friend bool operator==(const StreamRef& a, const StreamRef& b) noexcept { return a.id_ == b.id_; }

 protected:
  friend class DeviceState;
  constexpr StreamRef(StreamState* state, StreamId id) noexcept : state_(state), id_(id) {}

  StreamState* state_ = nullptr;
  StreamId id_;

 private:
  Result<void> try_fill_elements(void* destination, std::size_t count, const Pattern& pattern,
                                 CallSite site) const noexcept;
};

class TERN_EXPORT Stream : public StreamRef {
 public:
  /// No stream.
  Stream() noexcept = default;
  /// Throws what try_make returns.
  explicit Stream(const Device& device, const StreamOptions& options = {},
                  CallSite site = CallSite::here());
  /// At most 4,095 streams exist on a device at once (capacity).
  [[nodiscard]] static Result<Stream> try_make(const Device& device,
                                               const StreamOptions& options = {}) noexcept;

  /// A stream that somebody else made, by the driver's own handle: work of Tern and of others on it
  /// is then in one order. Its maker keeps it alive until this Stream has ended, which waits for
  /// nothing and leaves it as it is. Borrowing it twice gives two Streams that are one. The
  /// driver's default stream is the device's. (borrowed_streams)
  [[nodiscard]] static Result<Stream> try_borrow(const Device& device,
                                                 NativeStream handle) noexcept;
  [[nodiscard]] static Stream borrow(const Device& device, NativeStream handle,
                                     CallSite site = CallSite::here()) {
    return try_borrow(device, handle).value(site);
  }

  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

 private:
  Stream(std::shared_ptr<DeviceState> device, StreamRef ref) noexcept;
  void end() noexcept;

  std::shared_ptr<DeviceState> device_;
};

}  // namespace tern
