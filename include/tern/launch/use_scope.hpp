// A UseScope is the set of buffers that work on one stream uses: declared before the work is
// submitted, ended behind it.
//
// Buffers are added with what the work does to them. Then the scope begins, for all of them or for
// none: everything is checked first (device, reach, range, bytes that nobody wrote, read-only and
// released memory), then memory is there, then exactly the waits that are needed are queued on the
// stream, one for each other stream. Between that and the end the addresses are valid for work of
// the stream, and other threads that would write the same storages, or read what is written, wait
// for the end. The end leaves a mark with every storage, which other streams, the host and the free
// wait for.
//
// A storage that is added twice is used once: reading one part and discarding another is
// read_write. Nothing can be added to a scope that has begun. A scope that goes without end() or
// cancel() counts as ended: its work may have been submitted. It keeps the storages; up to eight
// uses need no heap memory. One object belongs to one thread, and its stream should outlive it.
//
// For work that Tern does not submit, take the same way with a LaunchRecorder, which is strict
// about the order of the calls and knows memory that is no buffer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/buffer/use_record.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class TERN_EXPORT UseScope {
 public:
  static constexpr std::size_t inline_uses = 8;

  /// Reaches no device; a stream that takes no work is refused by try_begin().
  explicit UseScope(StreamRef stream) noexcept : stream_(stream) {}
  UseScope(const UseScope&) = delete;
  UseScope& operator=(const UseScope&) = delete;
  ~UseScope();

  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  /// Uses that were added.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// Has it begun, and neither ended nor been cancelled?
  [[nodiscard]] bool has_begun() const noexcept { return phase_ == Phase::begun; }

  /// Gives the number to ask pointer() with. No buffer, and one of no bytes, is no use. Refused
  /// with stream_misuse if the scope has begun, and with out_of_memory; what is wrong with the
  /// buffer is found by try_begin().
  [[nodiscard]] Result<std::size_t> try_add(const Buffer& buffer, Access access,
                                            CallSite site = CallSite::here()) noexcept {
    return try_add(buffer.storage(), buffer.offset_bytes(), buffer.bytes(), access, site);
  }
  template <class T>
  [[nodiscard]] Result<std::size_t> try_add(const Array<T>& array, Access access,
                                            CallSite site = CallSite::here()) noexcept {
    const std::size_t offset =
        array.empty()
            ? 0
            : array.address() - reinterpret_cast<std::uintptr_t>(array.storage()->first_byte());
    return try_add(array.storage(), offset, array.bytes(), access, site);
  }
  [[nodiscard]] Result<std::size_t> try_add(const StorageHandle& storage, std::size_t offset,
                                            std::size_t bytes, Access access,
                                            CallSite site = CallSite::here()) noexcept;
  /// The same without a share of the storage, for whoever keeps the buffer until the scope is over
  /// anyway: a launch in one call has its arguments.
  [[nodiscard]] Result<std::size_t> try_add_borrowed(const Buffer& buffer, Access access,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_put(buffer.storage().get(), buffer.offset_bytes(), buffer.bytes(), access, site);
  }
  [[nodiscard]] Result<std::size_t> try_add_borrowed(Storage* storage, std::size_t offset,
                                                     std::size_t bytes, Access access,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_put(storage, offset, bytes, access, site);
  }
  /// The same of memory that a LaunchMemory has brought to the stream. It may be another device's:
  /// the host's copy of a unified buffer is the host device's too.
  [[nodiscard]] Result<std::size_t> try_add_brought(Storage* storage, std::size_t offset,
                                                    std::size_t bytes, Access access,
                                                    CallSite site = CallSite::here()) noexcept;
  template <class Used>
  std::size_t add(const Used& used, Access access, CallSite site = CallSite::here()) {
    return try_add(used, access, site).value();
  }

  /// All or nothing: refused, no wait is queued and nothing is on record (memory that a buffer has
  /// got stays its own), and the same call may be made again. Refused as Storage::check_use, as
  /// allocations and waits are; with stream_misuse if it has begun before. Only where a wait fails
  /// may others have been queued, which do no harm.
  [[nodiscard]] Result<void> try_begin(CallSite site = CallSite::here()) noexcept;
  void begin(CallSite site = CallSite::here()) { try_begin(site).value(); }

  /// Where work of the stream finds the use's first byte. Null before the beginning, behind the
  /// end, and for no bytes.
  [[nodiscard]] void* pointer(std::size_t index) const noexcept {
    if (phase_ != Phase::begun || index >= count_) return nullptr;
    const Use& use = uses()[index];
    if (use.storage == nullptr) return nullptr;
    return (use.is_brought ? brought_address(use) : use.storage->first_byte()) + use.offset;
  }

  /// The work is submitted. Nothing if the scope has not begun.
  void end() noexcept { finish(Outcome::submitted); }
  /// Nothing was submitted: as if the scope had never been.
  void cancel() noexcept { finish(Outcome::nothing); }

 private:
  friend class LaunchRecorder;
  enum class Phase : std::uint8_t { open, begun, over };
  enum class Outcome : std::uint8_t { submitted, unknown, nothing };

  struct Use {
    Storage* storage = nullptr;  // null for no bytes
    StorageHandle owner;         // none if it is borrowed
    std::size_t offset = 0, bytes = 0;
    UseRecord::Ticket ticket = {};  // of the first use of the storage, as `merged`
    CallSite site = {};
    std::uint32_t first = 0;  // the first use of the same storage, which stands for all of them
    Access access = Access::read;
    Access merged = Access::read;
    bool is_brought = false;
  };

  [[nodiscard]] std::span<Use> uses() noexcept { return {data(), count_}; }
  [[nodiscard]] std::span<const Use> uses() const noexcept {
    return {more_ != nullptr ? more_ : inline_, count_};
  }
  [[nodiscard]] Use* data() noexcept { return more_ != nullptr ? more_ : inline_; }
  [[nodiscard]] bool make_room() noexcept;
  [[nodiscard]] Result<std::size_t> try_put(Storage* storage, std::size_t offset, std::size_t bytes,
                                            Access access, const CallSite& site) noexcept;
  [[nodiscard]] Result<void> check(CallSite site) noexcept;
  [[nodiscard]] std::byte* brought_address(const Use& use) const noexcept;
  /// One storage after the other by their addresses, waiting for other threads that use them.
  [[nodiscard]] Result<void> try_begin_in_order(MarkSet& waits, CallSite site) noexcept;
  void cancel_first(std::size_t count) noexcept;
  /// Begun, and not begun after all: it may begin again.
  void reopen() noexcept;
  /// With work of unknown fate the memory counts as used, and not as written.
  void finish(Outcome outcome) noexcept;

  StreamRef stream_;
  std::uint32_t count_ = 0;
  std::uint32_t capacity_ = inline_uses;
  Phase phase_ = Phase::open;
  Use* more_ = nullptr;  // owned: capacity_ places, of which count_ are alive
  union {
    Use inline_[inline_uses];  // the first count_ are alive, unless there are more
  };
};

}  // namespace tern
