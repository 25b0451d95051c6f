// One step of a program against the planted pool, as data that can be generated, removed and
// printed.
//
// Steps name blocks by number. A step that names a block without memory (its allocation failed or
// was removed), or a stream that the pool does not have, is skipped. So any subset of a program is
// a program.

#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/planted_pool.hpp"

namespace tern::tools {

struct PoolStep {
  enum class Kind : std::uint8_t {
    open,      // a pool of `bytes` for streams 1 to `stream`
    allocate,  // `bytes` on `stream` as `block`, and fill it
    verify,    // read `block` on its stream
    free,      // free `block` on its stream
  };
  Kind kind = Kind::allocate;
  ActorId stream = 1;
  std::uint64_t bytes = 0;
  std::uint32_t block = 0;

  friend bool operator==(const PoolStep&, const PoolStep&) = default;
};

/// Returns the first finding, if there is one, and stops there. `kept` gets the records.
inline std::optional<Finding> run_steps(std::span<const PoolStep> steps, Mistake mistake,
                                        RecordList* kept = nullptr) {
  struct Live {
    ActorId stream;
    std::uint64_t offset, bytes;
  };
  OrderChecker checker;
  std::optional<PlantedPool> pool;
  ActorId streams = 0;
  std::map<std::uint32_t, Live> live;
  for (const PoolStep& step : steps) {
    if (step.kind == PoolStep::Kind::open) {
      pool.emplace(checker, step.bytes, step.stream, mistake, kept);
      streams = step.stream;
      continue;
    }
    if (!pool) return std::nullopt;
    if (step.kind == PoolStep::Kind::allocate) {
      if (step.stream > streams) continue;
      if (const auto offset = pool->allocate(step.stream, step.bytes)) {
        pool->use(step.stream, TouchKind::write, *offset, step.bytes);
        live[step.block] = {step.stream, *offset, step.bytes};
      }
    } else if (const auto block = live.find(step.block); block != live.end()) {
      const auto [stream, offset, bytes] = block->second;
      if (step.kind == PoolStep::Kind::verify) {
        pool->use(stream, TouchKind::read, offset, bytes);
      } else {
        pool->free(stream, offset, bytes);
        live.erase(block);
      }
    }
    if (pool->finding()) return pool->finding();
  }
  return std::nullopt;
}

/// Returns whether `later` needs `earlier`.
inline bool depends(const PoolStep& later, const PoolStep& earlier) {
  if (earlier.kind == PoolStep::Kind::open) return true;
  return earlier.kind == PoolStep::Kind::allocate && later.block == earlier.block &&
         (later.kind == PoolStep::Kind::verify || later.kind == PoolStep::Kind::free);
}

/// Returns simpler replacements, simplest first: lower streams, then smaller and rounder sizes.
inline std::vector<PoolStep> simpler(const PoolStep& step) {
  std::vector<PoolStep> simpler;
  const auto add = [&](ActorId stream, std::uint64_t bytes) {
    if (stream != step.stream || bytes != step.bytes) {
      simpler.push_back({step.kind, stream, bytes, step.block});
    }
  };
  if (step.kind != PoolStep::Kind::open && step.kind != PoolStep::Kind::allocate) return simpler;
  const ActorId min_stream = step.kind == PoolStep::Kind::open ? 2 : 1;
  for (ActorId stream = min_stream; stream < step.stream; ++stream) add(stream, step.bytes);
  constexpr std::uint64_t granule = PlantedPool::granule;
  for (std::uint64_t bytes = granule; bytes < step.bytes; bytes *= 2) add(step.stream, bytes);
  const std::uint64_t rounded = (step.bytes + granule - 1) / granule * granule;
  if (rounded >= 2 * granule) add(step.stream, rounded - granule);
  return simpler;
}

inline std::string text_of(const PoolStep& step) {
  switch (step.kind) {
    case PoolStep::Kind::open:
      return fmt::format("open a pool of {} for {} streams", format_bytes(step.bytes), step.stream);
    case PoolStep::Kind::allocate:
      return fmt::format("allocate {} on S{} as #{}, and fill it", format_bytes(step.bytes),
                         step.stream, step.block);
    case PoolStep::Kind::verify:
      return fmt::format("read #{}", step.block);
    case PoolStep::Kind::free:
      return fmt::format("free #{}", step.block);
  }
  return "unknown";
}

}  // namespace tern::tools
