// The turns that a copy has: those of two storages for a copy by a stream, and the host's for a
// copy by the host. Between them the uses of other threads come one after the other.
//
// Turns of two storages are taken in the order of their addresses, so that two threads which copy
// in opposite directions do not wait for each other. In one storage the write comes first, and the
// read is of the same thread.

#pragma once

#include <functional>
#include <utility>

#include "tern/buffer/storage.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// One side of a copy by streams, and where its use goes.
struct CopyTurn {
  Storage& storage;
  StreamRef stream = {};
  StorageUse& use;
};

/// Calls both, `to` first unless the other address is lower, until one is refused.
template <class To, class From>
[[nodiscard]] Result<void> by_address(const Storage& to, const Storage& from, To begin_to,
                                      From begin_from) noexcept {
  const bool is_from_first = std::less<const Storage*>()(&from, &to);
  Result<void> first = is_from_first ? begin_from() : begin_to();
  if (!first) return first;
  return is_from_first ? begin_to() : begin_from();
}

/// Both or neither. The ranges were checked; these uses are for the order.
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

/// While it lives, the host has the turn: no work of a stream begins that it conflicts with.
class HostTurn {
 public:
  HostTurn() noexcept = default;
  HostTurn(const HostTurn&) = delete;
  HostTurn& operator=(const HostTurn&) = delete;
  ~HostTurn() {
    if (uses_ != nullptr) uses_->cancel(ticket_);
  }

  /// Waits for streams and other threads. Of memory that is not there yet too. Once.
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
