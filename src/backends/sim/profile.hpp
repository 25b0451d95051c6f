// What kind of device is simulated: its size, and what things cost in virtual time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tern::sim {

struct Profile {
  std::string name = "simulated device";
  std::size_t memory_bytes = 0;
  std::uint32_t processors = 132;
  // An operation takes latency + bytes / bandwidth, in whole nanoseconds.
  std::uint64_t launch_ns = 4'400;
  std::uint64_t copy_ns = 2'700;
  std::uint64_t call_ns = 2'300;
  std::uint64_t submit_ns = 400;
  std::uint64_t link_bytes_per_us = 55'000;
  std::uint64_t memory_bytes_per_us = 2'100'000;
};

/// An H200: 141 GiB behind PCIe 5. Thread sanitizers leave a process few addresses, so there it has
/// 1 GiB.
[[nodiscard]] inline Profile default_profile() {
  Profile profile;
#if defined(__SANITIZE_THREAD__)
  profile.memory_bytes = std::size_t{1} << 30;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  profile.memory_bytes = std::size_t{1} << 30;
#endif
#endif
  if (profile.memory_bytes == 0) profile.memory_bytes = std::size_t{141} << 30;
  return profile;
}

}  // namespace tern::sim
