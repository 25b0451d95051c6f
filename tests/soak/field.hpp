// The devices of one random program, their streams, memory and faults, and the checks at the end of
// the program.

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/driver.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern::soak {

class Field {
 public:
  /// On `sim`: one device, two peers, or two devices that are not peers. Otherwise: the device of
  /// the spec, and sometimes a simulated one too. Sometimes also the host device. `pressed_bytes`
  /// is the budget of a pool in some of the programs; 0 means that no program is short of memory.
  Field(const Program& program, Random& random, std::size_t pressed_bytes = 0);

  [[nodiscard]] const std::vector<Device>& devices() const noexcept { return devices_; }
  [[nodiscard]] const Device& any_device() { return random_.any_of(devices_); }
  [[nodiscard]] StreamRef any_stream() { return random_.any_of(streams_); }
  [[nodiscard]] StreamRef any_stream_of(const Device& device);
  /// Destroys one of the streams and creates another on the same device.
  void replace_stream();
  /// Waits for every stream. Afterwards all work has completed or is known to have failed.
  void drain_streams();

  /// Returns a kernel that copies bytes from its first argument to its second. Null if the device
  /// cannot run host functions, or if loading failed because of a fault.
  [[nodiscard]] const Kernel* copy_kernel(const Device& device);

  /// Returns a pool or a direct resource with a budget, which finish() checks; or none, for the
  /// default resource.
  [[nodiscard]] ResourceHandle resource_of(const Device& device);
  [[nodiscard]] std::vector<ResourceHandle> resources();

  // --- Faults of simulated devices

  /// Makes some of the next calls fail, once or persistently, or loses a device.
  void plant_faults();
  void clear_faults();
  /// Counts a step of the program. Clears the faults after some steps.
  void count_step();
  [[nodiscard]] bool has_faults() const noexcept { return has_faults_; }
  [[nodiscard]] bool has_lost() const noexcept { return has_lost_; }
  /// Returns whether a call may fail now.
  [[nodiscard]] bool may_fail() const noexcept { return has_faults_ || has_lost_; }
  /// Throws Mismatch for a failure without a reason. `is_hurt`: the bytes belong to an operation
  /// that failed before.
  void expect_reason(const Failure& failure, const char* what, bool is_hurt = false) const;

  // --- Memory of the caller. After a call has returned, nothing may access it.

  /// Fills the memory with canaries and keeps it until finish().
  void abandon(std::vector<Byte>&& memory);
  /// Keeps the memory unchanged, because the program itself has submitted work that uses it.
  void keep(std::vector<Byte>&& memory) { kept_.push_back(std::move(memory)); }

  /// Call when everything is dropped. Checks that there are no findings, no charges, no allocations
  /// and no changed canary.
  void finish();

 private:
  struct Home {
    BudgetHandle budget;
    ResourceHandle resource;
  };
  void make_streams();
  void check_findings();
  void check_memory();

  const Program& program_;
  Random& random_;
  std::vector<Device> devices_;
  std::vector<Device> simulated_;
  std::map<DeviceId, Home> homes_;
  std::vector<Stream> streams_;
  std::map<DeviceId, Kernel> kernels_;
  std::vector<std::vector<Byte>> abandoned_, kept_;
  bool is_leak_checked_ = true;
  bool has_faults_ = false, has_lost_ = false, may_lose_ = false;
  std::size_t fault_steps_ = 0;
};

}  // namespace tern::soak
