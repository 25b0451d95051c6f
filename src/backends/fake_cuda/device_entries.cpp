// The entries that start the driver, describe its devices, and manage contexts and peer access.

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/fake_cuda/entry.hpp"

namespace tern::sim::entries {

CUresult cuInit(unsigned flags) {
  return call(DriverEntry::cuInit, Demand::nothing, [&](const Here& here) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (here.state.devices.empty()) return CUDA_ERROR_NO_DEVICE;
    here.state.is_initialised = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return call(DriverEntry::cuDriverGetVersion, Demand::nothing, [&](const Here& here) -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = here.state.options.driver_version;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorName(CUresult result, const char** text) {
  return call(DriverEntry::cuGetErrorName, Demand::nothing, [&](const Here&) -> CUresult {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *text = nullptr;
    switch (result) {
#define TERN_CUDA_RESULT(name, number) \
  case name:                           \
    *text = #name;                     \
    return CUDA_SUCCESS;
      TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return about(DriverEntry::cuDeviceGet, ordinal, device, [&](const Here&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return call(DriverEntry::cuDeviceGetCount, Demand::initialised,
              [&](const Here& here) -> CUresult {
                if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
                *count = static_cast<int>(here.state.devices.size());
                return CUDA_SUCCESS;
              });
}

CUresult cuDeviceGetName(char* text, int text_bytes, CUdevice device) {
  return about(DriverEntry::cuDeviceGetName, device, text, [&](const Here& here) {
    if (text_bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
    const std::string& name = here.backend().info().name;
    const std::size_t bytes = std::min(name.size(), static_cast<std::size_t>(text_bytes) - 1);
    std::memcpy(text, name.data(), bytes);
    text[bytes] = '\0';
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return about(DriverEntry::cuDeviceGetAttribute, device, value, [&](const Here& here) {
    const std::optional<int> known = here.state.attribute_of(attribute, here.device);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    *value = *known;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  return about(DriverEntry::cuDeviceTotalMem, device, bytes, [&](const Here& here) {
    *bytes = here.backend().info().total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  return about(DriverEntry::cuDeviceCanAccessPeer, device, can_access, [&](const Here& here) {
    if (!here.state.has_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can_access = device != peer && here.state.options.has_peer_access ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return about(DriverEntry::cuDevicePrimaryCtxRetain, device, context, [&](const Here& here) {
    const NativeStream legacy = here.backend().default_stream();
    const std::lock_guard lock(here.state.mutex);
    FakeContext& own = here.state.contexts[here.device];
    if (own.retained++ == 0) {
      own.legacy = std::make_shared<FakeStream>(
          FakeStream{here.device, legacy, ++here.state.last_id, CU_STREAM_DEFAULT, 0, true});
    }
    *context = context_of(here.device);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return call(DriverEntry::cuCtxGetCurrent, Demand::initialised, [&](const Here& here) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const FakeContexts& stack = here.state.thread().contexts;
    *context = stack.empty() ? nullptr : context_of(stack.back());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return call(DriverEntry::cuCtxSetCurrent, Demand::initialised, [&](const Here& here) -> CUresult {
    FakeContexts& stack = here.state.thread().contexts;
    const std::optional<std::uint32_t> device = device_of_context(here, context);
    if (context != nullptr && !device) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (device && !stack.push(*device)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return call(
      DriverEntry::cuCtxPushCurrent, Demand::initialised, [&](const Here& here) -> CUresult {
        const std::optional<std::uint32_t> device = device_of_context(here, context);
        if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (!device) return CUDA_ERROR_INVALID_CONTEXT;
        return here.state.thread().contexts.push(*device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
      });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return call(DriverEntry::cuCtxPopCurrent, Demand::initialised, [&](const Here& here) -> CUresult {
    FakeContexts& stack = here.state.thread().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = context_of(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return call(
      DriverEntry::cuCtxEnablePeerAccess, Demand::context, [&](const Here& here) -> CUresult {
        const std::optional<std::uint32_t> other = device_of_context(here, peer);
        if (!other || *other == here.device) return CUDA_ERROR_INVALID_CONTEXT;
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (!here.state.options.has_peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        {
          const std::lock_guard lock(here.state.mutex);
          if (here.state.contexts[*other].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
          if (here.state.peer_access.contains({here.device, *other})) {
            return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
          }
        }
        const Result<bool> granted = here.backend().enable_peer_access(here.state.backend(*other));
        if (!granted) return sim::result_of(granted.failure());
        const std::lock_guard lock(here.state.mutex);
        here.state.peer_access.emplace(here.device, *other);
        return CUDA_SUCCESS;
      });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return call(
      DriverEntry::cuCtxDisablePeerAccess, Demand::context, [&](const Here& here) -> CUresult {
        const std::optional<std::uint32_t> other = device_of_context(here, peer);
        if (!other || *other == here.device) return CUDA_ERROR_INVALID_CONTEXT;
        {
          const std::lock_guard lock(here.state.mutex);
          if (!here.state.peer_access.contains({here.device, *other})) {
            return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
          }
        }
        const Result<void> taken = here.backend().disable_peer_access(here.state.backend(*other));
        if (!taken) return sim::result_of(taken.failure());
        const std::lock_guard lock(here.state.mutex);
        here.state.peer_access.erase({here.device, *other});
        return CUDA_SUCCESS;
      });
}

}  // namespace tern::sim::entries
