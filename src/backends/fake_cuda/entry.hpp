// What the entry points share: how a call begins, and what it asks of its arguments.
//
// An entry is one call(): it counts, says what the call needs, and does the rest in a body that
// gets a Here, the driver's state and the device whose context is current.

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

// Here the driver's words are ours: every entry is written in them.
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

inline CUresult result_of(const Result<void>& result) {
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

/// A stream that work may be queued to now.
struct Working {
  std::shared_ptr<FakeStream> stream;
  CUresult result = CUDA_SUCCESS;
  explicit operator bool() const noexcept { return result == CUDA_SUCCESS; }
};

[[nodiscard]] Working work_on(const Here& here, CUstream handle);

/// The stream whatever is done with it, for questions.
[[nodiscard]] std::shared_ptr<FakeStream> stream_of(const Here& here, CUstream handle);

/// May the device use all of the range that is mapped? What is not mapped is not asked.
[[nodiscard]] bool may_use(const Here& here, std::uint32_t device, const void* address,
                           std::size_t bytes, bool writes);

[[nodiscard]] bool is_range(const void* address, std::size_t bytes) noexcept;

/// Calls that break a capture, even one of another thread, unless this thread says it knows.
inline constexpr CUresult disturbs_capture = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

[[nodiscard]] CUresult allocate(const Here& here, MemoryKind kind, std::size_t bytes,
                                void** address);

/// The pool of the block has it back, if it is of one. With the state's mutex held.
void forget_pooled(const Here& here, std::uintptr_t base);

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

}  // namespace tern::sim::entries
