#include "backends/fake_cuda/fake_driver_state.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "backends/sim/sim_backend.hpp"
#include "device/device_state.hpp"

namespace tern::sim {
namespace {

using cuda::CUresult;
using cuda::DriverEntry;

/// The installed driver. Never destroyed, because a table may be called at the end of a process.
struct Installation {
  std::mutex mutex;
  std::shared_ptr<FakeDriverState> state;  // guarded by mutex
  std::uint64_t last_number = 0;           // guarded by mutex
};

Installation& installation() {
  static Installation& instance = *new Installation;
  return instance;
}

std::uint64_t next_number() {
  const std::lock_guard lock(installation().mutex);
  return ++installation().last_number;
}

std::shared_ptr<World> make_world(const FakeDriverOptions& options) {
  // Parse the plan here, so that the error belongs to this call and not to a nested constructor.
  static_cast<void>(FaultPlan::try_parse(options.sim.faults, options.sim.seed).value());
  auto world = std::make_shared<World>(options.sim, try_load_profile(options.sim.profile).value(),
                                       "fake driver");
  world->open_trace().value();
  return world;
}

}  // namespace

CUresult result_of(const Failure& failure) noexcept {
  switch (failure.code()) {
    case ErrorCode::out_of_memory:
    case ErrorCode::capacity:
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    case ErrorCode::device_lost:
      return static_cast<CUresult>(
          failure.number("code").value_or(cuda::CUDA_ERROR_ILLEGAL_ADDRESS));
    case ErrorCode::violation: {
      const std::string_view finding = failure.string("finding").value_or("");
      if (finding.starts_with("TERN-S404")) return cuda::CUDA_ERROR_NOT_PERMITTED;
      if (finding.starts_with("TERN-S402")) return cuda::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
      return cuda::CUDA_ERROR_ASSERT;
    }
    case ErrorCode::use_after_free:
    case ErrorCode::invalid_argument:
      return cuda::CUDA_ERROR_INVALID_VALUE;
    case ErrorCode::invalid_device:
    case ErrorCode::device_mismatch:
      return cuda::CUDA_ERROR_INVALID_DEVICE;
    case ErrorCode::unsupported:
      return cuda::CUDA_ERROR_NOT_SUPPORTED;
    case ErrorCode::stream_misuse:
      return static_cast<CUresult>(
          failure.number("code").value_or(cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    default:
      return failure.string("name") == "operation not permitted" ? cuda::CUDA_ERROR_NOT_PERMITTED
                                                                 : cuda::CUDA_ERROR_UNKNOWN;
  }
}

FakeDriverState::FakeDriverState(const FakeDriverOptions& given)
    : options(given), number(next_number()), world(make_world(given)) {
  for (unsigned i = 0; i < options.device_count; ++i) {
    devices.emplace_back(open_backend(world, "sim:" + std::to_string(i)).value());
  }
  contexts.resize(devices.size());
}

void FakeDriverState::install(std::shared_ptr<FakeDriverState> state) {
  const std::lock_guard lock(installation().mutex);
  if (installation().state) {
    raise(Failure(ErrorCode::capacity,
                  "a fake driver is installed already, and a process has {max}. End that one "
                  "first.")
              .with("max", 1u));
  }
  installation().state = std::move(state);
}

void FakeDriverState::uninstall() noexcept {
  const std::lock_guard lock(installation().mutex);
  installation().state = nullptr;
}

std::shared_ptr<FakeDriverState> FakeDriverState::installed() noexcept {
  const std::lock_guard lock(installation().mutex);
  return installation().state;
}

Backend& FakeDriverState::backend(std::uint32_t device) const {
  return DeviceState::of(devices[device])->backend();
}

std::optional<std::uint32_t> FakeDriverState::device_of(std::uintptr_t handle,
                                                        std::uintptr_t base) const noexcept {
  constexpr std::uintptr_t stride = 0x40;
  if (handle < base || (handle - base) % stride != 0) return std::nullopt;
  const std::uintptr_t device = (handle - base) / stride;
  if (device >= devices.size()) return std::nullopt;
  return static_cast<std::uint32_t>(device);
}

FakePool* FakeDriverState::find_pool(cuda::CUmemoryPool handle) noexcept {
  constexpr std::uintptr_t stride = 0x40;
  const std::uintptr_t number_of_it = as_number(handle);
  if (number_of_it < pool_base || (number_of_it - pool_base) % stride != 0) return nullptr;
  const std::uintptr_t index = (number_of_it - pool_base) / stride;
  if (index >= pools.size() || !pools[index].is_alive) return nullptr;
  return &pools[index];
}

std::optional<int> FakeDriverState::attribute_of(cuda::CUdevice_attribute attribute,
                                                 std::uint32_t device) const {
  if (const auto said = options.attributes.find(attribute); said != options.attributes.end()) {
    return said->second;
  }
  switch (attribute) {
    case cuda::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case cuda::CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return static_cast<int>(backend(device).info().processors);
    case cuda::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
      return world->shares_managed() ? 1 : 0;
    case cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return world->options().keeps_contents ? 1 : 0;
    case cuda::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case cuda::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    case cuda::CU_DEVICE_ATTRIBUTE_NUMA_ID:
      return -1;
    // Features that the simulated device does not have.
    case cuda::CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case cuda::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case cuda::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
    case cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 0;
  }
  return std::nullopt;
}

FakeThread& FakeDriverState::thread() const {
  // Not destroyed with the thread, because buffers with static storage call the driver later.
  constinit thread_local FakeThread own;
  static_assert(std::is_trivially_destructible_v<FakeThread>);
  // Discard the state that an earlier driver kept for this thread.
  if (own.driver != number) own = FakeThread{number, {}, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL};
  return own;
}

std::optional<CUresult> FakeDriverState::count(DriverEntry entry) {
  const std::uint64_t n = ++calls[static_cast<std::size_t>(entry)];
  const std::lock_guard lock(mutex);
  for (const PlannedFailure& planned : failures) {
    if (planned.entry != entry) continue;
    if (planned.n == n || (planned.and_after && n > planned.n)) return planned.result;
  }
  return std::nullopt;
}

std::optional<CUresult> FakeDriverState::sticky(std::uint32_t device) {
  const Result<Entry> entry = world->enter("a driver call");
  if (!entry) return result_of(entry.failure());
  const std::optional<Failure>& loss = world->device(device).loss;
  if (!loss) return std::nullopt;
  return result_of(*loss);
}

void FakeDriverState::end_context(std::uint32_t device) {
  const auto is_here = [&](const auto& value) { return value.device == device; };
  streams.remove_if(is_here);
  events.remove_if(is_here);
  functions.remove_if(is_here);
  modules.remove_if(is_here);
  graph_execs.remove_if(is_here);
  graphs.remove_if(is_here);
  std::vector<std::uintptr_t> blocks;
  if (const Result<Entry> entry = world->enter("a driver call")) {
    const SimDevice& owner = world->device(device);
    for (const auto& [offset, block] : owner.blocks) {
      blocks.push_back(as_number(owner.memory->address_of(offset)));
    }
  }
  {
    const std::lock_guard lock(mutex);
    contexts[device].retained = 0;
    contexts[device].legacy = nullptr;
    for (FakePool& pool : pools) {
      if (pool.device == device) pool.used_bytes = 0;
    }
    std::erase_if(thread_streams, [&](const auto& item) { return item.first.second == device; });
    std::erase_if(peer_access, [&](const auto& pair) { return pair.first == device; });
    std::erase_if(pool_blocks,
                  [&](const auto& item) { return pools[item.second.first].device == device; });
    std::erase_if(captures, [&](const FakeCapture& c) { return c.stream->device == device; });
    for (auto it = host_blocks.begin(); it != host_blocks.end();) {
      if (it->second.device == device) blocks.push_back(it->first);
      it = it->second.device == device ? host_blocks.erase(it) : std::next(it);
    }
  }
  // Pending work still uses the memory. Resetting a device waits for it.
  if (const Result<Entry> entry = world->enter("a driver call")) {
    static_cast<void>(world->wait_for_all(device));
  }
  for (const std::uintptr_t block : blocks) {
    static_cast<void>(backend(device).release(as_handle<void*>(block), {}));
  }
}

FakeBlock FakeDriverState::block_at(const void* address) {
  const Result<Entry> entry = world->enter("a driver call");
  if (!entry) return {};
  void* base = nullptr;
  if (const HostSpace::Block* block = world->host().find(address, &base)) {
    const std::lock_guard lock(mutex);
    const auto owner = host_blocks.find(as_number(base));
    const std::uint32_t device = owner == host_blocks.end() ? 0 : owner->second.device;
    return {block->kind, device, as_number(base), block->bytes};
  }
  const auto place = world->locate(address);
  if (!place) return {};
  const SimDevice& owner = world->device(place->first);
  auto block = owner.blocks.upper_bound(place->second);
  if (block != owner.blocks.begin() && place->second - (--block)->first < block->second.bytes) {
    return {MemoryKind::device, place->first, as_number(owner.memory->address_of(block->first)),
            block->second.bytes};
  }
  const auto mapping = owner.pages->mapping_at(place->second);
  if (!mapping) return {};
  return {MemoryKind::mapped, place->first, as_number(owner.memory->address_of(mapping->offset)),
          mapping->bytes};
}

std::shared_ptr<FakeStream> FakeDriverState::find_stream(cuda::CUstream stream,
                                                         std::uint32_t device) {
  const std::uintptr_t handle = as_number(stream);
  if (handle == 0 || handle == cuda::stream_legacy) {
    const std::lock_guard lock(mutex);
    return contexts[device].legacy;
  }
  if (handle != cuda::stream_per_thread) return streams.find(handle);
  const std::pair key(std::this_thread::get_id(), device);
  {
    const std::lock_guard lock(mutex);
    const auto found = thread_streams.find(key);
    if (found != thread_streams.end()) return found->second;
  }
  // Only this thread creates its own stream, so no other thread can have created it meanwhile.
  const Result<NativeStream> made =
      backend(device).create_stream({.blocking = true, .name = "per thread"});
  if (!made) return nullptr;
  auto own = std::make_shared<FakeStream>(
      FakeStream{device, *made, ++last_id, cuda::CU_STREAM_DEFAULT, 0, false});
  const std::lock_guard lock(mutex);
  return thread_streams.emplace(key, std::move(own)).first->second;
}

// --- Captures
// -------------------------------------------------------------------------------------

std::optional<FakeCapture> FakeDriverState::capture_of(const FakeStream& stream) {
  std::optional<FakeCapture> found;
  {
    const std::lock_guard lock(mutex);
    // A real capture is in the list too, so the device need not be asked if the list is empty.
    if (captures.empty()) return std::nullopt;
    for (const FakeCapture& capture : captures) {
      if (capture.stream->id == stream.id) found = capture;
    }
  }
  if (found && !found->is_real) return found;
  const CaptureStatus status = capture_status(backend(stream.device), stream.native);
  if (status == CaptureStatus::none) return found;
  if (!found)
    found =
        FakeCapture{.stream = std::make_shared<FakeStream>(stream), .thread = {}, .is_real = true};
  found->is_invalid = found->is_invalid || status == CaptureStatus::invalidated;
  return found;
}

void FakeDriverState::invalidate(const FakeStream& stream) {
  {
    const std::lock_guard lock(mutex);
    if (captures.empty()) return;
    for (FakeCapture& capture : captures) {
      if (capture.stream->id == stream.id) capture.is_invalid = true;
    }
  }
  invalidate_capture(backend(stream.device), stream.native);
}

void FakeDriverState::forget_capture(const FakeStream& stream) {
  const std::lock_guard lock(mutex);
  std::erase_if(captures, [&](const FakeCapture& c) { return c.stream->id == stream.id; });
}

bool FakeDriverState::invalidate_captures(std::uint32_t device) {
  bool has_any = false;
  const std::lock_guard lock(mutex);
  for (FakeCapture& capture : captures) {
    if (capture.stream->device != device) continue;
    has_any = capture.is_invalid = true;
  }
  return has_any;
}

bool FakeDriverState::may_disturb() {
  const cuda::CUstreamCaptureMode mode = thread().capture_mode;
  if (mode == cuda::CU_STREAM_CAPTURE_MODE_RELAXED) return true;
  const std::thread::id self = std::this_thread::get_id();
  bool may = true;
  const std::lock_guard lock(mutex);
  for (FakeCapture& capture : captures) {
    if (capture.mode == cuda::CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool is_own = capture.thread == self;
    const bool is_global = mode == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL &&
                           capture.mode == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!is_own && !is_global) continue;
    capture.is_invalid = true;
    may = false;
  }
  return may;
}

bool FakeDriverState::has_blocking_capture(std::uint32_t device) {
  const std::lock_guard lock(mutex);
  return std::ranges::any_of(captures, [&](const FakeCapture& capture) {
    return capture.stream->device == device &&
           (capture.stream->flags & cuda::CU_STREAM_NON_BLOCKING) == 0;
  });
}

}  // namespace tern::sim
