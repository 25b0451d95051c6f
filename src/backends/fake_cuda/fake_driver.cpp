#include "backends/fake_cuda/fake_driver.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "backends/fake_cuda/entries.hpp"
#include "backends/fake_cuda/fake_driver_state.hpp"

namespace tern::sim {
namespace {

using cuda::CUresult;
using cuda::DriverEntry;

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

/// Entries whose signature changes at a version that Tern does not declare.
struct LaterShape {
  std::string_view name;
  int version;
};
constexpr LaterShape later_shapes[] = {{"cuStreamGetCtx", 12050}};

bool is_hidden(const FakeDriverOptions& options, std::string_view slot) {
  return std::ranges::find(options.hidden, slot) != options.hidden.end();
}

template <class Function>
void* as_pointer(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

/// Returns the function of a slot in the full table.
void* function_of(std::size_t slot) noexcept {
  constexpr const cuda::DriverTable& table = fake_driver_table;
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
    // A hidden slot is found but null, which a real driver may return too.
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

/// Fills the table like a loader does, so that it lacks the same entries.
cuda::DriverTable find_table() {
  cuda::DriverTable table;
  const auto find = [](const char* name, int version) {
    void* found = nullptr;
    static_cast<void>(get_proc_address_of_installed(name, &found, version,
                                                    cuda::get_proc_address_legacy_stream, nullptr));
    return found;
  };
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  table.slot = reinterpret_cast<cuda::slot##_type*>(find(#name, version));
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  return table;
}

const FakeDriverOptions& checked(const FakeDriverOptions& options) {
  for (const std::string& slot : options.hidden) static_cast<void>(entry_of(slot));
  return options;
}

}  // namespace

FakeDriver::FakeDriver(const FakeDriverOptions& options)
    : state_(std::make_shared<FakeDriverState>(checked(options))) {
  FakeDriverState::install(state_);
  table_ = find_table();
}

FakeDriver::~FakeDriver() { FakeDriverState::uninstall(); }

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
  live.graphs = state_->graphs.size();
  live.graph_execs = state_->graph_execs.size();
  const std::lock_guard lock(state_->mutex);
  live.reservations = state_->reservations.size();
  live.mappings = state_->mappings.size();
  live.registrations = state_->registrations.size();
  for (const FakeContext& context : state_->contexts) live.contexts += context.retained;
  return live;
}

std::optional<int> FakeDriver::priority(cuda::CUstream stream) const {
  const std::shared_ptr<FakeStream> found = state_->streams.find(as_number(stream));
  return found ? std::optional(found->priority) : std::nullopt;
}

cuda::CUmemAccess_flags FakeDriver::access(const void* mapped, std::size_t ordinal) const {
  const FakeBlock block = state_->block_at(mapped);
  const std::lock_guard lock(state_->mutex);
  const auto mapping = state_->mappings.find(block.base);
  if (block.kind != MemoryKind::mapped || mapping == state_->mappings.end()) {
    return cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  const auto granted = mapping->second.access.find(static_cast<int>(ordinal));
  return granted == mapping->second.access.end() ? cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE
                                                 : granted->second;
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
  state_->captures.push_back({std::move(found), mode, std::this_thread::get_id(), false});
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

void FakeDriver::resume(std::uint64_t hold) {
  const Entry entry = state_->world->enter("a knob").value();
  state_->world->resume(hold);
}

void FakeDriver::reset(std::size_t ordinal) {
  if (ordinal >= state_->devices.size()) {
    refuse("device", std::to_string(ordinal), "an ordinal below the number of devices");
  }
  state_->end_context(static_cast<std::uint32_t>(ordinal));
}

}  // namespace tern::sim
