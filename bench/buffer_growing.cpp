// What growing costs: an array that grows in steps of 1 MiB, beside one allocation of the final
// size that is written in the same steps.

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/growing_array.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t step_bytes = 1 * mib;
/// Growing may take 1.2 times as long.
constexpr double goal_share = 1 / 1.2;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Grown {
  double ms = 0;
  std::size_t moves = 0;  // steps after which the address was another one
  CopyCount copies = {};
};

Grown grow(const Device& device, StreamRef stream, std::size_t bytes, const Array<float>& step) {
  Grown grown;
  const Clock::time_point start = Clock::now();
  auto array = GrowingArray<float>::make(device, {.reserved_bytes = bytes});
  array.append(step, stream);
  const std::uintptr_t address = array.address();
  for (std::size_t done = step_bytes; done + step_bytes <= bytes; done += step_bytes) {
    array.append(step, stream);
    if (array.address() != address) ++grown.moves;
  }
  stream.synchronize();
  grown.ms = ms_since(start);
  grown.copies = array.statistics().moved;
  return grown;
}

/// One allocation from `resource`, or else from a new pool, and the same writes.
double ms_at_once(ResourceHandle resource, const Device& device, StreamRef stream,
                  std::size_t bytes, const Array<float>& step) {
  const Clock::time_point start = Clock::now();
  if (!resource) resource = make_pool(device, {});
  const auto array =
      Array<float>::uninitialized(resource, bytes / sizeof(float), {.stream = stream});
  const std::size_t count = step.size();
  for (std::size_t first = 0; first + count <= array.size(); first += count) {
    copy(array.slice(first, count).buffer(), step.buffer(), stream);
  }
  stream.synchronize();
  return ms_since(start);
}

void run(Context& context) {
  const Stage stage(context);
  const StreamRef stream = stage.streams[0];
  const bool is_gpu = stage.device.info().backend == "cuda" && stage.device.spec() == "cuda:0";
  const std::size_t wanted = context.usual_or_quick(is_gpu ? 64 * gib : 512 * mib, 16 * mib);
  const std::size_t bytes = fitting_bytes(context, stage.device, wanted) / step_bytes * step_bytes;
  const auto step = Array<float>::zeros(stage.device, step_bytes / sizeof(float));
  const std::size_t rounds = context.usual_or_quick<std::size_t>(5, 1);
  std::vector<double> growing, at_once;
  Grown grown;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("round {} of {}", round + 1, rounds));
    grown = grow(stage.device, stream, bytes, step);
    growing.push_back(grown.ms);
    at_once.push_back(
        ms_at_once(make_driver_plain(context, stage.device), stage.device, stream, bytes, step));
  }
  const bool is_virtual = stage.device.can(Capability::virtual_memory);
  if (!is_virtual) {
    context.note("This device has no virtual memory, so the array grows by copying.");
  }
  const auto goal = [&](double bound) {
    return is_virtual ? std::optional<double>(bound) : std::nullopt;
  };
  const std::string size = format_bytes(bytes);
  context.add({.name = size + " in steps of 1.0 MiB",
               .value = median(std::move(growing)),
               .unit = "ms",
               .better = Better::lower,
               .baseline_name = "one allocation, written in the same steps",
               .baseline = median(std::move(at_once)),
               .goal_ratio = goal(goal_share)});
  context.add({.name = size + ", changes of the address",
               .value = static_cast<double>(grown.moves),
               .better = Better::lower,
               .goal = goal(0)});
  context.add({.name = size + ", copies of the elements",
               .value = static_cast<double>(grown.copies.copies),
               .better = Better::lower,
               .goal = goal(0)});
}

const Registration registered({"buffer.growing", "an array grows without moving", run});

}  // namespace
}  // namespace tern::bench
