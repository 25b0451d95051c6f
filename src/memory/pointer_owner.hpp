// A PointerOwner is one resource whose memory is freed by address, see
// tern/memory/pointer_allocator.hpp. Its number is part of each AddressEntry.
//
// The owner of an entry is found by its number, without a lock. An owner ends when no
// PointerAllocator refers to it and none of its memory is live. The counts of allocations and frees
// are kept per thread, so that threads share no line of the cache; they are added only after the
// last PointerAllocator is gone.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/thread_number.hpp"
#include "memory/address_map.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/memory/pointer_allocator.hpp"

namespace tern {

class ArenaResource;

class PointerOwner {
 public:
  /// Returns the owner of the resource, which is made on the first call. Throws as the constructor
  /// of PointerAllocator does.
  [[nodiscard]] static std::shared_ptr<PointerOwner> of(ResourceHandle resource);
  /// Returns the owner of an entry that the caller has taken, or read while its block is live.
  [[nodiscard]] static PointerOwner& of(AddressEntry entry) noexcept {
    return *owners_[entry.owner()].load(std::memory_order_acquire);
  }

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  /// The resource if it is an arena, whose blocks need no stream. Else null.
  [[nodiscard]] ArenaResource* arena() const noexcept { return arena_; }

  [[nodiscard]] Result<void*> try_allocate(const Request& request) noexcept;
  /// Enters a block of the resource in the address map. If that fails, the caller still has the
  /// block.
  [[nodiscard]] Result<void*> try_enter(const Block& block, CallSite site) noexcept;
  /// Frees the block of an entry that the caller has taken. If that fails, the entry is back in the
  /// map.
  [[nodiscard]] static Result<void> try_free_taken(AddressEntry entry, void* address,
                                                   StreamRef stream, CallSite site) noexcept;
  /// For a caller that has freed the block of an entry it had taken.
  void note_freed() noexcept;

  /// Returns the block of an entry, or the failure of an address that has no live block.
  [[nodiscard]] static Result<Block> try_block(AddressEntry entry, const void* address) noexcept;
  [[nodiscard]] static Failure not_live(const void* address, CallSite site = {}) noexcept;

  /// Returns the stream for a free in the order of a stream with this id: no stream if the host has
  /// waited for the work. Waits for the device if the stream is foreign and the device does not
  /// keep it any more.
  [[nodiscard]] Result<StreamRef> try_order_of(StreamId id, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_add_use(const void* address, AddressEntry entry, StreamRef stream,
                                         CallSite site) noexcept;

  struct Delayed {
    std::size_t blocks = 0, bytes = 0;
  };
  /// Returns what is freed and still waits for streams.
  [[nodiscard]] Delayed delayed() noexcept;
  /// Frees delayed blocks whose uses are done, at most `max_blocks`.
  std::size_t poll(std::size_t max_blocks) noexcept;

  explicit PointerOwner(ResourceHandle resource);
  PointerOwner(const PointerOwner&) = delete;
  PointerOwner& operator=(const PointerOwner&) = delete;

 private:
  /// A block whose free waits for streams.
  struct DelayedFree {
    Block block;
    StreamRef stream;
    std::vector<Mark> marks;  // the uses that are not known to be done
  };
  struct alignas(64) Count {
    std::atomic<std::int64_t> live = 0;
  };
  static constexpr std::size_t max_owners = std::size_t{1} << AddressEntry::owner_bits;

  /// Called when the last PointerAllocator is gone.
  static void release(PointerOwner* owner) noexcept;
  /// Ends the owner with this number if no allocator refers to it and nothing is live.
  static void end_if_unused(std::uint32_t number) noexcept;
  void count(std::int64_t change) noexcept {
    counts_[this_thread() % counts_.size()].live.fetch_add(change);
  }
  [[nodiscard]] std::int64_t live() const noexcept;

  [[nodiscard]] Result<void> free_after_uses(const Block& block, StreamRef stream,
                                             const void* address, CallSite site) noexcept;
  /// Removes the marks that are done. Returns true if none is left.
  [[nodiscard]] static bool is_unused(DelayedFree& delayed) noexcept;
  /// Waits for all delayed frees and frees them. Returns whether there were any.
  bool wait_for_delayed() noexcept;

  const ResourceHandle resource_;
  ArenaResource* const arena_;
  std::uint32_t number_ = 0;
  std::size_t handles_ = 0;  // references to this owner; guarded by the mutex of the registry
  std::atomic<bool> is_released_ = false;
  std::atomic<bool> has_delayed_ = false;  // delayed_ is not empty; written with the lock held
  std::array<Count, 16> counts_;
  Mutex poll_mutex_;  // held by the one thread that visits delayed_; taken before delayed_mutex_
  Mutex delayed_mutex_;
  std::vector<DelayedFree> delayed_;  // guarded by delayed_mutex_
  // The streams of record_use(), by address.
  std::unordered_map<const void*, std::vector<StreamRef>> uses_;  // guarded by delayed_mutex_

  static std::atomic<PointerOwner*> owners_[max_owners];
};

}  // namespace tern
