// A Checksum detects bytes that were changed by mistake, for example by a disk. It runs at the
// speed of memory and is no protection against attackers.

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

}  // namespace tern
