#include "backends/opencl/opencl_errors.hpp"

#include <gtest/gtest.h>

namespace tern::opencl {
namespace {

TEST(OpenClErrors, HaveTheNamesThatManualsUse) {
  EXPECT_STREQ(name_of(result::success), "CL_SUCCESS");
  EXPECT_STREQ(name_of(-14), "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST");
  EXPECT_STREQ(name_of(-1001), "CL_PLATFORM_NOT_FOUND_KHR");
  EXPECT_STREQ(name_of(-99'999), "unknown error");
}

TEST(OpenClErrors, AreALossOnlyIfNothingCanFollow) {
  EXPECT_TRUE(is_loss(result::device_not_available));
  EXPECT_TRUE(is_loss(result::exec_status_error));
  for (const cl_int code : {result::out_of_resources, result::invalid_value, result::success}) {
    EXPECT_FALSE(is_loss(code));
  }
}

TEST(OpenClErrors, SayWhichCallRefusedAndByWhat) {
  const Failure failure = call_failed("opencl:1", "clFlush", result::invalid_command_queue);
  EXPECT_EQ(failure.code(), ErrorCode::driver);
  EXPECT_EQ(failure.text(),
            "a call on 'opencl:1' failed: clFlush returned CL_INVALID_COMMAND_QUEUE (-36).");
  EXPECT_EQ(failure.string("call"), "clFlush");
}

TEST(OpenClErrors, AreOutOfMemoryWhereThatIsMeant) {
  for (const cl_int code : {result::out_of_resources, result::out_of_host_memory,
                            result::mem_object_allocation_failure}) {
    EXPECT_EQ(call_failed("opencl:0", "clFlush", code).code(), ErrorCode::out_of_memory);
  }
}

TEST(OpenClErrors, OfALostDeviceNameIt) {
  const Failure failure = device_lost("opencl:0", "clWaitForEvents", result::device_not_available);
  EXPECT_EQ(failure.code(), ErrorCode::device_lost);
  EXPECT_EQ(
      failure.text(),
      "device 'opencl:0' is lost since clWaitForEvents returned CL_DEVICE_NOT_AVAILABLE (-2). It "
      "accepts no more work. Continue with another device, or restart the program.");
}

}  // namespace
}  // namespace tern::opencl
