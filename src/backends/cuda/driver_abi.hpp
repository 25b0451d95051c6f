// The part of the CUDA driver's binary interface that Tern uses, declared by Tern.
//
// Tern builds without a CUDA toolkit and finds the driver at run time, so the headers of a toolkit
// may not match that driver. The layouts and numbers below are the driver's own, which never
// change. A test compares all of them with the official header if the header is installed.
//
// Types and enumerators have the driver's names, because errors and manuals use them. Macros of the
// official header have other names here, because the macro would replace the name if both headers
// are included. Every enum has a fixed underlying type, so that it can hold values of newer
// drivers. Structs are zero-initialized, because the driver expects zeros in fields that it does
// not know yet.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern::cuda {

// --- Results

/// One line per result that Tern uses: its name and its number.
#define TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)                \
  TERN_CUDA_RESULT(CUDA_SUCCESS, 0)                                \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_VALUE, 1)                    \
  TERN_CUDA_RESULT(CUDA_ERROR_OUT_OF_MEMORY, 2)                    \
  TERN_CUDA_RESULT(CUDA_ERROR_NOT_INITIALIZED, 3)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_DEINITIALIZED, 4)                    \
  TERN_CUDA_RESULT(CUDA_ERROR_STUB_LIBRARY, 34)                    \
  TERN_CUDA_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)              \
  TERN_CUDA_RESULT(CUDA_ERROR_NO_DEVICE, 100)                      \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_DEVICE, 101)                 \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_IMAGE, 200)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_CONTEXT, 201)                \
  TERN_CUDA_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)              \
  TERN_CUDA_RESULT(CUDA_ERROR_ECC_UNCORRECTABLE, 214)              \
  TERN_CUDA_RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)        \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_PTX, 218)                    \
  TERN_CUDA_RESULT(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)           \
  TERN_CUDA_RESULT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)         \
  TERN_CUDA_RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)        \
  TERN_CUDA_RESULT(CUDA_ERROR_CONTAINED, 226)                      \
  TERN_CUDA_RESULT(CUDA_ERROR_OPERATING_SYSTEM, 304)               \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_HANDLE, 400)                 \
  TERN_CUDA_RESULT(CUDA_ERROR_ILLEGAL_STATE, 401)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_NOT_FOUND, 500)                      \
  TERN_CUDA_RESULT(CUDA_ERROR_NOT_READY, 600)                      \
  TERN_CUDA_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                \
  TERN_CUDA_RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)        \
  TERN_CUDA_RESULT(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                 \
  TERN_CUDA_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)    \
  TERN_CUDA_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705)        \
  TERN_CUDA_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)           \
  TERN_CUDA_RESULT(CUDA_ERROR_ASSERT, 710)                         \
  TERN_CUDA_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
  TERN_CUDA_RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)     \
  TERN_CUDA_RESULT(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)           \
  TERN_CUDA_RESULT(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)            \
  TERN_CUDA_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, 716)             \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)          \
  TERN_CUDA_RESULT(CUDA_ERROR_INVALID_PC, 718)                     \
  TERN_CUDA_RESULT(CUDA_ERROR_LAUNCH_FAILED, 719)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)             \
  TERN_CUDA_RESULT(CUDA_ERROR_NOT_PERMITTED, 800)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_NOT_SUPPORTED, 801)                  \
  TERN_CUDA_RESULT(CUDA_ERROR_SYSTEM_NOT_READY, 802)               \
  TERN_CUDA_RESULT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)         \
  TERN_CUDA_RESULT(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
  TERN_CUDA_RESULT(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)          \
  TERN_CUDA_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)     \
  TERN_CUDA_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)     \
  TERN_CUDA_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)        \
  TERN_CUDA_RESULT(CUDA_ERROR_CAPTURED_EVENT, 907)                 \
  TERN_CUDA_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)    \
  TERN_CUDA_RESULT(CUDA_ERROR_UNKNOWN, 999)

enum CUresult : int {
#define TERN_CUDA_RESULT(name, number) name = number,
  TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
};

// --- Handles and addresses

using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = struct CUctx_st*;
// A type of this namespace, even if a header of another library has declared the global one.
struct CUstream_st;
using CUstream = CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUoccupancyB2DSize = std::size_t (*)(int block_threads);
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUarray = struct CUarray_st*;
using CUhostFn = void (*)(void* context);

/// The host, in calls that take a device instead of a CUmemLocation; and no device, in results.
inline constexpr CUdevice device_cpu = -1;
inline constexpr CUdevice device_invalid = -2;

/// Values of a CUstream that are not handles. The third value is null, which means the legacy
/// stream.
inline constexpr std::uintptr_t stream_legacy = 1;
inline constexpr std::uintptr_t stream_per_thread = 2;

// --- Looking entries up

/// Flags of cuGetProcAddress: which stream a null handle means for the returned function.
inline constexpr std::uint64_t get_proc_address_legacy_stream = 1;
inline constexpr std::uint64_t get_proc_address_per_thread_stream = 2;

enum CUdriverProcAddressQueryResult : int {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

// --- Devices

/// One line per attribute that Tern queries: its name without CU_DEVICE_ATTRIBUTE_, and its number.
#define TERN_FOR_EACH_CUDA_ATTRIBUTE(TERN_CUDA_ATTRIBUTE)                 \
  TERN_CUDA_ATTRIBUTE(MAX_THREADS_PER_BLOCK, 1)                           \
  TERN_CUDA_ATTRIBUTE(WARP_SIZE, 10)                                      \
  TERN_CUDA_ATTRIBUTE(MULTIPROCESSOR_COUNT, 16)                           \
  TERN_CUDA_ATTRIBUTE(INTEGRATED, 18)                                     \
  TERN_CUDA_ATTRIBUTE(ASYNC_ENGINE_COUNT, 40)                             \
  TERN_CUDA_ATTRIBUTE(UNIFIED_ADDRESSING, 41)                             \
  TERN_CUDA_ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR, 75)                       \
  TERN_CUDA_ATTRIBUTE(COMPUTE_CAPABILITY_MINOR, 76)                       \
  TERN_CUDA_ATTRIBUTE(MANAGED_MEMORY, 83)                                 \
  TERN_CUDA_ATTRIBUTE(HOST_NATIVE_ATOMIC_SUPPORTED, 86)                   \
  TERN_CUDA_ATTRIBUTE(PAGEABLE_MEMORY_ACCESS, 88)                         \
  TERN_CUDA_ATTRIBUTE(CONCURRENT_MANAGED_ACCESS, 89)                      \
  TERN_CUDA_ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)        \
  TERN_CUDA_ATTRIBUTE(HOST_REGISTER_SUPPORTED, 99)                        \
  TERN_CUDA_ATTRIBUTE(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 100)  \
  TERN_CUDA_ATTRIBUTE(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 101)           \
  TERN_CUDA_ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)           \
  TERN_CUDA_ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)   \
  TERN_CUDA_ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED, 113)             \
  TERN_CUDA_ATTRIBUTE(MEMORY_POOLS_SUPPORTED, 115)                        \
  TERN_CUDA_ATTRIBUTE(GPU_DIRECT_RDMA_SUPPORTED, 116)                     \
  TERN_CUDA_ATTRIBUTE(MEMPOOL_SUPPORTED_HANDLE_TYPES, 119)                \
  TERN_CUDA_ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS, 122)                 \
  TERN_CUDA_ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED, 128)                  \
  TERN_CUDA_ATTRIBUTE(NUMA_CONFIG, 130)                                   \
  TERN_CUDA_ATTRIBUTE(NUMA_ID, 131)                                       \
  TERN_CUDA_ATTRIBUTE(HOST_NUMA_ID, 134)                                  \
  TERN_CUDA_ATTRIBUTE(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 141) \
  TERN_CUDA_ATTRIBUTE(HOST_NUMA_MEMORY_POOLS_SUPPORTED, 142)              \
  TERN_CUDA_ATTRIBUTE(HOST_MEMORY_POOLS_SUPPORTED, 144)                   \
  TERN_CUDA_ATTRIBUTE(HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 145)

enum CUdevice_attribute : int {
#define TERN_CUDA_ATTRIBUTE(name, number) CU_DEVICE_ATTRIBUTE_##name = number,
  TERN_FOR_EACH_CUDA_ATTRIBUTE(TERN_CUDA_ATTRIBUTE)
#undef TERN_CUDA_ATTRIBUTE
};

// --- Streams and events

enum CUstream_flags : unsigned {
  CU_STREAM_DEFAULT = 0,
  CU_STREAM_NON_BLOCKING = 1,
};

enum CUevent_flags : unsigned {
  CU_EVENT_DEFAULT = 0,
  CU_EVENT_BLOCKING_SYNC = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_EVENT_INTERPROCESS = 4,
};

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

// --- Memory

inline constexpr unsigned host_alloc_portable = 1;
inline constexpr unsigned host_alloc_device_map = 2;
inline constexpr unsigned host_alloc_write_combined = 4;
inline constexpr unsigned host_register_portable = 1;
inline constexpr unsigned host_register_device_map = 2;
inline constexpr unsigned host_register_io_memory = 4;
inline constexpr unsigned host_register_read_only = 8;

enum CUmemAttach_flags : unsigned {
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_MEM_ATTACH_HOST = 2,
  CU_MEM_ATTACH_SINGLE = 4,
};

enum CUmemorytype : unsigned {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_ARRAY = 3,
  CU_MEMORYTYPE_UNIFIED = 4,
};

enum CUmemLocationType : int {
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
  CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
};

struct CUmemLocation {
  CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
  int id = 0;
};

enum CUmemAllocationType : int {
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};

enum CUmemAllocationHandleType : int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};

struct CUmemAllocationProp {
  CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUmemAllocationHandleType requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmemLocation location = {};
  void* win32HandleMetaData = nullptr;
  struct AllocFlags {
    unsigned char compressionType = 0;
    unsigned char gpuDirectRDMACapable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } allocFlags = {};
};

enum CUmemAccess_flags : int {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

struct CUmemAccessDesc {
  CUmemLocation location = {};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

enum CUmemAllocationGranularity_flags : int {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};

/// All fields after maxSize must be zero.
struct CUmemPoolProps {
  CUmemAllocationType allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUmemAllocationHandleType handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmemLocation location = {};
  void* win32SecurityAttributes = nullptr;
  std::size_t maxSize = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};

/// Flags have the type int, sizes 64 bits.
enum CUmemPool_attribute : int {
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

// --- Managed memory

enum CUmem_advise : int {
  CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};

enum CUmem_range_attribute : int {
  CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
  CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
  CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
  CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
  CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5,
  CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6,
  CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7,
  CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8,
};

// --- Copies

struct CUDA_MEMCPY2D {
  std::size_t srcXInBytes = 0;
  std::size_t srcY = 0;
  CUmemorytype srcMemoryType = {};
  const void* srcHost = nullptr;
  CUdeviceptr srcDevice = 0;
  CUarray srcArray = nullptr;
  std::size_t srcPitch = 0;
  std::size_t dstXInBytes = 0;
  std::size_t dstY = 0;
  CUmemorytype dstMemoryType = {};
  void* dstHost = nullptr;
  CUdeviceptr dstDevice = 0;
  CUarray dstArray = nullptr;
  std::size_t dstPitch = 0;
  std::size_t WidthInBytes = 0;
  std::size_t Height = 0;
};

enum CUmemcpySrcAccessOrder : int {
  CU_MEMCPY_SRC_ACCESS_ORDER_INVALID = 0,
  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
  CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
  CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
};

enum CUmemcpyFlags : unsigned {
  CU_MEMCPY_FLAG_DEFAULT = 0,
  CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
};

struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CUmemLocation srcLocHint = {};
  CUmemLocation dstLocHint = {};
  unsigned flags = 0;
};

// --- Kernels

/// Options for the error log of the driver's compiler: where to write it, and its maximum size.
enum CUjit_option : int {
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

}  // namespace tern::cuda
