// What kind of device is simulated: its size, and what things cost in virtual time.
//
// A profile is built in and has a name, or it is a text file:
//
//   # An H200 behind PCIe 5.
//   name = H200
//   date = 2026-11-01
//   memory = 141GiB
//   link_bytes_per_us = 55000
//
// One key a line; '#' begins a comment, and blank lines say nothing. A key that is left out keeps
// the value of the built-in profile h200. Anything else is refused with file, line, key, value and
// what the key takes; nothing is half-read. A regular value type; the functions keep no state.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"

namespace tern::sim {

struct Profile {
  std::string name = "simulated device";
  std::string date = {};  // when the numbers were measured, as 2026-11-01
  std::size_t memory_bytes = 0;
  std::uint32_t processors = 132;
  // An operation takes latency + bytes / bandwidth, in whole nanoseconds. All are bounded such that
  // this fits in 64 bits whatever is copied.
  std::uint64_t launch_ns = 4'400;
  std::uint64_t copy_ns = 2'700;
  std::uint64_t call_ns = 2'300;
  std::uint64_t submit_ns = 400;
  std::uint64_t slow_ns = 1'000'000;  // what the fault `slow` delays a stream by
  std::uint64_t link_bytes_per_us = 55'000;
  std::uint64_t memory_bytes_per_us = 2'100'000;
  bool concurrent_managed = true;

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// The least and the most memory a simulated device may have.
inline constexpr std::size_t min_memory_bytes = std::size_t{2} << 20;
inline constexpr std::size_t max_memory_bytes = std::size_t{1} << 44;

/// An H200: 141 GiB behind PCIe 5. Thread sanitizers leave a process few addresses, so there it has
/// 1 GiB.
[[nodiscard]] Profile default_profile();

/// The text of a profile; `file` is what errors call it. Refused with invalid_argument.
[[nodiscard]] Result<Profile> try_parse_profile(std::string_view text, std::string_view file);

/// A built-in profile by its name (h200, small), or one from a file of at most 64 KiB. Empty: the
/// default. Refused with invalid_argument, or file if there is none that can be read.
[[nodiscard]] TERN_EXPORT Result<Profile> try_load_profile(std::string_view name_or_path);

}  // namespace tern::sim
