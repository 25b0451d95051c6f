// An OpenCL stream: an in-order command queue, the event of its last command, and, after the first
// host function, a thread that calls host functions.
//
// A host function is a command that waits for a user event. The thread waits for the work before
// it, calls the function and completes the user event. So the queue stops meanwhile, and no thread
// of the OpenCL driver runs the caller's code or waits for it. Each stream has its own thread,
// because a single thread would block if one function waits for another stream.
//
// Some operations need several OpenCL commands, such as the rows of a copy or the parts of a fill.
// They are queued together, without commands of other threads in between. If one of them fails, the
// commands before it stay queued, and the contents of the destination are unspecified.
//
// Thread-safe. The destructor waits for the work and for the thread.

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
  /// Migrates memory to the queue's device or to the host. Needs clEnqueueSVMMigrateMem.
  [[nodiscard]] Result<void> migrate(const void* address, std::size_t bytes,
                                     bool is_to_host) noexcept;
  /// Orders later work after the position, which may belong to another device.
  [[nodiscard]] Result<void> wait(const Position& position) noexcept;
  [[nodiscard]] Result<void> call(HostFunction function, void* context) noexcept;
  /// Frees the block when the stream reaches this point.
  [[nodiscard]] Result<void> release(std::shared_ptr<Memory> memory, void* address) noexcept;
  /// The argument values must be set before; see Kernel.
  [[nodiscard]] Result<void> launch(cl_kernel kernel, const LaunchSize& size) noexcept;
  /// Queues a command whose event has the time at which the stream reaches it.
  [[nodiscard]] Result<Position> stamp() noexcept;

  /// Returns the position after everything submitted so far.
  [[nodiscard]] Position position() noexcept;
  /// No further command will be submitted. Queued commands still run.
  void close() noexcept;
  /// Returns whether the stream is closed and its work is done or lost.
  [[nodiscard]] bool is_finished() noexcept;

 private:
  struct Task {
    Position after;
    HostFunction function = nullptr;
    void* context = nullptr;
    std::shared_ptr<Completion> gate;  // the queue waits for it
  };
  using Tasks = std::list<Task>;

  Stream(std::shared_ptr<Context> context, bool is_blocking) noexcept
      : context_(std::move(context)), is_blocking_(is_blocking) {}

  // Call with mutex_ held. Enqueue is cl_int(cl_event* event).
  template <class Enqueue>
  [[nodiscard]] Result<void> put(const char* call, Enqueue enqueue) noexcept;
  [[nodiscard]] Result<void> put_copy(void* destination, const void* source,
                                      std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> put_fill(void* destination, std::size_t bytes,
                                      const std::byte* pattern, std::size_t pattern_bytes) noexcept;
  /// Queues one command per byte, for ranges that no command can be aligned to.
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

  // Never locked while waiting for the queue. If both are locked, mutex_ comes first.
  std::mutex tasks_mutex_;
  std::condition_variable has_task_;
  Tasks tasks_;             // guarded by tasks_mutex_; the first one is running
  bool is_closed_ = false;  // guarded by tasks_mutex_
  std::thread thread_;      // guarded by tasks_mutex_
};

}  // namespace tern::opencl
