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

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

// A LogSink receives the records of a LoggingResource.
//
// Records are plain values, so a sink may keep them. The thread that made the logged call calls
// write(), so several threads may call it at once. Tern holds no lock during the call; a sink must
// protect its own state. If write() returns false or throws, the record is lost and the
// LoggingResource counts it as dropped. There is no other effect.

/// The logged operation.
enum class LogAction : std::uint8_t { allocate, free, trim };

/// Returns "allocate", "free" or "trim".
[[nodiscard]] TERN_EXPORT std::string_view name(LogAction action) noexcept;

/// One logged call.
struct LogRecord {
  /// Upper bound on message(); a longer one is cut.
  static constexpr std::size_t max_message_bytes = 256;

  /// Sequence number over all resources and threads of the process. A free gets its number before
  /// the block is freed, every other call after it has returned. In this order, no address is
  /// allocated twice without a free in between.
  std::uint64_t order = 0;
  /// Time of the record, in nanoseconds of a monotonic clock.
  std::uint64_t time_ns = 0;
  /// Number of the calling thread, from 1, in the order in which threads first logged.
  std::uint32_t thread = 0;
  LogAction action = LogAction::allocate;
  DeviceId device = {};
  StreamId stream = {};
  const void* address = nullptr;
  /// The granted size. For a failed request: the requested size. For a trim: the bytes returned to
  /// the upstream.
  std::size_t bytes = 0;
  Tag tag = {};
  Generation generation = {};
  CallSite site = {};
  /// The error code, or nothing if the call succeeded.
  std::optional<ErrorCode> failure = {};
  std::uint16_t message_bytes = 0;
  std::array<char, max_message_bytes + 1> message_text = {};

  /// The message of the failure, truncated between two characters if it is longer than
  /// max_message_bytes.
  [[nodiscard]] std::string_view message() const noexcept {
    return {message_text.data(), message_bytes};
  }
  /// Returns the record as one line without a line end: the fields in the order above, separated by
  /// tabs. Control characters in names and messages become spaces.
  [[nodiscard]] TERN_EXPORT std::string text() const;
};

/// The interface of all sinks.
class TERN_EXPORT LogSink {
 public:
  LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;
  virtual ~LogSink();

  /// Consumes one record. Returns false if the record was lost.
  [[nodiscard]] virtual bool write(const LogRecord& record) = 0;
};

/// Keeps a sink alive. Several resources may share one sink.
using LogSinkHandle = std::shared_ptr<LogSink>;

/// Keeps the latest records in a ring that is allocated once, in the constructor.
class TERN_EXPORT RingSink final : public LogSink {
 public:
  /// Throws InvalidArgument if `max_records` is 0, and std::bad_alloc.
  explicit RingSink(std::size_t max_records = 1024);
  [[nodiscard]] bool write(const LogRecord& record) override;
  /// Returns the kept records, sorted by LogRecord::order. Throws std::bad_alloc.
  [[nodiscard]] std::vector<LogRecord> records() const;
  /// The number of records ever written, including overwritten ones.
  [[nodiscard]] std::uint64_t written() const noexcept;

 private:
  mutable Mutex mutex_;
  std::vector<LogRecord> ring_;  // guarded by mutex_, as is written_
  std::uint64_t written_ = 0;
};

/// Returns a sink that appends each record to a file as one line. Each line is one system call, so
/// no record is lost in a buffer when the process ends. A line that was not written completely is a
/// dropped record. With several threads, lines may appear out of LogRecord::order. Opens the file
/// for appending and creates it if needed. Throws FileError.
[[nodiscard]] TERN_EXPORT LogSinkHandle make_file_sink(const std::string& path);

/// Returns a sink that calls a function with each record. If the function throws, the record counts
/// as dropped. Throws InvalidArgument if the function is empty.
[[nodiscard]] TERN_EXPORT LogSinkHandle
make_callback_sink(AnyFunction<void(const LogRecord&)> function);

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
  /// Where the records go. Other resources may write to it too.
  [[nodiscard]] const LogSinkHandle& sink() const noexcept { return sink_; }

 private:
  void write(LogRecord& record, const Failure* failure) noexcept;

  const LogSinkHandle sink_;
  std::atomic<std::uint64_t> dropped_ = 0;
};

}  // namespace tern
