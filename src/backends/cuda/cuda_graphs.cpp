#include "backends/cuda/cuda_graphs.hpp"

#include <algorithm>
#include <new>

#include "backends/cuda/driver_result.hpp"
#include "core/no_host_memory.hpp"

namespace tern::cuda {
namespace {

CUgraphExec executable(NativeGraph graph) noexcept {
  return reinterpret_cast<CUgraphExec>(graph.value);
}

const char* why_of(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
      return "an illegal call has invalidated the capture. Begin a new one, and make the call "
             "before it";
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
      return "the capture began on another stream. End the capture on the stream on which it began";
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
      return "another stream of the capture has work that this stream has not waited for. Record "
             "an event on that stream after its work, and wait for the event";
    case CUDA_ERROR_ILLEGAL_STATE:
      return "no capture began on the stream. Begin one first";
    default:
      return "a stream is being captured into a graph. Make the call before the capture begins, or "
             "after it ends";
  }
}

}  // namespace

bool CudaGraphs::are_in(const DriverTable& table) noexcept {
  // All other entries are older than what Tern requires of a driver.
  return table.cuGraphInstantiateWithFlags != nullptr;
}

CudaGraphs::~CudaGraphs() {
  const ContextScope scope(context_);
  if (!scope) return;
  for (const CUgraphExec graph : graphs_) {
    static_cast<void>(context_.cu().cuGraphExecDestroy(graph));
  }
}

Failure CudaGraphs::misuse(CUresult result, const char* call, const char* why) const noexcept {
  return Failure(ErrorCode::stream_misuse, "{call} returned {name} ({code}) on '{device}': {why}.")
      .with("stream", std::uint64_t{0})
      .with("call", call)
      .with("name", name_of(result))
      .with("code", static_cast<std::uint64_t>(result))
      .with("device", context_.spec())
      .with("why", why == nullptr ? why_of(result) : why);
}

CUstreamCaptureStatus CudaGraphs::status_of(CUstream stream) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  static_cast<void>(context_.cu().cuStreamIsCapturing(stream, &status));
  return status;
}

Result<void> CudaGraphs::begin(CUstream stream) noexcept {
  const CUresult result =
      context_.cu().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (is_about_capture(result) || result == CUDA_ERROR_ILLEGAL_STATE) {
    const bool is_captured = status_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE;
    return misuse(result, "cuStreamBeginCapture",
                  is_captured ? "the stream is already being captured. End the other capture first"
                              : "the default stream cannot be captured. Capture a stream that the "
                                "program created");
  }
  return context_.check(result, "cuStreamBeginCapture");
}

Result<NativeGraph> CudaGraphs::end(CUstream stream) noexcept {
  CUgraph graph = nullptr;
  const CUresult result = context_.cu().cuStreamEndCapture(stream, &graph);
  if (result == CUDA_SUCCESS) return instantiate(graph);
  if (graph != nullptr) static_cast<void>(context_.cu().cuGraphDestroy(graph));
  const bool is_elsewhere = result == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  // The driver ends a capture that it rejects. After any other error, the capture may be open.
  if (!is_elsewhere && result != CUDA_ERROR_ILLEGAL_STATE) discard(stream);
  if (is_about_capture(result) || result == CUDA_ERROR_ILLEGAL_STATE) {
    return misuse(result, "cuStreamEndCapture");
  }
  return context_.check(result, "cuStreamEndCapture").failure();
}

void CudaGraphs::discard(CUstream stream) noexcept {
  // Tried again once, because an error of the call itself would leave the stream captured for ever.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE) return;
    CUgraph graph = nullptr;
    static_cast<void>(context_.cu().cuStreamEndCapture(stream, &graph));
    if (graph != nullptr) static_cast<void>(context_.cu().cuGraphDestroy(graph));
  }
}

Result<NativeGraph> CudaGraphs::instantiate(CUgraph graph) noexcept {
  CUgraphExec made = nullptr;
  Result<void> done = context_.check(context_.cu().cuGraphInstantiateWithFlags(&made, graph, 0),
                                     "cuGraphInstantiateWithFlags");
  // The executable graph does not need its description any more.
  static_cast<void>(context_.cu().cuGraphDestroy(graph));
  if (!done) return done.failure();
  try {
    const std::lock_guard lock(mutex_);
    graphs_.push_back(made);
  } catch (const std::bad_alloc&) {
    static_cast<void>(context_.cu().cuGraphExecDestroy(made));
    return no_host_memory(sizeof(CUgraphExec), "a graph");
  }
  return NativeGraph{reinterpret_cast<std::uintptr_t>(made)};
}

Result<void> CudaGraphs::launch(CUstream stream, NativeGraph graph) noexcept {
  // The driver would make the graph a part of the other capture.
  if (status_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE) {
    return misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuGraphLaunch");
  }
  return context_.check(context_.cu().cuGraphLaunch(executable(graph), stream), "cuGraphLaunch");
}

void CudaGraphs::destroy(NativeGraph graph) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(graphs_, executable(graph)) == 0) return;
  }
  const ContextScope scope(context_);
  if (scope) static_cast<void>(context_.cu().cuGraphExecDestroy(executable(graph)));
}

}  // namespace tern::cuda
