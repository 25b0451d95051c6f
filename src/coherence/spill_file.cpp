// Reads and writes the spill file: its blocks, its size limit and its checksums. When a host copy
// is spilled and read back: unified_spill.cpp.

#include "tern/coherence/spill_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "buffer/file_transfers.hpp"
#include "core/checksum.hpp"
#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Transfers in flight, oldest first. Waits for them in its destructor.
class Window {
 public:
  static constexpr std::size_t size = 8;
  struct Entry {
    FileTransfer transfer;
    std::size_t index = 0;  // of the extent
    bool is_last = true;    // of the transfers of the extent
  };

  Window() noexcept : transfers_(FileTransfers::instance()) {}
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    while (!is_empty()) static_cast<void>(wait_oldest());
  }
  [[nodiscard]] bool is_empty() const noexcept { return begun_ == ended_; }
  [[nodiscard]] bool is_full() const noexcept { return begun_ - ended_ == size; }
  void begin(const Entry& entry) noexcept {
    Entry& place = entries_[begun_++ % size];
    place = entry;
    transfers_.submit(place.transfer);
  }
  /// The entry is valid until the next begin().
  [[nodiscard]] const Entry& wait_oldest() noexcept {
    Entry& oldest = entries_[ended_++ % size];
    transfers_.wait(oldest.transfer);
    return oldest;
  }

 private:
  FileTransfers& transfers_;
  std::array<Entry, size> entries_ = {};
  std::size_t begun_ = 0, ended_ = 0;
};

/// An extent is read in parts of this size, whose checksums are computed as they arrive.
constexpr std::size_t part_bytes = 4 * mib;

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
  // Closes the file unless the spill file owns it.
  struct Guard {
    int number;
    ~Guard() {
      if (number >= 0) ::close(number);
    }
  } guard{file};
  auto transfers =
      std::make_unique<TransferFile>(file, directory, TransferFile::Direct::if_possible, true);
  SpillFile* const made = new (std::nothrow)
      SpillFile(file, std::move(transfers), std::move(directory), options.limit_bytes);
  if (made == nullptr) return no_host_memory("a spill file", options.site);
  guard.number = -1;
  return SpillHandle(made);
} catch (const std::bad_alloc&) {
  return no_host_memory("a spill file", options.site);
}

SpillFile::SpillFile(int file, std::unique_ptr<TransferFile> transfers, std::string directory,
                     std::size_t limit_bytes) noexcept
    : file_(file),
      transfers_(std::move(transfers)),
      directory_(std::move(directory)),
      process_(process_generation()) {
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

Failure SpillFile::failed_transfer(bool is_write, int error, std::size_t failed_offset,
                                   std::size_t bytes, CallSite site) noexcept {
  const std::lock_guard lock(mutex_);
  ++(is_write ? statistics_.failed_writes : statistics_.failed_reads);
  return failed(is_write ? "{bytes} could not be written to the spill file in '{path}': {what} "
                           "failed at offset {offset} ({error}). The bytes stay where they are."
                         : "{bytes} could not be read from the spill file in '{path}': {what} "
                           "failed at offset {offset} ({error}).",
                is_write ? "pwrite" : "pread", std::max(error, 0), bytes, site)
      .with("offset", failed_offset);
}

Result<void> SpillFile::try_write_all(std::span<const std::span<const std::byte>> ranges,
                                      std::span<SpillExtent> extents, CallSite site) noexcept {
  if (const Result<void> usable = check_not_forked(process_); !usable) {
    return Failure(ErrorCode::after_fork,
                   "the spill file in '{path}' belongs to the process that opened it, and process "
                   "{pid} was forked from that process. Open a spill file in the forked process.",
                   site)
        .with("pid", usable.failure().number("pid").value_or(0))
        .with("path", directory_);
  }
  Result<void> written;
  std::size_t claimed = 0, bytes = 0;
  {
    Window window;
    const auto wait_oldest = [&] {
      const Window::Entry& done = window.wait_oldest();
      if (done.transfer.error == 0 || !written) return;
      written = failed_transfer(true, done.transfer.error, done.transfer.failed_offset,
                                done.transfer.bytes, site);
    };
    for (const std::span<const std::byte> range : ranges) {
      extents[claimed] = {.bytes = range.size()};
      if (range.empty()) {
        ++claimed;
        continue;
      }
      const std::optional<std::size_t> whole = checked_round_up(range.size(), block_bytes);
      const Result<std::size_t> offset = try_claim(whole.value_or(range.size()), site);
      if (!offset) {
        written = offset.failure();
        break;
      }
      SpillExtent& extent = extents[claimed++];
      extent.offset = *offset;
      if (window.is_full()) wait_oldest();
      if (!written) break;
      window.begin({.transfer = {.file = transfers_.get(),
                                 .memory = const_cast<std::byte*>(range.data()),
                                 .offset = extent.offset,
                                 .bytes = range.size(),
                                 .is_write = true}});
      Checksum checksum;
      checksum.add(range);
      extent.checksum = checksum.get();
      bytes += range.size();
    }
    while (!window.is_empty()) wait_oldest();
  }
  if (!written) {
    for (SpillExtent& extent : extents.first(claimed)) release(std::exchange(extent, {}));
    return written;
  }
  const std::lock_guard lock(mutex_);
  statistics_.written_bytes += bytes;
  return {};
}

Result<void> SpillFile::try_read_all(std::span<const SpillExtent> extents,
                                     std::span<std::byte* const> to, CallSite site) noexcept {
  Window window;
  Checksum checksum;
  std::size_t read_bytes = 0;
  const auto check_oldest = [&]() -> Result<void> {
    const Window::Entry& done = window.wait_oldest();
    const FileTransfer& transfer = done.transfer;
    const SpillExtent& extent = extents[done.index];
    if (transfer.error != 0) {
      return failed_transfer(false, transfer.error, transfer.failed_offset, extent.bytes, site)
          .with("index", done.index);
    }
    checksum.add({transfer.memory, transfer.bytes});
    read_bytes += transfer.bytes;
    if (!done.is_last) return {};
    if (std::exchange(checksum, {}).get() == extent.checksum) return {};
    const std::lock_guard lock(mutex_);
    ++statistics_.failed_reads;
    return failed(
               "{bytes} in the spill file in '{path}' are not what was written there: the {what} "
               "differs. The disk, or somebody with its file, has changed them.",
               "checksum", 0, extent.bytes, site)
        .with("offset", extent.offset)
        .with("index", done.index);
  };
  for (std::size_t index = 0; index < extents.size(); ++index) {
    const SpillExtent& extent = extents[index];
    for (std::size_t done = 0; done < extent.bytes;) {
      const std::size_t now = std::min(part_bytes, extent.bytes - done);
      if (window.is_full()) {
        if (Result<void> right = check_oldest(); !right) return right;
      }
      window.begin({.transfer = {.file = transfers_.get(),
                                 .memory = to[index] + done,
                                 .offset = extent.offset + done,
                                 .bytes = now},
                    .index = index,
                    .is_last = done + now == extent.bytes});
      done += now;
    }
  }
  while (!window.is_empty()) {
    if (Result<void> right = check_oldest(); !right) return right;
  }
  const std::lock_guard lock(mutex_);
  statistics_.read_bytes += read_bytes;
  return {};
}

Result<SpillExtent> SpillFile::try_write(std::span<const std::byte> bytes, CallSite site) noexcept {
  SpillExtent extent;
  if (Result<void> written = try_write_all({&bytes, 1}, {&extent, 1}, site); !written) {
    return written.failure();
  }
  return extent;
}

Result<void> SpillFile::try_read(const SpillExtent& extent, std::byte* to, CallSite site) noexcept {
  return try_read_all({&extent, 1}, {&to, 1}, site);
}

void SpillFile::release(const SpillExtent& extent) noexcept {
  // A forked child shares the file with its parent, whose bytes must stay.
  if (extent.bytes == 0 || !check_not_forked(process_)) return;
  give_back(extent.offset, checked_round_up(extent.bytes, block_bytes).value_or(extent.bytes));
}

}  // namespace tern
