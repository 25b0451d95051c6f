// The kernels of litmus programs, for every backend: they store, move or add one word.
//
// The three kernels exist as C++ functions (host, sim), in OpenCL C (opencl) and in PTX (cuda). A
// fourth kernel keeps a stream busy. A device that loads kernels lazily may wait for all work at
// the first launch, which would hide every race. So each kernel is launched once when it is loaded.
// The destructor unloads the kernels; no launch may be pending then. For one thread.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern::test::litmus {

class Kernels {
 public:
  /// Loads the kernels, and launches each once on the first words of `scratch`, which is device
  /// memory.
  Kernels(const Device& device, StreamRef stream, void* scratch);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  void store(StreamRef stream, void* to, std::uint32_t value) const;
  void move(StreamRef stream, void* to, const void* from) const;
  /// Reads, adds and writes. Not atomic on hardware.
  void add(StreamRef stream, void* to, std::uint32_t value) const;
  /// Loops `turns` times, and then writes one word.
  void keep_busy(StreamRef stream, void* scratch, std::uint32_t turns) const;

 private:
  enum Which : std::size_t { storing, moving, adding, turning, how_many };

  Device device_;
  std::array<NativeKernel, how_many> kernels_ = {};
};

}  // namespace tern::test::litmus
