// The official header has macros named like the entries, so ours comes first and is used by the
// names those leave alone.
#include "backends/cuda/driver_abi.hpp"

#include <gtest/gtest.h>

#include <type_traits>

#include "backends/cuda/driver_table.hpp"

#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#include <cudaTypedefs.h>
#if CUDA_VERSION >= 13000
#define TERN_HAS_CUDA_HEADER 1
#endif
#endif

namespace tern::cuda {
namespace {

#ifdef TERN_HAS_CUDA_HEADER

// Whether two parameters are passed the same way and mean the same size. What pointers point to
// differs by name, so it is compared by the layouts below.
template <class Ours, class Theirs>
constexpr bool is_passed_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    if constexpr (!std::is_pointer_v<Ours> || !std::is_pointer_v<Theirs>) {
      return false;
    } else {
      using A = std::remove_pointer_t<Ours>;
      using B = std::remove_pointer_t<Theirs>;
      if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
        return std::is_void_v<A> == std::is_void_v<B> && std::is_const_v<A> == std::is_const_v<B>;
      } else if constexpr (std::is_function_v<A> || std::is_function_v<B>) {
        return std::is_same_v<A, B>;
      } else if constexpr (std::is_pointer_v<A> || std::is_arithmetic_v<A> || std::is_enum_v<A>) {
        return std::is_const_v<A> == std::is_const_v<B> && is_passed_alike<A, B>();
      } else {
        // A handle, or a struct whose layout is compared below.
        return std::is_class_v<A> && std::is_class_v<B> && std::is_const_v<A> == std::is_const_v<B>;
      }
    }
  } else if constexpr (std::is_class_v<Ours>) {
    return std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  } else {
    return std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs> &&
           !std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class... Ours, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct Alike<CUresult(Ours...), ::CUresult (*)(Theirs...)> {
  static constexpr bool value = (is_passed_alike<Ours, Theirs>() && ...);
};

// The official type of an entry has its version in its name: a version at which no shape appeared
// does not compile, and neither does one whose shape is another.
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters)      \
  static_assert(Alike<slot##_type, ::PFN_##name##_v##version>::value, \
                #slot " differs from the official type of its version");
TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
static_assert(Alike<cuGetProcAddress_type, ::PFN_cuGetProcAddress_v12000>::value);

// The comparison can say no: other versions of the same names, and a changed parameter.
static_assert(!Alike<cuMemAdvise_type, ::PFN_cuMemAdvise_v8000>::value);
static_assert(!Alike<cuMemcpyBatchAsync_type, ::PFN_cuMemcpyBatchAsync_v12080>::value);
static_assert(!Alike<cuStreamGetCtx_type, ::PFN_cuStreamGetCtx_v12050>::value);
static_assert(!Alike<CUresult(CUdeviceptr*, int), ::PFN_cuMemAlloc_v3020>::value);
static_assert(!Alike<CUresult(int*, std::size_t), ::PFN_cuMemAlloc_v3020>::value);
static_assert(!Alike<CUresult(double*, CUevent, CUevent), ::PFN_cuEventElapsedTime_v2000>::value);

#define TERN_SAME(name) \
  static_assert(static_cast<long>(::name) == static_cast<long>(tern::cuda::name), #name)

#define TERN_CUDA_RESULT(name, number) TERN_SAME(name);
TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
#define TERN_CUDA_ATTRIBUTE(name, number) TERN_SAME(CU_DEVICE_ATTRIBUTE_##name);
TERN_FOR_EACH_CUDA_ATTRIBUTE(TERN_CUDA_ATTRIBUTE)
#undef TERN_CUDA_ATTRIBUTE

TERN_SAME(CU_GET_PROC_ADDRESS_SUCCESS);
TERN_SAME(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
TERN_SAME(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
TERN_SAME(CU_STREAM_DEFAULT);
TERN_SAME(CU_STREAM_NON_BLOCKING);
TERN_SAME(CU_EVENT_DEFAULT);
TERN_SAME(CU_EVENT_BLOCKING_SYNC);
TERN_SAME(CU_EVENT_DISABLE_TIMING);
TERN_SAME(CU_EVENT_INTERPROCESS);
TERN_SAME(CU_STREAM_CAPTURE_STATUS_NONE);
TERN_SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE);
TERN_SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
TERN_SAME(CU_STREAM_CAPTURE_MODE_GLOBAL);
TERN_SAME(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
TERN_SAME(CU_STREAM_CAPTURE_MODE_RELAXED);
TERN_SAME(CU_MEM_ATTACH_GLOBAL);
TERN_SAME(CU_MEM_ATTACH_HOST);
TERN_SAME(CU_MEM_ATTACH_SINGLE);
TERN_SAME(CU_MEMORYTYPE_HOST);
TERN_SAME(CU_MEMORYTYPE_DEVICE);
TERN_SAME(CU_MEMORYTYPE_ARRAY);
TERN_SAME(CU_MEMORYTYPE_UNIFIED);
TERN_SAME(CU_MEM_LOCATION_TYPE_INVALID);
TERN_SAME(CU_MEM_LOCATION_TYPE_DEVICE);
TERN_SAME(CU_MEM_LOCATION_TYPE_HOST);
TERN_SAME(CU_MEM_LOCATION_TYPE_HOST_NUMA);
TERN_SAME(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
TERN_SAME(CU_MEM_ALLOCATION_TYPE_INVALID);
TERN_SAME(CU_MEM_ALLOCATION_TYPE_PINNED);
TERN_SAME(CU_MEM_HANDLE_TYPE_NONE);
TERN_SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
TERN_SAME(CU_MEM_HANDLE_TYPE_FABRIC);
TERN_SAME(CU_MEM_ACCESS_FLAGS_PROT_NONE);
TERN_SAME(CU_MEM_ACCESS_FLAGS_PROT_READ);
TERN_SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
TERN_SAME(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
TERN_SAME(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
TERN_SAME(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
TERN_SAME(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
TERN_SAME(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
TERN_SAME(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
TERN_SAME(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
TERN_SAME(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
TERN_SAME(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
TERN_SAME(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
TERN_SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
TERN_SAME(CU_POINTER_ATTRIBUTE_IS_MANAGED);
TERN_SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
TERN_SAME(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
TERN_SAME(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
TERN_SAME(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
TERN_SAME(CU_MEM_ADVISE_SET_READ_MOSTLY);
TERN_SAME(CU_MEM_ADVISE_UNSET_READ_MOSTLY);
TERN_SAME(CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
TERN_SAME(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
TERN_SAME(CU_MEM_ADVISE_SET_ACCESSED_BY);
TERN_SAME(CU_MEM_ADVISE_UNSET_ACCESSED_BY);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE);
TERN_SAME(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID);
TERN_SAME(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
TERN_SAME(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
TERN_SAME(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
TERN_SAME(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
TERN_SAME(CU_MEMCPY_FLAG_DEFAULT);
TERN_SAME(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);

static_assert(host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(host_alloc_device_map == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(host_alloc_write_combined == CU_MEMHOSTALLOC_WRITECOMBINED);
static_assert(host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(host_register_device_map == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(host_register_io_memory == CU_MEMHOSTREGISTER_IOMEMORY);
static_assert(host_register_read_only == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(get_proc_address_legacy_stream == ::CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(get_proc_address_per_thread_stream ==
              ::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

#define TERN_SAME_SIZE(name)                                                                      \
  static_assert(                                                                                  \
      sizeof(::name) == sizeof(tern::cuda::name) && alignof(::name) == alignof(tern::cuda::name), \
      #name)
#define TERN_SAME_FIELD(name, field)                                            \
  static_assert(offsetof(::name, field) == offsetof(tern::cuda::name, field) && \
                    sizeof(::name::field) == sizeof(tern::cuda::name::field),   \
                #name "." #field)

TERN_SAME_SIZE(CUdevice);
TERN_SAME_SIZE(CUdeviceptr);
TERN_SAME_SIZE(CUmemGenericAllocationHandle);
TERN_SAME_SIZE(CUmemLocation);
TERN_SAME_FIELD(CUmemLocation, type);
TERN_SAME_FIELD(CUmemLocation, id);
TERN_SAME_SIZE(CUmemAccessDesc);
TERN_SAME_FIELD(CUmemAccessDesc, location);
TERN_SAME_FIELD(CUmemAccessDesc, flags);
TERN_SAME_SIZE(CUmemPoolProps);
TERN_SAME_FIELD(CUmemPoolProps, allocType);
TERN_SAME_FIELD(CUmemPoolProps, handleTypes);
TERN_SAME_FIELD(CUmemPoolProps, location);
TERN_SAME_FIELD(CUmemPoolProps, win32SecurityAttributes);
TERN_SAME_FIELD(CUmemPoolProps, maxSize);
TERN_SAME_FIELD(CUmemPoolProps, usage);
TERN_SAME(CU_JIT_ERROR_LOG_BUFFER);
TERN_SAME(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
TERN_SAME_SIZE(CUmemAllocationProp);
TERN_SAME_FIELD(CUmemAllocationProp, type);
TERN_SAME_FIELD(CUmemAllocationProp, requestedHandleTypes);
TERN_SAME_FIELD(CUmemAllocationProp, location);
TERN_SAME_FIELD(CUmemAllocationProp, win32HandleMetaData);
TERN_SAME_FIELD(CUmemAllocationProp, allocFlags);
TERN_SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType);
TERN_SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
TERN_SAME_FIELD(CUmemAllocationProp, allocFlags.usage);
TERN_SAME_FIELD(CUmemAllocationProp, allocFlags.reserved);
TERN_SAME_SIZE(CUDA_MEMCPY2D);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcXInBytes);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcY);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcMemoryType);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcHost);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcDevice);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcArray);
TERN_SAME_FIELD(CUDA_MEMCPY2D, srcPitch);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstXInBytes);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstY);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstMemoryType);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstHost);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstDevice);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstArray);
TERN_SAME_FIELD(CUDA_MEMCPY2D, dstPitch);
TERN_SAME_FIELD(CUDA_MEMCPY2D, WidthInBytes);
TERN_SAME_FIELD(CUDA_MEMCPY2D, Height);
TERN_SAME_SIZE(CUmemcpyAttributes);
TERN_SAME_FIELD(CUmemcpyAttributes, srcAccessOrder);
TERN_SAME_FIELD(CUmemcpyAttributes, srcLocHint);
TERN_SAME_FIELD(CUmemcpyAttributes, dstLocHint);
TERN_SAME_FIELD(CUmemcpyAttributes, flags);

TEST(DriverAbi, AgreesWithTheOfficialHeaderInValuesThatAreCasts) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY), stream_legacy);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD), stream_per_thread);
  EXPECT_EQ(CU_DEVICE_CPU, device_cpu);
  EXPECT_EQ(CU_DEVICE_INVALID, device_invalid);
}

#else

TEST(DriverAbi, AgreesWithTheOfficialHeader) {
  GTEST_SKIP() << "the official header, of 13.0 or newer, is not installed";
}

#endif

// What the manual gives as sizes, also where the header is missing.
static_assert(sizeof(CUdeviceptr) == 8);
static_assert(sizeof(CUmemLocation) == 8);
static_assert(sizeof(CUmemAccessDesc) == 12);
static_assert(sizeof(CUmemAllocationProp) == 32);
static_assert(sizeof(CUmemPoolProps) == 88);
static_assert(sizeof(tern::cuda::CUDA_MEMCPY2D) == 128);
static_assert(sizeof(CUmemcpyAttributes) == 24);

TEST(DriverAbi, IsZeroUnlessSaidOtherwise) {
  const CUmemAllocationProp properties;
  EXPECT_EQ(properties.type, 0);
  EXPECT_EQ(properties.location.type, 0);
  EXPECT_EQ(properties.win32HandleMetaData, nullptr);
  EXPECT_EQ(properties.allocFlags.gpuDirectRDMACapable, 0);
}

}  // namespace
}  // namespace tern::cuda
