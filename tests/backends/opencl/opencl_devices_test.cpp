#include "backends/opencl/opencl_devices.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "backends/opencl/opencl_opener.hpp"

namespace tern::opencl {
namespace {

/// A device as its driver would describe it.
struct FakeDevice {
  std::string name = "a GPU";
  std::string version = "OpenCL 3.0 CUDA";
  cl_bitfield type = device_type_gpu;
  cl_bitfield svm = svm_coarse_grain_buffer | svm_fine_grain_buffer;
  cl_bool is_available = 1;
  cl_uint address_bits = 64;
  cl_ulong total_bytes = 1 << 30;
  cl_bitfield float64 = 0;
};

/// A machine of any platforms, which the functions below describe to whoever asks.
struct Machine {
  cl_int platforms_result = result::success;
  std::vector<std::vector<FakeDevice>> platforms;
};
Machine* machine = nullptr;

template <class Handle>
Handle handle_of(const void* target) {
  return reinterpret_cast<Handle>(const_cast<void*>(target));
}

cl_int get_platforms(cl_uint room, cl_platform_id* platforms, cl_uint* count) {
  if (machine->platforms_result != result::success) return machine->platforms_result;
  if (count != nullptr) *count = static_cast<cl_uint>(machine->platforms.size());
  for (cl_uint i = 0; i < room; ++i) {
    platforms[i] = handle_of<cl_platform_id>(&machine->platforms[i]);
  }
  return result::success;
}

cl_int get_devices(cl_platform_id platform, cl_bitfield, cl_uint room, cl_device_id* devices,
                   cl_uint* count) {
  const auto& all = *reinterpret_cast<const std::vector<FakeDevice>*>(platform);
  if (all.empty()) return result::device_not_found;
  if (count != nullptr) *count = static_cast<cl_uint>(all.size());
  for (cl_uint i = 0; i < room; ++i) devices[i] = handle_of<cl_device_id>(&all[i]);
  return result::success;
}

cl_int get_info(cl_device_id device, cl_uint what, std::size_t room, void* value,
                std::size_t* bytes) {
  const auto& fake = *reinterpret_cast<const FakeDevice*>(device);
  const auto answer = [&](const void* from, std::size_t length) {
    if (bytes != nullptr) *bytes = length;
    if (value == nullptr) return result::success;
    if (room < length) return result::invalid_value;
    std::memcpy(value, from, length);
    return result::success;
  };
  switch (what) {
    case device_name:
      return answer(fake.name.c_str(), fake.name.size() + 1);
    case device_version:
      return answer(fake.version.c_str(), fake.version.size() + 1);
    case driver_version:
      return answer("570.1", 6);
    case device_type:
      return answer(&fake.type, sizeof fake.type);
    case device_svm_capabilities:
      // Devices before 2.0 do not know the question.
      if (fake.svm == 0) return result::invalid_value;
      return answer(&fake.svm, sizeof fake.svm);
    case device_available:
    case device_compiler_available:
      return answer(&fake.is_available, sizeof fake.is_available);
    case device_double_fp_config:
      return answer(&fake.float64, sizeof fake.float64);
    case device_address_bits:
      return answer(&fake.address_bits, sizeof fake.address_bits);
    case device_global_mem_size:
    case device_max_mem_alloc_size:
      return answer(&fake.total_bytes, sizeof fake.total_bytes);
    default:
      return result::invalid_value;
  }
}

class OpenClDevices : public testing::Test {
 protected:
  void SetUp() override { machine = &described; }
  void TearDown() override { machine = nullptr; }

  DeviceList find() {
    Table table;
    table.clGetPlatformIDs = get_platforms;
    table.clGetDeviceIDs = get_devices;
    table.clGetDeviceInfo = get_info;
    return find_devices(table);
  }

  Machine described;
};

TEST_F(OpenClDevices, AreThoseOfAllPlatformsInOrder) {
  described.platforms = {{{.name = "one"}, {.name = "two"}}, {}, {{.name = "three"}}};
  const DeviceList list = find();
  ASSERT_EQ(list.usable.size(), 3u);
  EXPECT_EQ(list.usable[0].name, "one");
  EXPECT_EQ(list.usable[1].name, "two");
  EXPECT_EQ(list.usable[2].name, "three");
  EXPECT_EQ(list.absence, "");
}

TEST_F(OpenClDevices, ComeWithTheirFacts) {
  described.platforms = {{{.version = "OpenCL 2.1 x", .svm = 3, .total_bytes = 4096}}};
  const DeviceFacts facts = find().usable.at(0);
  EXPECT_EQ(facts.version_major, 2u);
  EXPECT_EQ(facts.version_minor, 1u);
  EXPECT_EQ(facts.driver, "OpenCL 2.1 x, driver 570.1");
  EXPECT_EQ(facts.total_bytes, 4096u);
  EXPECT_EQ(facts.compute_units, 1u);  // at least, though nobody said so
  EXPECT_TRUE(facts.has_compiler);
  EXPECT_FALSE(facts.has_float64);
  EXPECT_TRUE(facts.is_fine_grained());
  EXPECT_TRUE(facts.is_accelerator());
}

TEST_F(OpenClDevices, SayWhetherTheyHaveFloatsOf64Bits) {
  described.platforms = {{{.float64 = 0x3F}}};
  EXPECT_TRUE(find().usable.at(0).has_float64);
}

TEST_F(OpenClDevices, AreAcceleratorsUnlessTheyAreTheProcessor) {
  described.platforms = {{{.type = device_type_cpu}, {.type = device_type_accelerator}}};
  const DeviceList list = find();
  EXPECT_FALSE(list.usable[0].is_accelerator());
  EXPECT_TRUE(list.usable[1].is_accelerator());
}

TEST_F(OpenClDevices, AreLeftOutWithWhatTheyLack) {
  described.platforms = {{{.name = "old", .version = "OpenCL 1.2 x"},
                          {.name = "plain", .svm = 0},
                          {.name = "coarse", .svm = svm_coarse_grain_buffer},
                          {.name = "narrow", .address_bits = 32},
                          {.name = "off", .is_available = 0},
                          {.name = "mute", .total_bytes = 0},
                          {.name = "odd", .version = "something else"},
                          {.name = "good"}}};
  const DeviceList list = find();
  ASSERT_EQ(list.usable.size(), 1u);
  EXPECT_EQ(list.usable[0].name, "good");
  EXPECT_EQ(list.lacking, (std::vector<std::string>{
                              "'old' has OpenCL 1.2, but Tern needs 2.0",
                              "'plain' lacks fine-grained shared virtual memory "
                              "(CL_DEVICE_SVM_FINE_GRAIN_BUFFER)",
                              "'coarse' lacks fine-grained shared virtual memory "
                              "(CL_DEVICE_SVM_FINE_GRAIN_BUFFER), and with its coarse-grained "
                              "memory the copies of host memory are not kept in the queue's order",
                              "'narrow' has 32-bit addresses", "'off' is not available",
                              "'mute' does not report its memory size",
                              "'odd' has OpenCL 0.0, but Tern needs 2.0"}));
}

TEST_F(OpenClDevices, AreAbsentWithEveryReasonThereIs) {
  described.platforms = {{{.name = "old", .version = "OpenCL 1.2 x"}}, {{.name = "x", .svm = 0}}};
  EXPECT_EQ(absence_sentence(find().absence),
            "backend 'opencl' is not available: 'old' has OpenCL 1.2, but Tern needs 2.0; 'x' "
            "lacks fine-grained shared virtual memory (CL_DEVICE_SVM_FINE_GRAIN_BUFFER). Use "
            "another device, or open 'sim' or 'host'.");
}

TEST_F(OpenClDevices, AreAbsentWithoutAPlatform) {
  const std::string expected =
      "the OpenCL loader found no platform. Install the driver of a device, for example "
      "pocl-opencl-icd";
  EXPECT_EQ(find().absence, expected);
  described.platforms_result = result::platform_not_found;
  EXPECT_EQ(find().absence, expected);
}

TEST_F(OpenClDevices, AreAbsentOnPlatformsWithoutADevice) {
  described.platforms = {{}, {}};
  EXPECT_EQ(find().absence,
            "no OpenCL platform has a device. Install the driver of a device, for example "
            "pocl-opencl-icd");
}

TEST_F(OpenClDevices, AreAbsentWhereTheLoaderFails) {
  described.platforms_result = result::out_of_host_memory;
  EXPECT_EQ(find().absence,
            "clGetPlatformIDs returned CL_OUT_OF_HOST_MEMORY (-6). Check the installed drivers");
}

}  // namespace
}  // namespace tern::opencl
