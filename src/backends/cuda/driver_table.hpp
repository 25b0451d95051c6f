// The driver as Tern sees it: one function pointer per entry point, each with its exact type.
//
// The signature of an entry point may change with a version of CUDA. Tern requests an entry by its
// name and by the version in which the wanted signature appeared. The driver returns the newest
// signature that is not newer than that version. So the version belongs to the type of the slot; it
// is never the version of the driver or of a toolkit. It is also the oldest driver that has the
// entry. If Tern uses two signatures of one entry, the table has two slots, and the name of the
// older one contains its version.
//
// The table is filled once and then only read, so any thread may use it. An optional entry is null
// if the driver does not have it. If a required entry is missing, the driver cannot be used.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "backends/cuda/driver_abi.hpp"

namespace tern::cuda {

// One line per entry: the slot, the name and the version to request, whether Tern requires the
// entry, and the parameters. Every entry returns a CUresult.
#define TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)                                              \
  TERN_DRIVER_ENTRY(cuInit, cuInit, 2000, required, (unsigned flags))                              \
  TERN_DRIVER_ENTRY(cuDriverGetVersion, cuDriverGetVersion, 2020, required, (int* version))        \
  TERN_DRIVER_ENTRY(cuGetErrorName, cuGetErrorName, 6000, required,                                \
                    (CUresult result, const char** text))                                          \
  /* devices */                                                                                    \
  TERN_DRIVER_ENTRY(cuDeviceGet, cuDeviceGet, 2000, required, (CUdevice * device, int ordinal))    \
  TERN_DRIVER_ENTRY(cuDeviceGetCount, cuDeviceGetCount, 2000, required, (int* count))              \
  TERN_DRIVER_ENTRY(cuDeviceGetName, cuDeviceGetName, 2000, required,                              \
                    (char* text, int text_bytes, CUdevice device))                                 \
  TERN_DRIVER_ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, required,                    \
                    (int* value, CUdevice_attribute attribute, CUdevice device))                   \
  TERN_DRIVER_ENTRY(cuDeviceTotalMem, cuDeviceTotalMem, 3020, required,                            \
                    (std::size_t * bytes, CUdevice device))                                        \
  TERN_DRIVER_ENTRY(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, required,                  \
                    (int* can_access, CUdevice device, CUdevice peer))                             \
  /* contexts */                                                                                   \
  TERN_DRIVER_ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, required,            \
                    (CUcontext * context, CUdevice device))                                        \
  TERN_DRIVER_ENTRY(cuCtxGetCurrent, cuCtxGetCurrent, 4000, required, (CUcontext * context))       \
  TERN_DRIVER_ENTRY(cuCtxSetCurrent, cuCtxSetCurrent, 4000, required, (CUcontext context))         \
  TERN_DRIVER_ENTRY(cuCtxPushCurrent, cuCtxPushCurrent, 4000, required, (CUcontext context))       \
  TERN_DRIVER_ENTRY(cuCtxPopCurrent, cuCtxPopCurrent, 4000, required, (CUcontext * context))       \
  TERN_DRIVER_ENTRY(cuCtxSynchronize, cuCtxSynchronize, 2000, required, ())                        \
  TERN_DRIVER_ENTRY(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, required,      \
                    (int* least, int* greatest))                                                   \
  TERN_DRIVER_ENTRY(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, required,                  \
                    (CUcontext peer, unsigned flags))                                              \
  TERN_DRIVER_ENTRY(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, required,                \
                    (CUcontext peer))                                                              \
  /* streams */                                                                                    \
  TERN_DRIVER_ENTRY(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, required,        \
                    (CUstream * stream, unsigned flags, int priority))                             \
  TERN_DRIVER_ENTRY(cuStreamDestroy, cuStreamDestroy, 4000, required, (CUstream stream))           \
  TERN_DRIVER_ENTRY(cuStreamQuery, cuStreamQuery, 2000, required, (CUstream stream))               \
  TERN_DRIVER_ENTRY(cuStreamSynchronize, cuStreamSynchronize, 2000, required, (CUstream stream))   \
  TERN_DRIVER_ENTRY(cuStreamWaitEvent, cuStreamWaitEvent, 3020, required,                          \
                    (CUstream stream, CUevent event, unsigned flags))                              \
  TERN_DRIVER_ENTRY(cuStreamGetFlags, cuStreamGetFlags, 5050, required,                            \
                    (CUstream stream, unsigned* flags))                                            \
  TERN_DRIVER_ENTRY(cuStreamGetCtx, cuStreamGetCtx, 9020, required,                                \
                    (CUstream stream, CUcontext * context))                                        \
  TERN_DRIVER_ENTRY(cuStreamGetId, cuStreamGetId, 12000, optional,                                 \
                    (CUstream stream, unsigned long long* id))                                     \
  TERN_DRIVER_ENTRY(cuStreamIsCapturing, cuStreamIsCapturing, 10000, required,                     \
                    (CUstream stream, CUstreamCaptureStatus * status))                             \
  TERN_DRIVER_ENTRY(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010,   \
                    required, (CUstreamCaptureMode * mode))                                        \
  TERN_DRIVER_ENTRY(cuLaunchHostFunc, cuLaunchHostFunc, 10000, required,                           \
                    (CUstream stream, CUhostFn function, void* context))                           \
  /* graphs */                                                                                     \
  TERN_DRIVER_ENTRY(cuStreamBeginCapture, cuStreamBeginCapture, 10010, required,                   \
                    (CUstream stream, CUstreamCaptureMode mode))                                   \
  TERN_DRIVER_ENTRY(cuStreamEndCapture, cuStreamEndCapture, 10000, required,                       \
                    (CUstream stream, CUgraph * graph))                                            \
  TERN_DRIVER_ENTRY(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, optional,     \
                    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))           \
  TERN_DRIVER_ENTRY(cuGraphLaunch, cuGraphLaunch, 10000, required,                                 \
                    (CUgraphExec executable, CUstream stream))                                     \
  TERN_DRIVER_ENTRY(cuGraphExecDestroy, cuGraphExecDestroy, 10000, required,                       \
                    (CUgraphExec executable))                                                      \
  TERN_DRIVER_ENTRY(cuGraphDestroy, cuGraphDestroy, 10000, required, (CUgraph graph))              \
  /* events */                                                                                     \
  TERN_DRIVER_ENTRY(cuEventCreate, cuEventCreate, 2000, required,                                  \
                    (CUevent * event, unsigned flags))                                             \
  TERN_DRIVER_ENTRY(cuEventDestroy, cuEventDestroy, 4000, required, (CUevent event))               \
  TERN_DRIVER_ENTRY(cuEventRecord, cuEventRecord, 2000, required,                                  \
                    (CUevent event, CUstream stream))                                              \
  TERN_DRIVER_ENTRY(cuEventQuery, cuEventQuery, 2000, required, (CUevent event))                   \
  TERN_DRIVER_ENTRY(cuEventSynchronize, cuEventSynchronize, 2000, required, (CUevent event))       \
  TERN_DRIVER_ENTRY(cuEventElapsedTime, cuEventElapsedTime, 2000, required,                        \
                    (float* milliseconds, CUevent start, CUevent end))                             \
  /* plain and pinned memory */                                                                    \
  TERN_DRIVER_ENTRY(cuMemGetInfo, cuMemGetInfo, 3020, required,                                    \
                    (std::size_t * free_bytes, std::size_t * total_bytes))                         \
  TERN_DRIVER_ENTRY(cuMemAlloc, cuMemAlloc, 3020, required,                                        \
                    (CUdeviceptr * address, std::size_t bytes))                                    \
  TERN_DRIVER_ENTRY(cuMemFree, cuMemFree, 3020, required, (CUdeviceptr address))                   \
  TERN_DRIVER_ENTRY(cuMemHostAlloc, cuMemHostAlloc, 2020, required,                                \
                    (void** address, std::size_t bytes, unsigned flags))                           \
  TERN_DRIVER_ENTRY(cuMemFreeHost, cuMemFreeHost, 2000, required, (void* address))                 \
  TERN_DRIVER_ENTRY(cuMemHostRegister, cuMemHostRegister, 6050, required,                          \
                    (void* address, std::size_t bytes, unsigned flags))                            \
  TERN_DRIVER_ENTRY(cuMemHostUnregister, cuMemHostUnregister, 4000, required, (void* address))     \
  TERN_DRIVER_ENTRY(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer, 3020, required,          \
                    (CUdeviceptr * device_address, void* address, unsigned flags))                 \
  TERN_DRIVER_ENTRY(                                                                               \
      cuPointerGetAttributes, cuPointerGetAttributes, 7000, required,                              \
      (unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address))         \
  /* copies and fills */                                                                           \
  TERN_DRIVER_ENTRY(cuMemcpyAsync, cuMemcpyAsync, 4000, required,                                  \
                    (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream))        \
  TERN_DRIVER_ENTRY(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, required,                          \
                    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,                       \
                     CUcontext from_context, std::size_t bytes, CUstream stream))                  \
  TERN_DRIVER_ENTRY(cuMemcpy2DAsync, cuMemcpy2DAsync, 3020, required,                              \
                    (const CUDA_MEMCPY2D* copy, CUstream stream))                                  \
  TERN_DRIVER_ENTRY(cuMemcpyBatchAsync_12080, cuMemcpyBatchAsync, 12080, optional,                 \
                    (CUdeviceptr * to, CUdeviceptr * from, std::size_t * bytes, std::size_t count, \
                     CUmemcpyAttributes * attributes, std::size_t * attribute_starts,              \
                     std::size_t attribute_count, std::size_t * failed, CUstream stream))          \
  TERN_DRIVER_ENTRY(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 13000, optional,                       \
                    (CUdeviceptr * to, CUdeviceptr * from, std::size_t * bytes, std::size_t count, \
                     CUmemcpyAttributes * attributes, std::size_t * attribute_starts,              \
                     std::size_t attribute_count, CUstream stream))                                \
  TERN_DRIVER_ENTRY(cuMemsetD8Async, cuMemsetD8Async, 3020, required,                              \
                    (CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream))     \
  TERN_DRIVER_ENTRY(cuMemsetD16Async, cuMemsetD16Async, 3020, required,                            \
                    (CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream))    \
  TERN_DRIVER_ENTRY(cuMemsetD32Async, cuMemsetD32Async, 3020, required,                            \
                    (CUdeviceptr to, unsigned value, std::size_t count, CUstream stream))          \
  TERN_DRIVER_ENTRY(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, required,                          \
                    (CUdeviceptr to, std::size_t pitch_bytes, unsigned char value,                 \
                     std::size_t width, std::size_t height, CUstream stream))                      \
  /* the driver's pools */                                                                         \
  TERN_DRIVER_ENTRY(cuMemFreeAsync, cuMemFreeAsync, 11020, required,                               \
                    (CUdeviceptr address, CUstream stream))                                        \
  TERN_DRIVER_ENTRY(                                                                               \
      cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, required,                           \
      (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream))              \
  TERN_DRIVER_ENTRY(cuMemPoolCreate, cuMemPoolCreate, 11020, required,                             \
                    (CUmemoryPool * pool, const CUmemPoolProps* properties))                       \
  TERN_DRIVER_ENTRY(cuMemPoolDestroy, cuMemPoolDestroy, 11020, required, (CUmemoryPool pool))      \
  TERN_DRIVER_ENTRY(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, required,                 \
                    (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))               \
  TERN_DRIVER_ENTRY(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, required,                 \
                    (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))               \
  TERN_DRIVER_ENTRY(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, required,                       \
                    (CUmemoryPool pool, const CUmemAccessDesc* accesses, std::size_t count))       \
  /* virtual memory */                                                                             \
  TERN_DRIVER_ENTRY(cuMemAddressReserve, cuMemAddressReserve, 10020, required,                     \
                    (CUdeviceptr * address, std::size_t bytes, std::size_t alignment,              \
                     CUdeviceptr wish, unsigned long long flags))                                  \
  TERN_DRIVER_ENTRY(cuMemAddressFree, cuMemAddressFree, 10020, required,                           \
                    (CUdeviceptr address, std::size_t bytes))                                      \
  TERN_DRIVER_ENTRY(cuMemCreate, cuMemCreate, 10020, required,                                     \
                    (CUmemGenericAllocationHandle * pages, std::size_t bytes,                      \
                     const CUmemAllocationProp* properties, unsigned long long flags))             \
  TERN_DRIVER_ENTRY(cuMemRelease, cuMemRelease, 10020, required,                                   \
                    (CUmemGenericAllocationHandle pages))                                          \
  TERN_DRIVER_ENTRY(cuMemMap, cuMemMap, 10020, required,                                           \
                    (CUdeviceptr address, std::size_t bytes, std::size_t offset,                   \
                     CUmemGenericAllocationHandle pages, unsigned long long flags))                \
  TERN_DRIVER_ENTRY(cuMemUnmap, cuMemUnmap, 10020, required,                                       \
                    (CUdeviceptr address, std::size_t bytes))                                      \
  TERN_DRIVER_ENTRY(cuMemSetAccess, cuMemSetAccess, 10020, required,                               \
                    (CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses,      \
                     std::size_t count))                                                           \
  TERN_DRIVER_ENTRY(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, required, \
                    (std::size_t * bytes, const CUmemAllocationProp* properties,                   \
                     CUmemAllocationGranularity_flags option))                                     \
  TERN_DRIVER_ENTRY(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, required,   \
                    (void* shared, CUmemGenericAllocationHandle pages,                             \
                     CUmemAllocationHandleType type, unsigned long long flags))                    \
  TERN_DRIVER_ENTRY(                                                                               \
      cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, required,             \
      (CUmemGenericAllocationHandle * pages, void* shared, CUmemAllocationHandleType type))        \
  /* managed memory */                                                                             \
  TERN_DRIVER_ENTRY(cuMemAllocManaged, cuMemAllocManaged, 6000, required,                          \
                    (CUdeviceptr * address, std::size_t bytes, unsigned flags))                    \
  TERN_DRIVER_ENTRY(                                                                               \
      cuMemAdvise_8000, cuMemAdvise, 8000, required,                                               \
      (CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUdevice device))              \
  TERN_DRIVER_ENTRY(                                                                               \
      cuMemAdvise, cuMemAdvise, 12020, optional,                                                   \
      (CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUmemLocation location))       \
  TERN_DRIVER_ENTRY(cuMemPrefetchAsync_8000, cuMemPrefetchAsync, 8000, required,                   \
                    (CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream))    \
  TERN_DRIVER_ENTRY(cuMemPrefetchAsync, cuMemPrefetchAsync, 12020, optional,                       \
                    (CUdeviceptr address, std::size_t bytes, CUmemLocation location,               \
                     unsigned flags, CUstream stream))                                             \
  TERN_DRIVER_ENTRY(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, 13000, optional,             \
                    (CUdeviceptr * addresses, std::size_t * bytes, std::size_t count,              \
                     CUmemLocation * locations, std::size_t * location_starts,                     \
                     std::size_t location_count, unsigned long long flags, CUstream stream))       \
  TERN_DRIVER_ENTRY(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync, 13000, optional,               \
                    (CUdeviceptr * addresses, std::size_t * bytes, std::size_t count,              \
                     unsigned long long flags, CUstream stream))                                   \
  TERN_DRIVER_ENTRY(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, 13000,   \
                    optional,                                                                      \
                    (CUdeviceptr * addresses, std::size_t * bytes, std::size_t count,              \
                     CUmemLocation * locations, std::size_t * location_starts,                     \
                     std::size_t location_count, unsigned long long flags, CUstream stream))       \
  TERN_DRIVER_ENTRY(cuMemRangeGetAttributes, cuMemRangeGetAttributes, 8000, required,              \
                    (void** data, std::size_t* data_bytes, CUmem_range_attribute* attributes,      \
                     std::size_t count, CUdeviceptr address, std::size_t bytes))                   \
  /* kernels */                                                                                    \
  TERN_DRIVER_ENTRY(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, required,                        \
                    (CUmodule * module, const void* image, unsigned option_count,                  \
                     CUjit_option* options, void** option_values))                                 \
  TERN_DRIVER_ENTRY(cuModuleUnload, cuModuleUnload, 2000, required, (CUmodule module))             \
  TERN_DRIVER_ENTRY(cuModuleGetFunction, cuModuleGetFunction, 2000, required,                      \
                    (CUfunction * function, CUmodule module, const char* name))                    \
  TERN_DRIVER_ENTRY(cuModuleGetFunctionCount, cuModuleGetFunctionCount, 12040, optional,           \
                    (unsigned* count, CUmodule module))                                            \
  TERN_DRIVER_ENTRY(cuModuleEnumerateFunctions, cuModuleEnumerateFunctions, 12040, optional,       \
                    (CUfunction * functions, unsigned count, CUmodule module))                     \
  TERN_DRIVER_ENTRY(cuFuncGetName, cuFuncGetName, 12030, optional,                                 \
                    (const char** name, CUfunction function))                                      \
  TERN_DRIVER_ENTRY(                                                                               \
      cuFuncGetParamInfo, cuFuncGetParamInfo, 12040, optional,                                     \
      (CUfunction function, std::size_t index, std::size_t * offset, std::size_t * bytes))         \
  TERN_DRIVER_ENTRY(                                                                               \
      cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSize, 6050, required,          \
      (int* min_grid, int* block, CUfunction function, CUoccupancyB2DSize shared_bytes_of,         \
       std::size_t shared_bytes, int block_limit))                                                 \
  TERN_DRIVER_ENTRY(cuLaunchKernel, cuLaunchKernel, 4000, required,                                \
                    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,       \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,  \
                     CUstream stream, void** arguments, void** extra))

/// The function type of each slot: cuMemAlloc_type.
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  using slot##_type = CUresult parameters;
TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY

struct DriverTable {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) slot##_type* slot = nullptr;
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
};

/// The number of a slot, in the order of the list.
enum class DriverEntry : std::uint8_t {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) slot,
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
};

enum class Need : std::uint8_t { required, optional };

struct DriverEntryInfo {
  std::string_view slot;  // what Tern calls it: "cuMemAdvise_8000"
  const char* name;       // what the driver calls it: "cuMemAdvise"
  int version;            // the version to request, and the oldest driver that has it: 8000 is 8.0
  Need need;
};

inline constexpr std::array driver_entries = {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  DriverEntryInfo{#slot, #name, version, Need::need},
    TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
};

/// The function that returns all other entries. It is not in the table, because Tern looks it up in
/// the library, as "cuGetProcAddress_v2". This is its signature since 12.0.
using cuGetProcAddress_type = CUresult(const char* name, void** function, int version,
                                       std::uint64_t flags, CUdriverProcAddressQueryResult* status);

}  // namespace tern::cuda
