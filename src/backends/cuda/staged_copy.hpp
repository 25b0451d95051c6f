// A copy between pageable host memory and the device, cut into chunks that fit a pinned slot.
//
// Only arithmetic and memcpy, and the one driver call that moves a slot's worth. Rows are packed in
// a slot without their gaps; a row that is larger than a slot is cut. Chunks do not overlap and
// cover all bytes, so any thread may move any of them at any time, each with a slot of its own.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/driver_table.hpp"
#include "core/spans_in_flight.hpp"

namespace tern::cuda {

/// A driver call that failed; none has if there is no name.
struct StagingFailure {
  const char* call = nullptr;
  CUresult result = CUDA_SUCCESS;

  [[nodiscard]] explicit operator bool() const noexcept { return call != nullptr; }
};

enum class StagedDirection : std::uint8_t { to_device, to_host };

/// Rows of `width_bytes`; a plain copy is one row. Width is at most either pitch, and the pitches
/// of one row do not matter.
struct StagedCopy {
  StagedDirection direction = StagedDirection::to_device;
  std::byte* host = nullptr;  // only read if the direction is to_device
  CUdeviceptr device = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 1;
  std::size_t host_pitch_bytes = 0;
  std::size_t device_pitch_bytes = 0;
  SpansNumber spans = 0;  // of the host's side, where a tool wants to know

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
  /// Chunks of at most `chunk_bytes`, which is not zero.
  StagedChunks(const StagedCopy& copy, std::size_t chunk_bytes) noexcept;

  [[nodiscard]] StagedDirection direction() const noexcept { return copy_.direction; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] SpansNumber spans() const noexcept { return copy_.spans; }
  /// How many threads can share the host's side of a chunk with some use.
  [[nodiscard]] std::size_t parts(std::size_t chunk) const noexcept;

  /// The host's side of a chunk, or of one part of it: from pageable memory to the slot or from the
  /// slot to pageable memory, by the direction.
  void move(std::size_t chunk, std::byte* slot, std::size_t part, std::size_t parts) const noexcept;
  void move(std::size_t chunk, std::byte* slot) const noexcept { move(chunk, slot, 0, 1); }
  /// The device's side, queued to the stream.
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
