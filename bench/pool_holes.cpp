// Allocates and frees one block in a pool that is full of smaller holes.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/pair_timing.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t hole_bytes = 4 * kib;
constexpr std::size_t goal_holes = 10'000;
constexpr double goal_ns = 90;

/// Allocates twice as many blocks and frees every second one. Returns the others.
std::vector<Block> make_holes(Resource& resource, StreamRef stream, std::size_t holes) {
  std::vector<Block> blocks, kept;
  for (std::size_t i = 0; i < 2 * holes; ++i) {
    blocks.push_back(resource.allocate({.bytes = hole_bytes, .stream = stream}));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      kept.push_back(blocks[i]);
    } else {
      resource.try_deallocate(blocks[i], stream).value();
    }
  }
  return kept;
}

void run(Context& context) {
  const Stage stage(context);
  const StreamRef stream = stage.streams[0];
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  for (const std::size_t holes : {100u, 1'000u, 10'000u, 100'000u}) {
    if (context.is_quick() && holes > 1'000) break;
    const Contestants all = contestants(context, make_filled_pool(stage.device, capacity));
    std::vector<std::vector<Block>> kept;
    for (const ResourceHandle& one : all) kept.push_back(make_holes(*one, stream, holes));
    stream.synchronize();
    for (const std::size_t bytes : {64 * kib, 2 * mib}) {
      const std::string what = fmt::format("{}, {} holes", format_bytes(bytes), holes);
      context.step(what);
      Figure figure = compare(what, pair_ns(context, all, stream, bytes, 5), "ns", Better::lower);
      if (holes == goal_holes) figure.goal = goal_ns;
      context.add(std::move(figure));
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const Block& block : kept[i]) all[i]->try_deallocate(block, stream).value();
    }
  }
}

const Registration registered({"pool.holes", "allocate and free beside small free blocks", run});

}  // namespace
}  // namespace tern::bench
