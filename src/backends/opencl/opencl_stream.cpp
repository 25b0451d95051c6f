#include "backends/opencl/opencl_stream.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <system_error>
#include <utility>

#include "backends/opencl/opencl_errors.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern::opencl {
namespace {

/// Returns the shortest equivalent pattern: a zero of any width is a zero byte.
std::size_t period_of(const Pattern& pattern) noexcept {
  for (std::size_t period = 1; period < pattern.width_bytes; ++period) {
    if (pattern.width_bytes % period != 0) continue;
    const std::byte* bytes = pattern.bytes;
    if (std::equal(bytes + period, bytes + pattern.width_bytes, bytes)) return period;
  }
  return pattern.width_bytes;
}

/// The context of a stream-ordered free.
struct PendingRelease {
  std::shared_ptr<Memory> memory;
  void* address;

  static void run(cl_command_queue, cl_uint, void**, void* user_data) noexcept {
    const std::unique_ptr<PendingRelease> self(static_cast<PendingRelease*>(user_data));
    self->memory->finish_release(self->address);
  }
};

}  // namespace

Result<std::unique_ptr<Stream>> Stream::make(std::shared_ptr<Context> context,
                                             bool is_blocking) noexcept {
  if (Result<void> alive = context->check_alive(); !alive) return alive.failure();
  try {
    std::unique_ptr<Stream> stream(new Stream(std::move(context), is_blocking));
    // No property for out-of-order execution, so the queue is in order. Profiling is enabled,
    // because a timed event may be recorded on any stream.
    const std::array<cl_queue_properties, 3> properties = {queue_properties, queue_profiling_enable,
                                                           0};
    Context& device = *stream->context_;
    cl_int code = result::success;
    stream->queue_ = device.table().clCreateCommandQueueWithProperties(
        device.handle(), device.facts().id, properties.data(), &code);
    if (stream->queue_ == nullptr) {
      constexpr const char* call = "clCreateCommandQueueWithProperties";
      const Result<void> made = device.check(call, code);
      return made ? call_failed(device.spec(), call, code) : made.failure();
    }
    return stream;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Stream), "a stream");
  }
}

Stream::~Stream() {
  close();
  if (thread_.joinable()) thread_.join();
  if (last_ && context_->is_lost()) {
    // Work that was queued before the loss may still use memory that is freed next, so wait for it.
    // Errors of the wait are ignored, because nothing more can be done.
    const cl_event event = last_->event();
    static_cast<void>(context_->table().clWaitForEvents(1, &event));
  }
  last_.reset();
  if (queue_ != nullptr) context_->table().clReleaseCommandQueue(queue_);
}

template <class Enqueue>
Result<void> Stream::put(const char* call, Enqueue enqueue) noexcept {
  if (Result<void> alive = context_->check_alive(); !alive) return alive;
  std::shared_ptr<Completion> completion;
  try {
    // Before the command is queued, because it cannot be cancelled afterwards.
    completion = std::make_shared<Completion>(context_);
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Completion), "a command");
  }
  if (Result<void> queued = context_->check(call, enqueue(completion->slot())); !queued) {
    return queued;
  }
  last_ = std::move(completion);
  needs_flush_ = true;
  return {};
}

void Stream::flush() noexcept {
  // A queue may hold back commands until it is flushed, and other queues and threads wait for them.
  // If the flush fails, the commands are queued nevertheless, so the flush is repeated later.
  if (needs_flush_) needs_flush_ = context_->table().clFlush(queue_) != result::success;
}

Result<void> Stream::put_copy(void* destination, const void* source, std::size_t bytes) noexcept {
  return put("clEnqueueSVMMemcpy", [&](cl_event* event) {
    return context_->table().clEnqueueSVMMemcpy(queue_, 0, destination, source, bytes, 0, nullptr,
                                                event);
  });
}

Result<void> Stream::put_fill(void* destination, std::size_t bytes, const std::byte* pattern,
                              std::size_t pattern_bytes) noexcept {
  return put("clEnqueueSVMMemFill", [&](cl_event* event) {
    return context_->table().clEnqueueSVMMemFill(queue_, destination, pattern, pattern_bytes, bytes,
                                                 0, nullptr, event);
  });
}

Result<void> Stream::put_bytes(std::byte* destination, const std::byte* pattern,
                               std::size_t pattern_bytes, std::size_t first,
                               std::size_t count) noexcept {
  for (std::size_t i = first; i < first + count; ++i) {
    Result<void> queued = put_fill(destination + i, 1, pattern + i % pattern_bytes, 1);
    if (!queued) return queued;
  }
  return {};
}

Result<void> Stream::migrate(const void* address, std::size_t bytes, bool is_to_host) noexcept {
  const std::lock_guard lock(mutex_);
  Result<void> queued = put("clEnqueueSVMMigrateMem", [&](cl_event* event) {
    return context_->table().clEnqueueSVMMigrateMem(
        queue_, 1, &address, &bytes, is_to_host ? migrate_mem_object_host : 0, 0, nullptr, event);
  });
  flush();
  return queued;
}

Result<void> Stream::copy(void* destination, const void* source, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  Result<void> queued = put_copy(destination, source, bytes);
  flush();
  return queued;
}

Result<void> Stream::copy_2d(const Copy2D& copy) noexcept {
  const std::lock_guard lock(mutex_);
  Result<void> queued;
  if (copy.destination_pitch_bytes == copy.width_bytes &&
      copy.source_pitch_bytes == copy.width_bytes) {
    queued = put_copy(copy.destination, copy.source, copy.width_bytes * copy.height);
  } else {
    auto* to = static_cast<std::byte*>(copy.destination);
    const auto* from = static_cast<const std::byte*>(copy.source);
    for (std::size_t row = 0; row < copy.height && queued; ++row) {
      queued = put_copy(to + row * copy.destination_pitch_bytes,
                        from + row * copy.source_pitch_bytes, copy.width_bytes);
    }
  }
  flush();
  return queued;
}

Result<void> Stream::fill(void* destination, std::size_t bytes, const Pattern& pattern) noexcept {
  auto* to = static_cast<std::byte*>(destination);
  const std::size_t width = period_of(pattern);
  const std::lock_guard lock(mutex_);
  Result<void> queued;
  if (is_power_of_two(width)) {
    // OpenCL fills only from multiples of the width: the bytes before the first and after the last
    // multiple are filled one by one, and the pattern is rotated in between.
    const std::size_t past = reinterpret_cast<std::uintptr_t>(destination) % width;
    const std::size_t head = past == 0 ? 0 : std::min(width - past, bytes);
    const std::size_t middle = (bytes - head) / width * width;
    std::array<std::byte, Pattern::max_bytes> turned = {};
    for (std::size_t i = 0; i < width; ++i) turned[i] = pattern.bytes[(head + i) % width];
    queued = put_bytes(to, pattern.bytes, width, 0, head);
    if (queued && middle > 0) queued = put_fill(to + head, middle, turned.data(), width);
    if (queued) queued = put_bytes(to, pattern.bytes, width, head + middle, bytes - head - middle);
  } else {
    // Writes one element byte by byte and then doubles it with copies.
    queued = put_bytes(to, pattern.bytes, width, 0, width);
    for (std::size_t done = width; done < bytes && queued;) {
      const std::size_t more = std::min(done, bytes - done);
      queued = put_copy(to + done, to, more);
      done += more;
    }
  }
  flush();
  return queued;
}

Result<void> Stream::wait(const Position& position) noexcept {
  if (!position) return {};
  const std::lock_guard lock(mutex_);
  Result<void> queued;
  if (position->context() == context_) {
    const cl_event event = position->event();
    queued = put("clEnqueueBarrierWithWaitList", [&](cl_event* slot) {
      return context_->table().clEnqueueBarrierWithWaitList(queue_, 1, &event, slot);
    });
  } else {
    // An event is unknown outside its context, so the thread waits instead of the queue.
    queued = put_task(&position, nullptr, nullptr);
  }
  flush();
  return queued;
}

Result<void> Stream::call(HostFunction function, void* context) noexcept {
  const std::lock_guard lock(mutex_);
  Result<void> queued = put_task(nullptr, function, context);
  flush();
  return queued;
}

Result<void> Stream::put_task(const Position* after, HostFunction function,
                              void* context) noexcept {
  if (Result<void> alive = context_->check_alive(); !alive) return alive;
  Tasks one;
  try {
    one.push_back({after != nullptr ? *after : last_, function, context,
                   std::make_shared<Completion>(context_)});
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Task), "a host function");
  }
  if (Result<void> started = start_thread(); !started) return started;

  constexpr const char* call = "clCreateUserEvent";
  cl_int code = result::success;
  cl_event& gate = *one.front().gate->slot();
  gate = context_->table().clCreateUserEvent(context_->handle(), &code);
  if (gate == nullptr) {
    const Result<void> made = context_->check(call, code);
    return made ? call_failed(context_->spec(), call, code) : made;
  }
  Result<void> queued = put("clEnqueueBarrierWithWaitList", [&](cl_event* event) {
    return context_->table().clEnqueueBarrierWithWaitList(queue_, 1, &gate, event);
  });
  if (!queued) return queued;
  // The barrier is queued, so nothing may fail from here on: the thread exists, and splicing a list
  // node allocates nothing.
  {
    const std::lock_guard lock(tasks_mutex_);
    tasks_.splice(tasks_.end(), one);
  }
  has_task_.notify_one();
  return {};
}

Result<void> Stream::release(std::shared_ptr<Memory> memory, void* address) noexcept {
  std::unique_ptr<PendingRelease> pending;
  try {
    pending = std::make_unique<PendingRelease>(PendingRelease{std::move(memory), address});
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(PendingRelease), "a release");
  }
  const std::lock_guard lock(mutex_);
  Result<void> queued = put("clEnqueueSVMFree", [&](cl_event* event) {
    return context_->table().clEnqueueSVMFree(queue_, 1, &address, PendingRelease::run,
                                              pending.get(), 0, nullptr, event);
  });
  if (queued) static_cast<void>(pending.release());  // now owned by run()
  flush();
  return queued;
}

Result<void> Stream::launch(cl_kernel kernel, const LaunchSize& size) noexcept {
  std::array<std::size_t, 3> global = {};
  std::array<std::size_t, 3> local = {};
  for (std::size_t i = 0; i < 3; ++i) {
    local[i] = size.block[i];
    global[i] = std::size_t{size.grid[i]} * size.block[i];
  }
  const std::lock_guard lock(mutex_);
  Result<void> queued = put("clEnqueueNDRangeKernel", [&](cl_event* event) {
    return context_->table().clEnqueueNDRangeKernel(queue_, kernel, 3, nullptr, global.data(),
                                                    local.data(), 0, nullptr, event);
  });
  flush();
  return queued;
}

Result<Position> Stream::stamp() noexcept {
  const std::lock_guard lock(mutex_);
  Result<void> queued = put("clEnqueueMarkerWithWaitList", [&](cl_event* event) {
    return context_->table().clEnqueueMarkerWithWaitList(queue_, 0, nullptr, event);
  });
  flush();
  if (!queued) return queued.failure();
  return last_;
}

Position Stream::position() noexcept {
  const std::lock_guard lock(mutex_);
  flush();
  return last_;
}

void Stream::close() noexcept {
  {
    const std::lock_guard lock(tasks_mutex_);
    is_closed_ = true;
  }
  has_task_.notify_one();
}

bool Stream::is_finished() noexcept {
  {
    const std::lock_guard lock(tasks_mutex_);
    if (!is_closed_ || !tasks_.empty()) return false;
  }
  const Result<bool> passed = is_passed(position());
  return passed ? *passed : context_->is_lost();
}

Result<void> Stream::start_thread() noexcept {
  const std::lock_guard lock(tasks_mutex_);
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return Failure(ErrorCode::driver,
                   "a stream of '{device}' could not start its thread for host functions: {call} "
                   "returned {code}. Use fewer streams, or raise the limit on threads.")
        .with("call", "pthread_create")
        .with("name", "system error")
        .with_signed("code", error.code().value())
        .with("device", context_->spec());
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(std::thread), "a stream's thread");
  }
  return {};
}

void Stream::work() noexcept {
  std::unique_lock lock(tasks_mutex_);
  for (;;) {
    has_task_.wait(lock, [&] { return !tasks_.empty() || is_closed_; });
    if (tasks_.empty()) return;
    Task& task = tasks_.front();  // stable while other tasks are added
    lock.unlock();
    run(task);
    lock.lock();
    tasks_.pop_front();
  }
}

void Stream::run(Task& task) noexcept {
  if (!wait_until_done(task.after) && !context_->is_lost()) {
    // The other device was lost, so its work will never be done.
    static_cast<void>(context_->lose("a wait for another device", result::device_not_available));
  }
  if (!context_->is_lost() && task.function != nullptr) task.function(task.context);
  // The queue cannot continue without this call, so retry it. The event is completed on a lost
  // device too, because drivers have bugs with events that end in an error.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const cl_int code = context_->table().clSetUserEventStatus(task.gate->event(), complete);
    if (context_->check("clSetUserEventStatus", code)) return;
  }
  static_cast<void>(context_->lose("clSetUserEventStatus", result::invalid_event));
}

}  // namespace tern::opencl
