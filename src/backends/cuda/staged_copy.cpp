#include "backends/cuda/staged_copy.hpp"

#include <algorithm>
#include <cstring>

#include "tern/core/bytes.hpp"

namespace tern::cuda {
namespace {

/// Below this size a second thread costs more than it gains.
constexpr std::size_t min_part_bytes = 256 * kib;
/// The driver's maximum pitch. Rows that are further apart are copied one by one.
constexpr std::size_t max_pitch_bytes = (std::size_t{1} << 31) - 1;

constexpr std::size_t divide_up(std::size_t value, std::size_t by) noexcept {
  return value / by + (value % by != 0 ? 1 : 0);
}

}  // namespace

StagedChunks::StagedChunks(const StagedCopy& copy, std::size_t chunk_bytes) noexcept
    : copy_(copy), chunk_bytes_(chunk_bytes) {
  if (copy_.height > 1 && copy_.host_pitch_bytes == copy_.width_bytes &&
      copy_.device_pitch_bytes == copy_.width_bytes) {
    copy_.width_bytes *= copy_.height;
    copy_.height = 1;
  }
  if (copy_.width_bytes == 0 || copy_.height == 0) return;
  if (copy_.height > 1 && copy_.width_bytes <= chunk_bytes_) {
    const bool can_pitch = copy_.device_pitch_bytes <= max_pitch_bytes;
    rows_per_chunk_ = can_pitch ? chunk_bytes_ / copy_.width_bytes : 1;
    count_ = divide_up(copy_.height, rows_per_chunk_);
  } else {
    chunks_per_row_ = divide_up(copy_.width_bytes, chunk_bytes_);
    count_ = copy_.height * chunks_per_row_;
  }
}

StagedChunks::Chunk StagedChunks::at(std::size_t chunk) const noexcept {
  std::size_t row = chunk * rows_per_chunk_, column_bytes = 0;
  Chunk found;
  if (chunks_per_row_ > 1) {
    row = chunk / chunks_per_row_;
    column_bytes = chunk % chunks_per_row_ * chunk_bytes_;
  }
  found.width_bytes = chunks_per_row_ > 1 ? std::min(chunk_bytes_, copy_.width_bytes - column_bytes)
                                          : copy_.width_bytes;
  found.height = std::min(rows_per_chunk_, copy_.height - row);
  found.host = copy_.host + row * copy_.host_pitch_bytes + column_bytes;
  found.device = copy_.device + row * copy_.device_pitch_bytes + column_bytes;
  return found;
}

std::size_t StagedChunks::parts(std::size_t chunk) const noexcept {
  const Chunk found = at(chunk);
  return std::max<std::size_t>(1, found.width_bytes * found.height / min_part_bytes);
}

void StagedChunks::move(std::size_t chunk, std::byte* slot, std::size_t part,
                        std::size_t parts) const noexcept {
  const Chunk found = at(chunk);
  const auto move_bytes = [&](std::byte* host, std::byte* staged, std::size_t bytes) {
    if (copy_.direction == StagedDirection::to_device) {
      std::memcpy(staged, host, bytes);
    } else {
      std::memcpy(host, staged, bytes);
    }
  };
  // Slots are small, so products of their sizes cannot overflow.
  const auto share = [&](std::size_t whole, std::size_t of) { return whole * of / parts; };
  if (found.height == 1) {
    const std::size_t first = share(found.width_bytes, part);
    move_bytes(found.host + first, slot + first, share(found.width_bytes, part + 1) - first);
    return;
  }
  const std::size_t end = share(found.height, part + 1);
  for (std::size_t row = share(found.height, part); row < end; ++row) {
    move_bytes(found.host + row * copy_.host_pitch_bytes, slot + row * found.width_bytes,
               found.width_bytes);
  }
}

StagingFailure StagedChunks::transfer(std::size_t chunk, std::byte* slot, const DriverTable& driver,
                                      CUstream stream) const noexcept {
  const Chunk found = at(chunk);
  const bool is_to_device = copy_.direction == StagedDirection::to_device;
  if (found.height == 1 || copy_.device_pitch_bytes == found.width_bytes) {
    const auto staged = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(slot));
    const std::size_t bytes = found.width_bytes * found.height;
    const CUresult result = is_to_device
                                ? driver.cuMemcpyAsync(found.device, staged, bytes, stream)
                                : driver.cuMemcpyAsync(staged, found.device, bytes, stream);
    return result == CUDA_SUCCESS ? StagingFailure{} : StagingFailure{"cuMemcpyAsync", result};
  }
  CUDA_MEMCPY2D rows;
  rows.WidthInBytes = found.width_bytes;
  rows.Height = found.height;
  if (is_to_device) {
    rows.srcMemoryType = CU_MEMORYTYPE_HOST;
    rows.srcHost = slot;
    rows.srcPitch = found.width_bytes;
    rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = found.device;
    rows.dstPitch = copy_.device_pitch_bytes;
  } else {
    rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.srcDevice = found.device;
    rows.srcPitch = copy_.device_pitch_bytes;
    rows.dstMemoryType = CU_MEMORYTYPE_HOST;
    rows.dstHost = slot;
    rows.dstPitch = found.width_bytes;
  }
  const CUresult result = driver.cuMemcpy2DAsync(&rows, stream);
  return result == CUDA_SUCCESS ? StagingFailure{} : StagingFailure{"cuMemcpy2DAsync", result};
}

}  // namespace tern::cuda
