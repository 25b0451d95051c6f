// Opening, reading and mapping files as storages.

#include "tern/buffer/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "buffer/file_mapping.hpp"
#include "buffer/file_transfers.hpp"
#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "core/text.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/core/mutex.hpp"

namespace tern {
namespace {

/// The alignment that host resources use.
constexpr std::size_t host_alignment = 64;
/// Upper bound on the bytes per read call; between two calls a read can be interrupted.
constexpr std::size_t max_at_once = std::size_t{1} << 30;

/// Reading in parts needs less memory, so the advice differs from no_host_memory().
Failure no_memory_for_file(std::size_t bytes, CallSite site) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate {requested} to read a file. Copy the file in parts, "
                 "or map it.",
                 site)
      .with_bytes("requested", bytes);
}

class OpenFile {
 public:
  OpenFile() noexcept = default;
  explicit OpenFile(int number) noexcept : number_(number) {}
  OpenFile(OpenFile&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~OpenFile() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const noexcept { return number_; }

 private:
  int number_ = -1;
};

class FileOrigin final : public StorageOrigin {
 public:
  FileOrigin(std::string_view path, const FileOptions& options)
      : path_(path), what_("file '" + path_ + "'"), offset_(options.offset_bytes) {
    is_mapped_ = options.map;
    is_writable_ = options.writable || options.create;
    is_created_ = options.create;
  }

  /// Opens the file and checks that it contains the range. Call once, before anything else.
  [[nodiscard]] Result<std::size_t> try_open(const std::optional<std::size_t>& bytes,
                                             CallSite site) noexcept {
    // Do not block on a pipe without a writer, and do not acquire a controlling terminal.
    const int flags = (is_writable_ ? O_RDWR : O_RDONLY) | (is_created_ ? O_CREAT : 0) | O_CLOEXEC |
                      O_NONBLOCK | O_NOCTTY | O_LARGEFILE;
    int number = -1;
    do {
      number = ::open(path_.c_str(), flags, 0666);
    } while (number < 0 && errno == EINTR);
    if (number < 0) return file_failure(path_, "open", errno, site);
    file_ = OpenFile(number);
    Result<std::size_t> there = try_length(site);
    if (!there) return there;
    // A regular file has nothing to wait for, and io_uring would refuse to wait.
    ::fcntl(number, F_SETFL, flags & ~(O_NONBLOCK | O_CREAT));
    if (is_created_ && !is_within(offset_, *bytes, *there)) {
      if (Result<void> extended = try_extend(*there, *bytes, site); !extended) {
        return extended.failure();
      }
      there = try_length(site);
      if (!there) return there;
    }
    const std::size_t rest = offset_ <= *there ? *there - offset_ : 0;
    bytes_ = bytes.value_or(rest);
    if (!is_within(offset_, bytes_, *there)) {
      return file_too_short(path_, offset_, bytes_, *there, "fstat", site);
    }
    return bytes_;
  }

  [[nodiscard]] const char* what() const noexcept override { return what_.c_str(); }
  [[nodiscard]] bool is_read_only() const noexcept override { return !is_writable_; }
  [[nodiscard]] bool is_writable_file() const noexcept override { return is_writable_; }

  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    if (bytes_ == 0) return Memory{};
    if (is_mapped_ || is_writable_) return try_map(site);
    std::unique_ptr<std::byte[], Free> memory(new (std::align_val_t(host_alignment), std::nothrow)
                                                  std::byte[bytes_]);
    if (!memory) return no_memory_for_file(bytes_, site);
    if (Result<void> read = try_read(0, bytes_, memory.get(), site); !read) return read.failure();
    memory_ = std::move(memory);
    return Memory{nullptr, memory_.get(), bytes_};
  }

  /// Bytes that were read stay valid. A mapping depends on the current length of the file.
  [[nodiscard]] Result<void> try_access(CallSite site) noexcept override {
    return mapping_ ? check_length(0, bytes_, "mmap", site) : Result<void>();
  }

  [[nodiscard]] bool try_end() noexcept override { return true; }

  [[nodiscard]] Result<void> try_read(std::size_t offset, std::size_t bytes, void* to,
                                      CallSite site) noexcept override {
    if (!is_within(offset, bytes, bytes_)) {
      return Failure(ErrorCode::invalid_view, nullptr, site)
          .with("offset", offset)
          .with("size", bytes)
          .with("extent", bytes_);
    }
    if (bytes == 0) return {};
    const Result<FileRange> file = try_file(offset, bytes, site);
    if (!file) return file.failure();
    if (bytes >= FileTransfers::min_direct_bytes) {
      FileTransfer transfer{.file = file->file,
                            .memory = static_cast<std::byte*>(to),
                            .offset = offset_ + offset,
                            .bytes = bytes};
      FileTransfers::instance().submit(transfer);
      FileTransfers::instance().wait(transfer);
      return transfer.result(site);
    }
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got =
          ::pread(file_.get(), static_cast<std::byte*>(to) + done,
                  std::min(bytes - done, max_at_once), static_cast<off_t>(offset_ + offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return file_failure(path_, "pread", errno, site);
      // The file was truncated after its length was checked.
      if (got == 0) {
        return file_too_short(path_, offset_ + offset, bytes, offset_ + offset + done, "pread",
                              site);
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

  [[nodiscard]] Result<FileRange> try_file(std::size_t offset, std::size_t bytes,
                                           CallSite site) noexcept override {
    if (bytes != 0) {
      if (Result<void> there = check_length(offset, bytes, "pread", site); !there) {
        return there.failure();
      }
    }
    const std::lock_guard lock(mutex_);
    if (!transfers_) {
      try {
        transfers_.emplace(file_.get(), path_,
                           bytes_ >= FileTransfers::min_direct_bytes
                               ? TransferFile::Direct::if_possible
                               : TransferFile::Direct::never,
                           is_writable_);
      } catch (const std::bad_alloc&) {
        return no_host_memory("an open file", site);
      }
      if (mapping_ && is_writable_) transfers_->stop_direct();
    }
    return FileRange{&*transfers_, offset_};
  }

  [[nodiscard]] Result<void> try_flush(CallSite site) noexcept override {
    if (!is_writable_) return {};
    if (const int error = mapping_.sync(); error != 0) {
      return file_failure(path_, "msync", error, site);
    }
    while (::fdatasync(file_.get()) != 0) {
      if (errno != EINTR) return file_failure(path_, "fdatasync", errno, site);
    }
    return {};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept {
      ::operator delete[](memory, std::align_val_t(host_alignment));
    }
  };

  /// Makes the file longer, up to the end of the range.
  [[nodiscard]] Result<void> try_extend(std::size_t length, std::size_t bytes,
                                        CallSite site) noexcept {
    const std::optional<std::size_t> end = checked_add(offset_, bytes);
    if (!end || *end > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
      return file_failure(path_, "fallocate", EFBIG, site);
    }
    const auto from = static_cast<off_t>(length), to = static_cast<off_t>(*end);
    const FileLimitSignal blocked;
    int error = 0;
    do {
      error = ::fallocate(file_.get(), 0, from, to - from) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0) return {};
    if (error != EOPNOTSUPP && error != ENOSYS) {
      return file_failure(path_, "fallocate", error, site);
    }
    // The file system allocates disk space when it is written.
    if (::ftruncate(file_.get(), to) == 0) return {};
    return file_failure(path_, "ftruncate", errno, site);
  }

  [[nodiscard]] Result<std::size_t> try_length(CallSite site) const noexcept {
    struct stat facts = {};
    if (::fstat(file_.get(), &facts) != 0) return file_failure(path_, "fstat", errno, site);
    if (S_ISDIR(facts.st_mode)) return file_failure(path_, "open", EISDIR, site);
    if (!S_ISREG(facts.st_mode)) {
      return Failure(ErrorCode::file,
                     "'{path}' is {why} and has no length. Copy the data to a regular file first.",
                     site)
          .with("call", "open")
          .with("os_code", static_cast<std::uint64_t>(EINVAL))
          .with("why", "not a regular file")
          .with("path", path_);
    }
    return static_cast<std::size_t>(facts.st_size);
  }

  [[nodiscard]] Result<void> check_length(std::size_t offset, std::size_t bytes, const char* call,
                                          CallSite site) const noexcept {
    const Result<std::size_t> there = try_length(site);
    if (!there) return there.failure();
    const bool is_there = is_within(offset_ + offset, bytes, *there);
    // A mapping that was truncated keeps showing zeros, even after the file has grown again.
    if (is_there && mapping_.is_cut()) {
      return Failure(ErrorCode::file,
                     "file '{path}' was truncated while it was mapped, and has grown again. The "
                     "mapping has lost bytes. Open the file again.",
                     site)
          .with("call", call)
          .with("os_code", std::uint64_t{0})
          .with("why", "the file was truncated and has grown again")
          .with("wanted", bytes)
          .with("there", *there)
          .with("path", path_);
    }
    if (!is_there) return file_too_short(path_, offset_ + offset, bytes, *there, call, site);
    return {};
  }

  [[nodiscard]] Result<Memory> try_map(CallSite site) noexcept {
    const std::lock_guard lock(mutex_);
    // Transfers go through the page cache from now on, which the mapping shows.
    if (transfers_ && is_writable_) transfers_->stop_direct();
    const FileMapping::Refusal refused =
        mapping_.try_map(file_.get(), offset_, bytes_,
                         is_writable_ ? FileMapping::Writes::to_file : FileMapping::Writes::none);
    if (refused.call != nullptr && refused.os_code == 0) return no_memory_for_file(bytes_, site);
    if (refused.call != nullptr) return file_failure(path_, refused.call, refused.os_code, site);
    return Memory{nullptr, mapping_.address(), bytes_};
  }

  const std::string path_;
  const std::string what_;
  const std::size_t offset_;
  std::size_t bytes_ = 0;
  bool is_mapped_ = false, is_writable_ = false, is_created_ = false;
  OpenFile file_;
  std::unique_ptr<std::byte[], Free> memory_;
  FileMapping mapping_;
  Mutex mutex_;
  std::optional<TransferFile> transfers_;  // guarded by mutex_ until it is made; uses file_
};

Result<Buffer> try_open(std::string_view path, const FileOptions& options) {
  const CallSite site = options.site;
  const std::size_t width = size_bytes(options.dtype);
  if (width == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a file cannot be viewed as elements of type {value}, which have no size. Use "
                   "another type.",
                   site)
        .with("name", "dtype")
        .with("value", name(options.dtype));
  }
  if (options.create && !options.bytes) {
    return Failure(ErrorCode::invalid_argument,
                   "file '{path}' cannot be created without a number of {name}. Set {name} to the "
                   "size of the range.",
                   site)
        .with("name", "bytes")
        .with("path", path);
  }
  auto origin = std::make_unique<FileOrigin>(path, options);
  const Result<std::size_t> bytes = origin->try_open(options.bytes, site);
  if (!bytes) return bytes.failure();
  if (*bytes % width != 0) {
    return Failure(ErrorCode::size_mismatch,
                   "{actual} bytes of file '{path}' are not a whole number of {dtype} elements of "
                   "{expected} bytes. Use a range that is a multiple of the element size.",
                   site)
        .with("expected", width)
        .with("actual", *bytes)
        .with("dtype", name(options.dtype))
        .with("path", path);
  }
  Result<StorageHandle> storage =
      Storage::try_make(Device(), *bytes, MemoryKind::file, std::move(origin),
                        {.tag = options.tag, .checked = options.checked, .site = site});
  if (!storage) return storage.failure();
  const bool is_writable = options.writable || options.create;
  const std::size_t alignment = alignment_bytes(options.dtype);
  if (is_writable && options.offset_bytes % alignment != 0) {
    return Failure(ErrorCode::misaligned,
                   "{dtype} needs an alignment of {required} bytes, and a writable range of file "
                   "'{path}' cannot begin at offset {offset}. Use a multiple of the alignment.",
                   site)
        .with("offset", options.offset_bytes)
        .with("required", alignment)
        .with("dtype", name(options.dtype))
        .with("path", path);
  }
  if (options.map) {
    // Map now, because the address decides which dtypes are aligned.
    if (Result<void> mapped = (*storage)->try_ensure({}, site); !mapped) return mapped.failure();
  }
  return Buffer::try_over(*std::move(storage), 0, Shape{*bytes / width}, options.dtype, site);
}

}  // namespace

Result<void> try_flush(const Buffer& file, CallSite site) noexcept {
  if (!file) {
    return Failure(ErrorCode::not_allocated,
                   "an empty buffer cannot be flushed: it was default-constructed or moved from. "
                   "Open a file.",
                   site)
        .with("id", std::uint64_t{0});
  }
  Storage& storage = *file.storage();
  if (storage.origin() == nullptr) {
    return Failure(ErrorCode::unsupported, "buffer {id} is not a file and cannot be flushed.", site)
        .with("id", storage.id().value);
  }
  if (Result<void> done = storage.uses().try_wait(Access::discard, site); !done) {
    return Failure(done.failure()).at(site);
  }
  if (Result<void> arrived = storage.check_arrived(0, storage.bytes(), site); !arrived) {
    return arrived;
  }
  return storage.origin()->try_flush(site);
}

Result<Buffer> try_open_file(std::string_view path, const FileOptions& options) noexcept try {
  if (path.find('\0') != path.npos) {
    return Failure(ErrorCode::invalid_argument,
                   "the path of a file cannot contain a zero byte: '{value}'.", options.site)
        .with("name", "path")
        .with("value", path.substr(0, path.find('\0')));
  }
  return try_open(path, options);
} catch (const std::bad_alloc&) {
  return no_host_memory("an open file", options.site);
}

Result<Buffer> try_open_disk(std::string_view spec, const FileOptions& options) noexcept {
  constexpr std::string_view name = "disk:";
  const bool is_disk =
      spec.size() > name.size() && equals_ignoring_case(spec.substr(0, name.size()), name);
  if (is_disk) return try_open_file(spec.substr(name.size()), options);
  return Failure(ErrorCode::invalid_device,
                 "'{spec}' does not name a file. Write a spec such as disk:/data/a.bin.",
                 options.site)
      .with("spec", spec);
}

}  // namespace tern
