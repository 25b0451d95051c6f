#include "backends/cuda/staging_lane.hpp"

#include <thread>

namespace tern::cuda {
namespace {

StagingFailure failure_of(const char* call, CUresult result) noexcept {
  return result == CUDA_SUCCESS ? StagingFailure{} : StagingFailure{call, result};
}

}  // namespace

StagingFailure StagingLane::open(const DriverTable& driver, std::size_t slot_count,
                                 std::size_t slot_bytes) noexcept {
  void* memory = nullptr;
  StagingFailure failure =
      failure_of("cuMemHostAlloc",
                 driver.cuMemHostAlloc(&memory, slot_count * slot_bytes, host_alloc_portable));
  if (failure) return failure;
  memory_ = static_cast<std::byte*>(memory);
  held_bytes_ = slot_count * slot_bytes;
  for (std::size_t i = 0; i < slot_count && !failure; ++i) {
    slots_[i].memory = memory_ + i * slot_bytes;
    failure = failure_of("cuEventCreate",
                         driver.cuEventCreate(&slots_[i].event, CU_EVENT_DISABLE_TIMING));
  }
  // Non-blocking, so that the process's use of the legacy stream cannot delay a lane.
  if (!failure) {
    failure = failure_of("cuStreamCreateWithPriority",
                         driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
  }
  if (failure) close(driver);
  return failure;
}

void StagingLane::close(const DriverTable& driver) noexcept {
  if (stream_ != nullptr) static_cast<void>(driver.cuStreamDestroy(stream_));
  for (StagingSlot& slot : slots_) {
    if (slot.event != nullptr) static_cast<void>(driver.cuEventDestroy(slot.event));
  }
  if (memory_ != nullptr) static_cast<void>(driver.cuMemFreeHost(memory_));
  *this = {};
}

StagingFailure StagingLane::record(const DriverTable& driver, StagingSlot& slot) const noexcept {
  const StagingFailure failure =
      failure_of("cuEventRecord", driver.cuEventRecord(slot.event, stream_));
  if (!failure) slot.is_pending = true;
  return failure;
}

StagingFailure StagingLane::wait(const DriverTable& driver, StagingSlot& slot) const noexcept {
  if (!slot.is_pending) return {};
  const StagingFailure failure =
      failure_of("cuEventSynchronize", driver.cuEventSynchronize(slot.event));
  if (!failure) slot.is_pending = false;
  return failure;
}

bool StagingLane::is_idle(const DriverTable& driver) noexcept {
  // A record is missing, so the stream itself must be waited for.
  if (is_unsettled_ && driver.cuStreamQuery(stream_) != CUDA_SUCCESS) return false;
  is_unsettled_ = false;
  for (StagingSlot& slot : slots_) {
    if (slot.is_pending && driver.cuEventQuery(slot.event) == CUDA_SUCCESS) slot.is_pending = false;
    if (slot.is_pending) return false;
  }
  return true;
}

bool StagingLane::settle(const DriverTable& driver) noexcept {
  is_unsettled_ = driver.cuStreamSynchronize(stream_) != CUDA_SUCCESS;
  if (is_unsettled_) return false;
  for (StagingSlot& slot : slots_) slot.is_pending = false;
  return true;
}

void StagingLane::settle_surely(const DriverTable& driver) noexcept {
  constexpr int max_errors = 100;
  for (int errors = 0; errors < max_errors && !settle(driver);) {
    const CUresult result = driver.cuStreamQuery(stream_);
    if (result == CUDA_SUCCESS) return static_cast<void>(is_idle(driver));
    if (result == CUDA_ERROR_NOT_READY) {
      std::this_thread::yield();
    } else {
      ++errors;
    }
  }
}

}  // namespace tern::cuda
