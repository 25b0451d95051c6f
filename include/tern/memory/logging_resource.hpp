// A LoggingResource writes one log record for every allocate, free and trim.
//
//   auto ring = std::make_shared<RingSink>(1000);
//   auto logged = std::make_shared<LoggingResource>(upstream, ring);
//
// Failed calls are logged too. Logging never changes the result of a call. If the sink fails or
// throws, the record is lost and counted in dropped_records(). If the sink itself allocates from a
// LoggingResource, the allocation works, but its record is dropped; otherwise the sink would call
// itself forever. Writing a record allocates no heap memory in this class. Thread-safe. Keeps its
// upstream and its sink alive.

#pragma once

#include <atomic>

#include "tern/memory/log_sink.hpp"
#include "tern/memory/wrapping_resource.hpp"

namespace tern {

/// Passes every call on to its upstream and logs the result.
class TERN_EXPORT LoggingResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument if the upstream or the sink is null.
  LoggingResource(ResourceHandle upstream, LogSinkHandle sink);

  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// The number of records that the sink did not accept.
  [[nodiscard]] std::uint64_t dropped_records() const noexcept { return dropped_.load(); }
  [[nodiscard]] const LogSinkHandle& sink() const noexcept { return sink_; }

 private:
  void write(LogRecord& record, const Failure* failure) noexcept;

  const LogSinkHandle sink_;
  std::atomic<std::uint64_t> dropped_ = 0;
};

}  // namespace tern
