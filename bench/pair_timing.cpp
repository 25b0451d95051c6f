#include "bench/pair_timing.hpp"

#include <chrono>
#include <vector>

#include "bench/measure.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// A struct of a program that owns a block.
struct Owner {
  Block block = {};
  std::size_t count = 0;
};

double seconds_of_pairs(Resource& resource, StreamRef stream, std::size_t bytes, std::size_t count,
                        PairStyle style) {
  Owner owner;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    if (style == PairStyle::kept) {
      owner.block = resource.allocate({.bytes = bytes, .stream = stream});
      ++owner.count;
      asm volatile("" : "+m"(owner));  // the struct is in memory, as that of a program would be
      resource.deallocate(owner.block, stream);
      continue;
    }
    const Result<Block> block = resource.try_allocate({.bytes = bytes, .stream = stream});
    resource.try_deallocate(*block, stream).value();
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns how many pairs take about `seconds`. Doubles the count from 4 until the pairs take a
/// tenth of the time, then scales.
std::size_t pairs_in(double seconds, Resource& resource, StreamRef stream, std::size_t bytes,
                     PairStyle style) {
  std::size_t count = 4;
  double taken = seconds_of_pairs(resource, stream, bytes, count, style);
  while (taken < seconds / 10) {
    count *= 2;
    taken = seconds_of_pairs(resource, stream, bytes, count, style);
  }
  return 1 + static_cast<std::size_t>(static_cast<double>(count) * seconds / taken);
}

}  // namespace

Scores pair_ns(const Context& context, const Contestants& contestants, StreamRef stream,
               std::size_t bytes, std::size_t batches, PairStyle style) {
  const double batch_seconds = context.seconds_per_figure() / 25;
  std::vector<std::size_t> counts;
  for (const ResourceHandle& contestant : contestants) {
    counts.push_back(pairs_in(batch_seconds, *contestant, stream, bytes, style));
  }
  std::vector<std::vector<double>> times(contestants.size());
  for (std::size_t batch = 0; batch < batches; ++batch) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      // A warm-up that is not timed: the previous contestant may have left the caches cold and the
      // core clock low, especially if it waits for the driver.
      static_cast<void>(seconds_of_pairs(*contestants[i], stream, bytes, 1 + counts[i] / 8, style));
      const double seconds = seconds_of_pairs(*contestants[i], stream, bytes, counts[i], style);
      times[i].push_back(seconds * 1e9 / static_cast<double>(counts[i]));
      stream.synchronize();
    }
  }
  Scores scores;
  for (std::vector<double>& of_one : times) scores.push_back(median(std::move(of_one)));
  return scores;
}

}  // namespace tern::bench
