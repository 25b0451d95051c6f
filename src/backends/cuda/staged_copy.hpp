// A copy between pageable host memory and the device, divided into chunks that fit a pinned slot.
//
// This class contains only arithmetic, memcpy, and the driver call that transfers a slot. Rows are
// packed in a slot without their gaps; a row that is larger than a slot is divided. Chunks do not
// overlap and cover all bytes, so any thread may transfer any chunk at any time, each with its own
// slot.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/driver_table.hpp"
#include "core/spans_in_flight.hpp"

namespace tern::cuda {

/// A failed driver call; no call failed if there is no name.
struct StagingFailure {
  const char* call = nullptr;
  CUresult result = CUDA_SUCCESS;

  [[nodiscard]] explicit operator bool() const noexcept { return call != nullptr; }
};

enum class StagedDirection : std::uint8_t { to_device, to_host };

/// Rows of `width_bytes`; a plain copy is one row. The width is at most either pitch. The pitches
/// of a single row are ignored.
struct StagedCopy {
  StagedDirection direction = StagedDirection::to_device;
  std::byte* host = nullptr;  // only read if the direction is to_device
  CUdeviceptr device = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 1;
  std::size_t host_pitch_bytes = 0;
  std::size_t device_pitch_bytes = 0;
  SpansNumber spans = 0;  // of the host side, for the memory tool

  [[nodiscard]] static StagedCopy to_device(CUdeviceptr to, const void* from,
                                            std::size_t bytes) noexcept {
    auto* host = const_cast<std::byte*>(static_cast<const std::byte*>(from));
    return {StagedDirection::to_device, host, to, bytes};
  }
  [[nodiscard]] static StagedCopy to_host(void* to, CUdeviceptr from, std::size_t bytes) noexcept {
    return {StagedDirection::to_host, static_cast<std::byte*>(to), from, bytes};
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return width_bytes * height; }
};

class StagedChunks {
 public:
  /// `chunk_bytes` is the maximum size of a chunk and must not be 0.
  StagedChunks(const StagedCopy& copy, std::size_t chunk_bytes) noexcept;

  [[nodiscard]] StagedDirection direction() const noexcept { return copy_.direction; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] SpansNumber spans() const noexcept { return copy_.spans; }
  /// Returns how many threads can usefully share the host side of a chunk.
  [[nodiscard]] std::size_t parts(std::size_t chunk) const noexcept;

  /// Copies the host side of a chunk, or one part of it: from pageable memory to the slot or back,
  /// depending on the direction.
  void move(std::size_t chunk, std::byte* slot, std::size_t part, std::size_t parts) const noexcept;
  void move(std::size_t chunk, std::byte* slot) const noexcept { move(chunk, slot, 0, 1); }
  /// Queues the device side of the chunk to the stream.
  [[nodiscard]] StagingFailure transfer(std::size_t chunk, std::byte* slot,
                                        const DriverTable& driver, CUstream stream) const noexcept;

 private:
  struct Chunk {
    std::byte* host = nullptr;
    CUdeviceptr device = 0;
    std::size_t width_bytes = 0;
    std::size_t height = 1;
  };

  [[nodiscard]] Chunk at(std::size_t chunk) const noexcept;

  StagedCopy copy_;
  std::size_t chunk_bytes_;
  std::size_t rows_per_chunk_ = 1;
  std::size_t chunks_per_row_ = 1;
  std::size_t count_ = 0;
};

}  // namespace tern::cuda
