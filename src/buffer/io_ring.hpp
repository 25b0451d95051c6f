// An IoRing is an io_uring: reads and writes of files that the kernel performs while the thread
// does other work. It uses the system calls directly, so it needs no library.
//
//   IoRing ring;
//   if (ring.open() == 0) {
//     ring.put({.is_write = true, .file = file, .memory = memory, .bytes = bytes, .number = 7});
//     ring.enter(1);
//     ring.reap([](std::uint64_t number, long result) { ... });
//   }
//
// open() submits an empty request and waits for it, because a kernel or a seccomp filter may refuse
// io_uring at any of its calls. The caller never has more than `entries` requests in the ring. For
// one thread.

#pragma once

#include <linux/io_uring.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tern {

class IoRing {
 public:
  static constexpr unsigned entries = 32;

  struct Request {
    bool is_write = false;
    int file = -1;
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;
    std::uint64_t number = 0;  // names the outcome
    /// A thread of the kernel performs the request, for large copies from the page cache. Otherwise
    /// enter() would copy all of them, one after the other.
    bool is_on_own_thread = false;
  };

  IoRing() noexcept = default;
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;
  ~IoRing() { close(); }

  /// Opens the ring. Returns 0, or the error number of the call that was refused.
  [[nodiscard]] int open() noexcept;
  void close() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return file_ >= 0; }

  /// Adds a request. Returns its position, which grows by one with each request.
  std::uint32_t put(const Request& request) noexcept;
  /// Submits the requests that were added and waits for at least `min_done` outcomes. Returns 0 or
  /// an error number.
  [[nodiscard]] int enter(unsigned min_done) noexcept;
  /// Returns whether the kernel has accepted the request at this position.
  [[nodiscard]] bool is_submitted(std::uint32_t position) const noexcept;
  /// Calls call(number, result) for each outcome. A result below 0 is a negative error number.
  template <class Call>
  void reap(Call call) noexcept {
    std::uint32_t head = *done_head_;
    while (head != std::atomic_ref(*done_tail_).load(std::memory_order_acquire)) {
      const io_uring_cqe outcome = done_[head & done_mask_];
      std::atomic_ref(*done_head_).store(++head, std::memory_order_release);
      call(outcome.user_data, long{outcome.res});
    }
  }

 private:
  int file_ = -1;
  std::byte* rings_ = nullptr;
  std::size_t rings_bytes_ = 0, requests_bytes_ = 0;
  io_uring_sqe* requests_ = nullptr;
  std::uint32_t *request_head_ = nullptr, *request_tail_ = nullptr, *request_array_ = nullptr;
  std::uint32_t request_mask_ = 0, done_mask_ = 0;
  std::uint32_t *done_head_ = nullptr, *done_tail_ = nullptr;
  const io_uring_cqe* done_ = nullptr;
};

}  // namespace tern
