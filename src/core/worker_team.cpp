#include "core/worker_team.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

namespace tern {

std::size_t usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    // The machine has more cores than the set can represent.
    return static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
}

WorkerTeam::~WorkerTeam() {
  std::unique_lock lock(mutex_);
  is_ending_ = true;
  has_work_.notify_all();
  helper_left_.wait(lock, [&] { return helpers_ == 0; });
}

void WorkerTeam::start_helpers() noexcept {
  have_started_ = true;
  try {
    loops_.reserve(64);
    for (std::size_t i = 1; i < threads_; ++i) {
      // Detached, and counted in helpers_ instead of joined: a device that lives until the process
      // exits must not leave joinable threads behind.
      std::thread([this] { help(); }).detach();
      ++helpers_;
    }
  } catch (const std::exception&) {
    // Fewer threads give the same result.
  }
}

void WorkerTeam::start(Loop& loop) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!have_started_) start_helpers();
    // If there is no free entry for another loop, its caller does all of it.
    if (helpers_ == 0 || loops_.size() == loops_.capacity()) return;
    loops_.push_back(&loop);
    loop.is_shared = true;
  }
  has_work_.notify_all();
}

void WorkerTeam::finish(Loop& loop) noexcept {
  loop.work();
  if (!loop.is_shared) return;
  std::unique_lock lock(mutex_);
  std::erase(loops_, &loop);
  helper_left_.wait(lock, [&] { return loop.helpers == 0; });
}

void WorkerTeam::help() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [&] { return is_ending_ || !loops_.empty(); });
    if (loops_.empty()) break;
    Loop& loop = *loops_.front();
    ++loop.helpers;
    lock.unlock();
    loop.work();
    lock.lock();
    // The loop is exhausted, so no other thread needs to see it. Its owner may have removed it
    // already.
    std::erase(loops_, &loop);
    if (--loop.helpers == 0) helper_left_.notify_all();
  }
  // Notify with the lock held: the destructor may free the team as soon as it gets the lock.
  --helpers_;
  helper_left_.notify_all();
}

}  // namespace tern
