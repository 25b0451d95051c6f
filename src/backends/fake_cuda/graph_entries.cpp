// The entries for captures and graphs.

#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backends/fake_cuda/entry.hpp"

namespace tern::sim::entries {

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return call(
      DriverEntry::cuStreamBeginCapture, Demand::context, [&](const Here& here) -> CUresult {
        if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        const std::shared_ptr<FakeStream> stream = stream_of(here, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (here.state.capture_of(*stream)) return CUDA_ERROR_ILLEGAL_STATE;
        const CUresult begun = result_of(here.backend(*stream).begin_capture(stream->native));
        if (begun != CUDA_SUCCESS) return begun;
        const std::lock_guard lock(here.state.mutex);
        here.state.captures.push_back({stream, mode, std::this_thread::get_id(), false, true});
        return CUDA_SUCCESS;
      });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return call(DriverEntry::cuStreamEndCapture, Demand::context, [&](const Here& here) -> CUresult {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    const std::shared_ptr<FakeStream> stream = stream_of(here, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const std::optional<FakeCapture> capture = here.state.capture_of(*stream);
    if (!capture || !capture->is_real) return CUDA_ERROR_ILLEGAL_STATE;
    Backend& backend = here.backend(*stream);
    // A stream that has joined the capture of another stream is not in the list.
    const bool is_origin = capture->thread != std::thread::id();
    if (is_origin && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (is_origin) here.state.forget_capture(*stream);
    if (is_origin && capture->is_invalid) {
      backend.abort_capture(stream->native);
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    const Result<NativeGraph> captured = backend.end_capture(stream->native);
    if (!captured) return sim::result_of(captured.failure());
    *graph = as_handle<CUgraph>(
        here.state.graphs.add(std::make_shared<FakeGraph>(backend, stream->device, *captured)));
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph handle,
                                     unsigned long long flags) {
  return call(DriverEntry::cuGraphInstantiateWithFlags, Demand::context,
              [&](const Here& here) -> CUresult {
                if (executable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                std::shared_ptr<FakeGraph> graph = here.state.graphs.find(as_number(handle));
                if (!graph) return CUDA_ERROR_INVALID_VALUE;
                // Two executable graphs may run at the same time, on streams of their own.
                if (graph->is_instantiated.exchange(true)) return CUDA_ERROR_NOT_SUPPORTED;
                *executable = as_handle<CUgraphExec>(here.state.graph_execs.add(
                    std::make_shared<FakeGraphExec>(FakeGraphExec{graph->device, graph})));
                return CUDA_SUCCESS;
              });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  return call(DriverEntry::cuGraphLaunch, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeGraphExec> launched = here.state.graph_execs.find(as_number(handle));
    if (!launched) return CUDA_ERROR_INVALID_VALUE;
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    if (working.stream->device != launched->device) return CUDA_ERROR_INVALID_VALUE;
    return result_of(here.backend(*working.stream)
                         .launch_graph(here.on(*working.stream), launched->graph->native));
  });
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return call(DriverEntry::cuGraphExecDestroy, Demand::release, [&](const Here& here) -> CUresult {
    return here.state.graph_execs.remove(as_number(handle)) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return call(DriverEntry::cuGraphDestroy, Demand::release, [&](const Here& here) -> CUresult {
    return here.state.graphs.remove(as_number(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // namespace tern::sim::entries
