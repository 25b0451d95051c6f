// A UnifiedCore is what all handles, views and leases of one unified buffer share: the directory,
// the memories, the leases that are open.
//
// Two locks. `mutex_` is brief: it guards all members, and no device is asked under it. Whoever
// allocates or moves bytes holds `transfer_mutex_` for that, and takes `mutex_` to look and to
// tell; a lease is on the list before it waits for `transfer_mutex_`, so that its bytes are spoken
// for. While somebody moves bytes (movers_), nobody takes the short way. The lists of places and
// memories change under both locks, so that either is enough to read them.
//
// A place is the host or a device; a memory is the storage of one place, or of several that share
// it. Each memory's record of uses has its order.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "coherence/host_seal.hpp"
#include "coherence/residents.hpp"
#include "core/thread_number.hpp"
#include "tern/buffer/use_record.hpp"
#include "tern/coherence/raw_unified.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/validity.hpp"
#include "tern/launch/launch_memory.hpp"

namespace tern {

class GuardedHeap;

class UnifiedCore final : public LaunchMemory {
 public:
  static constexpr unsigned host = 0;
  /// Of a lease that has no memory.
  static constexpr unsigned nowhere = 255;
  /// Of one that needs whatever memories there are.
  static constexpr unsigned all_memories = 254;
  static constexpr std::uint32_t no_lease = ~std::uint32_t{0};
  /// All of it, however large it is: a buffer that somebody holds like that is not resized.
  static constexpr ByteRange everything{0, ~std::size_t{0}};
  static constexpr std::size_t least_pinned_bytes = 64 * 1024;
  static constexpr std::size_t most_intervals = 4096;
  static constexpr std::size_t logged_transfers = 64;
  static constexpr std::size_t most_under_way = 64;
  static constexpr unsigned char poison = 0xCB;

  UnifiedCore(Shape shape, DType dtype, std::size_t element_bytes, std::size_t bytes,
              const UnifiedOptions& options);
  UnifiedCore(const UnifiedCore&) = delete;
  UnifiedCore& operator=(const UnifiedCore&) = delete;
  ~UnifiedCore();

  void add_share() noexcept;
  void drop_share() noexcept;

  // --- Leases

  enum class Kind : std::uint8_t { lease, escape };
  struct Wanted {
    ByteRange range = {};
    Access access = Access::read;
    Kind kind = Kind::lease;
    bool is_host = true;
    bool is_async = false;  // the host waits later
    StreamRef stream = {};
    LeaseWait wait = LeaseWait::never();
    CallSite site = {};
  };
  [[nodiscard]] Result<RawLease> try_open(const Wanted& wanted) noexcept;
  /// The short way: the bytes are there, nobody is to be waited for, and nothing is asked. Without
  /// an address nothing has happened, and try_open() knows why.
  struct Opened {
    std::byte* address = nullptr;
    std::uint32_t slot = 0;
    [[nodiscard]] explicit operator bool() const noexcept { return address != nullptr; }
  };
  /// Its simplest cases, without calling anybody: the buffer is the same all over, and nobody else
  /// has a lease.
  [[nodiscard]] Opened open_host_simply(ByteRange range, Access access,
                                        const CallSite& site) noexcept;
  [[nodiscard]] Opened open_device_simply(ByteRange range, Access access, StreamRef stream,
                                          const CallSite& site) noexcept;
  /// False if there is more to do: close() does it.
  [[nodiscard]] bool close_simply(std::uint32_t slot) noexcept;
  [[nodiscard]] Opened open_host_at_once(ByteRange range, Access access,
                                         const CallSite& site) noexcept;
  [[nodiscard]] Opened open_device_at_once(ByteRange range, Access access, StreamRef stream,
                                           const CallSite& site) noexcept;
  [[nodiscard]] RawLease lease_of(const Opened& opened, ByteRange range, Access access) noexcept;
  [[nodiscard]] RawLease lease_of_simple(const Opened& opened, ByteRange range) noexcept;
  /// Of what was to be written, so many bytes are; more than there are means all.
  void close(std::uint32_t slot, std::size_t kept) noexcept;
  [[nodiscard]] Result<void> try_downgrade(std::uint32_t slot, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_wait_host(std::uint32_t slot, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_commit_range(std::uint32_t slot, std::size_t offset,
                                              std::size_t bytes, StreamRef stream,
                                              CallSite site) noexcept;

  // --- Bytes of a range

  [[nodiscard]] Result<void> try_load(ByteRange range, void* to, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_store(ByteRange range, const void* from, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_fill(ByteRange range, const Pattern& pattern, StreamRef stream,
                                      CallSite site) noexcept;
  [[nodiscard]] Result<void> try_fill_on(unsigned place, ByteRange range, const Pattern& pattern,
                                         StreamRef stream, CallSite site) noexcept;
  /// To a place that may have to be added; the stream is of it, or none. What others have there may
  /// have to go, as far as it is said.
  [[nodiscard]] Result<void> try_prefetch(ByteRange range, const Device* device, StreamRef stream,
                                          Eviction most, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_mark_dirty(ByteRange range, Place place, StreamRef stream,
                                            CallSite site) noexcept;
  /// The host waits until nobody uses any of the memories.
  [[nodiscard]] Result<void> try_synchronize(CallSite site) noexcept;
  /// Every byte that was written comes to the host, and is there on return.
  [[nodiscard]] Result<void> try_flush_host(CallSite site) noexcept;

  // --- All of it

  [[nodiscard]] Result<void> try_drop(Place place, Drop what, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_free(bool keep_memory, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, bool keep, StreamRef stream,
                                        CallSite site) noexcept;
  [[nodiscard]] Result<void> try_set_write_through(std::optional<Place> place,
                                                   CallSite site) noexcept;
  [[nodiscard]] Result<RawUnified> try_clone(StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<Buffer> try_release_host(CallSite site) noexcept;
  [[nodiscard]] Result<void> try_adopt(StorageHandle storage) noexcept;

  // --- For launches

  [[nodiscard]] std::uint64_t number() const noexcept override { return number_; }
  [[nodiscard]] Result<void> try_claim(std::span<LaunchPart> parts, StreamRef stream,
                                       CallSite site) noexcept override;
  [[nodiscard]] Result<Missing> try_missing(StreamRef stream, CallSite site) noexcept override;
  [[nodiscard]] Result<void> try_make_room(std::size_t bytes, StreamRef stream,
                                           CallSite site) noexcept override;
  [[nodiscard]] Result<StorageHandle> try_make_ready(StreamRef stream, bool& is_new,
                                                     CallSite site) noexcept override;
  [[nodiscard]] Result<void> try_bring(std::span<const LaunchPart> parts, StreamRef stream,
                                       CallSite site) noexcept override;
  void finish(std::span<const LaunchPart> parts, StreamRef stream, bool is_submitted,
              bool was_new) noexcept override;

  // --- Under pressure

  /// May a copy go, and what would be lost by it? With the list of its place locked, or a share.
  struct Standing {
    Eviction kind = Eviction::stale;
    std::size_t bytes = 0;  // as granted
    bool can_go = false;
    bool is_leased = false;  // or moved, or claimed
    bool is_kept = false;    // or adopted
    /// May it go as soon as other threads let it? What this thread itself holds nobody else ends.
    bool could_go = false;
    const Resource* resource = nullptr;
  };
  [[nodiscard]] Standing standing(unsigned memory) const noexcept;
  /// Its uses are what the streams have now, and no later work of theirs. With the list of a place
  /// locked, or a share.
  void settle_uses() noexcept;
  /// A share for somebody who found the buffer on a list; false if it is about to end.
  [[nodiscard]] bool try_share() noexcept;
  /// The copy goes, in the order of the stream: gives its bytes, or 0 if it may not go any more.
  /// Refused as what it has could not be written. With a share.
  [[nodiscard]] Result<std::size_t> try_evict(unsigned memory, Eviction most, StreamRef stream,
                                              CallSite site) noexcept;
  [[nodiscard]] Result<void> try_keep_on(Place place, bool keeps, CallSite site) noexcept;
  void set_unwanted() noexcept;

  // --- Facts

  [[nodiscard]] std::size_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return element_bytes_; }
  [[nodiscard]] const UnifiedOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool is_pinned() const noexcept;
  [[nodiscard]] bool is_guarded() const noexcept;
  [[nodiscard]] bool has_copy(Place place) const noexcept;
  [[nodiscard]] BufferState state(ByteRange range) const noexcept;
  [[nodiscard]] std::vector<Place> valid_places(ByteRange range) const;
  [[nodiscard]] bool is_stale_on(ByteRange range, Place place) const noexcept;
  [[nodiscard]] std::vector<RawUnified::Interval> intervals(ByteRange range) const;
  [[nodiscard]] UnifiedStatistics stats() const noexcept;
  [[nodiscard]] std::vector<Transfer> transfers() const;
  [[nodiscard]] Result<void> check() const noexcept;
  [[nodiscard]] Result<void> try_compare(ByteRange range, CallSite site) noexcept;
  [[nodiscard]] Failure outside(std::size_t offset, std::size_t bytes, std::size_t extent,
                                CallSite site) const noexcept;

 private:
  struct PlaceEntry {
    DeviceId id = {};     // none for the host
    unsigned memory = 0;  // its own number, or the host's
    Device device = {};
    Place place = {};
  };
  struct Memory {
    StorageHandle storage;
    PlaceSet parts = {};  // the places that have it for a copy
    // What does not change while there is a storage.
    std::byte* address = nullptr;
    DeviceId device = {};
    bool wants_notes = false;
    bool ahead_writes = false;  // see ahead
    /// Counts uses by streams; the host has waited for those that matter to it.
    bool is_read_clear = true, is_write_clear = true;
    std::uint64_t stream_uses = 0;
    /// The stream whose use is on record as still to come, if nobody else has used the memory
    /// since: its further leases need no record. Whoever looks at the record clears this first,
    /// because looking makes what is to come a mark; a lease that is open then is noted when it
    /// closes.
    StreamId ahead = {};
    /// The place's clock, and what it said when this was used last.
    const std::atomic<std::uint64_t>* clock = nullptr;
    std::uint64_t last_use = 0;
    /// What the place knows of it; none where another memory stands for this one.
    std::unique_ptr<Resident> resident = {};

    void set(StorageHandle made) noexcept;
    void set_resident(std::unique_ptr<Resident> made) noexcept {
      resident = std::move(made);
      clock = resident ? &resident->where().now() : nullptr;
    }
    /// It was used just now.
    [[gnu::always_inline]] void touch() noexcept {
      if (last_use == clock->load(std::memory_order_relaxed)) return;
      resident->touch();
      last_use = resident->last_use();
    }
  };
  struct Open {
    std::size_t begin = 0, end = 0;
    CallSite site = {};
    std::uint64_t thread = 0;
    StreamRef stream = {};
    UseRecord::Ticket ticket = {};
    std::uint64_t stream_uses = 0;  // of the memory, when this one began
    // Side by side, so that most of them are set at once.
    Access access = Access::read;
    std::uint8_t place = 0;
    Kind kind = Kind::lease;
    bool is_open = false;
    bool has_use = false;
    bool is_ahead = false;     // covered by what the record has of its stream
    bool is_sticky = false;    // an escape that writes when it likes
    bool is_unlisted = false;  // reads beside one: the directory does not know of its bytes
    bool is_missing = false;   // of the host, whose bytes did not arrive
    bool is_promised = false;  // of a launch, which will change the directory
    std::uint32_t next_free = 0;

    [[nodiscard]] bool overlaps(ByteRange range) const noexcept {
      return begin < range.end && range.begin < end;
    }
  };
  /// What came to the host's memory, and nobody has waited for yet: it may not arrive.
  struct UnderWay {
    ByteRange range = {};
    unsigned source = PlaceSet::most;  // most: several
    std::uint64_t stream_uses = 0;     // of the memory: whoever waits for those waits for this
    bool is_lost = false;              // it did not arrive, and nobody else has it
  };
  /// While it lives, nobody takes the short way, and records of uses may be looked at.
  class Pause;
  /// The same, and bytes may move.
  class Mover;
  class TryMover;
  /// Memory that a call may have made, which goes again if the call is refused.
  class NewCopy;
  /// A lease of the call itself, for the time it takes.
  class Hold;

  // --- With mutex_ held

  [[nodiscard]] static bool collides(const Open& open, ByteRange range, Access access) noexcept;
  [[nodiscard]] const Open* conflict(ByteRange range, Access access) const noexcept;
  /// For the changes to so many ranges, and for those that were promised.
  [[nodiscard]] bool make_room(std::size_t ranges = 1) noexcept {
    return validity_.make_room(ranges + promised_);
  }
  /// Of a lease that begins; no_lease if the host has no memory for one more.
  [[nodiscard]] std::uint32_t take_slot(ByteRange range, Access access, Kind kind, unsigned place,
                                        StreamRef stream, const CallSite& site) noexcept;
  [[nodiscard]] std::uint32_t number_of(const Open& open) const noexcept {
    return static_cast<std::uint32_t>(&open - slots_.data());
  }
  /// The same of one that is free, by a thread that has a number.
  void begin_slot(std::uint32_t number, ByteRange range, Access access, Kind kind, unsigned place,
                  StreamRef stream, std::uint64_t thread, const CallSite& site) noexcept;
  [[nodiscard]] bool is_simple(ByteRange range, Access access, const Memory& memory,
                               unsigned place) const noexcept;
  static void end(UnifiedCore* core) noexcept;
  /// Puts one on the list of those that are free.
  [[nodiscard]] bool add_slot() noexcept;
  void free_slot(std::uint32_t slot) noexcept;
  void note_write(unsigned place, ByteRange range, Access access) noexcept;
  /// Its holder may write from here on when he likes, and others read. The lock is given up and
  /// taken again.
  void begin_escape(std::uint32_t slot) noexcept;
  /// On record, if the stream has nobody to wait for.
  [[nodiscard]] static bool begin_without_waits(Memory& memory, Access access, StreamRef stream,
                                                UseRecord::Ticket& ticket,
                                                const CallSite& site) noexcept;
  [[nodiscard]] unsigned find_place(DeviceId device) const noexcept;
  [[nodiscard]] std::optional<unsigned> find(Place place) const noexcept;
  [[nodiscard]] Memory& memory_of(unsigned place) noexcept {
    return memories_[places_[place].memory];
  }
  [[nodiscard]] const Memory& memory_of(unsigned place) const noexcept {
    return memories_[places_[place].memory];
  }
  [[nodiscard]] bool takes_part(unsigned place) const noexcept {
    return memory_of(place).parts.has(place);
  }
  /// Is anything of the range in a file, and in none of these places?
  [[nodiscard]] bool needs_spilled(ByteRange range, PlaceSet has) const noexcept;
  /// What was on its way to the host has not come: what somebody else still has is there, and the
  /// rest is lost.
  /// Of what a device that is not lost sends, nothing is known yet.
  [[nodiscard]] Failure not_arrived(ByteRange range, PlaceSet alive, const Failure& cause,
                                    CallSite site) noexcept;
  /// The host has waited for so many uses of its copy: what they brought is there.
  void note_arrived(std::uint64_t stream_uses) noexcept;
  /// What of the range was written and is in these places alone, from the first byte to the last.
  [[nodiscard]] ByteRange only_in(PlaceSet places, ByteRange range) const noexcept;
  /// Of a lease that is on record, and closes.
  void end_use(Open& open) noexcept;
  /// Of one that was covered by what the record had, if somebody has looked at that meanwhile.
  /// False if it cannot be put on record: then the host has to wait for the stream.
  [[nodiscard]] bool try_end_late(Open& open) noexcept;
  /// What was not kept is forgotten, and what was goes where it shall; for that the lock is given
  /// up and taken again.
  void after_write(std::uint32_t slot, std::size_t kept) noexcept;
  /// What a lease or a launch wrote goes where it shall, and elsewhere is made to be seen as stale;
  /// it is open for reading from here on. The lock is given up and taken again.
  void spread(std::uint32_t slot) noexcept;
  static void note_stream_use(Memory& memory, Access access) noexcept;
  [[nodiscard]] bool is_ready_at(unsigned place, const Memory& memory, ByteRange range,
                                 Access access) noexcept;
  [[nodiscard]] BufferState state_of(PlaceSet valid) const noexcept;
  /// As standing(), for somebody who counts as so many movers.
  [[nodiscard]] Standing standing_of(unsigned memory, std::uint32_t own_movers) const noexcept;
  void log(const Transfer& transfer) noexcept;

  // --- Opening, the long way

  [[nodiscard]] Result<RawLease> try_open_once(const Wanted& wanted, unsigned place) noexcept;
  /// The same again and again while there is no room, and waiting may help.
  [[nodiscard]] Result<RawLease> try_open_with_time(Wanted wanted, unsigned place) noexcept;
  [[nodiscard]] Result<std::uint32_t> try_take(const Wanted& wanted, unsigned place) noexcept;
  [[nodiscard]] Failure refused(const Open& open, const Wanted& wanted) const noexcept;
  void cancel(std::uint32_t slot) noexcept;
  [[nodiscard]] RawLease lease(std::uint32_t slot) noexcept;
  [[nodiscard]] Result<RawLease> try_open_device(std::uint32_t slot, const Wanted& wanted) noexcept;
  [[nodiscard]] Result<RawLease> try_open_host(std::uint32_t slot, const Wanted& wanted) noexcept;
  [[nodiscard]] Result<void> try_settle_host(std::uint32_t slot, ByteRange range, Access access,
                                             CallSite site) noexcept;
  [[nodiscard]] Result<void> try_wait_sources(ByteRange range, Access access,
                                              CallSite site) noexcept;
  /// May the access look at the bytes? Those that nobody wrote cannot be read, but be changed in
  /// place; those that are lost cannot be either.
  [[nodiscard]] Result<void> check_written(ByteRange range, Access access,
                                           CallSite site) const noexcept;
  /// The first bytes of the range that are lost and were not written since. With the lock held.
  [[nodiscard]] ByteRange first_lost(ByteRange range) const noexcept;
  /// Does the device say so when it is asked? By a stream of the library's, which nobody captures.
  [[nodiscard]] static bool is_device_lost(const Device& device) noexcept;
  /// The host waits until it may use its copy in this way. A device that is lost and only read it
  /// does so no more. Not with a lock held.
  [[nodiscard]] Result<void> try_wait_host_copy(Storage& own, Access access) noexcept;
  /// As not_arrived(); and uses of the host's copy by devices that are lost need not be waited for
  /// again. Not with a lock held.
  [[nodiscard]] Failure tell_not_arrived(Storage& storage, ByteRange range, const Failure& cause,
                                         CallSite site) noexcept;
  /// The same, unless only other bytes of the host's copy were lost on their way: then the rest is
  /// waited for. Not with a lock held.
  [[nodiscard]] Result<void> try_wait_without_lost(Storage& storage, ByteRange range, Access access,
                                                   const Failure& cause, CallSite site) noexcept;

  /// For somebody who looks where bytes are before it is his turn, with a lease on the list:
  /// whoever moves them and does not know of that has ended on return, and what was in a file is
  /// back. Not with a lock held.
  [[nodiscard]] Result<void> try_let_others_end(CallSite site) noexcept;

  // --- With transfer_mutex_ held, and not mutex_

  [[nodiscard]] Result<unsigned> try_place(const Device& device, CallSite site) noexcept;
  /// What may go so that there is room, at most.
  [[nodiscard]] Result<void> try_ensure(unsigned place, StreamRef stream, CallSite site,
                                        Eviction most = Eviction::dirty) noexcept;
  [[nodiscard]] Result<StorageHandle> try_make_memory(unsigned place, std::size_t bytes,
                                                      StreamRef stream, CallSite site,
                                                      Eviction most = Eviction::dirty) noexcept;
  /// The same without asking anybody to go; `asked` is the resource that was asked last.
  [[nodiscard]] Result<StorageHandle> try_make_at_once(unsigned place, std::size_t bytes,
                                                       StreamRef stream, ResourceHandle& asked,
                                                       CallSite site) noexcept;
  [[nodiscard]] Result<StorageHandle> try_make_host(std::size_t bytes, ResourceHandle& asked,
                                                    CallSite site) noexcept;
  /// Is the host's copy the device's too?
  [[nodiscard]] bool is_shared(const Device& device) const noexcept;
  /// Of a device that does not share the host's memory.
  [[nodiscard]] Result<ResourceHandle> try_device_resource(const Device& device) const noexcept;
  /// What only this memory has goes to the host.
  [[nodiscard]] Result<void> try_write_back(unsigned memory, CallSite site) noexcept;
  /// These are on their way to the host, and their source goes. Throws std::bad_alloc.
  void note_homeless(std::span<const ByteRange> ranges, unsigned source);
  void add_homeless(const UnderWay& left);
  /// The same of all that is under way, and that nobody but the host has without these places.
  /// With mutex_ held. Throws std::bad_alloc.
  void note_homeless_without(PlaceSet going);
  /// Where what is on its way to this range of the host comes from; PlaceSet::most if that is not
  /// one place. With mutex_ held.
  [[nodiscard]] unsigned source_under_way(ByteRange range) const noexcept;
  /// What only the host has goes to the file, which stands in for its copy then; the memory is the
  /// caller's. The host waits.
  [[nodiscard]] Result<void> try_spill(StorageHandle& gone, CallSite site) noexcept;
  /// The host's copy has memory again, if it is in a file.
  [[nodiscard]] Result<void> try_unspill(CallSite site) noexcept;
  /// Nobody needs what is in the file.
  void forget_spilled() noexcept;
  [[nodiscard]] static std::byte* host_bytes(Storage& storage) noexcept;
  /// The host copies from one memory of its own to another, if it has to wait for nobody; false if
  /// it had to.
  [[nodiscard]] Result<bool> try_copy_by_host(Storage& to, Storage& from,
                                              std::span<const ByteRange> ranges,
                                              CallSite site) noexcept;
  /// Puts copies on the lists of their places, and takes those off that are gone. Nothing of them
  /// is on its way any more.
  void list_copies() noexcept;
  /// Before memory is made, and before it is given up: it is on its way until it is listed. False
  /// if it was so before.
  bool begin_transit(unsigned memory) noexcept;
  void end_transit(unsigned memory) noexcept;
  /// Of all that have memory.
  void begin_transits() noexcept;
  /// What is stale there comes from elsewhere. The stream is of the place; without one the copies
  /// go behind whoever uses the bytes.
  struct Fetch {
    ByteRange range = {};
    unsigned place = 0;
    StreamRef stream = {};
    TransferReason reason = TransferReason::prefetch;
    std::uint32_t own = 0;  // the lease it is for
    CallSite site = {};
    std::span<const ByteRange> parts = {};  // of the range, if it is not all of it
  };
  [[nodiscard]] Result<void> try_fetch(const Fetch& fetch) noexcept;
  /// On a device, what is written when the holder likes is what his stream has now. With mutex_
  /// held.
  [[nodiscard]] Result<void> try_note_escape(const Open& open) noexcept;
  [[nodiscard]] Result<void> try_issue(std::span<const CopyRun> runs, const StorageHandle& to,
                                       const StorageHandle& from, StreamRef stream,
                                       CallSite site) noexcept;
  /// A stream for work of the buffer's own: the library's if nobody has to be waited for, else a
  /// fresh one, because on the library's the copies of others would wait too. (Streams of the
  /// program are its own to end.)
  struct Runner {
    Stream own = {};
    StreamRef stream = {};
  };
  [[nodiscard]] static Result<Runner> try_runner(const Device& device, Storage& storage,
                                                 Access access,
                                                 Storage* written = nullptr) noexcept;
  [[nodiscard]] Result<void> try_begin_use(unsigned place, StreamRef stream, Access access,
                                           ByteRange range, UseRecord::Ticket& ticket,
                                           CallSite site) noexcept;
  /// Brings what is small to every copy that lacks it, as far as it can. Refused with violation.
  /// Throws std::bad_alloc.
  [[nodiscard]] Result<void> even_out(unsigned place, StreamRef stream, std::uint32_t own,
                                      CallSite site);
  [[nodiscard]] Result<void> try_reconcile(unsigned place, StreamRef stream, std::uint32_t own,
                                           CallSite site) noexcept;
  [[nodiscard]] CopyCosts costs_at(unsigned place) const noexcept;
  /// The same for these ranges: a device that is lost gives only what nobody else has. Devices are
  /// asked where there is a choice, and only those that would be taken.
  [[nodiscard]] CopyCosts costs_at(unsigned place,
                                   std::span<const ByteRange> wanted) const noexcept;
  /// What of it is in this memory and not up to date there; or all of it.
  [[nodiscard]] Result<void> try_poison(unsigned place, ByteRange range, bool all, StreamRef stream,
                                        CallSite site) noexcept;
  /// The same in all places but the one that was written; not of bytes that others hold, who read
  /// what was there before an escaped pointer's holder said more.
  void poison_stale(ByteRange range, unsigned written, std::uint32_t own, CallSite site) noexcept;
  /// The host's copy, if it is only that: nobody else may write it without telling. Null else.
  [[nodiscard]] const Memory* sealed_memory() const noexcept;
  /// A lease of the host's copy closes: from now on its bytes stay what they are.
  void seal(std::uint32_t slot) noexcept;
  /// The pages of the host's copy, if they are guarded. With either lock held.
  [[nodiscard]] GuardedHeap* guarded() const noexcept;
  /// Whoever moves bytes may touch all of them; and when he has, the host only what is leased.
  void open_pages() noexcept;
  void close_pages() noexcept;
  /// A lease of guarded memory has closed.
  void guard_again() noexcept;
  /// Not with mutex_ held. Refused with violation if the host wrote some of it without a lease.
  [[nodiscard]] Result<void> check_sealed(ByteRange range, CallSite site) noexcept;
  /// The same for who is about to use it, with no lock held.
  [[nodiscard]] Result<void> check_before_access(ByteRange range, CallSite site) noexcept;
  /// A place that has nothing, and that nobody but this lease uses, has no memory for a copy any
  /// more.
  void leave_unused(unsigned place, std::uint32_t own) noexcept;
  /// A place no longer has its memory for a copy; what nobody has then is given to the caller, to
  /// be let go without the lock. With mutex_ held.
  [[nodiscard]] StorageHandle leave(unsigned place) noexcept;
  /// The ranges of [0, bytes_) whose set of places fits. Throws std::bad_alloc.
  template <class Fits>
  [[nodiscard]] std::vector<ByteRange> ranges_where(ByteRange range, Fits fits) const;
  /// To all of these places, which have the old value. Refused, the value is the old one or the new
  /// one, and the same wherever it counts as up to date.
  [[nodiscard]] Result<void> try_store_everywhere(ByteRange range, const void* from,
                                                  PlaceSet places, CallSite site) noexcept;
  /// Between a memory and a few bytes of the caller's, complete on return. Not with a lock held.
  [[nodiscard]] Result<void> try_exchange(unsigned place, ByteRange range, Access access,
                                          void* bytes, CallSite site,
                                          TransferReason reason = TransferReason::element) noexcept;

  [[nodiscard]] Failure sync_failed(unsigned from, unsigned to, ByteRange range,
                                    const Failure& cause, CallSite site) const noexcept;
  /// The same of a copy that was queued: others may have what it should have brought.
  [[nodiscard]] Failure not_completed(unsigned from, unsigned to, ByteRange range,
                                      const Failure& cause, CallSite site) const noexcept;
  [[nodiscard]] Failure copy_failed(const char* sentence, unsigned from, unsigned to,
                                    ByteRange range, const Failure& cause,
                                    CallSite site) const noexcept;
  [[nodiscard]] std::string_view name_of(unsigned place) const noexcept;
  /// A lease has closed, or lets others read. With mutex_ held, which is given up and taken again.
  void notify() noexcept;

  // What the short way looks at comes first.
  mutable BriefLock mutex_;
  // Looked after in one way or another, so that there is no short way.
  const bool is_watched_;
  const bool is_checked_;
  // Guarded by mutex_, as all of these. It lives while it has shares or open leases.
  std::uint32_t shares_ = 1;
  std::uint32_t open_count_ = 0;
  std::uint32_t movers_ = 0;  // calls that move bytes, or wait to
  std::uint32_t sticky_count_ = 0;
  std::uint32_t waiters_ = 0;
  std::uint32_t first_free_ = 0;    // and 1 more; 0 for none
  std::atomic<std::size_t> bytes_;  // read without it too
  std::vector<Open> slots_;
  std::vector<Memory> memories_;
  std::vector<PlaceEntry> places_;
  std::optional<unsigned> write_through_ = {};
  Validity validity_;
  std::uint32_t promised_ = 0;  // changes that launches will make
  std::uint64_t closes_ = 0;    // counted while somebody waits for one
  Shape shape_;
  PlaceSet kept_ = {};  // places whose copies do not go by themselves
  UnifiedStatistics statistics_;

  std::mutex transfer_mutex_;
  PlaceSet transits_ = {};  // memories that are on their way; guarded by transfer_mutex_
  std::atomic<std::uint64_t> moving_thread_ = 0;  // who has it; read without a lock
  const std::uint64_t number_;
  const UnifiedOptions options_;
  const DType dtype_;
  const std::size_t element_bytes_;
  std::vector<UnderWay> under_way_;
  /// The same of bytes that nobody else has any more: if they do not arrive, they are lost, and
  /// stay in this list until they were written.
  std::vector<UnderWay> homeless_;
  /// What of the host's copy is in the file; then the copy has no memory. Changes under both locks.
  struct Spilled {
    ByteRange range = {};
    SpillFile::Extent extent = {};
  };
  std::vector<Spilled> spilled_;
  std::vector<Transfer> log_;
  std::size_t log_next_ = 0;

  HostSeal seal_;
  CallSite last_host_lease_ = {};

  std::mutex wait_mutex_;
  std::condition_variable closed_;
};

[[gnu::always_inline]] inline unsigned UnifiedCore::find_place(DeviceId device) const noexcept {
  for (unsigned place = 1; place < places_.size(); ++place) {
    if (places_[place].id == device) return place;
  }
  return PlaceSet::most;
}

[[gnu::always_inline]] inline void UnifiedCore::begin_slot(std::uint32_t number, ByteRange range,
                                                           Access access, Kind kind, unsigned place,
                                                           StreamRef stream, std::uint64_t thread,
                                                           const CallSite& site) noexcept {
  Open& slot = slots_[number];
  first_free_ = slot.next_free;
  slot.begin = range.begin;
  slot.end = range.end;
  slot.site = site;
  slot.thread = thread;
  slot.stream = stream;
  slot.access = access;
  slot.place = static_cast<std::uint8_t>(place);
  slot.kind = kind;
  slot.is_open = true;
  slot.has_use = slot.is_ahead = false;
  slot.is_sticky = slot.is_unlisted = slot.is_missing = false;
  ++open_count_;
}

inline ByteRange RawUnified::range() const noexcept {
  return {offset_, offset_ + (bytes_ != whole ? bytes_ : core_->bytes())};
}

template <class Fits>
std::vector<ByteRange> UnifiedCore::ranges_where(ByteRange range, Fits fits) const {
  std::vector<ByteRange> found;
  const std::lock_guard lock(mutex_);
  validity_.visit(range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    if (!fits(valid)) return;
    if (!found.empty() && found.back().end == begin) {
      found.back().end = end;
    } else {
      found.push_back({begin, end});
    }
  });
  return found;
}

class UnifiedCore::Pause {
 public:
  explicit Pause(UnifiedCore& core) noexcept : core_(core) {
    const std::lock_guard lock(core_.mutex_);
    ++core_.movers_;
    for (Memory& memory : core_.memories_) memory.ahead = {};
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  ~Pause() {
    const std::lock_guard lock(core_.mutex_);
    --core_.movers_;
  }

 private:
  UnifiedCore& core_;
};

class UnifiedCore::Mover {
 public:
  explicit Mover(UnifiedCore& core) noexcept
      : core_(core), pause_(core), lock_(core.transfer_mutex_) {
    core_.moving_thread_.store(this_thread(), std::memory_order_relaxed);
    if (core_.options_.guard) core_.open_pages();
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover() {
    core_.list_copies();
    if (core_.options_.guard) core_.close_pages();
    core_.moving_thread_.store(0, std::memory_order_relaxed);
  }

 private:
  UnifiedCore& core_;
  Pause pause_;
  std::lock_guard<std::mutex> lock_;
};

/// Between the two, nobody else moves bytes: it goes before the Mover.
class UnifiedCore::NewCopy {
 public:
  NewCopy(UnifiedCore& core, unsigned place, std::uint32_t own) noexcept
      : core_(core), place_(place), own_(own), is_new_(!core.takes_part(place)) {}
  NewCopy(const NewCopy&) = delete;
  NewCopy& operator=(const NewCopy&) = delete;
  ~NewCopy() {
    if (is_new_ && !is_kept_) core_.leave_unused(place_, own_);
  }
  /// The call is not refused.
  void keep() noexcept { is_kept_ = true; }

 private:
  UnifiedCore& core_;
  const unsigned place_;
  const std::uint32_t own_;
  const bool is_new_;
  bool is_kept_ = false;
};

/// The same, if nobody moves bytes, waits to, or looks at records.
class UnifiedCore::TryMover {
 public:
  explicit TryMover(UnifiedCore& core) noexcept;
  TryMover(const TryMover&) = delete;
  TryMover& operator=(const TryMover&) = delete;
  ~TryMover();

  [[nodiscard]] explicit operator bool() const noexcept { return lock_.owns_lock(); }

 private:
  UnifiedCore& core_;
  std::unique_lock<std::mutex> lock_;
};

/// Speaks for a range as a lease does.
class UnifiedCore::Hold {
 public:
  [[nodiscard]] Result<void> try_take(UnifiedCore& core, const Wanted& wanted) noexcept {
    const Result<std::uint32_t> slot = core.try_take(wanted, nowhere);
    if (!slot) return slot.failure();
    core_ = &core;
    slot_ = *slot;
    return {};
  }
  [[nodiscard]] std::uint32_t slot() const noexcept { return slot_; }
  Hold() noexcept = default;
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    if (core_ != nullptr) core_->cancel(slot_);
  }

 private:
  UnifiedCore* core_ = nullptr;
  std::uint32_t slot_ = 0;
};

}  // namespace tern
