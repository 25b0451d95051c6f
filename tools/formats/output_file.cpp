#include "tools/formats/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<void> OutputFile::try_open() {
  struct stat there = {};
  if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Failure(ErrorCode::file,
                   "'{path}' is a directory, a device or a pipe. Write to a regular file.")
        .with("path", path_);
  }
  std::string name = path_ + "." + std::to_string(::getpid()) + ".part";
  file_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) return file_failure(name, "open", errno);
  temporary_ = std::move(name);
  return {};
}

void OutputFile::write(std::string_view bytes) {
  size_bytes_ += bytes.size();
  buffer_ += bytes;
  if (buffer_.size() >= buffer_bytes) flush();
}

void OutputFile::flush() {
  const FileLimitSignal no_signal;
  std::string_view left = buffer_;
  while (!left.empty() && error_ == 0) {
    const ssize_t written = ::write(file_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) error_ = errno;
    if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

Result<void> OutputFile::try_commit() {
  flush();
  // Some file systems report a full disk when the file is closed.
  if (::close(std::exchange(file_, -1)) != 0 && error_ == 0) error_ = errno;
  if (error_ != 0) return file_failure(path_, "write", error_);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return file_failure(path_, "rename", errno);
  }
  temporary_.clear();
  return {};
}

}  // namespace tern::tools
