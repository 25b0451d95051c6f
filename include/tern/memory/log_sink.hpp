// A LogSink takes the records of a LoggingResource: what was asked of it, and what came of it.
//
// Records are plain values, so a sink may keep them. write() is called by whichever thread made the
// call, by several at once, and with no lock of Tern's held; what a sink needs to protect is its
// own. False or an exception means that the record is lost, and nothing else.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/export.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/block.hpp"

namespace tern {

enum class LogAction : std::uint8_t { allocate, free, trim };

/// "allocate", "free", "trim".
[[nodiscard]] TERN_EXPORT std::string_view name(LogAction action) noexcept;

struct LogRecord {
  static constexpr std::size_t max_message_bytes = 256;

  /// Increases over all resources and threads of the process. A free is numbered before it is
  /// done, anything else after: read in this order, no address is given out twice.
  std::uint64_t order = 0;
  /// Of a clock that never goes back.
  std::uint64_t time_ns = 0;
  /// Counts the threads that ever logged, from 1.
  std::uint32_t thread = 0;
  LogAction action = LogAction::allocate;
  DeviceId device = {};
  StreamId stream = {};
  const void* address = nullptr;
  /// Granted; of a refused request: asked for; of a trim: given back.
  std::size_t bytes = 0;
  Tag tag = {};
  Generation generation = {};
  CallSite site = {};
  /// What it failed with; nothing if it succeeded.
  std::optional<ErrorCode> failure = {};
  std::uint16_t message_bytes = 0;
  std::array<char, max_message_bytes + 1> message_text = {};

  /// The sentence of the failure, cut between two characters if it is too long.
  [[nodiscard]] std::string_view message() const noexcept {
    return {message_text.data(), message_bytes};
  }
  /// One line, without its end: the fields in the order above, with tabs between them. Control
  /// characters of names and messages become spaces.
  [[nodiscard]] TERN_EXPORT std::string text() const;
};

class TERN_EXPORT LogSink {
 public:
  LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;
  virtual ~LogSink();

  [[nodiscard]] virtual bool write(const LogRecord& record) = 0;
};

using LogSinkHandle = std::shared_ptr<LogSink>;

/// Takes everything and keeps nothing: what logging costs by itself.
class TERN_EXPORT NullSink final : public LogSink {
 public:
  [[nodiscard]] bool write(const LogRecord& record) override;
};

/// Keeps the latest records in memory that it takes once, at the beginning.
class TERN_EXPORT RingSink final : public LogSink {
 public:
  /// Throws InvalidArgument for no records, OutOfMemory.
  explicit RingSink(std::size_t most_records = 1024);
  [[nodiscard]] bool write(const LogRecord& record) override;
  /// What is there, by increasing order.
  [[nodiscard]] std::vector<LogRecord> records() const;
  /// All that were ever written, also those that later ones took the place of.
  [[nodiscard]] std::uint64_t written() const noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<LogRecord> ring_;  // guarded by mutex_, as is written_
  std::uint64_t written_ = 0;
};

/// Appends each record to a file as one line, by one call, so that nothing is lost in a buffer when
/// the process ends. Lines of several threads may stand in another order than their numbers.
class TERN_EXPORT FileSink final : public LogSink {
 public:
  /// Makes the file if there is none. Throws FileError.
  explicit FileSink(const std::string& path);
  ~FileSink() override;
  [[nodiscard]] bool write(const LogRecord& record) override;

 private:
  int file_ = -1;
};

/// Calls a function with each record; it may throw.
class TERN_EXPORT CallbackSink final : public LogSink {
 public:
  /// Throws InvalidArgument for no function.
  explicit CallbackSink(std::function<void(const LogRecord&)> function);
  [[nodiscard]] bool write(const LogRecord& record) override;

 private:
  const std::function<void(const LogRecord&)> function_;
};

}  // namespace tern
