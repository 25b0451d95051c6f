// Counts copies and rejects copies to the host: what copies call. Readers call
// tern/buffer/transfer_audit.hpp, and one source implements both.
//
// Counting takes no lock and allocates nothing: threads are distributed over a few sets of
// counters, and only a bounded number of tags have counters of their own. A reader adds up the
// sets.

#pragma once

#include <cstddef>

#include "buffer/copy_route.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern {

/// Tags beyond this number share one counter.
inline constexpr std::size_t max_counted_tags = 127;

/// The innermost rule of this thread, or null.
[[nodiscard]] TransferRule* transfer_rule() noexcept;

/// Asks the rule whether `bytes` may be copied to the host, before the copy starts. Fails with
/// download_refused. Allowed and counted copies are recorded in the rule.
[[nodiscard]] Result<void> try_download(Tag tag, std::size_t bytes, CallSite site) noexcept;
/// Like try_download(), but records nothing, because the copy itself will ask again.
[[nodiscard]] Result<void> check_download(Tag tag, std::size_t bytes, CallSite site) noexcept;
/// Like try_download(), for a copy on a stream of `device`. Determines from the route whether bytes
/// go to the host.
[[nodiscard]] Result<void> try_download(const Storage& to, const Storage& from, std::size_t bytes,
                                        DeviceId device, CallSite site) noexcept;
/// Returns how many bytes of the copy go to the host.
[[nodiscard]] std::size_t download_bytes(const Storage& to, const Storage& from, std::size_t bytes,
                                         DeviceId device) noexcept;

/// Counts a copy that was submitted or is done.
void count_transfer(TransferDirection direction, Tag tag, std::size_t bytes) noexcept;
/// Counts a copy by the route that it took.
void count_transfer(const Storage& to, const Storage& from, std::size_t bytes,
                    CopyRoute route) noexcept;

}  // namespace tern
