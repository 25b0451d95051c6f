#include <gtest/gtest.h>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

class FakeCudaGraphs : public testing::Test {
 protected:
  CUresult begin(CUstream on, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
    return bench.cu.cuStreamBeginCapture(on, mode);
  }
  CUresult end(CUstream on) { return bench.cu.cuStreamEndCapture(on, &graph); }
  CUresult fill(std::uint32_t value, CUstream on) {
    return bench.cu.cuMemsetD32Async(memory, value, 16, on);
  }
  std::uint32_t first() {
    EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_SUCCESS);
    return *reinterpret_cast<std::uint32_t*>(memory);
  }
  CUstreamCaptureStatus status(CUstream of) {
    CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(bench.cu.cuStreamIsCapturing(of, &now), CUDA_SUCCESS);
    return now;
  }

  FakeDriverBench bench;
  CUstream a = bench.stream(), b = bench.stream();
  CUdeviceptr memory = bench.managed();
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
};

TEST_F(FakeCudaGraphs, RunAtEachLaunchOnly) {
  ASSERT_EQ(fill(1, a), CUDA_SUCCESS);
  EXPECT_EQ(first(), 1u);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(fill(2, a), CUDA_SUCCESS);
  ASSERT_EQ(end(a), CUDA_SUCCESS);
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(first(), 1u);
  ASSERT_EQ(bench.cu.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.live().graphs, 1u);
  EXPECT_EQ(bench.cu.cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.driver.live().graphs, 0u);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(bench.cu.cuGraphLaunch(executable, b), CUDA_SUCCESS);
    EXPECT_EQ(first(), 2u);
    ASSERT_EQ(fill(3, b), CUDA_SUCCESS);
    EXPECT_EQ(first(), 3u);
  }
  EXPECT_EQ(bench.cu.cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuGraphExecDestroy(executable), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuGraphLaunch(executable, b), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaGraphs, ContainStreamsThatWaitForAnEventOfTheCapture) {
  const CUevent forked = bench.event(), joined = bench.event();
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  ASSERT_EQ(fill(1, a), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuEventRecord(forked, a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(forked), CUDA_ERROR_CAPTURED_EVENT);
  ASSERT_EQ(bench.cu.cuStreamWaitEvent(b, forked, 0), CUDA_SUCCESS);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(fill(2, b), CUDA_SUCCESS);
  EXPECT_EQ(end(b), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(fill(2, b), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuEventRecord(forked, a), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamWaitEvent(b, forked, 0), CUDA_SUCCESS);
  ASSERT_EQ(fill(2, b), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuEventRecord(joined, b), CUDA_SUCCESS);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(bench.cu.cuEventRecord(forked, a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventSynchronize(forked), CUDA_SUCCESS);
}

TEST_F(FakeCudaGraphs, RejectWhatTheDriverRejects) {
  const CUevent outside = bench.event();
  ASSERT_EQ(bench.cu.cuEventRecord(outside, b), CUDA_SUCCESS);
  EXPECT_EQ(begin(nullptr), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << "the legacy stream";
  EXPECT_EQ(begin(a, static_cast<CUstreamCaptureMode>(3)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(end(a), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(begin(a), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(bench.cu.cuStreamWaitEvent(a, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  unsigned long long id = 0;
  EXPECT_EQ(bench.cu.cuStreamGetId(a, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamEndCapture(a, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(end(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuGraphInstantiateWithFlags(&executable, graph, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuGraphInstantiateWithFlags(&executable, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(bench.cu.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  CUgraphExec second = nullptr;
  EXPECT_EQ(bench.cu.cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuGraphLaunch(executable, a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaGraphs, AreCapturedByOneThreadUnlessTheCaptureIsRelaxed) {
  ASSERT_EQ(begin(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(begin(b), CUDA_SUCCESS);
  test::Thread([&] {
    EXPECT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[0]), CUDA_SUCCESS);
    EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    EXPECT_EQ(end(b), CUDA_SUCCESS);
  }).join();
  CUdeviceptr more = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&more, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaGraphs, EndWithTheirStream) {
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamDestroy(a), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_SUCCESS);
  a = bench.stream();
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(FakeCudaGraphs, AreJudgedByTheChecker) {
  ASSERT_EQ(begin(a), CUDA_SUCCESS);
  ASSERT_EQ(fill(1, a), CUDA_SUCCESS);
  ASSERT_EQ(end(a), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(fill(2, b), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuGraphLaunch(executable, a), CUDA_ERROR_ASSERT) << "does not wait for b";
  EXPECT_EQ(bench.found(), "TERN-S101");
  ASSERT_EQ(bench.cu.cuGraphLaunch(executable, b), CUDA_SUCCESS);
  EXPECT_EQ(first(), 1u);
}

}  // namespace
}  // namespace tern::sim
