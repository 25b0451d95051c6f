// The entries for streams, events, captures and host functions.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "backends/cuda/driver_result.hpp"
#include "backends/fake_cuda/entry.hpp"

namespace tern::sim::entries {
namespace {

constexpr int min_priority = 0;
constexpr int greatest_priority = -5;

/// Checks a query or wait that a capturing stream does not allow. The call invalidates the capture.
CUresult refuse_captured(const Here& here, const FakeStream& stream) {
  if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!here.state.capture_of(stream)) return CUDA_SUCCESS;
  here.state.invalidate(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call(DriverEntry::cuCtxGetStreamPriorityRange, Demand::context, [&](const Here&) {
    // Either pointer may be null.
    if (least != nullptr) *least = min_priority;
    if (greatest != nullptr) *greatest = greatest_priority;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return call(DriverEntry::cuCtxSynchronize, Demand::context, [&](const Here& here) -> CUresult {
    if (here.state.invalidate_captures(here.device)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result_of(here.backend().synchronize());
  });
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return call(DriverEntry::cuStreamCreateWithPriority, Demand::context,
              [&](const Here& here) -> CUresult {
                if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                const int clamped = std::clamp(priority, greatest_priority, min_priority);
                const Result<NativeStream> made = here.backend().create_stream(
                    {.blocking = flags == CU_STREAM_DEFAULT, .priority = clamped});
                if (!made) return sim::result_of(made.failure());
                *stream = as_handle<CUstream>(here.state.streams.add(std::make_shared<FakeStream>(
                    FakeStream{here.device, *made, ++here.state.last_id, flags, clamped, false})));
                return CUDA_SUCCESS;
              });
}

CUresult cuStreamDestroy(CUstream stream) {
  return call(DriverEntry::cuStreamDestroy, Demand::release, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeStream> gone = here.state.streams.remove(as_number(stream));
    if (!gone) return CUDA_ERROR_INVALID_HANDLE;
    const std::optional<FakeCapture> capture = here.state.capture_of(*gone);
    if (capture && capture->is_real) here.state.forget_capture(*gone);
    here.backend(*gone).destroy_stream(gone->native);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return about(DriverEntry::cuStreamQuery, handle, "",
               [&](const Here& here, const FakeStream& stream) -> CUresult {
                 if (const CUresult captured = refuse_captured(here, stream);
                     captured != CUDA_SUCCESS) {
                   return captured;
                 }
                 const Result<bool> is_done = here.backend(stream).query(stream.native);
                 if (!is_done) return sim::result_of(is_done.failure());
                 return *is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
               });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return about(DriverEntry::cuStreamSynchronize, handle, "",
               [&](const Here& here, const FakeStream& stream) -> CUresult {
                 if (const CUresult captured = refuse_captured(here, stream);
                     captured != CUDA_SUCCESS) {
                   return captured;
                 }
                 return result_of(here.backend(stream).synchronize(stream.native));
               });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  return call(DriverEntry::cuStreamWaitEvent, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const std::shared_ptr<FakeEvent> awaited = here.state.events.find(as_number(event));
    if (!awaited) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // The wait would make the stream part of a capture that captures nothing.
    if (awaited->is_captured && !awaited->is_in_graph) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const CUresult result =
        result_of(here.backend(*working.stream).wait(here.on(*working.stream), awaited->native));
    // The capture of the event has ended, and the stream is in none.
    const bool is_of_graph = awaited->is_captured && !here.state.capture_of(*working.stream);
    return is_of_graph && is_about_capture(result) ? CUDA_ERROR_INVALID_VALUE : result;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return about(DriverEntry::cuStreamGetFlags, handle, flags,
               [&](const Here&, const FakeStream& stream) {
                 *flags = stream.flags;
                 return CUDA_SUCCESS;
               });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return about_handle(DriverEntry::cuStreamGetCtx, handle, context,
                      [&](const Here&, const FakeStream& stream) {
                        *context = context_of(stream.device);
                        return CUDA_SUCCESS;
                      });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return about_handle(DriverEntry::cuStreamGetId, handle, id,
                      [&](const Here& here, const FakeStream& stream) -> CUresult {
                        // Driver 580 does the same, in every capture mode.
                        if (const CUresult captured = refuse_captured(here, stream);
                            captured != CUDA_SUCCESS) {
                          return captured;
                        }
                        *id = stream.id;
                        return CUDA_SUCCESS;
                      });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return about_handle(DriverEntry::cuStreamIsCapturing, handle, status,
                      [&](const Here& here, const FakeStream& stream) {
                        if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
                          return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                        }
                        const std::optional<FakeCapture> capture = here.state.capture_of(stream);
                        *status = !capture              ? CU_STREAM_CAPTURE_STATUS_NONE
                                  : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
                        return CUDA_SUCCESS;
                      });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call(DriverEntry::cuThreadExchangeStreamCaptureMode, Demand::initialised,
              [&](const Here& here) -> CUresult {
                if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
                    *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                std::swap(here.state.thread().capture_mode, *mode);
                return CUDA_SUCCESS;
              });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* context) {
  return call(DriverEntry::cuLaunchHostFunc, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result_of(
        here.backend(*working.stream).call_host(here.on(*working.stream), function, context));
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return call(DriverEntry::cuEventCreate, Demand::context, [&](const Here& here) -> CUresult {
    constexpr unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    const bool is_shared_and_timed =
        (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (event == nullptr || (flags & ~known) != 0 || is_shared_and_timed) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Result<NativeEvent> made =
        here.backend().create_event((flags & CU_EVENT_DISABLE_TIMING) == 0);
    if (!made) return sim::result_of(made.failure());
    *event = as_handle<CUevent>(here.state.events.add(
        std::make_shared<FakeEvent>(here.backend(), here.device, *made, flags)));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent event) {
  return call(DriverEntry::cuEventDestroy, Demand::release, [&](const Here& here) -> CUresult {
    return here.state.events.remove(as_number(event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  return call(DriverEntry::cuEventRecord, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> recorded = here.state.events.find(as_number(event));
    const Working working = work_on(here, handle);
    if (!recorded || !working.stream || recorded->device != working.stream->device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (working.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      recorded->is_captured = true;
      recorded->is_in_graph = false;
      return CUDA_SUCCESS;
    }
    if (!working) return working.result;
    const bool is_in_graph = here.state.capture_of(*working.stream).has_value();
    const CUresult result =
        result_of(here.backend(*working.stream).record(here.on(*working.stream), recorded->native));
    if (result == CUDA_SUCCESS) {
      recorded->is_recorded = true;
      recorded->is_captured = recorded->is_in_graph = is_in_graph;
    }
    return result;
  });
}

CUresult cuEventQuery(CUevent event) {
  return call(DriverEntry::cuEventQuery, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> asked = here.state.events.find(as_number(event));
    if (!asked) return CUDA_ERROR_INVALID_HANDLE;
    if (asked->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!here.state.may_disturb()) return disturbs_capture;
    const Result<bool> is_done = asked->backend.query(asked->native);
    if (!is_done) return sim::result_of(is_done.failure());
    return *is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return call(DriverEntry::cuEventSynchronize, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> awaited = here.state.events.find(as_number(event));
    if (!awaited) return CUDA_ERROR_INVALID_HANDLE;
    if (awaited->is_captured) return CUDA_ERROR_INVALID_VALUE;
    if (!here.state.may_disturb()) return disturbs_capture;
    return result_of(awaited->backend.synchronize(awaited->native));
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call(DriverEntry::cuEventElapsedTime, Demand::context, [&](const Here& here) -> CUresult {
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<FakeEvent> first = here.state.events.find(as_number(start));
    const std::shared_ptr<FakeEvent> last = here.state.events.find(as_number(end));
    if (!first || !last || first->device != last->device) return CUDA_ERROR_INVALID_HANDLE;
    for (const FakeEvent* event : {first.get(), last.get()}) {
      if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0 || !event->is_recorded) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (event->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
    }
    for (const FakeEvent* event : {first.get(), last.get()}) {
      const Result<bool> is_done = event->backend.query(event->native);
      if (!is_done) return sim::result_of(is_done.failure());
      if (!*is_done) return CUDA_ERROR_NOT_READY;
    }
    const Result<std::uint64_t> elapsed = first->backend.elapsed_ns(first->native, last->native);
    if (!elapsed) return sim::result_of(elapsed.failure());
    *milliseconds = static_cast<float>(*elapsed) / 1e6f;
    return CUDA_SUCCESS;
  });
}

}  // namespace tern::sim::entries
