// A UseScope declares which buffers the work on one stream uses. Add the buffers, begin the scope,
// submit the work, and end the scope.
//
//   UseScope scope(stream);
//   const std::size_t x = scope.add(input, Access::read);
//   scope.begin();                          // checks everything, allocates, queues the waits
//   submit(scope.pointer(x), stream);
//   scope.end();                            // records the use
//
// begin() works for all buffers or for none. It first checks every use (device, reachability,
// range, bytes that were never written, read-only and released memory), then allocates missing
// memory, then queues exactly the waits that are needed, at most one for each other stream. From
// begin() to end(), the addresses are valid for work on the stream. During that time, other threads
// that would write one of the storages, or read one that is written, wait. end() leaves a mark with
// every storage; other streams, the host and the free wait for that mark.
//
// A storage that is added twice is used once; reading one part and discarding another counts as
// read_write. Nothing can be added after begin(). A scope that is destroyed without end() or
// cancel() counts as ended, because its work may have been submitted. A scope shares ownership of
// its storages, and needs no heap memory for up to eight uses. One object belongs to one thread,
// and its stream should outlive it.
//
// If a GraphCapture captures the stream, the work does not run now. begin() checks the uses and
// allocates memory, and queues no waits; end() adds the uses to those that each launch of the graph
// declares.
//
// For work that Tern does not submit, use a LaunchRecorder. It follows the same steps, checks the
// order of the calls, and accepts memory that is not a buffer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class CapturedUses;

class TERN_EXPORT UseScope {
 public:
  /// Number of uses up to which a scope needs no heap memory.
  static constexpr std::size_t inline_uses = 8;

  /// Creates an empty scope without calling a device. If the stream takes no work, try_begin()
  /// fails.
  explicit UseScope(StreamRef stream) noexcept : stream_(stream) {}
  UseScope(const UseScope&) = delete;
  UseScope& operator=(const UseScope&) = delete;
  ~UseScope();

  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  /// Returns the number of uses that were added.
  [[nodiscard]] std::size_t size() const noexcept { return uses_.size(); }
  /// Returns whether the scope has begun, and was neither ended nor cancelled.
  [[nodiscard]] bool has_begun() const noexcept { return phase_ == Phase::begun; }

  /// Adds a use and returns its index, for pointer(). An empty handle or a buffer without bytes
  /// adds no use of memory. Fails with stream_misuse if the scope has begun, and with
  /// out_of_memory. Anything wrong with the buffer itself makes try_begin() fail.
  [[nodiscard]] Result<std::size_t> try_add(const Buffer& buffer, Access access,
                                            CallSite site = CallSite::here()) noexcept {
    return try_add(buffer.storage(), buffer.offset_bytes(), buffer.size_bytes(), access, site);
  }
  template <class T>
  [[nodiscard]] Result<std::size_t> try_add(const Array<T>& array, Access access,
                                            CallSite site = CallSite::here()) noexcept {
    const std::size_t offset =
        array.empty()
            ? 0
            : array.address() - reinterpret_cast<std::uintptr_t>(array.storage()->first_byte());
    return try_add(array.storage(), offset, array.size_bytes(), access, site);
  }
  [[nodiscard]] Result<std::size_t> try_add(const StorageHandle& storage, std::size_t offset,
                                            std::size_t bytes, Access access,
                                            CallSite site = CallSite::here()) noexcept;
  /// Like try_add(), without sharing ownership. The caller keeps the storage alive until the scope
  /// is over, as a launch in one call does with its arguments.
  [[nodiscard]] Result<std::size_t> try_add_borrowed(const Buffer& buffer, Access access,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_put(buffer.storage().get(), buffer.offset_bytes(), buffer.size_bytes(), access,
                   site);
  }
  [[nodiscard]] Result<std::size_t> try_add_borrowed(Storage* storage, std::size_t offset,
                                                     std::size_t bytes, Access access,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_put(storage, offset, bytes, access, site);
  }
  /// Like try_add_borrowed(), for memory that a LaunchMemory has prepared for the stream. The
  /// storage may belong to another device, for example if the host device uses the host copy of a
  /// unified buffer.
  [[nodiscard]] Result<std::size_t> try_add_brought(Storage* storage, std::size_t offset,
                                                    std::size_t bytes, Access access,
                                                    CallSite site = CallSite::here()) noexcept;
  template <class Used>
  std::size_t add(const Used& used, Access access, CallSite site = CallSite::here()) {
    return try_add(used, access, site).value();
  }

  /// Begins all uses or none. If it fails, no wait is queued and nothing is recorded, and the call
  /// may be repeated; memory that was allocated stays with its buffer. Fails as Storage::check_use
  /// does, with the failures of allocations and waits, and with stream_misuse if the scope has
  /// begun before. Only if queuing a wait fails may earlier waits have been queued, which is
  /// harmless.
  [[nodiscard]] Result<void> try_begin(CallSite site = CallSite::here()) noexcept;
  void begin(CallSite site = CallSite::here()) { try_begin(site).value(); }

  /// Returns the address of the first byte of a use, for work on the stream. Returns null before
  /// begin(), after end(), and for a use without bytes.
  [[nodiscard]] void* pointer(std::size_t index) const noexcept {
    if (phase_ != Phase::begun || index >= size()) return nullptr;
    const Use& use = uses_[index];
    if (use.storage == nullptr) return nullptr;
    return (use.is_brought ? brought_address(use) : use.storage->first_byte()) + use.offset;
  }

  /// Ends the scope: the work was submitted. Does nothing if the scope has not begun.
  void end() noexcept { finish(Outcome::submitted); }
  /// Ends the scope: nothing was submitted, and nothing is recorded.
  void cancel() noexcept { finish(Outcome::nothing); }

 private:
  friend class Graph;
  friend class LaunchRecorder;
  enum class Phase : std::uint8_t { open, begun, over };
  enum class Outcome : std::uint8_t { submitted, unknown, nothing };

  struct Use {
    Storage* storage = nullptr;  // null for no bytes
    StorageHandle owner;         // empty if the storage is borrowed
    std::size_t offset = 0, bytes = 0;
    /// Of the first use of the storage, with the access `merged`.
    UseRecord::Ticket ticket = {};
    CallSite site = {};
    /// The index of the first use of the same storage, which stands for all of them.
    std::uint32_t first = 0;
    Access access = Access::read;
    Access merged = Access::read;
    bool is_brought = false;
  };

  [[nodiscard]] Result<std::size_t> try_put(Storage* storage, std::size_t offset, std::size_t bytes,
                                            Access access, const CallSite& site) noexcept;
  [[nodiscard]] Result<void> check(CallSite site) noexcept;
  [[nodiscard]] std::byte* brought_address(const Use& use) const noexcept;
  /// Begins the storages one by one in the order of their addresses, and waits for other threads
  /// that use them. The common order prevents deadlocks.
  [[nodiscard]] Result<void> try_begin_in_order(MarkSet& waits, CallSite site) noexcept;
  void cancel_first(std::size_t count) noexcept;
  /// Adds the uses to the capture, which then shares the storages.
  void capture_uses() noexcept;
  /// Returns a scope whose begin() failed to the state before begin(), so that it may begin again.
  void reopen() noexcept;
  /// If it is unknown whether the work was submitted, the memory counts as used, but not as
  /// written.
  void finish(Outcome outcome) noexcept;

  StreamRef stream_;
  Phase phase_ = Phase::open;
  std::shared_ptr<CapturedUses> captured_;  // while begun on a stream that is being captured
  InlineVector<Use, inline_uses> uses_;
};

}  // namespace tern
