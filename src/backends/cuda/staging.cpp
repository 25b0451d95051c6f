#include "backends/cuda/staging.hpp"

#include <algorithm>
#include <atomic>

#include "backends/cuda/staging_now.hpp"
#include "backends/cuda/staging_queue.hpp"
#include "backends/host/machine.hpp"
#include "core/worker_team.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::cuda {
namespace {

/// Returns the part of the ring for enqueue: the requested size, but at most a quarter.
std::size_t queue_bytes(const StagingOptions& options) noexcept {
  if (options.threads == 0) return 0;
  const std::size_t most = options.ring_bytes / 4;
  if (options.queue_slots == 0) return 0;
  return options.queue_slot_bytes > most / options.queue_slots
             ? most
             : options.queue_slots * options.queue_slot_bytes;
}

/// Another thread may have an open capture, which some of these calls would invalidate.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverTable& driver) noexcept : driver_(driver) {
    is_relaxed_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCapture() {
    if (is_relaxed_) static_cast<void>(driver_.cuThreadExchangeStreamCaptureMode(&mode_));
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_relaxed_ = false;
};

}  // namespace

StagingOptions staging_options(const Config& config) noexcept {
  StagingOptions options;
  options.threads = config.staging_threads.value_or(std::min(options.threads, usable_cores()));
  options.ring_bytes = config.staging_bytes.value_or(options.ring_bytes);
  return options;
}

struct Staging::State {
  State(const DriverTable& table, CUcontext context, const StagingOptions& options)
      : driver(table),
        team(options.threads),
        now(table, context, options, options.ring_bytes - queue_bytes(options), team),
        queue(table, options, queue_bytes(options), team) {}

  /// Keeps states that must not be freed reachable, so that leak checkers do not report them.
  static void keep(State* state) noexcept {
    static std::atomic<State*> abandoned = nullptr;
    state->next_abandoned = abandoned.load();
    while (!abandoned.compare_exchange_weak(state->next_abandoned, state)) {
    }
  }

  const DriverTable& driver;
  WorkerTeam team;
  StagingNow now;
  StagingQueue queue;
  std::atomic<std::uint64_t> copies_now = 0, bytes_now = 0;
  std::atomic<std::uint64_t> copies_enqueued = 0, bytes_enqueued = 0;
  State* next_abandoned = nullptr;
};

Staging::Staging(const DriverTable& driver, CUcontext context, const StagingOptions& options)
    : state_(std::make_unique<State>(driver, context, options)) {}

Staging::~Staging() {
  if (is_abandoned_) {
    State::keep(state_.release());
    return;
  }
  const RelaxedCapture relaxed(state_->driver);
  state_->queue.close();
  state_->now.close();
}

StagingResult Staging::copy_now(const StagedCopy& copy, CUstream stream) noexcept {
  if (copy.bytes() == 0) return {};
  const RelaxedCapture relaxed(state_->driver);
  const StagingResult result = state_->now.copy(copy, stream);
  if (!result.is_staged()) return result;
  state_->copies_now.fetch_add(1, std::memory_order_relaxed);
  state_->bytes_now.fetch_add(copy.bytes(), std::memory_order_relaxed);
  return result;
}

StagingResult Staging::copy_small_to_host(const StagedCopy& copy) noexcept {
  const RelaxedCapture relaxed(state_->driver);
  const StagingResult result = state_->now.copy_small_to_host(copy);
  if (!result.is_staged()) return result;
  state_->copies_now.fetch_add(1, std::memory_order_relaxed);
  state_->bytes_now.fetch_add(copy.bytes(), std::memory_order_relaxed);
  return result;
}

StagingResult Staging::enqueue(const StagedCopy& copy, CUstream stream) noexcept {
  if (copy.bytes() == 0) return {};
  const RelaxedCapture relaxed(state_->driver);
  const StagingResult result = state_->queue.enqueue(copy, stream);
  if (!result.is_staged()) return result;
  state_->copies_enqueued.fetch_add(1, std::memory_order_relaxed);
  state_->bytes_enqueued.fetch_add(copy.bytes(), std::memory_order_relaxed);
  return result;
}

std::size_t Staging::trim() noexcept {
  const RelaxedCapture relaxed(state_->driver);
  return state_->now.trim() + state_->queue.trim();
}

StagingStatistics Staging::statistics() const noexcept {
  return {state_->now.held_bytes() + state_->queue.held_bytes(), state_->copies_now,
          state_->bytes_now, state_->copies_enqueued, state_->bytes_enqueued};
}

}  // namespace tern::cuda
