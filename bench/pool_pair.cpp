// Allocating and freeing one block again and again: the pool's shortest way.

#include <fmt/format.h>

#include "bench/pair_timing.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ns = 45;

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  Contestants all = contestants(context, make_filled_pool(stage.device, capacity));
  if (ResourceHandle plain = make_driver_plain(context, stage.device)) {
    all.push_back(std::move(plain));
  }
  for (const std::size_t bytes : {std::size_t{256}, 4 * kib, 1 * mib, 64 * mib}) {
    const std::string size = format_bytes(bytes);
    context.step(size);
    const Scores ns = pair_ns(context, all, stage.streams[0], bytes, 7);
    Figure figure = compare(fmt::format("{}, allocate and free", size), ns, "ns", Better::lower);
    figure.goal = goal_ns;
    context.add(std::move(figure));
  }
}

const Registration registered({"pool.pair", "allocate and free one block, by size", run});

}  // namespace
}  // namespace tern::bench
