// The devices of one random program, their streams, memory and faults, and what must be true of
// them when the program has dropped everything.

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
  /// On `sim`: one device, two peers, or two that know nothing of each other; elsewhere the device
  /// of that spec, and sometimes a simulated one. Sometimes with the host device.
  /// `pressed_bytes`: what a pool's budget allows in some of the programs; 0: enough in all.
  Field(const Program& program, Random& random, std::size_t pressed_bytes = 0);

  [[nodiscard]] const std::vector<Device>& devices() const noexcept { return devices_; }
  [[nodiscard]] const Device& any_device() { return random_.any_of(devices_); }
  [[nodiscard]] StreamRef any_stream() { return random_.any_of(streams_); }
  [[nodiscard]] StreamRef any_stream_of(const Device& device);
  /// Ends one of the streams, and makes another of the same device.
  void replace_stream();
  /// Waits for every stream; then nothing is in flight that is not known to have failed.
  void drain_streams();

  /// Copies bytes from its first argument to its second; null where the device runs no functions
  /// of the host, or cannot load it because of a fault.
  [[nodiscard]] const Kernel* copy_kernel(const Device& device);

  /// A pool or the driver's own memory, charged to a budget that is checked by finish(); or none,
  /// for the device's default.
  [[nodiscard]] ResourceHandle resource_of(const Device& device);
  [[nodiscard]] std::vector<ResourceHandle> resources();

  // --- Faults, of simulated devices

  /// Lets some of the next calls fail, once or persistently, or loses a device.
  void plant_faults();
  void clear_faults();
  /// One more step of the program: clears the faults after a while.
  void count_step();
  [[nodiscard]] bool has_faults() const noexcept { return has_faults_; }
  [[nodiscard]] bool has_lost() const noexcept { return has_lost_; }
  /// May a call fail now?
  [[nodiscard]] bool may_fail() const noexcept { return has_faults_ || has_lost_; }
  /// Throws Mismatch for a failure that has no reason. `is_hurt`: the bytes are of an operation
  /// that failed before.
  void expect_reason(const Failure& failure, const char* what, bool is_hurt = false) const;

  // --- Memory of the caller, which a call that has returned must not touch

  /// Keeps it, full of canaries, until finish().
  void abandon(std::vector<Byte>&& memory);
  /// Keeps it as it is: the program itself has submitted work that uses it.
  void keep(std::vector<Byte>&& memory) { kept_.push_back(std::move(memory)); }

  /// Everything was dropped: no findings, nothing charged, nothing allocated, no canary changed.
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
