#include "backends/sim/fake_driver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "backends/sim/driver_table.hpp"
#include "backends/sim/fake_driver_state.hpp"
#include "backends/sim/sim_backend.hpp"
#include "device/device_state.hpp"

namespace tern::sim {
namespace {

using cuda::CUresult;
using cuda::DriverEntry;

/// Which driver the functions of the table mean. Immortal, because a table may be called at the end
/// of a process.
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
  // Checked here, so that a bad plan is an error of this call and not of a constructor inside.
  static_cast<void>(FaultPlan::try_parse(options.sim.faults, options.sim.seed).value());
  auto world = std::make_shared<World>(options.sim, try_load_profile(options.sim.profile).value(),
                                       "fake driver");
  world->open_trace().value();
  return world;
}

[[noreturn]] void refuse(const char* name, std::string_view value, const char* accepts) {
  raise(Failure(ErrorCode::invalid_argument,
                "the fake driver does not know the {name} '{value}'. Give {accepts}.")
            .with("name", name)
            .with("value", value)
            .with("accepts", accepts));
}

DriverEntry entry_of(std::string_view slot) {
  const auto found = std::ranges::find(cuda::driver_entries, slot, &cuda::DriverEntryInfo::slot);
  if (found == cuda::driver_entries.end()) {
    refuse("slot", slot, "one of the table, such as cuMemAlloc or cuMemAdvise_8000");
  }
  return static_cast<DriverEntry>(found - cuda::driver_entries.begin());
}

/// Names that change their shape at a version which Tern does not declare.
struct LaterShape {
  std::string_view name;
  int version;
};
constexpr LaterShape later_shapes[] = {
    {"cuStreamGetCtx", 12050},
    {"cuCtxGetDevice", 13000},
    {"cuCtxSynchronize", 13000},
    {"cuStreamGetCaptureInfo", 12030},
};

bool is_hidden(const FakeDriverOptions& options, std::string_view slot) {
  return std::ranges::find(options.hidden, slot) != options.hidden.end();
}

template <class Function>
void* as_pointer(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

/// What the slot holds in the table that has everything.
void* function_of(std::size_t slot) noexcept {
  const cuda::DriverTable& table = fake_driver_table();
  void* const functions[] = {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) as_pointer(table.slot),
      TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  };
  return functions[slot];
}

CUresult get_proc_address_of_installed(const char* name, void** function, int version,
                                       std::uint64_t flags,
                                       cuda::CUdriverProcAddressQueryResult* status) {
  const std::shared_ptr<FakeDriverState> state = FakeDriverState::installed();
  if (!state) return cuda::CUDA_ERROR_DEINITIALIZED;
  if (name == nullptr || function == nullptr || flags > 2) return cuda::CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (version > state->options.driver_version) return cuda::CUDA_ERROR_INVALID_VALUE;
  cuda::CUdriverProcAddressQueryResult answer = cuda::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  int newest = 0;
  for (std::size_t slot = 0; slot < cuda::driver_entries.size(); ++slot) {
    const cuda::DriverEntryInfo& entry = cuda::driver_entries[slot];
    if (std::strcmp(entry.name, name) != 0) continue;
    if (answer == cuda::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) {
      answer = cuda::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    if (entry.version > version || entry.version <= newest) continue;
    newest = entry.version;
    answer = cuda::CU_GET_PROC_ADDRESS_SUCCESS;
    // A slot that is hidden is found, and null: a driver may say that, too.
    *function = is_hidden(state->options, entry.slot) ? nullptr : function_of(slot);
  }
  for (const LaterShape& shape : later_shapes) {
    if (shape.name != name || version < shape.version) continue;
    *function = nullptr;
    answer = cuda::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  if (status != nullptr) *status = answer;
  return cuda::CUDA_SUCCESS;
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
    default:
      return failure.string("name") == "operation not permitted" ? cuda::CUDA_ERROR_NOT_PERMITTED
                                                                 : cuda::CUDA_ERROR_UNKNOWN;
  }
}

// --- What the driver knows
// ------------------------------------------------------------------------

FakeDriverState::FakeDriverState(const FakeDriverOptions& given)
    : options(given), number(next_number()), world(make_world(given)) {
  for (const std::string& slot : options.hidden) static_cast<void>(entry_of(slot));
  for (unsigned i = 0; i < options.device_count; ++i) {
    devices.emplace_back(open_backend(world, fmt::format("sim:{}", i)).value());
  }
  contexts.resize(devices.size());
  pools.resize(devices.size());
  for (std::uint32_t i = 0; i < device_count(); ++i) pools[i].device = i;
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

FakeThread& FakeDriverState::thread() const {
  // Buffers with static storage end behind what a thread has, and still call the driver.
  constinit thread_local FakeThread own;
  static_assert(std::is_trivially_destructible_v<FakeThread>);
  // What an earlier driver kept for this thread went with it.
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
  // Work that is under way still uses the memory; resetting a device waits for it.
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
    return {block->kind, device, as_number(base), block->bytes, block->generation};
  }
  const auto place = world->locate(address);
  if (!place) return {};
  const SimDevice& owner = world->device(place->first);
  auto block = owner.blocks.upper_bound(place->second);
  if (block != owner.blocks.begin() && place->second - (--block)->first < block->second.bytes) {
    return {MemoryKind::device, place->first, as_number(owner.memory->address_of(block->first)),
            block->second.bytes, block->second.generation};
  }
  const auto mapping = owner.pages->mapping_at(place->second);
  if (!mapping) return {};
  return {MemoryKind::mapped, place->first, as_number(owner.memory->address_of(mapping->offset)),
          mapping->bytes, mapping->handle};
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
  // Only this thread makes its own, so nobody else can have done it meanwhile.
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
  const std::lock_guard lock(mutex);
  for (const FakeCapture& capture : captures) {
    if (capture.stream->id == stream.id) return capture;
  }
  return std::nullopt;
}

void FakeDriverState::invalidate(const FakeStream& stream) {
  const std::lock_guard lock(mutex);
  for (FakeCapture& capture : captures) {
    if (capture.stream->id == stream.id) capture.is_invalid = true;
  }
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

bool FakeDriverState::disturb_context(std::uint32_t device) {
  bool has_disturbed = false;
  const std::lock_guard lock(mutex);
  for (FakeCapture& capture : captures) {
    if (capture.stream->device != device) continue;
    capture.is_invalid = has_disturbed = true;
  }
  return has_disturbed;
}

bool FakeDriverState::has_blocking_capture(std::uint32_t device) {
  const std::lock_guard lock(mutex);
  return std::ranges::any_of(captures, [&](const FakeCapture& capture) {
    return capture.stream->device == device &&
           (capture.stream->flags & cuda::CU_STREAM_NON_BLOCKING) == 0;
  });
}

// --- The driver
// -----------------------------------------------------------------------------------

FakeDriver::FakeDriver(const FakeDriverOptions& options)
    : state_(std::make_shared<FakeDriverState>(options)){
          {const std::lock_guard lock(installation().mutex);
if (installation().state) {
  raise(Failure(ErrorCode::capacity,
                "a fake driver is installed already, and a process has {max}. End that one "
                "first.")
            .with("max", 1u));
}
installation().state = state_;
}  // namespace tern::sim
// By the same way as a loader, so that what it would not find is missing here.
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters)                 \
  {                                                                              \
    void* found = nullptr;                                                       \
    static_cast<void>(get_proc_address_of_installed(                             \
        #name, &found, version, cuda::get_proc_address_legacy_stream, nullptr)); \
    table_.slot = reinterpret_cast<cuda::slot##_type*>(found);                   \
  }
TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
}

FakeDriver::~FakeDriver() {
  const std::lock_guard lock(installation().mutex);
  installation().state = nullptr;
}

cuda::cuGetProcAddress_type* FakeDriver::get_proc_address() noexcept {
  return get_proc_address_of_installed;
}

const Device& FakeDriver::device(std::size_t ordinal) const { return state_->devices.at(ordinal); }

void FakeDriver::fail_call(std::string_view slot, std::uint64_t n, CUresult result) {
  const DriverEntry entry = entry_of(slot);
  const std::uint64_t done = state_->calls[static_cast<std::size_t>(entry)];
  const std::lock_guard lock(state_->mutex);
  state_->failures.push_back({entry, done + n, false, result});
}

void FakeDriver::fail_calls_from(std::string_view slot, std::uint64_t n, CUresult result) {
  const DriverEntry entry = entry_of(slot);
  const std::uint64_t done = state_->calls[static_cast<std::size_t>(entry)];
  const std::lock_guard lock(state_->mutex);
  state_->failures.push_back({entry, done + n, true, result});
}

void FakeDriver::clear_failures() {
  const std::lock_guard lock(state_->mutex);
  state_->failures.clear();
  for (std::atomic<std::uint64_t>& calls : state_->calls) calls = 0;
}

std::uint64_t FakeDriver::calls(std::string_view slot) const {
  return state_->calls[static_cast<std::size_t>(entry_of(slot))];
}

std::uint64_t FakeDriver::total_calls() const {
  std::uint64_t total = 0;
  for (const std::atomic<std::uint64_t>& calls : state_->calls) total += calls;
  return total;
}

LiveHandles FakeDriver::live() const {
  LiveHandles live;
  live.streams = state_->streams.size();
  live.events = state_->events.size();
  live.modules = state_->modules.size();
  live.pages = state_->pages.size();
  const std::lock_guard lock(state_->mutex);
  live.reservations = state_->reservations.size();
  live.mappings = state_->mappings.size();
  live.registrations = state_->registrations.size();
  for (const FakeContext& context : state_->contexts) live.contexts += context.retained;
  return live;
}

std::string FakeDriver::image(std::span<const std::string_view> kernels) {
  std::string text(fake_image_magic);
  for (const std::string_view kernel : kernels) text.append(kernel).append("\n");
  return text;
}

void FakeDriver::begin_capture(cuda::CUstream stream, cuda::CUstreamCaptureMode mode) {
  std::shared_ptr<FakeStream> found = state_->streams.find(as_number(stream));
  if (!found) refuse("stream", "that is captured", "one that cuStreamCreateWithPriority made");
  const std::lock_guard lock(state_->mutex);
  state_->captures.push_back(
      {std::move(found), mode, std::this_thread::get_id(), ++state_->last_id, false});
}

void FakeDriver::end_capture(cuda::CUstream stream) {
  const std::shared_ptr<FakeStream> found = state_->streams.find(as_number(stream));
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->captures, [&](const FakeCapture& c) { return c.stream == found; });
}

std::uint64_t FakeDriver::hold(cuda::CUstream stream) {
  const std::shared_ptr<FakeStream> found = state_->streams.find(as_number(stream));
  if (!found) refuse("stream", "that is held", "one that cuStreamCreateWithPriority made");
  const Entry entry = state_->world->enter("a knob").value();
  return state_->world->hold(found->native.value - 1);
}

void FakeDriver::let_go(std::uint64_t hold) {
  const Entry entry = state_->world->enter("a knob").value();
  state_->world->let_go(hold);
}

void FakeDriver::reset(std::size_t ordinal) {
  if (ordinal >= state_->devices.size()) {
    refuse("device", std::to_string(ordinal), "an ordinal below the number of devices");
  }
  state_->end_context(static_cast<std::uint32_t>(ordinal));
}

}  // namespace tern::sim
