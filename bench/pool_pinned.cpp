// How much memory a pool of page-locked memory holds, compared with the requested bytes.

#include <fmt/format.h>

#include <bit>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/random.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_share = 1.125;
constexpr std::size_t slab_bytes = 64 * mib;

void run(Context& context) {
  const Stage stage(context);
  // Page-locked memory is allocated from the machine immediately, so the sizes are moderate.
  const std::size_t target = context.usual_or_quick(2 * gib, 128 * mib);
  const std::size_t max_bytes = context.usual_or_quick(256 * mib, 16 * mib);
  const auto pool = make_pool(stage.device, {.kind = MemoryKind::pinned});
  const StreamRef stream = stage.streams[0];
  Random random(1);
  std::vector<Block> blocks;
  std::size_t requested = 0, of_powers = 0;
  context.step("filling");
  while (requested < target) {
    const std::size_t bytes = random.log_uniform(4 * kib, max_bytes);
    blocks.push_back(pool->allocate({.bytes = bytes, .stream = stream}));
    requested += bytes;
    of_powers += std::bit_ceil(bytes);
  }
  const auto held = static_cast<double>(pool->pool_statistics().held_bytes);
  const auto asked = static_cast<double>(requested);
  context.add(
      {.name = fmt::format("held for {} in {} blocks", format_bytes(requested), blocks.size()),
       .value = held / asked,
       .unit = "x",
       .better = Better::lower,
       .baseline_name = "powers of two",
       .baseline = static_cast<double>(of_powers) / asked,
       .goal = goal_share + static_cast<double>(slab_bytes) / asked});
  for (const Block& block : blocks) pool->try_deallocate(block, stream).value();
  stage.device.synchronize();
}

const Registration registered({"pool.pinned", "page-locked memory held for what was asked for",
                               run});

}  // namespace
}  // namespace tern::bench
