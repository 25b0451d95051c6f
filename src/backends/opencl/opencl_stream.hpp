// An OpenCL stream: an in-order command queue, the event of its last command, and, once a host
// function was submitted, a thread that calls those.
//
// A host function is a command that waits for a user event. The thread waits for the work before
// it, calls the function and completes the user event, so the queue stands still meanwhile and no
// thread of OpenCL's ever runs, or waits for, the caller's code. Each stream has its own thread:
// one for all would stand still with the first function that waits for another stream.
//
// What OpenCL has no command for is several: rows of a copy, parts of a fill. They are queued
// together, without a command of another thread in between. If one of them is refused, those before
// it are queued all the same; the range that was to be written is unspecified then.
//
// Thread-safe. It ends after its work is done, and waits for its thread.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "backends/opencl/opencl_context.hpp"
#include "backends/opencl/opencl_event.hpp"
#include "backends/opencl/opencl_memory.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::opencl {

class Stream {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Stream>> make(std::shared_ptr<Context> context,
                                                            bool is_blocking) noexcept;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] bool is_blocking() const noexcept { return is_blocking_; }

  [[nodiscard]] Result<void> copy(void* destination, const void* source,
                                  std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> copy_2d(const Copy2D& copy) noexcept;
  [[nodiscard]] Result<void> fill(void* destination, std::size_t bytes,
                                  const Pattern& pattern) noexcept;
  /// Brings memory to the queue's device, or to the host. Needs clEnqueueSVMMigrateMem.
  [[nodiscard]] Result<void> migrate(const void* address, std::size_t bytes,
                                     bool is_to_host) noexcept;
  /// Later work begins after the position, which may be one of another device.
  [[nodiscard]] Result<void> wait(const Position& position) noexcept;
  [[nodiscard]] Result<void> call(HostFunction function, void* context) noexcept;
  /// Releases the block when the stream gets here.
  [[nodiscard]] Result<void> release(std::shared_ptr<Memory> memory, void* address) noexcept;
  /// Needs the argument values set already; see Kernel.
  [[nodiscard]] Result<void> launch(cl_kernel kernel, const LaunchSize& size) noexcept;
  /// A command of its own that says when the stream got here.
  [[nodiscard]] Result<Position> stamp() noexcept;

  /// Where the stream stands: everything submitted so far.
  [[nodiscard]] Position position() noexcept;
  /// No further command will come; those queued are still done.
  void close() noexcept;
  /// Closed, and its work is done or lost.
  [[nodiscard]] bool is_finished() noexcept;

 private:
  struct Task {
    Position after;
    HostFunction function = nullptr;
    void* context = nullptr;
    std::shared_ptr<Completion> gate;  // what the queue waits for
  };
  using Tasks = std::list<Task>;

  Stream(std::shared_ptr<Context> context, bool is_blocking) noexcept
      : context_(std::move(context)), is_blocking_(is_blocking) {}

  // These with mutex_ held. Enqueue is cl_int(cl_event* event).
  template <class Enqueue>
  [[nodiscard]] Result<void> put(const char* call, Enqueue enqueue) noexcept;
  [[nodiscard]] Result<void> put_copy(void* destination, const void* source,
                                      std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> put_fill(void* destination, std::size_t bytes,
                                      const std::byte* pattern, std::size_t pattern_bytes) noexcept;
  /// One command for each byte, for what no command can be aligned to.
  [[nodiscard]] Result<void> put_bytes(std::byte* destination, const std::byte* pattern,
                                       std::size_t pattern_bytes, std::size_t first,
                                       std::size_t count) noexcept;
  [[nodiscard]] Result<void> put_task(const Position* after, HostFunction function,
                                      void* context) noexcept;
  void flush() noexcept;

  [[nodiscard]] Result<void> start_thread() noexcept;
  void work() noexcept;
  void run(Task& task) noexcept;

  const std::shared_ptr<Context> context_;
  const bool is_blocking_;
  cl_command_queue queue_ = nullptr;

  std::mutex mutex_;
  Position last_;             // guarded by mutex_
  bool needs_flush_ = false;  // guarded by mutex_

  // Never taken by whoever waits for the queue, and behind mutex_ where both are held.
  std::mutex tasks_mutex_;
  std::condition_variable has_task_;
  Tasks tasks_;             // guarded by tasks_mutex_; the first is being run
  bool is_closed_ = false;  // guarded by tasks_mutex_
  std::thread thread_;      // guarded by tasks_mutex_
};

}  // namespace tern::opencl
