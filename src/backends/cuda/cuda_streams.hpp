// The streams and events of a CUDA device.
//
// Streams are the driver's streams. The default stream is the legacy stream, which is ordered with
// blocking streams. Waiting for all streams records an event on each stream and waits for the
// events. The driver's own wait for the context is not used, because it would invalidate every
// graph capture in the process. A stream that is destroyed with pending work leaves an event behind
// for the same purpose.
//
// Streams of other code can be borrowed. The driver's stream id, which is never reused, tells
// whether two handles are one stream. The driver tells it only while the stream is not captured:
// the call would invalidate the capture. A per-thread default stream is valid only on its own
// thread; work from another thread fails.
//
// Thread-safe.

#pragma once

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cuda/context.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class CudaStreams {
 public:
  explicit CudaStreams(Context& context);
  /// Waits for all work and destroys the remaining streams.
  ~CudaStreams();
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  [[nodiscard]] static NativeStream default_stream() noexcept { return {stream_legacy}; }
  [[nodiscard]] Result<NativeStream> create(const StreamOptions& options);
  [[nodiscard]] Result<BorrowedStream> borrow(NativeStream handle);
  [[nodiscard]] StreamIdentity identify(NativeStream handle) const noexcept;
  void forget(NativeStream stream) noexcept;
  void destroy(NativeStream stream) noexcept;

  /// Returns the driver's handle for other libraries. For a per-thread stream, returns its
  /// constant.
  [[nodiscard]] static NativeStream handle_of(NativeStream stream) noexcept {
    return is_thread_stream(stream) ? NativeStream{stream_per_thread} : stream;
  }
  /// Returns the driver's handle if this thread may use it.
  [[nodiscard]] Result<CUstream> resolve(NativeStream stream) const noexcept;

  [[nodiscard]] Result<bool> query(NativeStream stream) noexcept;
  [[nodiscard]] Result<void> synchronize(NativeStream stream) noexcept;
  [[nodiscard]] Result<void> synchronize_all() noexcept;
  [[nodiscard]] Result<void> synchronize_context() noexcept;
  [[nodiscard]] Result<bool> is_capturing(NativeStream stream) noexcept;

  [[nodiscard]] Result<NativeEvent> create_event(bool has_timing) noexcept;
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
  /// The event of a stream that was destroyed with pending work.
  struct Orphan {
    CUevent end = nullptr;
    std::size_t waiters = 0;  // kept while a thread waits for it
  };
  /// The object behind a NativeStream with its lowest bit set: the per-thread stream of a thread.
  struct ThreadStream {
    std::thread::id thread;
  };
  [[nodiscard]] static bool is_thread_stream(NativeStream stream) noexcept {
    return (stream.value & 1) != 0 && stream.value != stream_legacy;
  }
  [[nodiscard]] static ThreadStream* thread_stream(NativeStream stream) noexcept {
    return reinterpret_cast<ThreadStream*>(stream.value & ~std::uintptr_t{1});
  }

  /// Fails if the stream is being captured into a graph. Call in a scope.
  [[nodiscard]] CUresult is_capturing(CUstream stream) const noexcept;
  /// Fails if the submission must stay out of graphs and the stream is being captured. Call in a
  /// scope.
  [[nodiscard]] Result<void> check_outside(const Submission& submission, CUstream stream) noexcept;
  /// Returns an event that covers all work submitted to the stream. Call in a scope.
  [[nodiscard]] Result<CUevent> record_end(CUstream stream) noexcept;
  // Call with mutex_ held.
  [[nodiscard]] bool leave_orphan(CUstream stream) noexcept;
  void forget_finished() noexcept;
  [[nodiscard]] Result<void> finish(std::vector<CUevent>& events) noexcept;

  Context& context_;
  int min_priority_ = 0, greatest_priority_ = 0;
  std::mutex mutex_;
  std::vector<Entry> streams_;   // guarded by mutex_
  std::vector<Orphan> orphans_;  // guarded by mutex_; streams destroyed with pending work
  // Streams that were destroyed with pending work for which nothing else can wait than a wait for
  // the context.
  std::size_t untracked_ends_ = 0;  // guarded by mutex_
};

}  // namespace tern::cuda
