#include "backends/host/host_stream.hpp"

#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "backends/host/host_kernels.hpp"
#include "backends/host/host_memory.hpp"
#include "backends/host/transfer.hpp"
#include "core/no_host_memory.hpp"

namespace tern::host {
namespace {

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

bool Position::is_passed() const noexcept { return !stream || stream->passed() >= number; }

void Position::wait() const noexcept {
  if (stream) stream->wait_for(number);
}

Result<void> HostStream::start() noexcept {
  try {
    // Detached: the thread owns a reference to the stream, and closing the stream waits for its
    // progress.
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  } catch (const std::system_error& error) {
    return Failure(ErrorCode::driver,
                   "a host stream could not start its thread: {call} returned {code}. Use fewer "
                   "streams, or raise the limit on threads.")
        .with("call", "pthread_create")
        .with("name", "system error")
        .with_signed("code", error.code().value());
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(std::thread), "a stream's thread");
  }
  is_started_ = true;
  return {};
}

Result<void> HostStream::submit(Operation&& operation) noexcept {
  bool is_sleeping = false;
  {
    const std::lock_guard lock(mutex_);
    try {
      queue_.push_back(std::move(operation));
    } catch (const std::bad_alloc&) {
      return Failure(ErrorCode::out_of_memory,
                     "the host could not queue another operation after {pending} queued ones: "
                     "{requested} could not be allocated. Synchronise the stream.")
          .with_bytes("requested", 2 * queue_.capacity() * sizeof(Operation))
          .with("pending", submitted_ - progress_.value());
    }
    if (!is_started_) {
      if (Result<void> started = start(); !started) {
        queue_.pop_back();
        return started;
      }
    }
    ++submitted_;
    is_sleeping = std::exchange(is_sleeping_, false);
  }
  if (is_sleeping) has_work_.notify_one();
  return {};
}

Position HostStream::position() noexcept {
  const std::lock_guard lock(mutex_);
  return {shared_from_this(), submitted_};
}

void HostStream::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  has_work_.notify_one();
}

bool HostStream::is_finished() noexcept {
  const std::lock_guard lock(mutex_);
  return is_closed_ && progress_.value() >= submitted_;
}

void HostStream::work() noexcept {
  // Swaps two vectors: the thread takes the whole queue with one lock, and both vectors keep their
  // capacity.
  std::vector<Operation> batch;
  for (;;) {
    batch.clear();
    {
      std::unique_lock lock(mutex_);
      while (queue_.empty() && !is_closed_) {
        is_sleeping_ = true;
        has_work_.wait(lock);
      }
      is_sleeping_ = false;
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (Operation& operation : batch) {
      run(operation);
      progress_.advance();
    }
  }
}

void HostStream::run(Operation& operation) noexcept {
  std::visit(Overloaded{
                 [&](const CopyOperation& o) { copy(*team_, o.destination, o.source, o.bytes); },
                 [&](const Copy2D& o) { copy_2d(*team_, o); },
                 [&](const FillOperation& o) { fill(*team_, o.destination, o.bytes, o.pattern); },
                 [&](const CallOperation& o) { o.function(o.context); },
                 [&](const ReleaseOperation& o) { o.memory->finish_release(o.address); },
                 [&](const TouchOperation& o) { touch(*team_, o.address, o.bytes, o.page_bytes); },
                 [&](const StampOperation& o) {
                   const std::lock_guard lock(o.stamp->mutex);
                   // Two streams may record one event. The later record counts.
                   if (o.record >= o.stamp->record) {
                     o.stamp->record = o.record;
                     o.stamp->time_ns = now_ns();
                   }
                 },
                 [&](LaunchOperation& o) { run_launch(*team_, *o); },
                 [&](const Position& o) { o.wait(); },
             },
             operation);
}

}  // namespace tern::host
