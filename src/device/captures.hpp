// Checks for streams that are being captured into graphs, which uses and fences cannot order.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Fails with stream_misuse if the stream does not accept work, or is being captured.
[[nodiscard]] inline Result<void> check_not_captured(StreamRef stream, CallSite site) noexcept {
  const Result<bool> is_captured = stream.try_is_capturing();
  if (!is_captured) return Failure(is_captured.failure()).at(site);
  if (!*is_captured) return {};
  return Failure(ErrorCode::stream_misuse,
                 "stream {stream} cannot be ordered: {why}. Make the call before the capture "
                 "begins, or after the launch of the graph.",
                 site)
      .with("stream", stream.id().number())
      .with("why", "it is being captured into a graph");
}

}  // namespace tern
