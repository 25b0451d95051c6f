// The contract: everything Tern asks of a device, in one place.
//
// A Backend is one opened device. `host`, `sim`, `cuda` and `opencl` implement it; users never call
// it, they hold a Device and streams, which check every argument once, for all backends. So an
// implementation may rely on the preconditions stated here, and must only report what it finds out
// by doing.
//
// Order. Primitives that take a Submission are ordered by its stream: they begin after all earlier
// work of that stream, and the call may return before they begin. All others are host calls, done
// when they return. Synchronisation that a driver adds beyond that is never relied on.
//
// Failure. A primitive that fails has changed nothing, says so with a Failure, and leaves the
// backend usable, except for device_lost, after which releases succeed as bookkeeping and
// everything else fails fast with the first cause. Nothing throws and nothing prints.
//
// Threads. All primitives may be called from any thread at once. Destruction comes last, from one
// thread, and completes all submitted work first.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/capabilities.hpp"
#include "tern/device/memory_kind.hpp"

namespace tern {

/// The backend's own handles, as opaque words. Zero is none.
struct NativeStream {
  std::uintptr_t value = 0;
};
struct NativeEvent {
  std::uintptr_t value = 0;
};
struct NativeKernel {
  std::uintptr_t value = 0;
};
struct NativePages {
  std::uintptr_t value = 0;
};

/// Facts about a device that do not change while it is open.
struct DeviceInfo {
  std::string backend;  // "host"
  std::string spec;     // canonical: opens this device again
  std::string name;     // what people call it: the CPU's or GPU's model
  std::string driver;   // version text of what stands between Tern and the device
  Capabilities capabilities;
  std::size_t total_bytes = 0;
  std::size_t alignment = 64;              // what every allocation has at least
  std::size_t max_alignment = 256u << 20;  // the largest that may be asked for
  std::size_t page_bytes = 0;              // granularity of virtual memory; 0 without it
  std::uint32_t processors = 0;            // cores, multiprocessors, compute units
  std::uint32_t compute_major = 0, compute_minor = 0;
  std::uint32_t max_kernel_arguments = 0;  // 0: no limit
  bool wants_notes = false;                // notes and host accesses are listened to
  bool is_host = false;                    // its memory is the host's own
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// What the device knows of an address. `base` and `bytes` are the allocation's, zero for host
/// memory it does not know.
struct PointerInfo {
  MemoryKind kind = MemoryKind::host;
  void* base = nullptr;
  std::size_t bytes = 0;
};

/// How the pool behaves that the driver takes stream-ordered memory from. What is unset stays.
struct DriverPoolSettings {
  /// The most that the pool holds; can be set only before the pool exists.
  std::optional<std::size_t> max_bytes = {};
  /// Freed memory above this goes back to the system when a stream or the device is waited for.
  std::optional<std::size_t> release_threshold_bytes = {};
};

/// What is in force, and what the pool holds. Peaks are since the last reset.
struct DriverPoolInfo {
  std::size_t max_bytes = 0;  // 0: as the driver decides
  std::size_t release_threshold_bytes = 0;
  std::size_t reserved_bytes = 0, peak_reserved_bytes = 0;  // taken from the system
  std::size_t used_bytes = 0, peak_used_bytes = 0;          // allocated from the pool
};

/// May kernels of one device use memory of another?
enum class PeerAccess : std::uint8_t {
  unavailable,  // and it cannot be enabled
  disabled,
  enabled,
};

/// Which stream an operation is submitted to, and on whose behalf.
struct Submission {
  NativeStream stream = {};
  CallSite site = {};
  Tag tag = {};
  /// Of records and waits: the event is the library's own, and is asked about later. Where that
  /// would make it a part of a graph, the call is refused (stream_misuse) before it harms the
  /// capture.
  bool stays_out_of_graphs = false;
};

struct StreamOptions {
  /// Ordered with the default stream of the device, as CUDA's blocking streams are.
  bool blocking = false;
  /// Lower runs first where the device has priorities; elsewhere it is ignored.
  int priority = 0;
  /// For reports; copied, cut at 31 bytes.
  std::string_view name = {};
};

struct EventOptions {
  /// Needs Capability::event_timing.
  bool timing = false;
};

/// Rows of `width_bytes`, `*_pitch_bytes` apart. Width is at most either pitch.
struct Copy2D {
  void* destination = nullptr;
  std::size_t destination_pitch_bytes = 0;
  const void* source = nullptr;
  std::size_t source_pitch_bytes = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};

/// One of many copies that are submitted together.
struct CopyRange {
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
};

/// One of many prefetches that are submitted together.
struct PrefetchRange {
  void* address = nullptr;
  std::size_t bytes = 0;
  Place destination = {};
};

/// A stream that somebody else made.
struct BorrowedStream {
  NativeStream native;
  /// The driver's number of it, which is never used again; 0 if it has none.
  std::uint64_t id = 0;
  /// It is the device's default stream, which is known already.
  bool is_default = false;
};

/// A fill repeats these bytes: 1 to 16 of them, the value of one element.
struct Pattern {
  static constexpr std::size_t max_bytes = 16;
  std::byte bytes[max_bytes] = {};
  std::size_t width_bytes = 1;
};

enum class PageAccess : std::uint8_t { none, read, read_write };

enum class Advice : std::uint8_t {
  set_read_mostly,
  unset_read_mostly,
  set_preferred_location,
  unset_preferred_location,
  set_accessed_by,
  unset_accessed_by,
};

/// What is in force for a range of managed memory. What differs from page to page is unset.
struct ManagedInfo {
  bool is_read_mostly = false;              // all of it
  std::vector<Place> accessed_by = {};      // who has all of it mapped: devices, the host
  std::optional<Place> preferred = {};      // where its pages should be
  std::optional<Place> last_prefetch = {};  // where they were last sent

  [[nodiscard]] TERN_EXPORT bool is_accessed_by(Place place) const noexcept;
};

/// Called once by the stream, in its order. Must not call the device, and must not throw.
using HostFunction = void (*)(void* context);

struct LaunchSize {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;

  /// Threads of a block where nobody knows better.
  static constexpr std::uint32_t usual_block = 256;

  /// As many blocks along the first axis as `count` elements need, one thread each; the last block
  /// may have threads to spare. Zero elements are no blocks, and their launch does nothing. Refused
  /// with size_overflow beyond 2^31 - 1 blocks, with invalid_argument for a block of none.
  [[nodiscard]] TERN_EXPORT static Result<LaunchSize> try_for_elements(
      std::uint64_t count, std::uint32_t block_threads = usual_block,
      CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static LaunchSize for_elements(std::uint64_t count,
                                               std::uint32_t block_threads = usual_block,
                                               CallSite site = CallSite::here()) {
    return try_for_elements(count, block_threads, site).value();
  }
};

/// One argument of a launch: the bytes passed by value and, if they are an address, the range
/// behind it and what the kernel does there.
struct KernelArgument {
  const void* value = nullptr;
  std::size_t value_bytes = 0;
  void* range_address = nullptr;
  std::size_t range_bytes = 0;
  Access access = Access::read;
};

/// What a kernel written in C++ sees of its launch. One call does the whole grid.
struct KernelCall {
  LaunchSize size = {};
  std::span<const KernelArgument> arguments = {};
  void* context = nullptr;

  template <class T>
  [[nodiscard]] const T& argument(std::size_t index) const noexcept {
    return *static_cast<const T*>(arguments[index].value);
  }
};
using KernelBody = void (*)(const KernelCall& call);

/// Where a kernel comes from: a C++ function (host, sim), a compiled image (cuda), or text (opencl,
/// cuda with a run-time compiler).
struct KernelSource {
  std::string_view entry = {};
  KernelBody body = nullptr;
  void* context = nullptr;
  std::span<const std::byte> image = {};
  std::string_view text = {};
  /// For the compiler of the text, with blanks between them.
  std::string_view options = {};
};

/// What a backend knows of a kernel it has loaded.
struct KernelInfo {
  static constexpr std::size_t max_parameters = 64;

  enum class Kind : std::uint8_t { unknown, value, address };
  struct Parameter {
    std::uint32_t value_bytes = 0;  // 0: not known
    Kind kind = Kind::unknown;
  };

  /// Arguments that a launch takes; unset: not known.
  std::optional<std::uint32_t> parameter_count = {};
  /// Of the first of them.
  std::array<Parameter, max_parameters> parameters = {};
  /// Threads of a block with which a launch along one axis fills the device best; 0: not known.
  std::uint32_t block_threads = 0;
};

/// A block that a pool hands out from memory it allocated earlier, for checkers and tools.
struct Suballocation {
  const void* address = nullptr;
  std::size_t bytes = 0;
  std::uint64_t generation = 0;
};

class TERN_EXPORT Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend();

  // --- The device

  /// The number the process has given the device, as places carry it. Said once, before any other
  /// call; the default forgets it.
  virtual void opened_as(DeviceId id) noexcept;
  [[nodiscard]] virtual const DeviceInfo& info() const noexcept = 0;
  [[nodiscard]] virtual Result<MemoryInfo> memory() noexcept = 0;
  /// Returns when all work submitted to any stream before the call is complete.
  [[nodiscard]] virtual Result<void> synchronize() noexcept = 0;

  // --- Memory. bytes > 0 and at most max_request_bytes; alignment is a power of two between
  // info().alignment and info().max_alignment

  /// Kind is device, pinned or managed, and declared. Contents are unspecified.
  [[nodiscard]] virtual Result<void*> allocate(MemoryKind kind, std::size_t bytes,
                                               std::size_t alignment, CallSite site,
                                               Tag tag) noexcept = 0;
  /// `address` came from allocate, or it is refused with use_after_free and nothing changes. No
  /// submitted work may still use it.
  [[nodiscard]] virtual Result<void> release(void* address, CallSite site) noexcept = 0;
  [[nodiscard]] virtual Result<PointerInfo> pointer_info(const void* address) noexcept = 0;

  /// stream_ordered_memory: usable by later work of the stream; elsewhere only behind a wait.
  [[nodiscard]] virtual Result<void*> allocate_async(const Submission& submission,
                                                     std::size_t bytes,
                                                     std::size_t alignment) noexcept;
  [[nodiscard]] virtual Result<void> release_async(const Submission& submission,
                                                   void* address) noexcept;

  /// The pool behind allocate_async, where the driver has one with settings; unsupported elsewhere.
  /// Settings hold for all who allocate there.
  [[nodiscard]] virtual Result<DriverPoolInfo> driver_pool() noexcept;
  [[nodiscard]] virtual Result<void> set_driver_pool(const DriverPoolSettings& settings) noexcept;
  [[nodiscard]] virtual Result<void> reset_driver_pool_peaks() noexcept;
  /// May `peer`, another device of the same backend, use memory of the pool? Allocated memory too.
  [[nodiscard]] virtual Result<void> set_driver_pool_access(Backend& peer,
                                                            bool is_allowed) noexcept;

  /// registered_memory: page-locks [address, address + bytes) and gives the device's address of it.
  [[nodiscard]] virtual Result<void*> register_host(void* address, std::size_t bytes) noexcept;
  [[nodiscard]] virtual Result<void> unregister_host(void* address) noexcept;

  // --- Virtual memory (virtual_memory). All sizes and offsets are multiples of info().page_bytes
  // ---

  [[nodiscard]] virtual Result<void*> reserve(std::size_t bytes) noexcept;
  /// The whole reservation, with nothing mapped in it.
  [[nodiscard]] virtual Result<void> unreserve(void* address, std::size_t bytes) noexcept;
  /// Physical memory, without an address.
  [[nodiscard]] virtual Result<NativePages> create_pages(std::size_t bytes) noexcept;
  /// Gives the handle up; the memory itself goes when it is mapped nowhere any more.
  [[nodiscard]] virtual Result<void> release_pages(NativePages pages) noexcept;
  /// Maps all of `pages` at `address`, inside a reservation where nothing is mapped. Gives no
  /// access.
  [[nodiscard]] virtual Result<void> map(void* address, NativePages pages) noexcept;
  /// Exactly one whole mapping, used by no submitted work.
  [[nodiscard]] virtual Result<void> unmap(void* address, std::size_t bytes) noexcept;
  /// For a fully mapped range of one or several mappings.
  [[nodiscard]] virtual Result<void> set_access(void* address, std::size_t bytes,
                                                PageAccess access) noexcept;

  // --- Copies and fills. bytes > 0, no null address, no overlap

  /// Between any two of: this device's memory and host memory. Pageable host memory must stay as it
  /// is until the stream has passed the copy.
  [[nodiscard]] virtual Result<void> copy(const Submission& submission, void* destination,
                                          const void* source, std::size_t bytes) noexcept = 0;
  [[nodiscard]] virtual Result<void> copy_2d(const Submission& submission,
                                             const Copy2D& copy) noexcept = 0;
  /// Many copies, which have no order among each other: none may write what another one of them
  /// reads or writes. Each as in copy(). If one cannot be submitted, those before it may have been.
  [[nodiscard]] virtual Result<void> copy_batch(const Submission& submission,
                                                std::span<const CopyRange> copies) noexcept;
  /// `bytes` is a multiple of the pattern's width; the address need not be aligned to it.
  [[nodiscard]] virtual Result<void> fill(const Submission& submission, void* destination,
                                          std::size_t bytes, const Pattern& pattern) noexcept = 0;
  /// peer_copies: from memory of `peer`, a device of the same backend.
  [[nodiscard]] virtual Result<void> copy_from_peer(const Submission& submission, void* destination,
                                                    Backend& peer, const void* source,
                                                    std::size_t bytes) noexcept;
  /// Lets kernels here use memory of `peer`; true if they may. Repeating it is harmless.
  [[nodiscard]] virtual Result<bool> enable_peer_access(Backend& peer) noexcept;
  /// What enable_peer_access() would find. `peer` is another device of the same backend.
  [[nodiscard]] virtual Result<PeerAccess> peer_access(Backend& peer) noexcept;
  /// Takes it back. Repeating it is harmless.
  [[nodiscard]] virtual Result<void> disable_peer_access(Backend& peer) noexcept;

  // --- Streams and events

  /// Never null, and valid as long as the backend.
  [[nodiscard]] virtual NativeStream default_stream() noexcept = 0;
  [[nodiscard]] virtual Result<NativeStream> create_stream(
      const StreamOptions& options) noexcept = 0;
  /// borrowed_streams: a stream by the driver's own handle, which its maker keeps alive until it is
  /// destroyed here; that ends the loan, and not the stream.
  [[nodiscard]] virtual Result<BorrowedStream> borrow_stream(NativeStream handle) noexcept;
  /// The driver's own handle of the stream, for code that calls the driver itself. The default: the
  /// same.
  [[nodiscard]] virtual NativeStream native_handle(NativeStream stream) noexcept;
  /// Returns at once or waits; either way the work already submitted still completes.
  virtual void destroy_stream(NativeStream stream) noexcept = 0;
  /// True if everything submitted so far is complete. Never blocks.
  [[nodiscard]] virtual Result<bool> query(NativeStream stream) noexcept = 0;
  [[nodiscard]] virtual Result<void> synchronize(NativeStream stream) noexcept = 0;
  /// Would work become a part of a graph that somebody captures, or stand in the way of one? Never
  /// harms the capture. The default: no.
  [[nodiscard]] virtual Result<bool> is_capturing(NativeStream stream) noexcept;

  [[nodiscard]] virtual Result<NativeEvent> create_event(const EventOptions& options) noexcept = 0;
  /// Waits already queued on the event are not disturbed, and a record still running may finish.
  virtual void destroy_event(NativeEvent event) noexcept = 0;
  /// The event now stands for all work submitted to the stream before. Earlier waits keep the
  /// record they saw.
  [[nodiscard]] virtual Result<void> record(const Submission& submission,
                                            NativeEvent event) noexcept = 0;
  /// Later work of the stream begins after the event's latest record, which may be on another
  /// stream or another device of the backend. A null event stands for one that was never recorded:
  /// no order follows from it, and only checkers take note.
  [[nodiscard]] virtual Result<void> wait(const Submission& submission,
                                          NativeEvent event) noexcept = 0;
  /// Of the latest record; the event has been recorded.
  [[nodiscard]] virtual Result<bool> query(NativeEvent event) noexcept = 0;
  [[nodiscard]] virtual Result<void> synchronize(NativeEvent event) noexcept = 0;
  /// event_timing: both were made with timing, recorded, and are complete.
  [[nodiscard]] virtual Result<std::uint64_t> elapsed_ns(NativeEvent start,
                                                         NativeEvent end) noexcept;

  /// host_functions. A device may run those of all its streams one at a time, so one that waits for
  /// another stream's may wait for ever.
  [[nodiscard]] virtual Result<void> call_host(const Submission& submission, HostFunction function,
                                               void* context) noexcept;

  // --- Managed memory

  /// prefetch: brings the pages of the range to a place, in stream order.
  [[nodiscard]] virtual Result<void> prefetch(const Submission& submission, void* address,
                                              std::size_t bytes, Place destination) noexcept;
  /// prefetch: many of them, which have no order among each other. If one cannot be submitted,
  /// `submitted` says how many before it were.
  [[nodiscard]] virtual Result<void> prefetch_batch(const Submission& submission,
                                                    std::span<const PrefetchRange> ranges,
                                                    std::size_t& submitted) noexcept;
  /// discard: nobody needs the bytes of the range any more, and what they are is unspecified until
  /// they are written. Pages need not be moved for them then. With a destination the pages are
  /// brought there, without their bytes. Work that uses the range meanwhile is undefined.
  [[nodiscard]] virtual Result<void> discard(const Submission& submission, void* address,
                                             std::size_t bytes,
                                             std::optional<Place> destination) noexcept;
  /// advice: takes effect for the pages of the range; the place is ignored where it means nothing.
  [[nodiscard]] virtual Result<void> advise(void* address, std::size_t bytes, Advice advice,
                                            Place place) noexcept;
  /// advice: what the range has been told, and where it was sent.
  [[nodiscard]] virtual Result<ManagedInfo> managed_info(const void* address,
                                                         std::size_t bytes) noexcept;

  // --- Kernels (kernels)

  [[nodiscard]] virtual Result<NativeKernel> load_kernel(const KernelSource& source) noexcept;
  /// Returns at once or waits; either way the launches already submitted still complete.
  virtual void unload_kernel(NativeKernel kernel) noexcept;
  /// What can be found out without a launch. The default knows nothing.
  [[nodiscard]] virtual Result<KernelInfo> kernel_info(NativeKernel kernel) noexcept;
  /// Argument values are copied before the call returns.
  [[nodiscard]] virtual Result<void> launch(const Submission& submission, NativeKernel kernel,
                                            const LaunchSize& size,
                                            std::span<const KernelArgument> arguments) noexcept;

  // --- Facts for checkers and tools; the default ignores them. Without a stream: by the host

  /// The host itself is about to use memory that it shares with the device. A checker that sees
  /// work still under way there refuses it with violation.
  [[nodiscard]] virtual Result<void> note_host_access(const void* address, std::size_t bytes,
                                                      Access access, CallSite site) noexcept;
  virtual void note_suballocate(const Submission& submission, const Suballocation& block) noexcept;
  virtual void note_subrelease(const Submission& submission, const Suballocation& block) noexcept;
};

}  // namespace tern
