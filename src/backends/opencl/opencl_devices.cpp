#include "backends/opencl/opencl_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "backends/opencl/opencl_errors.hpp"

namespace tern::opencl {
namespace {

std::string text_of(const Table& table, cl_device_id device, cl_uint what) {
  std::size_t bytes = 0;
  if (table.clGetDeviceInfo(device, what, 0, nullptr, &bytes) != result::success) return {};
  std::string text(bytes, '\0');
  if (table.clGetDeviceInfo(device, what, bytes, text.data(), nullptr) != result::success) {
    return {};
  }
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

template <class Number>
Number number_of(const Table& table, cl_device_id device, cl_uint what) {
  Number number = 0;
  const cl_int code = table.clGetDeviceInfo(device, what, sizeof number, &number, nullptr);
  return code == result::success ? number : Number{0};
}

/// Parses a version such as "OpenCL 3.0 vendor text".
bool parse_version(std::string_view text, DeviceFacts& facts) {
  constexpr std::string_view prefix = "OpenCL ";
  if (!text.starts_with(prefix)) return false;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data() + prefix.size(), end, facts.version_major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return false;
  return std::from_chars(major.ptr + 1, end, facts.version_minor).ec == std::errc{};
}

/// Returns why Tern cannot use the device, as the end of "it ", or an empty string.
std::string what_it_lacks(const Table& table, const DeviceFacts& facts) {
  if (facts.version_major < 2) {
    return fmt::format("has OpenCL {}.{}, but Tern needs 2.0", facts.version_major,
                       facts.version_minor);
  }
  if (number_of<cl_bool>(table, facts.id, device_available) == 0) return "is not available";
  if (number_of<cl_uint>(table, facts.id, device_address_bits) != 64) return "has 32-bit addresses";
  if ((facts.svm & svm_fine_grain_buffer) == 0) {
    // Plain addresses need less than this. But a driver without fine-grained memory was seen to
    // read host memory when a copy is submitted instead of when the queue reaches it, so a copy to
    // the host and back returned old bytes.
    return fmt::format(
        "lacks fine-grained shared virtual memory "
        "(CL_DEVICE_SVM_FINE_GRAIN_BUFFER){}",
        (facts.svm & svm_coarse_grain_buffer) == 0
            ? ""
            : ", and with its coarse-grained memory the copies of host memory are not kept in the "
              "queue's order");
  }
  if (facts.total_bytes == 0) return "does not report its memory size";
  return {};
}

DeviceFacts facts_of(const Table& table, cl_device_id device) {
  DeviceFacts facts;
  facts.id = device;
  facts.name = text_of(table, device, device_name);
  if (facts.name.empty()) facts.name = "a device without a name";
  const std::string version = text_of(table, device, device_version);
  parse_version(version, facts);
  facts.driver = fmt::format("{}, driver {}", version, text_of(table, device, driver_version));
  facts.type = number_of<cl_bitfield>(table, device, device_type);
  facts.svm = number_of<cl_bitfield>(table, device, device_svm_capabilities);
  facts.compute_units = std::max(1u, number_of<cl_uint>(table, device, device_max_compute_units));
  facts.total_bytes = number_of<cl_ulong>(table, device, device_global_mem_size);
  facts.largest_block_bytes = number_of<cl_ulong>(table, device, device_max_mem_alloc_size);
  facts.has_compiler = number_of<cl_bool>(table, device, device_compiler_available) != 0;
  constexpr cl_bitfield correctly_rounded_divide_sqrt = 1 << 7;
  facts.rounds_divisions = (number_of<cl_bitfield>(table, device, device_single_fp_config) &
                            correctly_rounded_divide_sqrt) != 0;
  facts.has_float64 = number_of<cl_bitfield>(table, device, device_double_fp_config) != 0;
  return facts;
}

}  // namespace

DeviceList find_devices(const Table& table) {
  DeviceList list;
  cl_uint platform_count = 0;
  const cl_int code = table.clGetPlatformIDs(0, nullptr, &platform_count);
  if (code != result::success && code != result::platform_not_found) {
    list.absence = fmt::format("clGetPlatformIDs returned {} ({}). Check the installed drivers",
                               name_of(code), code);
    return list;
  }
  std::vector<cl_platform_id> platforms(platform_count);
  if (platform_count == 0 ||
      table.clGetPlatformIDs(platform_count, platforms.data(), nullptr) != result::success) {
    list.absence =
        "the OpenCL loader found no platform. Install the driver of a device, for example "
        "pocl-opencl-icd";
    return list;
  }
  for (cl_platform_id platform : platforms) {
    cl_uint count = 0;
    if (table.clGetDeviceIDs(platform, device_type_all, 0, nullptr, &count) != result::success) {
      continue;
    }
    std::vector<cl_device_id> devices(count);
    if (count == 0 || table.clGetDeviceIDs(platform, device_type_all, count, devices.data(),
                                           nullptr) != result::success) {
      continue;
    }
    for (cl_device_id device : devices) {
      DeviceFacts facts = facts_of(table, device);
      if (const std::string lack = what_it_lacks(table, facts); !lack.empty()) {
        list.lacking.push_back(fmt::format("'{}' {}", facts.name, lack));
      } else {
        list.usable.push_back(std::move(facts));
      }
    }
  }
  if (!list.usable.empty()) return list;
  if (list.lacking.empty()) {
    list.absence =
        "no OpenCL platform has a device. Install the driver of a device, for example "
        "pocl-opencl-icd";
  } else {
    list.absence = fmt::format("{}. Use another device", fmt::join(list.lacking, "; "));
  }
  return list;
}

}  // namespace tern::opencl
