#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {
namespace {

class FailureCallbackTest : public testing::Test {
 protected:
  FailureCallbackTest() {
    old_ = set_failure_callback([this](const Failure& failure) { heard.push_back(failure); });
  }
  ~FailureCallbackTest() override { set_failure_callback(std::move(old_)); }

  const Device device = sim::open({});
  std::vector<Failure> heard;

 private:
  FailureCallback old_;
};

TEST_F(FailureCallbackTest, HearsOfAFreeThatFailsInADestructor) {
  auto faulty = std::make_shared<FaultResource>(std::make_shared<DirectResource>(device));
  faulty->set_rules({{.for_frees = true, .nth = 1}});
  { const OwnedBlock block(faulty, {.bytes = 4096}); }
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(faulty->statistics().failed_frees, 1u);
  EXPECT_EQ(faulty->statistics().failed_free_bytes, 4096u);
  EXPECT_EQ(faulty->retry_failed_frees(), 1u);
  EXPECT_EQ(faulty->statistics().live_bytes, 0u);
}

TEST_F(FailureCallbackTest, HearsOnceOfAWriteBeyondABlock) {
  const Stream stream(device);
  auto guard = std::make_shared<GuardResource>(std::make_shared<DirectResource>(device));
  {
    const OwnedBlock block(guard, {.bytes = 100, .stream = stream, .tag = "short"});
    stream.fill(static_cast<std::byte*>(block.address()) + 100, 1, std::byte{1});
  }
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].code(), ErrorCode::violation);
  EXPECT_EQ(heard[0].number("offset"), 100u);
  EXPECT_EQ(heard[0].string("tag"), "short");
  EXPECT_EQ(guard->retry_failed_frees(), 1u);
  EXPECT_EQ(heard.size(), 1u);
}

TEST_F(FailureCallbackTest, MayThrow) {
  set_failure_callback([](const Failure&) { throw std::runtime_error("no"); });
  report_failure(Failure(ErrorCode::driver));
  set_failure_callback({});
  report_failure(Failure(ErrorCode::driver));
}

TEST(FailureCallback, PrintsViolationsWhereThereIsNone) {
  testing::internal::CaptureStderr();
  report_failure(Failure(ErrorCode::violation, "the block of {bytes} is broken.").with("bytes", 7));
  report_failure(Failure(ErrorCode::driver, "nobody prints this."));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tern: the block of 7 is broken.\n");
}

}  // namespace
}  // namespace tern
