#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_limit_signal.hpp"
#include "tern/core/place.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/memory/logging_resource.hpp"

namespace tern {
namespace {

/// Replaces control characters, so that a text can neither end the line nor start a new field.
std::string on_one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return line;
}

}  // namespace

std::string_view name(LogAction action) noexcept {
  switch (action) {
    case LogAction::allocate:
      return "allocate";
    case LogAction::free:
      return "free";
    case LogAction::trim:
      break;
  }
  return "trim";
}

std::string LogRecord::text() const {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{:#x}\t{:#x}\t{}\t{}\t{:#x}\t{}:{}\t{}\t{}", order,
                     time_ns, thread, name(action), device.value, stream.value(),
                     reinterpret_cast<std::uintptr_t>(address), bytes, on_one_line(tag.name()),
                     generation.value(), on_one_line(site.file), site.line,
                     failure ? name(*failure) : "ok", on_one_line(message()));
}

LogSink::~LogSink() = default;

RingSink::RingSink(std::size_t max_records) {
  if (max_records == 0) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a ring of 0 records keeps nothing. Give it at least one record.")
              .with("name", "max_records"));
  }
  ring_.resize(max_records);
}

bool RingSink::write(const LogRecord& record) {
  const std::lock_guard lock(mutex_);
  ring_[written_++ % ring_.size()] = record;
  return true;
}

std::vector<LogRecord> RingSink::records() const {
  std::vector<LogRecord> all;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t count = std::min<std::uint64_t>(written_, ring_.size());
    all.assign(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  std::sort(all.begin(), all.end(),
            [](const LogRecord& a, const LogRecord& b) { return a.order < b.order; });
  return all;
}

std::uint64_t RingSink::written() const noexcept {
  const std::lock_guard lock(mutex_);
  return written_;
}

namespace {

class FileSink final : public LogSink {
 public:
  explicit FileSink(const std::string& path)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (file_ < 0) {
      const int error = errno;
      raise(Failure(ErrorCode::file,
                    "the log '{path}' could not be opened: {name} ({code}). Check that its folder "
                    "exists and is writable.")
                .with("code", static_cast<std::uint64_t>(error))
                .with("name", fmt::format("{}", std::strerror(error)))
                .with("path", path));
    }
  }
  ~FileSink() override { ::close(file_); }

  bool write(const LogRecord& record) override {
    const std::string line = record.text() + '\n';
    const FileLimitSignal blocked;
    ssize_t written = -1;
    do {
      written = ::write(file_, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
    // A partial line is a lost record. Writing the rest could mix with another thread's line.
    return written == static_cast<ssize_t>(line.size());
  }

 private:
  const int file_;
};

class CallbackSink final : public LogSink {
 public:
  explicit CallbackSink(AnyFunction<void(const LogRecord&)> function)
      : function_(std::move(function)) {
    if (!function_) {
      raise(Failure(ErrorCode::invalid_argument, "a callback sink needs a function to call.")
                .with("name", "function"));
    }
  }

  bool write(const LogRecord& record) override {
    function_(record);
    return true;
  }

 private:
  const AnyFunction<void(const LogRecord&)> function_;
};

}  // namespace

LogSinkHandle make_file_sink(const std::string& path) { return std::make_shared<FileSink>(path); }

LogSinkHandle make_callback_sink(AnyFunction<void(const LogRecord&)> function) {
  return std::make_shared<CallbackSink>(std::move(function));
}

}  // namespace tern
