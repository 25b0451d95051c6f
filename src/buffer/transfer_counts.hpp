// Where copies are counted, and where those to the host are refused: the inner side of
// launch/transfer_audit.hpp.
//
// Counting takes no lock and no memory: threads are spread over a few sets of counters, and the
// number of tags that have counters of their own is bounded. Reading adds the sets up.

#pragma once

#include <cstddef>
#include <span>

#include "tern/buffer/copy.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/buffer/transfer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"

namespace tern {

/// Tags beyond so many are counted together.
inline constexpr std::size_t max_counted_tags = 127;

// --- By copies

/// The rule in force on this thread; null: none.
[[nodiscard]] TransferRule* transfer_rule() noexcept;

/// May so many bytes go to the host? Asked before anything is done for the copy. Refused with
/// download_refused; what passes, and what is only counted, is noted with the rule.
[[nodiscard]] Result<void> try_download(Tag tag, std::size_t bytes, CallSite site) noexcept;
/// The same without a note: the copy itself asks again.
[[nodiscard]] Result<void> check_download(Tag tag, std::size_t bytes, CallSite site) noexcept;
/// For a copy on a stream of the device, whichever way that goes.
[[nodiscard]] Result<void> try_download(const Storage& to, const Storage& from, std::size_t bytes,
                                        DeviceId device, CallSite site) noexcept;
/// How many bytes of the copy go to the host.
[[nodiscard]] std::size_t download_bytes(const Storage& to, const Storage& from, std::size_t bytes,
                                         DeviceId device) noexcept;

/// The copy is submitted, or done.
void count_transfer(TransferDirection direction, Tag tag, std::size_t bytes) noexcept;
/// The route is the one that was taken.
void count_transfer(const Storage& to, const Storage& from, std::size_t bytes,
                    CopyRoute route) noexcept;

// --- By those who read the counts

struct TransferViolations {
  TransferCount refused = {};
  TransferCount counted = {};
  CallSite last = {};
};

void put_rule(TransferRule* rule) noexcept;
[[nodiscard]] TransferCounts transfer_counts_of(Tag tag) noexcept;

/// Of all tags that found no counters of their own.
[[nodiscard]] TransferCounts transfer_counts_of_others() noexcept;
[[nodiscard]] TransferCounts transfer_counts_of_all() noexcept;
/// Those with counters of their own, as many as there is room for; gives how many there are.
[[nodiscard]] std::size_t list_counted_tags(std::span<Tag> tags) noexcept;
[[nodiscard]] TransferViolations transfer_violations() noexcept;

}  // namespace tern
