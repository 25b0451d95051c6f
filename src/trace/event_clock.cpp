#include "trace/event_clock.hpp"

#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace tern::trace {
namespace {

std::uint64_t monotonic_ns() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

/// How ticks of the counter become nanoseconds.
struct Scale {
  std::uint64_t first_ticks = 0;
  std::uint64_t first_ns = 0;
  std::uint64_t ns_per_tick = 0;  // in units of 2^-32. 0: there is no counter
};

#if defined(__x86_64__) || defined(__aarch64__)

std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#else
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#endif
}

/// Reads both clocks at the same moment, as closely as a few attempts allow.
Scale read_both() noexcept {
  Scale best;
  std::uint64_t best_width = UINT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = ticks();
    const std::uint64_t ns = monotonic_ns();
    const std::uint64_t width = ticks() - before;
    if (width >= best_width) continue;
    best_width = width;
    best = {.first_ticks = before + width / 2, .first_ns = ns};
  }
  return best;
}

// Not inlined, so that now_ns() saves no registers for it.
[[gnu::noinline, gnu::cold]] Scale measure_scale() noexcept {
  Scale scale = read_both();
#if defined(__x86_64__)
  constexpr unsigned power_leaf = 0x80000007, constant_rate_bit = 1U << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(power_leaf, &a, &b, &c, &d) == 0 || (d & constant_rate_bit) == 0) return {};
  // The processor does not say its rate.
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  const Scale later = read_both();
  const std::uint64_t passed = later.first_ticks - scale.first_ticks;
  if (later.first_ticks <= scale.first_ticks || passed >> 31 != 0) return {};
  scale.ns_per_tick = ((later.first_ns - scale.first_ns) << 32) / passed;
#else
  constexpr std::uint64_t ns_per_second = 1'000'000'000;
  std::uint64_t ticks_per_second;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(ticks_per_second));
  if (ticks_per_second == 0) return {};
  scale.ns_per_tick = (ns_per_second << 32) / ticks_per_second;
#endif
  return scale;
}

#else

std::uint64_t ticks() noexcept { return 0; }
Scale measure_scale() noexcept { return {}; }

#endif

}  // namespace

std::uint64_t now_ns() noexcept {
  static const Scale scale = measure_scale();
  if (scale.ns_per_tick == 0) return monotonic_ns();
  // Signed, because the counters of two processors may differ by a few ticks.
  const auto passed =
      static_cast<__int128_t>(static_cast<std::int64_t>(ticks() - scale.first_ticks));
  return scale.first_ns + static_cast<std::uint64_t>(passed * scale.ns_per_tick >> 32);
}

}  // namespace tern::trace
