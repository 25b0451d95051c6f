// MemoryUsers finds who uses memory of a PausableResource: the storages in it, and the blocks whose
// uses were declared to a LaunchRecorder. One per process.
//
// Users are found by address, because a wrapper or an arena between the resource and the user may
// hand out blocks of its own. Storages of pausable resources (Resource::is_pausable()) add
// themselves. Thread-safe.
//
// A pause first announces its range and then looks for open uses. A user first begins its use and
// then asks whether the range is paused. So if both happen at once, at least one of them fails.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/byte_range.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class MemoryUsers {
 public:
  // --- For storages

  /// Adds a storage, whose memory begins at the address. Fails with out_of_memory, and with
  /// access_conflict if the memory is paused.
  [[nodiscard]] static Result<void> try_add(Storage& storage, const void* address,
                                            std::size_t bytes, CallSite site) noexcept;
  /// The last handle is gone: the record of uses is no longer shared. Pauses leave the storage out.
  static void begin_end(Storage& storage, const void* address) noexcept;
  /// The memory now belongs to other code. It cannot be paused until it is freed.
  static void release(Storage& storage, const void* address) noexcept;
  /// The memory is freed, or the storage is destroyed.
  static void remove(Storage& storage, const void* address) noexcept;

  /// A range of a resource is freed: forgets released memory in it.
  static void forget(const std::byte* address, std::size_t bytes) noexcept;

  /// Fails with access_conflict, which names the tag, if the address is in a paused range. Costs
  /// one load while nothing is paused.
  [[nodiscard]] static Result<void> check_not_paused(const void* address, CallSite site) noexcept;

  /// A range whose uses cannot begin. The destructor ends the pause as if nothing had happened.
  class Pause {
   public:
    Pause() noexcept = default;
    Pause(Pause&& other) noexcept { swap(other); }
    Pause& operator=(Pause&& other) noexcept {
      Pause(std::move(other)).swap(*this);
      return *this;
    }
    ~Pause() { end({}, {}, Access::read); }

    /// Begins a pause, and adds the marks of all uses to `uses`. Fails with access_conflict while
    /// the memory is in use or belongs to other code, and with out_of_memory.
    [[nodiscard]] static Result<Pause> try_begin(const std::byte* address, std::size_t bytes,
                                                 Tag tag, MarkSet& uses, CallSite site) noexcept;
    /// Ends the pause. `mark` of `stream` is the end of work that has used the memory meanwhile;
    /// without a stream, there is none. After a write, the uses before the pause are forgotten.
    void end(StreamRef stream, Mark mark, Access access) noexcept;
    /// Returns the ranges with contents, in order: if the range is the memory of one storage, what
    /// was written of it, else all of the range. Fails with out_of_memory.
    [[nodiscard]] Result<std::vector<ByteRange>> try_contents(std::size_t bytes,
                                                              CallSite site) noexcept;
    /// The memory has lost its contents.
    void forget_contents() noexcept;
    [[nodiscard]] explicit operator bool() const noexcept { return address_ != nullptr; }

   private:
    struct User {
      const std::byte* address = nullptr;  // of the storage
      Storage* storage = nullptr;          // may have ended since
      StorageId id = {};
      std::shared_ptr<UseRecord> uses = {};  // of a block
      UseRecord::Ticket ticket = {};
    };
    void swap(Pause& other) noexcept;
    /// Calls visit(storage, ticket) for the storages that still exist. Call with the lock held.
    template <class Visit>
    void for_each_storage(Visit visit) noexcept;

    const std::byte* address_ = nullptr;
    std::vector<User> users_;
  };
};

}  // namespace tern
