// A CUDA driver without a GPU: the driver's entry points, implemented on simulated devices.
//
// The CUDA backend calls its driver through a table of function pointers. A FakeDriver fills such a
// table with functions that make the checks of the driver, do the work on simulated devices, and
// return the driver's results. So the code of the CUDA backend, including its error paths, runs on
// any machine.
//
//   FakeDriver driver({.sim = {.seed = 7}});
//   driver.table().cuInit(0);
//
// Where the driver has a choice, the fake takes the difficult one: handles of destroyed streams and
// events are reused immediately, entries that are newer than the driver are missing, and a test can
// make any call fail. A call with a finding of the checker returns CUDA_ERROR_ASSERT. Two findings
// have other results: a call inside a host function returns CUDA_ERROR_NOT_PERMITTED, and a kernel
// that uses memory of a peer without access returns CUDA_ERROR_PEER_ACCESS_NOT_ENABLED.
// sim::findings(driver.device(0)) returns the findings. Faults from the fault plan of the simulated
// device return the driver's results: oom is OUT_OF_MEMORY, refuse is NOT_PERMITTED, fail is
// UNKNOWN, and after the loss of a device every call in its context returns the error of the loss.
//
// The entry points are plain functions, so only one FakeDriver can be installed in a process. It is
// installed from its construction to its destruction; constructing a second one fails. A table may
// outlive its driver: its functions then return CUDA_ERROR_DEINITIALIZED, as the driver does at the
// end of a process. All functions may be called from any thread.
//
// Graphs. cuStreamBeginCapture captures for real: the simulated device keeps the submitted work,
// and cuGraphLaunch submits it again. A test can also begin a capture as another library would
// (begin_capture). That capture restricts calls as the manual says, but captures nothing: work on
// its stream fails.
//
// Limits. All contexts are primary contexts. A graph can be instantiated once. A captured stream
// allocates no memory, copies no batches and launches no graphs. All streams of a capture belong to
// one device. Addresses are reserved on a device and accept pages of that device
// only. Registered memory is recorded but not page-locked. A 2-D fill is one fill per row. The
// checker does not see how the host uses pinned memory, and treats all of it as written. In some
// cases the fake is stricter than the driver: a destroyed handle is INVALID_HANDLE or INVALID_VALUE
// instead of a crash, and unmapping what is not mapped and stream-ordered allocations of zero bytes
// are INVALID_VALUE.

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

/// A parameter of a kernel. The driver reads the sizes from the image; here the test provides them.
/// An address without an access counts as a use of its whole block.
struct KernelParameter {
  std::size_t value_bytes = 0;
  /// For an address: how the kernel uses the memory from there on, to the end of the block or for
  /// as many elements as the parameter `count_parameter` says.
  std::optional<Access> access = {};
  std::optional<std::size_t> count_parameter = {};
  std::size_t element_bytes = 1;
  /// Instead of `count_parameter`: one element for each block of the launch.
  bool has_one_per_block = false;
};

struct FakeKernel {
  std::string name;
  /// If null, a built-in body whose output depends on everything that it reads.
  KernelBody body = nullptr;
  std::vector<KernelParameter> parameters = {};
  void* context = nullptr;
};

struct FakeDriverOptions {
  Options sim = {};
  /// If 0, cuInit returns NO_DEVICE.
  unsigned device_count = 1;
  /// Entries of later versions are missing. 12010 is version 12.1.
  int driver_version = 13000;
  bool has_peer_access = true;
  /// Slots that are missing even if the driver is new enough.
  std::vector<std::string> hidden = {};
  /// Attributes that differ from those of a current device. An attribute without a value is
  /// unknown.
  std::map<cuda::CUdevice_attribute, std::optional<int>> attributes = {};
  std::vector<FakeKernel> kernels = {};
  /// Bytes of files that the system has cached in the memory of an integrated device.
  /// cuMemGetInfo counts them as used.
  std::size_t cached_file_bytes = 0;
};

/// The objects that programs have created and not destroyed.
struct LiveHandles {
  std::size_t streams = 0, events = 0, modules = 0, pages = 0, reservations = 0, mappings = 0,
              registrations = 0, contexts = 0, graphs = 0, graph_execs = 0;
  friend bool operator==(const LiveHandles&, const LiveHandles&) = default;
};

class FakeDriver {
 public:
  /// Throws InvalidArgument for invalid options, and CapacityReached if another FakeDriver is
  /// installed.
  explicit FakeDriver(const FakeDriverOptions& options = {});
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// Returns the table that a loader would fill: slots are null if the driver is too old, or if
  /// they are hidden.
  [[nodiscard]] const cuda::DriverTable& table() const noexcept { return table_; }
  /// Returns the function that looks up entries. It behaves like the driver's, with one exception:
  /// if the requested version has a signature that Tern does not declare, it returns null. So a
  /// loader that requests a wrong version fails, instead of calling a function with the wrong type.
  [[nodiscard]] static cuda::cuGetProcAddress_type* get_proc_address() noexcept;

  /// Returns a simulated device, for sim::findings, sim::leaks, sim::set_faults and so on.
  [[nodiscard]] const Device& device(std::size_t ordinal) const;

  /// Makes the n-th call of a slot from now on, or all calls from the n-th on, do nothing and
  /// return `result`. Calls count from 1. Throws InvalidArgument for an unknown slot.
  void fail_call(std::string_view slot, std::uint64_t n, cuda::CUresult result);
  void fail_calls_from(std::string_view slot, std::uint64_t n, cuda::CUresult result);
  /// Removes all planned failures and restarts the counts at zero.
  void clear_failures();
  /// Returns the number of calls since the driver was installed or cleared. Throws InvalidArgument
  /// for an unknown slot.
  [[nodiscard]] std::uint64_t calls(std::string_view slot) const;
  [[nodiscard]] std::uint64_t total_calls() const;

  [[nodiscard]] LiveHandles live() const;
  /// Returns the priority of the stream, limited to the range of the device, or nullopt if there is
  /// no such stream.
  [[nodiscard]] std::optional<int> priority(cuda::CUstream stream) const;
  /// Returns the access that a device has to the mapping that contains the address.
  [[nodiscard]] cuda::CUmemAccess_flags access(const void* mapped, std::size_t ordinal) const;

  /// Returns an image for cuModuleLoadDataEx with these kernels, which must be in the options.
  [[nodiscard]] static std::string image(std::span<const std::string_view> kernels);

  /// Begins a capture of the stream on this thread, as another library would. Throws
  /// InvalidArgument for an invalid handle.
  void begin_capture(cuda::CUstream stream, cuda::CUstreamCaptureMode mode);
  void end_capture(cuda::CUstream stream);

  /// Holds the stream at this point, like sim::hold. Pass the returned number to resume().
  [[nodiscard]] std::uint64_t hold(cuda::CUstream stream);
  void resume(std::uint64_t hold);

  /// Resets the device, as another library could: destroys its streams, events, modules and memory,
  /// and replaces its context.
  void reset(std::size_t ordinal);

 private:
  std::shared_ptr<FakeDriverState> state_;
  cuda::DriverTable table_;
};

}  // namespace tern::sim
