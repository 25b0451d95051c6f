// A Storage is one piece of memory, shared by all buffers and views of it.
//
// It has an identity from the beginning and memory from its first use on: however many threads come
// at once, one of them allocates, the others wait for it, and a failure leaves it as it was, to be
// tried again. It knows which streams use it (UseRecord) and which bytes were ever written. When
// the last handle goes, the memory is given back once, in stream order behind all recorded uses,
// without making the host wait. Where that order cannot be queued, the storage is kept until its
// uses are done (poll_storages).
//
// Thread-safe. It keeps its resource, and so its device, alive.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "tern/buffer/storage_kind.hpp"
#include "tern/buffer/use_record.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class EscapeBatch;
class Storage;

/// Names a storage, once: from 1, rising in the order a thread makes them, and never used again.
struct StorageId {
  std::uint64_t value = 0;

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value != 0; }
  friend constexpr bool operator==(const StorageId&, const StorageId&) noexcept = default;
  friend constexpr auto operator<=>(const StorageId&, const StorageId&) noexcept = default;
};

/// Bytes [begin, end) of a storage.
struct ByteRange {
  std::size_t begin = 0, end = 0;

  friend constexpr bool operator==(const ByteRange&, const ByteRange&) noexcept = default;
};

/// What new memory holds.
enum class Contents : std::uint8_t {
  uninitialized,  // reading it before it is written is refused
  unspecified,    // the same bytes, and reading them is the reader's affair
  zero,
  poison,  // 0xDD, to be seen in a debugger; not written
};

/// How memory is wanted.
struct StorageOptions {
  /// Where it comes from. None: the device's default resource for the kind.
  ResourceHandle resource = {};
  /// Of the default resource: device, pinned or managed.
  MemoryKind kind = MemoryKind::device;
  Contents contents = Contents::uninitialized;
  /// A power of two up to 256 MiB; 0: what the resource gives.
  std::size_t alignment = 0;
  /// Who is to use it first, unless another stream comes before. None: whoever comes first.
  StreamRef stream = {};
  Tag tag = {};
  /// Host accesses that collide are refused (access_conflict). Unset: as TERN_CHECKED says.
  std::optional<bool> checked = {};
  /// Pays for the memory of an Array, whose resource is a BudgetResource or stands on one
  /// (Budget::reserve). A buffer has its memory later, and refuses one with invalid_argument.
  Reservation* reservation = nullptr;
  CallSite site = CallSite::here();
};

/// Where a storage's memory comes from when it is no block of a resource: a file, memory that was
/// page-locked where it was, memory of somebody else. Made for one storage, which ends it.
class TERN_EXPORT StorageOrigin {
 public:
  struct Memory {
    void* device_address = nullptr;  // null if kernels cannot use it
    void* host_address = nullptr;    // null if the host cannot
    std::size_t bytes = 0;
  };

  StorageOrigin() = default;
  StorageOrigin(const StorageOrigin&) = delete;
  StorageOrigin& operator=(const StorageOrigin&) = delete;
  virtual ~StorageOrigin();

  /// "file 'a.bin'", "memory of somebody else": for errors.
  [[nodiscard]] virtual const char* what() const noexcept = 0;
  [[nodiscard]] virtual bool is_external() const noexcept { return false; }
  /// Nobody may write it, whatever its kind allows.
  [[nodiscard]] virtual bool is_read_only() const noexcept { return false; }
  /// The memory itself, on first use. Only one caller at a time.
  [[nodiscard]] virtual Result<Memory> try_begin(CallSite site) noexcept = 0;
  /// May the host use the memory now? Asked before each of its accesses.
  [[nodiscard]] virtual Result<void> try_access(CallSite) noexcept { return {}; }
  /// The last handle is gone, and all uses are done; also where it was never begun. Under no lock.
  /// False: it could not be given back, and is asked again later (poll_storages).
  [[nodiscard]] virtual bool try_end() noexcept = 0;
  /// A stream whose later work comes behind all uses: when the last handle goes, the waits for them
  /// are queued there, and the host waits for nothing. None: nobody's does.
  [[nodiscard]] virtual StreamRef end_stream() const noexcept { return {}; }
  /// Bytes of a file, without making it memory. Refused with unsupported elsewhere.
  [[nodiscard]] virtual Result<void> try_read(std::size_t offset, std::size_t bytes, void* to,
                                              CallSite site) noexcept;
};

/// Owns a share of a storage.
class TERN_EXPORT StorageHandle {
 public:
  /// None.
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

/// A use that has begun on a stream: `end` it behind the submission. Dropped without that, nothing
/// was submitted.
class TERN_EXPORT StorageUse {
 public:
  StorageUse() noexcept = default;
  StorageUse(StorageUse&& other) noexcept;
  StorageUse& operator=(StorageUse&& other) noexcept;
  ~StorageUse();

  /// Where kernels and copies of the stream find the storage's first byte.
  [[nodiscard]] void* address() const noexcept { return address_; }
  /// The work is submitted.
  void end() noexcept { end_on(stream_); }
  /// The same, where another stream has queued a wait for it: its work from now on counts as the
  /// use, and the stream that did it may be gone.
  void end_on(StreamRef stream) noexcept;
  /// The work is submitted next: what the stream has when somebody must wait counts as the use.
  void end_ahead() noexcept;

 private:
  friend class Storage;
  StorageHandle storage_;
  StreamRef stream_ = {};
  UseRecord::Ticket ticket_ = {};
  void* address_ = nullptr;
  std::size_t offset_ = 0, bytes_ = 0;
  Access access_ = Access::read;
};

class TERN_EXPORT Storage {
 public:
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// Nothing is allocated. Refused with invalid_argument, device_mismatch, size_overflow,
  /// out_of_memory.
  [[nodiscard]] static Result<StorageHandle> try_make(const Device& device, std::size_t bytes,
                                                      const StorageOptions& options) noexcept;
  /// Of memory that is no resource's; all its bytes count as written.
  [[nodiscard]] static Result<StorageHandle> try_make(const Device& device, std::size_t bytes,
                                                      StorageKind kind,
                                                      std::unique_ptr<StorageOrigin> origin,
                                                      const StorageOptions& options) noexcept;
  /// With memory, for the least that can be. As try_make() and try_ensure() refuse.
  [[nodiscard]] static Result<StorageHandle> try_allocate(const ResourceHandle& resource,
                                                          std::size_t bytes,
                                                          const StorageOptions& options) noexcept;

  [[nodiscard]] static StorageHandle allocate(const ResourceHandle& resource, std::size_t bytes,
                                              const StorageOptions& options);

  [[nodiscard]] StorageId id() const noexcept { return id_; }
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] StorageKind kind() const noexcept {
    const std::uint8_t known = kind_.load(std::memory_order_relaxed);
    return known != unknown_kind ? static_cast<StorageKind>(known) : find_kind();
  }
  [[nodiscard]] Reach reach() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return bytes_and_written_.load(std::memory_order_relaxed) & ~all_written_bit;
  }
  [[nodiscard]] Contents contents() const noexcept { return contents_; }
  [[nodiscard]] Tag tag() const noexcept { return tag_; }
  /// The line that made it.
  [[nodiscard]] CallSite site() const noexcept { return site_; }
  /// As asked for; 0: what the resource gives.
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  /// Null for memory that is no resource's.
  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  [[nodiscard]] StorageOrigin* origin() const noexcept;
  [[nodiscard]] bool is_external() const noexcept { return origin() && origin()->is_external(); }
  [[nodiscard]] bool is_read_only() const noexcept {
    // What a resource gave is to be written.
    return !resource_ && (kind() == StorageKind::file || origin()->is_read_only());
  }
  [[nodiscard]] bool is_checked() const noexcept { return is_checked_; }

  [[nodiscard]] bool is_allocated() const noexcept {
    return phase_.load(std::memory_order_acquire) == ready;
  }
  /// Memory, now. Of those who ask at once, one allocates, for the stream it names.
  [[nodiscard]] Result<void> try_ensure(StreamRef first_user, CallSite site) noexcept;
  /// As granted; refused with not_allocated. Empty for memory that is no resource's.
  [[nodiscard]] Result<Block> try_block() const noexcept;
  [[nodiscard]] Result<StorageOrigin::Memory> try_memory() const noexcept;
  /// Where kernels find the first byte, or the host, if it is not for kernels. Null without memory.
  [[nodiscard]] std::byte* first_byte() const noexcept {
    if (!is_allocated()) return nullptr;
    return static_cast<std::byte*>(device_address_ != nullptr ? device_address_ : host_address_);
  }

  /// Makes it larger in place, as far as the block that was granted goes, for a handle whose bytes
  /// end at `end`. False: it does not go, or what lies behind may be another handle's.
  [[nodiscard]] bool try_grow(std::size_t end, std::size_t bytes) noexcept;

  /// Work on the stream that uses a range: memory is there, what may not be is refused, and waits
  /// are queued. Never-written bytes may not be read (never_written), files and what is lent for
  /// reading not written (read_only). The stream is one of the storage's device (device_mismatch),
  /// unless the caller knows better: copies do.
  enum class Streams : std::uint8_t { own_device, any_device };
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access, std::size_t offset,
                                           std::size_t bytes, CallSite site,
                                           Streams streams = Streams::own_device) noexcept;
  /// What try_use() refuses before it does anything: for work that uses several storages, all of
  /// them or none.
  [[nodiscard]] Result<void> check_use(StreamRef stream, Access access, std::size_t offset,
                                       std::size_t bytes, CallSite site,
                                       Streams streams = Streams::own_device) noexcept;
  /// May kernels use it in this way? Refused with unsupported, read_only.
  [[nodiscard]] Result<void> check_kernels_reach(Access access, CallSite site) const noexcept;
  /// The host's turn: waits for what the access needs. For memory the host can use.
  [[nodiscard]] Result<void> try_wait_host(Access access, std::size_t offset, std::size_t bytes,
                                           CallSite site) noexcept;
  [[nodiscard]] UseRecord& uses() noexcept { return uses_; }
  /// What is on record now need not be done for memory to go back to its origin: before it has any
  /// other use, and by somebody who is the only one to know the storage.
  void leave_uses_to_owner() noexcept;
  /// Is it known when earlier writes of memory of others are complete? Its import or somebody since
  /// has stated that (try_state_ready), or the device was synchronized since. True of memory that
  /// was not imported.
  [[nodiscard]] bool is_readiness_known() const noexcept { return resource_ || is_import_ready(); }
  /// The import did not state it. By somebody who is the only one to know the storage.
  void leave_readiness_unstated() noexcept;
  void note_readiness_stated() noexcept;

  /// Refused with never_written, naming the first such range inside this one.
  [[nodiscard]] Result<void> check_written(std::size_t offset, std::size_t bytes,
                                           CallSite site) const noexcept;
  void note_written(std::size_t offset, std::size_t bytes) noexcept;
  /// Nobody needs the bytes any more: they count as never written, except where what new memory
  /// holds is the reader's affair (Contents::unspecified). For those who end a write of them.
  void note_unwritten(std::size_t offset, std::size_t bytes) noexcept;
  /// How many writes were noted since somebody first asked: who keeps a copy of what is here asks
  /// before he reads it, and again before he believes it. Refused with out_of_memory.
  [[nodiscard]] Result<std::uint64_t> try_count_writes() noexcept;
  /// The parts of a range that were written, in order. Refused with out_of_memory.
  [[nodiscard]] Result<std::vector<ByteRange>> try_written_ranges(std::size_t offset,
                                                                  std::size_t bytes) const noexcept;

  /// Where what its pages were told may change: the ends of the ranges that were advised or sent
  /// somewhere. Refused with out_of_memory.
  [[nodiscard]] Result<void> try_note_edges(ByteRange range) noexcept;
  /// Those inside of a range, in order; its own ends are none of them. Refused with out_of_memory.
  [[nodiscard]] Result<std::vector<std::size_t>> try_edges(ByteRange range) const noexcept;

  /// Advice was given about its pages, in the given way: it is taken back with the memory, which
  /// others have next. Refused with out_of_memory.
  [[nodiscard]] Result<void> try_note_advice(Advice advice, Place place) noexcept;

  /// Checked host accesses, B-20. Refused with access_conflict, naming both lines.
  [[nodiscard]] Result<std::uint64_t> try_begin_host_access(Access access, std::size_t offset,
                                                            std::size_t bytes,
                                                            CallSite site) noexcept;
  void end_host_access(std::uint64_t ticket) noexcept;

  /// Handles there are; a picture of one moment.
  [[nodiscard]] std::uint32_t shares() const noexcept {
    return shares_.load(std::memory_order_relaxed);
  }

  /// Gives the block away: the caller frees it. For the only handle (access_conflict otherwise);
  /// waits for uses are queued on the stream.
  [[nodiscard]] Result<Block> try_release_block(StreamRef stream, CallSite site) noexcept;

 private:
  friend class StorageHandle;
  friend class StorageUse;
  friend class KeptStorages;
  friend class EscapeBatch;
  enum Phase : std::uint32_t { empty, busy, ready, given_away };

  /// For those made by a resource the kind is found when somebody asks.
  static constexpr std::uint8_t unknown_kind = 0xFF;

  Storage(const ResourceHandle& resource, std::uint8_t kind, std::size_t bytes,
          const StorageOptions& options) noexcept;
  /// With its block, which the options' stream uses first.
  Storage(const ResourceHandle& resource, const Block& block, std::size_t bytes,
          const StorageOptions& options) noexcept;
  /// Records are used again by the thread that ended one, because arrays come and go.
  static void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept;
  static void operator delete(void* record) noexcept;
  static void operator delete(void* record, const std::nothrow_t&) noexcept;
  [[nodiscard]] StorageKind find_kind() const noexcept;
  // Null, and why: what is neither filled nor empty, and the rest.
  [[nodiscard]] static Storage* make_allocated(const ResourceHandle& resource, std::size_t bytes,
                                               const StorageOptions& options,
                                               Result<void>& why) noexcept;
  [[nodiscard]] static Storage* make_prepared(const ResourceHandle& resource, std::size_t bytes,
                                              const StorageOptions& options,
                                              Result<void>& why) noexcept;
  [[nodiscard]] static Result<StorageHandle> try_make_from(const ResourceHandle& resource,
                                                           std::size_t bytes,
                                                           const StorageOptions& options) noexcept;
  ~Storage();

  void add_share() noexcept { shares_.fetch_add(1, std::memory_order_relaxed); }
  void drop_share() noexcept;
  /// The last handle is gone.
  void end() noexcept;
  void end_now() noexcept;
  /// What its pages were told does not concern whoever has them next.
  void take_advice_back() noexcept;
  /// Gives the memory back if that can be ordered now.
  [[nodiscard]] bool try_end() noexcept;
  [[nodiscard]] bool are_uses_done() const noexcept;
  /// It goes to hands nobody knows: its bytes if they are the first, else 0. Nothing if the host
  /// has no memory.
  [[nodiscard]] std::optional<std::size_t> try_begin_escape() noexcept;
  /// They have let go: the bytes that went out if they were the last, else 0. From now on it waits
  /// for what the device has.
  [[nodiscard]] std::size_t end_escape() noexcept;
  [[nodiscard]] bool is_behind_strangers() const noexcept;
  [[nodiscard]] bool is_import_ready() const noexcept;
  /// The block, in the order of the stream. False if its owner captures that into a graph: nothing
  /// can be ordered by it until he has. What else is refused the resource tries again.
  [[nodiscard]] bool try_give(StreamRef stream) noexcept;
  [[nodiscard]] bool try_give_again(StreamRef stream) noexcept;
  [[nodiscard]] bool try_end_block() noexcept;
  [[nodiscard]] bool try_end_origin() noexcept;
  [[nodiscard]] Result<void> try_queue_waits(StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<void> take_memory(StreamRef first_user, CallSite site) noexcept;
  /// For the stream of whoever comes first, or else for the one that was named.
  [[nodiscard]] Result<void> take_block_for(StreamRef first_user, CallSite site) noexcept;
  [[nodiscard]] Result<void> take_block(StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<void> put_contents(StreamRef first_user, CallSite site) noexcept;
  /// Tells a checker that nobody need write these bytes, if that is so.
  void note_unspecified(std::size_t offset, std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> check_range(std::size_t offset, std::size_t bytes,
                                         CallSite site) const noexcept;

  void set_memory(const StorageOrigin::Memory& memory) noexcept;

  // What every use looks at is in the first two cache lines, up to the first entry of the record.
  alignas(64) std::atomic<std::uint32_t> shares_ = 1;
  std::atomic<std::uint32_t> phase_ = empty;
  mutable std::atomic<std::uint8_t> kind_;
  const Contents contents_;
  const Tag tag_;
  const bool is_checked_;
  std::atomic<bool> are_writes_counted_ = false;
  /// The size, and with it whether all of that is written: it may grow while somebody notes so.
  static constexpr std::size_t all_written_bit = ~(~std::size_t{0} >> 1);
  std::atomic<std::size_t> bytes_and_written_;
  [[nodiscard]] bool is_all_written() const noexcept {
    return (bytes_and_written_.load(std::memory_order_acquire) & all_written_bit) != 0;
  }
  void* device_address_ = nullptr;  // set before phase_ is ready, as all of the memory
  void* host_address_ = nullptr;
  const ResourceHandle resource_;
  UseRecord uses_;

  const StorageId id_;
  std::size_t memory_bytes_ = 0;
  Block block_ = {};
  // What few storages have: made when it is first needed, for all time.
  struct Rare;
  [[nodiscard]] Rare* rare() const noexcept { return rare_.load(std::memory_order_acquire); }
  /// Null if the host has no memory.
  [[nodiscard]] Rare* make_rare() noexcept;
  std::atomic<Rare*> rare_ = nullptr;

  const std::size_t alignment_;
  const StreamRef first_stream_;
  const CallSite site_;
  Storage* next_;  // among those that are kept until their uses are done, and set there
};

inline StorageHandle::StorageHandle(const StorageHandle& other) noexcept
    : storage_(other.storage_) {
  if (storage_ != nullptr) storage_->add_share();
}
inline StorageHandle::~StorageHandle() {
  if (storage_ != nullptr) storage_->drop_share();
}
inline void Storage::drop_share() noexcept {
  // The only handle there is cannot be copied meanwhile, so nothing has to be counted.
  if (shares_.load(std::memory_order_acquire) == 1 ||
      shares_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    end();
  }
}

/// Storages whose last handle is gone, and whose memory could not be given back yet.
struct KeptStorageCount {
  std::size_t storages = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] TERN_EXPORT KeptStorageCount kept_storages() noexcept;
/// Gives back what it can; every new storage does so for a few of them. Never blocks.
TERN_EXPORT KeptStorageCount poll_storages() noexcept;

}  // namespace tern

template <>
struct std::hash<tern::StorageId> {
  std::size_t operator()(tern::StorageId id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
