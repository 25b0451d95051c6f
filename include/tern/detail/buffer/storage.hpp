// Not part of the interface.
//
// A Storage is one piece of memory, shared by all buffers, arrays and views of it.
//
// A Storage has an identity from the start and gets its memory on first use. If several threads use
// it first at the same time, one thread allocates and the others wait. If the allocation fails, the
// storage is unchanged and the next use tries again. A Storage knows which streams use it
// (UseRecord) and which bytes were ever written.
//
// When the last handle is gone, the memory is freed once, in stream order, after all recorded uses.
// The host does not wait. If no stream can be ordered after the uses, the storage is kept until
// they are done (deferred_frees(), reclaim_deferred()).
//
// Thread-safe. A Storage keeps its resource, and thereby its device, alive. Programs normally use
// Buffer or Array instead of this class.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "tern/buffer/storage_options.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/byte_range.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class Arrival;
class ExportBatch;
class Storage;
class StorageUse;
class TransferFile;

/// Who may read and write memory in place, without a copy.
struct Reach {
  bool host_reads = false;
  bool host_writes = false;
  bool kernels_read = false;
  bool kernels_write = false;

  friend constexpr bool operator==(const Reach&, const Reach&) noexcept = default;
};

/// Returns who may use memory of this kind, on a device with these capabilities.
[[nodiscard]] constexpr Reach reach_of(MemoryKind kind, Capabilities device) noexcept {
  switch (kind) {
    case MemoryKind::host: {
      // Kernels can use pageable host memory only if they run on the host device.
      const bool kernels = device.has(Capability::host_access);
      return {true, true, kernels, kernels};
    }
    case MemoryKind::pinned:
    case MemoryKind::registered:
    case MemoryKind::managed:
      return {true, true, true, true};
    case MemoryKind::file:
      return {true, false, false, false};
    case MemoryKind::device:
    case MemoryKind::mapped: {
      const bool host = device.has(Capability::host_access);
      return {host, host, true, true};
    }
  }
  return {};
}

/// Returns the kind of a storage in memory of this kind: memory of the host device is host memory.
/// `is_host` is DeviceInfo::is_host.
[[nodiscard]] constexpr MemoryKind storage_kind_of(MemoryKind kind, bool is_host) noexcept {
  switch (kind) {
    case MemoryKind::host:
    case MemoryKind::file:
      return kind;
    case MemoryKind::pinned:
      return MemoryKind::pinned;
    case MemoryKind::registered:
      return MemoryKind::registered;
    case MemoryKind::device:
      return is_host ? MemoryKind::host : MemoryKind::device;
    case MemoryKind::managed:
      return MemoryKind::managed;
    case MemoryKind::mapped:
      return is_host ? MemoryKind::host : MemoryKind::mapped;
  }
  return MemoryKind::device;
}

/// The source of memory that no resource allocated: a file, memory that was page-locked in place,
/// memory of another library. A StorageOrigin belongs to one storage, which ends and deletes it.
/// The storages of Storage::make_part() share their origin.
class TERN_EXPORT StorageOrigin {
 public:
  /// The addresses of the memory.
  struct Memory {
    void* device_address = nullptr;  // null if kernels cannot use the memory
    void* host_address = nullptr;    // null if the host cannot use the memory
    std::size_t bytes = 0;
  };

  StorageOrigin() = default;
  StorageOrigin(const StorageOrigin&) = delete;
  StorageOrigin& operator=(const StorageOrigin&) = delete;
  virtual ~StorageOrigin();

  /// Describes the memory in errors, such as "file 'a.bin'".
  [[nodiscard]] virtual const char* what() const noexcept = 0;
  /// Returns true if other code owns the memory.
  [[nodiscard]] virtual bool is_external() const noexcept { return false; }
  /// Returns true if the memory must not be written, even if its kind allows writing.
  [[nodiscard]] virtual bool is_read_only() const noexcept { return false; }
  /// Returns true for a file that may be written.
  [[nodiscard]] virtual bool is_writable_file() const noexcept { return false; }
  /// Returns the memory. Called on first use, by one thread at a time.
  [[nodiscard]] virtual Result<Memory> try_begin(CallSite site) noexcept = 0;
  /// Checks whether the host may use the memory now. Called before each host access.
  [[nodiscard]] virtual Result<void> try_access(CallSite) noexcept { return {}; }
  /// Releases the memory. Called with no lock held, after the last handle is gone and all uses are
  /// done, even if try_begin() was never called. If it returns false, it is called again later
  /// (reclaim_deferred()).
  [[nodiscard]] virtual bool try_end() noexcept = 0;
  /// Only for storages of Storage::make_part(), instead of try_end(): one of them is destroyed, and
  /// its record is no longer used. Called with no lock held, while the device is still open.
  virtual void drop_part() noexcept {}
  /// A stream of the owner. When the last handle is gone, the waits for all uses are queued on this
  /// stream, so the host need not wait. Returns no stream if the owner has none.
  [[nodiscard]] virtual StreamRef end_stream() const noexcept { return {}; }
  /// Reads bytes of a file into `to` without allocating memory for the storage. Fails with
  /// unsupported if the origin is not a file.
  [[nodiscard]] virtual Result<void> try_read(std::size_t offset, std::size_t bytes, void* to,
                                              CallSite site) noexcept;
  /// A file, for transfers in the background, and where the storage begins in it.
  struct FileRange {
    TransferFile* file = nullptr;
    std::size_t offset = 0;
  };
  /// Returns the file, after a check that it has these bytes. It lives as long as the origin. Fails
  /// with unsupported if the origin is not a file or can only be read by try_read().
  [[nodiscard]] virtual Result<FileRange> try_file(std::size_t offset, std::size_t bytes,
                                                   CallSite site) noexcept;
  /// Writes the changes that are in memory to the disk. Fails with unsupported if the origin is not
  /// a file.
  [[nodiscard]] virtual Result<void> try_flush(CallSite site) noexcept;
};

/// A counted reference to a storage.
class TERN_EXPORT StorageHandle {
 public:
  /// Constructs an empty handle.
  constexpr StorageHandle() noexcept = default;
  StorageHandle(const StorageHandle& other) noexcept;
  StorageHandle(StorageHandle&& other) noexcept
      : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageHandle& operator=(StorageHandle other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageHandle();

  [[nodiscard]] explicit operator bool() const noexcept { return storage_ != nullptr; }
  [[nodiscard]] Storage* get() const noexcept { return storage_; }
  [[nodiscard]] Storage* operator->() const noexcept { return storage_; }
  [[nodiscard]] Storage& operator*() const noexcept { return *storage_; }
  friend bool operator==(const StorageHandle& a, const StorageHandle& b) noexcept {
    return a.storage_ == b.storage_;
  }

 private:
  friend class Storage;
  explicit StorageHandle(Storage* storage) noexcept : storage_(storage) {}

  Storage* storage_ = nullptr;
};

/// One piece of memory. See the top of this file.
class TERN_EXPORT Storage {
 public:
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// Makes a storage; its memory is allocated on first use. Fails with invalid_argument,
  /// device_mismatch, size_overflow, out_of_memory (of the host), and as try_default_resource()
  /// does.
  [[nodiscard]] static Result<StorageHandle> try_make(const Device& device, std::size_t bytes,
                                                      const StorageOptions& options) noexcept;
  /// Makes a storage over memory that no resource allocated. All bytes count as written. Fails with
  /// invalid_argument, size_overflow, out_of_memory (of the host).
  [[nodiscard]] static Result<StorageHandle> try_make(const Device& device, std::size_t bytes,
                                                      MemoryKind kind,
                                                      std::unique_ptr<StorageOrigin> origin,
                                                      const StorageOptions& options) noexcept;
  /// What make_part() needs besides its options.
  struct Part {
    const Device& device;
    StorageOrigin& origin;
    StorageOrigin::Memory memory;  // all of it exists and counts as written
    MemoryKind kind;
    /// The last earlier use, a write: the memory is ready then.
    StreamRef stream = {};
    Mark ready = {};
    /// The owner orders its earlier writes itself. The memory may be released before they are done.
    bool owner_orders_writes = false;
  };
  /// Constructs a storage in a record that the origin owns, of sizeof(Storage) bytes. Several
  /// storages may share the origin. When the storage is destroyed, it calls drop_part() of the
  /// origin, which frees the record. Needs no heap memory.
  [[nodiscard]] static StorageHandle make_part(void* record, const Part& part,
                                               const StorageOptions& options) noexcept;
  /// Makes a storage and allocates its memory. This is the fastest way. Fails as try_make() and
  /// try_ensure() do.
  [[nodiscard]] static Result<StorageHandle> try_allocate(const ResourceHandle& resource,
                                                          std::size_t bytes,
                                                          const StorageOptions& options) noexcept;

  /// Like try_allocate(), but throws the failure.
  [[nodiscard]] static StorageHandle allocate(const ResourceHandle& resource, std::size_t bytes,
                                              const StorageOptions& options);

  [[nodiscard]] StorageId id() const noexcept { return id_; }
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] MemoryKind kind() const noexcept {
    const std::uint8_t known = kind_.load(std::memory_order_relaxed);
    return known != unknown_kind ? static_cast<MemoryKind>(known) : find_kind();
  }
  /// Returns who may use the memory in place; nobody may write read-only memory.
  [[nodiscard]] Reach reach() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return bytes_and_written_.load(std::memory_order_relaxed) & ~all_written_bit;
  }
  [[nodiscard]] Contents contents() const noexcept { return contents_; }
  [[nodiscard]] Tag tag() const noexcept { return tag_; }
  /// The source line that made the storage.
  [[nodiscard]] CallSite site() const noexcept { return site_; }
  /// The requested alignment; 0 for the alignment of the resource.
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  /// The resource; null if no resource allocated the memory.
  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  /// The origin; null if a resource allocates the memory.
  [[nodiscard]] StorageOrigin* origin() const noexcept;
  [[nodiscard]] bool is_external() const noexcept { return origin() && origin()->is_external(); }
  [[nodiscard]] bool is_read_only() const noexcept {
    // Memory of a resource is always writable.
    if (resource_) return false;
    return origin()->is_read_only() ||
           (kind() == MemoryKind::file && !origin()->is_writable_file());
  }
  /// Returns true if conflicting host accesses are detected.
  [[nodiscard]] bool is_checked() const noexcept { return is_checked_; }

  /// Returns true once the storage has memory.
  [[nodiscard]] bool is_allocated() const noexcept {
    return phase_.load(std::memory_order_acquire) == ready;
  }
  /// Allocates the memory if there is none. If several threads call at once, one allocates for the
  /// stream it names, and the others wait for it. Under memory pressure the call may wait for
  /// devices to reclaim exported memory. Fails with out_of_memory, out_of_budget, or not_allocated
  /// if the block was released.
  [[nodiscard]] Result<void> try_ensure(StreamRef first_user, CallSite site) noexcept;
  /// Returns the block as granted. Returns an empty block if no resource allocated the memory.
  /// Fails with not_allocated.
  [[nodiscard]] Result<Block> try_block() const noexcept;
  /// Returns the addresses and the size. Fails with not_allocated.
  [[nodiscard]] Result<StorageOrigin::Memory> try_memory() const noexcept;
  /// The address of the first byte for kernels; the host address if kernels cannot use the memory.
  /// Null if there is no memory.
  [[nodiscard]] std::byte* first_byte() const noexcept {
    if (!is_allocated()) return nullptr;
    return static_cast<std::byte*>(device_address_ != nullptr ? device_address_ : host_address_);
  }

  /// Grows the storage in place within the granted block, for a handle whose range ends at `end`.
  /// Returns false if the block is too small, if another handle may own the bytes behind `end`, or
  /// if the size has an owner (try_extend(), try_cut()).
  [[nodiscard]] bool try_grow(std::size_t end, std::size_t bytes) noexcept;
  /// Makes the storage larger. The owner of the storage's size calls it, and has memory for all of
  /// `bytes`. New bytes are unwritten. Fails with out_of_memory (of the host).
  [[nodiscard]] Result<void> try_extend(std::size_t bytes, CallSite site) noexcept;
  /// Makes the storage smaller. The owner of the storage's size calls it. Uses of the bytes behind
  /// the new end stay on record. Fails with out_of_memory (of the host).
  [[nodiscard]] Result<void> try_cut(std::size_t bytes, CallSite site) noexcept;
  /// Checks that no code outside of Tern may still use the memory through an export. Fails with
  /// access_conflict.
  [[nodiscard]] Result<void> check_exports_done(CallSite site) const noexcept;

  /// Begins a use of a byte range by work on `stream`. Allocates the memory if needed and queues
  /// the waits that the use needs. Fails with never_written for a read of bytes that were never
  /// written, read_only for a write to a file or to memory lent for reading, and device_mismatch
  /// for a stream of another device. With Streams::any_device, any stream is accepted; copies use
  /// this.
  enum class Streams : std::uint8_t { own_device, any_device };
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access, std::size_t offset,
                                           std::size_t bytes, CallSite site,
                                           Streams streams = Streams::own_device) noexcept;
  /// Makes the checks of try_use() without beginning a use. For work that uses several storages:
  /// check all of them first, then begin all uses.
  [[nodiscard]] Result<void> check_use(StreamRef stream, Access access, std::size_t offset,
                                       std::size_t bytes, CallSite site,
                                       Streams streams = Streams::own_device) noexcept;
  /// Checks whether kernels may use the memory in place. Fails with unsupported, read_only.
  [[nodiscard]] Result<void> check_kernels_reach(Access access, CallSite site) const noexcept;
  /// Waits until the host may access the range. Allocates the memory if needed. Fails with
  /// not_host_accessible, read_only, never_written, invalid_view.
  [[nodiscard]] Result<void> try_wait_host(Access access, std::size_t offset, std::size_t bytes,
                                           CallSite site) noexcept;
  /// The record of streams that use the memory.
  [[nodiscard]] UseRecord& uses() noexcept { return uses_; }
  /// Returns another handle. The caller has one, or borrows the storage of somebody who has.
  [[nodiscard]] StorageHandle share() noexcept;
  /// Is it known when earlier writes of memory of others are complete? Its import or somebody since
  /// has stated that (try_state_ready), or the device was synchronized since. True of memory that
  /// was not imported.
  [[nodiscard]] bool is_readiness_known() const noexcept { return resource_ || is_import_ready(); }
  /// The import did not state it. By somebody who is the only one to know the storage.
  void leave_readiness_unstated() noexcept;
  void note_readiness_stated() noexcept;

  /// Checks that all bytes of the range were written. Fails with never_written, which names the
  /// first gap.
  [[nodiscard]] Result<void> check_written(std::size_t offset, std::size_t bytes,
                                           CallSite site) const noexcept {
    if (bytes == 0 || is_all_written()) return {};
    return check_ranges_written(offset, bytes, site);
  }
  /// Fails with the cause if work that should have written bytes of the range has failed, and the
  /// bytes were not written since.
  [[nodiscard]] Result<void> check_arrived(std::size_t offset, std::size_t bytes,
                                           CallSite site) const noexcept {
    if (bytes == 0 || is_all_written()) return {};
    return check_ranges_arrived(offset, bytes, site);
  }
  /// Notes that submitted work writes a range that was already noted as written, and that
  /// `arrival` gets the outcome. Without memory for the note, only the stream reports a failure.
  void expect(std::size_t offset, std::size_t bytes, std::shared_ptr<Arrival> arrival) noexcept;
  /// Marks a range as written.
  void note_written(std::size_t offset, std::size_t bytes) noexcept;
  /// Marks a range as never written, because its contents are no longer needed. Has no effect for
  /// Contents::unspecified. Call it at the end of a write of the range.
  void note_unwritten(std::size_t offset, std::size_t bytes) noexcept;
  /// Returns the number of writes since the first call of this function. A caller that caches the
  /// contents compares the counts before it reads and before it trusts its copy. Fails with
  /// out_of_memory.
  [[nodiscard]] Result<std::uint64_t> try_count_writes() noexcept;
  /// Returns the written parts of a range, in order. Fails with out_of_memory.
  [[nodiscard]] Result<std::vector<ByteRange>> try_written_ranges(std::size_t offset,
                                                                  std::size_t bytes) const noexcept;

  /// Remembers both ends of a range of managed memory that was advised or prefetched: there, the
  /// attributes of pages may change. Fails with out_of_memory.
  [[nodiscard]] Result<void> try_note_edges(ByteRange range) noexcept;
  /// Returns the remembered ends strictly inside a range, in order. Fails with out_of_memory.
  [[nodiscard]] Result<std::vector<std::size_t>> try_edges(ByteRange range) const noexcept;

  /// Remembers that memory advice was given. The advice is undone before the memory is freed,
  /// because the next user of the pages must not inherit it. Fails with out_of_memory.
  [[nodiscard]] Result<void> try_note_advice(Advice advice, Place place) noexcept;

  /// Begins a pause (UseRecord::try_pause()). Also fails with access_conflict while the host or an
  /// export uses the memory. MemoryUsers calls it.
  [[nodiscard]] Result<UseRecord::Ticket> try_pause(Tag tag, MarkSet& uses, CallSite site) noexcept;
  /// Notes that the memory has lost its contents. They are as at the first allocation, but without
  /// the zeros of Contents::zero.
  void forget_contents() noexcept;

  /// Begins a checked host access and returns a ticket. Returns 0 if accesses are not checked.
  /// Fails with access_conflict if another open access overlaps and one of them writes; the error
  /// names both lines.
  [[nodiscard]] Result<std::uint64_t> try_begin_host_access(Access access, std::size_t offset,
                                                            std::size_t bytes,
                                                            CallSite site) noexcept;
  /// Ends a checked host access. Does nothing for ticket 0.
  void end_host_access(std::uint64_t ticket) noexcept;

  /// The number of handles at this moment. Other threads may change it at any time.
  [[nodiscard]] std::uint32_t shares() const noexcept {
    return shares_.load(std::memory_order_relaxed);
  }

  /// Returns the block and gives up ownership; the caller must free it. Only for the last handle
  /// (access_conflict otherwise). The waits for all uses are queued on `stream`; without a stream,
  /// the host waits for them. Fails with unsupported if no resource allocated the memory, and with
  /// access_conflict if the memory was exported, its device was not synchronized since, and a
  /// stream is given.
  [[nodiscard]] Result<Block> try_release_block(StreamRef stream, CallSite site) noexcept;

 private:
  friend class StorageHandle;
  friend class StorageUse;
  friend class DeferredFrees;
  friend class ExportBatch;
  enum Phase : std::uint32_t { empty, busy, ready, given_away };
  struct ColdState;

  /// The kind is not known yet. For memory of a resource, it is looked up on the first call of
  /// kind().
  static constexpr std::uint8_t unknown_kind = 0xFF;

  Storage(const ResourceHandle& resource, std::uint8_t kind, std::size_t bytes,
          const StorageOptions& options) noexcept;
  /// Makes a storage that owns `block`; the stream of the options uses the block first.
  Storage(const ResourceHandle& resource, const Block& block, std::size_t bytes,
          const StorageOptions& options) noexcept;
  /// Storage objects are recycled per thread, because arrays are made and destroyed often.
  static void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept;
  static void operator delete(void* record) noexcept;
  static void operator delete(void* record, const std::nothrow_t&) noexcept;
  [[nodiscard]] MemoryKind find_kind() const noexcept;
  // Both return null and set `why` on failure. make_allocated() is the fast path, for memory
  // without initial contents or reservation. make_prepared() handles all other cases.
  [[nodiscard]] static Storage* make_allocated(const ResourceHandle& resource, std::size_t bytes,
                                               const StorageOptions& options,
                                               Result<void>& why) noexcept;
  [[nodiscard]] static Storage* make_prepared(const ResourceHandle& resource, std::size_t bytes,
                                              const StorageOptions& options,
                                              Result<void>& why) noexcept;
  [[nodiscard]] static Result<StorageHandle> try_make_from(const ResourceHandle& resource,
                                                           std::size_t bytes,
                                                           const StorageOptions& options) noexcept;
  /// Makes a storage without a resource.
  Storage(const Device& device, StorageOrigin* origin, bool is_part, MemoryKind kind,
          std::size_t bytes, const StorageOptions& options) noexcept;
  ~Storage();
  /// Destroys the storage and frees its record.
  void destroy() noexcept;

  void retain() noexcept { shares_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;
  /// Called when the last handle is gone. Frees the memory, or keeps the storage for later.
  void end() noexcept;
  void end_foreign() noexcept;
  void end_now() noexcept;
  /// Undoes memory advice, so that the next user of the pages does not inherit it.
  void take_advice_back() noexcept;
  /// Frees the memory if the free can be ordered after all uses now. Returns false if it cannot.
  [[nodiscard]] bool try_end() noexcept;
  [[nodiscard]] bool are_uses_done() const noexcept;
  /// Begins an export. Returns the bytes of the storage for its first export, else 0. Returns
  /// nothing if the host has no memory.
  [[nodiscard]] std::optional<std::size_t> try_begin_export() noexcept;
  /// Ends an export. Returns the bytes counted at the first export if this was the last one, else
  /// 0. From now on, the memory is freed only after a wait for the work that the device has now.
  [[nodiscard]] std::size_t end_export() noexcept;
  /// Returns true if the device has completed all work that foreign code may have submitted to it.
  [[nodiscard]] bool are_exports_done() const noexcept;
  [[nodiscard]] bool is_import_ready() const noexcept;
  /// Frees the block in stream order. Returns false if the stream is being captured into a graph,
  /// because nothing can be ordered by it until the capture ends. Other failures are retried by the
  /// resource.
  [[nodiscard]] bool try_give(StreamRef stream) noexcept;
  [[nodiscard]] bool try_give_again(StreamRef stream) noexcept;
  [[nodiscard]] bool try_end_block() noexcept;
  [[nodiscard]] bool try_end_origin() noexcept;
  /// Returns whether Tern's uses of foreign memory are done. Queues the waits for them on the
  /// stream of the owner, if there is one.
  [[nodiscard]] bool try_end_uses() noexcept;
  [[nodiscard]] Result<void> try_queue_waits(StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<void> take_memory(StreamRef first_user, CallSite site) noexcept;
  /// Allocates for the stream of the first use, or else for the stream of the options.
  [[nodiscard]] Result<void> take_block_for(StreamRef first_user, CallSite site) noexcept;
  [[nodiscard]] Result<void> take_block(StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<void> put_contents(StreamRef first_user, CallSite site) noexcept;
  /// For Contents::unspecified, tells a checker that these bytes may be read without a write.
  void note_unspecified(std::size_t offset, std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> check_range(std::size_t offset, std::size_t bytes,
                                         CallSite site) const noexcept;
  /// Sets a larger size. Call it with the mutex of the cold state held. Returns false if the host
  /// has no memory.
  [[nodiscard]] bool grow_to(ColdState& cold, std::size_t bytes) noexcept;

  /// check_arrived() and check_written() if some bytes of the storage were never written or are
  /// expected.
  [[nodiscard]] Result<void> check_ranges_arrived(std::size_t offset, std::size_t bytes,
                                                  CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_ranges_written(std::size_t offset, std::size_t bytes,
                                                  CallSite site) const noexcept;

  void set_memory(const StorageOrigin::Memory& memory) noexcept;
  /// Lets MemoryUsers know the storage, for a pause of its memory. Fails with out_of_memory (of the
  /// host), and with access_conflict if the memory is paused already.
  [[nodiscard]] Result<void> try_be_found() noexcept;
  void stop_being_found() noexcept;

  // Everything that a use reads is in the first two cache lines, up to the first entry of the
  // record.
  alignas(64) std::atomic<std::uint32_t> shares_ = 1;
  std::atomic<std::uint32_t> phase_ = empty;
  mutable std::atomic<std::uint8_t> kind_;
  const Contents contents_;
  const Tag tag_;
  const bool is_checked_;
  std::atomic<bool> are_writes_counted_ = false;
  /// The size, and in the highest bit whether all bytes are written. Both are in one word, because
  /// the storage may grow while another thread sets the bit.
  static constexpr std::size_t all_written_bit = ~(~std::size_t{0} >> 1);
  mutable std::atomic<std::size_t> bytes_and_written_;  // check_arrived() may set the bit
  [[nodiscard]] bool is_all_written() const noexcept {
    return (bytes_and_written_.load(std::memory_order_acquire) & all_written_bit) != 0;
  }
  void* device_address_ = nullptr;  // both addresses are set before phase_ becomes ready
  void* host_address_ = nullptr;
  const ResourceHandle resource_;
  UseRecord uses_;

  const StorageId id_;
  std::size_t memory_bytes_ = 0;
  Block block_ = {};
  // State that few storages need. Allocated when it is first needed; then it stays.
  [[nodiscard]] ColdState* cold() const noexcept { return cold_.load(std::memory_order_acquire); }
  /// Returns the cold state and makes it if needed. Returns null if the host has no memory.
  [[nodiscard]] ColdState* make_cold() noexcept;
  std::atomic<ColdState*> cold_ = nullptr;

  const std::size_t alignment_;
  const StreamRef first_stream_;
  const CallSite site_;
  Storage* next_;  // link in the list of kept storages

  /// State of storages without a resource. Here and not in the cold state, so that memory of other
  /// owners needs no second record.
  struct Foreign {
    Foreign(StorageOrigin* of, bool is_shared, const Device& on) noexcept
        : origin(of), is_part(is_shared), device(on) {}
    Foreign(const Foreign&) = delete;
    Foreign& operator=(const Foreign&) = delete;
    ~Foreign();

    StorageOrigin* const origin;    // deleted with the storage unless the storage is a part
    const bool is_part;             // made by make_part()
    bool is_end_queued = false;     // only the thread that ends the storage uses it
    Device device;                  // a storage that is kept replaces the handle by an inner handle
    std::uint64_t owners_uses = 0;  // uses up to this version are ordered by the owner
    /// The device-wide wait that covers earlier writes of an import whose readiness was not stated;
    /// 0 if the readiness is known.
    std::atomic<std::uint64_t> ready_barrier = 0;
  };
  union {
    Foreign foreign_;  // constructed if there is no resource
  };
};

inline StorageHandle Storage::share() noexcept {
  retain();
  return StorageHandle(this);
}

inline StorageHandle::StorageHandle(const StorageHandle& other) noexcept
    : storage_(other.storage_) {
  if (storage_ != nullptr) storage_->retain();
}
inline StorageHandle::~StorageHandle() {
  if (storage_ != nullptr) storage_->release();
}
inline void Storage::release() noexcept {
  // If this is the only handle, nobody can copy it at the same time, so the atomic decrement is not
  // needed.
  if (shares_.load(std::memory_order_acquire) == 1 ||
      shares_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    end();
  }
}

/// The untyped part of a HostView: keeps the storage alive and ends the access in its destructor.
class TERN_EXPORT HostAccess {
 public:
  HostAccess() noexcept = default;
  /// `ticket` comes from Storage::try_begin_host_access(); 0 means that the access is not checked.
  HostAccess(StorageHandle storage, std::uint64_t ticket) noexcept
      : storage_(std::move(storage)), ticket_(ticket) {}
  HostAccess(HostAccess&& other) noexcept
      : storage_(std::move(other.storage_)), ticket_(std::exchange(other.ticket_, 0)) {}
  HostAccess& operator=(HostAccess&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(ticket_, other.ticket_);
    return *this;
  }
  ~HostAccess() {
    if (ticket_ != 0) storage_->end_host_access(ticket_);
  }

 private:
  StorageHandle storage_;
  std::uint64_t ticket_ = 0;
};

}  // namespace tern
