// Slabs in a file, mapped one by one.
//
// To map a slab takes the time of thousands of events, because the kernel has to provide its pages.
// A thread of the recording does this ahead of time. A thread that finds no slab ready maps one
// itself, and from then on more are kept ready.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/fork_count.hpp"
#include "core/process.hpp"
#include "trace/slabs.hpp"

namespace tern::trace {
namespace {

constexpr std::size_t page_bytes = 4096;

/// A slab that is mapped and has no owner.
struct MappedSlab {
  std::byte* memory = nullptr;
  std::uint64_t number = 0;  // its place in the file
};

/// First in, first out. Does not allocate.
class SlabQueue {
 public:
  static constexpr std::size_t capacity = 64;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  void push(MappedSlab slab) noexcept { slabs_[(first_ + size_++) % capacity] = slab; }
  [[nodiscard]] MappedSlab pop() noexcept {
    --size_;
    return slabs_[std::exchange(first_, (first_ + 1) % capacity)];
  }

 private:
  std::array<MappedSlab, capacity> slabs_ = {};
  std::size_t first_ = 0, size_ = 0;
};

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
    store->start_helper();
    return std::unique_ptr<SlabStore>(std::move(store));
  }
  ~FileSlabs() override {
    if (helper_.joinable()) close();
    if (header_ != nullptr) munmap(header_, file_header_bytes);
    if (file_ >= 0) ::close(file_);
  }

  std::optional<Slab> claim(SlabKind kind, std::uint32_t thread) noexcept override {
    std::unique_lock lock(mutex_);
    if (is_closed_) return std::nullopt;
    if (ready_.size() == 0) {
      wanted_ = std::min(2 * wanted_, SlabQueue::capacity);
      const std::uint64_t number = next_++;
      if (std::byte* const memory = try_map(number)) {
        ready_.push({memory, number});
      } else {
        give_back(number);
        // The helper may be mapping the last slab that the disk has room for.
        helped_.wait(lock, [this] { return !is_helping_; });
        if (is_closed_) return std::nullopt;
      }
    }
    changed_.notify_one();
    if (ready_.size() == 0) return std::nullopt;
    const MappedSlab mapped = ready_.pop();
    end_ = std::max(end_, mapped.number + 1);
    const std::uint64_t order = ++claims_;
    lock.unlock();
    const Slab slab(mapped.memory);
    slab.begin(kind, thread, order);
    return slab;
  }
  void release(Slab slab) noexcept override {
    // A child of a fork has no helper, and may have a lock that nobody unlocks.
    if (is_same_process(process_)) {
      const std::lock_guard lock(mutex_);
      if (!is_closed_ && written_.size() < SlabQueue::capacity)
        return written_.push({slab.memory()});
    }
    munmap(slab.memory(), slab_bytes);
  }
  void note_lost(std::uint64_t events) noexcept override {
    std::atomic_ref(header_->lost_events).fetch_add(events, std::memory_order_relaxed);
  }
  std::uint64_t lost() const noexcept override {
    return std::atomic_ref(header_->lost_events).load(std::memory_order_relaxed);
  }
  void close() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_one();
    if (helper_.joinable()) helper_.join();
    while (ready_.size() != 0) munmap(ready_.pop().memory, slab_bytes);
    while (written_.size() != 0) munmap(written_.pop().memory, slab_bytes);
    // Removes slabs that nobody claimed. A longer file is correct, too.
    static_cast<void>(!ftruncate(file_, offset_of(end_)));
    header_->slab_count = end_;
    std::atomic_ref(header_->is_closed).store(1, std::memory_order_release);
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
  static off_t offset_of(std::uint64_t number) noexcept {
    return static_cast<off_t>(file_header_bytes + number * slab_bytes);
  }
  /// Maps a slab of the file, or returns null.
  [[nodiscard]] std::byte* try_map(std::uint64_t number) const noexcept {
    const FileLimitSignal blocked;
    // A write to a page that the disk has no room for would end the process.
    if (allocate_file(file_, offset_of(number), slab_bytes) != 0) return nullptr;
    void* const memory =
        mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset_of(number));
    if (memory == MAP_FAILED) return nullptr;
    auto* const bytes = static_cast<std::byte*>(memory);
    // The first write to each page is slow. MAP_POPULATE only reads pages of files.
    for (std::size_t at = 0; at < slab_bytes; at += page_bytes) {
      *reinterpret_cast<volatile std::uint64_t*>(bytes + at) = 0;
    }
    return bytes;
  }
  /// Call with the lock held, for a number that could not be mapped. The file would grow without
  /// bound on a full disk, because a gap has a size.
  void give_back(std::uint64_t number) noexcept {
    if (next_ == number + 1) --next_;
  }

  void start_helper() noexcept try {
    // Handlers of the program's signals run on the program's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      helper_ = std::thread([this] { help(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (...) {
    // Without the helper, threads map their slabs themselves.
  }
  void help() noexcept {
    std::unique_lock lock(mutex_);
    while (!is_closed_) {
      if (written_.size() != 0) {
        const MappedSlab slab = written_.pop();
        lock.unlock();
        munmap(slab.memory, slab_bytes);
        lock.lock();
      } else if (ready_.size() < wanted_) {
        const std::uint64_t number = next_++;
        is_helping_ = true;
        lock.unlock();
        std::byte* const memory = try_map(number);
        lock.lock();
        is_helping_ = false;
        helped_.notify_all();
        if (memory != nullptr) {
          ready_.push({memory, number});
        } else {
          give_back(number);
          if (!is_closed_) changed_.wait(lock);  // until the next attempt of a thread
        }
      } else {
        changed_.wait(lock);
      }
    }
  }

  const std::uint64_t process_ = process_generation();
  int file_ = -1;
  FileHeader* header_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_, helped_;
  // Guarded by mutex_, until the helper has ended:
  SlabQueue ready_, written_;
  std::size_t wanted_ = 1;  // how many should be ready
  std::uint64_t next_ = 0;  // number of the next slab to map
  std::uint64_t end_ = 0;   // one more than the highest number that was claimed
  std::uint64_t claims_ = 0;
  bool is_helping_ = false;  // the helper maps a slab
  bool is_closed_ = false;
  std::thread helper_;
};

}  // namespace

Result<std::unique_ptr<SlabStore>> try_open_slabs(const std::string& path) {
  return FileSlabs::try_open(path);
}

}  // namespace tern::trace
