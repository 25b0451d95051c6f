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
#include <vector>

namespace tern::host {

class WorkerTeam {
 public:
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
    Loop loop;
    loop.body = [](void* context, std::size_t index) { (*static_cast<Body*>(context))(index); };
    loop.context = &body;
    loop.count = count;
    run(loop);
  }

 private:
  struct Loop {
    void (*body)(void* context, std::size_t index) = nullptr;
    void* context = nullptr;
    std::size_t count = 0;
    std::atomic<std::size_t> next = 0;
    std::size_t helpers = 0;  // guarded by the team's mutex

    void work() noexcept {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        body(context, i);
      }
    }
  };

  void run(Loop& loop) noexcept;
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

}  // namespace tern::host
