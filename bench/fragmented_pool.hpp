// A pool under load until its free memory is in pieces, for the cases that ask what is left of it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/random.hpp"

namespace tern::bench {

enum class Sizes { uniform, logarithmic };  // 1 B to 4 MiB, 256 B to 64 MiB

/// What is done to a resource.
struct Load {
  Sizes sizes = Sizes::uniform;
  std::size_t streams = 1;
  std::size_t cap_bytes = 0;
  std::size_t steps = 0;
  std::uint64_t seed = 1;

  /// "uniform, 4 streams".
  [[nodiscard]] std::string text() const;
};

/// Blocks in a resource that is nine tenths full, after many random frees and allocations.
class Fragmented {
 public:
  /// Does the steps. The resource and the streams must outlive it.
  Fragmented(Resource& resource, const Stage& stage, const Load& load);
  ~Fragmented();
  Fragmented(const Fragmented&) = delete;
  Fragmented& operator=(const Fragmented&) = delete;

  [[nodiscard]] std::size_t failures() const { return failures_; }
  [[nodiscard]] double us_per_failure() const;
  [[nodiscard]] double ns_per_step() const;
  /// Rounded up to 256 bytes each.
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  /// In whole pages of 2 MiB that no live block touches, if all of the cap is held in pages: what
  /// can be put together without moving a block. From the blocks' addresses, not the pool's word.
  [[nodiscard]] std::size_t free_page_bytes() const;
  /// The largest request that succeeds, to 64 KiB.
  [[nodiscard]] std::size_t largest_bytes();
  /// Frees a random half of the blocks.
  void free_half();
  /// Frees one block and allocates it anew: the pool can no longer rely on what it knew.
  void stir();

 private:
  struct Live {
    Block block = {};
    std::size_t bytes = 0;
    std::size_t stream = 0;
  };

  [[nodiscard]] std::size_t draw_bytes();
  void step();
  void free_one();
  void free_at(std::size_t index);
  [[nodiscard]] bool can_have(std::size_t bytes);

  Resource& resource_;
  const Stage& stage_;
  const Load load_;
  Random random_{load_.seed};
  std::vector<Live> live_;
  std::size_t live_bytes_ = 0;
  std::size_t wanted_bytes_ = 0;  // drawn, and not had yet
  std::size_t failures_ = 0;
  double failure_seconds_ = 0, seconds_ = 0;
};

}  // namespace tern::bench
