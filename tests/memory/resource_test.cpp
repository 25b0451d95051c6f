// The base class of resources. tests/conformance/resource_test.cpp tests what every resource
// guarantees.

#include "tern/memory/resource.hpp"

#include <gtest/gtest.h>

#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

TEST(Resource, BaseClassHasNothingToTrim) {
  DirectResource resource(sim::open({}));
  EXPECT_EQ(resource.trim(0), 0u);
}

TEST(Resource, ThrowsWhatItRefuses) {
  DirectResource resource(sim::open({}));
  EXPECT_THROW(static_cast<void>(resource.allocate({.bytes = SIZE_MAX})), SizeOverflow);
  sim::set_faults(resource.device(), "allocate#1=oom");
  EXPECT_THROW(static_cast<void>(resource.allocate({.bytes = 64})), OutOfMemory);
}

TEST(Resource, CountsAFailedFreeWithoutMemoryForItsRecord) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "the heap is somebody else's here";
  const Device device = sim::open({});
  DirectResource resource(device);
  const Block block = resource.allocate({.bytes = 4096});
  sim::set_faults(device, "release#1=fail");
  {
    const test::HeapExhausted exhausted;
    resource.deallocate(block, {});
  }
  EXPECT_EQ(resource.failed_frees(), 1u);
  EXPECT_EQ(resource.failed_free_bytes(), 4096u);
  EXPECT_EQ(resource.retry_failed_frees(), 0u);  // nobody remembers it
  EXPECT_TRUE(resource.try_deallocate(block, {}));
}

TEST(Resource, RemembersAFreeByAStreamThatIsBeingCaptured) {
  cuda::CudaBench bench;
  const cuda::CUstream theirs = bench.foreign_stream();
  const Device device(bench.open(0).value());
  {
    DirectResource resource(device);
    const Stream stream =
        Stream::borrow(device, NativeStream{reinterpret_cast<std::uintptr_t>(theirs)});
    const Block block = resource.allocate({.bytes = 4096});
    bench.capture(theirs, cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
    resource.deallocate(block, stream);
    EXPECT_EQ(resource.failed_free_bytes(), 4096u);
    bench.fake.end_capture(theirs);
    EXPECT_EQ(resource.retry_failed_frees(), 1u);
    EXPECT_EQ(resource.statistics().live_bytes, 0u);
  }
  bench.end_foreign(theirs);
}

}  // namespace
}  // namespace tern
