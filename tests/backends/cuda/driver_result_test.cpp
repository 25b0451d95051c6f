#include "backends/cuda/driver_result.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tern::cuda {
namespace {

constexpr CUresult all_results[] = {
#define TERN_CUDA_RESULT(name, number) name,
    TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
};

TEST(CudaDriverResult, HasANameOfItsOwnForEveryResult) {
  std::set<std::string> names;
  for (const CUresult result : all_results) {
    EXPECT_TRUE(names.insert(name_of(result)).second) << name_of(result);
    EXPECT_EQ(std::string(name_of(result)).rfind("CUDA_", 0), 0u);
  }
  EXPECT_STREQ(name_of(CUDA_ERROR_ILLEGAL_ADDRESS), "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_STREQ(name_of(static_cast<CUresult>(12345)), "unknown");
}

TEST(CudaDriverResult, CallsTheDeviceLostWhereEveryLaterCallFailsToo) {
  std::set<int> sticky;
  for (const CUresult result : all_results) {
    if (!has_untracked_writer(result)) continue;
    sticky.insert(static_cast<int>(result));
    EXPECT_EQ(failure_of(result, {.call = "cuMemAlloc"}).code(), ErrorCode::device_lost);
  }
  EXPECT_EQ(sticky, (std::set<int>{214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719,
                                   721, 810}));
}

TEST(CudaDriverResult, SaysHowMuchMemoryWasWantedAndHowMuchThereIs) {
  const Failure failure = failure_of(CUDA_ERROR_OUT_OF_MEMORY, {.call = "cuMemAlloc",
                                                                .device = "cuda:0",
                                                                .requested_bytes = 1 << 20,
                                                                .free_bytes = 1 << 10,
                                                                .total_bytes = 1 << 30});
  EXPECT_EQ(failure.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(failure.number("requested"), 1u << 20);
  EXPECT_EQ(failure.number("free"), 1u << 10);
  EXPECT_EQ(failure.number("total"), 1u << 30);
  EXPECT_EQ(failure.string("call"), "cuMemAlloc");
  EXPECT_EQ(failure.number("code"), 2u);
  EXPECT_EQ(failure.text(),
            "'cuda:0' could not allocate 1.0 MiB: 1.0 KiB of 1.0 GiB are free (cuMemAlloc returned "
            "CUDA_ERROR_OUT_OF_MEMORY, 2). Free something, or ask for less.");
}

TEST(CudaDriverResult, SaysThatACaptureIsInTheWay) {
  for (const CUresult result :
       {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_CAPTURED_EVENT,
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD}) {
    EXPECT_TRUE(is_about_capture(result));
    const Failure failure = failure_of(result, {.call = "cuEventQuery", .device = "cuda:0"});
    EXPECT_EQ(failure.code(), ErrorCode::stream_misuse);
    EXPECT_NE(failure.text().find("captured into a graph"), std::string::npos) << failure.text();
  }
  EXPECT_FALSE(is_about_capture(CUDA_ERROR_UNKNOWN));
  EXPECT_FALSE(is_about_capture(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE));
}

TEST(CudaDriverResult, NamesTheCallAndTheCodeOfEverythingElse) {
  const Failure ended = failure_of(CUDA_ERROR_DEINITIALIZED, {.call = "cuMemFree"});
  EXPECT_EQ(ended.code(), ErrorCode::after_shutdown);
  const Failure unsupported = failure_of(CUDA_ERROR_NOT_SUPPORTED, {.call = "cuMemMap"});
  EXPECT_EQ(unsupported.code(), ErrorCode::unsupported);
  const Failure other =
      failure_of(CUDA_ERROR_INVALID_HANDLE, {.call = "cuEventQuery", .device = "cuda:1"});
  EXPECT_EQ(other.code(), ErrorCode::driver);
  EXPECT_EQ(other.text(), "cuEventQuery returned CUDA_ERROR_INVALID_HANDLE (400) on 'cuda:1'.");
  for (const Failure& failure : {ended, unsupported, other}) {
    EXPECT_TRUE(failure.string("call") && failure.string("name") && failure.number("code"));
  }
}

}  // namespace
}  // namespace tern::cuda
