// Finds the OpenCL devices that Tern can use, and why the others cannot be used.
//
// Tern passes plain addresses and orders copies of host memory by the queue, so a device needs
// OpenCL 2.0 or newer with fine-grained shared virtual memory. Devices are numbered in the order of
// their platforms.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/opencl/opencl_table.hpp"

namespace tern::opencl {

struct DeviceFacts {
  cl_device_id id = nullptr;
  std::string name;
  std::string driver;  // "OpenCL 3.0 PoCL ..., driver 3.1"
  cl_bitfield type = 0;
  cl_bitfield svm = 0;
  std::uint32_t version_major = 0, version_minor = 0;
  std::uint32_t compute_units = 0;
  std::size_t total_bytes = 0;
  std::size_t largest_block_bytes = 0;
  bool has_compiler = false;
  bool has_float64 = false;
  bool rounds_divisions = false;  // of floats correctly, if the compiler is told to

  /// Returns whether the device is more than the host's own processor.
  [[nodiscard]] bool is_accelerator() const noexcept {
    return (type & (device_type_gpu | device_type_accelerator)) != 0;
  }
  /// Returns whether host and device may use one block at the same time.
  [[nodiscard]] bool is_fine_grained() const noexcept { return (svm & svm_fine_grain_buffer) != 0; }
};

struct DeviceList {
  std::vector<DeviceFacts> usable;
  /// "'NAME' lacks ...", one entry per unusable device.
  std::vector<std::string> lacking;
  /// Why there is no usable device, as the end of a sentence; empty if there is one.
  std::string absence;
};

[[nodiscard]] DeviceList find_devices(const Table& table);

}  // namespace tern::opencl
