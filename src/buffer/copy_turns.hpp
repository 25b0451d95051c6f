// Takes the turns that a copy needs: of both storages for a copy on streams, or of the host for a
// copy on the host. A turn serializes conflicting uses of several threads, see UseRecord.
//
// The turns of two storages are taken in the order of their addresses, so that two threads that
// copy in opposite directions cannot deadlock. Within one storage, the write is begun first; the
// read then belongs to the same thread and does not wait.

#pragma once

#include <functional>
#include <utility>

#include "tern/buffer/use.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// One side of a copy on streams, and where to put its use.
struct CopyTurn {
  Storage& storage;
  StreamRef stream = {};
  StorageUse& use;
};

/// Calls both functions, the one of the lower address first, until one fails.
template <class To, class From>
[[nodiscard]] Result<void> by_address(const Storage& to, const Storage& from, To begin_to,
                                      From begin_from) noexcept {
  const bool is_from_first = std::less<const Storage*>()(&from, &to);
  Result<void> first = is_from_first ? begin_from() : begin_to();
  if (!first) return first;
  return is_from_first ? begin_to() : begin_from();
}

/// Begins both uses or neither. The ranges were checked before; these uses only order the copy.
[[nodiscard]] inline Result<void> try_use_both(const CopyTurn& to, const CopyTurn& from,
                                               CallSite site) noexcept {
  const auto begin = [&](const CopyTurn& side, Access access) -> Result<void> {
    Result<StorageUse> use =
        side.storage.try_use(side.stream, access, 0, 0, site, Storage::Streams::any_device);
    if (!use) return use.failure();
    side.use = *std::move(use);
    return {};
  };
  Result<void> begun = by_address(
      to.storage, from.storage, [&] { return begin(to, Access::discard); },
      [&] { return begin(from, Access::read); });
  if (!begun) {
    to.use = StorageUse();
    from.use = StorageUse();
  }
  return begun;
}

/// Holds the host's turn for its lifetime: no conflicting work of a stream can begin.
class HostTurn {
 public:
  HostTurn() noexcept = default;
  HostTurn(const HostTurn&) = delete;
  HostTurn& operator=(const HostTurn&) = delete;
  ~HostTurn() {
    if (uses_ != nullptr) uses_->cancel(ticket_);
  }

  /// Takes the turn; waits for streams and other threads. The storage need not have memory yet.
  /// Call once.
  [[nodiscard]] Result<void> try_take(Storage& storage, Access access, CallSite site) noexcept {
    const Result<UseRecord::Ticket> ticket = storage.uses().try_begin_on_host(access, site);
    if (!ticket) return ticket.failure();
    uses_ = &storage.uses();
    ticket_ = *ticket;
    return {};
  }

 private:
  UseRecord* uses_ = nullptr;
  UseRecord::Ticket ticket_ = {};
};

}  // namespace tern
