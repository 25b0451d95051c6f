// A random program against the planted pool: 200 steps under memory pressure.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/planted_pool.hpp"
#include "tools/pool_step.hpp"

namespace tern::tools {

/// Random numbers from a hashed seed, so that adjacent seeds are independent.
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

  /// Returns the first finding, if there is one. `operations` counts pool operations and uses.
  std::optional<Finding> run(Mistake mistake, std::uint64_t* operations = nullptr) const {
    return run(mistake, operations, [](const PoolStep&) {});
  }

  /// Returns the program as steps. The steps of a seed depend on the pool, because the step after a
  /// failed allocation differs.
  [[nodiscard]] std::vector<PoolStep> steps_against(Mistake mistake) const {
    std::vector<PoolStep> all = {{PoolStep::Kind::open, streams, pool_bytes, 0}};
    static_cast<void>(run(mistake, nullptr, [&](const PoolStep& step) { all.push_back(step); }));
    return all;
  }

 private:
  /// Calls `note` with each step before it runs.
  template <class NoteStep>
  std::optional<Finding> run(Mistake mistake, std::uint64_t* operations, NoteStep note) const {
    using Kind = PoolStep::Kind;
    struct Live {
      ActorId stream;
      std::uint64_t offset, bytes;
      std::uint32_t block;
    };
    Random random(seed);
    OrderChecker checker;
    PlantedPool pool(checker, pool_bytes, streams, mistake);
    std::vector<Live> live;
    std::uint64_t count = 0;
    std::uint32_t blocks = 0;

    const auto verify = [&](const Live& block) {
      note(PoolStep{Kind::verify, block.stream, block.bytes, block.block});
      pool.use(block.stream, TouchKind::read, block.offset, block.bytes);
      ++count;
    };
    const auto verify_and_free = [&](std::size_t index) {
      const Live block = live[index];
      live[index] = live.back();
      live.pop_back();
      verify(block);
      note(PoolStep{Kind::free, block.stream, block.bytes, block.block});
      pool.free(block.stream, block.offset, block.bytes);
      ++count;
    };
    for (int step = 0; step < steps && !pool.finding(); ++step) {
      const std::uint64_t dice = random.below(100);
      if (dice < 45 || live.empty()) {
        const auto stream = static_cast<ActorId>(1 + random.below(streams));
        const std::uint64_t bytes = random.below(10) == 0 ? 32 * 1024 + random.below(64 * 1024 + 1)
                                                          : 256 + random.below(12'000);
        note(PoolStep{Kind::allocate, stream, bytes, ++blocks});
        if (const std::optional<std::uint64_t> offset = pool.allocate(stream, bytes)) {
          pool.use(stream, TouchKind::write, *offset, bytes);
          live.push_back({stream, *offset, bytes, blocks});
          count += 2;
        } else if (!live.empty()) {
          verify_and_free(random.below(live.size()));
        }
      } else if (dice < 70) {
        verify(live[random.below(live.size())]);
      } else {
        verify_and_free(random.below(live.size()));
      }
    }
    for (const Live& block : live) verify(block);
    if (operations != nullptr) *operations += count;
    return pool.finding();
  }
};

}  // namespace tern::tools
