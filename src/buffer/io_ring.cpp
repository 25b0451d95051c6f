// The three system calls of io_uring, and the memory that the kernel shares with the ring.

#include "buffer/io_ring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tern {
namespace {

/// Sets a pointer to a part of the shared memory.
template <class T>
void point(T*& to, std::byte* base, std::uint32_t offset) noexcept {
  to = reinterpret_cast<T*>(base + offset);
}

}  // namespace

int IoRing::open() noexcept {
  io_uring_params wanted = {};
  file_ = static_cast<int>(::syscall(__NR_io_uring_setup, entries, &wanted));
  if (file_ < 0) return errno;
  const auto refused = [this](int error) {
    close();
    return error;
  };
  // The second feature came with the requests that read and write one range.
  constexpr std::uint32_t needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
  if ((wanted.features & needed) != needed) return refused(ENOSYS);
  const std::size_t request_end = wanted.sq_off.array + wanted.sq_entries * sizeof(std::uint32_t);
  const std::size_t done_end = wanted.cq_off.cqes + wanted.cq_entries * sizeof(io_uring_cqe);
  rings_bytes_ = request_end > done_end ? request_end : done_end;
  requests_bytes_ = wanted.sq_entries * sizeof(io_uring_sqe);
  const auto map = [this](std::size_t bytes, off_t which) {
    void* const there =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, which);
    return there == MAP_FAILED ? nullptr : static_cast<std::byte*>(there);
  };
  rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
  if (rings_ == nullptr) return refused(errno);
  requests_ = reinterpret_cast<io_uring_sqe*>(map(requests_bytes_, IORING_OFF_SQES));
  if (requests_ == nullptr) return refused(errno);
  // A forked child must not submit to the ring of its parent.
  ::madvise(rings_, rings_bytes_, MADV_DONTFORK);
  ::madvise(requests_, requests_bytes_, MADV_DONTFORK);
  point(request_head_, rings_, wanted.sq_off.head);
  point(request_tail_, rings_, wanted.sq_off.tail);
  point(request_array_, rings_, wanted.sq_off.array);
  point(done_head_, rings_, wanted.cq_off.head);
  point(done_tail_, rings_, wanted.cq_off.tail);
  point(done_, rings_, wanted.cq_off.cqes);
  request_mask_ = wanted.sq_entries - 1;
  done_mask_ = wanted.cq_entries - 1;
  put({});
  if (const int error = enter(1); error != 0) return refused(error);
  reap([](std::uint64_t, long) {});
  return 0;
}

void IoRing::close() noexcept {
  if (requests_ != nullptr) ::munmap(requests_, requests_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  if (file_ >= 0) ::close(file_);
  requests_ = nullptr;
  rings_ = nullptr;
  file_ = -1;
}

std::uint32_t IoRing::put(const Request& request) noexcept {
  const std::uint32_t position = *request_tail_, index = position & request_mask_;
  io_uring_sqe& entry = requests_[index];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = request.file < 0   ? IORING_OP_NOP
                 : request.is_write ? IORING_OP_WRITE
                                    : IORING_OP_READ;
  entry.flags = request.is_on_own_thread ? IOSQE_ASYNC : 0;
  entry.fd = request.file;
  entry.addr = reinterpret_cast<std::uintptr_t>(request.memory);
  entry.len = static_cast<std::uint32_t>(request.bytes);
  entry.off = request.offset;
  entry.user_data = request.number;
  request_array_[index] = index;
  std::atomic_ref(*request_tail_).store(position + 1, std::memory_order_release);
  return position;
}

bool IoRing::is_submitted(std::uint32_t position) const noexcept {
  const std::uint32_t head = std::atomic_ref(*request_head_).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(position - head) < 0;
}

int IoRing::enter(unsigned min_done) noexcept {
  for (;;) {
    const std::uint32_t waiting =
        *request_tail_ - std::atomic_ref(*request_head_).load(std::memory_order_acquire);
    const long submitted = ::syscall(__NR_io_uring_enter, file_, waiting, min_done,
                                     IORING_ENTER_GETEVENTS, nullptr, 0);
    if (submitted >= 0 && static_cast<std::uint32_t>(submitted) >= waiting) return 0;
    if (submitted < 0 && errno != EINTR) return errno;
    // Some outcomes may be there already; do not wait for more of them than asked for.
    const bool has_some =
        *done_head_ != std::atomic_ref(*done_tail_).load(std::memory_order_acquire);
    if (submitted >= 0 && has_some) min_done = 0;
    if (submitted < 0 && has_some && waiting == 0) return 0;
  }
}

}  // namespace tern
