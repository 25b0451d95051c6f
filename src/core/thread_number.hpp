// A number for every thread that uses memory.
//
// It tells threads apart, also from those that have ended: an address would be another's then.

#pragma once

#include <atomic>
#include <cstdint>

namespace tern {

/// 0 until the thread has asked for its own.
inline constinit thread_local std::uint64_t thread_number = 0;

inline std::uint64_t this_thread() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  if (thread_number == 0) [[unlikely]]
    thread_number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return thread_number;
}

}  // namespace tern
