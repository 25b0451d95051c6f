// Streams that are being captured into graphs, which uses and fences say nothing of.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Refused with stream_misuse if the stream takes no work, or takes it for a graph.
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
