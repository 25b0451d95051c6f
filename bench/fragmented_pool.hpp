// Loads a pool until its free memory is fragmented, for cases that measure what the pool can still
// do.

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

/// The load that is put on a resource.
struct Load {
  Sizes sizes = Sizes::uniform;
  std::size_t streams = 1;
  std::size_t cap_bytes = 0;
  std::size_t steps = 0;
  std::uint64_t seed = 1;

  /// Returns a text such as "uniform, 4 streams".
  [[nodiscard]] std::string text() const;
};

/// Keeps a resource nine tenths full, through many random frees and allocations.
class Fragmented {
 public:
  /// Runs the steps. The resource and the streams must outlive this object.
  Fragmented(Resource& resource, const Stage& stage, const Load& load);
  ~Fragmented();
  Fragmented(const Fragmented&) = delete;
  Fragmented& operator=(const Fragmented&) = delete;

  [[nodiscard]] std::size_t failures() const { return failures_; }
  [[nodiscard]] double us_per_failure() const;
  [[nodiscard]] double ns_per_step() const;
  /// Live bytes, each block rounded up to 256 bytes.
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  /// Returns the bytes in whole pages of 2 MiB that no live block touches, if the cap is held in
  /// pages. This is what the pool can combine without moving a block. Computed from the addresses
  /// of the blocks, not from the pool's statistics.
  [[nodiscard]] std::size_t free_page_bytes() const;
  /// Returns the size of the largest request that succeeds, with a precision of 64 KiB.
  [[nodiscard]] std::size_t largest_bytes();
  /// Frees a random half of the blocks.
  void free_half();
  /// Frees one block and allocates it again, so that the pool cannot use cached results.
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
  std::size_t wanted_bytes_ = 0;  // the size of a request that has not succeeded yet
  std::size_t failures_ = 0;
  double failure_seconds_ = 0, seconds_ = 0;
};

}  // namespace tern::bench
