#include "trace/slabs.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "tern/detail/core/mutex.hpp"
#include "trace/recording.hpp"

namespace tern::trace {
namespace {

static_assert(std::endian::native == std::endian::little, "events are written as they are");

std::uint64_t unix_ns() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

FileHeader new_header() noexcept {
  FileHeader header;
  header.magic = file_magic;
  header.version = file_version;
  header.header_bytes = file_header_bytes;
  header.slab_bytes = slab_bytes;
  header.event_bytes = sizeof(MemoryEvent);
  header.start_ns = now_ns();
  header.start_unix_ns = unix_ns();
  header.process = static_cast<std::uint32_t>(getpid());
  const int file = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t got = ::read(file, header.program, sizeof header.program - 1);
    if (got > 0 && header.program[got - 1] == '\n') header.program[got - 1] = '\0';
    ::close(file);
  }
  return header;
}

/// Slabs in a file, mapped one by one.
class FileSlabs final : public SlabStore {
 public:
  static Result<std::unique_ptr<SlabStore>> try_open(const std::string& path) {
    auto store = std::make_unique<FileSlabs>();
    if (Result<void> opened = store->try_create(path); !opened) return opened.failure();
    const FileLimitSignal blocked;
    const int file = store->file_;
    if (const int code = allocate_file(file, 0, file_header_bytes); code != 0) {
      return file_failure(path, "posix_fallocate", code);
    }
    void* const page =
        mmap(nullptr, file_header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) return file_failure(path, "mmap", errno);
    store->header_ = static_cast<FileHeader*>(page);
    *store->header_ = new_header();
    return std::unique_ptr<SlabStore>(std::move(store));
  }
  ~FileSlabs() override {
    if (header_ != nullptr) munmap(header_, file_header_bytes);
    if (file_ >= 0) ::close(file_);
  }

  std::optional<Slab> claim(SlabKind kind, std::uint32_t thread) noexcept override {
    // Held once in 4095 events, so that stop() can close the file.
    const std::lock_guard lock(file_mutex_);
    if (file_ < 0) return std::nullopt;
    const std::uint64_t number = next_;
    const auto offset = static_cast<off_t>(file_header_bytes + number * slab_bytes);
    const FileLimitSignal blocked;
    // A write to a page that the disk has no room for would end the process.
    if (allocate_file(file_, offset, slab_bytes) != 0) return std::nullopt;
    void* const memory =
        mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, offset);
    if (memory == MAP_FAILED) return std::nullopt;
    ++next_;
    const Slab slab(static_cast<std::byte*>(memory));
    slab.begin(kind, thread, number + 1);
    return slab;
  }
  void release(Slab slab) noexcept override { munmap(slab.memory(), slab_bytes); }
  void note_lost(std::uint64_t events) noexcept override {
    std::atomic_ref(header_->lost_events).fetch_add(events, std::memory_order_relaxed);
  }
  std::uint64_t lost() const noexcept override {
    return std::atomic_ref(header_->lost_events).load(std::memory_order_relaxed);
  }
  void close() noexcept override {
    std::atomic_ref(header_->is_closed).store(1, std::memory_order_release);
    const std::lock_guard lock(file_mutex_);
    // Mappings keep the lock of a file that is closed.
    flock(file_, LOCK_UN);
    ::close(std::exchange(file_, -1));
  }

 private:
  /// Creates the file and locks it. An older file is replaced and not truncated: a thread may still
  /// be writing to its pages.
  Result<void> try_create(const std::string& path) {
    for (;;) {
      file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file_ < 0) return file_failure(path, "open", errno);
      if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return file_failure(path, "flock", errno);
        return Failure(ErrorCode::invalid_argument,
                       "another recording writes to '{value}'. Choose another path, for example "
                       "with %p, which stands for the process id.")
            .with("name", "path")
            .with("value", path);
      }
      struct stat now = {};
      if (fstat(file_, &now) != 0) return file_failure(path, "fstat", errno);
      if (now.st_size == 0) return {};
      if (!S_ISREG(now.st_mode) || unlink(path.c_str()) != 0) {
        return file_failure(path, "unlink", errno);
      }
      ::close(std::exchange(file_, -1));
    }
  }
  /// Returns the error code. A profiler interrupts such calls with its signals.
  static int allocate_file(int file, off_t offset, std::size_t bytes) noexcept {
    int code = EINTR;
    while (code == EINTR) code = posix_fallocate(file, offset, static_cast<off_t>(bytes));
    return code;
  }

  Mutex file_mutex_;
  int file_ = -1;           // guarded by file_mutex_; -1 after close()
  std::uint64_t next_ = 0;  // guarded by file_mutex_
  FileHeader* header_ = nullptr;
};

/// Slabs in memory. A new slab replaces the oldest that no thread is writing to. Definitions are
/// never replaced.
class RingSlabs final : public SlabStore {
 public:
  static Result<std::unique_ptr<SlabStore>> try_make(std::size_t bytes) {
    const std::size_t count = bytes / slab_bytes;
    void* const memory = mmap(nullptr, count * slab_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return no_host_memory(bytes, "the ring of a recording");
    return std::unique_ptr<SlabStore>(
        std::make_unique<RingSlabs>(static_cast<std::byte*>(memory), count));
  }
  RingSlabs(std::byte* memory, std::size_t count)
      : memory_(memory), count_(count), is_taken_(count), header_(new_header()) {}
  ~RingSlabs() override { munmap(memory_, count_ * slab_bytes); }

  std::optional<Slab> claim(SlabKind kind, std::uint32_t thread) noexcept override {
    if (kind == SlabKind::definitions) return claim_definitions(thread);
    for (std::size_t tries = 0; tries < count_; ++tries) {
      const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
      const std::size_t at = number % count_;
      if (is_taken_[at].exchange(true, std::memory_order_acquire)) continue;
      const Slab slab(memory_ + at * slab_bytes);
      if (number >= count_) replaced_.fetch_add(slab.used().load(std::memory_order_relaxed));
      // A slab of number 0 would look like one that was never used.
      slab.begin(kind, thread, number + 1);
      return slab;
    }
    return std::nullopt;
  }
  void release(Slab slab) noexcept override {
    if (slab.header().kind == SlabKind::definitions) return;
    is_taken_[static_cast<std::size_t>(slab.memory() - memory_) / slab_bytes].store(
        false, std::memory_order_release);
  }
  void note_lost(std::uint64_t events) noexcept override {
    lost_.fetch_add(events, std::memory_order_relaxed);
  }
  std::uint64_t lost() const noexcept override { return lost_.load(std::memory_order_relaxed); }
  /// Returns the memory to the system. A thread that is writing an event gets a new page.
  void close() noexcept override { madvise(memory_, count_ * slab_bytes, MADV_DONTNEED); }

  bool is_ring() const noexcept override { return true; }
  Result<void> try_dump(const std::string& path) override {
    std::vector<std::byte> copy(slab_bytes);
    std::vector<std::byte*> slabs;
    for (std::size_t i = 0; i < count_; ++i) slabs.push_back(memory_ + i * slab_bytes);
    std::ranges::sort(slabs, {}, [](std::byte* memory) {
      return Slab(memory).order().load(std::memory_order_acquire);
    });
    const std::string unfinished = path + "." + std::to_string(getpid()) + ".tmp";
    const int file = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return file_failure(unfinished, "open", errno);
    const FileLimitSignal blocked;
    FileHeader header = header_;
    header.is_closed = 1;
    header.lost_events = lost() + replaced_.load(std::memory_order_relaxed);
    std::memcpy(copy.data(), &header, sizeof header);
    bool is_written = write_all(file, copy.data(), file_header_bytes);
    for (std::size_t i = 0; is_written && i < slabs.size(); ++i) {
      if (copy_slab(Slab(slabs[i]), copy.data())) {
        is_written = write_all(file, copy.data(), slab_bytes);
      }
    }
    // Last, so that everything that the events name is among them.
    const std::size_t texts = texts_count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; is_written && i < texts; ++i) {
      if (copy_slab(Slab(texts_[i].load(std::memory_order_acquire)), copy.data())) {
        is_written = write_all(file, copy.data(), slab_bytes);
      }
    }
    const int code = errno;
    ::close(file);
    if (is_written && ::rename(unfinished.c_str(), path.c_str()) == 0) return {};
    const Failure failure =
        is_written ? file_failure(path, "rename", errno) : file_failure(unfinished, "write", code);
    ::unlink(unfinished.c_str());
    return failure;
  }

 private:
  std::optional<Slab> claim_definitions(std::uint32_t thread) noexcept {
    // The recording holds a lock while it defines.
    const std::size_t at = texts_count_.load(std::memory_order_relaxed);
    if (at == texts_.size()) return std::nullopt;
    void* const memory =
        mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return std::nullopt;
    const Slab slab(static_cast<std::byte*>(memory));
    slab.begin(SlabKind::definitions, thread, at + 1);
    texts_[at].store(slab.memory(), std::memory_order_release);
    texts_count_.store(at + 1, std::memory_order_release);
    return slab;
  }
  static bool write_all(int file, const std::byte* from, std::size_t bytes) noexcept {
    while (bytes > 0) {
      const ssize_t put = ::write(file, from, bytes);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return false;
      from += put;
      bytes -= static_cast<std::size_t>(put);
    }
    return true;
  }
  /// Copies what the slab holds now. Returns false if it is empty or was replaced meanwhile.
  static bool copy_slab(Slab slab, std::byte* to) noexcept {
    const std::uint64_t order = slab.order().load(std::memory_order_acquire);
    const std::uint64_t used = slab.used().load(std::memory_order_acquire);
    if (order == 0 || used == 0) return false;
    SlabHeader header;
    header.kind = std::atomic_ref(slab.header().kind).load(std::memory_order_relaxed);
    header.thread = std::atomic_ref(slab.header().thread).load(std::memory_order_relaxed);
    header.order = order;
    header.used = used;
    std::memset(to, 0, slab_bytes);
    std::memcpy(to, &header, sizeof header);
    // Only what `used` covers is written no more.
    const std::size_t bytes =
        header.kind == SlabKind::events ? used * sizeof(MemoryEvent) : std::size_t{used};
    if (bytes > slab_text_bytes) return false;  // replaced by another kind meanwhile
    auto* const from = reinterpret_cast<std::uint64_t*>(slab.contents());
    for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
      const std::uint64_t word = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
      std::memcpy(to + sizeof header + i * sizeof word, &word, sizeof word);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return slab.order().load(std::memory_order_relaxed) == order;
  }

  std::byte* const memory_;
  const std::size_t count_;
  std::vector<std::atomic<bool>> is_taken_;
  const FileHeader header_;
  std::array<std::atomic<std::byte*>, 1024> texts_ = {};  // slabs of definitions
  std::atomic<std::size_t> texts_count_ = 0;
  std::atomic<std::uint64_t> next_ = 0, lost_ = 0, replaced_ = 0;
};

}  // namespace

Result<std::unique_ptr<SlabStore>> try_open_slabs(const std::string& path) {
  return FileSlabs::try_open(path);
}

Result<std::unique_ptr<SlabStore>> try_make_ring(std::size_t bytes) {
  return RingSlabs::try_make(bytes);
}

}  // namespace tern::trace
