// What pausing and resuming memory costs, beside a plain copy of the bytes between the device and
// pinned memory of the host.

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Pausing and resuming reach 90 % of the rate of a plain copy.
constexpr double goal_share = 0.9;

double gb_per_s(std::size_t bytes, Clock::time_point start) {
  const std::chrono::duration<double> taken = Clock::now() - start;
  return static_cast<double>(bytes) / taken.count() / 1e9;
}

struct Rates {
  std::vector<double> pause, resume, read, write;
};

/// A round has each side once, in turn, so that both see the same machine.
void measure_round(PausableResource& memory, const Array<float>& array, void* pinned,
                   StreamRef stream, Rates& rates) {
  const std::size_t bytes = array.size_bytes();
  void* const address = array.storage()->first_byte();
  Clock::time_point start = Clock::now();
  stream.copy(pinned, address, bytes);
  stream.synchronize();
  rates.read.push_back(gb_per_s(bytes, start));

  start = Clock::now();
  stream.copy(address, pinned, bytes);
  stream.synchronize();
  rates.write.push_back(gb_per_s(bytes, start));

  start = Clock::now();
  memory.pause(array.storage());
  memory.wait();
  rates.pause.push_back(gb_per_s(bytes, start));

  start = Clock::now();
  memory.resume(array.storage(), stream);
  stream.synchronize();
  rates.resume.push_back(gb_per_s(bytes, start));
}

void run(Context& context) {
  const Stage stage(context);
  if (!stage.device.can(Capability::virtual_memory)) {
    context.note("This device has no virtual memory, so memory cannot be paused.");
    return;
  }
  const StreamRef stream = stage.streams[0];
  const bool is_gpu = stage.device.info().backend == "cuda" && stage.device.spec() == "cuda:0";
  const std::size_t wanted = context.usual_or_quick(is_gpu ? 32 * gib : 256 * mib, 16 * mib);
  const std::size_t bytes = fitting_bytes(context, stage.device, wanted) / mib * mib;
  const std::size_t rounds = context.usual_or_quick<std::size_t>(5, 1);
  // Elsewhere, the operating system clears each new page.
  const std::optional<double> goal = is_gpu ? std::optional(goal_share) : std::nullopt;
  const OwnedBlock pinned(default_resource(stage.device, MemoryKind::pinned), {.bytes = bytes});
  for (const bool verify : {true, false}) {
    const auto memory =
        std::make_shared<PausableResource>(stage.device, PausableOptions{.verify = verify});
    const auto array = Array<float>::zeros(stage.device, bytes / sizeof(float),
                                           {.resource = memory, .tag = "paused"});
    // The first pause allocates the pinned memory, which is slow.
    memory->pause(array.storage());
    memory->wait();
    memory->resume(array.storage(), stream);
    stream.synchronize();
    const std::size_t resident = memory->pause_statistics().resident_bytes;
    Rates rates;
    for (std::size_t round = 0; round < rounds; ++round) {
      context.step(fmt::format("round {} of {}", round + 1, rounds));
      measure_round(*memory, array, pinned.address(), stream, rates);
    }
    const std::string what =
        format_bytes(bytes) + (verify ? ", with checksums" : ", without checksums");
    context.add({.name = "pause " + what,
                 .value = median(std::move(rates.pause)),
                 .unit = "GB/s",
                 .better = Better::higher,
                 .baseline_name = "copy to pinned memory",
                 .baseline = median(std::move(rates.read)),
                 .goal_ratio = goal});
    context.add({.name = "resume " + what,
                 .value = median(std::move(rates.resume)),
                 .unit = "GB/s",
                 .better = Better::higher,
                 .baseline_name = "copy from pinned memory",
                 .baseline = median(std::move(rates.write)),
                 .goal_ratio = goal});
    context.add({.name = what + ", bytes by which the held memory grew",
                 .value = static_cast<double>(memory->pause_statistics().resident_bytes - resident),
                 .better = Better::lower,
                 .goal = 0});
  }
}

const Registration registered({"buffer.pause", "memory is paused and resumed", run});

}  // namespace
}  // namespace tern::bench
