#include "backends/opencl/opencl_context.hpp"

#include "support/opencl_bench.hpp"

namespace tern::opencl {
namespace {

class OpenClContext : public test::OpenClTest {};

TEST_F(OpenClContext, IsOfOneDevice) {
  open_context();
  EXPECT_NE(context->handle(), nullptr);
  EXPECT_EQ(context->facts().name, facts.name);
  EXPECT_EQ(context->spec(), "opencl:0");
  EXPECT_TRUE(context->check_alive());
}

TEST_F(OpenClContext, IsNotThereIfTheDriverRefuses) {
  fail("clCreateContext", result::device_not_available);
  const auto refused = Context::open(table(), facts, "opencl:0");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::driver);
  EXPECT_EQ(refused.failure().string("name"), "CL_DEVICE_NOT_AVAILABLE");
}

TEST_F(OpenClContext, StaysAliveAfterARefusal) {
  open_context();
  EXPECT_TRUE(context->check("clFlush", result::success));
  EXPECT_EQ(context->check("clFlush", result::invalid_value).failure().code(), ErrorCode::driver);
  EXPECT_TRUE(context->check_alive());
}

TEST_F(OpenClContext, IsLostByTheFirstCauseForEver) {
  open_context();
  EXPECT_EQ(context->check("clFlush", result::device_not_available).failure().code(),
            ErrorCode::device_lost);
  EXPECT_TRUE(context->is_lost());
  EXPECT_EQ(context->check("clFinish", result::exec_status_error).failure().string("call"),
            "clFlush");
  const Result<void> alive = context->check_alive();
  ASSERT_FALSE(alive);
  EXPECT_EQ(alive.failure().string("call"), "clFlush");
  EXPECT_EQ(alive.failure().string("device"), "opencl:0");
}

}  // namespace
}  // namespace tern::opencl
