// thread_number is a number for every thread that uses memory.
//
// Numbers are never reused, so they distinguish a thread from threads that have ended. The address
// of a thread_local object would not, because a later thread may get the same address.

#pragma once

#include <atomic>
#include <cstdint>

namespace tern {

/// 0 until the thread first calls this_thread().
inline constinit thread_local std::uint64_t thread_number = 0;

/// Returns the number of the calling thread, and assigns it on the first call.
inline std::uint64_t this_thread() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  if (thread_number == 0) [[unlikely]]
    thread_number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return thread_number;
}

}  // namespace tern
