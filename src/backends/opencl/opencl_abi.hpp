// The part of OpenCL's binary interface that Tern uses, declared by Tern.
//
// Tern builds without an OpenCL SDK and finds OpenCL at run time. The types and numbers below are
// fixed by the specification for every implementation. A test compares all of them with the
// official header if the header is installed.
//
// Types have OpenCL's names, because manuals use them. In the official header every number is a
// macro. The numbers have other names here, because the macro would replace the name if both
// headers are included.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern::opencl {

using cl_int = std::int32_t;
using cl_uint = std::uint32_t;
using cl_ulong = std::uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_properties = cl_ulong;

using cl_platform_id = struct _cl_platform_id*;
using cl_device_id = struct _cl_device_id*;
using cl_context = struct _cl_context*;
using cl_command_queue = struct _cl_command_queue*;
using cl_program = struct _cl_program*;
using cl_kernel = struct _cl_kernel*;
using cl_event = struct _cl_event*;

using cl_context_properties = std::intptr_t;
using cl_queue_properties = cl_properties;

// --- Results

/// One line per result: its name in Tern, its name without CL_, and its number.
#define TERN_FOR_EACH_OPENCL_RESULT(TERN_OPENCL_RESULT)                                 \
  TERN_OPENCL_RESULT(success, SUCCESS, 0)                                               \
  TERN_OPENCL_RESULT(device_not_found, DEVICE_NOT_FOUND, -1)                            \
  TERN_OPENCL_RESULT(device_not_available, DEVICE_NOT_AVAILABLE, -2)                    \
  TERN_OPENCL_RESULT(compiler_not_available, COMPILER_NOT_AVAILABLE, -3)                \
  TERN_OPENCL_RESULT(mem_object_allocation_failure, MEM_OBJECT_ALLOCATION_FAILURE, -4)  \
  TERN_OPENCL_RESULT(out_of_resources, OUT_OF_RESOURCES, -5)                            \
  TERN_OPENCL_RESULT(out_of_host_memory, OUT_OF_HOST_MEMORY, -6)                        \
  TERN_OPENCL_RESULT(profiling_info_not_available, PROFILING_INFO_NOT_AVAILABLE, -7)    \
  TERN_OPENCL_RESULT(mem_copy_overlap, MEM_COPY_OVERLAP, -8)                            \
  TERN_OPENCL_RESULT(build_program_failure, BUILD_PROGRAM_FAILURE, -11)                 \
  TERN_OPENCL_RESULT(exec_status_error, EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, -14) \
  TERN_OPENCL_RESULT(kernel_arg_info_not_available, KERNEL_ARG_INFO_NOT_AVAILABLE, -19) \
  TERN_OPENCL_RESULT(invalid_value, INVALID_VALUE, -30)                                 \
  TERN_OPENCL_RESULT(invalid_platform, INVALID_PLATFORM, -32)                           \
  TERN_OPENCL_RESULT(invalid_device, INVALID_DEVICE, -33)                               \
  TERN_OPENCL_RESULT(invalid_context, INVALID_CONTEXT, -34)                             \
  TERN_OPENCL_RESULT(invalid_queue_properties, INVALID_QUEUE_PROPERTIES, -35)           \
  TERN_OPENCL_RESULT(invalid_command_queue, INVALID_COMMAND_QUEUE, -36)                 \
  TERN_OPENCL_RESULT(invalid_mem_object, INVALID_MEM_OBJECT, -38)                       \
  TERN_OPENCL_RESULT(invalid_build_options, INVALID_BUILD_OPTIONS, -43)                 \
  TERN_OPENCL_RESULT(invalid_program, INVALID_PROGRAM, -44)                             \
  TERN_OPENCL_RESULT(invalid_program_executable, INVALID_PROGRAM_EXECUTABLE, -45)       \
  TERN_OPENCL_RESULT(invalid_kernel_name, INVALID_KERNEL_NAME, -46)                     \
  TERN_OPENCL_RESULT(invalid_kernel, INVALID_KERNEL, -48)                               \
  TERN_OPENCL_RESULT(invalid_arg_index, INVALID_ARG_INDEX, -49)                         \
  TERN_OPENCL_RESULT(invalid_arg_value, INVALID_ARG_VALUE, -50)                         \
  TERN_OPENCL_RESULT(invalid_arg_size, INVALID_ARG_SIZE, -51)                           \
  TERN_OPENCL_RESULT(invalid_kernel_args, INVALID_KERNEL_ARGS, -52)                     \
  TERN_OPENCL_RESULT(invalid_work_dimension, INVALID_WORK_DIMENSION, -53)               \
  TERN_OPENCL_RESULT(invalid_work_group_size, INVALID_WORK_GROUP_SIZE, -54)             \
  TERN_OPENCL_RESULT(invalid_work_item_size, INVALID_WORK_ITEM_SIZE, -55)               \
  TERN_OPENCL_RESULT(invalid_event_wait_list, INVALID_EVENT_WAIT_LIST, -57)             \
  TERN_OPENCL_RESULT(invalid_event, INVALID_EVENT, -58)                                 \
  TERN_OPENCL_RESULT(invalid_operation, INVALID_OPERATION, -59)                         \
  TERN_OPENCL_RESULT(invalid_buffer_size, INVALID_BUFFER_SIZE, -61)                     \
  TERN_OPENCL_RESULT(invalid_global_work_size, INVALID_GLOBAL_WORK_SIZE, -63)

namespace result {
#define TERN_OPENCL_RESULT(name, official, number) inline constexpr cl_int name = number;
TERN_FOR_EACH_OPENCL_RESULT(TERN_OPENCL_RESULT)
#undef TERN_OPENCL_RESULT
/// The result of a loader that finds no implementation. It belongs to an extension, so it is in
/// another official header.
inline constexpr cl_int platform_not_found = -1001;
}  // namespace result

// --- Arguments and results of calls

/// One line per number: its name in Tern, its name without CL_, its type and its value.
#define TERN_FOR_EACH_OPENCL_NUMBER(TERN_OPENCL_NUMBER)                                            \
  TERN_OPENCL_NUMBER(platform_name, PLATFORM_NAME, cl_uint, 0x0902)                                \
  TERN_OPENCL_NUMBER(device_type_cpu, DEVICE_TYPE_CPU, cl_bitfield, 1 << 1)                        \
  TERN_OPENCL_NUMBER(device_type_gpu, DEVICE_TYPE_GPU, cl_bitfield, 1 << 2)                        \
  TERN_OPENCL_NUMBER(device_type_accelerator, DEVICE_TYPE_ACCELERATOR, cl_bitfield, 1 << 3)        \
  TERN_OPENCL_NUMBER(device_type_all, DEVICE_TYPE_ALL, cl_bitfield, 0xFFFFFFFF)                    \
  TERN_OPENCL_NUMBER(device_type, DEVICE_TYPE, cl_uint, 0x1000)                                    \
  TERN_OPENCL_NUMBER(device_max_compute_units, DEVICE_MAX_COMPUTE_UNITS, cl_uint, 0x1002)          \
  TERN_OPENCL_NUMBER(device_address_bits, DEVICE_ADDRESS_BITS, cl_uint, 0x100D)                    \
  TERN_OPENCL_NUMBER(device_max_mem_alloc_size, DEVICE_MAX_MEM_ALLOC_SIZE, cl_uint, 0x1010)        \
  TERN_OPENCL_NUMBER(device_global_mem_size, DEVICE_GLOBAL_MEM_SIZE, cl_uint, 0x101F)              \
  TERN_OPENCL_NUMBER(device_available, DEVICE_AVAILABLE, cl_uint, 0x1027)                          \
  TERN_OPENCL_NUMBER(device_compiler_available, DEVICE_COMPILER_AVAILABLE, cl_uint, 0x1028)        \
  TERN_OPENCL_NUMBER(device_name, DEVICE_NAME, cl_uint, 0x102B)                                    \
  TERN_OPENCL_NUMBER(driver_version, DRIVER_VERSION, cl_uint, 0x102D)                              \
  TERN_OPENCL_NUMBER(device_version, DEVICE_VERSION, cl_uint, 0x102F)                              \
  TERN_OPENCL_NUMBER(device_double_fp_config, DEVICE_DOUBLE_FP_CONFIG, cl_uint, 0x1032)            \
  TERN_OPENCL_NUMBER(device_single_fp_config, DEVICE_SINGLE_FP_CONFIG, cl_uint, 0x101B)            \
  TERN_OPENCL_NUMBER(device_svm_capabilities, DEVICE_SVM_CAPABILITIES, cl_uint, 0x1053)            \
  TERN_OPENCL_NUMBER(svm_coarse_grain_buffer, DEVICE_SVM_COARSE_GRAIN_BUFFER, cl_bitfield, 1 << 0) \
  TERN_OPENCL_NUMBER(svm_fine_grain_buffer, DEVICE_SVM_FINE_GRAIN_BUFFER, cl_bitfield, 1 << 1)     \
  TERN_OPENCL_NUMBER(svm_fine_grain_system, DEVICE_SVM_FINE_GRAIN_SYSTEM, cl_bitfield, 1 << 2)     \
  TERN_OPENCL_NUMBER(queue_properties, QUEUE_PROPERTIES, cl_uint, 0x1093)                          \
  TERN_OPENCL_NUMBER(queue_profiling_enable, QUEUE_PROFILING_ENABLE, cl_bitfield, 1 << 1)          \
  TERN_OPENCL_NUMBER(mem_read_write, MEM_READ_WRITE, cl_bitfield, 1 << 0)                          \
  TERN_OPENCL_NUMBER(mem_svm_fine_grain_buffer, MEM_SVM_FINE_GRAIN_BUFFER, cl_bitfield, 1 << 10)   \
  TERN_OPENCL_NUMBER(migrate_mem_object_host, MIGRATE_MEM_OBJECT_HOST, cl_bitfield, 1 << 0)        \
  TERN_OPENCL_NUMBER(program_kernel_names, PROGRAM_KERNEL_NAMES, cl_uint, 0x1168)                  \
  TERN_OPENCL_NUMBER(program_build_log, PROGRAM_BUILD_LOG, cl_uint, 0x1183)                        \
  TERN_OPENCL_NUMBER(kernel_num_args, KERNEL_NUM_ARGS, cl_uint, 0x1191)                            \
  TERN_OPENCL_NUMBER(kernel_arg_address_qualifier, KERNEL_ARG_ADDRESS_QUALIFIER, cl_uint, 0x1196)  \
  TERN_OPENCL_NUMBER(kernel_arg_type_name, KERNEL_ARG_TYPE_NAME, cl_uint, 0x1198)                  \
  TERN_OPENCL_NUMBER(kernel_arg_address_global, KERNEL_ARG_ADDRESS_GLOBAL, cl_uint, 0x119B)        \
  TERN_OPENCL_NUMBER(kernel_arg_address_local, KERNEL_ARG_ADDRESS_LOCAL, cl_uint, 0x119C)          \
  TERN_OPENCL_NUMBER(kernel_arg_address_constant, KERNEL_ARG_ADDRESS_CONSTANT, cl_uint, 0x119D)    \
  TERN_OPENCL_NUMBER(kernel_arg_address_private, KERNEL_ARG_ADDRESS_PRIVATE, cl_uint, 0x119E)      \
  TERN_OPENCL_NUMBER(kernel_exec_info_svm_ptrs, KERNEL_EXEC_INFO_SVM_PTRS, cl_uint, 0x11B6)        \
  TERN_OPENCL_NUMBER(event_command_execution_status, EVENT_COMMAND_EXECUTION_STATUS, cl_uint,      \
                     0x11D3)                                                                       \
  TERN_OPENCL_NUMBER(complete, COMPLETE, cl_int, 0)                                                \
  TERN_OPENCL_NUMBER(profiling_command_end, PROFILING_COMMAND_END, cl_uint, 0x1283)

#define TERN_OPENCL_NUMBER(name, official, type, value) inline constexpr type name = value;
TERN_FOR_EACH_OPENCL_NUMBER(TERN_OPENCL_NUMBER)
#undef TERN_OPENCL_NUMBER

// --- Callbacks

using ContextCallback = void (*)(const char* text, const void* facts, std::size_t facts_bytes,
                                 void* user_data);
using BuildCallback = void (*)(cl_program program, void* user_data);
using FreeCallback = void (*)(cl_command_queue queue, cl_uint pointer_count, void* pointers[],
                              void* user_data);

}  // namespace tern::opencl
