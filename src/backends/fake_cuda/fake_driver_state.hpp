// The state of a FakeDriver, used by the entry points.
//
// No call to a simulated device is made with the state's mutex held, because the call may wait for
// another thread. So a call keeps the objects that it has looked up alive itself, and the tables
// may drop them meanwhile.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda/driver_table.hpp"
#include "backends/fake_cuda/fake_driver.hpp"
#include "backends/fake_cuda/recycled_handles.hpp"
#include "backends/sim/world.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::sim {

/// Converts between numbers and the pointers that the driver uses as handles.
template <class Handle>
[[nodiscard]] Handle as_handle(std::uintptr_t value) noexcept {
  return reinterpret_cast<Handle>(value);
}
template <class Handle>
[[nodiscard]] std::uintptr_t as_number(Handle handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle);
}

struct FakeStream {
  std::uint32_t device = 0;
  NativeStream native;
  std::uint64_t id = 0;  // never reused, unlike the handle
  unsigned flags = 0;
  int priority = 0;
  bool is_legacy = false;
};

struct FakeEvent {
  FakeEvent(Backend& of, std::uint32_t on, NativeEvent event, unsigned with) noexcept
      : backend(of), device(on), native(event), flags(with) {}
  ~FakeEvent() { backend.destroy_event(native); }
  FakeEvent(const FakeEvent&) = delete;
  FakeEvent& operator=(const FakeEvent&) = delete;

  Backend& backend;
  const std::uint32_t device;
  const NativeEvent native;
  const unsigned flags;
  std::atomic<bool> is_recorded = false;
  std::atomic<bool> is_captured = false;  // the last record was on a capturing stream
  std::atomic<bool> is_in_graph = false;  // the device has the record
};

/// The work of a capture. The graph and the executable graph made of it share it.
struct FakeGraph {
  FakeGraph(Backend& of, std::uint32_t on, NativeGraph captured) noexcept
      : backend(of), device(on), native(captured) {}
  ~FakeGraph() { backend.destroy_graph(native); }
  FakeGraph(const FakeGraph&) = delete;
  FakeGraph& operator=(const FakeGraph&) = delete;

  Backend& backend;
  const std::uint32_t device;
  const NativeGraph native;
  std::atomic<bool> is_instantiated = false;
};
struct FakeGraphExec {
  std::uint32_t device = 0;
  std::shared_ptr<FakeGraph> graph;
};

struct FakeFunction {
  FakeFunction(Backend& of, std::uint32_t on, NativeKernel loaded, FakeKernel from) noexcept
      : backend(of), device(on), native(loaded), kernel(std::move(from)) {}
  ~FakeFunction() { backend.unload_kernel(native); }
  FakeFunction(const FakeFunction&) = delete;
  FakeFunction& operator=(const FakeFunction&) = delete;

  Backend& backend;
  const std::uint32_t device;
  const NativeKernel native;
  const FakeKernel kernel;
};

struct FakeModule {
  std::uint32_t device = 0;
  std::map<std::string, std::uintptr_t, std::less<>> functions;  // handles, by name
};

struct FakePages {
  std::uint32_t device = 0;
  NativePages native;
  std::size_t bytes = 0;
};

struct FakeContext {
  unsigned retained = 0;
  std::shared_ptr<FakeStream> legacy;
};

/// A mapping and what each device may do with it.
struct FakeMapping {
  std::size_t bytes = 0;
  std::map<int, cuda::CUmemAccess_flags> access;
};

struct FakeHostBlock {
  std::uint32_t device = 0;
  std::size_t bytes = 0;
};

struct FakePool {
  std::uint32_t device = 0;
  bool is_alive = true;
  std::array<int, 3> reuse = {1, 1, 1};
  std::uint64_t release_threshold_bytes = 0;
  std::uint64_t max_bytes = 0;  // 0: as much as the device has
  std::uint64_t used_bytes = 0;
  std::uint64_t used_high_bytes = 0;
  std::uint64_t reserved_high_bytes = 0;
};

struct FakeCapture {
  std::shared_ptr<FakeStream> stream;
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool is_invalid = false;
  /// The device captures the work of the stream. Otherwise, only the rules of captures apply.
  bool is_real = false;
};

/// The bytes of a copy that reads its source immediately, kept until the stream has written them.
struct FakeStaging {
  std::size_t stream = 0;  // number in the world
  std::uint64_t position = 0;
  std::unique_ptr<std::byte[]> bytes;
};

/// The devices whose contexts a thread has pushed. The last one is current.
class FakeContexts {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::uint32_t back() const noexcept { return devices_[count_ - 1]; }
  [[nodiscard]] std::uint32_t& back() noexcept { return devices_[count_ - 1]; }
  /// Returns false if the stack is full.
  [[nodiscard]] bool push(std::uint32_t device) noexcept {
    if (count_ == devices_.size()) return false;
    devices_[count_++] = device;
    return true;
  }
  void pop_back() noexcept { --count_; }

 private:
  std::array<std::uint32_t, 64> devices_ = {};
  std::size_t count_ = 0;
};

/// The state of the driver for one thread.
struct FakeThread {
  std::uint64_t driver = 0;  // the number of the driver
  FakeContexts contexts = {};
  cuda::CUstreamCaptureMode capture_mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
};

/// The kind and the block of an address.
struct FakeBlock {
  MemoryKind kind = MemoryKind::host;
  std::uint32_t device = 0;
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
};

struct FakeDriverState {
  explicit FakeDriverState(const FakeDriverOptions& options);

  static constexpr std::uintptr_t context_base = 0x0c00'0000;
  static constexpr std::uintptr_t pool_base = 0x0d00'0000;

  /// Throws CapacityReached if another driver is installed.
  static void install(std::shared_ptr<FakeDriverState> state);
  static void uninstall() noexcept;
  /// Returns the installed driver, or null.
  [[nodiscard]] static std::shared_ptr<FakeDriverState> installed() noexcept;

  [[nodiscard]] Backend& backend(std::uint32_t device) const;
  [[nodiscard]] std::uint32_t device_count() const noexcept {
    return static_cast<std::uint32_t>(devices.size());
  }
  [[nodiscard]] bool has_device(int ordinal) const noexcept {
    return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size();
  }
  /// Returns the device of a context or pool handle.
  [[nodiscard]] std::optional<std::uint32_t> device_of(std::uintptr_t handle,
                                                       std::uintptr_t base) const noexcept;
  /// Returns the pool of the handle, or null if it was destroyed. Call with the mutex held.
  [[nodiscard]] FakePool* find_pool(cuda::CUmemoryPool handle) noexcept;
  /// Returns nullopt if the device does not know the attribute.
  [[nodiscard]] std::optional<int> attribute_of(cuda::CUdevice_attribute attribute,
                                                std::uint32_t device) const;
  [[nodiscard]] FakeThread& thread() const;

  /// Counts a call. Returns the result that a test has planned for it, if any.
  [[nodiscard]] std::optional<cuda::CUresult> count(cuda::DriverEntry entry);
  /// Returns the error that every call in the context of a lost device returns, or nullopt.
  [[nodiscard]] std::optional<cuda::CUresult> sticky(std::uint32_t device);
  /// Destroys everything that was created in the context of a device, and frees its memory.
  void end_context(std::uint32_t device);
  [[nodiscard]] FakeBlock block_at(const void* address);
  [[nodiscard]] std::shared_ptr<FakeStream> find_stream(cuda::CUstream stream,
                                                        std::uint32_t device);

  /// Returns the capture of the stream, whether it began on this stream or not.
  [[nodiscard]] std::optional<FakeCapture> capture_of(const FakeStream& stream);
  void invalidate(const FakeStream& stream);
  void forget_capture(const FakeStream& stream);
  /// Invalidates all captures of a device. Returns false if there are none.
  [[nodiscard]] bool invalidate_captures(std::uint32_t device);
  /// Returns whether this thread may make a call that could disturb a capture. If it returns false,
  /// the disturbed captures are now invalid.
  [[nodiscard]] bool may_disturb();
  [[nodiscard]] bool has_blocking_capture(std::uint32_t device);

  const FakeDriverOptions options;
  const std::uint64_t number;  // of this driver, unique in the process
  const std::shared_ptr<World> world;
  std::vector<Device> devices;
  std::atomic<bool> is_initialised = false;
  std::array<std::atomic<std::uint64_t>, cuda::driver_entries.size()> calls = {};
  std::atomic<std::uint64_t> last_id = 0;  // the last stream id

  RecycledHandles<FakeStream> streams{0x0510'0000};
  RecycledHandles<FakeEvent> events{0x0e00'0000};
  RecycledHandles<FakeFunction> functions{0x0f00'0000};
  RecycledHandles<FakeModule> modules{0x0a00'0000};
  RecycledHandles<FakePages> pages{0x0b00'0000};
  RecycledHandles<FakeGraph> graphs{0x0700'0000};
  RecycledHandles<FakeGraphExec> graph_execs{0x0800'0000};

  struct PlannedFailure {
    cuda::DriverEntry entry = {};
    std::uint64_t n = 0;
    bool and_after = false;
    cuda::CUresult result = cuda::CUDA_SUCCESS;
  };

  std::mutex mutex;  // guards all members below
  std::vector<PlannedFailure> failures;
  std::vector<FakeContext> contexts;
  std::vector<FakePool> pools;
  std::vector<FakeCapture> captures;
  std::map<std::pair<std::thread::id, std::uint32_t>, std::shared_ptr<FakeStream>> thread_streams;
  std::map<std::uintptr_t, FakeHostBlock> host_blocks;    // pinned and managed, by base
  std::map<std::uintptr_t, FakeHostBlock> registrations;  // host memory, by base
  std::map<std::uintptr_t, std::pair<std::uint32_t, std::size_t>> pool_blocks;  // pool, bytes
  std::map<std::uintptr_t, std::pair<std::uint32_t, std::size_t>> reservations;
  std::map<std::uintptr_t, FakeMapping> mappings;
  std::vector<FakeStaging> staging;
  std::set<std::pair<std::uint32_t, std::uint32_t>> peer_access;  // (user, owner)
};

/// Returns the driver's result for a failure of a simulated device.
[[nodiscard]] cuda::CUresult result_of(const Failure& failure) noexcept;

}  // namespace tern::sim
