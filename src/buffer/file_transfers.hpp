// FileTransfers reads and writes ranges of files in the background.
//
//   TransferFile file(descriptor, path, TransferFile::Direct::if_possible);
//   FileTransfer read{.file = &file, .memory = memory, .offset = 4096, .bytes = bytes};
//   FileTransfers& transfers = FileTransfers::instance();
//   transfers.submit(read);                         // returns at once
//   transfers.wait(read);
//   Result<void> done = read.result(site);          // names the file, the offset and the bytes
//
// A transfer is split into pieces of up to 1 MiB. io_uring transfers up to 31 pieces at once. If
// the kernel has no io_uring or does not permit it, four threads transfer one piece each. Both
// drivers behave alike. If no thread can be started, submit() performs the transfer itself.
//
// If the kernel reports that the page cache has a piece (Linux 6.5 or newer), the piece is read
// from the cache. All other pieces bypass the page cache (O_DIRECT) if the file system permits it,
// the transfer has at least 1 MiB, and the offset, the memory and the size of the piece are
// multiples of 4 KiB; unaligned ends are separate pieces. Every other piece goes through the page
// cache. Short reads and writes are continued. A transfer ends early with its first error; pieces
// that were in flight then may still have been transferred.
//
// The caller keeps the transfer, the file and the memory alive until the transfer is done. No call
// allocates memory. Thread-safe. A forked child gets an instance of its own.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <thread>

#include "buffer/io_ring.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"

namespace tern {

/// A regular file and what is known about it.
class TransferFile {
 public:
  enum class Direct : std::uint8_t { never, if_possible };

  TransferFile() noexcept = default;
  /// `number` is an open descriptor that outlives this object. Opens the file a second time,
  /// without the page cache, if `direct` says so and the file system permits it.
  TransferFile(int number, std::string path, Direct direct, bool is_writable = false);
  TransferFile(const TransferFile&) = delete;
  TransferFile& operator=(const TransferFile&) = delete;
  ~TransferFile();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns whether aligned pieces bypass the page cache.
  [[nodiscard]] bool is_direct() const noexcept {
    return direct_ >= 0 && may_be_direct_.load(std::memory_order_relaxed);
  }
  /// From now on, all pieces go through the page cache, for example because the file was mapped.
  void stop_direct() noexcept { may_be_direct_.store(false, std::memory_order_relaxed); }

 private:
  friend class FileTransfers;
  int number_ = -1;
  int direct_ = -1;
  std::string path_;
  std::atomic<bool> may_be_direct_ = true;
  std::atomic<bool> may_ask_cache_ = true;  // the kernel tells what is cached
};

struct FileTransfer {
  TransferFile* file = nullptr;
  std::byte* memory = nullptr;  // not changed by a write
  std::size_t offset = 0;       // in the file
  std::size_t bytes = 0;
  bool is_write = false;
  /// Called once, by the thread that completes the transfer, with no lock held. It must not wait
  /// for another transfer. If there is none, use FileTransfers::wait().
  void (*on_done)(FileTransfer& transfer) noexcept = nullptr;
  void* context = nullptr;  // for on_done

  /// The file ended before the end of a read.
  static constexpr int end_of_file = -1;
  /// 0 after a success, an error number, or end_of_file. Valid once the transfer is done.
  int error = 0;
  std::size_t failed_offset = 0;  // in the file

  /// The state of the transfer, for FileTransfers.
  struct Progress {
    FileTransfer* next = nullptr;
    std::size_t taken_bytes = 0;
    std::size_t pieces_in_flight = 0;
    bool is_done = false;
  };
  Progress progress = {};

  /// Returns the outcome. Fails with file.
  [[nodiscard]] Result<void> result(CallSite site) const noexcept;
};

/// One system call on a file, as FileFaults sees it.
struct FileCall {
  bool is_write = false;
  bool is_direct = false;  // bypasses the page cache
  bool asks_cache = false;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// Decides how calls end, so that tests can make them fail. Called by the threads of the driver,
/// before each call.
class FileFaults {
 public:
  struct Verdict {
    int error = 0;  // if not 0, the call is not made and fails with this error
    std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  // 0: the file has ended
  };
  FileFaults() = default;
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;
  virtual ~FileFaults() = default;
  [[nodiscard]] virtual Verdict before(const FileCall& call) noexcept = 0;
};

class FileTransfers {
 public:
  enum class Driver : std::uint8_t { io_uring, threads };
  static constexpr std::size_t piece_bytes = 1 * mib;
  static constexpr std::size_t min_direct_bytes = 1 * mib;
  static constexpr std::size_t direct_alignment = 4096;
  static constexpr unsigned thread_count = 4;

  /// Uses io_uring only if it is preferred and works.
  explicit FileTransfers(Driver preferred = Driver::io_uring) noexcept : preferred_(preferred) {}
  FileTransfers(const FileTransfers&) = delete;
  FileTransfers& operator=(const FileTransfers&) = delete;
  /// Waits for all transfers.
  ~FileTransfers();

  /// The instance of this process, which is never destroyed.
  [[nodiscard]] static FileTransfers& instance() noexcept;

  /// Starts a transfer. Never fails: the outcome is in the transfer.
  void submit(FileTransfer& transfer) noexcept;
  /// Waits until a transfer without on_done is done.
  void wait(FileTransfer& transfer) noexcept;
  [[nodiscard]] bool is_done(const FileTransfer& transfer) noexcept;

  /// Returns the driver in use. It is chosen by the first transfer.
  [[nodiscard]] Driver driver() noexcept;
  /// For tests; null for none.
  void set_faults(FileFaults* faults) noexcept { faults_.store(faults, std::memory_order_release); }

 private:
  enum class Way : std::uint8_t { ask_cache, direct, buffered };
  /// A part of a transfer, in flight.
  struct Piece {
    FileTransfer* transfer = nullptr;
    std::size_t offset = 0;  // in the file
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    Way way = Way::buffered;
    int error = 0;
    std::uint32_t position = 0;  // in the ring
  };
  struct Call {
    IoRing::Request request;
    int error = 0;
    bool is_at_end = false;
  };
  using Slots = std::array<Piece, IoRing::entries - 1>;

  // Call these with the mutex held.
  void start_driver() noexcept;
  void wake_threads() noexcept;
  [[nodiscard]] bool try_take(Piece& piece) noexcept;
  void unlink(FileTransfer& transfer) noexcept;

  /// Chooses the way of a piece that is read: through the page cache if that has all of it.
  void ask_cache(Piece& piece) noexcept;
  /// Chooses the next call of a piece.
  [[nodiscard]] Call next_call(const Piece& piece) noexcept;
  /// Applies the outcome of a call. Returns whether the piece needs another call.
  [[nodiscard]] static bool apply(Piece& piece, long result) noexcept;
  void perform(Piece& piece) noexcept;
  /// Ends a piece, and its transfer if it was the last one. Unlocks while it calls on_done.
  void end(const Piece& piece, std::unique_lock<std::mutex>& lock) noexcept;
  void work_as_thread() noexcept;
  void work_on_ring() noexcept;
  /// Adds the next call of a piece to the ring. Returns whether the piece is over instead.
  [[nodiscard]] bool is_over_before_call(Slots& slots, std::size_t slot) noexcept;
  /// The ring stopped working: completes what is in it.
  void leave_ring(Slots& slots) noexcept;

  const Driver preferred_;
  std::atomic<FileFaults*> faults_ = nullptr;

  std::mutex mutex_;
  std::condition_variable has_work_, is_done_;
  FileTransfer* first_ = nullptr;  // guarded by mutex_, as are the members below
  FileTransfer* last_ = nullptr;
  std::size_t transfers_ = 0;
  bool is_started_ = false, is_stopping_ = false;
  Driver driver_ = Driver::threads;
  std::array<std::thread, thread_count> threads_;
  unsigned running_ = 0;
  int wake_ = -1;

  IoRing ring_;                   // used by its thread only, once that runs
  std::uint64_t wake_count_ = 0;  // likewise
};

}  // namespace tern
