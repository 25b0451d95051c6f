#include "core/fault_handler.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include "support/forked_child.hpp"
#include "support/thread.hpp"

namespace tern {
namespace {

// Of a signal that nobody else here uses: what is sent goes the same way as a fault.
void on_signal(int, siginfo_t* info, void* context);
constinit FaultHandler handler(SIGUSR2, on_signal);
constinit std::atomic<int> ours = 0, theirs = 0;

void on_signal(int, siginfo_t* info, void* context) {
  ++ours;
  handler.pass_on(info, context);
}

class FaultHandlerTest : public testing::Test {
 protected:
  FaultHandlerTest() {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    ours = theirs = 0;
  }
  ~FaultHandlerTest() override {
    const std::lock_guard lock(handler);
    handler.uninstall();
    ::signal(SIGUSR2, SIG_DFL);
  }
  static bool install() {
    const std::lock_guard lock(handler);
    return handler.install();
  }
};

TEST_F(FaultHandlerTest, PassesOnToWhoeverWasThereBefore) {
  ::signal(SIGUSR2, [](int) { ++theirs; });
  ASSERT_TRUE(install());
  ASSERT_TRUE(install());  // once
  ::raise(SIGUSR2);
  EXPECT_EQ(ours, 1);
  EXPECT_EQ(theirs, 1);
  {
    const std::lock_guard lock(handler);
    handler.uninstall();
  }
  ::raise(SIGUSR2);
  EXPECT_EQ(ours, 1);
  EXPECT_EQ(theirs, 2);
  struct sigaction with_more = {};
  with_more.sa_sigaction = [](int, siginfo_t* info, void*) { theirs += info->si_pid == getpid(); };
  with_more.sa_flags = SA_SIGINFO;
  sigaction(SIGUSR2, &with_more, nullptr);
  ASSERT_TRUE(install());
  ::raise(SIGUSR2);
  EXPECT_EQ(theirs, 3);
  EXPECT_EQ(ours, 2);
}

TEST_F(FaultHandlerTest, StaysBehindOneThatWasPutOverIt) {
  ASSERT_TRUE(install());
  ::signal(SIGUSR2, [](int) { ++theirs; });
  {
    const std::lock_guard lock(handler);
    handler.uninstall();
  }
  ::raise(SIGUSR2);
  EXPECT_EQ(theirs, 1);
  struct sigaction back = {};
  back.sa_sigaction = on_signal;
  back.sa_flags = SA_SIGINFO;
  sigaction(SIGUSR2, &back, nullptr);
}

TEST_F(FaultHandlerTest, WhatWasIgnoredIsIgnoredAndTheDefaultIsDeath) {
  ::signal(SIGUSR2, SIG_IGN);
  ASSERT_TRUE(install());
  ::raise(SIGUSR2);
  EXPECT_EQ(ours, 1);
  EXPECT_EXIT(
      {
        ::signal(SIGUSR2, SIG_DFL);
        static_cast<void>(install());
        ::raise(SIGUSR2);
        _exit(0);
      },
      testing::KilledBySignal(SIGUSR2), "");
}

TEST_F(FaultHandlerTest, WhoeverWasThereBeforeIsCalledAsTheSystemWould) {
  // As those do who print where it was, and leave the end to the system.
  struct sigaction once = {};
  once.sa_handler = [](int signal) {
    ::raise(signal);
    _exit(3);
  };
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  EXPECT_EXIT(
      {
        sigaction(SIGUSR2, &once, nullptr);
        static_cast<void>(install());
        ::raise(SIGUSR2);
        _exit(0);
      },
      testing::KilledBySignal(SIGUSR2), "");
  // One that returns is not called for the same fault again.
  once.sa_handler = [](int) {};
  once.sa_flags = static_cast<int>(SA_RESETHAND);
  EXPECT_EXIT(
      {
        sigaction(SIGUSR2, &once, nullptr);
        static_cast<void>(install());
        ::raise(SIGUSR2);
        ::raise(SIGUSR2);
        _exit(0);
      },
      testing::KilledBySignal(SIGUSR2), "");
  // What it wants to be left alone by waits until it has ended.
  struct sigaction alone = {};
  alone.sa_handler = [](int) {
    ::raise(SIGUSR1);
    theirs = 7;
  };
  sigaddset(&alone.sa_mask, SIGUSR1);
  sigaction(SIGUSR2, &alone, nullptr);
  ::signal(SIGUSR1, [](int) { theirs = theirs * 10; });
  ASSERT_TRUE(install());
  ::raise(SIGUSR2);
  EXPECT_EQ(theirs, 70);
  ::signal(SIGUSR1, SIG_DFL);
}

TEST_F(FaultHandlerTest, AChildFindsTheLockWholeThatAnotherThreadHad) {
  std::promise<void> is_held, is_over;
  test::Thread holder([&] {
    const std::lock_guard lock(handler);
    is_held.set_value();
    // The fork waits for the lock; it had its time to do without.
    is_over.get_future().wait_for(std::chrono::milliseconds(100));
  });
  is_held.get_future().wait();
  EXPECT_EQ(test::in_a_forked_child([] { return install(); }), 0);
  is_over.set_value();
  holder.join();
  EXPECT_TRUE(install());
}

}  // namespace
}  // namespace tern
