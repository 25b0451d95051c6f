// Slabs in memory, in which new events replace the oldest.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "trace/slabs.hpp"

namespace tern::trace {
namespace {

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

Result<std::unique_ptr<SlabStore>> try_make_ring(std::size_t bytes) {
  return RingSlabs::try_make(bytes);
}

}  // namespace tern::trace
