// What all entry points share: the checks at the beginning of a call, and helpers for arguments.
//
// An entry point is one call(). It names the entry, states what the entry demands (Demand), and
// passes a body. The body gets a Here: the driver's state, and the device whose context is current.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "backends/cuda/driver_table.hpp"
#include "backends/fake_cuda/entries.hpp"
#include "backends/fake_cuda/fake_driver_state.hpp"

namespace tern::sim::entries {

// Entry points use the names of the driver.
using namespace cuda;

// The conditions that an entry checks before its body runs.
enum class Demand : std::uint8_t {
  nothing,
  initialised,
  context,  // a context is current, exists, and its device is not lost
  release,  // like context, but the body also runs on a lost device, to free things
};

struct Here {
  FakeDriverState& state;
  CallSite site;  // entry and call number; a report has no source line for a raw driver call
  std::uint32_t device = 0;

  [[nodiscard]] Backend& backend() const { return state.backend(device); }
  [[nodiscard]] Backend& backend(const FakeStream& stream) const {
    return state.backend(stream.device);
  }
  [[nodiscard]] Submission on(const FakeStream& stream) const { return {stream.native, site, {}}; }
};

inline CUresult result_of(const Result<void>& result) {
  return result ? CUDA_SUCCESS : sim::result_of(result.failure());
}

template <class Body>
CUresult run(FakeDriverState& state, Here& here, Demand demand, const char* name, Body& body) {
  if (demand == Demand::nothing) return body(here);
  if (!state.is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  // Host functions and kernels must not call the driver. The world checks this and reports it.
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

/// Runs an entry point: counts the call, returns the result that a test planned for it, checks what
/// the entry demands, and runs the body. Catches all exceptions, because the caller is C code.
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

inline void* pointer(CUdeviceptr address) noexcept {
  return as_handle<void*>(static_cast<std::uintptr_t>(address));
}
inline CUdeviceptr address_of(const void* pointer_to) noexcept { return as_number(pointer_to); }

template <class Value>
void store(void* data, Value value) noexcept {
  std::memcpy(data, &value, sizeof value);
}

inline CUcontext context_of(std::uint32_t device) noexcept {
  return as_handle<CUcontext>(FakeDriverState::context_base + device * std::uintptr_t{0x40});
}
inline std::optional<std::uint32_t> device_of_context(const Here& here,
                                                      CUcontext context) noexcept {
  return here.state.device_of(as_number(context), FakeDriverState::context_base);
}
inline CUmemoryPool pool_of(std::uint32_t index) noexcept {
  return as_handle<CUmemoryPool>(FakeDriverState::pool_base + index * std::uintptr_t{0x40});
}

/// The stream of a call that queues work, or the error if the stream accepts no work now.
struct Working {
  std::shared_ptr<FakeStream> stream;
  CUresult result = CUDA_SUCCESS;
  explicit operator bool() const noexcept { return result == CUDA_SUCCESS; }
};

[[nodiscard]] Working work_on(const Here& here, CUstream handle);

/// Returns the stream of a query. It may be in any state.
[[nodiscard]] std::shared_ptr<FakeStream> stream_of(const Here& here, CUstream handle);

/// Returns whether the device may access all mapped parts of the range. Unmapped parts are ignored.
[[nodiscard]] bool may_use(const Here& here, std::uint32_t device, const void* address,
                           std::size_t bytes, bool writes);

[[nodiscard]] bool is_range(const void* address, std::size_t bytes) noexcept;

/// The result of calls that would invalidate a capture, even one of another thread, unless the
/// capture mode of this thread allows them.
inline constexpr CUresult disturbs_capture = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

[[nodiscard]] CUresult allocate(const Here& here, MemoryKind kind, std::size_t bytes,
                                void** address);

/// Returns the block to its pool, if it has one. Call with the mutex of the state held.
void forget_pooled(const Here& here, std::uintptr_t base);

/// Runs an entry that queries a device by its ordinal.
template <class Body>
CUresult about(DriverEntry entry, CUdevice device, const void* answer, Body body) noexcept {
  return call(entry, Demand::initialised, [&](Here& here) -> CUresult {
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!here.state.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    here.device = static_cast<std::uint32_t>(device);
    return body(here);
  });
}

/// Runs an entry that only reads what a handle is. The streams that have no handle of their own
/// need a current context.
template <class Body>
CUresult about_handle(DriverEntry entry, CUstream handle, const void* answer, Body body) noexcept {
  const bool has_own = as_number(handle) > stream_per_thread;
  return call(entry, has_own ? Demand::initialised : Demand::context,
              [&](const Here& here) -> CUresult {
                const std::shared_ptr<FakeStream> stream = stream_of(here, handle);
                if (!stream) return CUDA_ERROR_INVALID_HANDLE;
                if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
                if (const std::optional<CUresult> lost = here.state.sticky(stream->device)) {
                  return *lost;
                }
                return body(here, *stream);
              });
}

/// Runs an entry that queries a stream.
template <class Body>
CUresult about(DriverEntry entry, CUstream handle, const void* answer, Body body) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const std::shared_ptr<FakeStream> stream = stream_of(here, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return body(here, *stream);
  });
}

}  // namespace tern::sim::entries
