// A random program against the planted pool: 200 steps under memory pressure.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/planted_pool.hpp"

namespace tern::tools {

/// Numbers from a seed that is hashed first, so that neighbouring seeds have nothing in common.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed + 0x9e3779b97f4a7c15)) {}
  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  std::uint64_t state_;
};

struct PoolProgram {
  std::uint64_t seed = 0;
  int steps = 200;
  ActorId streams = 4;
  std::uint64_t pool_bytes = 256 * 1024;

  /// The first finding, if there is one. `operations` counts pool operations and uses.
  std::optional<Finding> run(Mistake mistake, std::uint64_t* operations = nullptr) const {
    struct Live {
      ActorId stream;
      std::uint64_t offset, bytes;
    };
    Random random(seed);
    OrderChecker checker;
    PlantedPool pool(checker, pool_bytes, streams, mistake);
    std::vector<Live> live;
    std::uint64_t count = 0;

    const auto verify_and_free = [&](std::size_t index) {
      const Live block = live[index];
      live[index] = live.back();
      live.pop_back();
      pool.use(block.stream, TouchKind::read, block.offset, block.bytes);
      pool.free(block.stream, block.offset, block.bytes);
      count += 2;
    };
    for (int step = 0; step < steps && !pool.finding(); ++step) {
      const std::uint64_t dice = random.below(100);
      if (dice < 45 || live.empty()) {
        const auto stream = static_cast<ActorId>(1 + random.below(streams));
        const std::uint64_t bytes = random.below(10) == 0 ? 32 * 1024 + random.below(64 * 1024 + 1)
                                                          : 256 + random.below(12'000);
        if (const std::optional<std::uint64_t> offset = pool.allocate(stream, bytes)) {
          pool.use(stream, TouchKind::write, *offset, bytes);
          live.push_back({stream, *offset, bytes});
          count += 2;
        } else if (!live.empty()) {
          verify_and_free(random.below(live.size()));
        }
      } else if (dice < 70) {
        const Live& block = live[random.below(live.size())];
        pool.use(block.stream, TouchKind::read, block.offset, block.bytes);
        ++count;
      } else {
        verify_and_free(random.below(live.size()));
      }
    }
    for (const Live& block : live) {
      pool.use(block.stream, TouchKind::read, block.offset, block.bytes);
    }
    if (operations != nullptr) *operations += count + live.size();
    return pool.finding();
  }
};

}  // namespace tern::tools
