// The simulated hardware: its size, and the costs of operations in virtual time.
//
// A profile is built in and has a name, or it is a text file:
//
//   # An H200 behind PCIe 5.
//   name = H200
//   date = 2026-11-01
//   memory = 141GiB
//   link_bytes_per_us = 55000
//
// One key per line; '#' begins a comment, and blank lines are ignored. A missing key keeps the
// value of the built-in profile h200. Anything else is an error, which names the file, line, key,
// value and what the key accepts. A regular value type; the functions have no state.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::sim {

struct Profile {
  std::string name = "simulated device";
  std::string date = {};  // date of the measurements, such as 2026-11-01
  std::size_t memory_bytes = 0;
  std::uint32_t processors = 132;
  // An operation takes latency + bytes / bandwidth, in whole nanoseconds. The bounds ensure that
  // this fits in 64 bits for any size.
  std::uint64_t launch_ns = 4'400;
  std::uint64_t copy_ns = 2'700;
  std::uint64_t call_ns = 2'300;
  std::uint64_t submit_ns = 400;
  std::uint64_t slow_ns = 1'000'000;  // delay of a stream by the fault `slow`
  std::uint64_t link_bytes_per_us = 55'000;
  std::uint64_t memory_bytes_per_us = 2'100'000;
  bool concurrent_managed = true;

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// The minimum and maximum memory of a simulated device.
inline constexpr std::size_t min_memory_bytes = std::size_t{2} << 20;
inline constexpr std::size_t max_memory_bytes = std::size_t{1} << 44;

/// An H200 with 141 GiB behind PCIe 5. Under ThreadSanitizer, which leaves few addresses, it has 1
/// GiB.
[[nodiscard]] Profile default_profile();

/// Parses a profile; `file` is its name in errors. Fails with invalid_argument.
[[nodiscard]] Result<Profile> try_parse_profile(std::string_view text, std::string_view file);

/// Loads a built-in profile (h200, small), or a file of at most 64 KiB. An empty name means the
/// default. Fails with invalid_argument, or with file if the file cannot be read.
[[nodiscard]] TERN_EXPORT Result<Profile> try_load_profile(std::string_view name_or_path);

}  // namespace tern::sim
