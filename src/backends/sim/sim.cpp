#include "tern/backends/sim.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include "backends/sim/sim_backend.hpp"
#include "backends/sim/sim_options.hpp"
#include "device/device_state.hpp"

namespace tern::sim {
namespace {

World& require_world(const Device& device) {
  World* world = device.is_open() ? world_of(DeviceState::of(device)->backend()) : nullptr;
  if (world == nullptr) {
    raise(Failure(ErrorCode::invalid_device,
                  "'{spec}' is not a simulated device. Open one with sim::open() or as 'sim'.")
              .with("spec", device.spec()));
  }
  return *world;
}

void access(const Device& device, TouchKind kind, const void* address, std::size_t bytes,
            CallSite site) {
  World& world = require_world(device);
  const auto lock = world.enter();
  if (bytes == 0) return;
  std::vector<Touch>& touches = world.scratch();
  world.add_touch(touches, kind, address, bytes);
  Result<void> judged =
      world.judge({.kind = RecordKind::host_access, .touches = touches, .site = site});
  if (!judged) raise(Failure(judged.failure()).at(site));
}

}  // namespace

Options options_from_config() { return try_read_options(DeviceSpec{"sim", 0, {}, {}}).value(); }

std::vector<Device> open_peers(const Options& options, unsigned count) {
  // Checked here, so that a bad plan is an error of this call and not of a constructor inside.
  static_cast<void>(FaultPlan::try_parse(options.faults, options.seed).value());
  const auto world = std::make_shared<World>(options, default_profile());
  world->open_trace().value();
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    devices.emplace_back(open_backend(world, fmt::format("sim:{}", i)).value());
  }
  return devices;
}

Device open(const Options& options) { return open_peers(options, 1).front(); }

void host_read(const Device& device, const void* address, std::size_t bytes, CallSite site) {
  access(device, TouchKind::read, address, bytes, site);
}
void host_write(const Device& device, void* address, std::size_t bytes, CallSite site) {
  access(device, TouchKind::write, address, bytes, site);
}

std::uint64_t hold(StreamRef stream) {
  World& world = require_world(stream.device());
  const NativeStream native = stream.try_native().value();
  const auto lock = world.enter();
  return world.hold(native.value - 1);
}

void let_go(const Device& device, std::uint64_t hold) {
  World& world = require_world(device);
  const auto lock = world.enter();
  world.let_go(hold);
}

void run_to_hold(const Device& device, std::uint64_t hold) {
  World& world = require_world(device);
  const auto lock = world.enter();
  world.run_to_hold(hold);
}

std::vector<Finding> findings(const Device& device) {
  World& world = require_world(device);
  const auto lock = world.enter();
  return world.findings();
}

std::vector<Finding> leaks(const Device& device) {
  World& world = require_world(device);
  const auto lock = world.enter();
  return world.checker().leaks();
}

std::uint64_t trace_hash(const Device& device) {
  World& world = require_world(device);
  const auto lock = world.enter();
  return world.trace_hash();
}

void flush_trace(const Device& device) {
  World& world = require_world(device);
  const auto lock = world.enter();
  if (world.trace()) world.trace()->flush().value();
}

std::uint64_t save_trace(const Device& device, const std::string& path) {
  World& world = require_world(device);
  const auto lock = world.enter();
  std::optional<TraceWriter>& trace = world.trace();
  if (!trace || trace->bytes().empty()) {
    raise(Failure(ErrorCode::invalid_argument,
                  "no trace was kept in memory. Open the device with '{name}'.")
              .with("name", "trace_memory_bytes"));
  }
  trace->write({.kind = RecordKind::shutdown});
  // A trace cut short at its limit says so itself.
  static_cast<void>(trace->close());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const std::span<const std::byte> bytes = trace->bytes();
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    raise(Failure(ErrorCode::file)
              .with("call", "write")
              .with("os_code", static_cast<std::uint64_t>(errno))
              .with("why", "the file cannot be written")
              .with("path", path));
  }
  return trace->record_count();
}

std::uint64_t virtual_time_ns(const Device& device) {
  World& world = require_world(device);
  const auto lock = world.enter();
  return world.time_ns();
}

std::uint64_t calls(const Device& device, std::string_view fault_class) {
  World& world = require_world(device);
  const auto lock = world.enter();
  const std::optional<FaultClass> known = FaultPlan::class_of(fault_class);
  if (!known) {
    raise(Failure(ErrorCode::invalid_argument,
                  "'{value}' is no class of calls. There are allocate, release, map, pin, copy, "
                  "fill, launch, record, wait, query and stream.")
              .with("name", "fault_class")
              .with("value", fault_class));
  }
  return world.faults().calls(*known);
}

void set_faults(const Device& device, std::string_view plan) {
  World& world = require_world(device);
  const auto lock = world.enter();
  world.faults() = FaultPlan::try_parse(plan, world.options().seed).value();
}

}  // namespace tern::sim
