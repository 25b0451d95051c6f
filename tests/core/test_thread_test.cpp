// A thread of a test reports an exception as a failure of the test; see support/thread.hpp.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <stop_token>
#include <thread>

#include "support/thread.hpp"

namespace tern {
namespace {

TEST(TestThread, ReportsAnExceptionAsAFailureOfTheTest) {
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      test::Thread([] { throw std::runtime_error("the cause"); }).join(), "the cause");
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(test::Thread([] { throw 7; }).join(), "an exception left");
}

TEST(TestThread, PassesItsArgumentsOn) {
  int sum = 0;
  test::Thread([&](int a, int b) { sum = a + b; }, 2, 3).join();
  EXPECT_EQ(sum, 5);
}

TEST(TestThread, AsksItsFunctionToStopAndJoinsAtItsEnd) {
  bool has_ended = false;
  {
    const test::Thread thread([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      has_ended = true;
    });
  }
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace tern
