#include "backends/sim/driver_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <sstream>

#include "backends/sim/fake_driver_state.hpp"
#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

// What a call needs before it does anything.
enum class Demand : std::uint8_t {
  nothing,
  initialised,
  context,  // current, alive, and of a device that is not lost
  release,  // the same, but what is given back is taken from a lost device too
};

struct Here {
  FakeDriverState& state;
  CallSite site;  // the n-th call of an entry, which is all a report can say of a raw call
  std::uint32_t device = 0;

  [[nodiscard]] Backend& backend() const { return state.backend(device); }
  [[nodiscard]] Backend& backend(const FakeStream& stream) const {
    return state.backend(stream.device);
  }
  [[nodiscard]] Submission on(const FakeStream& stream) const { return {stream.native, site, {}}; }
};

CUresult result_of(const Result<void>& result) {
  return result ? CUDA_SUCCESS : sim::result_of(result.failure());
}

template <class Body>
CUresult run(FakeDriverState& state, Here& here, Demand demand, const char* name, Body& body) {
  if (demand == Demand::nothing) return body(here);
  if (!state.is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  // Inside a host function or a kernel no call is allowed. The world knows, and notes it.
  if (const Result<Entry> entry = state.world->enter(name, here.site); !entry) {
    return sim::result_of(entry.failure());
  }
  if (demand == Demand::initialised) return body(here);
  const FakeContexts& stack = state.thread().contexts;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  here.device = stack.back();
  {
    const std::lock_guard lock(state.mutex);
    if (state.contexts[here.device].retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  const std::optional<CUresult> lost = state.sticky(here.device);
  if (lost && demand == Demand::context) return *lost;
  const CUresult result = body(here);
  return lost ? *lost : result;
}

/// Every entry point: counts the call, lets a test make it fail, sees to what it demands, and lets
/// nothing be thrown into code that was compiled for C.
template <class Body>
CUresult call(DriverEntry entry, Demand demand, Body body) noexcept {
  try {
    const std::shared_ptr<FakeDriverState> state = FakeDriverState::installed();
    if (!state) return CUDA_ERROR_DEINITIALIZED;
    if (const std::optional<CUresult> planned = state->count(entry)) return *planned;
    const auto slot = static_cast<std::size_t>(entry);
    const char* name = driver_entries[slot].name;
    Here here{*state, {"call", name, static_cast<std::uint32_t>(state->calls[slot].load())}};
    return run(*state, here, demand, name, body);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

void* pointer(CUdeviceptr address) noexcept {
  return as_handle<void*>(static_cast<std::uintptr_t>(address));
}
CUdeviceptr address_of(const void* pointer_to) noexcept { return as_number(pointer_to); }

/// A stream that work may be queued to now.
struct Working {
  std::shared_ptr<FakeStream> stream;
  CUresult result = CUDA_SUCCESS;
  explicit operator bool() const noexcept { return result == CUDA_SUCCESS; }
};

Working work_on(const Here& here, CUstream handle) {
  Working working{here.state.find_stream(handle, here.device)};
  if (!working.stream) return {nullptr, CUDA_ERROR_INVALID_HANDLE};
  const FakeStream& stream = *working.stream;
  if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
    working.result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if (const std::optional<FakeCapture> capture = here.state.capture_of(stream)) {
    working.result = capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                         : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return working;
}

/// The stream whatever is done with it, for questions.
std::shared_ptr<FakeStream> stream_of(const Here& here, CUstream handle) {
  return here.state.find_stream(handle, here.device);
}

/// May the device use all of the range that is mapped? What is not mapped is not asked.
bool may_use(const Here& here, std::uint32_t device, const void* address, std::size_t bytes,
             bool writes) {
  const CUmemAccess_flags needed =
      writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  const std::uintptr_t first = as_number(address);
  const std::lock_guard lock(here.state.mutex);
  auto mapping = here.state.mappings.upper_bound(first);
  if (mapping != here.state.mappings.begin()) --mapping;
  for (; mapping != here.state.mappings.end() && mapping->first < first + bytes; ++mapping) {
    if (mapping->first + mapping->second.bytes <= first) continue;
    const auto granted = mapping->second.access.find(static_cast<int>(device));
    if (granted == mapping->second.access.end() || (granted->second & needed) != needed) {
      return false;
    }
  }
  return true;
}

bool is_range(const void* address, std::size_t bytes) noexcept {
  return address != nullptr && bytes <= max_request_bytes &&
         as_number(address) <= ~std::uintptr_t{0} - bytes;
}

bool overlap(const void* a, const void* b, std::size_t bytes) noexcept {
  const std::uintptr_t first = std::min(as_number(a), as_number(b));
  return std::max(as_number(a), as_number(b)) - first < bytes;
}

CUresult copy(const Here& here, const FakeStream& stream, void* to, const void* from,
              std::size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_range(to, bytes) || !is_range(from, bytes) || overlap(to, from, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto to_place = here.state.world->locate(to);
  const auto from_place = here.state.world->locate(from);
  const std::uint32_t to_device = to_place ? to_place->first : stream.device;
  const std::uint32_t from_device = from_place ? from_place->first : stream.device;
  // A copy runs on whichever of the two devices may do it.
  if (!may_use(here, to_device, to, bytes, true) ||
      !may_use(here, from_device, from, bytes, false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (to_device == stream.device && from_device == stream.device) {
    return result_of(here.backend(stream).copy(here.on(stream), to, from, bytes));
  }
  const std::uint32_t peer = from_device != stream.device ? from_device : to_device;
  return result_of(here.backend(stream).copy_from_peer(here.on(stream), to,
                                                       here.state.backend(peer), from, bytes));
}

struct Rows {
  CUdeviceptr to = 0;
  std::size_t pitch_bytes = 0;
  std::size_t width = 0;
  std::size_t height = 1;
};

template <class Value>
CUresult fill(DriverEntry entry, const Rows& rows, Value value, CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const std::optional<std::size_t> bytes = checked_multiply(rows.width, sizeof value);
    if (!bytes || rows.to % sizeof value != 0 || rows.pitch_bytes % sizeof value != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (*bytes == 0 || rows.height == 0) return CUDA_SUCCESS;
    if (rows.height > 1 && rows.pitch_bytes < *bytes) return CUDA_ERROR_INVALID_VALUE;
    const std::optional<std::size_t> skipped = checked_multiply(rows.pitch_bytes, rows.height - 1);
    const std::optional<std::size_t> all = skipped ? checked_add(*skipped, *bytes) : skipped;
    if (!all || !is_range(pointer(rows.to), *all)) return CUDA_ERROR_INVALID_VALUE;
    if (!may_use(here, working.stream->device, pointer(rows.to), *all, true)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Pattern pattern;
    pattern.width_bytes = sizeof value;
    std::memcpy(pattern.bytes, &value, sizeof value);
    const bool is_one = rows.height > 1 && rows.pitch_bytes == *bytes;
    const std::size_t height = is_one ? 1 : rows.height;
    for (std::size_t row = 0; row < height; ++row) {
      const CUresult filled =
          result_of(here.backend(*working.stream)
                        .fill(here.on(*working.stream), pointer(rows.to + row * rows.pitch_bytes),
                              is_one ? *all : *bytes, pattern));
      if (filled != CUDA_SUCCESS) return filled;
    }
    return CUDA_SUCCESS;
  });
}

/// Calls that break a capture, even one of another thread, unless this thread says it knows.
constexpr CUresult disturbs_capture = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

CUresult allocate(const Here& here, MemoryKind kind, std::size_t bytes, unsigned flags,
                  void** address) {
  if (!here.state.may_disturb()) return disturbs_capture;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > max_request_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // As close to each other as the driver puts its smallest blocks.
  constexpr std::size_t alignment = 512;
  const Result<void*> made = here.backend().allocate(kind, bytes, alignment, here.site, {});
  if (!made) return sim::result_of(made.failure());
  *address = *made;
  if (kind == MemoryKind::device) return CUDA_SUCCESS;
  // The host writes pinned memory without a call that would tell, so no byte of it can be called
  // unwritten.
  if (kind == MemoryKind::pinned) {
    host_write(here.state.devices[here.device], *made, bytes, here.site);
  }
  const std::lock_guard lock(here.state.mutex);
  here.state.host_blocks[as_number(*made)] = {here.device, bytes, flags};
  return CUDA_SUCCESS;
}

/// With the state's mutex held.
void forget_pooled(const Here& here, std::uintptr_t base) {
  const auto found = here.state.pool_blocks.find(base);
  if (found == here.state.pool_blocks.end()) return;
  const auto [pool, bytes] = found->second;
  here.state.pools[pool].used_bytes -= bytes;
  here.state.pool_blocks.erase(found);
}

/// Gives back a block of one of two kinds. The device refuses any address but its first.
CUresult release(const Here& here, void* address, MemoryKind kind, MemoryKind other) {
  if (!here.state.may_disturb()) return disturbs_capture;
  const FakeBlock block = here.state.block_at(address);
  if (block.kind != kind && block.kind != other) return CUDA_ERROR_INVALID_VALUE;
  const Result<void> released = here.state.backend(block.device).release(address, here.site);
  if (!released) return sim::result_of(released.failure());
  const std::lock_guard lock(here.state.mutex);
  here.state.host_blocks.erase(block.base);
  forget_pooled(here, block.base);
  return CUDA_SUCCESS;
}

// --- Places of managed memory
// ---------------------------------------------------------------------

std::optional<Place> place_of(const FakeDriverState& state, CUmemLocation location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!state.has_device(location.id)) return std::nullopt;
      return Place::device(
          DeviceState::of(state.devices[static_cast<std::size_t>(location.id)])->id());
    case CU_MEM_LOCATION_TYPE_HOST:
      return Place::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return Place::host_numa_current();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (location.id < 0) return std::nullopt;
      return Place::host_numa(static_cast<std::uint32_t>(location.id));
    default:
      return std::nullopt;
  }
}

CUmemLocation location_of(const FakeDriverState& state, std::optional<Place> place) {
  if (!place) return {CU_MEM_LOCATION_TYPE_INVALID, 0};
  if (place->kind() == Place::Kind::host_numa) {
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(place->index())};
  }
  if (place->kind() == Place::Kind::host_numa_current) {
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  }
  for (std::size_t i = 0; i < state.devices.size(); ++i) {
    if (DeviceState::of(state.devices[i])->id() == place->device_id()) {
      return {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(i)};
    }
  }
  return {CU_MEM_LOCATION_TYPE_HOST, 0};
}

/// The shapes before 12.2 have a device in its place.
CUmemLocation location_of(CUdevice device) noexcept {
  if (device == device_cpu) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int device_of(CUmemLocation location) noexcept {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_HOST ? device_cpu : device_invalid;
}

std::optional<int> attribute_of(const FakeDriverState& state, CUdevice_attribute attribute,
                                std::uint32_t device) {
  if (const auto said = state.options.attributes.find(attribute);
      said != state.options.attributes.end()) {
    return said->second;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return static_cast<int>(state.backend(device).info().processors);
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
      return state.world->shares_managed() ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
      return -1;
    // What the simulated device does not have.
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 0;
  }
  return std::nullopt;
}

template <class Value>
void store(void* data, Value value) noexcept {
  std::memcpy(data, &value, sizeof value);
}

/// A question about a device by its ordinal.
template <class Body>
CUresult about(DriverEntry entry, CUdevice device, const void* answer, Body body) noexcept {
  return call(entry, Demand::initialised, [&](Here& here) -> CUresult {
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!here.state.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    here.device = static_cast<std::uint32_t>(device);
    return body(here);
  });
}

/// A question about a stream.
template <class Body>
CUresult about(DriverEntry entry, CUstream handle, const void* answer, Body body) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeStream> stream = stream_of(here, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return body(here, *stream);
  });
}

namespace entries {

// --- Start
// ----------------------------------------------------------------------------------------

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

CUresult error_text(DriverEntry entry, CUresult result, const char** text, bool is_name) noexcept {
  return call(entry, Demand::nothing, [&](const Here&) -> CUresult {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *text = nullptr;
    switch (result) {
#define TERN_CUDA_RESULT(name, number)                                        \
  case name:                                                                  \
    *text = is_name ? #name : "the fake driver has no other text for " #name; \
    return CUDA_SUCCESS;
      TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGetErrorName(CUresult result, const char** text) {
  return error_text(DriverEntry::cuGetErrorName, result, text, true);
}
CUresult cuGetErrorString(CUresult result, const char** text) {
  return error_text(DriverEntry::cuGetErrorString, result, text, false);
}

// --- Devices
// --------------------------------------------------------------------------------------

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

CUresult text_to(char* text, int text_bytes, const std::string& value) {
  if (text_bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t bytes = std::min(value.size(), static_cast<std::size_t>(text_bytes) - 1);
  std::memcpy(text, value.data(), bytes);
  text[bytes] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* text, int text_bytes, CUdevice device) {
  return about(DriverEntry::cuDeviceGetName, device, text, [&](const Here& here) {
    return text_to(text, text_bytes, here.backend().info().name);
  });
}

CUresult cuDeviceGetPCIBusId(char* text, int text_bytes, CUdevice device) {
  return about(DriverEntry::cuDeviceGetPCIBusId, device, text, [&](const Here&) {
    return text_to(text, text_bytes, fmt::format("0000:{:02X}:00.0", device + 1));
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return about(DriverEntry::cuDeviceGetAttribute, device, value, [&](const Here& here) {
    const std::optional<int> known = attribute_of(here.state, attribute, here.device);
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

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return about(DriverEntry::cuDeviceGetUuid, device, uuid, [&](const Here&) {
    *uuid = {};
    static_cast<void>(
        text_to(uuid->bytes, sizeof uuid->bytes, fmt::format("tern-fake-{}", device)));
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

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                 CUdevice to) {
  return about(DriverEntry::cuDeviceGetP2PAttribute, from, value, [&](const Here& here) {
    if (!here.state.has_device(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        *value = here.state.options.has_peer_access ? 1 : 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

// --- Contexts
// -------------------------------------------------------------------------------------

CUcontext context_of(std::uint32_t device) noexcept {
  return as_handle<CUcontext>(FakeDriverState::context_base + device * std::uintptr_t{0x40});
}
std::optional<std::uint32_t> device_of_context(const Here& here, CUcontext context) noexcept {
  return here.state.device_of(as_number(context), FakeDriverState::context_base);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return about(DriverEntry::cuDevicePrimaryCtxRetain, device, context, [&](const Here& here) {
    const NativeStream legacy = here.backend().default_stream();
    const std::lock_guard lock(here.state.mutex);
    FakeContext& own = here.state.contexts[here.device];
    if (own.retained++ == 0) {
      own.id = ++here.state.last_id;
      own.legacy = std::make_shared<FakeStream>(
          FakeStream{here.device, legacy, ++here.state.last_id, CU_STREAM_DEFAULT, 0, true});
    }
    *context = context_of(here.device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return about(DriverEntry::cuDevicePrimaryCtxRelease, device, &device, [&](const Here& here) {
    bool is_last = false;
    {
      const std::lock_guard lock(here.state.mutex);
      unsigned& retained = here.state.contexts[here.device].retained;
      if (retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
      is_last = --retained == 0;
    }
    if (is_last) here.state.end_context(here.device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  return about(DriverEntry::cuDevicePrimaryCtxGetState, device, flags, [&](const Here& here) {
    if (is_active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(here.state.mutex);
    *flags = 0;
    *is_active = here.state.contexts[here.device].retained > 0 ? 1 : 0;
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

CUresult cuCtxGetDevice(CUdevice* device) {
  return call(DriverEntry::cuCtxGetDevice, Demand::context, [&](const Here& here) -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = static_cast<int>(here.device);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return call(DriverEntry::cuCtxSynchronize, Demand::context, [&](const Here& here) -> CUresult {
    if (here.state.disturb_context(here.device)) return disturbs_capture;
    return result_of(here.backend().synchronize());
  });
}

constexpr int min_priority = 0;
constexpr int greatest_priority = -5;

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call(DriverEntry::cuCtxGetStreamPriorityRange, Demand::context, [&](const Here&) {
    // Either may be left out.
    if (least != nullptr) *least = min_priority;
    if (greatest != nullptr) *greatest = greatest_priority;
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

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  return call(DriverEntry::cuCtxGetId, Demand::initialised, [&](const Here& here) -> CUresult {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::optional<std::uint32_t> device = device_of_context(here, context);
    const FakeContexts& stack = here.state.thread().contexts;
    if (context == nullptr && !stack.empty()) device = stack.back();
    if (!device) return CUDA_ERROR_INVALID_CONTEXT;
    const std::lock_guard lock(here.state.mutex);
    if (here.state.contexts[*device].retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = here.state.contexts[*device].id;
    return CUDA_SUCCESS;
  });
}

// --- Streams
// --------------------------------------------------------------------------------------

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return call(DriverEntry::cuStreamCreateWithPriority, Demand::context,
              [&](const Here& here) -> CUresult {
                if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                const int clamped = std::clamp(priority, greatest_priority, min_priority);
                const Result<NativeStream> made = here.backend().create_stream(
                    {.blocking = flags == CU_STREAM_DEFAULT, .priority = clamped});
                if (!made) return sim::result_of(made.failure());
                *stream = as_handle<CUstream>(here.state.streams.add(std::make_shared<FakeStream>(
                    FakeStream{here.device, *made, ++here.state.last_id, flags, clamped, false})));
                return CUDA_SUCCESS;
              });
}

CUresult cuStreamDestroy(CUstream stream) {
  return call(DriverEntry::cuStreamDestroy, Demand::release, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeStream> gone = here.state.streams.remove(as_number(stream));
    if (!gone) return CUDA_ERROR_INVALID_HANDLE;
    here.backend(*gone).destroy_stream(gone->native);
    return CUDA_SUCCESS;
  });
}

/// A question that a capturing stream cannot answer, and does not survive.
CUresult refuse_captured(const Here& here, const FakeStream& stream) {
  if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!here.state.capture_of(stream)) return CUDA_SUCCESS;
  here.state.invalidate(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamQuery(CUstream handle) {
  return about(DriverEntry::cuStreamQuery, handle, "",
               [&](const Here& here, const FakeStream& stream) -> CUresult {
                 if (const CUresult captured = refuse_captured(here, stream);
                     captured != CUDA_SUCCESS) {
                   return captured;
                 }
                 const Result<bool> is_done = here.backend(stream).query(stream.native);
                 if (!is_done) return sim::result_of(is_done.failure());
                 return *is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
               });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return about(DriverEntry::cuStreamSynchronize, handle, "",
               [&](const Here& here, const FakeStream& stream) -> CUresult {
                 if (const CUresult captured = refuse_captured(here, stream);
                     captured != CUDA_SUCCESS) {
                   return captured;
                 }
                 return result_of(here.backend(stream).synchronize(stream.native));
               });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  return call(DriverEntry::cuStreamWaitEvent, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const std::shared_ptr<FakeEvent> awaited = here.state.events.find(as_number(event));
    if (!awaited) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // It would draw the stream into the capture, and nothing is captured here.
    if (awaited->is_captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result_of(here.backend(*working.stream).wait(here.on(*working.stream), awaited->native));
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return about(DriverEntry::cuStreamGetFlags, handle, flags,
               [&](const Here&, const FakeStream& stream) {
                 *flags = stream.flags;
                 return CUDA_SUCCESS;
               });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return about(DriverEntry::cuStreamGetPriority, handle, priority,
               [&](const Here&, const FakeStream& stream) {
                 *priority = stream.priority;
                 return CUDA_SUCCESS;
               });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return about(DriverEntry::cuStreamGetCtx, handle, context,
               [&](const Here&, const FakeStream& stream) {
                 *context = context_of(stream.device);
                 return CUDA_SUCCESS;
               });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return about(DriverEntry::cuStreamGetId, handle, id, [&](const Here&, const FakeStream& stream) {
    *id = stream.id;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return about(DriverEntry::cuStreamGetDevice, handle, device,
               [&](const Here&, const FakeStream& stream) {
                 *device = static_cast<int>(stream.device);
                 return CUDA_SUCCESS;
               });
}

CUresult capture_status(const Here& here, const FakeStream& stream, CUstreamCaptureStatus* status,
                        std::uint64_t* id) {
  if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const std::optional<FakeCapture> capture = here.state.capture_of(stream);
  *status = !capture              ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr && capture) *id = capture->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return about(DriverEntry::cuStreamIsCapturing, handle, status,
               [&](const Here& here, const FakeStream& stream) {
                 return capture_status(here, stream, status, nullptr);
               });
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, std::uint64_t* id,
                                CUgraph* graph, const CUgraphNode** nodes,
                                std::size_t* node_count) {
  return about(DriverEntry::cuStreamGetCaptureInfo, handle, status,
               [&](const Here& here, const FakeStream& stream) {
                 // There is no graph behind the capture, so nothing that one could be asked for.
                 if (graph != nullptr) *graph = nullptr;
                 if (nodes != nullptr) *nodes = nullptr;
                 if (node_count != nullptr) *node_count = 0;
                 return capture_status(here, stream, status, id);
               });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call(DriverEntry::cuThreadExchangeStreamCaptureMode, Demand::initialised,
              [&](const Here& here) -> CUresult {
                if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
                    *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                std::swap(here.state.thread().capture_mode, *mode);
                return CUDA_SUCCESS;
              });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* context) {
  return call(DriverEntry::cuLaunchHostFunc, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result_of(
        here.backend(*working.stream).call_host(here.on(*working.stream), function, context));
  });
}

// --- Events
// ---------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return call(DriverEntry::cuEventCreate, Demand::context, [&](const Here& here) -> CUresult {
    constexpr unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    const bool is_shared_and_timed =
        (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (event == nullptr || (flags & ~known) != 0 || is_shared_and_timed) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Result<NativeEvent> made =
        here.backend().create_event({.timing = (flags & CU_EVENT_DISABLE_TIMING) == 0});
    if (!made) return sim::result_of(made.failure());
    *event = as_handle<CUevent>(here.state.events.add(
        std::make_shared<FakeEvent>(here.backend(), here.device, *made, flags)));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent event) {
  return call(DriverEntry::cuEventDestroy, Demand::release, [&](const Here& here) -> CUresult {
    return here.state.events.remove(as_number(event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  return call(DriverEntry::cuEventRecord, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> recorded = here.state.events.find(as_number(event));
    const Working working = work_on(here, handle);
    if (!recorded || !working.stream || recorded->device != working.stream->device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (working.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      recorded->is_captured = true;
      return CUDA_SUCCESS;
    }
    if (!working) return working.result;
    const CUresult result =
        result_of(here.backend(*working.stream).record(here.on(*working.stream), recorded->native));
    if (result == CUDA_SUCCESS) {
      recorded->is_recorded = true;
      recorded->is_captured = false;
    }
    return result;
  });
}

CUresult cuEventQuery(CUevent event) {
  return call(DriverEntry::cuEventQuery, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> asked = here.state.events.find(as_number(event));
    if (!asked) return CUDA_ERROR_INVALID_HANDLE;
    if (asked->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!here.state.may_disturb()) return disturbs_capture;
    const Result<bool> is_done = asked->backend.query(asked->native);
    if (!is_done) return sim::result_of(is_done.failure());
    return *is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return call(DriverEntry::cuEventSynchronize, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeEvent> awaited = here.state.events.find(as_number(event));
    if (!awaited) return CUDA_ERROR_INVALID_HANDLE;
    if (awaited->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!here.state.may_disturb()) return disturbs_capture;
    return result_of(awaited->backend.synchronize(awaited->native));
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call(DriverEntry::cuEventElapsedTime, Demand::context, [&](const Here& here) -> CUresult {
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<FakeEvent> first = here.state.events.find(as_number(start));
    const std::shared_ptr<FakeEvent> last = here.state.events.find(as_number(end));
    if (!first || !last || first->device != last->device) return CUDA_ERROR_INVALID_HANDLE;
    for (const FakeEvent* event : {first.get(), last.get()}) {
      if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0 || !event->is_recorded) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (event->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
    }
    for (const FakeEvent* event : {first.get(), last.get()}) {
      const Result<bool> is_done = event->backend.query(event->native);
      if (!is_done) return sim::result_of(is_done.failure());
      if (!*is_done) return CUDA_ERROR_NOT_READY;
    }
    const Result<std::uint64_t> elapsed = first->backend.elapsed_ns(first->native, last->native);
    if (!elapsed) return sim::result_of(elapsed.failure());
    *milliseconds = static_cast<float>(*elapsed) / 1e6f;
    return CUDA_SUCCESS;
  });
}

// --- Plain and pinned memory
// ----------------------------------------------------------------------

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call(DriverEntry::cuMemGetInfo, Demand::context, [&](const Here& here) -> CUresult {
    if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Result<MemoryInfo> info = here.backend().memory();
    if (!info) return sim::result_of(info.failure());
    *free_bytes = info->free_bytes;
    *total_bytes = info->total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  return call(DriverEntry::cuMemAlloc, Demand::context, [&](const Here& here) -> CUresult {
    void* made = nullptr;
    const CUresult result =
        allocate(here, MemoryKind::device, bytes, 0, address == nullptr ? nullptr : &made);
    if (result == CUDA_SUCCESS) *address = address_of(made);
    return result;
  });
}

CUresult cuMemFree(CUdeviceptr address) {
  return call(DriverEntry::cuMemFree, Demand::release, [&](const Here& here) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    return release(here, pointer(address), MemoryKind::device, MemoryKind::managed);
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  return call(DriverEntry::cuMemGetAddressRange, Demand::context,
              [&](const Here& here) -> CUresult {
                const FakeBlock block = here.state.block_at(pointer(address));
                if (block.bytes == 0) return CUDA_ERROR_NOT_FOUND;
                // Either may be left out.
                if (base != nullptr) *base = block.base;
                if (bytes != nullptr) *bytes = block.bytes;
                return CUDA_SUCCESS;
              });
}

CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemHostAlloc, Demand::context, [&](const Here& here) -> CUresult {
    constexpr unsigned known =
        host_alloc_portable | host_alloc_device_map | host_alloc_write_combined;
    if ((flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(here, MemoryKind::pinned, bytes, flags, address);
  });
}

CUresult cuMemFreeHost(void* address) {
  return call(DriverEntry::cuMemFreeHost, Demand::release, [&](const Here& here) {
    return release(here, address, MemoryKind::pinned, MemoryKind::pinned);
  });
}

CUresult cuMemHostRegister(void* address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemHostRegister, Demand::context, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    constexpr unsigned known = host_register_portable | host_register_device_map |
                               host_register_io_memory | host_register_read_only;
    if (bytes == 0 || !is_range(address, bytes) || (flags & ~known) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uintptr_t first = as_number(address);
    // Memory of the driver's own counts as registered.
    if (here.state.block_at(address).bytes != 0) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    const Result<Entry> entry = here.state.world->enter("cuMemHostRegister", here.site);
    if (!entry) return CUDA_ERROR_NOT_PERMITTED;
    const std::lock_guard lock(here.state.mutex);
    std::map<std::uintptr_t, FakeHostBlock>& known_ranges = here.state.registrations;
    const auto next = known_ranges.lower_bound(first);
    const bool meets_next = next != known_ranges.end() && next->first < first + bytes;
    const auto before = next == known_ranges.begin() ? known_ranges.end() : std::prev(next);
    const bool meets_before =
        before != known_ranges.end() && before->first + before->second.bytes > first;
    if (meets_next || meets_before) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    known_ranges.emplace(first, FakeHostBlock{here.device, bytes, flags});
    here.state.world->host().begin_registration(address, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* address) {
  return call(DriverEntry::cuMemHostUnregister, Demand::release, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Result<Entry> entry = here.state.world->enter("cuMemHostUnregister", here.site);
    if (!entry) return CUDA_ERROR_NOT_PERMITTED;
    const std::lock_guard lock(here.state.mutex);
    if (here.state.registrations.erase(as_number(address)) == 0) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    here.state.world->host().end_registration(address);
    return CUDA_SUCCESS;
  });
}

/// Pinned or registered memory around an address, and whether there is any.
std::optional<FakeHostBlock> host_block_at(const Here& here, const void* address) {
  const FakeBlock block = here.state.block_at(address);
  const std::lock_guard lock(here.state.mutex);
  if (block.kind == MemoryKind::pinned) return here.state.host_blocks[block.base];
  auto next = here.state.registrations.upper_bound(as_number(address));
  if (next == here.state.registrations.begin()) return std::nullopt;
  --next;
  if (as_number(address) - next->first >= next->second.bytes) return std::nullopt;
  return next->second;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* address, unsigned flags) {
  return call(DriverEntry::cuMemHostGetDevicePointer, Demand::context,
              [&](const Here& here) -> CUresult {
                if (device_address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                if (!host_block_at(here, address)) return CUDA_ERROR_INVALID_VALUE;
                *device_address = address_of(address);
                return CUDA_SUCCESS;
              });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  return call(DriverEntry::cuMemHostGetFlags, Demand::context, [&](const Here& here) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::optional<FakeHostBlock> block = host_block_at(here, address);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    *flags = block->flags;
    return CUDA_SUCCESS;
  });
}

CUmemoryPool pool_of(std::uint32_t index) noexcept {
  return as_handle<CUmemoryPool>(FakeDriverState::pool_base + index * std::uintptr_t{0x40});
}

/// False if there is no such attribute. Without a block answers are zero, or not given: that is how
/// the driver answers when it is asked for several.
bool answer_pointer(const Here& here, CUpointer_attribute attribute, const FakeBlock& block,
                    const void* address, void* data) {
  const bool is_known = block.bytes != 0;
  std::optional<std::uint32_t> pool;
  {
    const std::lock_guard lock(here.state.mutex);
    const auto found = here.state.pool_blocks.find(block.base);
    if (found != here.state.pool_blocks.end()) pool = found->second.first;
  }
  const bool is_host = block.kind == MemoryKind::pinned || block.kind == MemoryKind::managed;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      store(data, is_known ? context_of(block.device) : nullptr);
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      store(data, !is_known                          ? 0u
                  : block.kind == MemoryKind::pinned ? unsigned{CU_MEMORYTYPE_HOST}
                                                     : unsigned{CU_MEMORYTYPE_DEVICE});
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      store(data, is_known ? address_of(address) : CUdeviceptr{0});
      return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      store(data, !is_known || is_host ? address : nullptr);
      return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      store(data, static_cast<unsigned long long>(block.id));
      return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      store(data, block.kind == MemoryKind::managed ? 1u : 0u);
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      store(data, is_known ? static_cast<int>(block.device) : device_invalid);
      return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      store(data, block.kind == MemoryKind::device && !pool ? 1u : 0u);
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (is_known) store(data, CUdeviceptr{block.base});
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (is_known) store(data, block.bytes);
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      store(data, is_known ? 1u : 0u);
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      store(data, pool ? pool_of(*pool) : nullptr);
      return true;
  }
  return false;
}

FakeBlock known_block_at(const Here& here, CUdeviceptr address) {
  FakeBlock block = here.state.block_at(pointer(address));
  if (block.bytes != 0) return block;
  const std::lock_guard lock(here.state.mutex);
  auto next = here.state.registrations.upper_bound(address);
  if (next == here.state.registrations.begin()) return block;
  --next;
  if (address - next->first >= next->second.bytes) return block;
  return {MemoryKind::pinned, next->second.device, next->first, next->second.bytes, 0};
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return call(
      DriverEntry::cuPointerGetAttribute, Demand::context, [&](const Here& here) -> CUresult {
        if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const FakeBlock block = known_block_at(here, address);
        if (block.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        const bool is_device = block.kind == MemoryKind::device || block.kind == MemoryKind::mapped;
        if (is_device && attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
          store(data, static_cast<void*>(nullptr));
          return CUDA_ERROR_INVALID_VALUE;
        }
        return answer_pointer(here, attribute, block, pointer(address), data)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
      });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  return call(DriverEntry::cuPointerGetAttributes, Demand::context,
              [&](const Here& here) -> CUresult {
                if (count == 0 || attributes == nullptr || data == nullptr) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                const FakeBlock block = known_block_at(here, address);
                for (unsigned i = 0; i < count; ++i) {
                  if (data[i] == nullptr ||
                      !answer_pointer(here, attributes[i], block, pointer(address), data[i])) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                }
                return CUDA_SUCCESS;
              });
}

// --- Copies and fills
// -----------------------------------------------------------------------------

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return call(DriverEntry::cuMemcpyAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    return copy(here, *working.stream, pointer(to), pointer(from), bytes);
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream) {
  return call(DriverEntry::cuMemcpyPeerAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    const std::optional<std::uint32_t> to_device = device_of_context(here, to_context);
    const std::optional<std::uint32_t> from_device = device_of_context(here, from_context);
    if (!to_device || !from_device) return CUDA_ERROR_INVALID_CONTEXT;
    const auto is_elsewhere = [&](CUdeviceptr address, std::uint32_t device) {
      const auto place = here.state.world->locate(pointer(address));
      return place && place->first != device;
    };
    if (is_elsewhere(to, *to_device) || is_elsewhere(from, *from_device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return copy(here, *working.stream, pointer(to), pointer(from), bytes);
  });
}

/// The first byte of one side of a 2-D copy; null if it cannot be.
const void* first_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x,
                     std::size_t y, std::size_t pitch_bytes) {
  if (type == CU_MEMORYTYPE_ARRAY) return nullptr;
  const void* base = type == CU_MEMORYTYPE_HOST ? host : pointer(device);
  const std::optional<std::size_t> rows = checked_multiply(y, pitch_bytes);
  const std::optional<std::size_t> offset = rows ? checked_add(*rows, x) : rows;
  if (base == nullptr || !offset || !is_range(base, *offset)) return nullptr;
  return static_cast<const std::byte*>(base) + *offset;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream stream) {
  return call(DriverEntry::cuMemcpy2DAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (given->WidthInBytes == 0 || given->Height == 0) return CUDA_SUCCESS;
    const void* from = first_of(given->srcMemoryType, given->srcHost, given->srcDevice,
                                given->srcXInBytes, given->srcY, given->srcPitch);
    const void* to = first_of(given->dstMemoryType, given->dstHost, given->dstDevice,
                              given->dstXInBytes, given->dstY, given->dstPitch);
    const auto fits = [&](std::size_t x, std::size_t pitch) {
      const std::optional<std::size_t> end = checked_add(x, given->WidthInBytes);
      return end && *end <= pitch && checked_multiply(pitch, given->Height).has_value();
    };
    if (from == nullptr || to == nullptr || !fits(given->srcXInBytes, given->srcPitch) ||
        !fits(given->dstXInBytes, given->dstPitch)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const FakeStream& on = *working.stream;
    auto* const target = static_cast<std::byte*>(const_cast<void*>(to));
    const auto* const source = static_cast<const std::byte*>(from);
    const auto is_at_home = [&](const void* address) {
      const auto place = here.state.world->locate(address);
      return !place || place->first == on.device;
    };
    const std::size_t to_bytes = given->dstPitch * (given->Height - 1) + given->WidthInBytes;
    const std::size_t from_bytes = given->srcPitch * (given->Height - 1) + given->WidthInBytes;
    if (!is_range(to, to_bytes) || !is_range(from, from_bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (is_at_home(to) && is_at_home(from)) {
      if (!may_use(here, on.device, to, to_bytes, true) ||
          !may_use(here, on.device, from, from_bytes, false)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return result_of(
          here.backend(on).copy_2d(here.on(on), {.destination = target,
                                                 .destination_pitch_bytes = given->dstPitch,
                                                 .source = source,
                                                 .source_pitch_bytes = given->srcPitch,
                                                 .width_bytes = given->WidthInBytes,
                                                 .height = given->Height}));
    }
    for (std::size_t row = 0; row < given->Height; ++row) {
      const CUresult copied = copy(here, on, target + row * given->dstPitch,
                                   source + row * given->srcPitch, given->WidthInBytes);
      if (copied != CUDA_SUCCESS) return copied;
    }
    return CUDA_SUCCESS;
  });
}

/// Reads the source now, as the host, and copies from what was read.
CUresult copy_read_now(const Here& here, const FakeStream& stream, void* to, const void* from,
                       std::size_t bytes) {
  World& world = *here.state.world;
  if (world.locate(from)) return copy(here, stream, to, from, bytes);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_range(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t index = stream.native.value - 1;
  FakeStaging read{index, 0, std::make_unique<std::byte[]>(bytes)};
  {
    const Result<Entry> entry = world.enter("a driver call", here.site);
    if (!entry) return sim::result_of(entry.failure());
    std::vector<Touch>& touches = world.scratch();
    world.add_touch(touches, TouchKind::read, from, bytes);
    const Result<void> judged =
        world.judge({.kind = RecordKind::host_access, .touches = touches, .site = here.site});
    if (!judged) return sim::result_of(judged.failure());
    std::memcpy(read.bytes.get(), from, bytes);
  }
  const CUresult result = copy(here, stream, to, read.bytes.get(), bytes);
  if (result != CUDA_SUCCESS) return result;
  const Result<Entry> entry = world.enter("a driver call", here.site);
  if (!entry) return sim::result_of(entry.failure());
  read.position = world.stream(index).submitted;
  const std::lock_guard lock(here.state.mutex);
  std::erase_if(here.state.staging, [&](const FakeStaging& old) {
    return world.stream(old.stream).passed >= old.position;
  });
  here.state.staging.push_back(std::move(read));
  return CUDA_SUCCESS;
}

struct Batch {
  CUdeviceptr* to = nullptr;
  CUdeviceptr* from = nullptr;
  std::size_t* bytes = nullptr;
  std::size_t count = 0;
  CUmemcpyAttributes* attributes = nullptr;
  std::size_t* attribute_starts = nullptr;
  std::size_t attribute_count = 0;
};

bool is_batch(const Batch& batch) noexcept {
  if (batch.to == nullptr || batch.from == nullptr || batch.bytes == nullptr ||
      batch.attributes == nullptr || batch.attribute_starts == nullptr || batch.count == 0 ||
      batch.attribute_count == 0 || batch.attribute_count > batch.count ||
      batch.attribute_starts[0] != 0) {
    return false;
  }
  for (std::size_t i = 0; i < batch.attribute_count; ++i) {
    const CUmemcpySrcAccessOrder order = batch.attributes[i].srcAccessOrder;
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return false;
    }
    if (batch.attribute_starts[i] >= batch.count) return false;
    if (i > 0 && batch.attribute_starts[i] <= batch.attribute_starts[i - 1]) return false;
  }
  return true;
}

CUresult copy_batch(DriverEntry entry, const Batch& batch, CUstream handle,
                    std::size_t* failed) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    if (failed != nullptr) *failed = ~std::size_t{0};
    const std::uintptr_t number = as_number(handle);
    if (number == 0 || number == stream_legacy) return CUDA_ERROR_INVALID_VALUE;
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (!is_batch(batch)) return CUDA_ERROR_INVALID_VALUE;
    std::size_t attribute = 0;
    for (std::size_t i = 0; i < batch.count; ++i) {
      const bool is_next =
          attribute + 1 < batch.attribute_count && batch.attribute_starts[attribute + 1] == i;
      if (is_next) ++attribute;
      const auto copy_one =
          batch.attributes[attribute].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
              ? copy_read_now
              : copy;
      const CUresult copied = copy_one(here, *working.stream, pointer(batch.to[i]),
                                       pointer(batch.from[i]), batch.bytes[i]);
      if (copied == CUDA_SUCCESS) continue;
      if (failed != nullptr) *failed = i;
      return copied;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyBatchAsync_12080(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                  std::size_t count, CUmemcpyAttributes* attributes,
                                  std::size_t* attribute_starts, std::size_t attribute_count,
                                  std::size_t* failed, CUstream stream) {
  const Batch batch{to, from, bytes, count, attributes, attribute_starts, attribute_count};
  return copy_batch(DriverEntry::cuMemcpyBatchAsync_12080, batch, stream, failed);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                            std::size_t count, CUmemcpyAttributes* attributes,
                            std::size_t* attribute_starts, std::size_t attribute_count,
                            CUstream stream) {
  const Batch batch{to, from, bytes, count, attributes, attribute_starts, attribute_count};
  return copy_batch(DriverEntry::cuMemcpyBatchAsync, batch, stream, nullptr);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  return fill(DriverEntry::cuMemsetD8Async, {to, 0, count, 1}, value, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                          CUstream stream) {
  return fill(DriverEntry::cuMemsetD16Async, {to, 0, count, 1}, value, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  return fill(DriverEntry::cuMemsetD32Async, {to, 0, count, 1}, value, stream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch_bytes, unsigned char value,
                           std::size_t width, std::size_t height, CUstream stream) {
  return fill(DriverEntry::cuMemsetD2D8Async, {to, pitch_bytes, width, height}, value, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch_bytes, unsigned short value,
                            std::size_t width, std::size_t height, CUstream stream) {
  return fill(DriverEntry::cuMemsetD2D16Async, {to, pitch_bytes, width, height}, value, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch_bytes, unsigned value,
                            std::size_t width, std::size_t height, CUstream stream) {
  return fill(DriverEntry::cuMemsetD2D32Async, {to, pitch_bytes, width, height}, value, stream);
}

// --- The driver's pools
// ---------------------------------------------------------------------------

/// From the pool with that number, or from the device's own.
CUresult allocate_async(const Here& here, CUdeviceptr* address, std::size_t bytes, CUstream handle,
                        std::optional<std::size_t> from) {
  const Working working = work_on(here, handle);
  if (!working) return working.result;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > max_request_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const FakeStream& stream = *working.stream;
  const std::size_t index = from.value_or(stream.device);
  {
    const std::lock_guard lock(here.state.mutex);
    const FakePool& pool = here.state.pools[index];
    if (pool.max_bytes != 0 && !is_within(pool.used_bytes, bytes, pool.max_bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  constexpr std::size_t alignment = 512;
  const Result<void*> made = here.backend(stream).allocate_async(here.on(stream), bytes, alignment);
  if (!made) return sim::result_of(made.failure());
  *address = address_of(*made);
  const std::lock_guard lock(here.state.mutex);
  here.state.pool_blocks[as_number(*made)] = {static_cast<std::uint32_t>(index), bytes};
  FakePool& pool = here.state.pools[index];
  pool.used_bytes += bytes;
  pool.used_high_bytes = std::max(pool.used_high_bytes, pool.used_bytes);
  pool.reserved_high_bytes = std::max(pool.reserved_high_bytes, pool.used_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream handle) {
  return call(DriverEntry::cuMemAllocAsync, Demand::context, [&](const Here& here) {
    return allocate_async(here, address, bytes, handle, std::nullopt);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                                 CUstream stream) {
  return call(DriverEntry::cuMemAllocFromPoolAsync, Demand::context,
              [&](const Here& here) -> CUresult {
                std::optional<std::size_t> index;
                {
                  const std::lock_guard lock(here.state.mutex);
                  const FakePool* pool = here.state.find_pool(handle);
                  // A pool is on one device, and so is a simulated stream's memory.
                  if (pool == nullptr || pool->device != here.device) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                  index = static_cast<std::size_t>(pool - here.state.pools.data());
                }
                return allocate_async(here, address, bytes, stream, index);
              });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return call(DriverEntry::cuMemPoolCreate, Demand::initialised, [&](const Here& here) -> CUresult {
    if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!here.state.may_disturb()) return disturbs_capture;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!here.state.has_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(here.state.mutex);
    *pool = pool_of(static_cast<std::uint32_t>(here.state.pools.size()));
    FakePool made;
    made.device = static_cast<std::uint32_t>(properties->location.id);
    made.max_bytes = properties->maxSize;
    here.state.pools.push_back(made);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return call(DriverEntry::cuMemFreeAsync, Demand::release, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const FakeBlock block = here.state.block_at(pointer(address));
    if (block.kind != MemoryKind::device || block.base != address) return CUDA_ERROR_INVALID_VALUE;
    const FakeStream& stream = *working.stream;
    const Result<void> released =
        here.backend(stream).release_async(here.on(stream), pointer(address));
    if (!released) return sim::result_of(released.failure());
    const std::lock_guard lock(here.state.mutex);
    forget_pooled(here, block.base);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return about(DriverEntry::cuDeviceGetDefaultMemPool, device, pool, [&](const Here& here) {
    *pool = pool_of(here.device);
    return CUDA_SUCCESS;
  });
}

/// A call about a pool and something that must be there.
template <class Body>
CUresult about(DriverEntry entry, CUmemoryPool handle, const void* value, Body body) noexcept {
  return call(entry, Demand::initialised, [&](const Here& here) -> CUresult {
    const std::lock_guard lock(here.state.mutex);
    FakePool* pool = here.state.find_pool(handle);
    if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return body(*pool);
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return call(DriverEntry::cuMemPoolDestroy, Demand::initialised, [&](const Here& here) {
    const std::lock_guard lock(here.state.mutex);
    FakePool* pool = here.state.find_pool(handle);
    // The devices' own stay.
    if (pool == nullptr || pool < here.state.pools.data() + here.state.device_count()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pool->is_alive = false;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
  // What is freed here is the device's again when its stream has passed the free: nothing is kept.
  return about(DriverEntry::cuMemPoolTrimTo, handle, "",
               [](const FakePool&) { return CUDA_SUCCESS; });
}

std::optional<std::size_t> reuse_flag(CUmemPool_attribute attribute) noexcept {
  if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
      attribute > CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(attribute) - 1;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return about(DriverEntry::cuMemPoolSetAttribute, handle, value, [&](FakePool& pool) {
    if (const std::optional<std::size_t> flag = reuse_flag(attribute)) {
      std::memcpy(&pool.reuse[*flag], value, sizeof(int));
      return CUDA_SUCCESS;
    }
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, value, sizeof bytes);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.release_threshold_bytes = bytes;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        // A watermark can only be begun anew, each for itself.
        if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
        const bool is_used = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        (is_used ? pool.used_high_bytes : pool.reserved_high_bytes) = pool.used_bytes;
        return CUDA_SUCCESS;
      }
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return about(DriverEntry::cuMemPoolGetAttribute, handle, value, [&](const FakePool& pool) {
    if (const std::optional<std::size_t> flag = reuse_flag(attribute)) {
      store(value, pool.reuse[*flag]);
      return CUDA_SUCCESS;
    }
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        store(value, pool.release_threshold_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        store(value, pool.used_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        store(value, pool.reserved_high_bytes);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        store(value, pool.used_high_bytes);
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* accesses,
                            std::size_t count) {
  return call(DriverEntry::cuMemPoolSetAccess, Demand::initialised,
              [&](const Here& here) -> CUresult {
                std::uint32_t owner = 0;
                {
                  const std::lock_guard lock(here.state.mutex);
                  const FakePool* const pool = here.state.find_pool(handle);
                  if (pool == nullptr || accesses == nullptr || count == 0) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                  owner = pool->device;
                }
                for (std::size_t i = 0; i < count; ++i) {
                  const CUmemLocation location = accesses[i].location;
                  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
                  if (!here.state.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
                  const bool is_owner = static_cast<std::uint32_t>(location.id) == owner;
                  // The device that has the memory keeps its access.
                  if (is_owner && accesses[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
                    return CUDA_ERROR_INVALID_VALUE;
                  }
                  if (!is_owner && !here.state.options.has_peer_access) {
                    return CUDA_ERROR_INVALID_DEVICE;
                  }
                }
                for (std::size_t i = 0; i < count; ++i) {
                  const auto device = static_cast<std::uint32_t>(accesses[i].location.id);
                  if (device == owner || accesses[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
                    continue;
                  }
                  // The simulated device grants peers all of its memory or none.
                  const Result<bool> granted =
                      here.state.backend(device).enable_peer_access(here.state.backend(owner));
                  if (!granted) return sim::result_of(granted.failure());
                }
                return CUDA_SUCCESS;
              });
}

// --- Virtual memory
// -------------------------------------------------------------------------------

bool is_paged(const Here& here, std::size_t value) {
  return value != 0 && value <= max_request_bytes && value % here.backend().info().page_bytes == 0;
}

/// Addresses belong to no context, so a thread without one may ask for them, too.
void choose_device(Here& here) {
  const FakeContexts& stack = here.state.thread().contexts;
  here.device = stack.empty() ? 0 : stack.back();
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long flags) {
  return call(DriverEntry::cuMemAddressReserve, Demand::initialised, [&](Here& here) -> CUresult {
    choose_device(here);
    if (address == nullptr || flags != 0 || !is_paged(here, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (alignment != 0 && !is_power_of_two(alignment)) return CUDA_ERROR_INVALID_VALUE;
    if (alignment > here.backend().info().page_bytes) return CUDA_ERROR_NOT_SUPPORTED;
    const Result<void*> reserved = here.backend().reserve(bytes);
    if (!reserved) return sim::result_of(reserved.failure());
    *address = address_of(*reserved);
    const std::lock_guard lock(here.state.mutex);
    here.state.reservations[as_number(*reserved)] = {here.device, bytes};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  return call(DriverEntry::cuMemAddressFree, Demand::initialised, [&](Here& here) -> CUresult {
    {
      const std::lock_guard lock(here.state.mutex);
      const auto found = here.state.reservations.find(address);
      if (found == here.state.reservations.end() || found->second.second != bytes) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      here.device = found->second.first;
    }
    const Result<void> freed = here.backend().unreserve(pointer(address), bytes);
    if (!freed) return sim::result_of(freed.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.reservations.erase(address);
    return CUDA_SUCCESS;
  });
}

/// What pages can be made of, and where; what is asked for and not had is said apart.
CUresult check(Here& here, const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return properties->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                     : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!here.state.has_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  here.device = static_cast<std::uint32_t>(properties->location.id);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* pages, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  return call(DriverEntry::cuMemCreate, Demand::initialised, [&](Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    if (const CUresult checked = check(here, properties); checked != CUDA_SUCCESS) return checked;
    if (pages == nullptr || flags != 0 || !is_paged(here, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const Result<NativePages> made = here.backend().create_pages(bytes);
    if (!made) return sim::result_of(made.failure());
    *pages =
        here.state.pages.add(std::make_shared<FakePages>(FakePages{here.device, *made, bytes}));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle pages) {
  return call(DriverEntry::cuMemRelease, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::shared_ptr<FakePages> found = here.state.pages.find(pages);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    const Result<void> released = here.state.backend(found->device).release_pages(found->native);
    if (!released) return sim::result_of(released.failure());
    here.state.pages.remove(pages);
    return CUDA_SUCCESS;
  });
}

/// The device whose addresses these are.
std::optional<std::uint32_t> device_at(const Here& here, CUdeviceptr address) {
  const auto place = here.state.world->locate(pointer(address));
  return place ? std::optional(place->first) : std::nullopt;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle pages, unsigned long long flags) {
  return call(DriverEntry::cuMemMap, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::shared_ptr<FakePages> found = here.state.pages.find(pages);
    if (!found || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || bytes != found->bytes) return CUDA_ERROR_NOT_SUPPORTED;
    if (address % here.state.backend(found->device).info().page_bytes != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<std::uint32_t> device = device_at(here, address);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (*device != found->device) return CUDA_ERROR_NOT_SUPPORTED;
    const Result<void> mapped = here.state.backend(*device).map(pointer(address), found->native);
    if (!mapped) return sim::result_of(mapped.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.mappings[address] = {bytes, {}};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  return call(DriverEntry::cuMemUnmap, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::optional<std::uint32_t> device = device_at(here, address);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    const Result<void> unmapped = here.state.backend(*device).unmap(pointer(address), bytes);
    if (!unmapped) return sim::result_of(unmapped.failure());
    const std::lock_guard lock(here.state.mutex);
    here.state.mappings.erase(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses,
                        std::size_t count) {
  return call(DriverEntry::cuMemSetAccess, Demand::initialised, [&](const Here& here) -> CUresult {
    if (!here.state.may_disturb()) return disturbs_capture;
    const std::optional<std::uint32_t> owner = device_at(here, address);
    if (accesses == nullptr || count == 0 || !owner) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemLocation location = accesses[i].location;
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (!here.state.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
      const bool is_peer = static_cast<std::uint32_t>(location.id) != *owner;
      if (is_peer && !here.state.options.has_peer_access) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemAccess_flags flags = accesses[i].flags;
      const PageAccess access = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PageAccess::none
                                : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PageAccess::read
                                                                         : PageAccess::read_write;
      Backend& backend = here.state.backend(*owner);
      const auto device = static_cast<std::uint32_t>(accesses[i].location.id);
      // What a peer is kept from, the owner keeps.
      if (device == *owner || access != PageAccess::none) {
        const Result<void> set = backend.set_access(pointer(address), bytes, access);
        if (!set) return sim::result_of(set.failure());
      }
      if (device != *owner && access != PageAccess::none) {
        // The simulated device grants peers all of its memory or none.
        const Result<bool> granted = here.state.backend(device).enable_peer_access(backend);
        if (!granted) return sim::result_of(granted.failure());
      }
      const std::lock_guard lock(here.state.mutex);
      for (auto it = here.state.mappings.lower_bound(address);
           it != here.state.mappings.end() && it->first < address + bytes; ++it) {
        it->second.access[static_cast<int>(device)] = flags;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  return call(DriverEntry::cuMemGetAccess, Demand::initialised, [&](const Here& here) -> CUresult {
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!here.state.has_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    const FakeBlock block = here.state.block_at(pointer(address));
    const std::lock_guard lock(here.state.mutex);
    const auto mapping = here.state.mappings.find(block.base);
    if (block.kind != MemoryKind::mapped || mapping == here.state.mappings.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto granted = mapping->second.access.find(location->id);
    *flags = granted == mapping->second.access.end()
                 ? 0
                 : static_cast<unsigned long long>(granted->second);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return call(DriverEntry::cuMemGetAllocationGranularity, Demand::initialised,
              [&](Here& here) -> CUresult {
                if (const CUresult checked = check(here, properties); checked != CUDA_SUCCESS) {
                  return checked;
                }
                if (bytes == nullptr || option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
                    option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                *bytes = here.backend().info().page_bytes;
                return CUDA_SUCCESS;
              });
}

// --- Managed memory
// -------------------------------------------------------------------------------

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  return call(DriverEntry::cuMemAllocManaged, Demand::context, [&](const Here& here) -> CUresult {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute_of(here.state, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, here.device).value_or(0) ==
        0) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    void* made = nullptr;
    const CUresult result =
        allocate(here, MemoryKind::managed, bytes, flags, address == nullptr ? nullptr : &made);
    if (result == CUDA_SUCCESS) *address = address_of(made);
    return result;
  });
}

CUresult advise(DriverEntry entry, CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                CUmemLocation location) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    static_assert(static_cast<int>(Advice::unset_accessed_by) + 1 ==
                  CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
        bytes == 0 || !is_range(pointer(address), bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool is_accessed_by =
        advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    const bool has_place = is_accessed_by || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    if (is_accessed_by && location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
        location.type != CU_MEM_LOCATION_TYPE_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<Place> place = has_place ? place_of(here.state, location) : Place::host();
    if (!place) {
      return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    return result_of(
        here.backend().advise(pointer(address), bytes, static_cast<Advice>(advice - 1), *place));
  });
}

CUresult cuMemAdvise_8000(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                          CUdevice device) {
  return advise(DriverEntry::cuMemAdvise_8000, address, bytes, advice, location_of(device));
}
CUresult cuMemAdvise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                     CUmemLocation location) {
  return advise(DriverEntry::cuMemAdvise, address, bytes, advice, location);
}

CUresult prefetch(DriverEntry entry, CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                  unsigned flags, CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (flags != 0 || bytes == 0 || !is_range(pointer(address), bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<Place> place = place_of(here.state, location);
    if (!place) {
      return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    // Needed of the target and of the stream's device, which are alike here.
    if (attribute_of(here.state, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                     working.stream->device)
            .value_or(0) == 0) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return result_of(here.backend(*working.stream)
                         .prefetch(here.on(*working.stream), pointer(address), bytes, *place));
  });
}

CUresult cuMemPrefetchAsync_8000(CUdeviceptr address, std::size_t bytes, CUdevice device,
                                 CUstream stream) {
  return prefetch(DriverEntry::cuMemPrefetchAsync_8000, address, bytes, location_of(device), 0,
                  stream);
}
CUresult cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                            unsigned flags, CUstream stream) {
  return prefetch(DriverEntry::cuMemPrefetchAsync, address, bytes, location, flags, stream);
}

/// The batches of managed memory: ranges, and from which of them on each location counts.
struct ManagedBatch {
  const CUdeviceptr* addresses = nullptr;
  const std::size_t* bytes = nullptr;
  std::size_t count = 0;
  const CUmemLocation* locations = nullptr;
  const std::size_t* location_starts = nullptr;
  std::size_t location_count = 0;
  bool discards = false;
};

bool is_batch(const ManagedBatch& batch, bool has_locations) noexcept {
  if (batch.addresses == nullptr || batch.bytes == nullptr || batch.count == 0) return false;
  if (!has_locations) return true;
  if (batch.locations == nullptr || batch.location_starts == nullptr || batch.location_count == 0 ||
      batch.location_count > batch.count || batch.location_starts[0] != 0) {
    return false;
  }
  for (std::size_t i = 1; i < batch.location_count; ++i) {
    if (batch.location_starts[i] <= batch.location_starts[i - 1] ||
        batch.location_starts[i] >= batch.count) {
      return false;
    }
  }
  return true;
}

CUresult managed_batch(DriverEntry entry, const ManagedBatch& batch, unsigned long long flags,
                       CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::uintptr_t number = as_number(handle);
    if (number == 0 || number == stream_legacy) return CUDA_ERROR_INVALID_VALUE;
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const bool has_locations = batch.location_count > 0 || !batch.discards;
    if (flags != 0 || !is_batch(batch, has_locations)) return CUDA_ERROR_INVALID_VALUE;
    for (std::uint32_t i = 0; i < here.state.device_count(); ++i) {
      if (attribute_of(here.state, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, i).value_or(0) ==
          0) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    std::size_t location = 0;
    for (std::size_t i = 0; i < batch.count; ++i) {
      void* const address = pointer(batch.addresses[i]);
      if (batch.bytes[i] == 0 || !is_range(address, batch.bytes[i])) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      std::optional<Place> place;
      if (has_locations) {
        if (location + 1 < batch.location_count && batch.location_starts[location + 1] == i) {
          ++location;
        }
        place = place_of(here.state, batch.locations[location]);
        if (!place) return CUDA_ERROR_INVALID_DEVICE;
      }
      Backend& backend = here.backend(*working.stream);
      const Submission submission = here.on(*working.stream);
      const Result<void> sent = batch.discards
                                    ? backend.discard(submission, address, batch.bytes[i], place)
                                    : backend.prefetch(submission, address, batch.bytes[i], *place);
      if (!sent) return sim::result_of(sent.failure());
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                 CUmemLocation* locations, std::size_t* location_starts,
                                 std::size_t location_count, unsigned long long flags,
                                 CUstream stream) {
  return managed_batch(DriverEntry::cuMemPrefetchBatchAsync,
                       {addresses, bytes, count, locations, location_starts, location_count, false},
                       flags, stream);
}
CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                unsigned long long flags, CUstream stream) {
  return managed_batch(DriverEntry::cuMemDiscardBatchAsync,
                       {addresses, bytes, count, nullptr, nullptr, 0, true}, flags, stream);
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* bytes,
                                           std::size_t count, CUmemLocation* locations,
                                           std::size_t* location_starts, std::size_t location_count,
                                           unsigned long long flags, CUstream stream) {
  // Without a location it would be a plain discard, which has an entry of its own.
  if (location_count == 0) location_starts = nullptr;
  return managed_batch(DriverEntry::cuMemDiscardAndPrefetchBatchAsync,
                       {addresses, bytes, count, locations, location_starts,
                        std::max<std::size_t>(location_count, 1), true},
                       flags, stream);
}

/// The devices, and the host, that have all of the range mapped; the rest of the row says none.
CUresult answer_accessed_by(const Here& here, CUdeviceptr address, std::size_t bytes, int* data,
                            std::size_t places) {
  const Result<ManagedInfo> info = here.backend().managed_info(pointer(address), bytes);
  if (!info) return sim::result_of(info.failure());
  std::vector<int> accessors;
  for (const Place place : info->accessed_by) {
    accessors.push_back(device_of(location_of(here.state, place)));
  }
  std::ranges::sort(accessors);
  accessors.resize(std::max(places, accessors.size()), device_invalid);
  std::copy_n(accessors.begin(), places, data);
  return CUDA_SUCCESS;
}

CUresult answer_range(const Here& here, void* data, std::size_t data_bytes,
                      CUmem_range_attribute attribute, CUdeviceptr address, std::size_t bytes) {
  if (data == nullptr || bytes == 0 || data_bytes < sizeof(int) || data_bytes % sizeof(int) != 0 ||
      !is_range(pointer(address), bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    return answer_accessed_by(here, address, bytes, static_cast<int*>(data),
                              data_bytes / sizeof(int));
  }
  if (data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const Result<ManagedInfo> info = here.backend().managed_info(pointer(address), bytes);
  if (!info) return sim::result_of(info.failure());
  const CUmemLocation preferred = location_of(here.state, info->preferred);
  const CUmemLocation prefetched = location_of(here.state, info->last_prefetch);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      store(data, info->is_read_mostly ? 1 : 0);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      store(data, device_of(preferred));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      store(data, device_of(prefetched));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      store(data, static_cast<int>(preferred.type));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      store(data, preferred.id);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      store(data, static_cast<int>(prefetched.type));
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      store(data, prefetched.id);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemRangeGetAttribute(void* data, std::size_t data_bytes, CUmem_range_attribute attribute,
                                CUdeviceptr address, std::size_t bytes) {
  return call(DriverEntry::cuMemRangeGetAttribute, Demand::context, [&](const Here& here) {
    return answer_range(here, data, data_bytes, attribute, address, bytes);
  });
}

CUresult cuMemRangeGetAttributes(void** data, std::size_t* data_bytes,
                                 CUmem_range_attribute* attributes, std::size_t count,
                                 CUdeviceptr address, std::size_t bytes) {
  return call(
      DriverEntry::cuMemRangeGetAttributes, Demand::context, [&](const Here& here) -> CUresult {
        if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        for (std::size_t i = 0; i < count; ++i) {
          const CUresult answered =
              answer_range(here, data[i], data_bytes[i], attributes[i], address, bytes);
          if (answered != CUDA_SUCCESS) return answered;
        }
        return CUDA_SUCCESS;
      });
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, std::size_t bytes,
                                unsigned flags) {
  return call(
      DriverEntry::cuStreamAttachMemAsync, Demand::context, [&](const Here& here) -> CUresult {
        const Working working = work_on(here, handle);
        if (!working) return working.result;
        const bool is_known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
                              (flags == CU_MEM_ATTACH_SINGLE && !working.stream->is_legacy);
        const FakeBlock block = here.state.block_at(pointer(address));
        if (!is_known || block.kind != MemoryKind::managed || block.base != address ||
            (bytes != 0 && bytes != block.bytes)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        // The simulated device lets the host and all streams at it in any case.
        return CUDA_SUCCESS;
      });
}

// --- Kernels
// --------------------------------------------------------------------------------------

/// Where the caller wants to read what is wrong with an image.
struct ErrorLog {
  char* text = nullptr;
  std::size_t room_bytes = 0;

  void write(std::string_view why) const noexcept {
    if (text == nullptr || room_bytes == 0) return;
    const std::size_t length = std::min(why.size(), room_bytes - 1);
    std::memcpy(text, why.data(), length);
    text[length] = '\0';
  }
};

/// Nothing if there is an option that Tern does not use.
std::optional<ErrorLog> log_of(unsigned count, const CUjit_option* options, void** values) {
  ErrorLog log;
  if (count != 0 && (options == nullptr || values == nullptr)) return std::nullopt;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
      log.text = static_cast<char*>(values[i]);
    } else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      log.room_bytes = as_number(values[i]);
    } else {
      return std::nullopt;
    }
  }
  return log;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned option_count,
                            CUjit_option* options, void** values) {
  return call(DriverEntry::cuModuleLoadDataEx, Demand::context, [&](const Here& here) -> CUresult {
    const std::optional<ErrorLog> log = log_of(option_count, options, values);
    if (module == nullptr || image == nullptr || !log) return CUDA_ERROR_INVALID_VALUE;
    // Images have no length: they are read as far as they make sense.
    const char* text = static_cast<const char*>(image);
    if (std::strncmp(text, fake_image_magic.data(), fake_image_magic.size()) != 0) {
      log->write("fake driver: this is no image of mine");
      return CUDA_ERROR_INVALID_IMAGE;
    }
    auto loaded = std::make_shared<FakeModule>();
    loaded->device = here.device;
    CUresult result = CUDA_SUCCESS;
    std::istringstream lines(text + fake_image_magic.size());
    for (std::string name; result == CUDA_SUCCESS && std::getline(lines, name);) {
      const auto& known = here.state.options.kernels;
      const auto kernel = std::ranges::find(known, name, &FakeKernel::name);
      if (kernel == known.end()) {
        log->write(fmt::format("fake driver: there is no kernel '{}'", name));
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
        break;
      }
      const Result<NativeKernel> made = here.backend().load_kernel(
          {.entry = kernel->name, .body = kernel->body, .context = kernel->context});
      if (!made) {
        result = sim::result_of(made.failure());
        break;
      }
      loaded->functions[name] = here.state.functions.add(
          std::make_shared<FakeFunction>(here.backend(), here.device, *made, *kernel));
    }
    if (result == CUDA_SUCCESS) {
      *module = as_handle<CUmodule>(here.state.modules.add(std::move(loaded)));
      return CUDA_SUCCESS;
    }
    for (const auto& [name, function] : loaded->functions) here.state.functions.remove(function);
    return result;
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return call(DriverEntry::cuModuleUnload, Demand::release, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeModule> gone = here.state.modules.remove(as_number(module));
    if (!gone) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [name, function] : gone->functions) here.state.functions.remove(function);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return call(DriverEntry::cuModuleGetFunction, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
    if (!from) return CUDA_ERROR_INVALID_HANDLE;
    if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto found = from->functions.find(std::string_view(name));
    if (found == from->functions.end()) return CUDA_ERROR_NOT_FOUND;
    *function = as_handle<CUfunction>(found->second);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  return call(DriverEntry::cuModuleGetFunctionCount, Demand::context,
              [&](const Here& here) -> CUresult {
                const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
                if (!from) return CUDA_ERROR_INVALID_HANDLE;
                if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
                *count = static_cast<unsigned>(from->functions.size());
                return CUDA_SUCCESS;
              });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  return call(DriverEntry::cuModuleEnumerateFunctions, Demand::context,
              [&](const Here& here) -> CUresult {
                const std::shared_ptr<FakeModule> from = here.state.modules.find(as_number(module));
                if (!from) return CUDA_ERROR_INVALID_HANDLE;
                if (functions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
                for (const auto& [name, function] : from->functions) {
                  if (count-- == 0) break;
                  *functions++ = as_handle<CUfunction>(function);
                }
                return CUDA_SUCCESS;
              });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return call(DriverEntry::cuFuncGetName, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->kernel.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, std::size_t index, std::size_t* offset,
                            std::size_t* bytes) {
  return call(DriverEntry::cuFuncGetParamInfo, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    const std::vector<KernelParameter>& parameters = kernel->kernel.parameters;
    if (offset == nullptr || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    for (std::size_t i = 0; i <= index; ++i) {
      const std::size_t size = std::max<std::size_t>(parameters[i].value_bytes, 1);
      *offset = (*offset + size - 1) / size * size;  // each at a multiple of its own size
      if (i < index) *offset += size;
    }
    if (bytes != nullptr) *bytes = parameters[index].value_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize, std::size_t, int block_limit) {
  return call(DriverEntry::cuOccupancyMaxPotentialBlockSize, Demand::context,
              [&](const Here& here) -> CUresult {
                if (!here.state.functions.find(as_number(function))) {
                  return CUDA_ERROR_INVALID_HANDLE;
                }
                if (min_grid == nullptr || block == nullptr || block_limit < 0) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                // As for a kernel that needs few registers.
                *block = block_limit == 0 ? 768 : std::min(block_limit, 768);
                *min_grid = 2 * attribute_of(here.state, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                             here.device)
                                    .value_or(1);
                return CUDA_SUCCESS;
              });
}

std::uint64_t count_at(const void* value, std::size_t value_bytes) noexcept {
  std::uint64_t count = 0;
  std::memcpy(&count, value, std::min(value_bytes, sizeof count));
  return count;
}

/// The arguments as the simulated device wants them: with the range behind each address. Nothing
/// if the kernel would touch memory that is not there for it.
std::optional<std::vector<KernelArgument>> declare(const Here& here, const FakeFunction& function,
                                                   void** values) {
  const std::vector<KernelParameter>& parameters = function.kernel.parameters;
  std::vector<KernelArgument> arguments;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const KernelParameter& parameter = parameters[i];
    KernelArgument argument{values[i], parameter.value_bytes};
    if (parameter.access && parameter.value_bytes == sizeof(void*)) {
      void* address = nullptr;
      std::memcpy(&address, values[i], sizeof address);
      const FakeBlock block = here.state.block_at(address);
      std::size_t bytes = block.base + block.bytes - as_number(address);
      if (parameter.count_parameter) {
        const std::size_t from = *parameter.count_parameter;
        bytes = count_at(values[from], parameters[from].value_bytes) * parameter.element_bytes;
      }
      if (block.bytes == 0 && bytes != 0 && address != nullptr) return std::nullopt;
      if (address != nullptr && bytes != 0) {
        if (!may_use(here, function.device, address, bytes, is_write(*parameter.access))) {
          return std::nullopt;
        }
        argument.range_address = address;
        argument.range_bytes = bytes;
        argument.access = *parameter.access;
      }
    }
    arguments.push_back(argument);
  }
  return arguments;
}

CUresult launch(DriverEntry entry, CUfunction function, const LaunchSize& size, CUstream handle,
                void** values, void** extra) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeFunction> kernel = here.state.functions.find(as_number(function));
    const Working working = work_on(here, handle);
    if (!kernel || !working.stream) return CUDA_ERROR_INVALID_HANDLE;
    if (kernel->device != here.device || working.stream->device != here.device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!working) return working.result;
    std::uint64_t threads = 1;
    for (const unsigned extent : size.block) threads *= std::min(extent, 2048u);
    const bool is_empty = std::ranges::count(size.grid, 0u) != 0 || threads == 0;
    const auto most = static_cast<std::uint64_t>(
        attribute_of(here.state, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, here.device)
            .value_or(1024));
    if (is_empty || threads > most || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t count = kernel->kernel.parameters.size();
    if (count != 0 &&
        (values == nullptr || std::find(values, values + count, nullptr) != values + count)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto arguments = declare(here, *kernel, values);
    if (arguments) {
      return result_of(
          here.backend().launch(here.on(*working.stream), kernel->native, size, *arguments));
    }
    // The launch succeeds, and the kernel will touch what is not there.
    const Result<Entry> entered = here.state.world->enter("a driver call");
    if (!entered) return sim::result_of(entered.failure());
    here.state.world->lose(
        here.device, Failure(ErrorCode::device_lost)
                         .with("device", here.backend().info().spec)
                         .with("call", "cuLaunchKernel")
                         .with("name", "CUDA_ERROR_ILLEGAL_ADDRESS")
                         .with("code", static_cast<std::uint64_t>(CUDA_ERROR_ILLEGAL_ADDRESS)));
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** arguments, void** extra) {
  const LaunchSize size{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  return launch(DriverEntry::cuLaunchKernel, function, size, stream, arguments, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
  // A config that cannot be used is a size that cannot be launched.
  const CUlaunchConfig given =
      config == nullptr || config->numAttrs != 0 ? CUlaunchConfig{} : *config;
  const LaunchSize size{{given.gridDimX, given.gridDimY, given.gridDimZ},
                        {given.blockDimX, given.blockDimY, given.blockDimZ},
                        given.sharedMemBytes};
  return launch(DriverEntry::cuLaunchKernelEx, function, size, given.hStream, arguments, extra);
}

}  // namespace entries
}  // namespace

const DriverTable& fake_driver_table() noexcept {
  static const DriverTable table = {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) .slot = entries::slot,
      TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  };
  return table;
}

}  // namespace tern::sim
