// The driver's streams and events: record() calls cuEventRecord and wait() calls cuStreamWaitEvent.
// DeviceState::wait_on_stream() decides when.

#include "backends/cuda/cuda_streams.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <utility>

#include "backends/cuda/driver_result.hpp"
#include "core/no_host_memory.hpp"

namespace tern::cuda {
namespace {

CUevent event_of(NativeEvent event) noexcept { return reinterpret_cast<CUevent>(event.value); }
CUstream raw(std::uintptr_t value) noexcept { return reinterpret_cast<CUstream>(value); }

/// Converts the result of a call with an event. Its other arguments are right, so the driver calls
/// the event invalid: its last record is in a graph or in a capture that has been invalidated.
Result<void> check_event(Context& context, CUresult result, const char* call) noexcept {
  if (result != CUDA_ERROR_INVALID_VALUE) return context.check(result, call);
  return Failure(ErrorCode::stream_misuse,
                 "{call} returned {name} ({code}) on '{device}': {why}. Record it outside of "
                 "captures before you wait for it.")
      .with("stream", std::uint64_t{0})
      .with("call", call)
      .with("name", name_of(result))
      .with("code", static_cast<std::uint64_t>(result))
      .with("device", context.spec())
      .with("why", "the event was last recorded in a capture");
}

/// Converts a query result: not complete is not an error.
Result<bool> answer(Context& context, CUresult result, const char* call) noexcept {
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (Result<void> asked = check_event(context, result, call); !asked) return asked.failure();
  return true;
}

}  // namespace

CudaStreams::CudaStreams(Context& context) : context_(context) {
  const ContextScope scope(context_);
  if (!scope) return;
  if (context_.cu().cuCtxGetStreamPriorityRange(&min_priority_, &greatest_priority_) !=
      CUDA_SUCCESS) {
    min_priority_ = greatest_priority_ = 0;
  }
}

CudaStreams::~CudaStreams() {
  static_cast<void>(synchronize_all());
  const ContextScope scope(context_);
  for (const Entry& entry : streams_) {
    if (is_thread_stream(entry.native)) {
      delete thread_stream(entry.native);
    } else if (scope && !entry.is_borrowed) {
      static_cast<void>(context_.cu().cuStreamDestroy(raw(entry.native.value)));
    }
  }
}

Result<NativeStream> CudaStreams::create(const StreamOptions& options) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  // The greatest priority is the smallest number.
  const int priority = std::clamp(options.priority, greatest_priority_, min_priority_);
  CUstream stream = nullptr;
  const unsigned flags = options.blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  if (Result<void> made =
          context_.check(context_.cu().cuStreamCreateWithPriority(&stream, flags, priority),
                         "cuStreamCreateWithPriority");
      !made) {
    return made.failure();
  }
  const NativeStream native{reinterpret_cast<std::uintptr_t>(stream)};
  try {
    const std::lock_guard lock(mutex_);
    streams_.push_back({native, false});
  } catch (const std::bad_alloc&) {
    static_cast<void>(context_.cu().cuStreamDestroy(stream));
    return no_host_memory(sizeof(Entry), "a stream");
  }
  return native;
}

Result<BorrowedStream> CudaStreams::borrow(NativeStream handle) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const DriverTable& cu = context_.cu();
  // All driver calls that we use take null as the legacy stream.
  const std::uintptr_t value = handle.value == 0 ? stream_legacy : handle.value;
  BorrowedStream borrowed;
  borrowed.native = {value};
  borrowed.is_default = value == stream_legacy;
  CUcontext owner = nullptr;
  if (Result<void> known = context_.check(cu.cuStreamGetCtx(raw(value), &owner), "cuStreamGetCtx");
      !known) {
    return known.failure();
  }
  if (owner != context_.handle()) {
    return Failure(ErrorCode::device_mismatch,
                   "stream {stream} is not a stream of '{a}': it belongs to another context ({b}). "
                   "Use the stream with the device that created it.")
        .with("stream", value, Unit::hex)
        .with("a", context_.spec())
        .with("b", "of another device, or not the primary context");
  }
  if (borrowed.is_default) return borrowed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (Result<void> known =
          context_.check(cu.cuStreamIsCapturing(raw(value), &status), "cuStreamIsCapturing");
      !known) {
    return known.failure();
  }
  borrowed.is_captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  // Reading the id of a captured stream would invalidate the capture.
  if (cu.cuStreamGetId != nullptr && !borrowed.is_captured) {
    unsigned long long id = 0;
    if (Result<void> known = context_.check(cu.cuStreamGetId(raw(value), &id), "cuStreamGetId");
        !known) {
      return known.failure();
    }
    borrowed.id = id;
  }
  borrowed.can_be_kept = value != stream_per_thread;
  try {
    std::unique_ptr<ThreadStream> own;
    if (value == stream_per_thread) {
      own = std::make_unique<ThreadStream>(ThreadStream{std::this_thread::get_id()});
      borrowed.native = {reinterpret_cast<std::uintptr_t>(own.get()) | 1};
    }
    const std::lock_guard lock(mutex_);
    streams_.push_back({borrowed.native, true});
    static_cast<void>(own.release());
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Entry), "a borrowed stream");
  }
  return borrowed;
}

// The driver needs no current context for the handle of a stream. For a per-thread stream it
// returns the id of the current context's, which is known only if it is ours.
StreamIdentity CudaStreams::identify(NativeStream handle) const noexcept {
  const DriverTable& cu = context_.cu();
  if (!context_.can_call() || cu.cuStreamGetId == nullptr) return {};
  if (handle.value <= stream_legacy) return {.is_default = true};
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long id = 0;
  if (cu.cuStreamIsCapturing(raw(handle.value), &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE ||
      cu.cuStreamGetId(raw(handle.value), &id) != CUDA_SUCCESS) {
    return {};
  }
  return {.id = id};
}

void CudaStreams::forget(NativeStream stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(streams_, [&](const Entry& entry) {
    return entry.native.value == stream.value && entry.is_borrowed;
  });
  if (found == streams_.end()) return;
  *found = streams_.back();
  streams_.pop_back();
}

Result<void> CudaStreams::synchronize_context() noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  // The driver would end the capture of a blocking stream.
  if (Result<void> able = context_.check(is_capturing(raw(stream_legacy)), "cuStreamIsCapturing");
      !able) {
    return able;
  }
  return context_.check(context_.cu().cuCtxSynchronize(), "cuCtxSynchronize");
}

void CudaStreams::destroy(NativeStream stream) noexcept {
  bool is_borrowed = false;
  const ContextScope scope(context_);
  const Result<CUstream> handle = resolve(stream);
  {
    // In one step for a thread that waits for all streams: either the stream is listed, or its last
    // event is.
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const Entry& entry) { return entry.native.value == stream.value; };
    // If a stream of our own is also borrowed, the loan ends first.
    auto found = std::ranges::find_if(
        streams_, [&](const Entry& entry) { return is_it(entry) && entry.is_borrowed; });
    if (found == streams_.end()) found = std::ranges::find_if(streams_, is_it);
    if (found == streams_.end()) return;
    is_borrowed = found->is_borrowed;
    *found = streams_.back();
    streams_.pop_back();
    // A captured stream must not be queried, and work in a graph is not pending work. If the driver
    // does not answer, work may be pending.
    if (scope && handle && !is_about_capture(is_capturing(*handle)) &&
        context_.cu().cuStreamQuery(*handle) != CUDA_SUCCESS && !leave_orphan(*handle) &&
        // If no event can be left behind, wait for the work.
        context_.cu().cuStreamSynchronize(*handle) != CUDA_SUCCESS) {
      ++untracked_ends_;
    }
  }
  if (scope && handle && !is_borrowed) static_cast<void>(context_.cu().cuStreamDestroy(*handle));
  if (is_thread_stream(stream)) delete thread_stream(stream);
}

CUresult CudaStreams::is_capturing(CUstream stream) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = context_.cu().cuStreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE) return result;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

Result<bool> CudaStreams::is_capturing(NativeStream stream) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUstream> handle = resolve(stream);
  if (!handle) return handle.failure();
  const CUresult status = is_capturing(*handle);
  if (is_about_capture(status)) return true;
  if (Result<void> asked = context_.check(status, "cuStreamIsCapturing"); !asked) {
    return asked.failure();
  }
  return false;
}

Result<void> CudaStreams::check_outside(const Submission& submission, CUstream stream) noexcept {
  if (!submission.stays_out_of_graphs) return {};
  return context_.check(is_capturing(stream), "cuStreamIsCapturing");
}

bool CudaStreams::leave_orphan(CUstream stream) noexcept {
  // Reuse the event of a completed entry: thousands of borrowed streams may come and go.
  if (!orphans_.empty() && orphans_.front().waiters == 0 &&
      context_.cu().cuEventQuery(orphans_.front().end) == CUDA_SUCCESS) {
    if (context_.cu().cuEventRecord(orphans_.front().end, stream) != CUDA_SUCCESS) return false;
    std::swap(orphans_.front(), orphans_.back());
    return true;
  }
  const Result<CUevent> end = record_end(stream);
  if (!end) return false;
  if (orphans_.size() == orphans_.capacity()) forget_finished();
  try {
    orphans_.push_back({*end});
    return true;
  } catch (const std::bad_alloc&) {
    static_cast<void>(context_.cu().cuEventDestroy(*end));
    return false;
  }
}

void CudaStreams::forget_finished() noexcept {
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    if (orphan.waiters > 0) return false;
    if (context_.cu().cuEventQuery(orphan.end) != CUDA_SUCCESS) return false;
    static_cast<void>(context_.cu().cuEventDestroy(orphan.end));
    return true;
  });
}

Result<CUstream> CudaStreams::resolve(NativeStream stream) const noexcept {
  if (!is_thread_stream(stream)) return raw(stream.value);
  if (thread_stream(stream)->thread == std::this_thread::get_id()) return raw(stream_per_thread);
  return Failure(ErrorCode::stream_misuse,
                 "the per-thread default stream of '{device}' was used from another thread: {why}. "
                 "Use a stream that has a handle.")
      .with("stream", std::uint64_t{stream_per_thread})
      .with("why", "each thread has its own")
      .with("device", context_.spec());
}

Result<bool> CudaStreams::query(NativeStream stream) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUstream> handle = resolve(stream);
  if (!handle) return handle.failure();
  return answer(context_, context_.cu().cuStreamQuery(*handle), "cuStreamQuery");
}

Result<void> CudaStreams::synchronize(NativeStream stream) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUstream> handle = resolve(stream);
  if (!handle) return handle.failure();
  return context_.check(context_.cu().cuStreamSynchronize(*handle), "cuStreamSynchronize");
}

Result<CUevent> CudaStreams::record_end(CUstream stream) noexcept {
  const DriverTable& cu = context_.cu();
  CUevent event = nullptr;
  if (Result<void> made =
          context_.check(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      !made) {
    return made.failure();
  }
  if (Result<void> done = context_.check(cu.cuEventRecord(event, stream), "cuEventRecord"); !done) {
    static_cast<void>(cu.cuEventDestroy(event));
    return done.failure();
  }
  return event;
}

Result<void> CudaStreams::finish(std::vector<CUevent>& events) noexcept {
  Result<void> finished;
  for (const CUevent event : events) {
    Result<void> waited =
        context_.check(context_.cu().cuEventSynchronize(event), "cuEventSynchronize");
    if (!waited && finished) finished = waited;
    static_cast<void>(context_.cu().cuEventDestroy(event));
  }
  return finished;
}

Result<void> CudaStreams::synchronize_all() noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  std::vector<CUevent> events, left;
  Result<void> recorded;
  std::size_t untracked_ends = 0;
  try {
    // Recording is quick and happens under the lock, so that no stream ends meanwhile. Waiting
    // happens outside the lock.
    const std::lock_guard lock(mutex_);
    events.reserve(streams_.size() + 1);
    left.reserve(orphans_.size());
    const auto add = [&](CUstream stream) {
      const Result<CUevent> end = record_end(stream);
      if (end) {
        events.push_back(*end);
      } else if (recorded) {
        recorded = end.failure();
      }
    };
    for (const Entry& entry : streams_) {
      const Result<CUstream> handle = resolve(entry.native);
      if (!handle) continue;  // the per-thread stream of another thread, which waits for it itself
      // Work in a graph is not pending yet. Work submitted before the capture is pending but cannot
      // be waited for until the capture has ended.
      const CUresult status = is_capturing(*handle);
      if (!is_about_capture(status)) {
        add(*handle);
      } else if (recorded) {
        recorded = context_.check(status, "cuStreamIsCapturing");
      }
    }
    // While a blocking stream is captured, work on the legacy stream would become part of the
    // capture.
    const CUresult legacy = is_capturing(raw(stream_legacy));
    if (!is_about_capture(legacy)) {
      add(raw(stream_legacy));
    } else if (recorded) {
      recorded = context_.check(legacy, "cuStreamIsCapturing");
    }
    // They stay in the list for other threads that wait at the same time.
    for (Orphan& orphan : orphans_) {
      ++orphan.waiters;
      left.push_back(orphan.end);
    }
    untracked_ends = untracked_ends_;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Entry), "synchronisation");
  }
  Result<void> finished = finish(events);
  for (const CUevent end : left) {
    Result<void> waited =
        context_.check(context_.cu().cuEventSynchronize(end), "cuEventSynchronize");
    if (!waited && finished) finished = waited;
  }
  if (untracked_ends > 0) {
    Result<void> waited = synchronize_context();
    if (!waited && finished) finished = waited;
    const std::lock_guard lock(mutex_);
    if (waited && untracked_ends_ == untracked_ends) untracked_ends_ = 0;
  }
  {
    const std::lock_guard lock(mutex_);
    for (const CUevent end : left) --std::ranges::find(orphans_, end, &Orphan::end)->waiters;
    forget_finished();
  }
  return recorded ? finished : recorded;
}

Result<NativeEvent> CudaStreams::create_event(bool has_timing) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  CUevent event = nullptr;
  const unsigned flags = has_timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  if (Result<void> made =
          context_.check(context_.cu().cuEventCreate(&event, flags), "cuEventCreate");
      !made) {
    return made.failure();
  }
  return NativeEvent{reinterpret_cast<std::uintptr_t>(event)};
}

void CudaStreams::destroy_event(NativeEvent event) noexcept {
  const ContextScope scope(context_);
  if (scope) static_cast<void>(context_.cu().cuEventDestroy(event_of(event)));
}

Result<void> CudaStreams::record(const Submission& submission, NativeEvent event) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUstream> handle = resolve(submission.stream);
  if (!handle) return handle.failure();
  if (Result<void> outside = check_outside(submission, *handle); !outside) return outside;
  return context_.check(context_.cu().cuEventRecord(event_of(event), *handle), "cuEventRecord");
}

Result<void> CudaStreams::wait(const Submission& submission, NativeEvent event) noexcept {
  if (event.value == 0) return {};
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<CUstream> handle = resolve(submission.stream);
  if (!handle) return handle.failure();
  if (Result<void> outside = check_outside(submission, *handle); !outside) return outside;
  return check_event(context_, context_.cu().cuStreamWaitEvent(*handle, event_of(event), 0),
                     "cuStreamWaitEvent");
}

Result<bool> CudaStreams::query(NativeEvent event) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  return answer(context_, context_.cu().cuEventQuery(event_of(event)), "cuEventQuery");
}

Result<void> CudaStreams::synchronize(NativeEvent event) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  return check_event(context_, context_.cu().cuEventSynchronize(event_of(event)),
                     "cuEventSynchronize");
}

Result<std::uint64_t> CudaStreams::elapsed_ns(NativeEvent start, NativeEvent end) noexcept {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  float milliseconds = 0;
  if (Result<void> measured = context_.check(
          context_.cu().cuEventElapsedTime(&milliseconds, event_of(start), event_of(end)),
          "cuEventElapsedTime");
      !measured) {
    return measured.failure();
  }
  return static_cast<std::uint64_t>(
      std::llround(static_cast<double>(std::max(milliseconds, 0.0f)) * 1e6));
}

}  // namespace tern::cuda
