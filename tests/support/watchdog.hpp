// A Watchdog ends the process if a test waits forever, because a thread that hangs cannot be
// stopped.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "support/thread.hpp"

namespace tern::test {

class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds most = std::chrono::seconds(120))
      : thread_([this, most] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, most, [this] { return is_over_; })) return;
          std::fputs("the test hangs\n", stderr);
          std::abort();
        }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;  // guarded by mutex_
  Thread thread_;         // last: it uses the others
};

}  // namespace tern::test
