// A LoggingResource writes one record for every call to it: what was asked, and what came of it.
//
// Failures are recorded too. A log never changes what it describes: a sink that fails or throws
// costs its record, which is counted, and nothing else; and a sink that itself allocates from the
// resource gets its memory and no record of that, so that it cannot call itself for ever. What a
// record costs is bounded: no heap is used here. Thread-safe; keeps its upstream and its sink.

#pragma once

#include <atomic>

#include "tern/memory/log_sink.hpp"
#include "tern/memory/wrapping_resource.hpp"

namespace tern {

class TERN_EXPORT LoggingResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument without an upstream or a sink.
  LoggingResource(ResourceHandle upstream, LogSinkHandle sink);

  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// Those that the sink did not take.
  [[nodiscard]] std::uint64_t dropped_records() const noexcept { return dropped_.load(); }
  [[nodiscard]] const LogSinkHandle& sink() const noexcept { return sink_; }

 private:
  void write(LogRecord& record, const Failure* failure) noexcept;

  const LogSinkHandle sink_;
  std::atomic<std::uint64_t> dropped_ = 0;
};

}  // namespace tern
