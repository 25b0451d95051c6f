// Tern's adapters beside the headers of CCCL and, if they are there, of RMM. Only compiled, by
// cuda_headers_test.py, against each version that the machine has.

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // CCCL before 3.1
#include <cuda/memory_resource>
#include <cuda/std/version>

#ifndef WITHOUT_TERN
#include "tern/interop/cuda_mr.hpp"
#include "tern/interop/thrust.hpp"
#endif

#if __has_include(<rmm/mr/per_device_resource.hpp>)
#include <rmm/mr/per_device_resource.hpp>
#define HAS_RMM
#elif __has_include(<rmm/mr/device/per_device_resource.hpp>)
#include <rmm/mr/device/per_device_resource.hpp>
#define HAS_RMM
#endif

#ifndef WITHOUT_TERN

namespace {

namespace mr = cuda::mr;
using DeviceMemory = tern::CudaMrAdapter<mr::device_accessible>;
using BothMemory = tern::CudaMrAdapter<mr::device_accessible, mr::host_accessible>;

static_assert(tern::detail::CudaStream<cuda::stream_ref>);
static_assert(tern::detail::is_property<mr::device_accessible>("device_accessible"));
static_assert(!tern::detail::is_property<mr::host_accessible>("device_accessible"));
static_assert(mr::resource_with<DeviceMemory, mr::device_accessible>);
static_assert(!mr::resource_with<DeviceMemory, mr::host_accessible>);
static_assert(mr::resource_with<BothMemory, mr::device_accessible, mr::host_accessible>);
#if CCCL_VERSION >= 3001000
static_assert(mr::synchronous_resource_with<DeviceMemory, mr::device_accessible>);
using StreamReference = mr::resource_ref<mr::device_accessible>;
using HostReference = mr::synchronous_resource_ref<mr::device_accessible, mr::host_accessible>;
#else
static_assert(mr::async_resource_with<DeviceMemory, mr::device_accessible>);
using StreamReference = mr::async_resource_ref<mr::device_accessible>;
using HostReference = mr::resource_ref<mr::device_accessible, mr::host_accessible>;
#endif

template <class R>
void use_upstream(R upstream) {
  const tern::CudaMrUpstream<R> resource(tern::Device(), upstream);
  static_assert(tern::detail::AllocatesOnStreams<R> || tern::detail::AllocatesAsync<R> ||
                std::is_same_v<R, HostReference>);
}

[[maybe_unused]] void use(DeviceMemory device, BothMemory both) {
  use_upstream(StreamReference(device));
  use_upstream(HostReference(both));
#if CCCL_VERSION >= 3002000
  use_upstream(mr::any_resource<mr::device_accessible>(device));
#endif
#ifdef HAS_RMM
  const rmm::device_async_resource_ref reference(device);
  use_upstream(reference);
  use_upstream(rmm::mr::cuda_memory_resource());
#if CCCL_VERSION >= 3002000
  rmm::mr::set_current_device_resource(device);
#else
  rmm::mr::set_current_device_resource_ref(reference);
#endif
#endif
}

}  // namespace

#endif  // WITHOUT_TERN
