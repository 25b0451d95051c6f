// A CUDA driver without a GPU: the simulated devices behind the driver's own entry points.
//
// The CUDA backend calls its driver through a table of function pointers. A FakeDriver fills such a
// table with functions that check what the driver checks, do their work on simulated devices, and
// answer with the driver's results; so the backend's own lines run, and fail, on any machine.
//
//   FakeDriver driver({.sim = {.seed = 7}});
//   driver.table().cuInit(0);
//
// It is hostile where the driver may be: a destroyed stream or event gives its handle to the next
// one that is made, entries newer than the driver are missing, and any call can be made to fail.
// What the checker finds comes back as CUDA_ERROR_ASSERT from the call that did it, except for a
// call inside a host function (CUDA_ERROR_NOT_PERMITTED) and a kernel on memory of a peer it was
// not given (CUDA_ERROR_PEER_ACCESS_NOT_ENABLED); the findings themselves are in
// sim::findings(driver.device(0)). Faults of the simulated device's own plan come back as the
// driver would say them: oom as OUT_OF_MEMORY, refuse as NOT_PERMITTED, fail as UNKNOWN, and a lost
// device as its own error from every later call in its context.
//
// Functions have no object, so one FakeDriver at a time is installed, process-wide, from its
// construction to its destruction; a second is refused. A table outlives its driver: calls then
// answer CUDA_ERROR_DEINITIALIZED, as the driver does at the end of a process. Calls and knobs are
// safe from any thread.
//
// Limits. Contexts are primary contexts. Graph capture can be opened by somebody else
// (begin_capture), and then restricts calls as the manual says, but nothing is captured: work on a
// capturing stream is refused. Addresses are reserved on a device, and take pages of that device
// only. Registered memory is known but not locked. A fill of rows is a fill for each row. The
// checker does not see what the host does with pinned memory, and takes all of it for written.
// Stricter than the driver: handles that are gone are INVALID_HANDLE or INVALID_VALUE instead of a
// crash, unmapping what is not mapped and allocating nothing in stream order are INVALID_VALUE.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/driver_table.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/access.hpp"
#include "tern/device/operations.hpp"

namespace tern::sim {

struct FakeDriverState;

/// A parameter of a kernel. The driver learns the sizes from the image; here they are said. An
/// address whose access is not said counts as using all of its block.
struct KernelParameter {
  std::size_t value_bytes = 0;
  /// Of an address: what the kernel does behind it, up to the end of the block, or on as many
  /// elements as the parameter with that number says.
  std::optional<Access> access = {};
  std::optional<std::size_t> count_parameter = {};
  std::size_t element_bytes = 1;
};

struct FakeKernel {
  std::string name;
  /// Null: a stand-in whose output depends on all it reads.
  KernelBody body = nullptr;
  std::vector<KernelParameter> parameters = {};
  void* context = nullptr;
};

struct FakeDriverOptions {
  Options sim = {};
  /// With none, cuInit says NO_DEVICE.
  unsigned device_count = 1;
  /// Entries of later versions are missing: 12010 is 12.1.
  int driver_version = 13000;
  bool has_peer_access = true;
  /// Slots that are missing although the driver is new enough.
  std::vector<std::string> hidden = {};
  /// What differs from a device as of today; an attribute without a value is unknown.
  std::map<cuda::CUdevice_attribute, std::optional<int>> attributes = {};
  std::vector<FakeKernel> kernels = {};
};

/// What programs have made and not given back.
struct LiveHandles {
  std::size_t streams = 0, events = 0, modules = 0, pages = 0, reservations = 0, mappings = 0,
              registrations = 0, contexts = 0;
  friend bool operator==(const LiveHandles&, const LiveHandles&) = default;
};

class FakeDriver {
 public:
  /// Throws InvalidArgument for options that make no sense, and CapacityReached while another is
  /// installed.
  explicit FakeDriver(const FakeDriverOptions& options = {});
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// What a loader would find: null where the driver is too old, or the slot hidden.
  [[nodiscard]] const cuda::DriverTable& table() const noexcept { return table_; }
  /// What the loader asks. It answers as the driver does, except that a name whose shape at that
  /// version is one Tern does not declare gives null: a loader that asks too high must fail, and
  /// not call a function by the wrong type.
  [[nodiscard]] static cuda::cuGetProcAddress_type* get_proc_address() noexcept;

  /// The simulated devices, for sim::findings, sim::leaks, sim::set_faults and the other knobs.
  [[nodiscard]] const Device& device(std::size_t ordinal) const;

  /// Makes the n-th call of a slot from now, or all from that one on, do nothing and return this.
  /// Calls count from 1. Throws InvalidArgument for a slot that does not exist.
  void fail_call(std::string_view slot, std::uint64_t n, cuda::CUresult result);
  void fail_calls_from(std::string_view slot, std::uint64_t n, cuda::CUresult result);
  /// Forgets what should fail, and counts from zero again.
  void clear_failures();
  /// Since the driver was installed or cleared. Throws InvalidArgument.
  [[nodiscard]] std::uint64_t calls(std::string_view slot) const;
  [[nodiscard]] std::uint64_t total_calls() const;

  [[nodiscard]] LiveHandles live() const;
  /// What the stream was made with, clamped to the device's range; nothing if there is no such
  /// stream.
  [[nodiscard]] std::optional<int> priority(cuda::CUstream stream) const;
  /// What the device may do with the mapping that holds the address.
  [[nodiscard]] cuda::CUmemAccess_flags access(const void* mapped, std::size_t ordinal) const;

  /// An image for cuModuleLoadDataEx with these kernels, which must be among the options'.
  [[nodiscard]] static std::string image(std::span<const std::string_view> kernels);

  /// Somebody else captures the stream, from this thread. Throws InvalidArgument for a handle that
  /// is none.
  void begin_capture(cuda::CUstream stream, cuda::CUstreamCaptureMode mode);
  void end_capture(cuda::CUstream stream);

  /// Holds the stream here, as sim::hold does; resume() with the number lets it run.
  [[nodiscard]] std::uint64_t hold(cuda::CUstream stream);
  void resume(std::uint64_t hold);

  /// Somebody resets the device: its streams, events, modules and memory are gone, and its context
  /// is another one from now on.
  void reset(std::size_t ordinal);

 private:
  std::shared_ptr<FakeDriverState> state_;
  cuda::DriverTable table_;
};

}  // namespace tern::sim
