// The kernels of litmus programs, for every backend: one word is stored, moved or added to.
//
// The same three are C++ functions (host, sim), OpenCL C (opencl) and PTX (cuda); a fourth keeps a
// stream busy. On devices that load lazily the first launch may wait for the whole device and hide
// every race, so all are launched once when they are loaded. They end with the object, when no
// launch may be pending any more. Confined.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern::test::litmus {

class Kernels {
 public:
  /// Loads them, and launches each once on the first words of `scratch`, which is device memory.
  Kernels(const Device& device, StreamRef stream, void* scratch);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  void store(StreamRef stream, void* to, std::uint32_t value) const;
  void move(StreamRef stream, void* to, const void* from) const;
  /// Reads, adds and writes: no atomic step on hardware.
  void add(StreamRef stream, void* to, std::uint32_t value) const;
  /// Turns round many times, and then writes one word.
  void keep_busy(StreamRef stream, void* scratch, std::uint32_t turns) const;

 private:
  enum Which : std::size_t { storing, moving, adding, turning, how_many };

  Device device_;
  std::array<NativeKernel, how_many> kernels_ = {};
};

}  // namespace tern::test::litmus
