// What a FakeDriver knows, for the functions of its table.
//
// Its own lock is never held while a simulated device is called, because such a call may wait for
// another thread; so what a call has looked up is kept alive by it, and not by the tables.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
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

/// A handle as the table shows it: any pointer of the driver's.
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
  std::uint64_t id = 0;  // never used again, unlike the handle
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
};

struct FakeFunction {
  FakeFunction(Backend& of, std::uint32_t on, NativeKernel loaded, const FakeKernel& from) noexcept
      : backend(of), device(on), native(loaded), kernel(from) {}
  ~FakeFunction() { backend.unload_kernel(native); }
  FakeFunction(const FakeFunction&) = delete;
  FakeFunction& operator=(const FakeFunction&) = delete;

  Backend& backend;
  const std::uint32_t device;
  const NativeKernel native;
  const FakeKernel& kernel;
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
};

/// What a copy that reads its source at once has read, until the stream has written it.
struct FakeStaging {
  std::size_t stream = 0;  // of the world
  std::uint64_t position = 0;
  std::unique_ptr<std::byte[]> bytes;
};

/// Devices whose contexts a thread has pushed, the current one last.
class FakeContexts {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::uint32_t back() const noexcept { return devices_[count_ - 1]; }
  [[nodiscard]] std::uint32_t& back() noexcept { return devices_[count_ - 1]; }
  /// False if there is no room for one more.
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

/// What the driver keeps for a thread.
struct FakeThread {
  std::uint64_t driver = 0;  // which one it belongs to
  FakeContexts contexts = {};
  cuda::CUstreamCaptureMode capture_mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
};

/// What is known of an address.
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

  /// Throws CapacityReached while another is installed.
  static void install(std::shared_ptr<FakeDriverState> state);
  static void uninstall() noexcept;
  /// The one that is installed; null if none is.
  [[nodiscard]] static std::shared_ptr<FakeDriverState> installed() noexcept;

  [[nodiscard]] Backend& backend(std::uint32_t device) const;
  [[nodiscard]] std::uint32_t device_count() const noexcept {
    return static_cast<std::uint32_t>(devices.size());
  }
  [[nodiscard]] bool has_device(int ordinal) const noexcept {
    return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size();
  }
  /// The device whose context the handle is.
  [[nodiscard]] std::optional<std::uint32_t> device_of(std::uintptr_t handle,
                                                       std::uintptr_t base) const noexcept;
  /// The pool of the handle that is alive, with the mutex held.
  [[nodiscard]] FakePool* find_pool(cuda::CUmemoryPool handle) noexcept;
  /// Nothing if the device does not know the attribute.
  [[nodiscard]] std::optional<int> attribute_of(cuda::CUdevice_attribute attribute,
                                                std::uint32_t device) const;
  [[nodiscard]] FakeThread& thread() const;

  /// Counts a call; the result that a test wants of it, if one does.
  [[nodiscard]] std::optional<cuda::CUresult> count(cuda::DriverEntry entry);
  /// The error every call in the context of a lost device returns.
  [[nodiscard]] std::optional<cuda::CUresult> sticky(std::uint32_t device);
  /// Forgets what lived in the context of a device, and gives its memory back.
  void end_context(std::uint32_t device);
  [[nodiscard]] FakeBlock block_at(const void* address);
  [[nodiscard]] std::shared_ptr<FakeStream> find_stream(cuda::CUstream stream,
                                                        std::uint32_t device);

  // Captures by somebody else.
  [[nodiscard]] std::optional<FakeCapture> capture_of(const FakeStream& stream);
  void invalidate(const FakeStream& stream);
  /// May this thread make a call that could disturb a capture? If not, those it disturbs are
  /// invalid from now on.
  [[nodiscard]] bool may_disturb();
  [[nodiscard]] bool has_blocking_capture(std::uint32_t device);

  const FakeDriverOptions options;
  const std::uint64_t number;  // of this driver in the process
  const std::shared_ptr<World> world;
  std::vector<Device> devices;
  std::atomic<bool> is_initialised = false;
  std::array<std::atomic<std::uint64_t>, cuda::driver_entries.size()> calls = {};
  std::atomic<std::uint64_t> last_id = 0;  // of streams

  RecycledHandles<FakeStream> streams{0x0510'0000};
  RecycledHandles<FakeEvent> events{0x0e00'0000};
  RecycledHandles<FakeFunction> functions{0x0f00'0000};
  RecycledHandles<FakeModule> modules{0x0a00'0000};
  RecycledHandles<FakePages> pages{0x0b00'0000};

  struct PlannedFailure {
    cuda::DriverEntry entry = {};
    std::uint64_t n = 0;
    bool and_after = false;
    cuda::CUresult result = cuda::CUDA_SUCCESS;
  };

  std::mutex mutex;  // guards all that follows
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
  std::set<std::pair<std::uint32_t, std::uint32_t>> peer_access;  // who may use whose
};

/// The driver's word for a failure of a simulated device.
[[nodiscard]] cuda::CUresult result_of(const Failure& failure) noexcept;

}  // namespace tern::sim
