// Constants and helpers of the trace file format, shared by the writer and the reader.
// docs/formats/trace.md specifies the format, and a test compares it with this file.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tern::trace_format {

inline constexpr std::array<std::uint8_t, 8> magic = {0xab, 'T', 'E', 'R', 'N', 'T', 'R', 0x0a};
inline constexpr std::uint32_t version = 1;
inline constexpr std::size_t file_header_bytes = 16;
inline constexpr std::size_t chunk_header_bytes = 12;

inline constexpr std::uint32_t chunk_about = 1;
inline constexpr std::uint32_t chunk_records = 2;
inline constexpr std::uint32_t chunk_end = 3;
/// A reader skips an unknown chunk if its kind has this bit, and rejects the trace otherwise.
inline constexpr std::uint32_t skippable = 0x8000'0000;

/// A finding that cannot be derived from the records.
inline constexpr std::uint32_t chunk_finding = skippable | 1;

inline constexpr std::uint8_t entry_string = 1;
inline constexpr std::uint8_t entry_record = 2;
inline constexpr std::uint8_t flag_refused = 1;
inline constexpr std::uint8_t touch_assumed = 0x80;

inline constexpr std::size_t max_chunk_bytes = 1 << 20;
inline constexpr std::size_t max_string_bytes = 4096;
inline constexpr std::size_t max_strings = 1 << 18;
inline constexpr std::size_t max_lines = 64;  // of each list in a finding
inline constexpr std::size_t max_touches = 4096;
inline constexpr std::size_t min_touch_bytes = 5;

/// Returns the CRC-32C (Castagnoli, reflected) of the bytes. `before` is the checksum of the
/// preceding bytes.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes,
                                   std::uint32_t before = 0) noexcept;

inline void put_u8(std::vector<std::byte>& out, std::uint8_t value) {
  out.push_back(static_cast<std::byte>(value));
}
inline void put_u32(std::vector<std::byte>& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) put_u8(out, static_cast<std::uint8_t>(value >> (8 * i)));
}
/// Appends a variable-length integer: seven bits per byte, lowest first. All bytes but the last
/// have the high bit set.
inline void put_varint(std::vector<std::byte>& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) put_u8(out, static_cast<std::uint8_t>(value | 0x80));
  put_u8(out, static_cast<std::uint8_t>(value));
}

[[nodiscard]] inline std::uint32_t get_u32(const std::byte* at) noexcept {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | std::to_integer<std::uint32_t>(at[i]);
  return value;
}

/// Returns the header of a chunk: kind, length and checksum.
[[nodiscard]] std::array<std::byte, chunk_header_bytes> chunk_header(
    std::uint32_t kind, std::span<const std::byte> payload) noexcept;

}  // namespace tern::trace_format
