// OpenCL as Tern sees it: one function pointer per entry point, each with its exact type.
//
// The list of entries is a macro: the loader fills the table from it, and a test builds a table
// from it in which any one call fails. The table is filled once and then only read, so any thread
// may use it. The entries of the first list exist since OpenCL 2.0, and a loader without one of
// them cannot be used. Those of the second list are newer and may be null.

#pragma once

#include <cstddef>

#include "backends/opencl/opencl_abi.hpp"

namespace tern::opencl {

// One line per entry: return type, name and parameters.
#define TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)                                              \
  TERN_OPENCL_ENTRY(cl_int, clGetPlatformIDs,                                                      \
                    (cl_uint room, cl_platform_id * platforms, cl_uint * count))                   \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetPlatformInfo,                                                                   \
      (cl_platform_id platform, cl_uint what, std::size_t room, void* value, std::size_t* bytes))  \
  TERN_OPENCL_ENTRY(cl_int, clGetDeviceIDs,                                                        \
                    (cl_platform_id platform, cl_bitfield types, cl_uint room,                     \
                     cl_device_id * devices, cl_uint * count))                                     \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetDeviceInfo,                                                                     \
      (cl_device_id device, cl_uint what, std::size_t room, void* value, std::size_t* bytes))      \
  /* contexts and queues */                                                                        \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_context, clCreateContext,                                                                 \
      (const cl_context_properties* properties, cl_uint count, const cl_device_id* devices,        \
       ContextCallback notify, void* user_data, cl_int* result))                                   \
  TERN_OPENCL_ENTRY(cl_int, clReleaseContext, (cl_context context))                                \
  TERN_OPENCL_ENTRY(cl_command_queue, clCreateCommandQueueWithProperties,                          \
                    (cl_context context, cl_device_id device,                                      \
                     const cl_queue_properties* properties, cl_int* result))                       \
  TERN_OPENCL_ENTRY(cl_int, clReleaseCommandQueue, (cl_command_queue queue))                       \
  TERN_OPENCL_ENTRY(cl_int, clFlush, (cl_command_queue queue))                                     \
  /* memory */                                                                                     \
  TERN_OPENCL_ENTRY(void*, clSVMAlloc,                                                             \
                    (cl_context context, cl_bitfield flags, std::size_t bytes, cl_uint alignment)) \
  TERN_OPENCL_ENTRY(void, clSVMFree, (cl_context context, void* address))                          \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueSVMFree,                                                                    \
      (cl_command_queue queue, cl_uint count, void* addresses[], FreeCallback release,             \
       void* user_data, cl_uint wait_count, const cl_event* waits, cl_event* event))               \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueSVMMemcpy,                                                                  \
      (cl_command_queue queue, cl_bool is_blocking, void* destination, const void* source,         \
       std::size_t bytes, cl_uint wait_count, const cl_event* waits, cl_event* event))             \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueSVMMemFill,                                                                 \
      (cl_command_queue queue, void* destination, const void* pattern, std::size_t pattern_bytes,  \
       std::size_t bytes, cl_uint wait_count, const cl_event* waits, cl_event* event))             \
  /* events */                                                                                     \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueMarkerWithWaitList,                                                         \
      (cl_command_queue queue, cl_uint wait_count, const cl_event* waits, cl_event* event))        \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueBarrierWithWaitList,                                                        \
      (cl_command_queue queue, cl_uint wait_count, const cl_event* waits, cl_event* event))        \
  TERN_OPENCL_ENTRY(cl_int, clWaitForEvents, (cl_uint count, const cl_event* events))              \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetEventInfo,                                                                      \
      (cl_event event, cl_uint what, std::size_t room, void* value, std::size_t* bytes))           \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetEventProfilingInfo,                                                             \
      (cl_event event, cl_uint what, std::size_t room, void* value, std::size_t* bytes))           \
  TERN_OPENCL_ENTRY(cl_int, clReleaseEvent, (cl_event event))                                      \
  TERN_OPENCL_ENTRY(cl_event, clCreateUserEvent, (cl_context context, cl_int * result))            \
  TERN_OPENCL_ENTRY(cl_int, clSetUserEventStatus, (cl_event event, cl_int status))                 \
  /* kernels */                                                                                    \
  TERN_OPENCL_ENTRY(cl_program, clCreateProgramWithSource,                                         \
                    (cl_context context, cl_uint count, const char** texts,                        \
                     const std::size_t* lengths, cl_int* result))                                  \
  TERN_OPENCL_ENTRY(cl_int, clBuildProgram,                                                        \
                    (cl_program program, cl_uint count, const cl_device_id* devices,               \
                     const char* options, BuildCallback notify, void* user_data))                  \
  TERN_OPENCL_ENTRY(cl_int, clGetProgramBuildInfo,                                                 \
                    (cl_program program, cl_device_id device, cl_uint what, std::size_t room,      \
                     void* value, std::size_t* bytes))                                             \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetProgramInfo,                                                                    \
      (cl_program program, cl_uint what, std::size_t room, void* value, std::size_t* bytes))       \
  TERN_OPENCL_ENTRY(cl_int, clReleaseProgram, (cl_program program))                                \
  TERN_OPENCL_ENTRY(cl_kernel, clCreateKernel,                                                     \
                    (cl_program program, const char* name, cl_int* result))                        \
  TERN_OPENCL_ENTRY(cl_int, clReleaseKernel, (cl_kernel kernel))                                   \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clGetKernelInfo,                                                                     \
      (cl_kernel kernel, cl_uint what, std::size_t room, void* value, std::size_t* bytes))         \
  TERN_OPENCL_ENTRY(cl_int, clGetKernelArgInfo,                                                    \
                    (cl_kernel kernel, cl_uint index, cl_uint what, std::size_t room, void* value, \
                     std::size_t* bytes))                                                          \
  TERN_OPENCL_ENTRY(cl_int, clSetKernelArg,                                                        \
                    (cl_kernel kernel, cl_uint index, std::size_t bytes, const void* value))       \
  TERN_OPENCL_ENTRY(cl_int, clSetKernelArgSVMPointer,                                              \
                    (cl_kernel kernel, cl_uint index, const void* address))                        \
  TERN_OPENCL_ENTRY(cl_int, clSetKernelExecInfo,                                                   \
                    (cl_kernel kernel, cl_uint what, std::size_t bytes, const void* value))        \
  TERN_OPENCL_ENTRY(                                                                               \
      cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const std::size_t* offset,    \
       const std::size_t* global, const std::size_t* local, cl_uint wait_count,                    \
       const cl_event* waits, cl_event* event))

// Since OpenCL 2.1.
#define TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)                                     \
  TERN_OPENCL_ENTRY(                                                                            \
      cl_int, clEnqueueSVMMigrateMem,                                                           \
      (cl_command_queue queue, cl_uint count, const void** addresses, const std::size_t* bytes, \
       cl_bitfield flags, cl_uint wait_count, const cl_event* waits, cl_event* event))

struct Table {
#define TERN_OPENCL_ENTRY(returned, name, parameters) returned(*name) parameters = nullptr;
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
  TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
};

}  // namespace tern::opencl
