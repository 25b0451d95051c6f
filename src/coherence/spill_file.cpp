// Reads and writes the spill file: its blocks, its size limit and its checksums. When a host copy
// is spilled and read back: unified_spill.cpp.

#include "tern/coherence/spill_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// A fast checksum that detects errors of the disk. It runs at the speed of memory.
std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 32; left -= 32, at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * odd + (lanes[i] >> 32);
  }
  std::uint64_t sum = bytes.size();
  for (; left > 0; --left, ++at) sum = (sum ^ std::to_integer<std::uint64_t>(*at)) * odd;
  for (const std::uint64_t lane : lanes) sum = (sum ^ lane ^ (lane >> 29)) * odd;
  return sum ^ (sum >> 32);
}

/// Creates a file without a name. Returns -1 and sets errno if this fails.
int make_file(const std::string& directory) {
#ifdef O_TMPFILE
  const int nameless = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0) return nameless;
#endif
  // Not every file system supports O_TMPFILE. The file below has a name for a moment, with mode
  // 0600, so only the owner could open it.
  std::string path = directory + "/tern-spill-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return file;
  if (::unlink(path.c_str()) != 0 || ::fchmod(file, 0600) != 0) {
    const int error = errno;
    ::close(file);
    errno = error;
    return -1;
  }
  return file;
}

/// Transfers all bytes. Returns 0, an error number, or -1 if the file ends too early.
template <class Call>
int transfer_all(std::size_t bytes, std::size_t offset, Call call) noexcept {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t some = call(done, bytes - done, static_cast<off_t>(offset + done));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return errno;
    if (some == 0) return -1;
    done += static_cast<std::size_t>(some);
  }
  return 0;
}

}  // namespace

Result<SpillHandle> SpillFile::try_open(const SpillOptions& options) noexcept try {
  if (options.limit_bytes == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a spill file needs a {name} above 0, and got {value}. Pass the number of bytes "
                   "of disk that it may use.",
                   options.site)
        .with("name", "limit_bytes")
        .with("value", std::uint64_t{0});
  }
  std::string directory = options.directory;  // copied first, because this may throw
  const int file = make_file(directory);
  if (file < 0) {
    return Failure(ErrorCode::file,
                   "a spill file cannot be created in '{path}': {what} failed ({error}). Choose a "
                   "writable directory.",
                   options.site)
        .with("what", "open")
        .with("error", static_cast<std::uint64_t>(errno))
        .with("path", options.directory);
  }
  SpillFile* const made =
      new (std::nothrow) SpillFile(file, std::move(directory), options.limit_bytes);
  if (made == nullptr) {
    ::close(file);
    return no_host_memory("a spill file", options.site);
  }
  return SpillHandle(made);
} catch (const std::bad_alloc&) {
  return no_host_memory("a spill file", options.site);
}

SpillFile::SpillFile(int file, std::string directory, std::size_t limit_bytes) noexcept
    : file_(file), directory_(std::move(directory)) {
  statistics_.limit_bytes = limit_bytes;
}

SpillFile::~SpillFile() { ::close(file_); }

SpillStatistics SpillFile::statistics() const noexcept {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

Failure SpillFile::failed(const char* sentence, const char* call, int error, std::size_t bytes,
                          CallSite site) const noexcept {
  return Failure(ErrorCode::file, sentence, site)
      .with_bytes("bytes", bytes)
      .with("error", static_cast<std::uint64_t>(error))
      .with("what", call)
      .with("cause", error == ENOSPC || error == EFBIG || error == EDQUOT ? "disk full" : "disk")
      .with("path", directory_);
}

Result<std::size_t> SpillFile::try_claim(std::size_t bytes, CallSite site) noexcept {
  const std::lock_guard lock(mutex_);
  SpillStatistics& now = statistics_;
  if (bytes > now.limit_bytes || now.used_bytes > now.limit_bytes - bytes) {
    ++now.failed_writes;
    return Failure(ErrorCode::out_of_budget,
                   "the spill file in '{path}' cannot hold {requested} more: {current} of its "
                   "limit of {limit} are in use. Free buffers, or raise the limit.",
                   site)
        .with_bytes("requested", bytes)
        .with_bytes("would_grant", bytes)
        .with_bytes("current", now.used_bytes)
        .with_bytes("limit", now.limit_bytes)
        .with("cause", "spill file full")
        .with("path", directory_);
  }
  const auto fits =
      std::ranges::find_if(free_, [&](const auto& one) { return one.second >= bytes; });
  std::size_t offset = now.file_bytes;
  if (fits != free_.end()) {
    offset = fits->first;
    // The node is reused for the rest, so that nothing is allocated.
    auto node = free_.extract(fits);
    node.key() += bytes;
    node.mapped() -= bytes;
    if (node.mapped() != 0) free_.insert(std::move(node));
  } else {
    // Disk space is allocated before anything is written to it.
    const FileLimitSignal blocked;
    int error = EINTR;
    while (error == EINTR) {
      error = ::posix_fallocate(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    }
    if (error != 0) {
      ++now.failed_writes;
      return failed(
          "the disk has no {bytes} more for the spill file in '{path}': {what} failed ({error}). "
          "The "
          "bytes stay where they are; free disk, or name another directory.",
          "posix_fallocate", error, bytes, site);
    }
    now.file_bytes += bytes;
  }
  now.used_bytes += bytes;
  now.peak_bytes = std::max(now.peak_bytes, now.used_bytes);
  return offset;
}

void SpillFile::give_back(std::size_t offset, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  statistics_.used_bytes -= bytes;
  if (statistics_.used_bytes == 0) {
    // If truncating fails, the disk space stays allocated and is reused from the beginning.
    if (::ftruncate(file_, 0) == 0) {
      free_.clear();
      statistics_.file_bytes = 0;
      return;
    }
  }
  try {
    auto at = free_.emplace(offset, bytes).first;
    if (const auto next = std::next(at);
        next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at != free_.begin()) {
      const auto before = std::prev(at);
      if (before->first + before->second == at->first) {
        before->second += at->second;
        free_.erase(at);
      }
    }
  } catch (const std::bad_alloc&) {
    // The range is not reused until the file is empty.
  }
}

Result<SpillExtent> SpillFile::try_write(std::span<const std::byte> bytes, CallSite site) noexcept {
  SpillExtent extent{.bytes = bytes.size()};
  if (bytes.empty()) return extent;
  const std::optional<std::size_t> whole = checked_round_up(bytes.size(), block_bytes);
  const Result<std::size_t> offset = try_claim(whole.value_or(bytes.size()), site);
  if (!offset) return offset.failure();
  extent.offset = *offset;
  extent.checksum = checksum_of(bytes);
  const FileLimitSignal blocked;
  const int error =
      transfer_all(bytes.size(), *offset, [&](std::size_t done, std::size_t left, off_t at) {
        return ::pwrite(file_, bytes.data() + done, left, at);
      });
  if (error != 0) {
    give_back(*offset, *whole);
    const std::lock_guard lock(mutex_);
    ++statistics_.failed_writes;
    return failed(
        "{bytes} could not be written to the spill file in '{path}': {what} failed ({error}). The "
        "bytes stay where they are.",
        "pwrite", std::max(error, 0), bytes.size(), site);
  }
  const std::lock_guard lock(mutex_);
  statistics_.written_bytes += bytes.size();
  return extent;
}

Result<void> SpillFile::try_read(const SpillExtent& extent, std::byte* to, CallSite site) noexcept {
  if (extent.bytes == 0) return {};
  const int error =
      transfer_all(extent.bytes, extent.offset, [&](std::size_t done, std::size_t left, off_t at) {
        return ::pread(file_, to + done, left, at);
      });
  const bool is_right = error == 0 && checksum_of({to, extent.bytes}) == extent.checksum;
  const std::lock_guard lock(mutex_);
  if (is_right) {
    statistics_.read_bytes += extent.bytes;
    return {};
  }
  ++statistics_.failed_reads;
  if (error != 0) {
    return failed(
        "{bytes} could not be read from the spill file in '{path}': {what} failed ({error}).",
        "pread", std::max(error, 0), extent.bytes, site);
  }
  Failure corrupt = failed(
      "{bytes} in the spill file in '{path}' are not what was written there: the {what} differs. "
      "The disk, or somebody with its file, has changed them.",
      "checksum", 0, extent.bytes, site);
  return corrupt;
}

void SpillFile::release(const SpillExtent& extent) noexcept {
  if (extent.bytes == 0) return;
  give_back(extent.offset, checked_round_up(extent.bytes, block_bytes).value_or(extent.bytes));
}

}  // namespace tern
