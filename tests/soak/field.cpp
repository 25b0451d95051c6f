#include "soak/field.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "support/simulated.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::soak {
namespace {

sim::Options any_options(Random& random) {
  constexpr std::array policies = {sim::Policy::mix,    sim::Policy::lazy,      sim::Policy::eager,
                                   sim::Policy::random, sim::Policy::stall_one, sim::Policy::pct};
  sim::Options options;
  options.seed = random.bits();
  options.policy = random.any_of(policies);
  options.reuse = random.one_in(3) ? sim::Reuse::friendly : sim::Reuse::hostile;
  options.mode = sim::Mode::collect;
  options.memory_bytes = std::size_t{256} << 20;
  options.concurrent_managed = !random.one_in(4);
  return options;
}

/// Opened once: a driver takes longer to open than a program to run.
const Device& opened_once(const std::string& spec) {
  static std::map<std::string, Device> all;
  const auto [place, is_new] = all.try_emplace(spec);
  if (is_new) place->second = open_device(spec);
  return place->second;
}

}  // namespace

Field::Field(const Program& program, Random& random, std::size_t pressed_bytes)
    : program_(program), random_(random) {
  if (program.device == "sim") {
    const sim::Options options = any_options(random);
    const std::size_t choice = random.below(4);
    if (choice < 2) {
      devices_ = sim::open_peers(options, static_cast<unsigned>(1 + choice));
    } else {
      devices_.push_back(sim::open(options));
      if (choice == 3) devices_.push_back(sim::open(any_options(random)));
    }
    simulated_ = devices_;
  } else {
    devices_.push_back(opened_once(program.device));
    is_leak_checked_ = false;
    if (random.one_in(3)) {
      devices_.push_back(sim::open(any_options(random)));
      simulated_.push_back(devices_.back());
    }
  }
  if (random.one_in(3)) devices_.push_back(opened_once("host"));
  for (const Device& one : devices_) {
    program.say("device {}", one.spec());
    if (random.one_in(3)) continue;
    ResourceHandle memory;
    const bool is_pressed = pressed_bytes != 0 && !one.info().is_host && random.one_in(3);
    if (!is_pressed && random.one_in(3)) {
      memory = std::make_shared<DirectResource>(one, MemoryKind::device);
    } else {
      memory = std::make_shared<PoolResource>(one);
    }
    Home& home = homes_[one.id()];
    home.budget = Budget::make(
        "soak", BudgetLimit::bytes(is_pressed ? pressed_bytes : std::size_t{16} << 20));
    home.resource = std::make_shared<BudgetResource>(std::move(memory), home.budget);
  }
  make_streams();
}

void Field::make_streams() {
  for (const Device& one : devices_) {
    for (std::size_t i = 0; i < 1 + random_.below(3); ++i) streams_.emplace_back(one);
  }
}

StreamRef Field::any_stream_of(const Device& device) {
  std::vector<StreamRef> all = {device.default_stream()};
  for (const Stream& one : streams_) {
    if (one.device_id() == device.id()) all.push_back(one);
  }
  return random_.any_of(all);
}

void Field::replace_stream() {
  Stream& one = random_.any_of(streams_);
  const Device device = one.device();
  Result<Stream> made = Stream::try_make(device);
  if (!made) return expect_reason(made.failure(), "making a stream");
  program_.say("replace {} by {}", one.name(), made->name());
  one = *std::move(made);
}

void Field::drain_streams() {
  for (const Stream& one : streams_) {
    if (const Result<void> done = one.try_synchronize(); !done) {
      expect_reason(done.failure(), "waiting for a stream");
    }
  }
  for (const Device& one : devices_) {
    if (const Result<void> done = one.try_synchronize(); !done) {
      expect_reason(done.failure(), "waiting for a device");
    }
  }
}

const Kernel* Field::copy_kernel(const Device& device) {
  if (const auto found = kernels_.find(device.id()); found != kernels_.end()) {
    return &found->second;
  }
  const auto copy = [](View<const Byte> from, View<Byte> to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i];
  };
  Result<Kernel> made = Kernel::try_from_function(device, "copy", +copy);
  if (made) return &kernels_.emplace(device.id(), *std::move(made)).first->second;
  if (made.failure().code() != ErrorCode::unsupported) {
    expect_reason(made.failure(), "loading a kernel");
  }
  return nullptr;
}

ResourceHandle Field::resource_of(const Device& device) {
  const auto found = homes_.find(device.id());
  return found == homes_.end() ? ResourceHandle() : found->second.resource;
}
std::vector<ResourceHandle> Field::resources() {
  std::vector<ResourceHandle> all;
  for (const auto& [id, home] : homes_) all.push_back(home.resource);
  return all;
}

void Field::plant_faults() {
  if (simulated_.empty()) return;
  constexpr std::array<const char*, 13> classes = {"copy",     "copy",   "sync", "sync",  "fill",
                                                   "allocate", "launch", "wait", "query", "record",
                                                   "free",     "stream", "map"};
  std::string plan;
  bool is_mute = false;  // answers no question, or ends no wait
  const std::size_t rules = 1 + random_.below(2);
  for (std::size_t i = 0; i < rules; ++i) {
    const char* const name = random_.any_of(classes);
    const bool is_lost = random_.one_in(12);
    const bool is_persistent = random_.one_in(3);
    const char* const kind = is_lost                                ? "lost"
                             : std::string_view(name) == "allocate" ? "oom"
                                                                    : "fail";
    const std::size_t number = 1 + random_.below(4);
    const std::string when = fmt::format("#{}{}", number, is_persistent ? "+" : "");
    // A blocking copy does not return before its device has answered: one that is never lost and
    // never answers would keep it for ever. So of questions and waits one works now and then.
    const bool is_answer = is_persistent && !is_lost &&
                           (std::string_view(name) == "query" || std::string_view(name) == "sync");
    plan += fmt::format("{}{}{}={}", i == 0 ? "" : ", ", name, is_answer && is_mute ? "~0.9" : when,
                        kind);
    is_mute |= is_answer;
    may_lose_ |= is_lost;
  }
  const Device& device = random_.any_of(simulated_);
  program_.say("faults of {}: {}", device.spec(), plan);
  sim::set_faults(device, plan);
  has_faults_ = true;
  fault_steps_ = 1 + random_.below(8);
}

void Field::clear_faults() {
  for (const Device& one : simulated_) sim::set_faults(one, "");
  if (has_faults_) program_.say("no more faults");
  has_faults_ = false;
  if (!may_lose_) return;
  for (const Device& one : simulated_) has_lost_ |= !one.try_synchronize();
}

void Field::count_step() {
  if (!has_faults_) {
    if (random_.one_in(8)) plant_faults();
  } else if (fault_steps_-- == 0) {
    clear_faults();
  }
}

void Field::expect_reason(const Failure& failure, const char* what, bool is_hurt) const {
  program_.say("{} fails: {}", what, failure.text());
  if (may_fail() || is_hurt) return;
  throw Mismatch(fmt::format("{} fails without a reason: {}", what, failure.text()));
}

void Field::abandon(std::vector<Byte>&& memory) {
  std::ranges::fill(memory, destination_canary);
  abandoned_.push_back(std::move(memory));
}

void Field::check_findings() {
  for (const Device& one : simulated_) {
    for (const Finding& found : sim::findings(one)) {
      throw Mismatch(
          fmt::format("the checker reports a correct program on {}: {}", one.spec(), found.text()));
    }
  }
}

void Field::check_memory() {
  static_cast<void>(reclaim_deferred());
  for (const auto& [id, home] : homes_) {
    home.resource->trim(0);
    // A storage that was kept is freed in the order of a stream, which comes behind the last wait.
    if (const Result<void> done = home.budget->try_wait_for_pending(); !done) {
      expect_reason(done.failure(), "waiting for frees");
    }
    require(home.budget->charged_bytes() == 0,
            "{} bytes stay charged after everything was dropped: {} pending, {} of frees that "
            "failed, {} of storages that are kept",
            home.budget->charged_bytes(), home.budget->pending_bytes(),
            home.resource->failed_free_bytes(), deferred_frees().bytes);
    require(home.resource.use_count() == 1, "{} owners of a resource are left",
            home.resource.use_count() - 1);
  }
  homes_.clear();
  if (!is_leak_checked_ || has_lost_) return;
  for (const Device& one : simulated_) {
    // What the default pools hold goes back with them; peers list the memory of all of them.
    if (const ResourceHandle memory = shutdown_default_resource(one)) {
      require(memory->statistics().live_bytes == 0, "{} bytes of the default pool are left",
              memory->statistics().live_bytes);
    }
  }
  for (const Device& one : simulated_) {
    for (const Finding& leak : sim::leaks(one)) {
      throw Mismatch(fmt::format("memory is left after everything was dropped: {}", leak.text()));
    }
  }
}

void Field::finish() {
  clear_faults();
  kernels_.clear();
  drain_streams();
  streams_.clear();
  for (const Device& one : devices_) {
    if (const Result<void> done = one.try_synchronize(); !done) {
      expect_reason(done.failure(), "waiting for a device");
    }
  }
  check_findings();
  check_memory();
  check_findings();
  for (const std::vector<Byte>& one : abandoned_) {
    require(std::ranges::all_of(one, [](Byte value) { return value == destination_canary; }),
            "a call that had failed wrote {} bytes of its caller's memory after it returned",
            std::ranges::count_if(one, [](Byte value) { return value != destination_canary; }));
  }
}

}  // namespace tern::soak
