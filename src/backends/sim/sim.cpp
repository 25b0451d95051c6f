#include "tern/backends/sim.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/fake_cuda.hpp"
#include "backends/device_spec.hpp"
#include "backends/sim/sim_backend.hpp"
#include "backends/sim/sim_options.hpp"
#include "core/file_limit_signal.hpp"
#include "device/device_state.hpp"

namespace tern::sim {
namespace {

/// The fake driver behind a CUDA device, if that is what it was opened with.
const cuda::FakeCuda* driver_behind(const Device& device) {
  if (device.info().backend != "cuda") return nullptr;
  const Result<DeviceSpec> spec = try_parse_device_spec(device.spec());
  if (!spec || spec->option("driver") != "sim") return nullptr;
  return cuda::linked_fake_cuda();
}

World& require_world(const Device& device) {
  World* world = device.is_open() ? world_of(DeviceState::of(device)->backend()) : nullptr;
  if (world == nullptr && device.is_open()) {
    if (const cuda::FakeCuda* driver = driver_behind(device)) world = driver->world();
  }
  if (world == nullptr) {
    raise(Failure(ErrorCode::invalid_device,
                  "'{spec}' is not a simulated device. Open a device with sim::open() or as 'sim'.")
              .with("spec", device.spec()));
  }
  return *world;
}

/// Each device needs addresses for twice its memory.
constexpr unsigned max_peers = 64;

/// Separates tags from events, which the checker numbers in the same space.
constexpr std::uint64_t tag_bit = std::uint64_t{1} << 63;

std::vector<Device> open_in(const std::shared_ptr<World>& world, unsigned count) {
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    devices.emplace_back(open_backend(world, fmt::format("sim:{}", i)).value());
  }
  return devices;
}

void access(const Device& device, TouchKind kind, const void* address, std::size_t bytes,
            CallSite site) {
  World& world = require_world(device);
  const Entry entry = world.enter("host access", site).value();
  if (bytes == 0) return;
  if (address == nullptr) {
    raise(
        Failure(ErrorCode::invalid_argument,
                "an access to {bytes} at address 0 was announced. Pass the address of the memory.",
                site)
            .with("name", "address")
            .with("value", std::uint64_t{0})
            .with_bytes("bytes", bytes));
  }
  if (Result<void> judged = world.judge_host_access(address, bytes, kind, site); !judged) {
    raise(Failure(judged.failure()).at(site));
  }
}

}  // namespace

Options options_from_config() { return try_read_options(DeviceSpec{"sim", 0, {}, {}}).value(); }

std::vector<Device> open_peers(const Options& options, unsigned count) {
  check_options(options).value();
  if (count == 0 || count > max_peers) {
    raise(Failure(ErrorCode::invalid_argument,
                  "{value} devices cannot be opened together: the number must be 1 to {max}.")
              .with("name", "count")
              .with("value", count)
              .with("max", max_peers));
  }
  const auto world =
      std::make_shared<World>(options, try_load_profile(options.profile).value(),
                              count == 1 ? "sim:0" : fmt::format("{} devices", count));
  world->open_trace().value();
  return open_in(world, count);
}

Exploration for_every_schedule(const Options& options, std::uint64_t max_runs,
                               const std::function<void(const Device&)>& body) {
  check_options(options).value();
  DecisionLog decisions;
  Exploration done;
  while (done.runs < max_runs && !done.is_complete) {
    {
      const auto world = std::make_shared<World>(options, try_load_profile(options.profile).value(),
                                                 "sim:0", &decisions);
      body(open_in(world, 1).front());
    }
    ++done.runs;
    if (!decisions.is_repeatable()) {
      raise(
          Failure(ErrorCode::invalid_argument,
                  "run {run} made other choices than the run before it in the same schedule: the "
                  "body is not deterministic. Move its random or timed inputs outside of the body.")
              .with("name", "body")
              .with("value", "different from run to run")
              .with("run", done.runs));
    }
    done.is_complete = !decisions.advance();
  }
  return done;
}

Device open(const Options& options) { return open_peers(options, 1).front(); }

void host_read(const Device& device, const void* address, std::size_t bytes, CallSite site) {
  access(device, TouchKind::read, address, bytes, site);
}
void host_write(const Device& device, void* address, std::size_t bytes, CallSite site) {
  access(device, TouchKind::write, address, bytes, site);
}

void release(const Device& device, std::uint64_t tag) {
  World& world = require_world(device);
  const Entry entry = world.enter("release").value();
  world.judge_later({.kind = RecordKind::release_edge, .event = tag | tag_bit});
}

void acquire(const Device& device, std::uint64_t tag) {
  World& world = require_world(device);
  const Entry entry = world.enter("acquire").value();
  world.judge_later({.kind = RecordKind::acquire_edge, .event = tag | tag_bit});
}

std::uint64_t hold(StreamRef stream) {
  const Device device = stream.device();
  World& world = require_world(device);
  NativeStream native = stream.try_native().value();
  if (const cuda::FakeCuda* driver = driver_behind(device)) {
    const std::uint32_t ordinal = parse_device_spec(device.spec()).index;
    native = driver->native_stream(reinterpret_cast<cuda::CUstream>(native.value), ordinal);
  }
  const Entry entry = world.enter("a knob").value();
  return world.hold(native.value - 1);
}

void resume(const Device& device, std::uint64_t hold) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  world.resume(hold);
}

void run_to_hold(const Device& device, std::uint64_t hold) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  world.run_to_hold(hold);
}

void set_patience(const Device& device, std::uint64_t milliseconds) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  world.set_patience(std::chrono::milliseconds(milliseconds));
}

std::vector<Finding> findings(const Device& device) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  return world.findings();
}

std::vector<Finding> leaks(const Device& device) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  return world.leaks();
}

std::uint64_t trace_hash(const Device& device) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  return world.trace_hash();
}

std::optional<Place> residence(const Device& device, const void* address) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  const auto offset = world.host().managed_offset(address);
  if (!offset) {
    raise(Failure(ErrorCode::invalid_argument,
                  "the address {value} is not in managed memory of the simulated device. Use an "
                  "address that allocate(MemoryKind::managed) returned.")
              .with("name", "address")
              .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex));
  }
  return world.managed().home(*offset);
}

std::uint64_t migrated_bytes(const Device& device) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  return world.migrated_bytes();
}

void flush_trace(const Device& device) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  if (world.trace()) world.trace()->flush().value();
}

std::uint64_t save_trace(const Device& device, const std::string& path) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  std::optional<TraceWriter>& trace = world.trace();
  if (!trace || trace->bytes().empty()) {
    raise(Failure(ErrorCode::invalid_argument,
                  "the device kept no trace in memory. Open the device with the option '{name}'.")
              .with("name", "trace_memory_bytes"));
  }
  trace->write({.kind = RecordKind::shutdown});
  // A trace that was cut at its limit records that itself.
  static_cast<void>(trace->close());
  const FileLimitSignal blocked;
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
  const Entry entry = world.enter("a knob").value();
  return world.time_ns();
}

std::uint64_t calls(const Device& device, std::string_view fault_class) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  const std::optional<FaultClass> known = FaultPlan::class_of(fault_class);
  if (!known) {
    std::string names;
    for (std::size_t i = 0; i < fault_classes; ++i) {
      names += fmt::format("{}{}", i == 0 ? "" : ", ", name(static_cast<FaultClass>(i)));
    }
    raise(Failure(ErrorCode::invalid_argument,
                  "'{value}' is not a class of calls. The classes are {accepts}.")
              .with("name", "fault_class")
              .with("accepts", names)
              .with("value", fault_class));
  }
  return world.faults().calls(*known);
}

void set_faults(const Device& device, std::string_view plan) {
  World& world = require_world(device);
  const Entry entry = world.enter("a knob").value();
  world.faults() = FaultPlan::try_parse(plan, world.options().seed).value();
}

}  // namespace tern::sim
