// Splits transfers into pieces, and performs the pieces on an io_uring or on threads.

#include "buffer/file_transfers.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/process.hpp"

namespace tern {
namespace {

/// Names the read of the event that wakes the thread of the ring; the other numbers are slots.
constexpr std::uint64_t wake_number = ~std::uint64_t{0};

/// Reads of at least this size from the page cache are copied by several threads.
constexpr std::size_t min_copy_bytes = 256 * kib;

/// Threads that are started while this object exists receive no signals: those of the program are
/// for its own threads, and a write beyond the file size limit only fails.
class NoSignals {
 public:
  NoSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// The call cachestat of Linux 6.5, which the headers of older systems do not have.
struct CachedRange {
  std::uint64_t offset = 0, bytes = 0;
};
struct CacheState {
  std::uint64_t cached_pages = 0, dirty = 0, written_back = 0, evicted = 0, recently_evicted = 0;
};

/// Returns how many bytes of the range the page cache has, in whole pages, or nothing if the kernel
/// does not tell. A read without a wait (RWF_NOWAIT) would tell, too, but starts to read ahead.
std::optional<std::size_t> find_cached_bytes(int file, std::size_t offset,
                                             std::size_t bytes) noexcept {
  constexpr long cachestat = 451;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const CachedRange range{offset, bytes};
  CacheState state;
  if (::syscall(cachestat, file, &range, &state, 0) != 0) return std::nullopt;
  return state.cached_pages * page;
}

bool is_aligned(std::size_t value) noexcept { return value % FileTransfers::direct_alignment == 0; }
bool is_aligned(const std::byte* address) noexcept {
  return is_aligned(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

// --- Files and outcomes

TransferFile::TransferFile(int number, std::string path, Direct direct, bool is_writable)
    : number_(number), path_(std::move(path)) {
  if (direct == Direct::never) return;
  // The name in /proc opens the file itself, even if it has no other name any more.
  char name[32] = "/proc/self/fd/";
  char* end = name + sizeof("/proc/self/fd/") - 1;
  const std::string digits = std::to_string(number);
  *std::copy(digits.begin(), digits.end(), end) = '\0';
  direct_ = ::open(name, (is_writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC | O_LARGEFILE);
}

TransferFile::~TransferFile() {
  if (direct_ >= 0) ::close(direct_);
}

Result<void> FileTransfer::result(CallSite site) const noexcept {
  if (error == 0) return {};
  if (error == end_of_file) {
    return file_too_short(file->path(), offset, bytes, failed_offset, "pread", site);
  }
  const Failure known = file_failure(file->path(), is_write ? "pwrite" : "pread", error, site);
  Failure failure(ErrorCode::file,
                  is_write
                      ? "{requested} could not be written to file '{path}' at offset {offset}: "
                        "{call} failed at offset {failed_offset} ({why}). Bytes of the file "
                        "from offset {offset} on may have changed."
                      : "{requested} could not be read from file '{path}' at offset {offset}: "
                        "{call} failed at offset {failed_offset} ({why}). The destination has "
                        "unspecified bytes.",
                  site);
  return failure.with("call", known.string("call").value_or(""))
      .with("os_code", static_cast<std::uint64_t>(error))
      .with_bytes("requested", bytes)
      .with("offset", offset)
      .with("failed_offset", failed_offset)
      .with("why", known.string("why").value_or(""))
      .with("path", file->path());
}

// --- The queue

FileTransfers& FileTransfers::instance() noexcept {
  // Never destroyed, because transfers may outlast main(). A forked child constructs an instance
  // over the copy of its parent's, whose threads it does not have.
  alignas(FileTransfers) static std::byte memory[sizeof(FileTransfers)];
  static constinit std::atomic<std::uint64_t> state = 0;
  const std::uint64_t making = 2 * process_generation() + 1, made = making + 1;
  for (;;) {
    std::uint64_t now = state.load(std::memory_order_acquire);
    if (now == made) break;
    if (now == making || !state.compare_exchange_strong(now, making)) {
      std::this_thread::yield();
      continue;
    }
    ::new (static_cast<void*>(memory)) FileTransfers();
    state.store(made, std::memory_order_release);
  }
  return *std::launder(reinterpret_cast<FileTransfers*>(memory));
}

FileTransfers::~FileTransfers() {
  {
    std::unique_lock lock(mutex_);
    is_done_.wait(lock, [this] { return transfers_ == 0; });
    is_stopping_ = true;
    wake_threads();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  if (wake_ >= 0) ::close(wake_);
}

void FileTransfers::start_driver() noexcept {
  if (is_started_) return;
  is_started_ = true;
  const NoSignals silent;
  const auto start = [this](void (FileTransfers::*work)() noexcept) noexcept {
    try {
      threads_[running_] = std::thread(work, this);
      ++running_;
      return true;
    } catch (const std::system_error&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  if (preferred_ == Driver::io_uring) {
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_ >= 0 && ring_.open() == 0 && start(&FileTransfers::work_on_ring)) {
      driver_ = Driver::io_uring;
      return;
    }
    ring_.close();
    if (wake_ >= 0) ::close(std::exchange(wake_, -1));
  }
  while (running_ < thread_count && start(&FileTransfers::work_as_thread)) {
  }
}

FileTransfers::Driver FileTransfers::driver() noexcept {
  const std::lock_guard lock(mutex_);
  start_driver();
  return driver_;
}

void FileTransfers::submit(FileTransfer& transfer) noexcept {
  transfer.error = 0;
  transfer.progress = {};
  std::unique_lock lock(mutex_);
  ++transfers_;
  if (transfer.bytes == 0) {
    // Ends like a transfer whose last piece has ended.
    transfer.progress.pieces_in_flight = 1;
    return end({.transfer = &transfer}, lock);
  }
  start_driver();
  (first_ == nullptr ? first_ : last_->progress.next) = &transfer;
  last_ = &transfer;
  if (running_ == 0) {
    // There is no thread. This one performs what is in the queue.
    const FileLimitSignal blocked;
    for (Piece piece; try_take(piece);) {
      lock.unlock();
      perform(piece);
      lock.lock();
      end(piece, lock);
    }
    return;
  }
  wake_threads();
}

void FileTransfers::wake_threads() noexcept {
  if (wake_ < 0) return has_work_.notify_all();
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_, &one, sizeof one));
}

void FileTransfers::wait(FileTransfer& transfer) noexcept {
  std::unique_lock lock(mutex_);
  is_done_.wait(lock, [&] { return transfer.progress.is_done; });
}

bool FileTransfers::is_done(const FileTransfer& transfer) noexcept {
  const std::lock_guard lock(mutex_);
  return transfer.progress.is_done;
}

bool FileTransfers::try_take(Piece& piece) noexcept {
  if (first_ == nullptr) return false;
  FileTransfer& from = *first_;
  const std::size_t taken = from.progress.taken_bytes, offset = from.offset + taken;
  std::size_t bytes = from.bytes - taken;
  Way way = Way::buffered;
  const bool may_be_direct = from.file->is_direct() && from.bytes >= min_direct_bytes &&
                             is_aligned(from.memory - from.offset % direct_alignment);
  if (may_be_direct && !is_aligned(offset)) {
    bytes = std::min(bytes, direct_alignment - offset % direct_alignment);
  } else if (may_be_direct && bytes >= direct_alignment) {
    bytes -= bytes % direct_alignment;
    way = Way::direct;
  }
  bytes = std::min(bytes, piece_bytes);
  if (!from.is_write && way == Way::direct && from.file->may_ask_cache_.load())
    way = Way::ask_cache;
  piece = {.transfer = &from,
           .offset = offset,
           .memory = from.memory + taken,
           .bytes = bytes,
           .way = way};
  ++from.progress.pieces_in_flight;
  from.progress.taken_bytes += bytes;
  if (from.progress.taken_bytes == from.bytes) unlink(from);
  return true;
}

void FileTransfers::unlink(FileTransfer& transfer) noexcept {
  FileTransfer* before = nullptr;
  for (FileTransfer* one = first_; one != nullptr; before = one, one = one->progress.next) {
    if (one != &transfer) continue;
    (before == nullptr ? first_ : before->progress.next) = one->progress.next;
    if (last_ == one) last_ = before;
    one->progress.next = nullptr;
    return;
  }
}

void FileTransfers::end(const Piece& piece, std::unique_lock<std::mutex>& lock) noexcept {
  FileTransfer& transfer = *piece.transfer;
  --transfer.progress.pieces_in_flight;
  if (piece.error != 0 && transfer.error == 0) {
    transfer.error = piece.error;
    transfer.failed_offset = piece.offset;
    unlink(transfer);
    transfer.progress.taken_bytes = transfer.bytes;
  }
  if (transfer.progress.pieces_in_flight != 0) return;
  if (transfer.progress.taken_bytes != transfer.bytes) return;
  if (transfer.on_done == nullptr) {
    transfer.progress.is_done = true;
  } else {
    lock.unlock();
    transfer.on_done(transfer);  // may end the transfer
    lock.lock();
  }
  --transfers_;
  is_done_.notify_all();
}

// --- One call

void FileTransfers::ask_cache(Piece& piece) noexcept {
  if (piece.way != Way::ask_cache) return;
  TransferFile& file = *piece.transfer->file;
  FileFaults* const faults = faults_.load(std::memory_order_acquire);
  const bool is_refused =
      faults != nullptr &&
      faults->before({.asks_cache = true, .offset = piece.offset, .bytes = piece.bytes}).error != 0;
  const std::optional<std::size_t> cached =
      is_refused ? std::nullopt : find_cached_bytes(file.number_, piece.offset, piece.bytes);
  if (!cached) file.may_ask_cache_.store(false, std::memory_order_relaxed);
  piece.way = cached.value_or(0) >= piece.bytes || !file.is_direct() ? Way::buffered : Way::direct;
}

FileTransfers::Call FileTransfers::next_call(const Piece& piece) noexcept {
  const FileTransfer& transfer = *piece.transfer;
  const bool is_direct = piece.way == Way::direct;
  Call call{.request = {.is_write = transfer.is_write,
                        .file = is_direct ? transfer.file->direct_ : transfer.file->number_,
                        .memory = piece.memory,
                        .bytes = piece.bytes,
                        .offset = piece.offset}};
  if (FileFaults* const faults = faults_.load(std::memory_order_acquire)) {
    const FileFaults::Verdict verdict = faults->before({.is_write = transfer.is_write,
                                                        .is_direct = is_direct,
                                                        .offset = piece.offset,
                                                        .bytes = piece.bytes});
    call.error = verdict.error;
    call.is_at_end = verdict.max_bytes == 0;
    call.request.bytes = std::min(piece.bytes, verdict.max_bytes);
  }
  return call;
}

bool FileTransfers::apply(Piece& piece, long result) noexcept {
  TransferFile& file = *piece.transfer->file;
  if (result > 0) {
    const auto done = static_cast<std::size_t>(result);
    piece.offset += done;
    piece.memory += done;
    piece.bytes -= done;
    if (piece.bytes == 0) return false;
    // The rest of a short transfer may not be aligned.
    if (!is_aligned(done)) piece.way = Way::buffered;
    return true;
  }
  if (result == -EINTR) return true;
  if (piece.way == Way::direct && (result == -EINVAL || result == -EOPNOTSUPP)) {
    // The file system has other rules for direct access, or none.
    file.stop_direct();
    piece.way = Way::buffered;
    return true;
  }
  if (result == -EAGAIN) return true;
  const int nothing = piece.transfer->is_write ? EIO : FileTransfer::end_of_file;
  piece.error = result == 0 ? nothing : static_cast<int>(-result);
  return false;
}

void FileTransfers::perform(Piece& piece) noexcept {
  ask_cache(piece);
  for (long result = 0;;) {
    const Call call = next_call(piece);
    const IoRing::Request& request = call.request;
    const auto offset = static_cast<off_t>(request.offset);
    if (call.error != 0 || call.is_at_end) {
      result = -call.error;
    } else {
      result = request.is_write ? ::pwrite(request.file, request.memory, request.bytes, offset)
                                : ::pread(request.file, request.memory, request.bytes, offset);
      if (result < 0) result = -errno;
    }
    if (!apply(piece, result)) return;
  }
}

// --- The drivers

void FileTransfers::work_as_thread() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    Piece piece;
    while (!try_take(piece)) {
      if (is_stopping_) return;
      has_work_.wait(lock);
    }
    lock.unlock();
    perform(piece);
    lock.lock();
    end(piece, lock);
  }
}

bool FileTransfers::is_over_before_call(Slots& slots, std::size_t slot) noexcept {
  ask_cache(slots[slot]);
  for (;;) {
    Call call = next_call(slots[slot]);
    if (call.error == 0 && !call.is_at_end) {
      call.request.number = slot;
      call.request.is_on_own_thread = !call.request.is_write && slots[slot].way == Way::buffered &&
                                      call.request.bytes >= min_copy_bytes;
      slots[slot].position = ring_.put(call.request);
      return false;
    }
    if (!apply(slots[slot], -call.error)) return true;
  }
}

void FileTransfers::work_on_ring() noexcept {
  Slots slots;
  std::size_t in_flight = 0;
  bool is_wake_queued = false;
  const auto leave = [&](std::size_t slot) {
    std::unique_lock lock(mutex_);
    const Piece piece = std::exchange(slots[slot], {});
    --in_flight;
    end(piece, lock);
  };
  for (;;) {
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot].transfer != nullptr) continue;
      {
        const std::lock_guard lock(mutex_);
        if (!try_take(slots[slot])) {
          if (is_stopping_ && in_flight == 0) return;
          break;
        }
      }
      ++in_flight;
      if (is_over_before_call(slots, slot)) leave(slot);
    }
    if (!is_wake_queued) {
      ring_.put({.file = wake_,
                 .memory = &wake_count_,
                 .bytes = sizeof wake_count_,
                 .number = wake_number});
      is_wake_queued = true;
    }
    const int error = ring_.enter(1);
    ring_.reap([&](std::uint64_t number, long result) {
      if (number == wake_number) {
        is_wake_queued = false;
      } else if (!apply(slots[number], result) || is_over_before_call(slots, number)) {
        leave(number);
      }
    });
    if (error != 0 && error != EAGAIN && error != EBUSY) return leave_ring(slots);
  }
}

void FileTransfers::leave_ring(Slots& slots) noexcept {
  for (Piece& piece : slots) {
    if (piece.transfer == nullptr) continue;
    if (ring_.is_submitted(piece.position)) {
      // The kernel completes it, although it accepts nothing more.
      bool is_over = false;
      while (!is_over) {
        ring_.reap([&](std::uint64_t number, long result) {
          if (number == wake_number) return;
          Piece& one = slots[number];
          if (apply(one, result)) perform(one);
          std::unique_lock lock(mutex_);
          end(std::exchange(one, {}), lock);
        });
        is_over = piece.transfer == nullptr;
        if (!is_over) std::this_thread::yield();
      }
      continue;
    }
    perform(piece);
    std::unique_lock lock(mutex_);
    end(std::exchange(piece, {}), lock);
  }
  {
    const std::lock_guard lock(mutex_);
    ::close(std::exchange(wake_, -1));
    driver_ = Driver::threads;
  }
  work_as_thread();
}

}  // namespace tern
