// The streams and events of a CUDA device.
//
// Streams are the driver's; the default stream is its legacy one, which blocking streams are
// ordered with. Waiting for all of them records an event on each and waits for those, instead of
// asking the driver to wait for the context: that would break any capture into a graph, also those
// of other libraries. A stream that ends with work left leaves an event behind for the same
// purpose.
//
// A stream that somebody else made can be borrowed. The driver's number of it, which is never used
// again, says whether two handles are one stream. The stream that each thread has of its own is
// only what it is on that thread, so work from any other is refused.
//
// Thread-safe.

#pragma once

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaStreams {
 public:
  explicit CudaStreams(Context& context);
  /// Completes all work, and ends what was not ended.
  ~CudaStreams();
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  [[nodiscard]] static NativeStream default_stream() noexcept { return {stream_legacy}; }
  [[nodiscard]] Result<NativeStream> create(const StreamOptions& options);
  [[nodiscard]] Result<BorrowedStream> borrow(NativeStream handle);
  void destroy(NativeStream stream) noexcept;

  /// The driver's handle, for others to use. Of a thread's own stream it is the number for that.
  [[nodiscard]] static NativeStream handle_of(NativeStream stream) noexcept {
    return is_thread_stream(stream) ? NativeStream{stream_per_thread} : stream;
  }
  /// The driver's handle, if this thread may use it.
  [[nodiscard]] Result<CUstream> resolve(NativeStream stream) const noexcept;

  [[nodiscard]] Result<bool> query(NativeStream stream) noexcept;
  [[nodiscard]] Result<void> synchronize(NativeStream stream) noexcept;
  [[nodiscard]] Result<void> synchronize_all() noexcept;
  [[nodiscard]] Result<bool> is_capturing(NativeStream stream) noexcept;

  [[nodiscard]] Result<NativeEvent> create_event(const EventOptions& options) noexcept;
  void destroy_event(NativeEvent event) noexcept;
  [[nodiscard]] Result<void> record(const Submission& submission, NativeEvent event) noexcept;
  [[nodiscard]] Result<void> wait(const Submission& submission, NativeEvent event) noexcept;
  [[nodiscard]] Result<bool> query(NativeEvent event) noexcept;
  [[nodiscard]] Result<void> synchronize(NativeEvent event) noexcept;
  [[nodiscard]] Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept;

 private:
  struct Entry {
    NativeStream native;
    bool is_borrowed = false;
  };
  /// What a stream left behind that ended with work to do.
  struct Orphan {
    CUevent end = nullptr;
    std::size_t waiters = 0;  // while any waits for it, it stays
  };
  /// What a NativeStream points to, with its lowest bit set, if it is some thread's own stream.
  struct ThreadStream {
    std::thread::id thread;
  };
  [[nodiscard]] static bool is_thread_stream(NativeStream stream) noexcept {
    return (stream.value & 1) != 0 && stream.value != stream_legacy;
  }
  [[nodiscard]] static ThreadStream* thread_stream(NativeStream stream) noexcept {
    return reinterpret_cast<ThreadStream*>(stream.value & ~std::uintptr_t{1});
  }

  /// Success if nobody captures the stream into a graph. In a scope.
  [[nodiscard]] CUresult is_capturing(CUstream stream) const noexcept;
  /// Success unless the submission is to stay out of graphs and the stream is captured into one. In
  /// a scope.
  [[nodiscard]] Result<void> check_outside(const Submission& submission, CUstream stream) noexcept;
  /// An event that stands for all that was submitted to the stream. In a scope.
  [[nodiscard]] Result<CUevent> record_end(CUstream stream) noexcept;
  // With mutex_ held.
  [[nodiscard]] bool leave_orphan(CUstream stream) noexcept;
  void forget_finished() noexcept;
  [[nodiscard]] Result<void> finish(std::vector<CUevent>& events) noexcept;

  Context& context_;
  int min_priority_ = 0, greatest_priority_ = 0;
  std::mutex mutex_;
  std::vector<Entry> streams_;   // guarded by mutex_
  std::vector<Orphan> orphans_;  // guarded by mutex_: of streams that ended with work left
};

}  // namespace tern::cuda
