#include "core/spans_in_flight.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/process.hpp"
#include "support/fake_memory_tool.hpp"

namespace tern {
namespace {

using test::FakeMemoryTool;
using Use = HostSpan::Use;

class SpansInFlightTest : public testing::Test {
 protected:
  ~SpansInFlightTest() override {
    spans_lost(this);
    EXPECT_EQ(spans_in_flight(), 0u);
    EXPECT_EQ(tool.poisoned_bytes(), 0u);
  }
  SpansNumber submit(const std::vector<char>& of, Use use, bool is_moved_by_driver = false) {
    const HostSpan span{of.data(), of.size(), use};
    return spans_submitted({this, CallSite::here(), is_moved_by_driver}, {&span, 1});
  }
  bool is_open(const std::vector<char>& of) { return tool.is_accessible(of.data(), of.size()); }

  FakeMemoryTool tool;
  const ScopedMemoryTool scoped{&tool};
  const std::vector<char> memory = std::vector<char>(100);
  const std::vector<char> other = std::vector<char>(100);
};

TEST_F(SpansInFlightTest, WhatIsAwaitedIsClosedUntilItsOperationRuns) {
  const SpansNumber number = submit(memory, Use::awaited);
  EXPECT_TRUE(tool.is_poisoned(memory.data(), memory.size()));
  EXPECT_TRUE(is_open(other));
  spans_run(number);
  EXPECT_TRUE(is_open(memory));
  EXPECT_EQ(spans_in_flight(), 1u);
  spans_ended(number);
  EXPECT_EQ(spans_in_flight(), 0u);
}

TEST_F(SpansInFlightTest, WhatIsAwaitedIsOpenInAForkedChild) {
  static_cast<void>(process_generation());
  static_cast<void>(submit(memory, Use::awaited));
  const pid_t child = fork();
  if (child == 0) _exit(is_open(memory) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(is_open(memory));
}

TEST_F(SpansInFlightTest, WhatWasNeverSubmittedIsOpenAgain) {
  spans_ended(submit(memory, Use::awaited));
  EXPECT_TRUE(is_open(memory));
}

TEST_F(SpansInFlightTest, WhatIsReadOrSharedStaysOpen) {
  static_cast<void>(submit(memory, Use::read));
  EXPECT_TRUE(is_open(memory));
  static_cast<void>(submit(other, Use::written));
  EXPECT_TRUE(is_open(other));
}

TEST_F(SpansInFlightTest, WhatQueuedWorkTouchesIsNotClosedUntilThatWorkIsOver) {
  const SpansNumber reader = submit(memory, Use::read);
  spans_ended(submit(memory, Use::awaited));
  static_cast<void>(submit(memory, Use::awaited));
  EXPECT_TRUE(is_open(memory));
  spans_run(reader);  // reads it right now
  static_cast<void>(submit(memory, Use::awaited));
  EXPECT_TRUE(is_open(memory));
}

TEST_F(SpansInFlightTest, NothingIsClosedWhileSomethingMayTouchAnything) {
  const SpansNumber function = anything_submitted({this});
  const SpansNumber number = submit(memory, Use::awaited);
  EXPECT_TRUE(is_open(memory));
  spans_ended(number);
  spans_ended(function);
  spans_ended(submit(memory, Use::awaited));
  const SpansNumber later = submit(memory, Use::awaited);
  EXPECT_FALSE(is_open(memory));
  spans_ended(later);
}

TEST_F(SpansInFlightTest, WhatSomebodyElseHasClosedStaysClosed) {
  tool.poison(memory.data() + 50, 1);
  spans_ended(submit(memory, Use::awaited));
  EXPECT_EQ(tool.poisoned_bytes(), 1u);
  tool.unpoison(memory.data() + 50, 1);
}

TEST_F(SpansInFlightTest, ALostDeviceOpensItsOwn) {
  const SpansNumber lost = submit(memory, Use::awaited);
  const HostSpan span{other.data(), other.size(), Use::awaited};
  const SpansNumber alive = spans_submitted({&tool}, {&span, 1});
  spans_lost(this);
  EXPECT_TRUE(is_open(memory));
  EXPECT_FALSE(is_open(other));
  spans_run(lost);  // the stream may still get there
  spans_ended(lost);
  spans_ended(alive);
}

TEST_F(SpansInFlightTest, FreedMemoryStaysClosedAndTheCopyIsNamed) {
  const SpansNumber number = submit(memory, Use::awaited);
  tool.free(memory.data(), memory.size());
  testing::internal::CaptureStderr();
  spans_run(number);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("will write 100 bytes of freed host memory"), std::string::npos)
      << printed;
  EXPECT_NE(printed.find("spans_in_flight_test.cpp:"), std::string::npos) << printed;
  EXPECT_FALSE(is_open(memory));
  EXPECT_TRUE(tool.reports().empty());  // the copy itself is seen
  spans_ended(number);
  EXPECT_FALSE(is_open(memory));
  tool.unpoison(memory.data(), memory.size());
}

TEST_F(SpansInFlightTest, WhatADriverReadsIsReportedInItsPlace) {
  const SpansNumber number = submit(memory, Use::read, true);
  tool.free(memory.data(), memory.size());
  testing::internal::CaptureStderr();
  spans_run(number);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("will read 100 bytes"), std::string::npos) << printed;
  EXPECT_EQ(tool.reports(), std::vector<const void*>{memory.data()});
  tool.unpoison(memory.data(), memory.size());
}

TEST(SpansWithoutATool, AreNotRemembered) {
  const ScopedMemoryTool none(nullptr);
  const HostSpan span{&span, sizeof span, Use::awaited};
  EXPECT_EQ(spans_submitted({}, {&span, 1}), 0u);
  EXPECT_EQ(anything_submitted({}), 0u);
  EXPECT_EQ(spans_in_flight(), 0u);
}

}  // namespace
}  // namespace tern
