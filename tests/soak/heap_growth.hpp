// Judges whether the heap of a long-running process grows, from the bytes in use after each
// program. The first programs warm up caches and tables. After that, the smallest heap of the last
// programs may exceed the smallest heap at the end of the warm-up by a constant, for tables that
// double, and by a few bytes per request.

#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>

namespace tern::soak {

class HeapGrowth {
 public:
  // A pool of segments fills one in about 15 programs, and has the most descriptors then. Tables
  // that double, and those of the checker, move the heap by up to a few hundred KiB.
  static constexpr std::size_t warm_up = 32, window = 16, max_growth_per_request = 4;
  static constexpr std::size_t max_steps_bytes = std::size_t{1} << 20;

  struct Grown {
    std::size_t from_bytes = 0, to_bytes = 0, requests = 0;
  };

  explicit HeapGrowth(std::size_t requests_per_program) noexcept
      : requests_per_program_(requests_per_program) {}

  /// Notes the heap in use after a program. Returns the growth if it is more than allowed.
  [[nodiscard]] std::optional<Grown> note(std::size_t heap_bytes) {
    heap_.push_back(heap_bytes);
    if (heap_.size() > window) heap_.pop_front();
    if (++programs_ < warm_up + window) return {};
    const std::size_t now = *std::ranges::min_element(heap_);
    if (programs_ == warm_up + window) warm_bytes_ = now;
    const std::size_t requests = (programs_ - warm_up - window) * requests_per_program_;
    if (now <= warm_bytes_ + max_steps_bytes + max_growth_per_request * requests) return {};
    return Grown{warm_bytes_, now, requests};
  }

 private:
  const std::size_t requests_per_program_;
  std::deque<std::size_t> heap_;  // of the last programs
  std::size_t programs_ = 0, warm_bytes_ = 0;
};

}  // namespace tern::soak
