#include "backends/cuda/cuda_graphs.hpp"

#include <gtest/gtest.h>

#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

TEST(CudaGraphs, AreCapturedInTheRelaxedMode) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  void* memory = bench.memory(64);
  ASSERT_EQ(why(bench.device().begin_capture(stream)), "");
  // In another mode, an allocation by another library would invalidate the capture.
  CUdeviceptr more = 0;
  {
    const CudaBench::Elsewhere elsewhere(bench);
    EXPECT_EQ(bench.cu.cuMemAlloc(&more, 64), CUDA_SUCCESS);
    EXPECT_EQ(bench.cu.cuMemFree(more), CUDA_SUCCESS);
  }
  bench.fill(memory, 64, 5, stream);
  const Result<NativeGraph> graph = bench.device().end_capture(stream);
  ASSERT_EQ(why(graph), "");
  ASSERT_EQ(why(bench.device().launch_graph({stream}, *graph)), "");
  bench.synchronize();
  EXPECT_EQ(bench.read(memory, 64), std::vector<std::byte>(64, std::byte{5}));
  EXPECT_EQ(bench.fake.live().graphs, 0u) << "the description is not needed any more";
  EXPECT_EQ(bench.fake.live().graph_execs, 1u);
  bench.device().destroy_graph(*graph);
  bench.device().destroy_graph(*graph);
  EXPECT_EQ(bench.fake.live().graph_execs, 0u);
  EXPECT_EQ(why(bench.device().release(memory, {})), "");
}

TEST(CudaGraphs, EndWithTheDevice) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  ASSERT_EQ(why(bench.device().begin_capture(stream)), "");
  ASSERT_EQ(why(bench.device().end_capture(stream)), "");
  EXPECT_EQ(bench.fake.live().graph_execs, 1u);
  bench.backends.clear();
  EXPECT_EQ(bench.fake.live().graph_execs, 0u);
}

TEST(CudaGraphs, TryToEndACaptureOnceMore) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  for (const bool is_aborted : {false, true}) {
    ASSERT_EQ(why(bench.device().begin_capture(stream)), "");
    bench.fake.fail_call("cuStreamEndCapture", 1, CUDA_ERROR_UNKNOWN);
    if (is_aborted) {
      bench.device().abort_capture(stream);
    } else {
      EXPECT_EQ(code(bench.device().end_capture(stream)), "driver");
    }
    EXPECT_FALSE(bench.device().is_capturing(stream).value());
    EXPECT_EQ(bench.fake.live().graphs, 0u);
    EXPECT_EQ(bench.fake.calls("cuStreamEndCapture"), 2u);
    bench.fake.clear_failures();
  }
}

TEST(CudaGraphs, SayWhyACaptureCannotBeginOrEnd) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  const auto reason = [](const auto& result) {
    EXPECT_EQ(code(result), "stream_misuse");
    return std::string(result.failure().string("why").value_or(""));
  };
  EXPECT_EQ(reason(bench.device().begin_capture(bench.device().default_stream())),
            "the default stream cannot be captured. Capture a stream that the program created");
  EXPECT_EQ(reason(bench.device().end_capture(stream)),
            "no capture began on the stream. Begin one first");
  ASSERT_EQ(why(bench.device().begin_capture(stream)), "");
  EXPECT_EQ(reason(bench.device().begin_capture(stream)),
            "the stream is already being captured. End the other capture first");
  EXPECT_EQ(reason(bench.device().launch_graph({stream}, {1})),
            "a stream is being captured into a graph. Make the call before the capture begins, or "
            "after it ends");
  bench.device().abort_capture(stream);
}

}  // namespace
}  // namespace tern::cuda
