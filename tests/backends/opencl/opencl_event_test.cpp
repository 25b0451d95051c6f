#include "backends/opencl/opencl_event.hpp"

#include "support/opencl_bench.hpp"

namespace tern::opencl {
namespace {

class OpenClEvent : public test::OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    open_context();
    completion = std::make_shared<Completion>(context);
    *completion->slot() = table().clCreateUserEvent(context->handle(), nullptr);
    position = completion;
  }
  void TearDown() override {
    position.reset();
    completion.reset();
    OpenClTest::TearDown();
  }
  void set_status(cl_int status) {
    ASSERT_EQ(table().clSetUserEventStatus(completion->event(), status), result::success);
  }

  std::shared_ptr<Completion> completion;
  Position position;
};

TEST_F(OpenClEvent, OfNoWorkIsPassed) {
  EXPECT_TRUE(*is_passed(nullptr));
  EXPECT_TRUE(wait(nullptr));
}

TEST_F(OpenClEvent, IsPassedOnceItIsComplete) {
  EXPECT_FALSE(*is_passed(position));
  set_status(complete);
  EXPECT_TRUE(*is_passed(position));
  EXPECT_TRUE(wait(position));
}

TEST_F(OpenClEvent, IsNotAskedAgainOnceItWasPassed) {
  set_status(complete);
  EXPECT_TRUE(wait(position));
  fail("clGetEventInfo", result::invalid_event);
  fail("clWaitForEvents", result::invalid_event);
  EXPECT_TRUE(*is_passed(position));
  EXPECT_TRUE(wait(position));
}

TEST_F(OpenClEvent, ThatCannotBeAskedAboutIsNeitherPassedNorLost) {
  fail("clGetEventInfo", result::out_of_host_memory);
  EXPECT_EQ(is_passed(position).failure().code(), ErrorCode::out_of_memory);
  EXPECT_FALSE(*is_passed(position));
  fail("clWaitForEvents", result::out_of_resources);
  EXPECT_EQ(wait(position).failure().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(context->check_alive());
  set_status(complete);
  EXPECT_TRUE(wait(position));
}

TEST_F(OpenClEvent, OfACommandThatFailedLosesTheDevice) {
  set_status(result::out_of_resources);
  const Result<void> waited = wait(position);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::device_lost);
  EXPECT_EQ(waited.failure().string("name"), "CL_OUT_OF_RESOURCES");
  EXPECT_TRUE(context->is_lost());
  EXPECT_EQ(is_passed(position).failure().code(), ErrorCode::device_lost);
}

TEST_F(OpenClEvent, IsWaitedForThoughTheDriverRefusesForAWhile) {
  EXPECT_TRUE(wait_until_done(nullptr));
  fail("clWaitForEvents", result::out_of_host_memory, 0, 50);
  fail("clGetEventInfo", result::out_of_host_memory, 0, 50);
  set_status(complete);
  EXPECT_TRUE(wait_until_done(position));
  EXPECT_TRUE(context->check_alive());
}

TEST_F(OpenClEvent, LosesTheDeviceIfTheDriverGoesOnRefusing) {
  fail("clWaitForEvents", result::invalid_command_queue, 0, 1'000'000);
  EXPECT_EQ(wait_until_done(position).failure().code(), ErrorCode::device_lost);
  EXPECT_TRUE(context->is_lost());
  set_status(complete);
}

TEST_F(OpenClEvent, KeepsItsContextAlive) {
  EXPECT_EQ(context.use_count(), 2);
  context.reset();
  set_status(complete);
  EXPECT_TRUE(*is_passed(position));
}

}  // namespace
}  // namespace tern::opencl
