// A WorkerTeam runs one loop on several threads, because a single core cannot use the full memory
// bandwidth.
//
// The calling thread works too. Helpers are started by the first loop that needs them and sleep
// between loops. If a helper cannot be started, the loop completes with fewer threads. Several
// threads may run loops at the same time. The destructor waits for the helpers. Thread-safe.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace tern {

/// Returns the number of cores that this process may use.
[[nodiscard]] std::size_t usable_cores() noexcept;

class WorkerTeam {
  struct Loop;

 public:
  template <class Body>
  class Background;

  /// `threads` includes the caller; 1 means no helpers.
  explicit WorkerTeam(std::size_t threads) noexcept : threads_(threads) {}
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  [[nodiscard]] std::size_t threads() const noexcept { return threads_; }

  /// Calls `body(index)` once for each index below `count`, on any of the threads, and returns when
  /// all calls have. The body must not throw.
  template <class Body>
  void for_each(std::size_t count, Body body) noexcept {
    Loop loop(body, count);
    if (threads_ > 1 && count > 1) start(loop);
    finish(loop);
  }

 private:
  struct Loop {
    template <class Body>
    Loop(Body& of, std::size_t calls) noexcept
        : body([](void* to, std::size_t index) { (*static_cast<Body*>(to))(index); }),
          context(&of),
          count(calls) {}

    void work() noexcept {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        body(context, i);
      }
    }

    void (*const body)(void* context, std::size_t index);
    void* const context;
    const std::size_t count;
    std::atomic<std::size_t> next = 0;
    std::size_t helpers = 0;  // guarded by the team's mutex
    bool is_shared = false;
  };

  /// Shares a loop with the helpers, if there are any.
  void start(Loop& loop) noexcept;
  /// Works on the loop, too, and returns when all calls have returned.
  void finish(Loop& loop) noexcept;
  void start_helpers() noexcept;
  void help() noexcept;

  const std::size_t threads_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable helper_left_;
  std::vector<Loop*> loops_;   // guarded by mutex_
  std::size_t helpers_ = 0;    // guarded by mutex_
  bool have_started_ = false;  // guarded by mutex_
  bool is_ending_ = false;     // guarded by mutex_
};

/// A loop that the helpers run while its owner does other work.
template <class Body>
class WorkerTeam::Background {
 public:
  /// Starts the loop, which makes the calls of for_each().
  Background(WorkerTeam& team, std::size_t count, Body body) noexcept
      : team_(&team), body_(std::move(body)), loop_(body_, count) {
    if (team.threads_ > 1 && count > 0) team.start(loop_);
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() { finish(); }

  /// Works on the loop, too, and returns when all calls have returned. Without helpers, the caller
  /// makes all calls here.
  void finish() noexcept {
    if (team_ != nullptr) std::exchange(team_, nullptr)->finish(loop_);
  }

 private:
  WorkerTeam* team_;
  Body body_;
  Loop loop_;
};

}  // namespace tern
