// Checksums detect bytes that were changed by mistake, for example by a disk. They run at the speed
// of memory and are no protection against attackers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tern {

/// All parts but the last have a multiple of 32 bytes.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) noexcept {
    const std::byte* at = bytes.data();
    std::size_t left = bytes.size();
    bytes_ += left;
    // In registers, because a compiler has to assume that the bytes are those of this object.
    std::uint64_t lanes[4] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3]};
    for (; left >= 32; left -= 32, at += 32) {
      std::uint64_t words[4];
      std::memcpy(words, at, 32);
      for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * odd + (lanes[i] >> 32);
    }
    std::memcpy(lanes_, lanes, sizeof lanes);
    rest_ = {at, left};
  }
  /// Returns the checksum of all parts. The last part is still in memory.
  [[nodiscard]] std::uint64_t get() const noexcept {
    std::uint64_t sum = bytes_;
    for (const std::byte byte : rest_) sum = (sum ^ std::to_integer<std::uint64_t>(byte)) * odd;
    for (const std::uint64_t lane : lanes_) sum = (sum ^ lane ^ (lane >> 29)) * odd;
    return sum ^ (sum >> 32);
  }

 private:
  static constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;
  std::uint64_t lanes_[4] = {1, 2, 3, 4};
  std::size_t bytes_ = 0;
  std::span<const std::byte> rest_;
};

/// Returns a checksum of bytes that are all in memory, which is not that of Checksum. Reads four
/// parts of the bytes side by side: a core reads memory faster from several places at once.
[[nodiscard]] inline std::uint64_t checksum_of_parts(std::span<const std::byte> bytes) noexcept {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;
  constexpr std::size_t parts = 4, step = 16;
  const std::size_t part = bytes.size() / (parts * step) * step;
  std::uint64_t lanes[parts][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  for (std::size_t at = 0; at < part; at += step) {
    for (std::size_t i = 0; i < parts; ++i) {
      std::uint64_t words[2];
      std::memcpy(words, bytes.data() + i * part + at, step);
      for (int k = 0; k < 2; ++k) {
        lanes[i][k] = (lanes[i][k] ^ words[k]) * odd + (lanes[i][k] >> 32);
      }
    }
  }
  Checksum rest;
  rest.add(bytes.subspan(parts * part));
  std::uint64_t sum = rest.get();
  for (const auto& of_part : lanes) {
    for (const std::uint64_t lane : of_part) sum = (sum ^ lane ^ (lane >> 29)) * odd;
  }
  return sum ^ (sum >> 32);
}

}  // namespace tern
